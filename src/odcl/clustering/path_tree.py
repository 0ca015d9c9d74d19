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

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.convex_newton import Groups, Pairs
from odcl.clustering.convex_solve import candidates, lower_bound, solve
from odcl.clustering.fusion import (
    fused_from_diameter,
    fused_from_flow,
    not_fused_below,
    pair_threshold,
)

# Share of the way to the lower bound of the event that the next solve goes: far at first and
# after groups have met, all but one hundredth once nothing more meets on the way.
FAR, NEAR = 0.9, 0.99


@dataclass(frozen=True, eq=False)
class Event:
    """Some nodes become one: distinct at ``low``, one cluster from ``high`` on."""

    node: int
    children: tuple[int, ...]
    low: float
    high: float
    opened: bool = True  # False: what happens inside was not looked at


def grow(
    groups: Groups,
    ids: Ints,
    *,
    tol: float,
    new_id: Callable[[], int],
    done: Callable[[int], None] = lambda n: None,
) -> list[Event]:
    """All events of some groups, the nodes ``ids`` of the tree, until they are one cluster.

    Brackets are at most ``tol`` wide, relative; events of two nodes are exact. ``done`` hears of
    every event with the number of nodes that met.
    """
    events: list[Event] = []
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


def _grow_node(task: _Task, tol: float, tasks: list[_Task], new_id: Callable[[], int]) -> Event:
    """The event that makes a node; parts that turn out to be fused before become tasks."""
    groups, ids, at, high = task.groups, task.ids, task.low, task.high
    u, at_u, bound = groups.a, 0.0, 0.0
    share, cold, failures = FAR, True, 0
    while True:
        if len(ids) == 2:
            meet = pair_threshold(groups)
            return Event(task.node, tuple(ids.tolist()), meet, meet)
        pairs = Pairs(groups.n, u, 0.0)
        high = min(high, fused_from_flow(groups, pairs))
        bound = min(high, max(bound, lower_bound(groups, pairs)))
        if high - at <= tol * high or failures > 5:
            return Event(task.node, tuple(ids.tolist()), at, high)
        to = at + share * (bound - at)
        if not at < to < high:  # rounding: no room between the bounds
            to = 0.5 * (at + high)
        mean = groups.mean(u)
        start = mean + max(bound - to, 0.01 * (bound - at_u)) / (bound - at_u) * (u - mean)
        solved = solve(groups, to, None if cold else start)
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
) -> tuple[list[Event], float]:
    """The top of the tree, without opening groups that are certainly fused; and from which lambda.

    Points are put into at most ``most`` candidate groups, each proven to be fused from its own
    ``high`` on by a certificate that needs no solve. From the largest of these on, the path is that
    of the groups as single points with masses.
    """
    labels = _parts(groups.a, most)
    closed = [np.flatnonzero(labels == k) for k in range(labels.max() + 1)]
    bounds = [_closed_bounds(Groups(groups.a[part], groups.n[part])) for part in closed]
    start = max(high for _, high in bounds)
    n = np.array([groups.n[part].sum() for part in closed])
    a = np.array([groups.n[part] @ groups.a[part] for part in closed]) / n[:, None]
    top = solve(Groups(a, n), start)
    events: list[Event] = []
    nodes = []
    for cluster in range(top.n_clusters):
        own = np.flatnonzero(top.labels == cluster)
        members = np.concatenate([closed[k] for k in own])
        if len(members) == 1:
            nodes.append(int(members[0]))
            continue
        low, high = bounds[own[0]] if len(own) == 1 else (max(bounds[k][0] for k in own), start)
        nodes.append(new_id())
        events.append(Event(nodes[-1], tuple(members.tolist()), low, high, opened=False))
    above = grow(top.groups, np.array(nodes), tol=tol, new_id=new_id)
    return events + above, start


def _parts(a: Floats, most: int) -> Ints:
    """Candidate groups, split again while they show a clear jump and there are at most ``most``."""
    labels = np.zeros(len(a), dtype=np.intp)
    to_split = [0]
    count = 1
    while to_split:
        members = np.flatnonzero(labels == to_split.pop())
        if len(members) < 3:
            continue
        inside = candidates(a[members], most)
        extra = int(inside.max())
        if extra == 0 or count + extra > most:
            continue
        labels[members[inside > 0]] = count + inside[inside > 0] - 1
        to_split += [int(labels[members[0]]), *range(count, count + extra)]
        count += extra
    return np.unique(labels, return_inverse=True)[1]


def _closed_bounds(groups: Groups) -> tuple[float, float]:
    """Bounds of the lambda at which a group becomes one cluster, without a solve."""
    if len(groups.a) == 1:
        return 0.0, 0.0
    return not_fused_below(groups), fused_from_diameter(groups)
