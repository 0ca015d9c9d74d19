"""Units common to all users: clustering, l2 and refit work in them, reports in the table's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.unusual import ColumnMoments, unusual_users
from odcl.risk.risk import Factor

# A column whose values differ by less than this share of their size is constant up to rounding.
_ROUNDING = 1e-14
# NumPy's loops over a few columns cost more than the arithmetic: rows are taken side by side, this
# many numbers at a time (fewer where they are then reduced), and blocks of them stay near the
# processor.
_LONG, _SHORT, _BLOCK = 1 << 13, 1 << 10, 1 << 16
# Columns of a size beyond 2^_FAR, either way, are divided by it before they are squared.
_FAR = 300
# So many rows are looked at before two columns are compared in all of them.
_GLANCE = 256


@dataclass(frozen=True, eq=False)
class Scaling:
    """x -> (x[used] - shift) / scale, the same for every user.

    A column that says nothing (constant beside an intercept, or all zeros) is left out of the
    model: no user could tell its coefficient, which is 0 in the table's units. So are, where
    asked for, columns that repeat an earlier one. ``factors`` are those of the columns in use whose
    reference says more than a copy of another column would, in these units.
    """

    shift: Floats  # (n_used,)
    scale: Floats  # (n_used,)
    used: Ints  # (n_used,), positions of the columns that vary
    n_features: int
    copies: tuple[tuple[int, int], ...] = ()  # (column left out, the one that it repeats)
    factors: tuple[Factor, ...] = ()

    @classmethod
    def of(
        cls,
        X: Floats,
        weight: Floats | None,
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
        its reference.
        """
        if factors:
            return cls._with_references(X, weight, factors, center, standardize)
        p = X.shape[1]
        low, high = _column_ends(X)
        size = np.maximum(np.abs(low), np.abs(high))
        # Halves, so that the range of a column that spans all of float64 stays finite.
        varies = 0.5 * high - 0.5 * low > 0.5 * _ROUNDING * size if center else size > 0
        used = np.flatnonzero(varies)
        if not standardize and copies:
            return cls(np.zeros(len(used)), np.ones(len(used)), used, p)
        size = size[used]
        unit = _units(size)  # squares of 1e200 stay finite in it
        share = np.full(len(X), 1.0 / len(X)) if weight is None else weight / weight.sum()
        # Far from zero a sum would round by more than is rounded off below.
        start = low[used] / unit if center else np.zeros(len(used))
        own = X if len(used) == p else X.take(used, axis=1)
        shift, spread = _moments(own, unit, start, share, center)
        twin = {} if copies else _copies(own, unit, start, shift, spread, share)
        kept = np.setdiff1d(np.arange(len(used)), list(twin))
        found = tuple((int(used[j]), int(used[k])) for j, k in twin.items())
        used, size, ratio = used[kept], size[kept], (unit / size)[kept]
        if not standardize:
            return cls(np.zeros(len(used)), np.ones(len(used)), used, p, found)
        shift, spread = _rounded(shift[kept] * ratio, spread[kept] * ratio)
        start = low[used] / size if center else np.zeros(len(used))  # to the bit as of_moments
        return cls((start + shift) * size, spread * size, used, p, found)

    @classmethod
    def of_moments(
        cls,
        columns: Moments,
        *,
        center: bool,
        standardize: bool,
        copies: bool = True,
        factors: Mapping[str, Sequence[int]] | None = None,
    ) -> Scaling:
        """What :meth:`of` gives for a table of which only moments are known, up to rounding."""
        n_own = len(columns.mean)
        own = columns.with_references(factors) if factors else columns
        size = np.maximum(np.abs(own.low), np.abs(own.high))
        varies = 0.5 * own.high - 0.5 * own.low > 0.5 * _ROUNDING * size if center else size > 0
        used = np.flatnonzero(varies)
        if not standardize and copies and not factors:
            return cls(np.zeros(len(used)), np.ones(len(used)), used, n_own)
        root = own.root(center)[:, used]
        norm = np.linalg.norm(root, axis=0)
        size, start = size[used], own.low[used] if center else np.zeros(len(used))
        spread = norm / np.sqrt(own.rows) / size
        shift = (own.mean[used] - start) / size if center else start
        twin = {} if copies and not factors else _twins(root / norm, np.abs(shift / spread))
        kept = np.setdiff1d(np.arange(len(used)), list(twin))
        found = {int(used[j]): int(used[k]) for j, k in twin.items()}
        slopes = {int(used[j]): _turn(root[:, j], root[:, k]) for j, k in twin.items()}
        at, start, size = used[kept], start[kept], size[kept]
        if standardize:
            moved, unit = _rounded(shift[kept], spread[kept])
            moved, unit = (start / size + moved) * size, unit * size
        else:
            moved, unit = np.zeros(len(kept)), np.ones(len(kept))
        n_used = int((at < n_own).sum())
        declared = _declared(factors or {}, n_own, at, unit, found, slopes, own.mean, standardize)
        pairs = tuple((j, k) for j, k in found.items() if j < n_own)
        return cls(moved[:n_used], unit[:n_used], at[:n_used], n_own, pairs, declared)

    @classmethod
    def _with_references(
        cls,
        X: Floats,
        weight: Floats | None,
        factors: Mapping[str, Sequence[int]],
        center: bool,
        standardize: bool,
    ) -> Scaling:
        """Scales of all columns, the references' last, and what the references are of the others.

        With x_j = shift_j + scale_j z_j, or of a copy x_j = a + b x_k, a reference's column is
        (1 - sum_j x_j - shift) / scale; its constant vanishes where columns are centered.
        """
        p = X.shape[1]
        wide = [X, *(1 - X[:, list(own)].sum(axis=1) for own in factors.values())]
        found = cls.of(
            np.column_stack(wide), weight, center=center, standardize=standardize, copies=False
        )
        n_own, twins = int((found.used < p).sum()), {j: k for j, k in found.copies if j < p}
        slopes = {j: _slope(X[:, j], X[:, k]) for j, k in twins.items()}
        given = (factors, p, found.used, found.scale, twins, slopes)
        return cls(
            *(found.shift[:n_own], found.scale[:n_own], found.used[:n_own], p),
            tuple(twins.items()),
            _declared(*given, X[0], standardize),
        )

    def of_usual(self, columns: ColumnMoments, n_users: int, *, center: bool) -> Scaling:
        """The same columns in units of the usual users among ``columns``, all or a sample.

        Columns of categories have no units to mistake, and columns in which usual users do not vary
        keep theirs, as all do where everybody was looked at and is usual.
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

    def apply(self, X: Floats, *, in_place: bool = False) -> Floats:
        """Rows of the table as the model sees them, (n_rows, n_used).

        ``in_place``: the rows may be written over, and mostly are: no copy of them is made.
        """
        if len(self.used) < self.n_features:
            X = X.take(self.used, axis=1)
        if not self.shift.any() and bool((self.scale == 1.0).all()):
            return X
        out = X if in_place and X.flags.c_contiguous and X.flags.writeable else np.empty(X.shape)
        for rows, (shift, scale) in _side_by_side(len(X), self.shift, self.scale):
            part = out[rows].reshape(-1, len(shift))
            np.subtract(X[rows].reshape(part.shape), shift, out=part)
            part /= scale
        return out

    def undo(self, coef: Floats, intercept: Floats) -> tuple[Floats, Floats]:
        """Coefficients (m, n_used, n_outputs) and intercepts (m, n_outputs) in table units.

        The answer has a coefficient for every column, (m, n_features, n_outputs).
        """
        own = coef / self.scale[:, None]
        full = np.zeros((len(coef), self.n_features, coef.shape[2]))
        full[:, self.used] = own
        return full, intercept - np.matmul(self.shift, own)


@dataclass(frozen=True, eq=False)
class Moments:
    """What scales need to know of a table's columns; tables' add up (``odcl.mixed.terms.merge``).

    ``factor`` is triangular: factor'factor = sum over rows of (row - mean)(row - mean)'.
    """

    rows: float
    low: Floats  # (n_columns,), the smallest value
    high: Floats  # (n_columns,)
    mean: Floats  # (n_columns,)
    factor: Floats  # (any, n_columns)

    def root(self, center: bool) -> Floats:
        """A matrix whose squares are those of the columns, around their means with ``center``."""
        if center:
            return self.factor
        return np.vstack([np.sqrt(self.rows) * self.mean, self.factor])

    def with_references(self, factors: Mapping[str, Sequence[int]]) -> Moments:
        """The same with a 0/1 column more for each factor, one minus the sum of its own."""
        own = [list(columns) for columns in factors.values()]
        mean = [1 - self.mean[j].sum() for j in own]
        low = [1.0 - self.high[j].max() for j in own]  # 0, unless every row is the reference's
        high = [float(self.rows * self.mean[j].sum() < self.rows - 0.5) for j in own]
        columns = [-self.factor[:, j].sum(axis=1) for j in own]
        return Moments(
            self.rows,
            np.append(self.low, low),
            np.append(self.high, high),
            np.append(self.mean, mean),
            np.column_stack([self.factor, *columns]),
        )


def _units(size: Floats) -> Floats:
    """Powers of two to divide columns of such a size by: one, unless their squares are beyond
    floating point. To divide by one is not to divide, and to divide takes longest."""
    exponent = np.frexp(size)[1]
    return np.where(np.abs(exponent) < _FAR, 1.0, np.ldexp(1.0, np.clip(exponent, -1000, 1000)))


def _rounded(shift: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """Rounded to 32 bits: the order of rows moves the last digits of a sum, and nothing here."""
    mantissa, exponent = np.frexp(spread)
    spread = np.ldexp(np.rint(np.ldexp(mantissa, 32)), exponent - 32)
    return np.rint(np.ldexp(shift / spread, 32)) * np.ldexp(spread, -32), spread


def _twins(unit: Floats, shift: Floats) -> dict[int, int]:
    """Columns of length one that are an earlier one or its negative, and which."""
    near = 1e-10 + 1e-14 * shift
    found: dict[int, int] = {}
    for j in range(unit.shape[1]):
        for k in (k for k in range(j) if k not in found):
            sign = np.sign(unit[:, j] @ unit[:, k])
            if np.linalg.norm(unit[:, j] - sign * unit[:, k]) <= near[j] + near[k]:
                found[j] = k
                break
    return found


def _turn(copy: Floats, column: Floats) -> float:
    """The slope of a column that is another one up to shift, from what varies in both."""
    return float(copy @ column / (column @ column))


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
    """What each factor's reference is of the columns in use; see :meth:`_with_references`.

    ``row`` is any row of the table, or the mean of its rows.
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


def _slope(copy: Floats, column: Floats) -> float:
    """The slope of a column that is another one up to shift, scale and sign."""
    low, high = column.argmin(), column.argmax()
    return float((copy[high] - copy[low]) / (column[high] - column[low]))


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


def _column_ends(X: Floats) -> tuple[Floats, Floats]:
    """Least and largest entry of each column, (n_features,)."""
    p = X.shape[1]
    low, high = np.full(p, np.inf), np.full(p, -np.inf)
    for rows, (one,) in _side_by_side(len(X), low, long=_SHORT):
        part = X[rows].reshape(-1, len(one))
        low = np.minimum(low, part.min(axis=0).reshape(-1, p).min(axis=0, initial=np.inf))
        high = np.maximum(high, part.max(axis=0).reshape(-1, p).max(axis=0, initial=-np.inf))
    return low, high


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


def _copies(
    X: Floats, size: Floats, start: Floats, shift: Floats, spread: Floats, share: Floats
) -> dict[int, int]:
    """Columns that, standardized, are an earlier one or its negative, and which.

    What some rows add to the squared distance of two columns is no more than what all rows do, so
    few pairs are looked at row by row.
    """
    near = 1e-10 + 1e-14 * np.abs(shift / spread)
    some = np.unique(np.linspace(0, len(X) - 1, _GLANCE).astype(np.intp))
    z = (X[some] / size - start - shift) / spread
    products = (z * share[some][:, None]).T @ z
    own = np.diagonal(products)
    both = own[:, None] + own
    alike = both - 2 * np.abs(products) <= (near[:, None] + near) ** 2 + 1e-12 * both

    def column(j: int) -> Floats:
        return (X[:, j] / size[j] - start[j] - shift[j]) / spread[j]

    found: dict[int, int] = {}
    for j in range(X.shape[1]):
        for k in (int(k) for k in np.flatnonzero(alike[j, :j]) if int(k) not in found):
            a, b = column(j), column(k)
            sign = np.sign(share @ (a * b))
            if share @ (a - sign * b) ** 2 <= (near[j] + near[k]) ** 2:
                found[j] = k
                break
    return found
