"""Linear predictors of rows, each by the model of its own user."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.data.federation import Federation, group_rows
from odcl.data.scaling import Scaling
from odcl.mixed.house import reference_logits
from odcl.mixed.sites import predicted
from odcl.risk.loss import Loss
from odcl.risk.risk import Risk

# Rows and their models in one chunk stay in a core's cache: three times as fast at 100 features
# as all at once, and a million rows need no copy of a million models.
_CHUNK_BYTES = 1 << 20


def linear_predictors(
    X: Floats,
    theta: Floats,
    where: Ints,
    risk: Risk,
    scaling: Scaling | None = None,
) -> Floats:
    """z_j = x_j theta[where_j], (n_rows, n_outputs); with ``scaling``, X is in the table's units.

    One product per row: a row's number is the same alone and among others.
    """
    z = np.empty((len(X), risk.n_outputs))
    step = max(1, _CHUNK_BYTES // (8 * max(theta.shape[1], X.shape[1])))
    for start in range(0, len(X), step):
        part = slice(start, start + step)
        x = np.ascontiguousarray(X[part])  # the same bits for a frame, which lies by columns
        if scaling is not None:
            x = scaling.apply(x)
        x = risk.design(x)
        model = theta[where[part]].reshape(len(x), x.shape[1], risk.n_outputs)
        z[part] = np.matmul(x[:, None, :], model)[:, 0]
    return z


def predictor_covariances(
    X: Floats,
    covariance: Floats,
    where: Ints,
    risk: Risk,
    scaling: Scaling | None = None,
) -> Floats:
    """Covariance of each row's predictor, (n_rows, n_outputs, n_outputs), by its user's model's."""
    q, dim = risk.n_outputs, covariance.shape[1]
    S = np.empty((len(X), q, q))
    step = max(1, _CHUNK_BYTES // (8 * dim * dim))
    for start in range(0, len(X), step):
        part = slice(start, start + step)
        x = np.ascontiguousarray(X[part])
        x = risk.design(x if scaling is None else scaling.apply(x))
        V = covariance[where[part]].reshape(len(x), -1, q, len(x[0]) * q)
        half = np.matmul(x[:, None, :], V.reshape(len(x), x.shape[1], -1))
        half = half.reshape(len(x), q, x.shape[1], q)
        S[part] = np.einsum("nj,nqjr->nqr", x, half)
    return S


def predicted_means(z: Floats, S: Floats | None, loss: Loss) -> Floats:
    """Expected target, or class probabilities, at predictors N(z, S); None: known exactly."""
    if S is None or loss.name in ("squared", "huber"):
        return loss.mean(z)
    basis = getattr(loss, "basis", None)
    m, V = reference_logits(z, S, basis)
    mean = predicted(loss.name, m[:, None], V[:, None])  # row by row, as the predictors
    return mean[:, 0] if basis is not None else mean


def predicted_targets(
    X: Floats,
    theta: Floats,
    where: Ints,
    risk: Risk,
    scaling: Scaling | None = None,
    covariance: Floats | None = None,
) -> Array:
    """What each row's model expects of it, (n_rows,): a number, or the position of a class."""
    z = linear_predictors(X, theta, where, risk, scaling)
    S = None
    if covariance is not None:
        S = predictor_covariances(X, covariance, where, risk, scaling)
    mean = predicted_means(z, S, risk.loss)
    if not risk.loss.classification:
        return mean[:, 0]
    return mean.argmax(axis=1) if mean.shape[1] > 1 else (z[:, 0] > 0).astype(np.intp)


def cluster_means(federation: Federation, labels: Ints, n_clusters: int) -> Floats:
    """Mean feature vector of each cluster's rows, (n_clusters, n_features)."""
    X, rows = federation.X, np.ones(len(federation.X))
    if federation.weight is not None:
        X, rows = X * federation.weight[:, None], federation.weight
    sums = np.add.reduceat(X, federation.offsets[:-1], axis=0)
    total = np.bincount(labels[federation.row_user], weights=rows, minlength=n_clusters)
    return sum_by_cluster(sums, labels) / total[:, None]


def nearest_cluster(X: Floats, ids: Array, means: Floats) -> Ints:
    """For each row the cluster whose mean features are nearest to those of the row's user."""
    users, codes = group_rows(ids)
    mean = sum_by_cluster(X, codes) / np.bincount(codes, minlength=len(users))[:, None]
    return cdist(mean, means).argmin(axis=1)[codes]
