"""Would a clustering method give back the true groups? Many trials at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import pdist

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.kmeans.kmeanspp import kmeans_pp
from odcl.clustering.labels import same_partition

CLEAR_RUNS = 1  # of K-means++ on trials that hardly need one
# The loop that solves the convex clustering of the groups' means.
FUSE_STEPS = 300
APART = 1e-2  # means closer than this of their first distance have met
MANY = 300  # points of a group whose distances are not taken for all trials at once
STILL = 1e-3  # relative change of a distance in one step below which the means are at rest


@dataclass(frozen=True, eq=False)
class TrueGroups:
    """Means of the true groups and what clustering methods look at, one row per trial."""

    means: Floats  # (trials, n_clusters, dim)
    squared: Floats  # (trials, n_users, n_clusters), squared distances from the means
    between: Floats  # (trials, n_clusters, n_clusters), distances, inf on the diagonal
    sizes: Ints
    groups: Ints


def true_groups(theta: Floats, sizes: Ints) -> TrueGroups:
    """``theta`` is (trials, n_users, dim), users of a group standing together."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    # One origin per trial: squares of models far from zero would lose the digits that differ.
    theta = theta - theta.mean(axis=1, keepdims=True)
    means = np.add.reduceat(theta, starts, axis=1) / sizes[:, None]
    squared = (
        np.square(theta).sum(axis=2)[:, :, None]
        + np.square(means).sum(axis=2)[:, None, :]
        - 2 * np.matmul(theta, means.swapaxes(1, 2))
    )
    between = _distances(means)
    between[:, np.arange(len(sizes)), np.arange(len(sizes))] = np.inf
    return TrueGroups(means, np.maximum(squared, 0.0), between, sizes, groups)


def _distances(points: Floats) -> Floats:
    """Between the points of each trial, which are centered, (trials, points, points)."""
    square = np.square(points).sum(axis=2)
    gram = np.matmul(points, points.swapaxes(1, 2))
    return np.sqrt(np.maximum(square[:, :, None] + square[:, None, :] - 2 * gram, 0.0))


@dataclass(frozen=True, eq=False)
class ExpectedRecovery:
    """What the true groups' own numbers say of K-means, one row per trial."""

    stable: Bools  # every user is nearest to its own mean; if not, K-means cannot end there
    likely: Bools  # and no cheaper partition is in sight
    clear: Bools  # and all groups are far apart: four radii between any two means


def kmeans_expected(at: TrueGroups) -> ExpectedRecovery:
    """Are the true groups where the best of many K-means runs ends?

    They have to be stable, and no cheaper partition may be in sight: a user moved to another
    group, the farthest user alone and two groups merged. What this leaves out (seedings that miss
    one of many groups), runs of K-means++ measure; see :func:`kmeans_correction`.
    """
    stable = (at.squared.argmin(axis=2) == at.groups).all(axis=1)
    if len(at.sizes) == 1:
        return ExpectedRecovery(stable, stable, stable)
    n = at.sizes.astype(np.float64)
    own = np.take_along_axis(at.squared, at.groups[None, :, None], axis=2)[..., 0]
    # What a user's leaving saves, and what its joining another group costs (Hartigan and Wong).
    saved = own * np.where(n > 1, n / np.maximum(n - 1, 1), 0.0)[at.groups]
    cost = at.squared * (n / (n + 1))
    cost[:, np.arange(len(at.groups)), at.groups] = np.inf
    stays = (saved < cost.min(axis=2)).all(axis=1)
    merged = n[:, None] * n / (n[:, None] + n) * at.between**2
    likely = stable & stays & (saved.max(axis=1) < merged.min(axis=(1, 2)))
    clear = likely & (at.between.min(axis=(1, 2)) ** 2 > 16 * own.max(axis=1))
    return ExpectedRecovery(stable, likely, clear)


def kmeans_correction(
    theta: Floats, at: TrueGroups, expected: ExpectedRecovery, *, real: int, seed: int
) -> tuple[float, float]:
    """Share of trials in which K-means++ (ten seedings) finds the true groups: how much it differs
    from the share that is expected, and the standard error of the difference.

    K-means++ runs on ``real`` of the trials that are in doubt and on a clear one; on three times as
    many if it contradicts the expectation in one. Together with the share expected over all
    trials this is unbiased, whatever the expectation overlooks. Groups that are not stable are
    never found.
    """
    k, rate, variance = len(at.sizes), 0.0, 0.0

    def contradictions(which: Ints) -> list[float]:
        """found - expected, in the trials named."""
        found = [kmeans_pp(theta[t], k, seed=seed).labels for t in which]
        right = [float(same_partition(labels, at.groups)) for labels in found]
        return [own - float(expected.likely[t]) for own, t in zip(right, which, strict=True)]

    parts = [(expected.clear, CLEAR_RUNS), (expected.stable & ~expected.clear, real)]
    for part, runs in parts:
        which = np.flatnonzero(part)
        if len(which) == 0 or k == 1:
            continue
        which = np.random.default_rng(seed).permutation(which)
        differ = contradictions(which[:runs])
        if any(differ):
            differ += contradictions(which[runs : 3 * real])
        share = len(which) / len(theta)
        rate += share * float(np.mean(differ))
        variance += share**2 * float(np.var(differ)) / len(differ)
    return rate, float(np.sqrt(variance))


def fusing_lambda(theta: Floats, sizes: Ints) -> Floats:
    """About the least lambda of Eq. (12) that fuses every true group into one point, (trials,).

    None fuses below it, and a cloud of N points without a gap fuses a little above:

        max_i |a_i - abar| / (N - 1),   sum |a_i - abar|^2 / sum_{i<j} |a_i - a_j|   <=  lam
            <=  diameter / N

    The first is where the farthest point joins a fused rest, and mostly the answer.
    """
    least = np.zeros(len(theta))
    start = 0
    for size in sizes.tolist():
        own = theta[:, start : start + size]
        start += size
        if size == 1:
            continue
        own = own - own.mean(axis=1, keepdims=True)
        square = np.square(own).sum(axis=2)
        if size > MANY:  # a trial at a time, or the distances would fill the memory
            widest, total = np.array([(d.max(), d.sum()) for d in map(pdist, own)]).T
        else:
            gaps = _distances(own)
            widest, total = gaps.max(axis=(1, 2)), 0.5 * gaps.sum(axis=(1, 2))
        farthest = np.sqrt(square.max(axis=1)) / (size - 1)
        together = np.divide(square.sum(axis=1), total, out=np.zeros_like(total), where=total > 0)
        # Points that coincide up to rounding have no distances: there the upper bound tells.
        least = np.maximum(least, np.minimum(np.maximum(farthest, together), widest / size))
    return least


def convex_path(low: Floats, at: TrueGroups) -> Bools:
    """Do the true groups stay apart at lambda = ``low``, so that the path shows them? (trials,)

    All groups have fused there, and forces of one group on another are those on its mean: the
    groups stay apart if the K weighted means, clustered with the same lambda, do,

        minimise  1/2 sum_k n_k |u_k - mu_k|^2 + lam sum_{k<l} n_k n_l |u_k - u_l|.

    Solved by reweighting (the distances of the last step in the denominators), which goes down in
    every step. Means that come within a hundredth of the smallest distance are taken as met, and
    so are those that are not at rest after many steps.
    """
    sizes = at.sizes
    # Below the right end of Eq. (13) they are apart, whatever was fused.
    high = (at.between / (2 * int(sizes.sum()) - sizes[:, None] - sizes)).min(axis=(1, 2))
    found = np.asarray(low < high)
    open_ = np.flatnonzero(~found)
    if len(at.sizes) == 1 or len(open_) == 0:
        return found
    n, diagonal = at.sizes.astype(np.float64), np.arange(len(at.sizes))
    lam, means, gaps = low[open_], at.means[open_], at.between[open_]
    first = gaps.min(axis=(1, 2))[:, None, None]
    for _ in range(FUSE_STEPS):
        before = gaps
        w = lam[:, None, None] * n[:, None] * n / np.maximum(gaps, 1e-6 * first)
        system = -w
        system[:, diagonal, diagonal] = n + w.sum(axis=2)
        u = np.linalg.solve(system, n[:, None] * means)
        gaps = _distances(u)
        gaps[:, diagonal, diagonal] = np.inf
        met = (gaps < APART * first).any(axis=(1, 2))
        fall = 1 - np.divide(gaps, before, out=np.ones_like(gaps), where=np.isfinite(before))
        apart = ~met & (np.abs(fall).max(axis=(1, 2)) < STILL)
        found[open_[apart]] = True
        go = ~(met | apart)
        if not go.any():
            break
        open_, lam, means, gaps, first = (x[go] for x in (open_, lam, means, gaps, first))
    return found
