"""Made-up rows that vary as a user's noisy sums say: where curvatures change, and by how much.

They are fixed normal draws with the second moments that left with noise, so that nothing made of
them spends anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from odcl._typing import Floats
from odcl.privacy.guarantee import Bounds
from odcl.privacy.rows import Classes, exponential
from odcl.risk.loss import Loss, symmetric

DRAWS = 128  # and as many with the other sign


@dataclass(frozen=True, eq=False)
class TypicalRows:
    """Rows of each user, and how many of its own each stands for."""

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
