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

    def like(self, A: Floats) -> Curvature:
        """Other curvatures ``A`` that are known by as large a share, (n_users, D d, D d)."""
        share = mean_diagonal(A) / mean_diagonal(self.A)
        return Curvature(A, share**2 * self.own, share**2 * self.other)


@dataclass(frozen=True, eq=False)
class PrivateTerms:
    """What users said of their models: -(theta'J theta - 2 h'theta + uu) / 2 each."""

    J: Floats  # (n_users, d, d)
    h: Floats  # (n_users, d)
    uu: Floats  # (n_users,)

    def under(self, precision: Floats, mean: Floats | float = 0.0) -> tuple[Floats, Floats]:
        """Mean and covariance of each model under the prior N(mean, 1 / precision)."""
        V: Floats = np.asarray(np.linalg.inv(self.J + np.diag(precision)), np.float64)
        return (V @ (self.h + precision * mean)[..., None])[..., 0], V

    def turned(self, P: Floats) -> PrivateTerms:
        """The terms of other numbers, of which models are P times as many."""
        return PrivateTerms(symmetric(P.T @ self.J @ P), self.h @ P, self.uu)


@dataclass(frozen=True, eq=False)
class Sent:
    """What users sent, noise and all."""

    A: Floats  # (n_users, d, d)
    b: Floats  # (n_users, d)
    offset: Floats  # (n_users, d)
    sd: Floats  # (n_users,), of the noise in b
    # (n_users,), of the noise in A: on the diagonal; beside it 1 / sqrt(2) of that
    curvature_sd: Floats

    def spread(self, theta: Floats, V: Floats) -> Floats:
        """E (theta - o)(theta - o)' of models with these means and covariances."""
        away = theta - self.offset
        return V + away[:, :, None] * away[:, None]

    def terms(self, curvature: Curvature, noise: Floats, second: Floats) -> PrivateTerms:
        """The terms, given the rows' noise variances (n_users,) and E (theta - o)(theta - o)'.

        b has the covariance Omega = noise A + sd^2 I + cov((A - A-hat)(theta - o)).
        """
        A, d = curvature.A, self.b.shape[1]
        Omega = noise[:, None, None] * A + shaken(curvature, second)
        Omega[:, np.arange(d), np.arange(d)] += self.sd[:, None] ** 2
        seen = self.b + (A @ self.offset[..., None])[..., 0]
        solved = np.linalg.solve(symmetric(Omega), np.concatenate([A, seen[..., None]], axis=2))
        J = symmetric(A @ solved[..., :d])
        return PrivateTerms(J, (A @ solved[..., d:])[..., 0], (seen * solved[..., d]).sum(axis=1))


def shaken(curvature: Curvature, second: Floats) -> Floats:
    """cov((A - A-hat)(theta - o)), given E (theta - o)(theta - o)'; all are (n, d, d)."""
    own, other = curvature.own[:, None], curvature.other[:, None]
    diagonal = np.diagonal(second, axis1=1, axis2=2)
    found = other[..., None] * second
    at = np.arange(second.shape[1])
    found[:, at, at] = other * (diagonal.sum(axis=1, keepdims=True) - diagonal) + own * diagonal
    return np.asarray(found, np.float64)


def denoised(A: Floats, sd: Floats, size: Floats, shape: Floats, *, alone: bool) -> Curvature:
    """Curvatures drawn to ``size`` (n_users,) times a ``shape`` (d, d), by how far they vary.

    Users may have shapes of their own, (n_users, d, d).

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
        each = (beyond / noise**2).sum() / (size / noise**2).sum() * size
        true = beyond if alone else each
        share = np.maximum(true, 0.0) / (np.maximum(true, 0.0) + noise)
        found[:, some] += share[:, None] * away[:, some]
        left.append(share * noise)
    values, vectors = np.linalg.eigh(found)
    values = np.maximum(values, LEAST * mean_diagonal(prior)[:, None])
    return Curvature(symmetric((vectors * values[:, None]) @ vectors.swapaxes(1, 2)), *left)


def denoised_alone(A: Floats, sd: Floats) -> Curvature:
    """Curvatures of users who know of nobody else, drawn to multiples of the identity."""
    d = A.shape[1]
    size = np.maximum(mean_diagonal(A), sd / np.sqrt(d))
    return denoised(A, sd, size, np.eye(d), alone=True)


def mean_diagonal(A: Floats) -> Floats:
    """(n_users,)."""
    return np.asarray(np.trace(A, axis1=1, axis2=2) / A.shape[1])
