"""The user's last step: from the download and its own data term to its model.

Everything is a function of (own term, download), so a new user takes the same step; a user
without rows gets the mixture's mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr, stdtrit

from odcl._typing import Floats, Ints
from odcl.mixed.em import Fit
from odcl.mixed.mixture import Centers, Quadratics, Spread, misfits, moments, responsibilities
from odcl.mixed.noise import CAUTION, FLOOR, Noise
from odcl.mixed.terms import Coordinates

FIXED_POINT = 200  # steps at most for a user's own noise variance


@dataclass(frozen=True, eq=False)
class Download:
    """What every user receives: the mixture, in the coordinates it was fitted in."""

    coordinates: Coordinates
    weights: Floats  # (K,)
    centers: Floats  # (K, dim), relative to the coordinates' reference
    covariances: Floats  # (K, dim, dim), of the centers
    spread: Spread
    noise: Noise


def download_of(fit: Fit, coordinates: Coordinates) -> Download:
    return Download(
        coordinates, fit.weights, fit.centers, fit.covariances, fit.spread, fit.noise
    )


@dataclass(frozen=True, eq=False)
class Posterior:
    """The models of a batch of users given their rows: mixtures over the groups k of Gaussians.

    Given group k, theta_i ~ N(c_k + T z_ik, V_i + J_i C_k J_i') with z_ik = w - W c_k,
    V = T - T W T and J = I - T W: the last part is what the center is not known to.
    """

    download: Download
    responsibilities: Floats  # (n_users, K)
    theta: Floats  # (n_users, K, dim)
    V: Floats  # (n_users, dim, dim)
    J: Floats  # (n_users, dim, dim)
    s2: Floats  # (n_users,)
    dof: Floats  # (n_users,), degrees of freedom behind s2

    def mean(self) -> Floats:
        """The posterior mean of every user's model, (n_users, dim)."""
        return (self.responsibilities[..., None] * self.theta).sum(axis=1)

    def covariance(self) -> Floats:
        """Its covariance, over groups, users' differences and centers, (n_users, dim, dim)."""
        r, away = self.responsibilities, self.theta - self.mean()[:, None]
        K, dim = away.shape[1:]
        C = (r @ self.download.covariances.reshape(K, -1)).reshape(-1, dim, dim)
        between = (r[..., None] * away).transpose(0, 2, 1) @ away
        return self.V + self.J @ C @ self.J.transpose(0, 2, 1) + between

    def coefficients(self) -> tuple[Floats, Floats]:
        """[coefficients, intercept] of every user in the table's units, and standard errors."""
        offset, change = self.download.coordinates.raw()
        variance = ((change @ self.covariance()) * change).sum(axis=2)
        return offset + self.mean() @ change.T, np.sqrt(np.maximum(variance, 0.0))

    def predict(self, X: Floats, users: Ints) -> Floats:
        """The predictive mean of each row of ``X``; ``users`` are positions in this batch."""
        at = self.download.coordinates
        z = at.design(X)
        return at.prediction((z * self.mean()[users]).sum(axis=1), z)

    def components(self, X: Floats, users: Ints) -> tuple[Floats, Floats]:
        """Means and variances of a new target in each group, (rows, K), in the table's units."""
        at = self.download.coordinates
        z = at.design(X)
        means = (self.theta[users] @ z[..., None])[..., 0] + (z @ at.reference)[:, None]
        inside = ((self.V[users] @ z[..., None])[..., 0] * z).sum(axis=1)
        through = (z[:, None] @ self.J[users])[:, 0]
        K, dim = self.download.centers.shape
        centers = (through @ self.download.covariances.transpose(1, 0, 2).reshape(dim, -1)).reshape(
            -1, K, dim
        )
        variance = (self.s2[users] + inside)[:, None] + (centers * through[:, None]).sum(axis=2)
        return at.target_shift + at.target_scale * means, at.target_scale**2 * variance

    def predict_std(self, X: Floats, users: Ints) -> Floats:
        """The standard deviation of a new target."""
        means, variances = self.components(X, users)
        r = self.responsibilities[users]
        mean = (r * means).sum(axis=1, keepdims=True)
        return np.sqrt((r * (variances + (means - mean) ** 2)).sum(axis=1))

    def interval(self, X: Floats, users: Ints, coverage: float = 0.9) -> tuple[Floats, Floats]:
        """Central prediction interval: quantiles of the mixture of Student t over the groups."""
        means, variances = self.components(X, users)
        r, dof = self.responsibilities[users], np.minimum(self.dof[users], 1e6)[:, None]
        tail = (1 - coverage) / 2
        return tuple(  # type: ignore[return-value]
            _mixture_quantile(p, r, means, np.sqrt(variances), dof) for p in (tail, 1 - tail)
        )


def _mixture_quantile(p: float, r: Floats, means: Floats, scales: Floats, dof: Floats) -> Floats:
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


def posterior(q: Quadratics, download: Download) -> Posterior:
    """The last step of every user of ``q``, whose quadratics are in the download's coordinates.

    A user with a noise variance of its own finds it here, from its rows and the federation's
    prior: s2 = (nu s0 + rss) / (nu + n - p), a fixed point, p the parameters its rows are spent on.
    """
    noise, T = download.noise, download.spread
    c = download.centers
    stack = Centers(c[None], download.covariances[None], c[:1], np.zeros(1), np.zeros(1))
    bare = replace(stack, C=np.zeros_like(stack.C))
    s2 = np.full(len(q), noise.s0)
    if not noise.common:
        s2 = (noise.nu * noise.s0 + q.pure) / (noise.nu + q.dof)
    for _ in range(FIXED_POINT):
        m = moments(q, T, s2)
        r = responsibilities(misfits(m, stack), download.weights)[0][0]
        z = m.w[:, None] - (m.W @ c.T).transpose(0, 2, 1)
        if noise.common or not q.noisy:
            break
        Q = misfits(m, bare)[0] - (m.base - m.e)[:, None]
        rss = s2 * (r * (Q - ((z @ T.matrix) * z).sum(axis=2))).sum(axis=1)
        C = (r @ download.covariances.reshape(len(c), -1)).reshape(m.W.shape)
        spent = (m.W * (T.matrix + C)).sum(axis=(1, 2))
        spent -= ((m.W @ C @ m.W) * T.matrix).sum(axis=(1, 2))
        new = np.maximum((noise.nu * noise.s0 + rss) / (noise.nu + q.rows - spent), FLOOR)
        done = np.all(np.abs(new - s2) <= 1e-12 * s2)
        s2 = new
        if done:
            break
    TW = T.matrix @ m.W
    V = T.matrix - TW @ T.matrix
    dof = np.full(len(q), noise.dof) if noise.common else noise.nu / CAUTION + q.dof
    theta = c + z @ T.matrix
    return Posterior(download, r, theta, (V + V.transpose(0, 2, 1)) / 2, np.eye(q.dim) - TW, s2, dof)
