"""The tree of convex clustering: which groups meet, and at which lambda.

Clusters never split as lambda grows, and inside a cluster the path of its points alone is the path
of the whole (fusion is local). So the path is a tree that can be grown from its root: solve a node
just below the lambda at which it becomes one cluster, hand what is fused there to nodes of their
own, and close in on the event with the bracket

    <a - abar, u> / P(u)  <=  lam*  <=  the largest |q_kl| of the flow along u,

of which the left side errs by the square of the error of u's shape. Two groups meet at exactly
|a_k - a_l| / (n_k + n_l). In two and more dimensions many groups may meet at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from odcl._typing import Ints
from odcl.clustering.convex.fusion import (
    fused_at,
    fused_from_diameter,
    fused_from_flow,
    not_fused_below,
    pair_threshold,
    traversal,
)
from odcl.clustering.convex.newton import Groups, Pairs
from odcl.clustering.convex.solve import lower_bound, solve

# Share of the way to the lower bound of the event that the next solve goes: far at first and
# after groups have met, all but one hundredth once nothing more meets on the way.
FAR, NEAR = 0.9, 0.99
# Candidate groups of the lazy path: a wrong guess only costs, so a small jump will do.
LAZY_JUMP = 1.25
# Parts should be fused well before they meet; the sooner, the more of the path is opened.
SHARES = (0.5, 0.75, 0.95)
TRIES = 4  # cuts of a traversal
# Where no cut will do, few enough points are solved for, below the last merge.
SOLVED_SHARES = (0.95, 0.8, 0.6)
MOST_SOLVED = 5000


@dataclass(frozen=True)
class Merge:
    """Nodes that become one cluster: certainly apart at ``low``, certainly one from ``high`` on.

    Nodes 0..n_points-1 are the points; node n_points + e is made by merge e.
    """

    low: float
    high: float
    children: tuple[int, ...]
    node: int
    opened: bool = True  # False: how the points inside came together was not looked at


def grow(
    groups: Groups,
    ids: Ints,
    *,
    tol: float,
    new_id: Callable[[], int],
    done: Callable[[int], None] = lambda n: None,
) -> list[Merge]:
    """All events of some groups, the nodes ``ids`` of the tree, until they are one cluster.

    Brackets are at most ``tol`` wide, relative; events of two nodes are exact. ``done`` is
    called at every event with the number of nodes that met.
    """
    events: list[Merge] = []
    if len(ids) == 1:
        return events
    tasks = [_Task(new_id(), groups, ids, 0.0, np.inf)]
    while tasks:
        event = _grow_node(tasks.pop(), tol, tasks, new_id)
        done(len(event.children))
        events.append(event)
    return events


@dataclass(eq=False)
class _Task:
    """A node to grow: its parts are distinct at ``low`` and fused at ``high``."""

    node: int
    groups: Groups
    ids: Ints
    low: float
    high: float


def _grow_node(task: _Task, tol: float, tasks: list[_Task], new_id: Callable[[], int]) -> Merge:
    """The event that makes a node; parts that turn out to be fused before become tasks."""
    ids, at, high = task.ids, task.low, task.high
    # Around their mean: what the parts differ by may be a millionth of where they are.
    groups = Groups(task.groups.a - task.groups.mean(task.groups.a), task.groups.n)
    u, at_u, bound = groups.a, 0.0, 0.0
    share, cold, failures = FAR, True, 0
    while True:
        if len(ids) == 2:
            meet = pair_threshold(groups)
            return Merge(meet, meet, tuple(ids.tolist()), task.node)
        pairs = Pairs(groups.n, u, 0.0)
        high = min(high, fused_from_flow(groups, pairs))
        bound = min(high, max(bound, lower_bound(groups, pairs)))
        if high - at <= tol * high or failures > 5:
            return Merge(at, high, tuple(ids.tolist()), task.node)
        to = at + share * (bound - at)
        if at < (enough := bound * (1 - 0.3 * tol)) < to:
            to = enough
        if not at < to < high:  # rounding: no room between the bounds
            to = 0.5 * (at + high)
        mean = groups.mean(u)
        start = mean + max(bound - to, 0.01 * (bound - at_u)) / (bound - at_u) * (u - mean)
        solved = solve(groups, to, None if cold else start, rough=True)
        cold = False
        if solved.n_clusters == 1:  # the bounds have met within rounding
            high = to
            continue
        if not solved.certified:  # too close to a merge: try another place
            share, failures = 0.7 * share, failures + 1
            continue
        share = FAR if solved.n_clusters < len(ids) else NEAR
        ids = _hand_over(solved.labels, groups, ids, at, to, tasks, new_id)
        groups, u, at, at_u = solved.groups, solved.u, to, to


def _hand_over(
    labels: Ints,
    groups: Groups,
    ids: Ints,
    low: float,
    high: float,
    tasks: list[_Task],
    new_id: Callable[[], int],
) -> Ints:
    """Nodes of the clusters ``labels``: the old one of a single, a new task for several."""
    nodes = np.empty(int(labels.max()) + 1, dtype=np.intp)
    for cluster in range(len(nodes)):
        members = np.flatnonzero(labels == cluster)
        if len(members) == 1:
            nodes[cluster] = ids[members[0]]
            continue
        nodes[cluster] = new_id()
        part = Groups(groups.a[members], groups.n[members])
        tasks.append(_Task(int(nodes[cluster]), part, ids[members], low, high))
    return nodes


def grow_top(
    groups: Groups, *, most: int, tol: float, new_id: Callable[[], int]
) -> tuple[list[Merge], float]:
    """The top of the tree, without opening groups that are certainly fused; and from which lambda.

    From the lambda on at which all of these groups are proven to be fused, the path is that of
    the groups as single points with masses.
    """
    closed = _closed_groups(groups, most)
    start = max(part.high for part in closed)
    n = np.array([groups.n[part.members].sum() for part in closed])
    a = np.array([groups.n[part.members] @ groups.a[part.members] for part in closed])
    top = solve(Groups(a / n[:, None], n), start)
    events: list[Merge] = []
    nodes = []
    for cluster in range(top.n_clusters):
        own = [closed[k] for k in np.flatnonzero(top.labels == cluster)]
        members = np.concatenate([part.members for part in own])
        if len(members) == 1:
            nodes.append(int(members[0]))
            continue
        low = max(part.low for part in own)
        high = own[0].high if len(own) == 1 else start
        nodes.append(new_id())
        events.append(Merge(low, high, tuple(members.tolist()), nodes[-1], opened=False))
    above = grow(top.groups, np.array(nodes), tol=tol, new_id=new_id)
    return events + above, start


@dataclass(frozen=True, eq=False)
class _Closed:
    """Points that are fused from ``high`` on; below ``low`` they are not."""

    members: Ints
    low: float
    high: float


def _closed_groups(groups: Groups, most: int) -> list[_Closed]:
    """At most ``most`` groups whose insides need not be looked at.

    A group is split (see :func:`~.fusion.traversal`) if the parts are proven to be fused
    before any of them can meet; then the parts are tried in turn.
    """
    everything = np.arange(len(groups.a))
    waiting = [_closed(groups, everything, np.inf)]
    found: list[_Closed] = []
    while waiting:
        whole = waiting.pop()
        parts = _split(groups, whole.members, most - len(found) - len(waiting))
        if parts:
            waiting += parts
        else:
            found.append(whole)
    if len(found) == 1 and 2 < len(everything) <= MOST_SOLVED:
        return _solved_groups(groups, most) or found
    return found


def _solved_groups(groups: Groups, most: int) -> list[_Closed]:
    """The clusters at a lambda below the root's, the smallest of a few with at most ``most``.

    For points whose groups are not fused as a whole before they meet: stragglers come late.
    """
    root = lower_bound(groups, Pairs(groups.n, groups.a, 0.0))
    found: list[_Closed] = []
    for share in SOLVED_SHARES:
        clusters = solve(groups, share * root, rough=True)
        if not (clusters.certified and 1 < clusters.n_clusters <= most):
            break
        parts = [np.flatnonzero(clusters.labels == k) for k in range(clusters.n_clusters)]
        found = [_closed(groups, part, share * root) for part in parts]
    return found


def _split(groups: Groups, members: Ints, room: int) -> list[_Closed]:
    """The first cut of the traversal whose parts are fused before any of them can meet."""
    if len(members) < 3:
        return []
    for labels in traversal(groups.a[members], max(2, room), LAZY_JUMP)[:TRIES]:
        if labels.max() >= room:
            continue
        parts = [members[labels == k] for k in range(labels.max() + 1)]
        n = np.array([groups.n[part].sum() for part in parts])
        a = np.array([groups.n[part] @ groups.a[part] for part in parts]) / n[:, None]
        ids = itertools.count(len(n))
        meetings = grow(Groups(a, n), np.arange(len(n)), tol=0.01, new_id=lambda: next(ids))  # noqa: B023
        meet = min(event.low for event in meetings)  # whatever is in the parts
        for share in SHARES:
            if all(_fused_before(groups, part, share * meet) for part in parts):
                return [_closed(groups, part, share * meet) for part in parts]
    return []


def _fused_before(groups: Groups, members: Ints, lam: float) -> bool:
    part = Groups(groups.a[members], groups.n[members])
    if len(members) == 1 or fused_at(part, lam):
        return True
    return not_fused_below(part) <= lam and solve(part, lam).n_clusters == 1


def _closed(groups: Groups, members: Ints, high: float) -> _Closed:
    if len(members) == 1:
        return _Closed(members, 0.0, 0.0)
    part = Groups(groups.a[members], groups.n[members])
    return _Closed(members, not_fused_below(part), min(high, fused_from_diameter(part)))
