"""What each user's rows say alone, read off its data term: its model, and how noisy that is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import digamma, polygamma

from odcl._typing import Array, Bools, Floats
from odcl.exchange.upload import Uploads
from odcl.risk.losses import Huber
from odcl.risk.risk import GAUSSIAN_WIDTHS, Risk

if TYPE_CHECKING:
    from odcl.mixed.posterior import Mixture

_CHUNK = 1024  # users whose curvature is turned around at one time
HELD = 1e5  # times as much as its rows would say: the weight of a coefficient that all share
SINGULAR = 1e-10  # least eigenvalue, at unit diagonal, of rows that leave a direction unseen


@dataclass(frozen=True, eq=False)
class OwnModels:
    """The users' own models, with curvature and noise: cov(theta_i) = phi_i H_i^-1."""

    terms: Uploads  # what the users sent
    theta: Floats  # (n_users, dim)
    curvature: Floats  # (n_users, dim, dim), n_i times the Hessian of the penalised risk at theta
    dispersion: Floats  # (n_users,), phi_i; infinite where a user cannot tell: too few rows

    @property
    def users(self) -> Array:
        return self.terms.users

    @property
    def n_users(self) -> int:
        return len(self.theta)

    @property
    def dim(self) -> int:
        return int(self.theta.shape[1])

    @property
    def n_samples(self) -> Floats:
        return self.terms.n_samples

    @property
    def penalty(self) -> Floats:
        """Diagonal of the penalty's Hessian, (dim,)."""
        return self.terms.penalty

    @property
    def risk(self) -> Risk:
        assert self.terms.risk is not None
        return self.terms.risk

    @cached_property
    def told(self) -> Bools:
        """Users whose rows say anything, (n_users,)."""
        return np.any(np.diagonal(self.curvature, axis1=1, axis2=2) != 0, axis=1)

    @property
    def knows_noise(self) -> Bools:
        """Users who can tell their noise, (n_users,)."""
        return np.isfinite(self.dispersion)


def has_own_models(uploads: Uploads) -> bool:
    """Do the data terms hold the users' own models?"""
    return uploads.factor is not None or uploads.gaussian_curvature is not None


def own_models(uploads: Uploads, mixture: Mixture | None = None) -> OwnModels:
    """Models, curvature and dispersion of users who sent data terms.

    Squared loss: with the users' means and factors of [X y] the curvature is X'X + n P, and the
    model and what the target scatters around it are known exactly. Other losses: as the
    Gaussian term has them.
    Coefficients that all users of a ``mixture`` share are no user's to find: they are held at what
    they are there.
    """
    risk = uploads.risk
    assert risk is not None
    n, dim = uploads.n_samples, uploads.dim
    phi = np.ones(len(n))
    if uploads.factor is not None:
        root, target = squared_term(uploads)
        H, b = root.transpose(0, 2, 1) @ root, root.transpose(0, 2, 1) @ target[..., None]
    else:
        from odcl.mixed.layout import gaussian_map

        assert uploads.gaussian_curvature is not None
        assert uploads.gaussian_slope is not None
        features = dim // risk.n_outputs - risk.intercept
        back = np.linalg.inv(
            gaussian_map(features, risk.intercept, getattr(risk.loss, "basis", None))
        )
        middle = len(GAUSSIAN_WIDTHS) // 2
        H = back.T @ uploads.gaussian_curvature[:, middle] @ back
        b = back.T @ uploads.gaussian_slope[:, middle, :, None]
    held, at = shared_coefficients(mixture, risk)
    free = dim - int(held.sum()) if len(held) else dim
    if free < dim:
        weight = HELD * (np.diagonal(H, axis1=1, axis2=2) + n[:, None]) * held
        H = H + weight[:, :, None] * np.eye(dim)
        b = b + (weight * at)[..., None]
    scale = 1 / np.sqrt(np.maximum(np.diagonal(H, axis1=1, axis2=2), 1e-300))
    least = np.linalg.eigvalsh(H * scale[:, :, None] * scale[:, None])[:, 0]
    H = H + n[:, None, None] * np.diag(uploads.penalty)
    theta = solve_symmetric(H, b[..., 0])
    if uploads.factor is not None:
        rest = target - (root @ theta[..., None])[..., 0]
        phi = (rest**2).sum(axis=1) / np.maximum(n - free, 1.0)
    if isinstance(risk.loss, Huber):  # few rows with outliers among them: their noise is not known
        phi[phi > (2 * risk.loss.delta) ** 2] = np.inf
    phi[(n <= free) | (least < SINGULAR)] = np.inf
    return OwnModels(uploads, theta, H, phi)


def shared_coefficients(mixture: Mixture | None, risk: Risk) -> tuple[Bools, Floats]:
    """Which numbers of a model all users share, and what they are; empty: none of them."""
    from odcl.mixed.layout import model_map

    if mixture is None or mixture.spread.fixed is None:
        return np.zeros(0, np.bool_), np.zeros(0)
    at, fixed = mixture.coordinates, mixture.spread.fixed
    columns = at.kept[fixed[1 : 1 + len(at.kept)]]  # there is an intercept
    shared = np.isin(np.arange(at.n_features), columns)
    for f, factor in enumerate(risk.factors):
        shared[list(factor.columns)] |= at.n_features + f in columns
    offset, change = model_map(mixture, risk)
    held = np.repeat(np.append(shared, False), risk.n_outputs)
    return held, offset + change @ mixture.centers[0]


def squared_term(uploads: Uploads) -> tuple[Floats, Floats]:
    """A few rows (root, target) that say of a model what the user's rows do, for squared loss."""
    assert uploads.risk is not None
    assert uploads.means is not None
    assert uploads.factor is not None
    R, n = uploads.factor, np.sqrt(uploads.seen)[:, None]
    root = np.concatenate([(n * uploads.means)[:, None, :-1], R[:, :, :-1]], axis=1)
    target = np.concatenate([n * uploads.means[:, -1:], R[:, :, -1]], axis=1)
    if uploads.risk.intercept:
        ones = np.zeros((*root.shape[:2], 1))
        ones[:, 0] = n
        root = np.concatenate([root, ones], axis=2)
    return root, target


def pooled_dispersion(users: OwnModels) -> Floats | None:
    """Each user's noise scale, drawn towards the federation's as far as the data say, (n_users,).

    A user's own phi_i rests on n_i - dim degrees of freedom and is noisy. Empirical Bayes
    (inverse-gamma prior, moments of log phi_i) measures how much users really differ in it: not
    at all gives the pooled value to everybody. Users who cannot tell get the prior's scale.
    None where nobody can tell.
    """
    return pooled_scales(users.dispersion, users.n_samples, users.dim, users.risk)


def pooled_scales(phi: Floats, n: Floats, dim: int, risk: Risk) -> Floats | None:
    """The same from noise scales and numbers of rows, (n_users,) each."""
    if not risk.loss.has_dispersion:
        return np.ones(len(phi))
    known = np.isfinite(phi) & (phi > 0)
    if not known.any():
        return None
    dof = np.where(known, np.maximum(n - dim, 1.0), 0.0)
    scale, prior_dof = noise_prior(phi[known], dof[known])
    if np.isinf(prior_dof):
        return np.full(len(phi), scale)
    return (prior_dof * scale + dof * np.where(known, phi, 0.0)) / (prior_dof + dof)


def noise_prior(phi: Floats, dof: Floats) -> tuple[float, float]:
    """A typical noise scale, and the degrees of freedom that it is worth beside a user's own.

    Inverse-gamma prior by moments of log phi_i; where users do not differ in it, the pooled scale
    and infinity.
    """
    sizes, which = np.unique(dof, return_inverse=True)  # few: special functions are slow
    half = 0.5 * sizes
    offset = np.log(phi) + (np.log(half) - digamma(half))[which.reshape(-1)]
    excess = 0.0
    if len(phi) > 2:
        expected = float(np.bincount(which.reshape(-1)) @ polygamma(1, half)) / len(offset)
        excess = float(np.var(offset, ddof=1)) - expected
    if excess <= 0:
        return float((dof * phi).sum() / dof.sum()), np.inf
    prior_dof = 2.0 * _inverse_trigamma(excess)
    scale = float(np.exp(offset.mean() + digamma(prior_dof / 2) - np.log(prior_dof / 2)))
    return scale, prior_dof


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


def covariances(users: OwnModels, phi: Floats | None) -> Floats | None:
    """cov(theta_i) = phi_i H_i^-1, (n_users, dim, dim); NaN-free, infinite where not known.

    ``phi`` is the :func:`pooled_dispersion`.
    """
    if phi is None:
        return None
    H, known = users.curvature, users.knows_noise & users.told
    cov = np.empty(H.shape)
    for start in range(0, len(H), _CHUNK):  # in pieces that a core's cache holds
        part = slice(start, start + _CHUNK)
        able = known[part]
        if able.all():
            np.multiply(np.linalg.inv(H[part]), phi[part, None, None], out=cov[part])
        else:
            cov[part] = np.inf
            cov[part][able] = np.linalg.inv(H[part][able]) * phi[part][able, None, None]
    return cov


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
