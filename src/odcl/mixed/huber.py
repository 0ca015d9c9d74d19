"""Huber's loss on data terms: rows whose residuals are cut off, and a last step that cuts anew.

At a user's own Huber fit the pseudo-targets y* = z'theta + psi(r) / l, psi(r) = clip(r, -delta,
delta) and l the mean of psi', have that fit for least squares, and residuals whose variance is
that of Huber's estimator (Huber, Robust Statistics, 1981, chapter 7). So the user sends the data
term of its pseudo-targets, and the server takes it like any other.
"""

from __future__ import annotations

import numpy as np

from odcl._typing import Floats, Ints
from odcl.mixed.posterior import Download, Posterior
from odcl.mixed.sites import SitePosterior, spread_root
from odcl.mixed.terms import by_size

STEPS = 500
FEW = 4  # rows per parameter below which outliers cannot be told from the model


def pseudo_targets(
    fitted: Floats,
    y: Floats,
    users: Ints,
    n_users: int,
    delta: float,
    dim: int,
    weights: Floats | None,
) -> tuple[Floats, Floats]:
    """Pseudo-targets of all rows, and every user's mean of psi', counted with one row more.

    With fewer than four rows per parameter a fit follows an outlier, and other rows look wrong:
    such users keep their targets, and the noise that an outlier leaves in them makes them count
    for little.
    """
    w = np.ones(len(y)) if weights is None else weights
    rows = np.bincount(users, w, minlength=n_users)
    inside = np.bincount(users, w * (np.abs(y - fitted) <= delta), minlength=n_users)
    share = (inside + 1) / (rows + 1)
    cut = fitted + np.clip(y - fitted, -delta, delta) / share[users]
    few = rows < FEW * dim
    return np.where(few[users], y, cut), np.where(few, 1.0, share)


def without_outliers(rough: Posterior, share: Floats) -> Floats:
    """Every user's noise. That of few rows is full of outliers: it is at most that of most users.

    Their psi' was not taken: ``share`` is 1.
    """
    return np.where(share < 1, rough.s2, np.minimum(rough.s2, rough.download.noise.s0))


def huber_posterior(
    Z: Floats,
    u: Floats,
    users: Ints,
    rough: Posterior,
    delta: float,
    share: Floats,
    weights: Floats | None = None,
) -> SitePosterior:
    """Each user's own rows under every N(c_k, T), with Huber's loss: Laplace at each mode.

    ``rough`` is the posterior by pseudo-targets: its noise s2 is that of Huber's estimator, so a
    row says -rho(r) / (s2 l), whose curvature is l / (s2 l) on the average. A short user meets its
    rows exactly before it knows of the others; only here its outliers are seen as such.
    """
    download: Download = rough.download
    s2 = rough.s2
    w = np.ones(len(u)) if weights is None else weights
    (K, dim), n_users = download.centers.shape, len(share)
    J = len(download.scales)
    mu, V = np.zeros((n_users, J, K, dim)), np.zeros((n_users, J, K, dim, dim))
    spreads = [scale * download.spread.matrix for scale in download.scales]
    V += np.stack(spreads)[:, None] + download.covariances
    mu += download.centers
    with np.errstate(divide="ignore"):
        logits = np.tile(np.log(np.outer(download.shares, download.weights)), (n_users, 1, 1))
    for who, index in by_size(users, n_users):
        z, weight = Z[index], w[index]
        gram = z.transpose(0, 2, 1) @ (z * weight[..., None])
        phi = (s2 * share)[who]
        for j, k in np.ndindex(J, K):
            root, r = spread_root(spreads[j]), u[index] - (z @ download.centers[k][:, None])[..., 0]
            at, cost = _mode(z @ root, r, weight, phi, delta)
            A = gram / s2[who][:, None, None]
            grown = np.eye(root.shape[1]) + root.T @ A @ root
            inverse = np.linalg.inv(grown)
            through = np.linalg.inv(np.eye(dim) + spreads[j] @ A)
            mu[who, j, k] += (root @ at[..., None])[..., 0]
            unsure = through @ download.covariances[k] @ through.transpose(0, 2, 1)
            V[who, j, k] = root @ inverse @ root.T + unsure
            logits[who, j, k] -= cost + 0.5 * np.linalg.slogdet(grown)[1]
    odds = np.exp(logits - logits.max(axis=(1, 2), keepdims=True))
    return SitePosterior("huber", 1, odds / odds.sum(axis=(1, 2), keepdims=True), mu, V)


def _mode(
    Zr: Floats, r: Floats, weight: Floats, phi: Floats, delta: float
) -> tuple[Floats, Floats]:
    """argmin over a of sum w rho(r - Zr a) / phi + |a|^2 / 2, and its value, per user.

    Steps solve with psi' = 1 everywhere, which majorizes rho: the value never rises. A user who
    has arrived stays put, so that it does not matter who else is in the batch.
    """
    n, _, rank = Zr.shape
    turned = Zr.transpose(0, 2, 1)
    share = weight / phi[:, None]
    inverse = np.linalg.inv(np.eye(rank) + turned @ (Zr * share[..., None]))
    a, going = np.zeros((n, rank)), np.ones(n, np.bool_)
    for _ in range(STEPS):
        left = r - (Zr @ a[..., None])[..., 0]
        pull = (turned @ (share * np.clip(left, -delta, delta))[..., None])[..., 0] - a
        step = (inverse @ pull[..., None])[..., 0]
        going &= np.abs(step).max(axis=1, initial=0.0) > 1e-11 * (
            1 + np.abs(a).max(axis=1, initial=0.0)
        )
        if not going.any():
            break
        a = np.where(going[:, None], a + step, a)
    left = np.abs(r - (Zr @ a[..., None])[..., 0])
    rho = np.where(left <= delta, 0.5 * left**2, delta * (left - 0.5 * delta))
    return a, (share * rho).sum(axis=1) + 0.5 * (a**2).sum(axis=1)
