"""How a cluster's uploads become one model (Algorithm 1, step 2(iii)).

``mean`` is the paper; ``samples`` weighs by n_i; ``precision`` sums the users' quadratic models
and counts the penalty once a group. ``labels`` hold 0..n_clusters-1, every cluster is non-empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from odcl._typing import Floats, Ints
from odcl.exchange.upload import Uploads

COMBINERS = ("mean", "samples", "precision", "shrink")


@dataclass(frozen=True, eq=False)
class Combined:
    """Clusters' models, and for each user its cluster's model without its own contribution."""

    centers: Floats  # (n_clusters, dim)
    others: Floats | None  # (n_users, dim); a user alone in its cluster has its own model there
    how: str  # what was really done, in words


def combine_clusters(uploads: Uploads, labels: Ints, how: str, *, others: bool = False) -> Combined:
    """Combine each cluster's uploads; with ``others`` also once without each of its users."""
    if how == "mean":
        return _weighted(uploads, labels, np.ones(uploads.n_users), others, "plain mean")
    if how == "samples" or (how == "precision" and uploads.curvature is None):
        told = "mean weighted by sample size"
        if how == "precision":
            told += " (no curvature was uploaded)"
        return _weighted(uploads, labels, uploads.n_samples, others, told)
    if how == "precision":
        return _precision(uploads, labels, others)
    raise ValueError(f"combine={how!r} is not one of {', '.join(COMBINERS)}.")


def sum_by_cluster(values: Floats, labels: Ints) -> Floats:
    """Sum of the rows of each cluster, in the order of the users; any shape behind axis 0."""
    n_users, n_clusters = len(labels), int(labels.max()) + 1
    members = sparse.csr_array(
        (np.ones(n_users), (labels, np.arange(n_users))), shape=(n_clusters, n_users)
    )
    total = members @ values.reshape(n_users, -1)
    return np.asarray(total).reshape(n_clusters, *values.shape[1:])


def average_by_cluster(theta: Floats, labels: Ints, weights: Floats | None = None) -> Floats:
    """Average the local models inside each cluster (Algorithm 1, step 2(iii)).

        centers[k] = (1 / |C'_k|) * sum of theta[i] over i in C'_k

    Users count once each, whatever their sample size: the paper averages uniformly (Remark 10).
    ``weights`` (n_users,) make it a weighted mean. Shapes: theta (n_users, dim), labels
    (n_users,) holding 0..K'-1, answer (n_clusters, dim).
    """
    weights = np.ones(len(theta)) if weights is None else weights
    total = sum_by_cluster(weights, labels)
    return sum_by_cluster(theta * weights[:, None], labels) / total[:, None]


def _weighted(uploads: Uploads, labels: Ints, weights: Floats, others: bool, told: str) -> Combined:
    centers = average_by_cluster(uploads.theta, labels, weights)
    if not others:
        return Combined(centers, None, told)
    share = (weights / sum_by_cluster(weights, labels)[labels])[:, None]
    alone = share >= 1.0
    rest = centers[labels] - share * uploads.theta
    without = np.where(alone, uploads.theta, rest / np.where(alone, 1.0, 1.0 - share))
    return Combined(centers, without, told)


def _precision(uploads: Uploads, labels: Ints, others: bool) -> Combined:
    """Sum of quadratic models, the penalty P = diag(l2) counted once a group:

        centers[k] = (sum_i (H_i - n_i P) + n-bar P)^-1 sum_i H_i theta_i

    For squared loss this is the cluster's pooled ridge regression (n-bar is the cluster's mean
    n_i). Users who keep their curvature to themselves do not take part; a cluster of such users
    alone is averaged by sample size.
    """
    H = uploads.curvature
    assert H is not None
    sent = uploads.sent
    n = uploads.n_samples * sent
    pen = np.zeros(uploads.dim) if uploads.l2 is None else uploads.l2
    hat = np.matmul(H, uploads.theta[..., None])[..., 0] if uploads.full else H * uploads.theta
    members = np.maximum(sum_by_cluster(sent.astype(float), labels), 1.0)
    total_n, total_H, total_hat = (sum_by_cluster(a, labels) for a in (n, H, hat))
    fallback = _weighted(uploads, labels, uploads.n_samples, others, "")

    def solve(total_H: Floats, total_n: Floats, members: Floats, hat: Floats) -> Floats:
        spare = (total_n - total_n / members)[:, None] * pen  # penalties beyond the one that counts
        if not uploads.full:
            return hat / np.maximum(total_H - spare, 1e-300)
        return solve_symmetric(total_H - spare[:, :, None] * np.eye(len(pen)), hat)

    empty = sum_by_cluster(sent.astype(float), labels) == 0
    centers = np.where(
        empty[:, None], fallback.centers, solve(total_H, total_n, members, total_hat)
    )
    told = "sum of the users' quadratic models" + ("" if uploads.full else " (diagonal)")
    if not others or fallback.others is None:
        return Combined(centers, None, told)
    without = fallback.others.copy()
    rest = members[labels] - sent > 0  # somebody else of the cluster sent its curvature
    for part in np.array_split(np.flatnonzero(rest & ~empty[labels]), max(1, len(H) // 4096)):
        k = labels[part]
        without[part] = solve(
            total_H[k] - H[part],
            total_n[k] - n[part],
            members[k] - sent[part],
            total_hat[k] - hat[part],
        )
    return Combined(centers, without, told)


def solve_symmetric(A: Floats, b: Floats) -> Floats:
    """A^-1 b for a stack of positive semi-definite A; minimum norm where A is singular.

    Brought to unit diagonal first, so that features in other units are not taken for missing.
    """
    diagonal = np.diagonal(A, axis1=1, axis2=2)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(A * scale[:, :, None] * scale[:, None, :])
    keep = values > A.shape[1] * 1e-13 * values[:, -1:]
    inverse = np.where(keep, 1.0 / np.where(keep, values, 1.0), 0.0)
    along = np.matmul(vectors.transpose(0, 2, 1), (scale * b)[..., None]) * inverse[..., None]
    return scale * np.matmul(vectors, along)[..., 0]
