"""What the uploads tell about noise: the users' covariances, and how far a group's users differ."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, polygamma

from odcl._typing import Floats, Ints
from odcl.combine import sum_by_cluster
from odcl.exchange.upload import Uploads

# Enough users to pin one number down to a percent; more would only cost time.
_ENOUGH = 20_000


def pooled_dispersion(uploads: Uploads) -> Floats | None:
    """Each user's noise scale, drawn towards the federation's as far as the data say, (n_users,).

    A user's own phi_i rests on n_i - dim degrees of freedom and is noisy. Empirical Bayes
    (inverse-gamma prior, moments of log phi_i) measures how much users really differ in it: not
    at all gives the pooled value to everybody. Users who cannot tell get the prior's scale.
    None where nobody can tell.
    """
    phi = uploads.dispersion
    if phi is None:
        return None
    if not uploads.has_dispersion:
        return np.ones(uploads.n_users)
    known = np.isfinite(phi) & (phi > 0)
    dof = np.where(known, uploads.n_samples - uploads.dim, 0.0)
    if not known.any():
        return None
    pooled = float((dof[known] * phi[known]).sum() / dof[known].sum())
    half = 0.5 * dof[known]
    offset = np.log(phi[known]) - digamma(half) + np.log(half)
    excess = 0.0
    if known.sum() > 2:
        excess = float(np.var(offset, ddof=1) - polygamma(1, half).mean())
    if excess <= 0:
        return np.full(uploads.n_users, pooled)
    prior_dof = 2.0 * _inverse_trigamma(excess)
    scale = float(np.exp(offset.mean() + digamma(prior_dof / 2) - np.log(prior_dof / 2)))
    own = np.where(known, phi, 0.0)
    return (prior_dof * scale + dof * own) / (prior_dof + dof)


def covariances(uploads: Uploads) -> Floats | None:
    """cov(theta_i) = phi_i H_i^-1, (n_users, dim, dim); NaN-free, infinite where not known."""
    phi = pooled_dispersion(uploads)
    if phi is None or not uploads.full or uploads.curvature is None:
        return None
    cov = np.full(uploads.curvature.shape, np.inf)
    known = uploads.founders & uploads.sent
    for part in np.array_split(np.flatnonzero(known), max(1, uploads.n_users // 65_536)):
        cov[part] = np.linalg.inv(uploads.curvature[part]) * phi[part, None, None]
    return cov


def evidence_tau2(uploads: Uploads, labels: Ints, centers: Floats) -> float | None:
    """How far users of a group differ, a coordinate: the tau^2 of largest likelihood under

        theta_i ~ N(c_(i), C_i + tau^2 I)

    with the residuals corrected for the fitted centre, g / (g - 1) in a group of g. None where
    the uploads do not carry the users' covariances.
    """
    phi = pooled_dispersion(uploads)
    if phi is None or not uploads.full or uploads.curvature is None:
        return None
    size = sum_by_cluster(np.ones(len(labels)), labels)[labels]
    use = np.flatnonzero(uploads.founders & uploads.sent & (size > 1))
    if len(use) == 0:
        return None
    use = use[:: -(-len(use) // _ENOUGH)]
    values, vectors = np.linalg.eigh(uploads.curvature[use])
    s = phi[use, None] / np.maximum(values, 1e-12 * values[:, -1:])
    gap = (uploads.theta[use] - centers[labels[use]])[:, None, :]
    q = np.matmul(gap, vectors)[:, 0] ** 2 * (size[use] / (size[use] - 1.0))[:, None]
    return _most_likely(s, q)


def _most_likely(s: Floats, q: Floats) -> float:
    """The t >= 0 that minimises sum log(s + t) + q / (s + t); 0 unless t > 0 is worth a parameter.

    Minus twice the log-likelihood has to fall by log(n_users), the price of one parameter in the
    BIC: noise in the covariances alone pushes t up a little, which costs more than it gives.
    """

    def misfit(t: float) -> float:
        return float((np.log(s + t) + q / (s + t)).sum())

    top = float(q.mean()) * 4.0 + 1e-300
    grid = np.geomspace(1e-6 * top, top, 60)
    for _ in range(3):  # each round narrows the bracket sevenfold or more
        cost = [misfit(t) for t in grid]
        best = int(np.argmin(cost))
        grid = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 15)
    best_t = float(grid[len(grid) // 2])
    return best_t if misfit(best_t) + np.log(len(s)) < misfit(0.0) else 0.0


def _inverse_trigamma(y: float) -> float:
    """x with trigamma(x) = y, by Newton on 1 / trigamma, which is nearly linear."""
    x = 0.5 + 1.0 / y
    for _ in range(50):
        value = float(polygamma(1, x))
        step = value * (1.0 - value / y) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x
