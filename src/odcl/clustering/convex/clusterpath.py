"""The whole clusterpath of convex clustering: every lambda at once, as a tree of merges."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.checks import as_points, check_count
from odcl.clustering.convex.estimator import (
    check_lam,
    convex_cluster,
    one_thread,
    prepare,
)
from odcl.clustering.convex.path_tree import Merge, grow, grow_top
from odcl.clustering.labels import number_by_first_user

# Up to this many points every event is worth its time: 0.2 s at 300 points in 20 dimensions.
EXACT_POINTS = 300


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
    tol: float  # width asked for of the merges' brackets, relative to lambda; see ``widest``
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
            members = np.concatenate([alive.pop(c, [c]) for c in merge.children])
            owner[members] = merge.node
            alive[merge.node] = members
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
        from odcl.report.pictures import available

        if not available():
            raise ModuleNotFoundError(
                "The path is drawn by matplotlib, which is not installed: pip install "
                "'odcl[plot]'. Without it, `plateaus` and `linkage` hold what the pictures show."
            )
        from odcl.report.path_picture import draw_path

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
    groups = ready.groups
    count = itertools.count(len(groups.a))
    ids = np.arange(len(groups.a))
    start = 0.0

    def new_id() -> int:
        return next(count)

    with one_thread():
        if exact is True or (exact == "auto" and len(ids) <= EXACT_POINTS):
            done = progress or (lambda n: None)
            events = grow(groups, ids, tol=tol, new_id=new_id, done=done)
        else:
            events, start = grow_top(groups, most=max_clusters, tol=tol, new_id=new_id)
    merges = _in_order(events, ready.owner, ready.scale)
    return ClusterPath(a, merges, tol, start / ready.scale)


def _in_order(merges: list[Merge], owner: Ints, scale: float) -> tuple[Merge, ...]:
    """Merges in the order of lambda, children first; equal points merge at lambda 0.

    Those given speak of groups of equal points, 0..n_groups-1, and of nodes from n_groups on.
    """
    groups = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    names: dict[int, int] = {}  # what a group or node of the merges given is called in the tree
    tree: list[Merge] = []

    def add(low: float, high: float, children: list[int], opened: bool) -> int:
        node = len(owner) + len(tree)
        tree.append(Merge(low / scale, high / scale, tuple(sorted(children)), node, opened))
        return node

    for k, points in enumerate(groups):
        names[k] = int(points[0]) if len(points) == 1 else add(0.0, 0.0, points.tolist(), True)
    for merge in _from_below(merges):
        children = [names[c] for c in merge.children]
        names[merge.node] = add(merge.low, merge.high, children, merge.opened)
    return tuple(tree)


def _from_below(merges: list[Merge]) -> list[Merge]:
    """By lambda, none before its children or below their ``high``.

    A bracket may reach over the merge above it by its width; then both are at the higher end.
    """
    made = {merge.node: merge for merge in merges}
    height: dict[int, int] = {}
    waiting = list(made)
    while waiting:
        node = waiting[-1]
        below = [c for c in made[node].children if c in made]
        if missing := [c for c in below if c not in height]:
            waiting += missing
            continue
        high = max([made[node].high, *(made[c].high for c in below)])
        made[node] = replace(made[node], high=high)
        height[node] = 1 + max([0, *(height[c] for c in below)])
        waiting.pop()
    return sorted(made.values(), key=lambda merge: (merge.high, height[merge.node]))
