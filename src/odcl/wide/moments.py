"""Class moments of wide users: how many rows of each class, their means, draws of their scatter.

Row x of user i and class c is taken for N(mu_ic, Sigma). A user's draws are vectors of covariance
Sigma; each counts as one degree of freedom, whoever sends it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Generic, TypeVar

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import id_keys


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


# -- what is chosen in a wide space is measured on users who did not choose it ---------------------
#
# In a thousand columns there is always a direction along which some users lie apart. So whatever is
# learned (a whitening, directions, classifiers, a penalty) is learned once for each fold of users,
# from the other folds, and looked at on that fold alone. An OutOfFold comes from Folds.held_out and
# from nowhere else: functions that decide something ask for one.


FOLDS = 5
Learned = TypeVar("Learned")
Seen = TypeVar("Seen")


def user_folds(users: Array) -> Ints:
    """Fold of each user, 0..FOLDS-1, (n_users,): by its id alone, whoever else is there."""
    return (id_keys(users) % np.uint64(FOLDS)).astype(np.intp)


@dataclass(frozen=True, eq=False)
class OutOfFold(Generic[Seen]):
    """What each fold's users looked like to what was learned without them."""

    folds: Folds
    parts: tuple[Seen, ...]  # one for each fold that has users, or their sum


@dataclass(frozen=True, eq=False)
class Folds:
    """Users in folds, by their ids."""

    of: Ints  # (m,)

    @property
    def members(self) -> list[Bools]:
        """Users of each fold that has any."""
        return [self.of == f for f in np.unique(self.of)]

    def learned(
        self, data: ClassMoments, learn: Callable[[ClassMoments, Bools], Learned]
    ) -> list[Learned]:
        """``learn`` from the users outside each fold; it is told which these are."""
        return [learn(data.take(~some), ~some) for some in self.members]

    def held_out(
        self,
        data: ClassMoments,
        learned: list[Learned],
        look: Callable[[Learned, ClassMoments, Bools], Seen],
        *,
        added: bool = False,
    ) -> OutOfFold[Seen]:
        """Each fold's users, as what was learned without them sees them; ``added``: their sum."""
        pairs = zip(learned, self.members, strict=True)
        seen = (look(one, data.take(some), some) for one, some in pairs)
        return OutOfFold(self, (reduce(add, seen),) if added else tuple(seen))
