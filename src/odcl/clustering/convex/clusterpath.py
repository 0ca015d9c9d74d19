"""The whole clusterpath of convex clustering: every lambda at once, as a tree of merges.

Clusters never split as lambda grows, and inside a cluster the path of its points alone is the path
of the whole (fusion is local). So the path is a tree that can be grown from its root: solve a node
just below the lambda at which it becomes one cluster, hand what is fused there to nodes of their
own, and close in on the event with the bracket

    <a - abar, u> / P(u)  <=  lam*  <=  the largest |q_kl| of the flow along u,

whose left side errs by the square of the error of u's shape. Two groups meet at exactly
|a_k - a_l| / (n_k + n_l). In two and more dimensions many groups may meet at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.convex.estimator import check_lam, convex_cluster, prepare
from odcl.clustering.convex.fusion import (
    diameter,
    fused_at,
    fused_from_flow,
    not_fused_below,
    pair_threshold,
    traversal,
)
from odcl.clustering.convex.newton import MassPoints, Pairs
from odcl.clustering.convex.solve import lower_bound, solve
from odcl.clustering.labels import as_points, check_count, members, number_by_first_user
from odcl.threads import one_thread

# Up to this many points every event is worth its time: 0.2 s at 300 points in 20 dimensions.
EXACT_POINTS = 300
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


@dataclass(frozen=True)
class Plateau:
    """The lambdas start <= lam < end that give ``n_clusters`` clusters."""

    n_clusters: int
    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, eq=False)
class ClusterPath:
    """The path as a tree. Made by :func:`clusterpath`."""

    points: Floats  # (n_points, dim)
    merges: tuple[Merge, ...]  # in the order of lambda
    opened_from: float  # from this lambda on the tree is complete; 0 if it is exact

    @property
    def n_points(self) -> int:
        return len(self.points)

    @property
    def exact(self) -> bool:
        """Every merge of the path is in the tree."""
        return self.opened_from == 0

    def n_clusters(self, lam: float) -> int:
        """Number of clusters at ``lam``."""
        return int(self.labels(lam).max()) + 1

    def labels(self, lam: float | None = None, *, n_clusters: int | None = None) -> Ints:
        """Clusters at ``lam``, or at the level of the path that has ``n_clusters`` of them.

        ``labels(0.1)`` is a lambda, ``labels(n_clusters=3)`` a number. Clusters are numbered by
        their first point. Inside a merge's bracket the merge has not happened yet.
        Below ``opened_from`` the problem is solved at ``lam`` instead of read off the tree.
        """
        if (lam is None) == (n_clusters is None):
            raise ValueError("Give either lam or n_clusters: both name a level of the path.")
        if n_clusters is not None:
            return self._cut(self.level(n_clusters).start)
        lam = check_lam(lam)
        if lam < self.opened_from:
            return convex_cluster(self.points, lam).labels
        return self._cut(lam)

    def level(self, n_clusters: int) -> Plateau:
        """The plateau with ``n_clusters`` clusters; an error names the ones there are."""
        for plateau in self.plateaus:
            if plateau.n_clusters == n_clusters:
                return plateau
        have = sorted(p.n_clusters for p in self.plateaus)
        if not self.exact and n_clusters > have[-1]:
            why = (
                f"The path was opened from lam = {self.opened_from:.4g} on: below, ask for "
                "labels(lam), or for clusterpath(X, exact=True), which takes all merges, minutes "
                "for thousands of points"
            )
        else:
            why = "Several clusters can merge at once, and equal points are one at every lambda"
        near = [*(k for k in have if k < n_clusters)][-1:] + [k for k in have if k > n_clusters][:1]
        raise ValueError(
            f"No level of the path has {n_clusters} clusters; the nearest has "
            f"{' or '.join(map(str, near))}. {why}."
        )

    @cached_property
    def plateaus(self) -> tuple[Plateau, ...]:
        """The levels of the path from many clusters to one; the last has no end."""
        ends = np.array([merge.high for merge in self.merges])
        drops = np.array([len(merge.children) - 1 for merge in self.merges], dtype=np.intp)
        below = ends <= self.opened_from
        count = self.n_points - int(drops[below].sum())
        start, found = self.opened_from, []
        for lam in np.unique(ends[~below]):
            found.append(Plateau(count, float(start), float(lam)))
            start = lam
            count -= int(drops[ends == lam].sum())
        found.append(Plateau(count, float(start), np.inf))
        return tuple(p for p in found if p.length > 0)

    def _cut(self, lam: float) -> Ints:
        owner = np.arange(self.n_points)
        alive: dict[int, Any] = {}
        for merge in self.merges:
            if merge.high > lam:
                break
            joined = np.concatenate([alive.pop(c, [c]) for c in merge.children])
            owner[joined] = merge.node
            alive[merge.node] = joined
        return number_by_first_user(owner)

    @cached_property
    def linkage(self) -> Floats:
        """The tree as SciPy wants it, (n_points - 1, 4): a merge of k nodes is k - 1 rows.

        For ``scipy.cluster.hierarchy.dendrogram``; heights are lambdas.
        """
        rows = np.empty((self.n_points - 1, 4))
        row_of: dict[int, tuple[int, int]] = {}  # node -> (SciPy's id, number of points)
        k = 0
        for merge in self.merges:
            parts = [row_of.get(c, (c, 1)) for c in merge.children]
            one, size = parts[0]
            for other, more in parts[1:]:
                size += more
                rows[k] = min(one, other), max(one, other), merge.high, size
                one = self.n_points + k
                k += 1
            row_of[merge.node] = (one, size)
        return rows

    def __repr__(self) -> str:
        kind = "exact" if self.exact else f"opened from lam = {self.opened_from:.4g}"
        return (
            f"ClusterPath({self.n_points} points, {len(self.merges)} merges, "
            f"{len(self.plateaus)} levels, {kind})"
        )


def clusterpath(
    X: Any,
    *,
    exact: bool | Literal["auto"] = "auto",
    tol: float = 1e-4,
    max_clusters: int = 50,
) -> ClusterPath:
    """The clusterpath of ``X``, (n_points, dim): all merges of convex clustering as lambda grows.

    ``exact``: every merge, each in a bracket of relative width ``tol`` (two-way merges exactly);
    or only the top of the tree, as far down as its groups are quickly proven and there are at
    most ``max_clusters``, for the cost of a few solves. "auto" is exact up to 300 points: tenths of
    a second if there are groups, seconds in two or three dimensions without.
    """
    a = as_points(X)
    if exact not in (True, False, "auto"):
        raise ValueError(f"exact={exact!r} must be True, False or 'auto'.")
    check_count("max_clusters", max_clusters, "the top of the tree holds about that many")
    if not 0 < tol < 1:
        raise ValueError(f"tol={tol!r} must lie between 0 and 1: it is relative to lambda.")
    ready = prepare(a)
    groups = members(ready.owner)
    events, start = [_Event(0.0, 0.0, points) for points in groups if len(points) > 1], 0.0
    with one_thread():
        if exact is True or (exact == "auto" and len(groups) <= EXACT_POINTS):
            events += _grow(ready.groups, groups, tol)
        else:
            top, start = _grow_top(ready.groups, most=max_clusters, tol=tol)
            for event in top:
                points = np.concatenate([groups[k] for k in event.points])
                events.append(replace(event, points=points))
    return ClusterPath(a, _tree(events, len(a), ready.scale), start / ready.scale)


def _tree(events: list[_Event], n_points: int, scale: float) -> tuple[Merge, ...]:
    """Merges in the order of lambda, none before its children or below their ``high``.

    A bracket may reach over the merge above it by its width; then both are at the higher end.
    """
    events = sorted(events, key=lambda event: len(event.points))  # what is inside comes first
    reached = np.zeros(n_points)
    highs = []
    for event in events:
        highs.append(max(event.high, reached[event.points].max()))
        reached[event.points] = highs[-1]
    owner = np.arange(n_points)
    tree: list[Merge] = []
    for k in np.argsort(highs, kind="stable"):
        low, high, points = events[k].low / scale, highs[k] / scale, events[k].points
        node, children = n_points + len(tree), np.unique(owner[points])
        tree.append(Merge(low, high, tuple(children.tolist()), node))
        owner[points] = node
    return tuple(tree)


# -- the tree, from its root -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Event:
    """Points that become one cluster: certainly not one at ``low``, certainly from ``high`` on."""

    low: float
    high: float
    points: Ints


@dataclass(frozen=True, eq=False)
class _Task:
    """An event to find: its parts are distinct at ``low`` and fused at ``high``."""

    groups: MassPoints
    parts: list[Ints]  # the points of each group
    low: float
    high: float


def _grow(groups: MassPoints, parts: list[Ints], tol: float) -> list[_Event]:
    """All events of some groups, whose points are ``parts``, until they are one cluster.

    Brackets are at most ``tol`` wide, relative; events of two groups are exact.
    """
    events: list[_Event] = []
    tasks = [_Task(groups, parts, 0.0, np.inf)] if len(parts) > 1 else []
    while tasks:
        low, high, parts = _meeting(tasks.pop(), tol, tasks)
        events.append(_Event(low, high, np.concatenate(parts)))
    return events


def _meeting(task: _Task, tol: float, tasks: list[_Task]) -> tuple[float, float, list[Ints]]:
    """Where the parts become one, and those that do; what is fused before becomes a task."""
    parts, at, high = task.parts, task.low, task.high
    # Around their mean: what the parts differ by may be a millionth of where they are.
    groups = MassPoints(task.groups.a - task.groups.mean(task.groups.a), task.groups.n)
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


def _grow_top(groups: MassPoints, *, most: int, tol: float) -> tuple[list[_Event], float]:
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
    events: list[_Event] = []
    parts = []
    for own in members(top.labels):
        inside = [closed[k] for k in own]
        parts.append(np.concatenate([part.points for part in inside]))
        if len(parts[-1]) > 1:
            high = inside[0].high if len(own) == 1 else start
            low = max(part.low for part in inside)
            events.append(_Event(low, high, parts[-1]))
    return events + _grow(top.groups, parts, tol), start


def _closed_groups(groups: MassPoints, most: int) -> list[_Event]:
    """At most ``most`` groups whose insides need not be looked at.

    A group is split (see :func:`~.fusion.traversal`) if the parts are proven to be fused
    before any of them can meet; then the parts are tried in turn.
    """
    everything = np.arange(len(groups.a))
    waiting = [_closed(groups, everything, np.inf)]
    found: list[_Event] = []
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


def _solved_groups(groups: MassPoints, most: int) -> list[_Event]:
    """The clusters at a lambda below the root's, the smallest of a few with at most ``most``.

    For points whose groups are not fused as a whole before they meet: stragglers come late.
    """
    root = lower_bound(groups, Pairs(groups.n, groups.a, 0.0))
    found: list[_Event] = []
    for share in SOLVED_SHARES:
        clusters = solve(groups, share * root, rough=True)
        if not (clusters.certified and 1 < clusters.n_clusters <= most):
            break
        found = [_closed(groups, part, share * root) for part in members(clusters.labels)]
    return found


def _split(groups: MassPoints, points: Ints, room: int) -> list[_Event]:
    """The first cut of the traversal whose parts are fused before any of them can meet."""
    if len(points) < 3:
        return []
    whole = groups.take(points)
    for labels in traversal(whole.a, max(2, room), LAZY_JUMP)[:TRIES]:
        if labels.max() >= room:
            continue
        parts = [points[own] for own in members(labels)]
        meetings = _grow(whole.collapse(labels), parts, tol=0.01)
        meet = min(event.low for event in meetings)  # whatever is in the parts
        for share in SHARES:
            if all(_fused_before(groups.take(part), share * meet) for part in parts):
                return [_closed(groups, part, share * meet) for part in parts]
    return []


def _fused_before(part: MassPoints, lam: float) -> bool:
    if fused_at(part, lam):
        return True
    return not_fused_below(part) <= lam and solve(part, lam).n_clusters == 1


def _closed(groups: MassPoints, points: Ints, high: float) -> _Event:
    """Points that are fused from some lambda on, ``high`` at the latest."""
    part = groups.take(points)
    if len(points) == 1:
        return _Event(0.0, 0.0, points)
    return _Event(not_fused_below(part), min(high, diameter(part.a) / part.mass), points)
