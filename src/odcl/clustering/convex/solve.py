"""Convex clustering with uniform weights at one lambda: exact clusters, proven.

:func:`solve` collapses what is certainly fused (a flow certificate, :mod:`.fusion`) and minimises
what is left by Newton's method (:mod:`.newton`) until the remaining groups are certainly
distinct: |u_k - u*_k| <= |gradient|_n / sqrt(n_k), and these balls do not touch. Guesses (which
points might be fused, where to start) change the cost and never the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import cdist, pdist
from sklearn.isotonic import isotonic_regression

from odcl._typing import Floats, Ints
from odcl.clustering.convex.fusion import (
    ROWS,
    SLACK,
    fused_at,
    fused_from_flow,
    not_fused_below,
    pair_threshold,
    traversal,
)
from odcl.clustering.convex.newton import MassPoints, Pairs, SmoothMinimum, minimise
from odcl.clustering.labels import members

# Smoothing goes down by tens from a third of the distances; below this share of them is rounding.
SMALLEST_EPS = 1e-13
SHRINK = 10.0
# Fused rows are at most this many eps apart in the smoothed minimiser, unless lam is within
# 1e-8 (relative) of their threshold.
REACH = 1e4
# A flow that is this close to holding its groups together is worth another look.
ALMOST = 1.1
# Newton at eps = 0 gives up once two groups come this much closer than they were: they may meet.
CLOSER = 0.03
# Above this many groups it pays to look for parts that can be solved alone.
PARTS = 64
# All pairs of this many groups take 3.2 GB per matrix.
MOST_GROUPS = 20_000


@dataclass(frozen=True, eq=False)
class Solved:
    """The minimiser at one lambda, on the groups that were given."""

    labels: Ints  # (s,), of the groups given
    groups: MassPoints  # the clusters: means of their points and masses
    u: Floats  # (n_clusters, dim)
    gap: float  # bound on the error of the objective, that of u being sqrt(2 gap)
    certified: bool  # clusters proven to be those of the exact minimiser
    n_iter: int  # Newton steps

    @property
    def n_clusters(self) -> int:
        return len(self.u)


def solve(
    groups: MassPoints,
    lam: float,
    start: Floats | None = None,
    max_iter: int = 1000,
    *,
    rough: bool = False,
) -> Solved:
    """Clusters and minimiser at ``lam`` >= 0 of groups that lie apart, (s, dim).

    ``start`` is a guess of the minimiser. ``max_iter`` bounds the Newton steps in all; when they
    are spent, ``certified`` is False. ``rough`` asks for the clusters, as certain as ever, and
    takes any u that proves them.
    """
    now = Solved(np.arange(len(groups.a)), groups, groups.a, 0.0, True, 0)
    if lam == 0 or len(groups.a) == 1:
        return now
    if groups.a.shape[1] == 1:
        return _on_a_line(now, lam)
    if groups.a.shape[1] > len(groups.a):
        return _in_span(groups, lam, start, max_iter, rough)
    if start is None and fused_at(groups, lam):
        return _one(now)
    if start is None and len(groups.a) > PARTS:
        parts = traversal(groups.a, most=64, jump=2.0)
        if parts:
            return _by_parts(now, lam, parts[0], max_iter)
    if len(groups.a) > MOST_GROUPS:
        raise ValueError(
            f"{len(groups.a):,} points remain that no quick certificate decides at lam={lam:.4g}, "
            f"and to solve for them takes all their pairs, {8e-9 * len(groups.a) ** 2:.0f} GB per "
            f"matrix (at most {MOST_GROUPS:,} points are tried). A larger lam may do; or use "
            "weights='knn', whose cost grows with the number of points."
        )
    now = _fuse_pairs(replace(now, u=groups.a if start is None else start), lam)
    if now.n_clusters > 2:
        now, decided = _without_smoothing(now, lam, max_iter, start is not None, rough)
        if not decided:
            now = _by_smoothing(now, lam, max_iter)
    return _two(now, lam) if now.n_clusters == 2 else now


def _in_span(
    groups: MassPoints, lam: float, start: Floats | None, max_iter: int, rough: bool
) -> Solved:
    """More dimensions than groups: solve in coordinates of their span, which loses nothing."""
    mean = groups.mean(groups.a)
    basis, coordinates = np.linalg.qr((groups.a - mean).T)
    inside = None if start is None else (start - mean) @ basis
    done = solve(MassPoints(coordinates.T.copy(), groups.n), lam, inside, max_iter, rough=rough)
    there = MassPoints(mean + done.groups.a @ basis.T, done.groups.n)
    return replace(done, groups=there, u=mean + done.u @ basis.T)


def _by_parts(now: Solved, lam: float, parts: Ints, max_iter: int) -> Solved:
    """Solve each part alone, collapse its clusters, then solve what is left of the whole.

    What is fused in a part is fused in the whole (fusion is local), and the parts' own shapes at
    the places of their means are a good start.
    """
    inside, labels, steps = _alone(now.groups, lam, parts, max_iter)
    outside = solve(now.groups.collapse(parts), lam, None, max(0, max_iter - steps))
    steps += outside.n_iter
    now = collapse(now, labels)
    if now.n_clusters == len(inside):
        return replace(outside, labels=outside.labels[labels], n_iter=steps)
    places = outside.u[outside.labels]
    start = np.concatenate([part.u + at for part, at in zip(inside, places, strict=True)])
    rest = solve(now.groups, lam, start, max(0, max_iter - steps))
    return replace(rest, labels=rest.labels[labels], n_iter=rest.n_iter + steps)


def _alone(
    groups: MassPoints, lam: float, parts: Ints, max_iter: int
) -> tuple[list[Solved], Ints, int]:
    """Every part solved alone, around its own mean; labels of all their clusters; Newton steps."""
    alone: list[Solved] = []
    labels, before, steps = np.empty_like(parts), 0, 0
    for own in members(parts):
        some = groups.take(own)
        some = MassPoints(some.a - some.mean(some.a), some.n)
        alone.append(solve(some, lam, None, max(0, max_iter - steps)))
        labels[own] = alone[-1].labels + before
        before, steps = before + alone[-1].n_clusters, steps + alone[-1].n_iter
    return alone, labels, steps


def collapse(now: Solved, labels: Ints) -> Solved:
    """Groups with equal labels (0..k-1 without gaps) become one."""
    groups, u = (MassPoints(rows, now.groups.n).collapse(labels) for rows in (now.groups.a, now.u))
    return replace(now, labels=labels[now.labels], groups=groups, u=u.a)


def _one(now: Solved) -> Solved:
    whole = collapse(now, np.zeros(now.n_clusters, dtype=np.intp))
    return replace(whole, u=whole.groups.a, gap=0.0, certified=True)


def _two(now: Solved, lam: float) -> Solved:
    """Two groups: they meet at their pair threshold, and approach linearly until then."""
    meet = pair_threshold(now.groups)
    if lam >= meet:
        return _one(now)
    mean = now.groups.mean(now.groups.a)
    return replace(now, u=mean + (1 - lam / meet) * (now.groups.a - mean), gap=0.0, certified=True)


def _on_a_line(now: Solved, lam: float) -> Solved:
    """dim = 1: u is the isotonic regression of a_k - lam (mass to the left - mass to the right)."""
    order = np.argsort(now.groups.a[:, 0], kind="stable")
    n = now.groups.n[order]
    left = np.cumsum(n) - n
    target = now.groups.a[order, 0] - lam * (2 * left + n - now.groups.mass)
    u = isotonic_regression(target, sample_weight=n)
    same = SLACK * np.abs(target).max()  # rounding of a tie
    block = np.concatenate([[0], np.cumsum(np.diff(u) > same)])
    labels = np.empty(len(order), dtype=np.intp)
    labels[order] = block
    done = collapse(replace(now, u=np.empty_like(now.u)), labels)
    return replace(done, u=u[np.concatenate([[True], np.diff(block) > 0]), None])


def _fuse_pairs(now: Solved, lam: float) -> Solved:
    """Collapse two groups while |a_k - a_l| <= lam (n_k + n_l) for some: sound, and often much."""
    while now.n_clusters > 1:
        own = np.arange(now.n_clusters)
        other, ratio = _first_to_meet(now.groups)
        meet = (ratio <= lam) & (other[other] == own)
        if not meet.any():
            break
        first = np.where(meet, np.minimum(own, other), own)
        now = collapse(now, np.unique(first, return_inverse=True)[1])
    return now


def _first_to_meet(groups: MassPoints) -> tuple[Ints, Floats]:
    """For each group the one that it would meet first if there were no others, and where."""
    n, s = groups.n, len(groups.n)
    other, ratio = np.empty(s, dtype=np.intp), np.empty(s)
    for start in range(0, s, ROWS):
        rows = np.arange(start, min(start + ROWS, s))
        block = cdist(groups.a[rows], groups.a)
        block /= n[rows, None] + n
        block[rows - start, rows] = np.inf
        other[rows] = block.argmin(axis=1)
        ratio[rows] = block[rows - start, other[rows]]
    return other, ratio


def _distinct(groups: MassPoints, found: SmoothMinimum) -> bool:
    """The balls of radius |gradient|_n / sqrt(n_k) around the u_k do not touch."""
    if found.pairs.eps > 0:
        return False
    radius = found.slope / np.sqrt(groups.n)
    if found.pairs.near > 2 * radius.max():
        return True
    r = cdist(found.u, found.u)
    np.fill_diagonal(r, np.inf)
    return bool((r > radius[:, None] + radius).all())


def _plain(
    now: Solved, lam: float, start: Floats, max_iter: int, rough: bool = False
) -> tuple[Solved, SmoothMinimum, bool]:
    """Newton at eps = 0 from ``start``; whether it proved all groups distinct."""
    groups = now.groups
    tol = 1e-14 * groups.norm(groups.a - groups.mean(groups.a))
    if rough:
        tol = max(tol, 1e-4 * groups.norm(start - groups.mean(start)))
    apart = CLOSER * pdist(start).min()
    left = min(30, max(0, max_iter - now.n_iter))
    found = minimise(groups, lam, start, eps=0.0, tol=tol, apart=apart, floor=0.03, max_iter=left)
    now = replace(now, n_iter=now.n_iter + found.n_iter)
    if found.pairs.near <= apart or (rough and found.slope > tol):
        return now, found, False
    if not _distinct(groups, found):
        return _plain(now, lam, found.u, max_iter) if rough else (now, found, False)
    return replace(now, u=found.u, gap=0.5 * found.slope**2, certified=True), found, True


def _without_smoothing(
    now: Solved, lam: float, max_iter: int, warm: bool, rough: bool
) -> tuple[Solved, bool]:
    """Try the two ends: all groups distinct, or all fused. Whether one of them was proven.

    Below the threshold lam* of the whole, u shrinks nearly linearly towards the mean, which is a
    good start. Above, the shape that u takes just below lam* gives the flow that proves fusion.
    """
    groups = now.groups
    mean = groups.mean(groups.a)
    if warm:
        now, _, distinct = _plain(now, lam, now.u, max_iter, rough)
        return now, distinct
    pairs = Pairs(groups.n, groups.a, 0.0)
    low, high, at, u = lower_bound(groups, pairs), fused_from_flow(groups, pairs), 0.0, groups.a
    for _ in range(6):
        if lam >= high:
            return _one(now), True
        below = lam < low
        to = lam if below else at + 0.95 * (low - at)
        start = mean + (low - to) / (low - at) * (u - mean)
        now, found, distinct = _plain(now, to, start, max_iter, rough or not below)
        if below or not distinct:
            return now, distinct
        u, at = found.u, to
        low = max(low, lower_bound(groups, found.pairs))
        high = min(high, fused_from_flow(groups, found.pairs))
    return now, False


def lower_bound(groups: MassPoints, pairs: Pairs) -> float:
    """A lam below which the groups are not all fused: <a - abar, u> / P(u), or one group alone."""
    a = groups.a - groups.mean(groups.a)
    along = float(groups.n @ np.einsum("ij,ij->i", a, pairs.u)) / pairs.value
    return max(along, not_fused_below(groups))


def _by_smoothing(now: Solved, lam: float, max_iter: int) -> Solved:
    """Minimise with smoothed distances, eps down by tens; collapse what is proven on the way."""
    scale = float(pdist(now.groups.a).max())
    eps = 0.3 * min(float(np.median(pdist(now.groups.a))), lam * now.groups.mass)
    while eps > SMALLEST_EPS * scale and now.n_iter < max_iter and now.n_clusters > 2:
        tol = 1e-3 * eps * np.sqrt(now.groups.mass)
        left = max_iter - now.n_iter
        found = minimise(now.groups, lam, now.u, eps=eps, tol=tol, max_iter=min(50, left))
        now = replace(now, u=found.u, n_iter=now.n_iter + found.n_iter)
        labels = _fused_groups(now.groups, lam, found)
        if labels.max() + 1 < now.n_clusters:
            now = _fuse_pairs(collapse(now, labels), lam)
        if now.n_clusters > 2 and pdist(now.u).min() > 3 * eps:
            now, _, distinct = _plain(now, lam, now.u, max_iter)
            if distinct:
                return now
        eps /= SHRINK
    if now.n_clusters <= 2:
        return now
    now = replace(now, gap=duality_gap(now.groups, lam, now.u, eps), certified=False)
    return _part_by_part(now, lam, max_iter)


def _part_by_part(now: Solved, lam: float, max_iter: int) -> Solved:
    """Settle rows that nearly coincide by their own problem, around their own mean.

    Far from the origin, rows r apart have directions good to 1e-16 |u| / r only, and their balls
    touch. Cut u into parts that the balls do keep apart: then no cluster of the minimiser crosses
    parts; it is fused in its part alone, and what is fused there is fused in the whole. So the
    clusters of the parts, each solved alone, are those of the whole.
    """
    groups, tree = now.groups, linkage(pdist(now.u), "single")
    height = tree[:, 2]
    radius = np.sqrt(2 * max(now.gap, 1e-16 * groups.norm(groups.a) ** 2) / groups.n)
    jump = height[1:] / np.maximum(height[:-1], 1e-300)
    for cut in np.argsort(-jump, kind="stable")[:3]:
        parts = (fcluster(tree, height[cut], "distance") - 1).astype(np.intp)
        across = parts[:, None] != parts
        if parts.max() == 0 or (cdist(now.u, now.u) <= radius[:, None] + radius)[across].any():
            continue
        settled = _settled(now, lam, parts, max_iter)
        if settled.certified:
            return settled
    return now


def _settled(now: Solved, lam: float, parts: Ints, max_iter: int) -> Solved:
    """Clusters and rows of every part alone, at the places where the parts are."""
    alone, labels, steps = _alone(now.groups, lam, parts, max_iter - now.n_iter)
    places = MassPoints(now.u, now.groups.n).collapse(parts).a
    u = np.concatenate([part.u + at for part, at in zip(alone, places, strict=True)])
    certified = all(part.certified for part in alone)
    done = replace(collapse(now, labels), n_iter=now.n_iter + steps, certified=certified)
    tol = 1e-14 * now.groups.norm(now.groups.a)
    found = minimise(done.groups, lam, u, eps=0.0, tol=tol, max_iter=20)
    return replace(done, u=found.u, gap=0.5 * found.slope**2)


def duality_gap(groups: MassPoints, lam: float, u: Floats, eps: float) -> float:
    """F(u) - D(q) for the dual point q_kl = lam (u_k - u_l) / rho_kl, which is feasible.

    D(q) = <a, z> - |z|_n^2 / 2 with z_k = sum_l n_l q_kl, a the means around their mean.
    """
    a = groups.a - groups.mean(groups.a)
    z = lam * Pairs(groups.n, u, max(eps, 1e-300)).pull
    dual = groups.n @ np.einsum("ij,ij->i", a, z) - 0.5 * groups.norm(z) ** 2
    primal = 0.5 * groups.norm(groups.a - u) ** 2 + lam * Pairs(groups.n, u, 0.0).value
    return max(0.0, float(primal - dual))


def _fused_groups(groups: MassPoints, lam: float, found: SmoothMinimum) -> Ints:
    """Labels 0..k-1 that put together what the smoothed minimiser proves to be fused.

    Candidates are single-linkage clusters of u, cut at the three widest jumps of the heights.
    """
    u, eps = found.u, found.pairs.eps
    tree = linkage(pdist(u), "single")
    height = tree[:, 2]
    short = int((height < REACH * eps).sum())  # cuts 0..short-1, by the number of joins
    jump = np.append(height[1:], np.inf)[:short] / np.maximum(height[:short], 1e-300)
    labels, done = np.arange(len(u)), np.zeros(len(u), dtype=bool)
    tried = set()
    for cut in sorted(np.argsort(-jump, kind="stable")[:3], reverse=True):
        parts = fcluster(tree, height[cut], "distance")
        for part in np.flatnonzero(np.bincount(parts) > 1):
            own = np.flatnonzero(parts == part)
            if done[own].any() or (own[0], len(own)) in tried:
                continue
            tried.add((own[0], len(own)))
            if _held_together(groups.take(own), lam, u[own], eps):
                labels[own], done[own] = own[0], True
    return np.unique(labels, return_inverse=True)[1]


def _held_together(groups: MassPoints, lam: float, u: Floats, eps: float) -> bool:
    """Whether the smoothed minimiser gives a flow that fuses the groups at ``lam``.

    It is taken where it is, in the whole; and if that nearly does, minimised once more for these
    groups alone, without the others' pull and without the digits that they take.
    """
    needed = fused_from_flow(groups, Pairs(groups.n, u, eps))
    if needed > lam and needed <= ALMOST * lam:
        a = groups.a - groups.mean(groups.a)
        alone = MassPoints(a, groups.n)
        tol = 1e-4 * eps * np.sqrt(groups.mass)
        found = minimise(alone, lam, u - groups.mean(u), eps=eps, tol=tol, max_iter=20)
        needed = fused_from_flow(alone, found.pairs)
    return needed <= lam * (1 + SLACK)
