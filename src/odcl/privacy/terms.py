"""What a private upload says of a model: noise is part of the term.

A user sends a curvature A + noise, and b = A (theta - o) + X'noise + N(0, sd^2) relative to its
offset o. Given a curvature that was denoised, A - A-hat has mean zero, so that it costs precision
and no bias. Where curvatures change, made-up rows that vary as a user's noisy sums say stand for
its own: nothing made of them spends anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from odcl._typing import Bools, Floats
from odcl.privacy import Bounds
from odcl.privacy.rows import Classes, exponential
from odcl.risk.loss import Loss, symmetric

DRAWS = 128  # typical rows, and as many with the other sign
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


# -- typical rows ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TypicalRows:
    """Rows of each user, fixed normal draws, and how many of its own each stands for."""

    loss: Loss
    bounds: Bounds
    x: Floats  # (n_users, rows, width)
    each: Floats  # (n_users,)

    @staticmethod
    def of(loss: Loss, bounds: Bounds, gram: Floats, n: Floats) -> TypicalRows:
        """Rows with the second moments ``gram`` (n_users, width, width), which are not singular."""
        m, width = gram.shape[:2]
        lead = int(bounds.intercept)
        total = np.maximum(gram[:, 0, 0], 1.0) if lead else n
        mean = gram[:, lead:, 0] / total[:, None] * lead
        spread = gram[:, lead:, lead:] / total[:, None, None] - mean[:, :, None] * mean[:, None]
        values, vectors = np.linalg.eigh(spread)
        root = vectors * np.sqrt(np.maximum(values, 1e-9))[:, None]
        drawn = np.random.default_rng(0).normal(size=(DRAWS, width - lead))
        drawn = np.vstack([drawn, -drawn])
        second = np.linalg.cholesky(drawn.T @ drawn / len(drawn)) if width > lead else np.eye(0)
        drawn = drawn @ np.linalg.inv(second).T
        x = np.ones((m, len(drawn), width))
        x[..., lead:] = mean[:, None] + drawn @ root.swapaxes(1, 2)
        return TypicalRows(loss, bounds, x, total / len(drawn))

    @cached_property
    def classes(self) -> Classes | None:
        return Classes.of(self.loss)

    def _responses(self, theta: Floats) -> tuple[Floats, Floats]:
        """Expected targets (n_users, rows, D) of models, and their curvatures (..., D, D)."""
        m, rows, width = self.x.shape
        outputs = self.x @ theta.reshape(m, -1, width).swapaxes(1, 2)
        if self.classes is None:
            rate = np.minimum(exponential(outputs), self.bounds.ends[1])
            return rate, rate[..., None]
        p = self.classes.probabilities(outputs.reshape(m * rows, -1))
        apart = self.classes.apart(p)
        curve = (p[..., None] * apart).swapaxes(1, 2) @ apart
        shape = m, rows, outputs.shape[2]
        return (p @ self.classes.basis).reshape(shape), curve.reshape(*shape, shape[2])

    def weights(self, theta: Floats, cap: Floats) -> Floats:
        """What rows counted where a score was taken, (n_users, rows): rates above ``cap`` less."""
        if self.classes is not None:
            return np.ones(self.x.shape[:2])
        rate = self._responses(theta)[0][..., 0]
        return np.minimum(1.0, cap[:, None] / np.maximum(rate, 1e-300))

    def curvature(self, theta: Floats, weights: Floats) -> Floats:
        """Sums of x x' times the curvature at ``theta``, (n_users, dim, dim)."""
        curve = self._responses(theta)[1] * (weights * self.each[:, None])[..., None, None]
        m, _, width = self.x.shape
        D = curve.shape[2]
        found = np.einsum("mrab,mri,mrj->maibj", curve, self.x, self.x, optimize=True)
        return symmetric(np.asarray(found.reshape(m, D * width, D * width), np.float64))

    def change(self, theta: Floats, before: Floats, weights: Floats) -> Floats:
        """Sums of x times how expected targets change from ``before`` to ``theta``."""
        change = self._responses(theta)[0] - self._responses(before)[0]
        change *= (weights * self.each[:, None])[..., None]
        return np.asarray((change.swapaxes(1, 2) @ self.x).reshape(len(theta), -1), np.float64)
