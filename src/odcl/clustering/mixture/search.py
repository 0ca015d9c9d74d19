"""How many groups: the merge tree proposes, EM and ICL decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from sklearn.cluster import kmeans_plusplus

from odcl._typing import Floats, Ints
from odcl.clustering.convex.ward import cut, ward_merges
from odcl.clustering.mixture.em import CHUNK_ENTRIES, Axes, Cloud, Fit, Mixture, em, from_labels

SEARCH_USERS = 20_000  # K is searched on at most so many users, then EM runs on everybody
TREE_LEAVES = 2_000  # more users than this are first gathered into so many small clusters
FIRST_BOUND = 20  # max_clusters="auto" tries every K up to here, larger ones in steps
RANDOM_STARTS = 2  # K-means++ starts for EM beside the tree's, up to K = MANY_GROUPS
MANY_GROUPS = 50
TRIAL_SWEEPS = 12  # of EM from each start, before the best one goes on

MaxClusters = int | Literal["auto"]


@dataclass(frozen=True, eq=False)
class Found:
    """The chosen mixture on all users of the cloud, and the ICL of every K looked at."""

    fit: Fit
    scores: dict[int, float]  # of EM where it ran, of the tree's cut elsewhere


def find_groups(
    cloud: Cloud,
    n_clusters: int | None,
    max_clusters: MaxClusters,
    seed: int,
    axes_of: Callable[[Ints], Axes] | None = None,
) -> Found:
    """Search K on (a sample of) the cloud, then let EM settle on all of it.

    ``axes_of`` gives the whole covariances of the users in the rows named, where they are known.

    A group of fewer than some 1 in 10,000 users can be missing from the sample of a very large
    federation; up to ``SEARCH_USERS`` users everybody is searched.
    """
    rng = np.random.default_rng(seed)
    rows: Ints = np.arange(len(cloud))
    if len(cloud) > SEARCH_USERS:
        rows = np.sort(rng.choice(len(cloud), SEARCH_USERS, replace=False))
    searched = cloud.rows(rows)
    if axes_of is not None:
        searched = replace(searched, axes=axes_of(rows))
    found = _search(searched, n_clusters, max_clusters, rng)
    if len(rows) == len(cloud):
        return found
    return Found(em(cloud, found.fit.mixture, max_sweeps=20, tol=1e-5), found.scores)


def _search(
    cloud: Cloud, n_clusters: int | None, max_clusters: MaxClusters, rng: np.random.Generator
) -> Found:
    """ICL along the whole merge tree, EM at the best few K, then K - 1 and K + 1 until at rest."""
    tree = _Tree(cloud, rng)
    if n_clusters is not None:
        fit = _best_fit(cloud, n_clusters, tree, rng)
        return Found(fit, {n_clusters: fit.score})
    # A shared variance fitted from the data themselves must be seen inside the groups: with
    # fewer than three users a group on average, noise alone splits one time in five.
    limit = len(cloud) if cloud.believed else max(1, len(cloud) // 3)
    scores = tree.scores(limit, max_clusters)
    fits: dict[int, Fit] = {}
    todo = {1, *sorted(scores, key=lambda k: scores[k])[:3]}
    while todo:
        for k in sorted(todo):
            fits[k] = _best_fit(cloud, k, tree, rng)
        best = min(fits, key=lambda k: fits[k].score)  # a tie goes to fewer groups
        todo = {k for k in (best - 1, best + 1) if 1 <= k <= max(scores) and k not in fits}
    scores.update({k: fit.score for k, fit in fits.items()})
    return Found(fits[best], scores)


def _best_fit(cloud: Cloud, k: int, tree: _Tree, rng: np.random.Generator) -> Fit:
    """EM from the tree's cut and from a few K-means++ drawings, the best one to the end."""
    starts = [tree.mixture(k)]
    if 1 < k <= MANY_GROUPS:
        starts += [_random_start(cloud, k, rng) for _ in range(RANDOM_STARTS)]
    if len(starts) == 1:
        return em(cloud, starts[0])
    trials = [em(cloud, start, max_sweeps=TRIAL_SWEEPS) for start in starts]
    best = min(trials, key=lambda fit: fit.score)  # a tie goes to the tree
    return best if best.converged else em(cloud, best.mixture)


def _random_start(cloud: Cloud, k: int, rng: np.random.Generator) -> Mixture:
    """K-means++ seeds, users to the nearest one."""
    seeds = _seeds(cloud.points, steady_weights(cloud), k, rng)
    return from_labels(cloud, _nearest(cloud.points, seeds))[0]


def _seeds(
    points: Floats, weights: Floats, k: int, rng: np.random.Generator, trials: int | None = None
) -> Floats:
    state = int(rng.integers(2**31))
    return np.asarray(
        kmeans_plusplus(
            points, k, sample_weight=weights, random_state=state, n_local_trials=trials
        )[0]
    )


def _nearest(points: Floats, seeds: Floats) -> Ints:
    """Label of the nearest seed, (n,), with no number left out. Only starts: speed over digits."""
    half = 0.5 * (seeds**2).sum(axis=1)
    step = max(1, CHUNK_ENTRIES // len(seeds))
    parts = (points[start : start + step] for start in range(0, len(points), step))
    nearest = np.concatenate([(part @ seeds.T - half).argmax(axis=1) for part in parts])
    return np.asarray(np.unique(nearest, return_inverse=True)[1], dtype=np.intp).ravel()


def steady_weights(cloud: Cloud) -> Floats:
    """Weights of users before tau2 is known: 1 / (v_i + median v).

    Noisy users count little, and a very precise one at most twice the median user: its noise
    may be far below the differences inside its group.
    """
    return 1 / (cloud.noise + float(np.median(cloud.noise)))


class _Tree:
    """Ward's tree over the users, or over small clusters of them when there are many."""

    def __init__(self, cloud: Cloud, rng: np.random.Generator) -> None:
        self.cloud = cloud
        weights = steady_weights(cloud)
        self.leaf: Ints = np.arange(len(cloud))
        leaves = cloud.points
        if len(cloud) > TREE_LEAVES:
            self.leaf, leaves = _gather(cloud, weights, rng)
            weights = np.bincount(self.leaf, weights).astype(np.float64)
        self.edges = ward_merges(leaves, weights)
        self._mixtures: dict[int, tuple[Mixture, float]] = {}

    def mixture(self, k: int) -> Mixture:
        """The tree's cut into k groups, as a start for EM."""
        return self._cut(k)[0]

    def scores(self, limit: int, max_clusters: MaxClusters) -> dict[int, float]:
        """ICL of the tree's cuts into 1, 2, ... groups.

        "auto" tries every K up to 20, then steps of an eighth up to half the leaves, and every K
        around the best of these. It cannot stop at the first rise: seen with 20 groups, users of
        300 look like one group with a large tau2.
        """
        limit = min(limit, len(self.edges) + 1)
        if max_clusters != "auto":
            return {k: self._cut(k)[1] for k in range(1, min(limit, max_clusters) + 1)}
        tried = list(range(1, min(limit, FIRST_BOUND) + 1))
        while tried[-1] < limit // 2:
            tried.append(min(tried[-1] * 9 // 8, limit // 2))
        scores = {k: self._cut(k)[1] for k in tried}
        at = tried.index(min(tried, key=lambda k: scores[k]))
        for k in range(tried[max(at - 1, 0)], tried[min(at + 1, len(tried) - 1)]):
            scores[k] = self._cut(k)[1]
        return scores

    def _cut(self, k: int) -> tuple[Mixture, float]:
        if k not in self._mixtures:
            labels = cut(self.edges, k)[self.leaf]
            self._mixtures[k] = from_labels(self.cloud, labels)
        return self._mixtures[k]


def _gather(cloud: Cloud, weights: Floats, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Small clusters of users: (n,) cluster of each and (leaves, rank) their weighted means."""
    # One candidate a draw: for so many seeds the greedy choice among several only costs time.
    means = _seeds(cloud.points, weights, TREE_LEAVES, rng, trials=1)
    for _ in range(3):
        leaf = _nearest(cloud.points, means)
        total = np.bincount(leaf, weights)
        means = np.stack([np.bincount(leaf, weights * x) / total for x in cloud.points.T], axis=1)
    return leaf, means
