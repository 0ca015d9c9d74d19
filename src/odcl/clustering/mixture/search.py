"""How many groups: Ward's merge tree proposes, EM and ICL decide; then tau2 is sharpened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.cluster import kmeans_plusplus

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.mixture.em import (
    CHUNK_ENTRIES,
    TAU_PRICE,
    Axes,
    Cloud,
    MixtureParameters,
    NoiseMixtureFit,
    between_users,
    em,
    from_labels,
    noise_bins,
)

SEARCH_USERS = 20_000  # K is searched for among at most this many users; then EM runs on all
TREE_LEAVES = 2_000  # more users than this are first gathered into this many small clusters
FIRST_BOUND = 20  # max_clusters="auto" tries every K up to here, larger ones in steps
RANDOM_STARTS = 2  # K-means++ starts for EM beside the tree's, up to K = MANY_GROUPS
MANY_GROUPS = 50
TRIAL_SWEEPS = 12  # of EM from each start, before the best one goes on
TAU_USERS = 20_000  # tau2 is one number: this many users pin it down to a fraction of a percent
TAU_ROUNDS = 3  # tau2 moves the centres a little, and they tau2

MaxClusters = int | Literal["auto"]


@dataclass(frozen=True, eq=False)
class Found:
    """The chosen mixture on all users of the cloud, and the ICL of every K looked at."""

    fit: NoiseMixtureFit
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
    federation; up to ``SEARCH_USERS`` users all of them are searched.
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
    # fewer than three users per group on average, noise alone splits one time in five.
    limit = len(cloud) if cloud.believed else max(1, len(cloud) // 3)
    scores = tree.scores(limit, max_clusters)
    fits: dict[int, NoiseMixtureFit] = {}
    todo = {1, *sorted(scores, key=lambda k: scores[k])[:3]}
    while todo:
        for k in sorted(todo):
            fits[k] = _best_fit(cloud, k, tree, rng)
        best = min(fits, key=lambda k: fits[k].score)  # a tie goes to fewer groups
        todo = {k for k in (best - 1, best + 1) if 1 <= k <= max(scores) and k not in fits}
    scores.update({k: fit.score for k, fit in fits.items()})
    return Found(fits[best], scores)


def _best_fit(cloud: Cloud, k: int, tree: _Tree, rng: np.random.Generator) -> NoiseMixtureFit:
    """EM from the tree's cut and from a few K-means++ drawings, the best one to the end."""
    starts = [tree.mixture(k)]
    if 1 < k <= MANY_GROUPS:
        starts += [_random_start(cloud, k, rng) for _ in range(RANDOM_STARTS)]
    if len(starts) == 1:
        return em(cloud, starts[0])
    trials = [em(cloud, start, max_sweeps=TRIAL_SWEEPS) for start in starts]
    best = min(trials, key=lambda fit: fit.score)  # a tie goes to the tree
    return best if best.converged else em(cloud, best.mixture)


def _random_start(cloud: Cloud, k: int, rng: np.random.Generator) -> MixtureParameters:
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
        self._mixtures: dict[int, tuple[MixtureParameters, float]] = {}

    def mixture(self, k: int) -> MixtureParameters:
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

    def _cut(self, k: int) -> tuple[MixtureParameters, float]:
        if k not in self._mixtures:
            labels = cut(self.edges, k)[self.leaf]
            self._mixtures[k] = from_labels(self.cloud, labels)
        return self._mixtures[k]


def _gather(cloud: Cloud, weights: Floats, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Small clusters of users: (n,) cluster of each and (leaves, rank) their weighted means."""
    # One candidate per draw: with so many seeds a greedy choice among several only costs time.
    means = _seeds(cloud.points, weights, TREE_LEAVES, rng, trials=1)
    for _ in range(3):
        leaf = _nearest(cloud.points, means)
        total = np.bincount(leaf, weights)
        means = np.stack([np.bincount(leaf, weights * x) / total for x in cloud.points.T], axis=1)
    return leaf, means


def ward_merges(points: Floats, weights: Floats) -> Ints:
    """All merges of Ward's method in order of cost, as a tree of edges between points.

        cost(A, B) = w_A w_B / (w_A + w_B) * ||mean_A - mean_B||^2

    is what merging A and B adds to the weighted sum of squares inside clusters. With weights
    1 / (variance of a point) the sum of squares is in noise units: a noisy point far out is cheap
    to merge, which scipy's unweighted linkage cannot say. ``points`` is (n, dim), the answer
    (n - 1, 2): joining its first n - K rows leaves K clusters (``cut``).

    Nearest-neighbour chains (Murtagh 1983): O(n^2) time and memory, about 1 s at n = 2000.
    Costs are Lance-Williams updates, so the dimension counts only once, in ``cdist``.
    """
    n = len(points)
    weight = weights.astype(np.float64)
    cost = cdist(points, points, "sqeuclidean")
    cost *= weight[:, None] * weight / (weight[:, None] + weight)
    if not np.isfinite(cost.max()):  # a chain of neighbours would never end
        raise ValueError(
            "Distances between the points, in units of their noise, are beyond what numbers can "
            "hold. Divide the points by a constant, and their noise by the square of it."
        )
    np.fill_diagonal(cost, np.inf)
    alive = np.ones(n, dtype=bool)
    edges, heights, chain = np.empty((n - 1, 2), dtype=np.intp), np.empty(n - 1), [0]
    for step in range(n - 1):
        if not chain:
            chain.append(int(np.argmax(alive)))
        while True:  # until two are each other's nearest; a tie ends the chain
            a, b = chain[-1], int(np.argmin(cost[chain[-1]]))
            if len(chain) > 1 and cost[a, chain[-2]] <= cost[a, b]:
                break
            chain.append(b)
        a, b = chain.pop(), chain.pop()
        edges[step], heights[step] = (a, b), cost[a, b]
        _merge(cost, weight, alive, a, b)
    # A cluster lives in the row of one of its own points, so the edges of the cheapest merges
    # connect exactly the clusters they made. Ward's costs never decrease up the tree.
    return edges[np.argsort(heights, kind="stable")]


def cut(edges: Ints, n_clusters: int) -> Ints:
    """Labels (n,) of the points when the merge tree is cut into ``n_clusters``."""
    n = len(edges) + 1
    kept = edges[: n - n_clusters]
    graph = coo_array((np.ones(len(kept)), (kept[:, 0], kept[:, 1])), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.intp)


def _merge(cost: Floats, weight: Floats, alive: Bools, a: int, b: int) -> None:
    """Put cluster a into the row of cluster b: Lance-Williams for the weighted Ward cost."""
    total = weight[a] + weight[b] + weight
    row = (weight[a] + weight) * cost[a] + (weight[b] + weight) * cost[b] - weight * cost[a, b]
    row /= total
    row[[a, b]] = np.inf
    row[~alive] = np.inf
    cost[b], cost[:, b] = row, row
    cost[a], cost[:, a] = np.inf, np.inf
    weight[b] += weight[a]
    alive[a] = False


def sharpen(cloud: Cloud, fit: NoiseMixtureFit, axes_of: Callable[[Ints], Axes]) -> NoiseMixtureFit:
    """Fit tau2 to whole covariances; the groups stay.

        e_i = z_i - (centre of the others in its group) ~ N(0, A_i + tau2 I + I / (P_k - 1/s_i))

    with A_i the whitened C_i. EM sees one number v_i of A_i; but with few rows A_i is long in some
    directions and short in others, and the short ones tell tau2 from noise far better (linear
    models, n = 50, dim = 20, truth 0: an unlucky seed gives 0.03 in place of 0.13). Leaving user
    i out makes e_i and the error of the centre independent; the last term is that error.

    The centres stay weighted by 1 / (v_i + tau2). Weighted by A_i^-1 they would favour, among
    logistic models, the users whose estimate happens to be short, and tau2 would be lost.
    """
    some = np.unique(np.linspace(0, len(cloud) - 1, min(len(cloud), TAU_USERS)).astype(np.intp))
    axes = axes_of(some)
    for _ in range(TAU_ROUNDS):
        before = fit.mixture
        tau2 = _tau2(cloud.rows(some), fit.labels[some], before, axes)
        if np.isclose(tau2, before.tau2, rtol=1e-3, atol=0):
            break
        fit = em(cloud, replace(before, tau2=tau2), max_sweeps=40, tol=1e-5, fit_variance=False)
    return fit


def _tau2(cloud: Cloud, labels: Ints, mixture: MixtureParameters, axes: Axes) -> float:
    """tau2 from the left-out residuals along the axes of each A_i: n dim numbers of one term."""
    weight = 1 / mixture.variance(cloud.noise)
    others = mixture.precision[labels] - weight  # precision of the centre without this user
    paired = others > 1e-9 * weight  # the only user of a group says nothing of tau2
    if not paired.any():
        return 0.0
    left = np.where(paired, others / mixture.precision[labels], 1.0)[:, None]  # 1 - h_i
    along = axes.along((cloud.points - mixture.centers[labels]) / left)[paired]
    noise = (axes.values[paired] + 1 / others[paired, None]).ravel()
    degrees = np.repeat(left[paired, 0], cloud.dim)
    return between_users(
        noise, degrees * np.square(along).ravel(), degrees, noise_bins(noise), TAU_PRICE
    )
