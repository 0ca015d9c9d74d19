"""Huber's loss on data terms: rows whose residuals are cut off, and a last step that cuts anew.

At a user's own Huber fit the pseudo-targets y* = z'theta + psi(r) / l, psi(r) = clip(r, -delta,
delta) and l the mean of psi', have that fit for least squares, and residuals whose variance is
that of Huber's estimator (Huber, Robust Statistics, 1981, chapter 7). So the user sends the data
term of its pseudo-targets, and the server takes it like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.mixed.gaussian import GaussianPosterior, over_components
from odcl.mixed.posterior import Posterior
from odcl.mixed.variational import Gaussians

STEPS = 500
FEW = 4  # rows per parameter below which outliers cannot be told from the model


@dataclass(frozen=True, eq=False)
class PseudoTargets:
    """The targets of all rows as least squares takes them."""

    y: Floats  # (n_rows,)
    share: Floats  # (n_users,), the mean of psi', counted with one row more
    few: Bools  # (n_users,), too few rows: the user keeps its targets


def pseudo_targets(
    fitted: Floats,
    y: Floats,
    users: Ints,
    n_users: int,
    delta: float,
    dim: int,
    weights: Floats | None,
) -> PseudoTargets:
    """Pseudo-targets at the users' own fits.

    With fewer than four rows per parameter a fit follows an outlier, and other rows look wrong:
    such users keep their targets, and the noise that an outlier leaves in them makes them count
    for little.
    """
    w = np.ones(len(y)) if weights is None else weights
    rows = np.bincount(users, w, minlength=n_users)
    inside = np.bincount(users, w * (np.abs(y - fitted) <= delta), minlength=n_users)
    few = rows < FEW * dim
    share = np.where(few, 1.0, (inside + 1) / (rows + 1))
    cut = fitted + np.clip(y - fitted, -delta, delta) / share[users]
    return PseudoTargets(np.where(few[users], y, cut), share, few)


def huber_posterior(
    Z: Floats,
    u: Floats,
    users: Ints,
    rough: Posterior,
    delta: float,
    share: Floats,
    weights: Floats | None = None,
) -> GaussianPosterior:
    """Each user's own rows under every N(c_k, T), with Huber's loss: Laplace at each mode.

    ``rough`` is the posterior by pseudo-targets: its noise s2 is that of Huber's estimator, so a
    row says -rho(r) / (s2 l), whose curvature is l / (s2 l) on the average. A short user meets its
    rows exactly before it knows of the others; only here its outliers are seen as such.
    """
    w, s2 = np.ones(len(u)) if weights is None else weights, rough.s2

    def own(who: Ints, index: Ints, center: Floats, root: Floats) -> Gaussians:
        z, weight = Z[index], w[index]
        away = u[index] - (z @ center[:, None])[..., 0]
        at, cost = _mode(z @ root, away, weight, (s2 * share)[who], delta)
        A = z.transpose(0, 2, 1) @ (z * weight[..., None]) / s2[who][:, None, None]
        grown = np.eye(root.shape[1]) + root.T @ A @ root
        mu = center + (root @ at[..., None])[..., 0]
        V = root @ np.linalg.inv(grown) @ root.T
        evidence = -cost - 0.5 * np.linalg.slogdet(grown)[1]
        return Gaussians(mu, V, A, (A @ mu[..., None])[..., 0], evidence)

    return over_components("huber", 1, users, len(share), rough.mixture, own)


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
        size = np.abs(a).max(axis=1, initial=0.0)
        going &= np.abs(step).max(axis=1, initial=0.0) > 1e-11 * (1 + size)
        if not going.any():
            break
        a = np.where(going[:, None], a + step, a)
    left = np.abs(r - (Zr @ a[..., None])[..., 0])
    rho = np.where(left <= delta, 0.5 * left**2, delta * (left - 0.5 * delta))
    return a, (share * rho).sum(axis=1) + 0.5 * (a**2).sum(axis=1)
