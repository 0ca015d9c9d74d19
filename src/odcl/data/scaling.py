"""Units common to all users: clustering and l2 work in them, reports in the table's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.data.curves import are_many, some_values, with_bends
from odcl.data.unusual import ColumnMoments, unusual_users
from odcl.risk.risk import Curve, Factor

# A column whose values differ by less than this share of their size is constant up to rounding.
_ROUNDING = 1e-14
# NumPy's loops over a few columns cost more than the arithmetic: rows are taken side by side, this
# many numbers at a time (fewer where they are then reduced), and blocks of them stay near the
# processor.
_LONG, _SHORT, _BLOCK = 1 << 13, 1 << 10, 1 << 16
_ROWS = 4_000  # whose moments are taken at a time: they stay near the processor
_FAR = 300
_GLANCE = 256  # rows that are looked at before two columns are compared in all of them


@dataclass(frozen=True, eq=False)
class Scaling:
    """x -> (x[used] - shift) / scale, the same for every user.

    A column that says nothing (constant beside an intercept, or all zeros) is left out of the
    model: no user could tell its coefficient, which is 0 in the table's units. So are, where
    asked for, columns that repeat an earlier one. ``factors`` are categorical features
    whose reference says more than a copy of another column would, in these units. Columns of
    ``curves`` follow those in use.
    """

    shift: Floats  # (n_used,)
    scale: Floats  # (n_used,)
    used: Ints  # (n_used,), positions of the columns that vary
    n_features: int
    copies: tuple[tuple[int, int], ...] = ()  # (column left out, the one that it repeats)
    factors: tuple[Factor, ...] = ()
    curves: tuple[Curve, ...] = ()

    @classmethod
    def none(
        cls, p: int, factors: tuple[Factor, ...] = (), curves: tuple[Curve, ...] = ()
    ) -> Scaling:
        """The ``p`` columns in their own units."""
        return cls(np.zeros(p), np.ones(p), np.arange(p), p, (), factors, curves)

    @property
    def width(self) -> int:
        """How many columns models have a coefficient for."""
        return len(self.used) + sum(len(curve.columns) for curve in self.curves)

    @classmethod
    def of(
        cls,
        columns: RowColumns | TableMoments,
        *,
        center: bool,
        standardize: bool,
        copies: bool = True,
        factors: Mapping[str, Sequence[int]] | None = None,
    ) -> Scaling:
        """Standard deviation of each column; without an intercept its root mean square instead.

        Shifting a feature needs an intercept to make up for it: ``center`` says there is one.
        ``copies`` False leaves out columns that are an earlier one up to scale and sign and, with
        an intercept, shift. ``factors`` are the 0/1 columns of each categorical feature, without
        its reference; the references' columns are measured as well, after the others.
        """
        n_own = len(columns.row)
        wide = columns.with_references(factors) if factors else columns
        size = np.maximum(np.abs(wide.low), np.abs(wide.high))
        # Halves, so that the range of a column that spans all of float64 stays finite.
        flat = 0.5 * _ROUNDING * size
        used = np.flatnonzero(0.5 * wide.high - 0.5 * wide.low > flat if center else size > 0)
        if not standardize and copies and not factors:
            return cls(np.zeros(len(used)), np.ones(len(used)), used, n_own)
        size, start = size[used], wide.low[used] if center else np.zeros(len(used))
        found = wide.measured(used, size, center=center, twins=bool(factors) or not copies)
        kept = np.setdiff1d(np.arange(len(used)), list(found.twins))
        twins = {int(used[j]): int(used[k]) for j, (k, _) in found.twins.items()}
        slopes = {int(used[j]): slope for j, (_, slope) in found.twins.items()}
        used, start, size = used[kept], start[kept], size[kept]
        shift, scale = np.zeros(len(kept)), np.ones(len(kept))
        if standardize:
            shift, scale = _rounded(found.shift[kept], found.spread[kept])
            shift, scale = (start / size + shift) * size, scale * size
        n_used = int((used < n_own).sum())
        declared = _declared(
            factors or {}, n_own, used, scale, twins, slopes, wide.row, standardize
        )
        pairs = tuple((j, k) for j, k in twins.items() if j < n_own)
        return cls(shift[:n_used], scale[:n_used], used[:n_used], n_own, pairs, declared)

    def of_usual(self, columns: ColumnMoments, n_users: int, *, center: bool) -> Scaling:
        """This scaling in units of the usual users among ``columns``, all or a sample.

        Columns of categories have no units to mistake, and columns in which usual users do not vary
        keep theirs; so do all columns where every user was looked at and is usual.
        """
        if len(columns.rows) == n_users and not unusual_users(columns).users.any():
            return self
        mean, sd = (one[self.used] for one in columns.pooled(unusual_users(columns).others))
        spread = sd if center else np.hypot(mean, sd)
        fixed = [j for factor in self.factors for j in factor.columns]
        changed = spread > 1e-12 * np.abs(mean)
        changed[fixed] = False
        shift, scale = _rounded(mean, np.where(changed, spread, 1.0))
        shift = np.where(changed & center, shift, self.shift)
        return replace(self, shift=shift, scale=np.where(changed, scale, self.scale))

    def by_range(self, columns: RowColumns | TableMoments) -> Scaling:
        """This scaling in units between a column's standard deviation and its reach.

        A pixel that is seldom lit varies little and may lie far out: in units of its standard
        deviation a few rows would decide what such columns say.
        """
        low, high = columns.low[self.used], columns.high[self.used]
        reach = np.maximum(high - self.shift, self.shift - low)
        between = np.sqrt(self.scale) * np.sqrt(reach)
        return replace(self, scale=np.where(np.isfinite(reach) & (reach > 0), between, self.scale))

    def apply(self, X: Floats, *, in_place: bool = False) -> Floats:
        """Rows of the table as the model sees them, (n_rows, width).

        ``in_place``: the rows may be written over, and mostly are: no copy of them is made.
        """
        if len(self.used) < self.n_features:
            X = X.take(self.used, axis=1)
        return with_bends(self._scaled(X, in_place), self.curves)

    def _scaled(self, X: Floats, in_place: bool) -> Floats:
        if not self.shift.any() and bool((self.scale == 1.0).all()):
            return X
        out = X if in_place and X.flags.c_contiguous and X.flags.writeable else np.empty(X.shape)
        for rows, (shift, scale) in _side_by_side(len(X), self.shift, self.scale):
            part = out[rows].reshape(-1, len(shift))
            np.subtract(X[rows].reshape(part.shape), shift, out=part)
            part /= scale
        return out

    def undo(self, coef: Floats, intercept: Floats) -> tuple[Floats, Floats]:
        """Coefficients (m, width, n_outputs) and intercepts (m, n_outputs) in table units.

        The answer has a coefficient for every column, (m, n_features, n_outputs): of one that acts
        in a curve that of its line, and the intercept is where the curve's bends are zero.
        """
        own = coef[:, : len(self.used)] / self.scale[:, None]
        full = np.zeros((len(coef), self.n_features, coef.shape[2]))
        full[:, self.used] = own
        return full, intercept - np.matmul(self.shift, own)


class ColumnUnits(NamedTuple):
    """Columns in use, in units of their size and counted from their smallest value."""

    shift: Floats  # (n_used,), the mean; without an intercept 0
    spread: Floats  # (n_used,), the standard deviation, or the root mean square
    twins: dict[int, tuple[int, float]]  # column -> the earlier one that it repeats, and the slope


@dataclass(frozen=True, eq=False)
class TableMoments:
    """Columns of a table known by their moments, for :class:`Scaling`; moments of pieces add up.

    ``factor`` is triangular: factor'factor = sum over rows of (row - mean)(row - mean)'.
    """

    rows: int
    low: Floats  # (n_columns,), the smallest value
    high: Floats  # (n_columns,)
    mean: Floats  # (n_columns,)
    factor: Floats  # (any, n_columns)
    values: tuple[Floats, ...] = ()  # of each column, some of its values: all, or enough

    @classmethod
    def of(cls, X: Floats) -> TableMoments:
        """The moments of rows (n_rows, n_columns); a piece without rows has none to add."""
        p = X.shape[1]
        found = cls(0, np.full(p, np.inf), np.full(p, -np.inf), np.zeros(p), np.zeros((p, p)))
        for first in range(0, len(X), _ROWS):
            part = X[first : first + _ROWS]
            mean = part.mean(axis=0)
            mean += (part - mean).mean(axis=0)  # what rounding left of a mean of 1e9
            own = part.T
            found += cls(
                *(len(part), own.min(axis=1), own.max(axis=1), mean, _factor(part - mean)),
                tuple(some_values(column) for column in own),
            )
        return found

    def __add__(self, other: TableMoments) -> TableMoments:
        if not (self.rows and other.rows):
            return self if self.rows else other
        n = self.rows + other.rows
        gap = other.mean - self.mean
        between = np.sqrt(self.rows / n * other.rows) * gap
        return TableMoments(
            n,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.mean + other.rows / n * gap,
            _factor(np.vstack([self.factor, other.factor, between])),
            tuple(map(some_values, map(np.append, self.values, other.values))),
        )

    @property
    def row(self) -> Floats:
        """Any row of the table, or the mean of its rows, (n_columns,)."""
        return self.mean

    @property
    def many(self) -> Bools:
        """Has the column more values than a curve needs? (n_columns,)"""
        return np.array([are_many(values) for values in self.values], np.bool_)

    def with_references(self, factors: Mapping[str, Sequence[int]]) -> TableMoments:
        """With a 0/1 column more for each factor, one minus the sum of its own."""
        own = [list(columns) for columns in factors.values()]
        mean = [1 - self.mean[j].sum() for j in own]
        low = [1.0 - self.high[j].max() for j in own]  # 0, unless every row is the reference's
        high = [float(self.rows * self.mean[j].sum() < self.rows - 0.5) for j in own]
        columns = [-self.factor[:, j].sum(axis=1) for j in own]
        return TableMoments(
            self.rows,
            np.append(self.low, low),
            np.append(self.high, high),
            np.append(self.mean, mean),
            np.column_stack([self.factor, *columns]),
        )

    def measured(self, used: Ints, size: Floats, *, center: bool, twins: bool) -> ColumnUnits:
        """The columns ``used``, whose sizes are ``size``; ``twins``: look for repeated ones."""
        root = self.factor[:, used]
        shift = np.zeros(len(used))
        if center:
            shift = (self.mean[used] - self.low[used]) / size
        else:
            root = np.vstack([np.sqrt(self.rows) * self.mean[used], root])
        norm = np.linalg.norm(root, axis=0)
        spread = norm / np.sqrt(self.rows) / size
        found: dict[int, tuple[int, float]] = {}
        near, unit = _nearness(shift, spread), root / norm
        for j in range(len(used) if twins else 0):
            for k in (k for k in range(j) if k not in found):
                sign = np.sign(unit[:, j] @ unit[:, k])
                if np.linalg.norm(unit[:, j] - sign * unit[:, k]) <= near[j] + near[k]:
                    slope = root[:, j] @ root[:, k] / (root[:, k] @ root[:, k])
                    found[j] = k, float(slope)
                    break
        return ColumnUnits(shift, spread, found)


def _factor(rows: Floats) -> Floats:
    """The upper triangular R with R'R = rows'rows: by Cholesky where columns are far from
    dependent (what is left of one given those before it is more than 1e-6 of it)."""
    square = rows.T @ rows
    try:
        factor = np.linalg.cholesky(square).T
        if (np.diagonal(factor) ** 2 > 1e-6 * np.diagonal(square)).all():
            return np.asarray(factor, np.float64)
    except np.linalg.LinAlgError:
        pass
    return np.asarray(np.linalg.qr(rows, mode="r"), np.float64)


def _nearness(shift: Floats, spread: Floats) -> Floats:
    """How far two columns of length one may be apart that repeat each other, half by half."""
    return 1e-10 + 1e-14 * np.abs(shift / spread)


class RowColumns:
    """Columns of a table in memory, for :class:`Scaling`; ``weight``: how often a row counts."""

    def __init__(self, X: Floats, weight: Floats | None = None) -> None:
        self._X, self._weight = X, weight

    @cached_property
    def _ends(self) -> tuple[Floats, Floats]:
        X, p = self._X, self._X.shape[1]
        low, high = np.full(p, np.inf), np.full(p, -np.inf)
        for rows, (one,) in _side_by_side(len(X), low, long=_SHORT):
            part = X[rows].reshape(-1, len(one))
            low = np.minimum(low, part.min(axis=0).reshape(-1, p).min(axis=0, initial=np.inf))
            high = np.maximum(high, part.max(axis=0).reshape(-1, p).max(axis=0, initial=-np.inf))
        return low, high

    @property
    def low(self) -> Floats:
        return self._ends[0]

    @property
    def high(self) -> Floats:
        return self._ends[1]

    @property
    def row(self) -> Floats:
        return self._X[0]

    @property
    def many(self) -> Bools:
        return np.array([are_many(some_values(column)) for column in self._X.T], np.bool_)

    def with_references(self, factors: Mapping[str, Sequence[int]]) -> RowColumns:
        more = (1 - self._X[:, list(own)].sum(axis=1) for own in factors.values())
        return RowColumns(np.column_stack([self._X, *more]), self._weight)

    def measured(self, used: Ints, size: Floats, *, center: bool, twins: bool) -> ColumnUnits:
        # Columns of a size beyond 2^_FAR, either way, are divided by it before they are squared;
        # to divide by one is not to divide.
        X = self._X if len(used) == self._X.shape[1] else self._X.take(used, axis=1)
        exponent = np.frexp(size)[1]
        far = np.ldexp(1.0, np.clip(exponent, -1000, 1000))
        unit = np.where(np.abs(exponent) < _FAR, 1.0, far)
        share = np.full(len(X), 1.0 / len(X))
        if self._weight is not None:
            share = self._weight / self._weight.sum()
        # Far from zero a sum would round by more than is rounded off later.
        start = self.low[used] / unit if center else np.zeros(len(used))
        shift, spread = _moments(X, unit, start, share, center)
        found = _repeated(X, unit, start, shift, spread, share) if twins else {}
        return ColumnUnits(shift * (unit / size), spread * (unit / size), found)


def _rounded(shift: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """Rounded to 32 bits: the order of rows moves the last digits of a sum, and nothing here."""
    mantissa, exponent = np.frexp(spread)
    spread = np.ldexp(np.rint(np.ldexp(mantissa, 32)), exponent - 32)
    return np.rint(np.ldexp(shift / spread, 32)) * np.ldexp(spread, -32), spread


def _declared(
    factors: Mapping[str, Sequence[int]],
    n_own: int,
    used: Ints,
    scale: Floats,
    twins: Mapping[int, int],
    slopes: Mapping[int, float],
    row: Floats,
    standardize: bool,
) -> tuple[Factor, ...]:
    """What each factor's reference is of the columns in use.

    With x_j = shift_j + scale_j z_j, or of a copy x_j = a + b x_k, a reference's column is
    (1 - sum_j x_j - shift) / scale; its constant vanishes where columns are centered. ``row`` is
    any row of the table, or the mean of its rows.
    """
    place = {int(j): at for at, j in enumerate(used)}
    declared = []
    for f, (name, own) in enumerate(factors.items()):
        if n_own + f not in place:
            continue
        weights: dict[int, float] = {}
        constant = 1.0
        for j in own:
            k = twins.get(j, j)
            slope = float(k in place) if k == j else slopes[j]
            constant -= row[j] - slope * row[k]
            if slope:  # else it is constant
                at = place[k]
                weights[at] = weights.get(at, 0.0) - slope * scale[at] / scale[place[n_own + f]]
        told = 0.0 if standardize else constant
        declared.append(Factor(tuple(weights), tuple(weights.values()), told, name))
    return tuple(declared)


def _side_by_side(
    n_rows: int, *columns: Floats, long: int = _LONG
) -> Iterator[tuple[slice, list[Floats]]]:
    """Blocks of rows, and the columns' numbers as often as rows stand side by side in them."""
    p = len(columns[0])
    if p == 0:
        return
    k = max(long // p, 1)
    whole = n_rows - n_rows % k
    step = max(_BLOCK // (k * p), 1) * k
    tiled = [np.tile(values, k) for values in columns]
    for first in range(0, whole, step):
        yield slice(first, min(first + step, whole)), tiled
    if whole < n_rows:
        yield slice(whole, n_rows), list(columns)


def _moments(
    X: Floats, size: Floats, start: Floats, share: Floats, center: bool
) -> tuple[Floats, Floats]:
    """Weighted mean and standard deviation of the columns of X / size - start, (n_used,) each.

    Blocks are centred one by one and merged by Chan's formula. Without ``center`` the mean counts
    as zero, and the deviation is the root mean square.
    """
    p = X.shape[1]
    total, mean, square = 0.0, np.zeros(p), np.zeros(p)
    room, divided = np.empty(min(X.size, _BLOCK + _LONG + p)), bool((size != 1.0).any())
    for rows, (unit, zero) in _side_by_side(len(X), size, start):
        part = room[: X[rows].size].reshape(-1, len(unit))
        near = X[rows].reshape(part.shape)
        if divided:
            near = np.divide(near, unit, out=part)
        np.subtract(near, zero, out=part)
        own, each = share[rows], part.reshape(-1, p)
        weight = float(own.sum())
        if not weight > 0:
            continue
        middle = own @ each / weight if center else np.zeros(p)
        if center:
            part -= np.tile(middle, len(unit) // p)
        part *= part
        gap, total = middle - mean, total + weight
        mean += gap * (weight / total)
        square += own @ each + gap**2 * (weight * (1 - weight / total))
    return mean, np.sqrt(square / max(total, 1e-300))


def _repeated(
    X: Floats, size: Floats, start: Floats, shift: Floats, spread: Floats, share: Floats
) -> dict[int, tuple[int, float]]:
    """Columns that, standardized, are an earlier one or its negative: which, and the slope.

    What some rows add to the squared distance of two columns is no more than what all rows do, so
    few pairs are looked at row by row.
    """
    near = _nearness(shift, spread)
    some = np.unique(np.linspace(0, len(X) - 1, _GLANCE).astype(np.intp))
    z = (X[some] / size - start - shift) / spread
    products = (z * share[some][:, None]).T @ z
    own = np.diagonal(products)
    both = own[:, None] + own
    alike = both - 2 * np.abs(products) <= (near[:, None] + near) ** 2 + 1e-12 * both

    def column(j: int) -> Floats:
        return (X[:, j] / size[j] - start[j] - shift[j]) / spread[j]

    found: dict[int, tuple[int, float]] = {}
    for j in range(X.shape[1]):
        for k in (int(k) for k in np.flatnonzero(alike[j, :j]) if int(k) not in found):
            a, b = column(j), column(k)
            sign = np.sign(share @ (a * b))
            if share @ (a - sign * b) ** 2 <= (near[j] + near[k]) ** 2:
                low, high = X[:, k].argmin(), X[:, k].argmax()
                slope = (X[high, j] - X[low, j]) / (X[high, k] - X[low, k])
                found[j] = k, float(slope)
                break
    return found
