"""The whole clusterpath of convex clustering: every lambda at once, as a tree of merges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.convex.estimator import check_lam, convex_cluster, prepare
from odcl.clustering.convex.path_tree import Event, grow, grow_top
from odcl.clustering.labels import as_points, check_count, members, number_by_first_user
from odcl.threads import one_thread

# Up to this many points every event is worth its time: 0.2 s at 300 points in 20 dimensions.
EXACT_POINTS = 300


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

    @property
    def widest(self) -> float:
        """The widest bracket of an opened merge, relative to lambda."""
        opened = [m for m in self.merges if m.opened and m.high > 0]
        return max((1 - m.low / m.high for m in opened), default=0.0)

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
        if not 1 <= n_clusters <= self.n_points:
            raise ValueError(f"{n_clusters} clusters of {self.n_points} points: there are none.")
        if not self.exact and n_clusters > have[-1]:
            raise ValueError(
                f"The path was opened from lam = {self.opened_from:.4g} on, where there are "
                f"{have[-1]} clusters, and {n_clusters} clusters are below it. Ask for "
                "labels(lam) with a smaller lam, or for clusterpath(X, exact=True), which takes "
                "every merge and minutes for thousands of points."
            )
        below = max(k for k in have if k < n_clusters)
        if n_clusters > have[-1]:
            why = f"equal points are one at every lambda, and only {below} are different"
        else:
            above = min(k for k in have if k > n_clusters)
            why = (
                "several clusters can merge at once, and the path jumps over some numbers, here "
                f"from {above} to {below}. Ask for one of these"
            )
        raise ValueError(f"No lambda gives {n_clusters} clusters: {why}.")

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

    def plot(self, path: Any = None, *, labels: Any = None) -> Any:
        """Two pictures: lambda against the number of clusters, and the dendrogram.

        Returns the matplotlib figure; ``path`` also writes it. ``labels`` name the points.
        """
        from odcl.report.pictures import available, draw_path

        if not available():
            raise ModuleNotFoundError(
                "The path is drawn by matplotlib, which is not installed: pip install "
                "'odcl[plot]'. Without it, `plateaus` and `linkage` hold what the pictures show."
            )
        return draw_path(self, path, labels)

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
    progress: Callable[[int], None] | None = None,
) -> ClusterPath:
    """The clusterpath of ``X``, (n_points, dim): all merges of convex clustering as lambda grows.

    ``exact``: every merge, each in a bracket of relative width ``tol`` (two-way merges exactly);
    or only the top of the tree, as far down as its groups are quickly proven and there are at
    most ``max_clusters``, for the cost of a few solves. "auto" is exact up to 300 points: tenths of
    a second if there are groups, seconds in two or three dimensions without. ``progress`` is
    called at each merge with the number of nodes that met.
    """
    a = as_points(X)
    if exact not in (True, False, "auto"):
        raise ValueError(f"exact={exact!r} must be True, False or 'auto'.")
    check_count("max_clusters", max_clusters, "the top of the tree holds about that many")
    if not 0 < tol < 1:
        raise ValueError(f"tol={tol!r} must lie between 0 and 1: it is relative to lambda.")
    ready = prepare(a)
    groups = members(ready.owner)
    events, start = [Event(0.0, 0.0, points) for points in groups if len(points) > 1], 0.0
    with one_thread():
        if exact is True or (exact == "auto" and len(groups) <= EXACT_POINTS):
            events += grow(ready.groups, groups, tol, progress)
        else:
            top, start = grow_top(ready.groups, most=max_clusters, tol=tol)
            for event in top:
                points = np.concatenate([groups[k] for k in event.points])
                events.append(replace(event, points=points))
    return ClusterPath(a, _tree(events, len(a), ready.scale), start / ready.scale)


def _tree(events: list[Event], n_points: int, scale: float) -> tuple[Merge, ...]:
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
        tree.append(Merge(low, high, tuple(children.tolist()), node, events[k].opened))
        owner[points] = node
    return tuple(tree)
