"""Spectral K-means (Algorithm 2), the method of Lemma 2; its Part I alone is that of Theorem 3."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from odcl._typing import Floats
from odcl.clustering.kmeans.kmeanspp import (
    KMeansFamily,
    KMeansResult,
    check_n_clusters,
    kmeans_pp,
    lloyd,
    one_cluster_per_point,
    result_of,
)


def spectral_kmeans(
    a: Floats, n_clusters: int, *, part_one_only: bool = False, n_init: int = 10, seed: int
) -> KMeansResult:
    """Spectral K-means (Algorithm 2) on ``a``, (n_points, dim).

    The points are centred first. Everything that Lemma 2 and Theorem 3 ask of the data (A - C and
    differences of means) is the same after a shift, so the guarantees hold for any origin, and
    with the mean as origin the answer does not depend on where the users' models lie.

    With ``part_one_only`` the labels are those of Part I and the centres the means of the original
    points under them (Theorem 3).
    """
    check_n_clusters(n_clusters, len(a))
    if (exact := one_cluster_per_point(a, n_clusters)) is not None:
        return exact
    centred = a - a.mean(axis=0)
    projected = centred @ top_right_singular_vectors(centred, n_clusters).T
    part_one = kmeans_pp(projected, n_clusters, n_init=n_init, greedy=True, seed=seed)
    if part_one_only:
        return result_of(a, part_one.labels, n_iter=part_one.n_iter, converged=part_one.converged)
    return lloyd(a, core_means(a, projected, part_one))


def top_right_singular_vectors(a: Floats, n: int) -> Floats:
    """The first ``n`` right singular vectors of ``a``, (at most n, dim).

    Projected points have these coordinates in place of their own: distances are the same. Tall
    matrices go through the R of QR, which has the same right singular vectors as ``a`` and,
    unlike the Gram matrix, does not square the condition.
    """
    tall = a.shape[0] > a.shape[1]
    _, _, vectors = np.linalg.svd(np.linalg.qr(a, mode="r") if tall else a, full_matrices=False)
    return np.asarray(vectors[:n], dtype=np.float64)


def core_means(a: Floats, projected: Floats, part_one: KMeansResult) -> Floats:
    """Means of the original points over the core sets (Algorithm 2, Part II), (n_clusters, dim).

        S_k = {i: |projected[i] - nu_k| <= 1/3 |projected[i] - nu_l| for all l != k}

    An empty core set has no mean: the cluster of Part I stands in for it, which is never empty.
    """
    distances = cdist(projected, part_one.centers)
    own = distances[np.arange(len(a)), part_one.labels]
    distances[np.arange(len(a)), part_one.labels] = np.inf
    core = own <= distances.min(axis=1) / 3
    clusters = [part_one.labels == k for k in range(len(part_one.centers))]
    return np.stack([a[c & core if (c & core).any() else c].mean(axis=0) for c in clusters])


@dataclass(eq=False, repr=False)  # an __init__ that only stores
class SpectralKMeans(KMeansFamily):
    """Spectral K-means (Algorithm 2): the clustering of ODCL-KM.

    Exact on points that are separable by Eq. (4) with alpha = 2 + 2 c sqrt(m) / sqrt(smallest),
    c = 100 (Lemma 2). The paper wants a 10-approximation in Part I, that is a cost of at most 11
    times the optimum; here it is the best of ``n_init`` greedy K-means++ runs, which is not
    certified but in practice far nearer.

    Parameters
    ----------
    n_clusters : int, "elbow" or "silhouette"
        Number of clusters, or the rule that chooses it (``choose_k``).
    part_one_only : bool
        Stop after Part I: the method of Theorem 3, which misplaces at most a fraction 128 / c^2 of
        a cluster under the weaker centre separation (Definition 3).
    n_init, max_clusters, random_state
        As in :class:`~odcl.KMeansPP`.

    Attributes
    ----------
    labels_, cluster_centers_, inertia_, n_iter_, n_clusters_, choice_
        As in :class:`~odcl.KMeansPP`; ``n_iter_`` counts Lloyd's steps of
        Part III (of Part I if that is all).
    """

    method = staticmethod(spectral_kmeans)

    n_clusters: int | str = 8
    _: KW_ONLY
    part_one_only: bool = False
    n_init: int = 10
    max_clusters: int = 20
    random_state: Any = None
