"""Gradient clustering: Armacki, Bajovic, Jakovetic, Kar, "Gradient Based Clustering", ICML 2022."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from odcl._typing import Floats, Ints
from odcl.clustering.kmeans.kmeanspp import (
    KMeansFamily,
    KMeansResult,
    check_n_clusters,
    cluster_means,
    d2_seeds,
    one_cluster_per_point,
    result_of,
)
from odcl.clustering.labels import check_count


def gradient_clustering(
    a: Floats,
    n_clusters: int,
    *,
    step_size: float | str = "auto",
    n_init: int = 10,
    max_iter: int = 1000,
    seed: int,
) -> KMeansResult:
    """Best of ``n_init`` runs of gradient clustering from greedy K-means++ seeds.

    The cost is J = 1 / (2 m) * sum of |a_i - x_(label of i)|^2 over the m points of ``a``,
    (n_points, dim). The paper leaves the seeds open. A run alternates the assignment to the nearest
    centre with one gradient step on all centres,

        x_k <- x_k - step_size / m * sum of (x_k - a_i) over i in C_k
             = x_k - step_size * w_k * (x_k - mean of C_k),       w_k = |C_k| / m

    The gradient has Lipschitz constant L = max w_k, and the step lowers J by the sum over k of
    step_size * w_k^2 * (1 - step_size * w_k / 2) * |x_k - mean|^2: positive up to 2 / L. The paper
    asks for step_size < 1 / L. A number must be at most 1, which is within 1 / L whatever the
    clusters; "auto" is 1 / L of the clusters at hand, where the largest one reaches its mean.
    """
    check_n_clusters(n_clusters, len(a))
    check_count("n_init", n_init, "the best of that many seedings is kept")
    check_count("max_iter", max_iter, "each is one assignment and one gradient step")
    if step_size != "auto" and (isinstance(step_size, str) or not 0 < step_size <= 1):
        raise ValueError(
            f"step_size={step_size!r} must be above 0 and at most 1, or 'auto': a longer step may "
            "pass 1 / L, L the largest share of users in one cluster, and then nothing says that "
            "the loop converges."
        )
    if (exact := one_cluster_per_point(a, n_clusters)) is not None:
        return exact
    rng = check_random_state(seed)
    centred = a - a.mean(axis=0)
    runs = (
        descend(centred, d2_seeds(centred, n_clusters, rng, greedy=True), step_size, max_iter)
        for _ in range(n_init)
    )
    best = min(runs, key=lambda run: run.cost)
    if not best.converged:
        warnings.warn(
            f"Gradient clustering stopped after max_iter={max_iter} steps, and users may still "
            "change cluster: the centres given are the means of the last clusters. Raise max_iter, "
            "or use step_size='auto'.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return result_of(a, best.labels, n_iter=best.n_iter, converged=best.converged)


def descend(a: Floats, centers: Floats, step_size: float | str, max_iter: int) -> KMeansResult:
    """One run from given centres, until no later step can change the clusters.

    While labels stay, the distance of every centre to its mean only shrinks. Once these distances
    fit into the margins, labels stay for ever and the limit is the means, exactly.
    """
    labels, means, room = np.full(len(a), -1), centers, None
    for n_iter in range(1, max_iter + 1):
        distances = cdist(a, centers)
        before, labels = labels, distances.argmin(axis=1)
        counts = np.bincount(labels, minlength=len(centers))
        empty = np.flatnonzero(counts == 0)
        if len(empty):  # an empty cluster takes one of the points farthest from their centres
            centers = centers.copy()
            centers[empty] = a[np.argsort(-distances.min(axis=1), kind="stable")[: len(empty)]]
            continue
        if not np.array_equal(labels, before):
            means, room = cluster_means(a, labels), None
        else:
            room = margins(a, labels, means) if room is None else room
            off = np.linalg.norm(centers - means, axis=1)
            if (off[:, None] + off <= room).all():
                return result_of(a, labels, n_iter=n_iter, converged=True)
        weights = counts / len(a)
        step = 1 / weights.max() if isinstance(step_size, str) else step_size
        centers = centers + step * weights[:, None] * (means - centers)
    return result_of(a, labels, n_iter=max_iter, converged=False)


def margins(a: Floats, labels: Ints, means: Floats) -> Floats:
    """How much nearer all points of cluster k are to their own mean than to mean l, (K, K).

        margins[k, l] = min over i in C_k of |a_i - mean_l| - |a_i - mean_k|

    Centres that are off their means by less than this, x_k and x_l together, keep all points of
    C_k. A point halfway between two means leaves no room at all: a slack of 1e-12 of the largest
    distance, some thousand roundings, lets it rest.
    """
    distances = cdist(a, means)
    ahead = distances - distances[np.arange(len(a)), labels][:, None]
    room = np.stack([ahead[labels == k].min(axis=0) for k in range(len(means))])
    np.fill_diagonal(room, np.inf)
    return np.asarray(room + 1e-12 * distances.max(), dtype=np.float64)


@dataclass(eq=False, repr=False)  # an __init__ that only stores
class GradientClustering(KMeansFamily):
    """Gradient clustering for the squared Euclidean loss (Section 3, example 3)).

    Its fixed points are those of Lloyd's loop: every centre is the mean of its cluster and every
    point is nearest to its own.

    Parameters
    ----------
    n_clusters : int, "elbow" or "silhouette"
        Number of clusters, or the rule that chooses it (``choose_k``).
    step_size : float in (0, 1], or "auto"
        Step on the mean cost over users; "auto" is 1 / (largest share of users in a cluster).
    max_iter : int
        Gradient steps of one run. A run that needs more warns.
    n_init, max_clusters, random_state
        As in :class:`~odcl.clustering.kmeans.kmeanspp.KMeansPP`.

    Attributes
    ----------
    labels_, cluster_centers_, inertia_, n_iter_, n_clusters_, choice_
        As in :class:`~odcl.clustering.kmeans.kmeanspp.KMeansPP`; ``n_iter_`` counts gradient steps.
    """

    method = staticmethod(gradient_clustering)

    n_clusters: int | str = 8
    _: KW_ONLY
    step_size: float | str = "auto"
    n_init: int = 10
    max_iter: int = 1000
    max_clusters: int = 20
    random_state: Any = None
