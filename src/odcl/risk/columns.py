"""Losses of many models of the same rows: ``z`` is (models, columns, n), the rows come last.

One column per class, of which only the differences count, or one column where the loss has one
output. So many models are one product of matrices, and sums over classes run along the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from odcl._typing import Floats
from odcl.risk.loss import Loss
from odcl.risk.losses import Multinomial, softmax_terms


class Columns(ABC):
    """The losses of one user's rows, as functions of the columns."""

    @abstractmethod
    def terms(self, z: Floats) -> tuple[Floats, Floats, Floats]:
        """Value (models, n), slope and curvature as ``bent`` takes it, (models, columns, n)."""

    @abstractmethod
    def average_bend(self, bend: Floats) -> Floats:
        """The mean of each row's eigenvalues of the curvature, (models, n)."""

    @abstractmethod
    def bent(self, bend: Floats, weighted: Floats, v: Floats) -> Floats:
        """Each row's curvature times v, times its weight; ``weighted`` is bend times the weight."""

    @abstractmethod
    def spread(self, theta: Floats) -> Floats:
        """Coefficients (inputs, n_outputs) as columns, (columns, inputs)."""

    @abstractmethod
    def gather(self, columns: Floats) -> Floats:
        """The way back: (models, columns, inputs) to (models, inputs, n_outputs)."""


def columns_of(loss: Loss, y: Floats) -> Columns:
    """For targets ``y`` (n,), encoded."""
    return Classes(loss, y) if isinstance(loss, Multinomial) else OneColumn(loss, y)


class Classes(Columns):
    """A column per class. Penalties as of the loss: its coefficients sum to zero over classes."""

    def __init__(self, loss: Multinomial, y: Floats) -> None:
        self.loss = loss
        self.own = (y == np.arange(loss.n_classes)[:, None]).astype(np.float64)

    def terms(self, z: Floats) -> tuple[Floats, Floats, Floats]:
        value, slope, p = softmax_terms(z.copy(), self.own, axis=-2)
        return value[:, 0], slope, p

    def average_bend(self, bend: Floats) -> Floats:
        total: Floats = (bend * (1.0 - bend)).sum(axis=-2)
        return total / self.loss.n_outputs

    def bent(self, bend: Floats, weighted: Floats, v: Floats) -> Floats:
        moved = v - np.einsum("tcn,tcn->tn", bend, v)[:, None]
        moved *= weighted
        return moved

    def spread(self, theta: Floats) -> Floats:
        return self.loss.basis @ theta.T

    def gather(self, columns: Floats) -> Floats:
        return np.matmul(columns.transpose(0, 2, 1), self.loss.basis)


class OneColumn(Columns):
    def __init__(self, loss: Loss, y: Floats) -> None:
        self.loss, self.y = loss, y

    def terms(self, z: Floats) -> tuple[Floats, Floats, Floats]:
        value, slope, curve = self.loss.terms(z[:, 0, :, None], self.y)
        return value, slope[:, None, :, 0], curve[:, None, :, 0, 0]

    def average_bend(self, bend: Floats) -> Floats:
        return bend[:, 0]

    def bent(self, bend: Floats, weighted: Floats, v: Floats) -> Floats:
        return weighted * v

    def spread(self, theta: Floats) -> Floats:
        return theta.T

    def gather(self, columns: Floats) -> Floats:
        return columns.transpose(0, 2, 1)
