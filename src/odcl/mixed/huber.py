"""Huber's loss: the quadratic model of every user at its weakly penalized mode.

With psi(r) = clip(r, -delta, delta), A = sum z z' psi' and b = A theta + sum z psi at the mode
theta; the noise of such a quadratic is sum psi^2 / sum psi' (the sandwich), so rows beyond delta
count as information about neither. ``search`` and ``posterior`` take it like a data term.
"""

from __future__ import annotations

import numpy as np

from odcl._typing import Floats, Ints
from odcl.mixed.mixture import Quadratics
from odcl.mixed.terms import RANK, by_size

RIDGE = 1e-3  # per row, in canonical coordinates: keeps the mode of few rows finite
STEPS = 200


def huber_quadratics(
    Z: Floats, u: Floats, users: Ints, n_users: int, delta: float, weights: Floats | None = None
) -> Quadratics:
    """Quadratics of design rows ``Z`` and targets ``u`` (canonical), ``delta`` in units of u."""
    w = np.ones(len(u)) if weights is None else weights
    dim = Z.shape[1]
    A, b = np.zeros((n_users, dim, dim)), np.zeros((n_users, dim))
    uu, rows, dof, pure = (np.zeros(n_users) for _ in range(4))
    for who, index in by_size(users, n_users):
        z, target, weight = Z[index], u[index], w[index]
        theta = _mode(z, target, weight, delta)
        r = target - (z @ theta[..., None])[..., 0]
        inside = np.abs(r) <= delta
        psi = np.clip(r, -delta, delta)
        turned = z.transpose(0, 2, 1)
        A[who] = turned @ (z * (weight * inside)[..., None])
        pull = (turned @ (weight * psi)[..., None])[..., 0]
        b[who] = (A[who] @ theta[..., None])[..., 0] + pull
        rows[who] = weight.sum(axis=1)
        share = np.maximum((weight * inside).sum(axis=1), 1e-9) / rows[who]
        pure[who] = (weight * psi**2).sum(axis=1) / share
        uu[who] = pure[who] + (theta * (b[who] + pull)).sum(axis=1)
        values = np.linalg.eigvalsh(A[who])
        rank = (values > RANK * np.maximum(values[:, -1:], 1e-300)).sum(axis=1)
        dof[who] = np.maximum(rows[who] - rank, 0.0)
    return Quadratics(A, b, uu, rows, dof, np.where(dof > 0, pure, 0.0))


def _mode(z: Floats, u: Floats, weight: Floats, delta: float) -> Floats:
    """argmin of sum w rho(u - z'theta) + ridge |theta|^2 / 2, by reweighted least squares."""
    n, _, dim = z.shape
    ridge = RIDGE * weight.sum(axis=1)[:, None, None] * np.eye(dim)
    theta, turned = np.zeros((n, dim)), z.transpose(0, 2, 1)
    for _ in range(STEPS):
        r = u - (z @ theta[..., None])[..., 0]
        trust = weight * np.minimum(1.0, delta / np.maximum(np.abs(r), 1e-300))
        system = turned @ (z * trust[..., None]) + ridge
        new = np.linalg.solve(system, turned @ (trust * u)[..., None])[..., 0]
        done = np.abs(new - theta).max() <= 1e-10
        theta = new
        if done:
            break
    return theta
