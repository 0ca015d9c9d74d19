"""K-means++ seeding and Lloyd's loop (Algorithm 3), and what the K-means family shares.

The number of clusters is given, or chosen (Appendix C, ODCL-KM) by one of two rules, each over
clusterings by the very method that will be used. Neither is safe on all data: their docstrings say
where they fail.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from scipy.spatial.distance import pdist, squareform
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import (
    as_seed,
    check_count,
    nearest_center,
    number_by_first_user,
    sum_by_cluster,
    validated,
)
from odcl.threads import one_loop_thread

# Lloyd's loop ends by itself; only labels that flip within rounding would go round for ever.
MAX_ITER = 1000


@dataclass(frozen=True, eq=False)
class KMeansResult:
    """A partition of the points, its means and its cost. Clusters are numbered by first user."""

    labels: Ints  # (n_points,), holding 0..n_clusters-1
    centers: Floats  # (n_clusters, dim), the means of the clusters
    cost: float  # sum over points of |a[i] - centers[labels[i]]|^2, twice that of the paper
    n_iter: int
    converged: bool


def kmeans_pp(
    a: Floats, n_clusters: int, *, n_init: int = 10, greedy: bool = True, seed: int
) -> KMeansResult:
    """Best of ``n_init`` runs of K-means++ (Algorithm 3) on ``a``, (n_points, dim).

    Each run draws its seeds by D^2 sampling (see :func:`d2_seeds` for ``greedy``) and then runs
    Lloyd's loop. The runs stop at scikit-learn's default tolerance, and only the best one is
    carried on until no label changes: on 1,000,000 overlapping points this saves a fifth of the
    time, and the cost of the answer is never above the best of the runs. An empty cluster takes
    the farthest point.

    With no more different points than clusters the answer is exact: each is its own cluster.
    """
    check_n_clusters(n_clusters, len(a))
    check_count("n_init", n_init, "the best of that many seedings is kept")
    if (exact := one_cluster_per_point(a, n_clusters)) is not None:
        return exact
    init = "k-means++" if greedy else d2_seeds  # scikit-learn's own seeding is greedy
    runs = KMeans(n_clusters, init=init, n_init=n_init, max_iter=MAX_ITER, random_state=seed).fit(a)
    first_users = np.sort(np.unique(runs.labels_, return_index=True)[1])
    return lloyd(a, runs.cluster_centers_[runs.labels_[first_users]], n_iter=runs.n_iter_)


def d2_seeds(
    a: Floats, n_clusters: int, random_state: np.random.RandomState, *, greedy: bool = False
) -> Floats:
    """Seeds of Algorithm 3, step I, (n_clusters, dim): rows of ``a``, which must be centred.

    Each next seed is row i with probability proportional to D_i^2, D_i the distance to the nearest
    seed so far. ``greedy`` draws 2 + log(n_clusters) rows per seed and takes the one that most
    lowers the sum of D_i^2, as scikit-learn does. It matters for many clusters: with 20 normal
    clusters of 25 users, means N(0, 9) in dim 10, the best of ten seedings was exact in 75 % of
    runs when greedy and in 8 % when not; with 4 clusters in all runs either way.
    """
    n_trials = None if greedy else 1
    seeds, _ = kmeans_plusplus(a, n_clusters, random_state=random_state, n_local_trials=n_trials)
    return np.asarray(seeds, dtype=np.float64)


def lloyd(a: Floats, centers: Floats, *, n_iter: int = 0) -> KMeansResult:
    """Lloyd's loop from ``centers`` until no label changes (Algorithm 2, Part III).

    The lowest of the labels given wins a tie. ``n_iter`` counts steps already made.
    """
    run = KMeans(len(centers), init=centers, n_init=1, tol=0, max_iter=MAX_ITER).fit(a)
    converged = run.n_iter_ < MAX_ITER
    result = result_of(a, run.labels_, n_iter=n_iter + run.n_iter_, converged=converged)
    if not converged:
        moving = np.count_nonzero(nearest_center(a, result.centers) != result.labels)
        warnings.warn(
            f"Lloyd's loop stopped after {MAX_ITER} steps with {moving} of {len(a)} users still "
            "changing cluster: the clusters overlap and the partition is not final. Ask for fewer "
            "clusters.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return result


def result_of(a: Floats, labels: Array, *, n_iter: int, converged: bool) -> KMeansResult:
    """The result that some labels stand for: renumbered, with means and cost taken from ``a``.

    Means and cost are summed here, in one order, since a threaded Lloyd loop may not do so.
    """
    labels = number_by_first_user(labels)
    centers = cluster_means(a, labels)
    off = centers[labels]
    off -= a
    cost = float(np.einsum("ij,ij->", off, off))  # without another matrix of squares
    return KMeansResult(labels, centers, cost, n_iter, converged)


def cluster_means(a: Floats, labels: Ints) -> Floats:
    """Means of the clusters, (n_clusters, dim); ``labels`` hold 0..n_clusters-1 without gaps."""
    return sum_by_cluster(a, labels) / np.bincount(labels)[:, None]


def one_cluster_per_point(a: Floats, n_clusters: int) -> KMeansResult | None:
    """The optimum, of cost 0, if there are no more different points than clusters; else None.

    Lloyd's loop will not do there: the mean of equal points may differ from them in the last
    digit, and equal points could part. The first points that are more than clusters end it, so that
    ordinary data cost next to nothing.
    """
    first: dict[bytes, int] = {}  # each different point, and its label: the order of first users
    labels = np.empty(len(a), dtype=np.intp)
    for i, point in enumerate(a):
        # Bytes, and not np.unique: a row may be a network's million parameters.
        labels[i] = first.setdefault((point + 0.0).tobytes(), len(first))  # + 0.0: no minus zero
        if len(first) > n_clusters:
            return None
    points = a[np.unique(labels, return_index=True)[1]]
    if len(points) < n_clusters:
        warnings.warn(
            f"n_clusters={n_clusters}, but only {len(points)} of the {len(a)} points are "
            f"different: each of these is its own cluster. Ask for at most {len(points)}.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return KMeansResult(labels, points, cost=0.0, n_iter=0, converged=True)


class KMeansFamily(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Base of KMeansPP, SpectralKMeans and GradientClustering; they differ in ``method``."""

    method: ClassVar[Callable[..., KMeansResult]]  # of points, K, a seed and its own settings
    n_clusters: int | str
    max_clusters: int
    random_state: Any

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the rows of ``X``, (n_users, dim)."""
        a, seed = validated(self, X), as_seed(self.random_state)
        shared = ("n_clusters", "max_clusters", "random_state")
        own = {name: v for name, v in self.get_params().items() if name not in shared}
        cluster = partial(self.method, a, seed=seed, **own)
        self.choice_: ChoiceOfK | None = None
        with one_loop_thread(a.size):
            if isinstance(self.n_clusters, str):
                self.choice_, result = choose_k(
                    a, self.n_clusters, cluster, max_clusters=self.max_clusters, seed=seed
                )
            else:
                result = cluster(self.n_clusters)
        self.labels_ = result.labels
        self.cluster_centers_ = result.centers
        self.inertia_ = result.cost
        self.n_iter_ = result.n_iter
        self.n_clusters_ = len(result.centers)
        return self


@dataclass(eq=False, repr=False)  # an __init__ that only stores
class KMeansPP(KMeansFamily):
    """K-means++ seeding, then Lloyd's loop (Algorithm 3): the clustering of ODCL-KM++.

    Parameters
    ----------
    n_clusters : int, "elbow" or "silhouette"
        Number of clusters, or the rule that chooses it (``choose_k``).
    n_init : int
        Seedings; the best is kept. One finds the clusters of the paper's linear set-up in 60 - 90 %
        of runs, the best of ten in all.
    greedy : bool
        Take the best of a few draws for each seed. False is Algorithm 3 to the letter; from about
        ten clusters on it misses clusters that the greedy seeding finds.
    max_clusters : int
        Largest number of clusters that a rule tries.
    random_state : int, RandomState or None
        Source of the seedings; the same int gives the same result.

    Attributes
    ----------
    labels_ : (n_users,), clusters numbered by their first user
    cluster_centers_ : (n_clusters_, dim), the means of the clusters
    inertia_ : float, sum of squared distances to the centres
    n_iter_ : int, steps of Lloyd's loop of the best run
    n_clusters_ : int, below ``n_clusters`` if there are fewer different points
    choice_ : ChoiceOfK, how a rule chose; None if ``n_clusters`` was a number
    """

    method = staticmethod(kmeans_pp)

    n_clusters: int | str = 8
    _: KW_ONLY
    n_init: int = 10
    greedy: bool = True
    max_clusters: int = 20
    random_state: Any = None


# -- how many clusters -----------------------------------------------------------------------------


RULES = ("elbow", "silhouette")
WORTH = 0.1  # share of the cost that one more cluster must take away

# Mean silhouettes need all pairs. 2,000 points are 32 MB of distances and 60 points of a cluster
# that holds 3 % of the users.
SILHOUETTE_POINTS = 2000


@dataclass(frozen=True)
class ChoiceOfK:
    """What a rule saw and what it made of it."""

    rule: str
    scores: dict[int, float]  # K -> cost (elbow) or mean silhouette, for every K that was tried
    n_clusters: int
    reason: str  # one sentence
    labels: dict[int, Ints] = field(default_factory=dict, repr=False)  # of every K that was tried


def choose_k(
    a: Floats,
    rule: str,
    cluster: Callable[[int], KMeansResult],
    *,
    max_clusters: int,
    seed: int,
) -> tuple[ChoiceOfK, KMeansResult]:
    """Run ``cluster(K)`` for growing K, at most ``max_clusters``, and keep what ``rule`` chooses.

    ``a`` is (n_points, dim). No K above the number of different points is tried.
    """
    if rule not in RULES:
        raise ValueError(
            f"n_clusters={rule!r} names no rule to choose the number of clusters by. Give a "
            "number, 'elbow' or 'silhouette'."
        )
    least = 2 if rule == "silhouette" else 1
    check_count("max_clusters", max_clusters, f"'{rule}' tries {least} to max_clusters", least)
    if rule == "elbow":
        return elbow(a, cluster, max_clusters=max_clusters)
    return silhouette(a, cluster, max_clusters=max_clusters, seed=seed)


def elbow(
    a: Floats, cluster: Callable[[int], KMeansResult], *, max_clusters: int
) -> tuple[ChoiceOfK, KMeansResult]:
    """K = 1, 2, ... while one more cluster lowers the cost by 10 %; the sharpest of these.

    Points without clusters pass that test as well in few dimensions, where the cost falls as
    K^(-2 / dim) with nothing to find, and ever faster as K comes near the number of points. So
    of all K tried the answer minimises

        cost(K) / (n - K) * (K / (n - K)^2)^(2 / dim),        K <= n / 2

    whose power of n - K is measured, not derived: three tight clusters of 3 to 20 points each in 1
    and 2 dimensions, and points without clusters, are seen for what they are in 16 to 20 of 20
    draws. A cost of 0 cannot be improved: that K is chosen. If the answer is ``max_clusters``, the
    true number may be larger, and there is a warning.

    More than 11 small clusters, all equally far from one another, look like one: their cost falls
    by 1 / (n_clusters - 1) when the first is split off.
    """
    n_points, most = len(a), min(max_clusters, max(1, len(a) // 2))
    results = {1: cluster(1)}
    last, drop = 1, 1.0
    while results[last].cost > 0 and last < most and drop >= WORTH:
        results[last + 1] = cluster(last + 1)
        drop = 1 - results[last + 1].cost / results[last].cost
        last += drop >= WORTH
    if results[last].cost == 0:
        return _choice("elbow", results, last, f"K = {last} leaves no cost to lower")

    def score(k: int) -> float:
        left = n_points - k
        power = 2 / min(a.shape[1], n_points - 1)
        return float(np.log(results[k].cost / left) + power * np.log(k / left**2))

    best = min(range(1, last + 1), key=score)
    if best < last:
        why = f"its cost is the lowest of K = 1 to {last}, compared with points without clusters"
    elif drop < WORTH:
        why = f"one cluster more lowers the cost by {drop:.1%}, less than {WORTH:.0%}"
    else:
        why = f"every cluster up to {best} lowers the cost by {WORTH:.0%} or more"
        if best == max_clusters:
            warnings.warn(
                f"The elbow rule tried all K up to max_clusters={max_clusters} and every further "
                f"cluster lowered the cost by at least {WORTH:.0%}: the true number may be "
                "larger. Raise max_clusters, or give n_clusters.",
                ConvergenceWarning,
                stacklevel=4,
            )
    return _choice("elbow", results, best, why)


def silhouette(
    a: Floats, cluster: Callable[[int], KMeansResult], *, max_clusters: int, seed: int
) -> tuple[ChoiceOfK, KMeansResult]:
    """The K in 2..max_clusters with the best mean silhouette; the lowest of equals.

    The silhouette of a point compares its own cluster with the next one, so that one cluster has
    none: on data without clusters the answer is still 2 or more. Only points that are all equal
    give K = 1. A mean over points hardly sees small clusters: one with 2 % of the users may be
    merged with a neighbour even at alpha = 12 of Eq. (4). Above 2,000 points the mean is over
    2,000 of them, drawn once for all K.
    """
    if (a == a[0]).all():
        return _choice("silhouette", {1: cluster(1)}, 1, "all points are equal", scores={1: 0.0})
    rows, distances = sampled_distances(a, seed)
    results: dict[int, KMeansResult] = {}
    scores: dict[int, float] = {}
    for k in range(2, max_clusters + 1):
        results[k] = cluster(k)
        scores[k] = mean_silhouette(distances, results[k].labels[rows])
        if results[k].cost == 0:  # each different point is a cluster: larger K change nothing
            break
    best = max(scores, key=lambda k: scores[k])
    why = f"its mean silhouette, {scores[best]:.3f}, is the best of K = 2 to {max(scores)}"
    return _choice("silhouette", results, best, f"{why} (K = 1 has none)", scores=scores)


def sampled_distances(a: Floats, seed: int) -> tuple[Ints, Floats]:
    """All rows, or 2,000 of them, and their distances to each other."""
    rows = np.arange(len(a))
    if len(a) > SILHOUETTE_POINTS:
        rows = np.random.default_rng(seed).choice(len(a), SILHOUETTE_POINTS, replace=False)
    return rows, squareform(pdist(a[rows]))


def mean_silhouette(distances: Floats, labels: Array) -> float:
    """Mean over points; 0 where it has no meaning (one cluster, or every point alone)."""
    if not 1 < len(np.unique(labels)) < len(labels):
        return 0.0
    return float(silhouette_score(distances, labels, metric="precomputed"))


def _choice(
    rule: str,
    results: dict[int, KMeansResult],
    k: int,
    why: str,
    scores: dict[int, float] | None = None,
) -> tuple[ChoiceOfK, KMeansResult]:
    scores = scores or {tried: result.cost for tried, result in results.items()}
    labels = {tried: result.labels for tried, result in results.items()}
    return ChoiceOfK(rule, scores, k, f"{rule} chose K = {k}: {why}.", labels), results[k]


def check_n_clusters(n_clusters: Any, n_points: int) -> None:
    """A whole number from 1 to the number of points."""
    check_count("n_clusters", n_clusters, "or 'elbow' or 'silhouette', to have it chosen")
    if n_points < n_clusters:
        raise ValueError(
            f"There are fewer users than clusters (n_samples={n_points}, n_clusters={n_clusters}), "
            "and a cluster without users has no model to average. Ask for at most "
            f"{n_points}, or let n_clusters='elbow' choose."
        )
