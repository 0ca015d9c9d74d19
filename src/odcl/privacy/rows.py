"""Rows within public bounds, as whole numbers: what one row can move in a sum over them is exact.

What a row is here depends on it alone, to the last bit: predictors are sums of whole numbers,
exponentials come from a table, and nothing else is rounded differently beside other rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from odcl._typing import Array, Floats
from odcl.data.federation import Federation
from odcl.privacy import BINS, Bounds
from odcl.risk.loss import Loss

GRID = 2**9  # steps of a bounded row, and of a bounded residual
FINE = 2**15  # of a coefficient; targets have GRID FINE
FARTHEST = 1e100  # of features: beyond, squares are no numbers any more
LOGS = np.arange(-(2**14), 2**14 + 1) / 2**10  # where exponentials are tabulated
EXPONENTIALS = np.exp(LOGS)


def grid_unit(bounds: Bounds, width: int) -> float:
    """What one step of the grid stands for in a row; rounding may lengthen a row.

    One is a whole number of steps, so that intercepts and levels, 0 and 1, are exact.
    """
    steps = (GRID - math.sqrt(width) / 2 - 1e-6) / bounds.norm
    return 1 / math.floor(steps) if steps >= 1 else 1 / steps


@dataclass(frozen=True, eq=False)
class Classes:
    """Class scores are ``basis`` (n_classes, n_outputs) times a model's outputs."""

    basis: Floats
    farthest: float  # of basis'(e_y - p) from zero
    curve: float  # at most, the covariance of basis under p, as the root of its sum of squares

    @staticmethod
    def of(loss: Loss) -> Classes | None:
        """None for targets that are numbers.

        With s_k the sum of p^k, the squares of diag(p) - pp' add up to s_2 - 2 s_3 + s_2^2, and
        s_3 >= s_2^2: at most s_2 - s_2^2 <= 1/4. An orthonormal basis keeps that, and |e_y - p|.
        """
        if not loss.classification:
            return None
        if loss.name == "logistic":
            return Classes(np.array([[0.0], [1.0]]), 1.0, 0.25)
        return Classes(np.asarray(loss.basis, np.float64), math.sqrt(2), 0.5)  # type: ignore[attr-defined]

    def probabilities(self, outputs: Floats) -> Floats:
        """(n_rows, n_classes), class by class: sums are the same whatever stands beside a row."""
        scores = np.zeros((len(outputs), len(self.basis)))
        for j in range(self.basis.shape[1]):
            scores += outputs[:, [j]] * self.basis[:, j]
        e = exponential(scores - scores.max(axis=1, keepdims=True))
        total = np.zeros(len(e))
        for c in range(e.shape[1]):
            total += e[:, c]
        return np.asarray(e / total[:, None])

    def apart(self, p: Floats) -> Floats:
        """The basis around its mean under ``p`` (n_rows, n_classes), (n_rows, n_classes, D)."""
        mean = np.zeros((len(p), self.basis.shape[1]))
        for c in range(len(self.basis)):
            mean += p[:, [c]] * self.basis[c]
        return self.basis - mean[:, None]


def exponential(z: Floats) -> Floats:
    at = np.rint(np.clip(z, LOGS[0], LOGS[-1]) * 2**10).astype(np.int64) + 2**14
    return np.asarray(EXPONENTIALS[at])


@dataclass(frozen=True, eq=False)
class BoundedRows:
    """Rows within public bounds. Models have one block of (intercept, features) per output.

    A row counts w^2 times, w = min(1, norm / |row|) and, for squared loss, reach / |target|:
    least squares weighed by rows, so that bounding rows draws the model nowhere. Counts are cut at
    the ends of their range.
    """

    rows: Federation  # targets encoded
    bounds: Bounds
    loss: Loss

    @cached_property
    def classes(self) -> Classes | None:
        return Classes.of(self.loss)

    @property
    def counts(self) -> bool:
        return self.loss.name == "poisson"

    @cached_property
    def _design(self) -> Floats:
        return np.clip(self.bounds.rows(self.rows.X), -FARTHEST, FARTHEST)

    @cached_property
    def _weight(self) -> Floats:
        """w of every row."""
        size = np.sqrt((self._design**2).sum(axis=1)) / self.bounds.norm
        w = np.minimum(1.0, 1 / np.maximum(size, 1e-300))
        if self.loss.name == "squared":
            far = np.abs(self._target) / self.bounds.reach
            w = np.minimum(w, 1 / np.maximum(far, 1e-300))
        return w

    @cached_property
    def _target(self) -> Floats:
        if self.counts:
            return np.clip(self.rows.y, *self.bounds.ends)
        return self.rows.y.astype(np.float64) - self.bounds.origin

    @cached_property
    def whole(self) -> Array:
        """(n_rows, width), of length at most GRID."""
        return np.rint(self._design * (self._weight / self.unit)[:, None]).astype(np.int64)

    @property
    def unit(self) -> float:
        """What one step of the grid stands for in a row."""
        return grid_unit(self.bounds, self._design.shape[1])

    def _outputs(self, theta: Floats) -> Floats:
        """Of models (n_users, dim), (n_rows, n_outputs)."""
        scaled = np.clip(theta * self.unit, -64, 64) * 2**20
        blocks = np.rint(scaled).astype(np.int64).reshape(len(theta), self.loss.n_outputs, -1)
        sums = (self.whole[:, None] * blocks[self.rows.row_user]).sum(axis=2)
        return np.asarray(sums / (2.0**20 * self._weight[:, None]))

    # -- sums over rows ----------------------------------------------------------------------------

    def gram(self) -> Array:
        """X'X of every user, (n_users, width, width): one row moves it by at most GRID^2.

        Here and below, as the root of the sum of squares over all entries.
        """
        return self._products(self.whole, 1)

    def curvature(self, theta: Floats, cap: Floats) -> tuple[Array, Floats]:
        """Sums of x x' times the loss's curvature at ``theta``, and their units (n_users,).

        One row moves it by at most GRID^2. It is a sum of squares: of a row, x times sqrt(p_c)
        (basis_c - mean) for each class c, or x times the root of its rate, up to ``cap``
        (n_users,). Rounding moves these vectors by at most half the root of their number.
        """
        user, x = self.rows.row_user, self._design * (self._weight / self.bounds.norm)[:, None]
        if self.classes is None:
            parts = np.sqrt(np.minimum(self._rates(theta), cap[user]) / cap[user])[:, None, None]
            most = cap
        else:
            p = self.classes.probabilities(self._outputs(theta))
            parts = np.sqrt(p / self.classes.curve)[..., None] * self.classes.apart(p)
            most = np.full(len(theta), self.classes.curve)
        vectors = (parts[..., None] * x[:, None, None]).reshape(len(x), parts.shape[1], -1)
        steps = GRID - math.sqrt(vectors[0].size) / 2 - 1e-6
        a = np.rint(vectors * steps).astype(np.int64).reshape(-1, vectors.shape[2])
        return self._products(a, parts.shape[1]), most * (self.bounds.norm / steps) ** 2

    def _products(self, a: Array, each: int) -> Array:
        """a'a of every user; a row has ``each`` vectors. Exact: whole numbers below 2^53."""
        parts = a.astype(np.float64)
        at = (self.rows.offsets * each).tolist()
        return np.array([parts[i:j].T @ parts[i:j] for i, j in pairwise(at)]).astype(np.int64)

    def _rates(self, theta: Floats) -> Floats:
        return np.minimum(exponential(self._outputs(theta)[:, 0]), self.bounds.ends[1])

    def residuals(self, theta: Floats, cap: Floats | None = None) -> Array:
        """Of numbers, w (target - prediction) in steps of reach / (GRID FINE): whole numbers.

        Of counts whose rate is above ``cap`` (n_users,) they are weighed down by cap / rate.
        """
        fine, reach, w = GRID * FINE, self.bounds.reach, self._weight
        if self.counts:
            rate = self._rates(theta)
            own = w * (self._target - rate) / reach
            if cap is not None:
                own = own * np.minimum(1.0, cap[self.rows.row_user] / np.maximum(rate, 1e-300))
            return np.rint(own * fine).astype(np.int64)
        scaled = np.clip(theta * self.unit * GRID / reach, -(2.0**13), 2.0**13)
        steps = np.rint(scaled * FINE).astype(np.int64)
        target = np.rint(np.clip(w * self._target / reach, -1, 1) * fine)
        return target.astype(np.int64) - (self.whole * steps[self.rows.row_user]).sum(axis=1)

    def sizes(self, residuals: Array) -> Array:
        """How many residuals of every user are of each size, (n_users, BINS)."""
        edges = GRID * FINE // 2 ** np.arange(BINS - 1)
        size = (np.abs(residuals)[:, None] < edges).sum(axis=1)
        cells = np.bincount(self.rows.row_user * BINS + size, minlength=self.rows.n_users * BINS)
        return cells.reshape(-1, BINS)

    def score(self, theta: Floats, cut: Array, cap: Floats) -> tuple[Array, Floats]:
        """Sum of rows times residuals (n_users, dim), and its units (n_users,).

        Residuals of numbers are cut at ``cut`` (n_users,); those of classes are basis'(e_y - p).
        One row moves it by at most GRID^2.
        """
        m = self.rows.n_users
        if self.classes is None:
            own = cut[self.rows.row_user]
            at = np.clip(self.residuals(theta, cap), -own, own)
            steps = ((at * GRID + own // 2) // own)[:, None]
            unit = cut * self.bounds.reach / (GRID * FINE) / GRID
        else:
            y = (self.rows.y if len(self.classes.basis) > 2 else self.rows.y > 0).astype(np.int64)
            p, D = self.classes.probabilities(self._outputs(theta)), self.loss.n_outputs
            each = GRID - math.sqrt(D) / 2 * (D > 1)
            own = self.classes.apart(p)[np.arange(len(y)), y] * self._weight[:, None]
            steps = np.rint(own * (each / self.classes.farthest)).astype(np.int64)
            unit = np.full(m, self.classes.farthest / each)
        both = (steps[..., None] * self.whole[:, None]).reshape(len(steps), -1)
        sums = np.asarray(np.add.reduceat(both, self.rows.offsets[:-1]))
        return sums, unit * self.unit
