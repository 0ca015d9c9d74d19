"""How a cluster's uploads become one model (Algorithm 1, step 2(iii)).

``mean`` is the paper; ``samples`` weighs by n_i; ``precision`` sums the users' own models of their
risk and counts the penalty once per group. ``labels`` hold 0..n_clusters-1, none of them empty.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.exchange.upload import Uploads


@dataclass(frozen=True, eq=False)
class Combined:
    """Clusters' models, and for each user its cluster's model without its own contribution."""

    centers: Floats  # (n_clusters, dim)
    others: Floats | None  # (n_users, dim); a user alone in its cluster has its own model there
    how: str  # what was really done, in words


def combine_clusters(uploads: Uploads, labels: Ints, how: str, *, others: bool = False) -> Combined:
    """Combine each cluster's uploads; with ``others`` also once without each of its users."""
    total = cluster_sums(uploads, labels, how, int(labels.max()) + 1)
    without = total.without(uploads, labels) if others else None
    return Combined(total.centers, without, total.told)


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


def cluster_sums(uploads: Uploads, labels: Ints, how: str, n_clusters: int) -> ClusterSums:
    """What the users add to their clusters' models; sums of parts of the users add up."""
    if how not in ("mean", "samples", "precision"):
        raise ValueError(f"combine={how!r} is not one of mean, samples, precision.")
    weights = np.ones(uploads.n_users) if how == "mean" else uploads.n_samples
    precision = None
    if how == "precision" and uploads.curvature is not None:
        precision = _Sums.of_users(uploads).by_cluster(labels, n_clusters)
    return ClusterSums(
        how,
        sum_by_cluster(weights, labels, n_clusters),
        sum_by_cluster(uploads.models * weights[:, None], labels, n_clusters),
        precision,
        uploads.penalty,
        uploads.curvature_varies,
    )


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """Clusters as sums over their users: a weighted mean, or by ``precision``:

    the sum of the users' models of their own risk, the penalty P = diag(l2) counted once per group.
    With A_i = H_i - n_i P the curvature of user i's data term at its own theta_i, the group's
    stationary point is

        (sum_i A_i + n-bar P) c = sum_i (W_i + n_i P) theta_i

    W_i = A_i where curvature does not depend on the model: for squared loss c is then exactly the
    cluster's pooled ridge regression (n-bar is the cluster's mean n_i). Elsewhere a user's
    gradient at c is an integral of its curvature from theta_i to c, and W_i is the trapezoid rule
    for it: the mean of A_i, at one end, and of n_i times the cluster's average curvature, for the
    other. This takes off the bias that A_i and theta_i share their noise (logistic users with
    large models are the flat ones).

    Users who keep their curvature to themselves do not take part; a cluster of such users alone
    is averaged by sample size.
    """

    how: str
    weight: Floats  # (n_clusters,)
    weighted: Floats  # (n_clusters, dim), sum w theta
    precision: _Sums | None
    penalty: Floats  # (dim,)
    blend: bool

    def __add__(self, other: ClusterSums) -> ClusterSums:
        precision = self.precision
        if precision is not None and other.precision is not None:
            precision = precision + other.precision
        return replace(
            self,
            weight=self.weight + other.weight,
            weighted=self.weighted + other.weighted,
            precision=precision,
        )

    @property
    def told(self) -> str:
        """What is done, in words."""
        if self.how == "mean":
            return "plain mean"
        if self.precision is None:
            silent = " (no curvature was uploaded)" if self.how == "precision" else ""
            return f"mean weighted by sample size{silent}"
        return "sum of the users' quadratic models"

    @cached_property
    def centers(self) -> Floats:
        """The clusters' models, (n_clusters, dim)."""
        means = self.weighted / self.weight[:, None]
        if self.precision is None:
            return means
        silent = (self.precision.members == 0)[:, None]
        return np.where(silent, means, self.precision.solve(self.penalty, self.blend))

    @property
    def pooled(self) -> Floats:
        """One model for the users of all clusters, (dim,)."""
        one = np.zeros(len(self.weight), dtype=np.intp)
        precision = self.precision
        return replace(
            self,
            weight=self.weight.sum(keepdims=True),
            weighted=self.weighted.sum(axis=0, keepdims=True),
            precision=None if precision is None else precision.by_cluster(one, 1),
        ).centers[0]

    def without(self, uploads: Uploads, labels: Ints) -> Floats:
        """Each user's cluster without the user, (n_users, dim); its own model where it is alone."""
        weights = np.ones(uploads.n_users) if self.how == "mean" else uploads.n_samples
        share = (weights / self.weight[labels])[:, None]
        alone = share >= 1.0
        rest = self.weighted[labels] / self.weight[labels][:, None] - share * uploads.models
        without = np.where(alone, uploads.models, rest / np.where(alone, 1.0, 1.0 - share))
        if self.precision is None:
            return without
        own = _Sums.of_users(uploads)
        # Somebody else sent its own:
        able = np.flatnonzero(self.precision.members[labels] - own.members > 0)
        for part in np.array_split(able, max(1, len(able) // 4096)):
            rest_of = self.precision.minus(own, labels[part], part)
            without[part] = rest_of.solve(self.penalty, self.blend)
        return without


@dataclass(frozen=True, eq=False)
class _Sums:
    """What ``precision`` needs of a set of users; one row per user or cluster.

    The users' own rows hold H_i itself, not A_i = H_i - n_i P: for a million users that copy
    would be the largest thing in memory. P is taken off the sums.
    """

    members: Floats  # how many sent their curvature
    n: Floats
    H: Floats  # (., dim, dim)
    H_theta: Floats  # (., dim)
    n_theta: Floats  # (., dim)

    @classmethod
    def of_users(cls, uploads: Uploads) -> _Sums:
        H, theta, sent = uploads.curvature, uploads.models, uploads.sent.astype(float)
        assert H is not None
        n = uploads.n_samples * sent
        return cls(sent, n, H, np.matmul(H, theta[..., None])[..., 0], n[:, None] * theta)

    def by_cluster(self, labels: Ints, n_clusters: int) -> _Sums:
        each = (getattr(self, f.name) for f in fields(self))
        return _Sums(*(sum_by_cluster(values, labels, n_clusters) for values in each))

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def minus(self, users: _Sums, clusters: Ints, part: Ints) -> _Sums:
        return _Sums(
            *(getattr(self, f.name)[clusters] - getattr(users, f.name)[part] for f in fields(self))
        )

    def solve(self, pen: Floats, blend: bool) -> Floats:
        """The stationary point, (., dim)."""
        n = np.maximum(self.n, 1e-300)[:, None]
        counted, once = pen * n, pen * n / np.maximum(self.members, 1.0)[:, None]
        right = self.H_theta
        A = self.H - counted[:, :, None] * np.eye(len(pen))
        if blend:
            average = np.matmul(A, (self.n_theta / n)[..., None])[..., 0]
            right = 0.5 * (right + pen * self.n_theta + average)
        return solve_symmetric(A + once[:, :, None] * np.eye(len(pen)), right)


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
