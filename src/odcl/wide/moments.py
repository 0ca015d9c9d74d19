"""Class moments of wide users: how many rows of each class, their means, draws of their scatter.

Row x of user i and class c is taken for N(mu_ic, Sigma). A user's draws are vectors of covariance
Sigma; each counts as one degree of freedom, whoever sends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """The class moments of some users, in coordinates common to them."""

    users: Array  # (m,), ids
    counts: Floats  # (m, C)
    means: Floats  # (m, C, p), zeros where there is no row
    draws: Floats  # (r, p), of all users
    owner: Ints  # (r,), whose each is
    of_class: Ints  # (r,), and of which class
    width: int  # columns before any were left out: what an average variance is taken over
    intercept: bool = True  # may scores have one? if not, the origin stays where it is

    @property
    def n_classes(self) -> int:
        return self.counts.shape[1]

    def take(self, users: Bools) -> ClassMoments:
        """The moments of some users."""
        kept = users[self.owner]
        place = np.cumsum(users) - 1
        return replace(
            self,
            users=self.users[users],
            counts=self.counts[users],
            means=self.means[users],
            draws=self.draws[kept],
            owner=place[self.owner[kept]],
            of_class=self.of_class[kept],
        )

    def mapped(self, matrix: Floats) -> ClassMoments:
        """In other coordinates: each vector x becomes ``x @ matrix``."""
        return replace(self, means=self.means @ matrix, draws=self.draws @ matrix)

    def centered(self, middle: Floats) -> ClassMoments:
        """With the origin moved to ``middle``, (p,)."""
        there = (self.counts > 0)[..., None]
        return replace(self, means=np.where(there, self.means - middle, 0.0))

    @cached_property
    def span(self) -> Span:
        """What all vectors span."""
        return Span.of(self)

    @cached_property
    def inside(self) -> ClassMoments:
        """In coordinates of the span."""
        return self.span.inside(self)

    @cached_property
    def middle(self) -> Floats:
        """The mean of all rows, (p,)."""
        total = np.tensordot(self.counts, self.means, axes=([0, 1], [0, 1]))
        return np.asarray(total / self.counts.sum())

    @cached_property
    def variance(self) -> float:
        """The average variance of a column inside users and classes."""
        return float((self.draws**2).sum() / max(len(self.draws), 1) / self.width)


@dataclass(frozen=True, eq=False)
class Span:
    """The span of all that users sent: ridge solutions never leave it."""

    middle: Floats  # (d,)
    basis: Floats | None  # (d, p), orthonormal; None: all of it

    @staticmethod
    def of(data: ClassMoments) -> Span:
        middle = data.middle if data.intercept else np.zeros_like(data.middle)
        data = data.centered(middle)
        seen = data.counts > 0
        rows = np.vstack([data.draws, np.sqrt(data.counts[seen])[:, None] * data.means[seen]])
        if len(rows) >= rows.shape[1]:
            return Span(middle, None)
        values, vectors = np.linalg.eigh(rows @ rows.T)
        kept = values > 1e-10 * max(values[-1], 1e-300)
        return Span(middle, rows.T @ (vectors[:, kept] / np.sqrt(values[kept])))

    def inside(self, data: ClassMoments) -> ClassMoments:
        data = data.centered(self.middle)
        return data if self.basis is None else data.mapped(self.basis)

    def outside(self, weights: Floats, offsets: Floats) -> Floats:
        """Linear scores (..., p, C) and offsets (..., C) as (..., d + 1, C), intercepts last."""
        wide = weights if self.basis is None else self.basis @ weights
        level = offsets - self.middle @ wide
        return np.concatenate([wide, level[..., None, :]], axis=-2)
