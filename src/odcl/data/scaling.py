"""Units common to all users: clustering, l2 and refit work in them, reports in the table's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Floats


@dataclass(frozen=True, eq=False)
class Scaling:
    """x -> (x - shift) / scale, one pair a feature, the same for every user."""

    shift: Floats  # (n_features,)
    scale: Floats  # (n_features,)

    @classmethod
    def none(cls, n_features: int) -> Scaling:
        return cls(np.zeros(n_features), np.ones(n_features))

    @classmethod
    def of(cls, X: Floats, weight: Floats | None, *, center: bool) -> Scaling:
        """Standard deviation of each column; without an intercept its root mean square instead.

        Shifting a feature needs an intercept to make up for it. A constant column has no scale
        of its own and keeps the table's.
        """
        if X.shape[1] == 0:
            return cls.none(0)
        share = None if weight is None else weight / weight.sum()
        low, high = X.min(axis=0), X.max(axis=0)
        constant = low == high
        size = np.maximum(np.maximum(np.abs(low), np.abs(high)), 1e-300)
        unit = X / size  # squares of 1e200 stay finite
        mean = unit.mean(axis=0) if share is None else share @ unit
        shift = np.where(constant, low, mean * size) if center else np.zeros(X.shape[1])
        unit -= shift / size
        square = (unit**2).mean(axis=0) if share is None else share @ unit**2
        spread = np.sqrt(square) * size
        return cls(shift, np.where(constant & center | (spread == 0), 1.0, spread))

    @property
    def identity(self) -> bool:
        return not self.shift.any() and bool((self.scale == 1.0).all())

    def apply(self, X: Floats) -> Floats:
        return X if self.identity else (X - self.shift) / self.scale

    def undo(self, coef: Floats, intercept: Floats | None) -> tuple[Floats, Floats | None]:
        """Coefficients (..., n_features, n_outputs) and intercepts (..., n_outputs) in table units."""
        own = coef / self.scale[:, None]
        if intercept is None:
            return own, None
        return own, intercept - np.matmul(self.shift, own)
