"""How many clusters: check a given number, or choose one (Appendix C, ODCL-KM).

Two rules, each over clusterings by the very method that will be used:

- elbow: no K beyond the first that lowers the cost by less than 10 %, and of those the K whose
  cost is lowest compared with points that have no clusters;
- silhouette: the K from 2 on with the best mean silhouette. It cannot see K = 1.

Neither is safe on all data; the docstring of each says where it fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial.distance import pdist, squareform
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import check_count

if TYPE_CHECKING:
    from odcl.clustering.kmeans.kmeanspp import KMeansResult

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
