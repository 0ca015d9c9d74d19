"""What every user minimises, Eq. (1): f(theta) = mean_j loss(x_j theta, y_j) + l2/2 ||theta||^2."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from odcl._typing import Floats
from odcl.declared import OPTIONAL, fields_from_json, fields_to_json
from odcl.risk.loss import Loss, symmetric, weighted_gram
from odcl.risk.losses import as_loss, loss_from_json, loss_to_json

# Prior standard deviations of slopes, of standardized columns, and of the intercept, under which
# users of classes and counts say what their rows tell (mixed groups). Where rows are many they
# differ little, and the middle one stands for all.
GAUSSIAN_WIDTHS = ((0.5, 3.0), (1.0, 3.0), (2.0, 3.0), (2.0, 6.0))
MIDDLE_WIDTH = 1
MOST_TERM_PARAMETERS = 100  # beyond, a matrix per user is too much to send
MOST_CLASS_PARAMETERS = 40  # beyond, a Gaussian says too little of a few rows with classes


@dataclass(frozen=True)
class Constants:
    """Smoothness ``L`` and strong convexity ``mu`` of a risk over the ball ||theta|| <= radius."""

    L: float
    mu: float


@dataclass(frozen=True)
class Factor:
    """The columns of one categorical feature, which has a level more than it has columns.

    The column of that level, the reference, is ``constant`` + ``weights`` times the columns: of
    0/1 columns one minus their sum. Models have no coefficient for it; mixed groups treat it like
    the others, so that it does not matter which level is the reference.
    """

    columns: tuple[int, ...]
    weights: tuple[float, ...] = ()  # as many as columns; none given: -1 each
    constant: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        given = self.columns
        if not given or len(set(given)) < len(given) or not all(map(is_column, given)):
            raise ValueError(f"{given!r} are not the columns of a factor: distinct numbers from 0.")
        object.__setattr__(self, "columns", tuple(int(j) for j in given))
        weights = tuple(float(w) for w in self.weights) or (-1.0,) * len(given)
        object.__setattr__(self, "weights", weights)
        if len(weights) != len(given) or not np.isfinite([*weights, self.constant]).all():
            raise ValueError(f"{len(given)} columns of a factor need a finite weight each.")


@dataclass(frozen=True)
class Curve:
    """A feature that may act in a curve, and the columns of its bends, which follow all features.

    Bends are functions of (x - ``center``) / ``unit``, see :mod:`odcl.data.curves`; those of a
    periodic feature have that ``period``. ``ends`` are those of its values that were seen, where
    that is known. A skewed feature bends in the logarithm of its distance from an ``origin`` beyond
    its shorter end.
    """

    of: int
    columns: tuple[int, ...] = ()
    center: float = 0.0
    unit: float = 1.0
    period: float | None = None
    ends: tuple[float, float] | None = None
    name: str = ""
    origin: float | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        given = (self.of, *self.columns)
        if len(given) > 5 or len(set(given)) < len(given) or min(given) < 0:
            raise ValueError(f"{given!r} are not a feature and the columns of its bends.")
        period = 1.0 if self.period is None else self.period
        sizes = np.array([self.unit, period, 1.0 + abs(self.center)])
        if not (np.isfinite(sizes) & (sizes > 0)).all():
            raise ValueError(f"A curve needs a unit and a period above zero, not {sizes.tolist()}.")
        if self.origin is not None:
            away = np.array([self.center, *(self.ends or (np.nan,))]) - self.origin
            if not ((np.sign(away) == np.sign(away[0])) & np.isfinite(away)).all() or not away[0]:
                raise ValueError(f"The origin {self.origin!r} of a curve is not beyond its ends.")

    @property
    def bends(self) -> list[str]:
        """Names of its bends: "price~1", ..."""
        return [f"{self.name}~{at}" for at in range(1, len(self.columns) + 1)]


def is_column(j: Any) -> bool:
    """Is it the number of a column?"""
    return isinstance(j, Integral) and not isinstance(j, bool) and int(j) >= 0


@dataclass(frozen=True, init=False)
class Risk:
    """The loss, the weight of its penalty, whether models have an intercept, and factors.

    The penalty leaves the intercept alone. ``loss`` may be given by name; "multinomial" needs to
    know its classes: ``Risk(Multinomial(3))``. ``factors`` says which 0/1 columns are the levels
    of one categorical feature without its reference: ``factors=[(0, 1, 2), (5,)]``; ``curves``
    which columns are bends of a feature.
    """

    loss: Loss
    l2: float
    intercept: bool
    factors: tuple[Factor, ...]
    curves: tuple[Curve, ...] = field(default=(), metadata=OPTIONAL)

    def __init__(
        self,
        loss: str | Loss = "squared",
        l2: float = 0.0,
        intercept: bool = False,
        factors: Iterable[Factor | Iterable[int]] = (),
        curves: Iterable[Curve] = (),
    ):
        if isinstance(l2, bool) or not isinstance(l2, Real) or not 0 <= l2 < math.inf:
            raise ValueError(f"l2={l2!r} is the weight of a squared norm: a finite number >= 0.")
        declared = tuple(f if isinstance(f, Factor) else Factor(tuple(f)) for f in factors)
        if declared and not intercept:
            raise ValueError(
                "factors need an intercept: without one the reference of a factor is where the "
                "model is zero, and not a level like the others. Say intercept=True."
            )
        object.__setattr__(self, "loss", as_loss(loss))
        object.__setattr__(self, "l2", float(l2))
        object.__setattr__(self, "intercept", bool(intercept))
        object.__setattr__(self, "factors", declared)
        object.__setattr__(self, "curves", tuple(curves))

    # -- what follows from them ------------------------------------------------------------

    @property
    def n_outputs(self) -> int:
        return self.loss.n_outputs

    @property
    def lines(self) -> Risk:
        """The risk without curves."""
        return Risk(self.loss, self.l2, self.intercept, self.factors)

    def n_lines(self, n_features: int) -> int:
        """How many of the features, the first of them, are no bends of others."""
        return n_features - sum(len(curve.columns) for curve in self.curves)

    def n_inputs(self, n_features: int) -> int:
        return n_features + self.intercept

    def dim(self, n_features: int) -> int:
        """How many numbers a model has."""
        return self.n_inputs(n_features) * self.n_outputs

    def design(self, X: Floats) -> Floats:
        """Rows (..., n, n_features) with the intercept's column of ones, if there is one."""
        if not self.intercept:
            return X
        return np.concatenate([X, np.ones((*X.shape[:-1], 1))], axis=-1)

    def penalty(self, n_features: int) -> Floats:
        """Diagonal of the penalty's Hessian, (dim,): l2, and 0 for the intercept."""
        pen = np.full((self.n_inputs(n_features), self.n_outputs), self.l2)
        if self.intercept:
            pen[-1] = 0.0
        return pen.ravel()

    # -- the risk of one user --------------------------------------------------------------

    def value(self, theta: Floats, X: Floats, y: Floats, weight: Floats | None = None) -> float:
        """f(theta) on one user's rows; ``weight`` makes the mean a weighted one."""
        D, share = self._rows(X, weight)
        z = D @ theta.reshape(D.shape[1], self.n_outputs)
        pen = self.penalty(X.shape[1])
        return float((share * self.loss.value(z, y)).sum() + 0.5 * (pen * theta**2).sum())

    def gradient(self, theta: Floats, X: Floats, y: Floats, weight: Floats | None = None) -> Floats:
        """Gradient of f, (dim,)."""
        D, share = self._rows(X, weight)
        z = D @ theta.reshape(D.shape[1], self.n_outputs)
        pull = D.T @ (share[:, None] * self.loss.slope(z, y))
        return pull.ravel() + self.penalty(X.shape[1]) * theta

    def hessian(self, theta: Floats, X: Floats, y: Floats, weight: Floats | None = None) -> Floats:
        """Hessian of f, (dim, dim)."""
        D, share = self._rows(X, weight)
        z = D @ theta.reshape(D.shape[1], self.n_outputs)
        curve = self.loss.curve(z, y) * share[:, None, None]
        gram = symmetric(weighted_gram(D.T[None], curve[None]))[0]
        return gram + np.diag(self.penalty(X.shape[1]))

    def constants(
        self, X: Floats, y: Floats, radius: float, weight: Floats | None = None
    ) -> Constants:
        """L and mu of f over the ball of this radius (Assumptions 3 and 7).

        A row's curvature lies between its bounds over |z_j| <= radius ||x_j||, so the Hessian
        lies between the two Gram matrices weighted by these bounds.
        """
        D, share = self._rows(X, weight)
        low, high = self.loss.curve_bounds(y, radius * np.linalg.norm(D, axis=1))
        pen = np.diag(self.penalty(X.shape[1])[:: self.n_outputs])
        least = np.linalg.eigvalsh((D.T * (low * share)) @ D + pen)
        most = np.linalg.eigvalsh((D.T * (high * share)) @ D + pen)
        # An eigenvalue of rounding size is zero.
        flat = least[0] <= len(least) * 1e-15 * least[-1]
        return Constants(L=float(most[-1]), mu=0.0 if flat else float(least[0]))

    def _rows(self, X: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        """Design, and the rows' shares of the mean."""
        share = np.full(len(X), 1.0 / len(X)) if weight is None else weight / weight.sum()
        return self.design(np.asarray(X)), share

    # -- JSON ------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return fields_to_json(self) | {"loss": loss_to_json(self.loss)}

    @classmethod
    def from_json(cls, words: Any) -> Risk:
        """What :meth:`to_json` wrote; a ValueError says what is wrong with other words."""
        if isinstance(words, dict) and "loss" in words:
            words = {**words, "loss": loss_from_json(words["loss"])}
        return fields_from_json(cls, words)


def most_parameters(risk: Risk) -> int:
    """The largest number of parameters for which a data term holds a matrix of that size."""
    return MOST_CLASS_PARAMETERS if risk.loss.classification else MOST_TERM_PARAMETERS


def too_wide(risk: Risk, dim: int, what: str) -> ValueError:
    """The error where a model has more parameters than ``what`` can be had for."""
    most = most_parameters(risk)
    return ValueError(f"{what} need at most {most} parameters; this model has {dim:,}.")


def is_wide(risk: Risk, n_features: int) -> bool:
    """Do users send class moments or a thin factor, their models having too many parameters?"""
    known = risk.loss.classification or risk.loss.has_data_terms
    return known and risk.dim(n_features) > most_parameters(risk)
