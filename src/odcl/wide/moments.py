"""Class moments of wide users: how many rows of each class, their means, draws of their scatter.

Row x of user i and class c is taken for N(mu_ic, Sigma). A user's draws are vectors of covariance
Sigma; each counts as one degree of freedom, whoever sends it. Below, what the server knows about
groups of such users, the same for everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from operator import add
from typing import Generic, TypeVar

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import id_keys
from odcl.mixed.layout import without_rows
from odcl.mixed.posterior import Mixture
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk


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


# -- groups ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WideGroups:
    """K groups of users with C classes (one for numbers) and d features.

    Scores are linear in a row's features and calibrated: with the log shares of the classes added,
    their softmax is the row's class probabilities. ``scores`` has one entry from all users,
    and one for each fold of users from the users outside it.
    """

    weights: Floats  # (K,), shares of the users
    scores: Floats  # (1 + FOLDS, K, d + 1, C), the intercept last, without class shares
    shares: Floats  # (K, C), class shares in each group
    concentration: float  # how closely users follow them: alpha of a Dirichlet
    unit: Floats  # (d,), standard deviation of features within classes, at least the median
    alike: bool  # users of a group do not differ
    noise: Floats | None = None  # (K,), variance of a number around its group's model
    level: float = 0.0  # variance of users' own levels around their group's, of numbers

    def models(self, risk: Risk) -> Floats:
        """The groups' models in the layout of all models, (K, dim), their class shares included."""
        scores = self.scores[0].copy()
        scores[:, -1] += np.log(self.shares)  # left out where there is no intercept
        return np.stack([in_layout(risk, one) for one in scores])

    def take(self, order: Ints) -> WideGroups:
        """The groups in another order."""
        own = self.weights[order], self.scores[:, order], self.shares[order]
        noise = None if self.noise is None else self.noise[order]
        return WideGroups(*own, self.concentration, self.unit, self.alike, noise, self.level)

    @property
    def n_numbers(self) -> int:
        return sum(np.size(getattr(self, field.name)) for field in fields(self))


# What the server finds from data terms, whatever the number of parameters.
GroupModels = Mixture | WideGroups


def mixed_only(groups: GroupModels | None) -> Mixture | None:
    """Groups of few parameters, which know how surely models are known; None: other ones."""
    return groups if isinstance(groups, Mixture) else None


def models_without_rows(groups: GroupModels, risk: Risk) -> tuple[Floats, Floats | None]:
    """Models of users without rows, one in each group and last one in any of them.

    Their covariances too, where they are known.
    """
    if isinstance(groups, Mixture):
        return without_rows(groups, risk)
    own = groups.models(risk)
    return np.vstack([own, groups.weights @ own]), None


def at_least_usual(sd: Floats) -> Floats:
    """Standard deviations, none below the median of those above zero."""
    return np.maximum(sd, np.median(sd[sd > 0]) if (sd > 0).any() else 1.0)


def in_layout(risk: Risk, scores: Floats) -> Floats:
    """Scores (d + 1, C), the intercept last, as the flat model of the risk, (dim,)."""
    inputs = scores if risk.intercept else scores[:-1]
    if not risk.loss.classification:
        return inputs[:, 0].copy()
    if isinstance(risk.loss, Multinomial):
        return (inputs @ risk.loss.basis).ravel()
    return np.asarray(inputs[:, 1] - inputs[:, 0])
