"""What a private upload says of a model: noise is part of the term.

A user sends a curvature A + noise, and b = A (theta - o) + X'noise + N(0, sd^2) relative to its
offset o. Given a curvature that was denoised, A - A-hat has mean zero, so that it costs precision
and no bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.risk.loss import symmetric

LEAST = 1e-3  # eigenvalues of a curvature, as a share of its size


@dataclass(frozen=True, eq=False)
class Curvature:
    """Denoised curvatures, and what is left to be known of their entries."""

    A: Floats  # (n_users, d, d)
    own: Floats  # (n_users,), variance of an entry of the diagonal
    other: Floats  # (n_users,), and of another


@dataclass(frozen=True, eq=False)
class PrivateTerms:
    """What users said of their models: -(theta'J theta - 2 h'theta + uu) / 2 each."""

    J: Floats  # (n_users, d, d)
    h: Floats  # (n_users, d)
    uu: Floats  # (n_users,)

    def under(self, precision: Floats) -> tuple[Floats, Floats]:
        """Mean and covariance of each model under the prior N(0, 1 / precision)."""
        V: Floats = np.asarray(np.linalg.inv(self.J + np.diag(precision)), np.float64)
        return (V @ self.h[..., None])[..., 0], V


@dataclass(frozen=True, eq=False)
class Sent:
    """What users sent, noise and all."""

    A: Floats  # (n_users, d, d)
    b: Floats  # (n_users, d)
    offset: Floats  # (n_users, d)
    sd: Floats  # (n_users,), of the noise in b
    curvature_sd: float  # of the noise in A: on the diagonal; beside it 1 / sqrt(2) of that

    def spread(self, theta: Floats, V: Floats) -> Floats:
        """E (theta - o)(theta - o)' of models with these means and covariances."""
        away = theta - self.offset
        return V + away[:, :, None] * away[:, None]

    def terms(self, curvature: Curvature, noise: Floats, second: Floats) -> PrivateTerms:
        """The terms, given the rows' noise variances (n_users,) and E (theta - o)(theta - o)'.

        b has the covariance Omega = noise A + sd^2 I + cov((A - A-hat)(theta - o)).
        """
        A, d = curvature.A, self.b.shape[1]
        own, other = curvature.own[:, None], curvature.other[:, None]
        diagonal = np.diagonal(second, axis1=1, axis2=2)
        total = diagonal.sum(axis=1, keepdims=True)
        Omega = noise[:, None, None] * A + other[..., None] * second
        at = np.arange(d)
        Omega[:, at, at] = (
            noise[:, None] * A[:, at, at]
            + self.sd[:, None] ** 2
            + other * (total - diagonal)
            + own * diagonal
        )
        seen = self.b + (A @ self.offset[..., None])[..., 0]
        solved = np.linalg.solve(symmetric(Omega), np.concatenate([A, seen[..., None]], axis=2))
        J = symmetric(A @ solved[..., :d])
        return PrivateTerms(J, (A @ solved[..., d:])[..., 0], (seen * solved[..., d]).sum(axis=1))


def denoised(A: Floats, sd: float, size: Floats, shape: Floats, *, alone: bool) -> Curvature:
    """Curvatures drawn to ``size`` (n_users,) times one ``shape`` (d, d), by how far they vary.

    Entries vary around it in proportion to the size: by how much, moments tell, for all users
    together or for each ``alone``; the diagonal and the other entries apart, as their noise is.
    """
    eye: Bools = np.eye(A.shape[1], dtype=np.bool_)
    prior = size[:, None, None] * shape
    away, found, left = A - prior, prior.copy(), []
    for some, noise in ((eye, sd**2), (~eye, sd**2 / 2)):
        if not some.any():
            left.append(np.zeros(len(A)))
            continue
        beyond = (away[:, some] ** 2).mean(axis=1) - noise
        true = beyond if alone else beyond.sum() / size.sum() * size
        share = np.maximum(true, 0.0) / (np.maximum(true, 0.0) + noise)
        found[:, some] += share[:, None] * away[:, some]
        left.append(share * noise)
    values, vectors = np.linalg.eigh(found)
    values = np.maximum(values, LEAST * size[:, None] * np.trace(shape) / len(shape))
    return Curvature(symmetric((vectors * values[:, None]) @ vectors.swapaxes(1, 2)), *left)
