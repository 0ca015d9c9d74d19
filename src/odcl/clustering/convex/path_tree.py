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

from odcl._typing import Ints
from odcl.clustering.convex.fusion import (
    diameter,
    fused_at,
    fused_from_flow,
    not_fused_below,
    pair_threshold,
    traversal,
)
from odcl.clustering.convex.newton import Groups, Pairs
from odcl.clustering.convex.solve import lower_bound, solve
from odcl.clustering.labels import members

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


@dataclass(frozen=True, eq=False)
class Event:
    """Points that become one cluster: certainly not one at ``low``, certainly from ``high`` on."""

    low: float
    high: float
    points: Ints
    opened: bool = True  # False: how the points came together was not looked at


@dataclass(frozen=True, eq=False)
class _Task:
    """An event to find: its parts are distinct at ``low`` and fused at ``high``."""

    groups: Groups
    parts: list[Ints]  # the points of each group
    low: float
    high: float


def grow(
    groups: Groups, parts: list[Ints], tol: float, done: Callable[[int], None] | None = None
) -> list[Event]:
    """All events of some groups, whose points are ``parts``, until they are one cluster.

    Brackets are at most ``tol`` wide, relative; events of two groups are exact. ``done`` is
    called at every event with the number of clusters that met.
    """
    events: list[Event] = []
    tasks = [_Task(groups, parts, 0.0, np.inf)] if len(parts) > 1 else []
    while tasks:
        low, high, parts = _meeting(tasks.pop(), tol, tasks)
        events.append(Event(low, high, np.concatenate(parts)))
        if done is not None:
            done(len(parts))
    return events


def _meeting(task: _Task, tol: float, tasks: list[_Task]) -> tuple[float, float, list[Ints]]:
    """Where the parts become one, and those that do; what is fused before becomes a task."""
    parts, at, high = task.parts, task.low, task.high
    # Around their mean: what the parts differ by may be a millionth of where they are.
    groups = Groups(task.groups.a - task.groups.mean(task.groups.a), task.groups.n)
    u, at_u, bound = groups.a, 0.0, 0.0
    share, cold, failures = FAR, True, 0
    while len(parts) > 2:
        pairs = Pairs(groups.n, u, 0.0)
        high = min(high, fused_from_flow(groups, pairs))
        bound = min(high, max(bound, lower_bound(groups, pairs)))
        if high - at <= tol * high or failures > 5:
            return at, high, parts
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
        share = FAR if solved.n_clusters < len(parts) else NEAR
        for own in (met := members(solved.labels)):
            if len(own) > 1:
                tasks.append(_Task(groups.take(own), [parts[k] for k in own], at, to))
        parts = [np.concatenate([parts[k] for k in own]) for own in met]
        groups, u, at, at_u = solved.groups, solved.u, to, to
    meet = pair_threshold(groups)
    return meet, meet, parts


def grow_top(groups: Groups, *, most: int, tol: float) -> tuple[list[Event], float]:
    """The top of the tree, without opening groups that are certainly fused; and from which lambda.

    From the lambda on at which all of these groups are proven to be fused, the path is that of
    the groups as single points with masses.
    """
    closed = _closed_groups(groups, most)
    start = max(part.high for part in closed)
    labels = np.empty(len(groups.a), dtype=np.intp)
    for k, part in enumerate(closed):
        labels[part.points] = k
    top = solve(groups.collapse(labels), start)
    events: list[Event] = []
    parts = []
    for own in members(top.labels):
        inside = [closed[k] for k in own]
        parts.append(np.concatenate([part.points for part in inside]))
        if len(parts[-1]) > 1:
            high = inside[0].high if len(own) == 1 else start
            low = max(part.low for part in inside)
            events.append(Event(low, high, parts[-1], opened=False))
    return events + grow(top.groups, parts, tol), start


def _closed_groups(groups: Groups, most: int) -> list[Event]:
    """At most ``most`` groups whose insides need not be looked at.

    A group is split (see :func:`~.fusion.traversal`) if the parts are proven to be fused
    before any of them can meet; then the parts are tried in turn.
    """
    everything = np.arange(len(groups.a))
    waiting = [_closed(groups, everything, np.inf)]
    found: list[Event] = []
    while waiting:
        whole = waiting.pop()
        parts = _split(groups, whole.points, most - len(found) - len(waiting))
        if parts:
            waiting += parts
        else:
            found.append(whole)
    if len(found) == 1 and 2 < len(everything) <= MOST_SOLVED:
        return _solved_groups(groups, most) or found
    return found


def _solved_groups(groups: Groups, most: int) -> list[Event]:
    """The clusters at a lambda below the root's, the smallest of a few with at most ``most``.

    For points whose groups are not fused as a whole before they meet: stragglers come late.
    """
    root = lower_bound(groups, Pairs(groups.n, groups.a, 0.0))
    found: list[Event] = []
    for share in SOLVED_SHARES:
        clusters = solve(groups, share * root, rough=True)
        if not (clusters.certified and 1 < clusters.n_clusters <= most):
            break
        found = [_closed(groups, part, share * root) for part in members(clusters.labels)]
    return found


def _split(groups: Groups, points: Ints, room: int) -> list[Event]:
    """The first cut of the traversal whose parts are fused before any of them can meet."""
    if len(points) < 3:
        return []
    whole = groups.take(points)
    for labels in traversal(whole.a, max(2, room), LAZY_JUMP)[:TRIES]:
        if labels.max() >= room:
            continue
        parts = [points[own] for own in members(labels)]
        meetings = grow(whole.collapse(labels), parts, tol=0.01)
        meet = min(event.low for event in meetings)  # whatever is in the parts
        for share in SHARES:
            if all(_fused_before(groups.take(part), share * meet) for part in parts):
                return [_closed(groups, part, share * meet) for part in parts]
    return []


def _fused_before(part: Groups, lam: float) -> bool:
    if fused_at(part, lam):
        return True
    return not_fused_below(part) <= lam and solve(part, lam).n_clusters == 1


def _closed(groups: Groups, points: Ints, high: float) -> Event:
    """Points that are fused from some lambda on, ``high`` at the latest."""
    part = groups.take(points)
    if len(points) == 1:
        return Event(0.0, 0.0, points, opened=False)
    return Event(not_fused_below(part), min(high, diameter(part.a) / part.mass), points, False)
