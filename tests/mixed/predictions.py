"""Predictions of a posterior in full, component by component, for tests to compare with."""

from __future__ import annotations

import numpy as np
from scipy.special import stdtr, stdtrit

from odcl.mixed.variational import predicted


def coefficients(p):
    """[coefficients, intercept] of every user in the table's units, and standard errors."""
    offset, change = p.mixture.coordinates.raw()
    variance = ((change @ p.covariance()) * change).sum(axis=2)
    return offset + p.mean() @ change.T, np.sqrt(np.maximum(variance, 0.0))


def prediction(at, relative, z):
    """The target in its own units, from what was predicted relative to the pooled fit."""
    return at.target_shift + at.target_scale * (relative + z @ at.reference)


def predict(p, X, users):
    """The predictive mean of each row of ``X``; ``users`` are positions in this batch."""
    at = p.mixture.coordinates
    z = at.design(X)
    return prediction(at, (z * p.mean()[users]).sum(axis=1), z)


def components(p, X, users):
    """Probability, mean and variance of a new target in each component, (rows, J K)."""
    at, C = p.mixture.coordinates, p.mixture.covariances
    z = at.design(X)
    n, K, dim = len(z), *p.mixture.centers.shape
    means, variances = [], []
    for j in range(p.theta.shape[1]):
        inside = (((p.V[users, j] @ z[..., None])[..., 0]) * z).sum(axis=1) + p.s2[users]
        through = (z[:, None] @ p.J[users, j])[:, 0]
        spread = (through @ C.transpose(1, 0, 2).reshape(dim, -1)).reshape(n, K, dim)
        variances.append(inside[:, None] + (spread * through[:, None]).sum(axis=2))
        relative = (p.theta[users, j] @ z[..., None])[..., 0]
        means.append(prediction(at, relative.T, z).T)
    r = p.shares[users].reshape(n, -1)
    return r, np.hstack(means), at.target_scale**2 * np.hstack(variances)


def predict_std(p, X, users):
    """The standard deviation of a new target."""
    r, means, variances = components(p, X, users)
    mean = (r * means).sum(axis=1, keepdims=True)
    return np.sqrt((r * (variances + (means - mean) ** 2)).sum(axis=1))


def interval(p, X, users, coverage=0.9):
    """Central prediction interval: quantiles of the mixture of Student t over components."""
    r, means, variances = components(p, X, users)
    dof = np.minimum(p.dof[users], 1e6)[:, None]
    tail, scales = (1 - coverage) / 2, np.sqrt(variances)
    low = _mixture_quantile(tail, r, means, scales, dof)
    return low, _mixture_quantile(1 - tail, r, means, scales, dof)


def predict_rows(p, Z, users):
    """E of the target over groups and models, for design rows Z of the batch's ``users``."""
    D, dim = p.n_logits, Z.shape[1]
    total = 0.0
    for j, k in np.ndindex(*p.shares.shape[1:]):
        m = (p.mu[users, j, k].reshape(-1, D, dim) @ Z[..., None])[..., 0]
        V = p.V[users, j, k].reshape(-1, D, dim, D, dim)
        part = predicted(p.loss, m, np.einsum("nd,nadce,ne->nac", Z, V, Z))
        r = p.shares[users, j, k]
        total = total + r.reshape(-1, *[1] * (part.ndim - 1)) * part
    return total


def _mixture_quantile(p, r, means, scales, dof):
    """Where sum_k r_k F_t((x - mean_k) / scale_k) = p, by bisection between the components'."""
    each = means + scales * stdtrit(dof, p)
    held = r > 1e-12
    low = np.where(held, each, np.inf).min(axis=1)
    high = np.where(held, each, -np.inf).max(axis=1)
    for _ in range(60):
        middle = (low + high) / 2
        below = (r * stdtr(dof, (middle[:, None] - means) / scales)).sum(axis=1) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2
