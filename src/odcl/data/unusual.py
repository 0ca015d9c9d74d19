"""Users whose columns lie where nobody else's do: another unit, a mistyped number, a missing code.

Units and groups are read off the others, and they are placed afterwards: six sites
in Kelvin must not decide how far apart everybody else's temperatures seem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from odcl._typing import Array, Bools, Floats
from odcl.data.federation import Federation
from odcl.errors import number, show

FAR = 20.0  # usual spreads between a user's mean and the median user's
WIDE = 8.0  # usual spreads of a user's log standard deviation above the median
LEAST_LOG = 0.25  # that spread is taken to be no less: no user is wide below a factor of e^2
MANY = 0.25  # of the users; a column in which more than this share lie outside is just skewed
SAMPLE = 2000  # users, drawn by their ids, who are looked at
FEWEST = 5  # users below whom nobody can say what is usual
MOST = 3  # users, and cells of a column, that are named
CONSTANT = 1e-10  # a standard deviation below this share of the mean is rounding


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Mean and standard deviation of every user's columns: the features and, last, the target."""

    rows: Floats  # (n_users,)
    mean: Floats  # (n_users, p + 1)
    sd: Floats  # (n_users, p + 1)

    @classmethod
    def of(cls, rows: Federation) -> ColumnMoments:
        """Of a table's rows, weights aside."""
        n, p = rows.n_rows, rows.n_features
        mean, sd = np.empty((rows.n_users, p + 1)), np.empty((rows.n_users, p + 1))
        y = np.asarray(rows.y, np.float64) if rows.y.dtype.kind in "iufb" else np.zeros(len(rows.y))
        for j in range(p + 1):
            column = rows.X[:, j] if j < p else y
            mean[:, j] = np.add.reduceat(column, rows.offsets[:-1]) / n
            away = column - np.repeat(mean[:, j], n)
            sd[:, j] = np.sqrt(np.add.reduceat(away * away, rows.offsets[:-1]) / n)
        return cls(n.astype(np.float64), mean, sd)

    def in_units(self, shift: Floats, scale: Floats) -> ColumnMoments:
        """The columns shift + scale * column; the target stays as it is."""
        shift, scale = np.append(shift, 0.0), np.append(scale, 1.0)
        return ColumnMoments(self.rows, shift + scale * self.mean, scale * self.sd)

    def pooled(self, users: Bools) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the columns over all rows of some users, (p + 1,) each."""
        share = self.rows[users] / self.rows[users].sum()
        mean = share @ self.mean[users]
        return mean, np.sqrt(share @ (self.sd[users] ** 2 + (self.mean[users] - mean) ** 2))

    @property
    def varies(self) -> Bools:
        """Does the column vary within the user? (n_users, p + 1)"""
        return np.asarray(self.sd > CONSTANT * np.abs(self.mean))

    def varying(self) -> Floats:
        """The share of users in whom a column varies, of those with two rows, (p + 1,)."""
        able = self.rows >= 2
        return self.varies[able].mean(axis=0) if able.any() else np.ones(self.mean.shape[1])


@dataclass(frozen=True, eq=False)
class Unusual:
    """Who lies outside in which columns; a target's level may be anywhere and is never far."""

    far: Floats  # (n_users, p + 1), signed distance from the median user's mean; 0: not far
    wide: Floats  # (n_users, p + 1), how many times the median user's deviation; 0: not wide

    @property
    def users(self) -> Bools:
        """(n_users,)"""
        return np.asarray(((self.far != 0) | (self.wide > 0)).any(axis=1))

    @property
    def others(self) -> Bools:
        """Users whom units are read off: the usual ones, or all where those are too few."""
        outside = self.users
        return ~outside if 2 * outside.sum() <= len(outside) else np.ones_like(outside)

    @property
    def in_features(self) -> Bools:
        """Users whose features, whatever their targets, lie outside, (n_users,)."""
        return Unusual(self.far[:, :-1], self.wide[:, :-1]).users


@dataclass(frozen=True, eq=False)
class Limits:
    """Where the columns of usual users lie; infinite where nobody is judged by a column."""

    middle: Floats  # (p + 1,), the median user's mean
    reach: Floats  # (p + 1,), distances from it up to here are usual
    deviation: Floats  # (p + 1,), the median user's standard deviation
    times: Floats  # (p + 1,), up to so many times it is usual

    @classmethod
    def of(cls, columns: ColumnMoments) -> Limits:
        """The limits that these users set.

        A column that is constant within most users (the size of a store) says nothing of its unit:
        nobody is judged by it. Nor by one in which a quarter of the users would lie outside, which
        is just skewed, nor among fewer than five users.
        """
        width = columns.mean.shape[1]
        at = cls(np.zeros(width), np.full(width, np.inf), np.ones(width), np.full(width, np.inf))
        varies = columns.varies
        for j in np.flatnonzero(columns.varying() >= 0.5):
            able = varies[:, j]
            mean, sd = columns.mean[able, j], columns.sd[able, j]
            if len(sd) < FEWEST or _yes_no(columns.mean[:, j], columns.sd[:, j]):
                continue
            at.middle[j], between = _robust(mean)
            log, spread = _robust(np.log(sd))
            at.deviation[j] = np.exp(log)
            if j < width - 1:
                at.reach[j] = FAR * max(between, at.deviation[j])
            at.times[j] = np.exp(WIDE * max(spread, LEAST_LOG))
        found = at.outside(columns)
        at.reach[(found.far != 0).mean(axis=0) > MANY] = np.inf
        at.times[(found.wide > 0).mean(axis=0) > MANY] = np.inf
        return at

    def outside(self, columns: ColumnMoments) -> Unusual:
        """Who lies outside; users of several rows are not judged by what is constant in them."""
        judged = columns.varies | (columns.rows < 2)[:, None]
        away, times = columns.mean - self.middle, columns.sd / self.deviation
        # A large store lies far out in sales, which vary by as much in it: that is no other unit.
        reach = np.maximum(self.reach, FAR * columns.sd)
        far = np.where(judged & (np.abs(away) > reach), away, 0.0)
        return Unusual(far, np.where(judged & (times > self.times), times, 0.0))


def unusual_users(columns: ColumnMoments) -> Unusual:
    """Users who lie outside the limits that they set together."""
    return Limits.of(columns).outside(columns)


def _yes_no(mean: Floats, sd: Floats) -> bool:
    """Is the column 0 or 1 in every row? It has no unit, however rare its ones are."""
    return bool((np.abs(mean * (1 - mean) - sd**2) < 1e-6).all())


def _robust(values: Floats) -> tuple[float, float]:
    """Median, and the standard deviation that the median distance from it stands for."""
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))


# -- in words ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoneCell:
    """The one cell that makes a user's column vary as nobody else's does."""

    row: int  # among the rows of the federation
    value: float
    low: float  # of the user's other rows
    high: float


def lone_cell(rows: Federation, user: int, column: int) -> LoneCell | None:
    """The cell without which the user's column would vary less than a tenth as much, if any."""
    own = rows.X[rows.rows(user), column] if column < rows.n_features else rows.y[rows.rows(user)]
    if len(own) < 4:
        return None
    at = int(np.argmax(np.abs(own - np.median(own))))
    rest = np.delete(own, at)
    if own.std() <= 10 * rest.std():
        return None
    found = int(rows.offsets[user]) + at
    return LoneCell(found, *(float(v) for v in (own[at], rest.min(), rest.max())))


def unusual_lines(
    found: Unusual,
    users: Array,
    names: Sequence[str],
    rows: Federation | None = None,
    row_number: Callable[[int], int] | None = None,
) -> list[str]:
    """A notice for each column in which users lie outside; ``names`` end with the target's.

    Columns without a name are passed over. With ``rows`` a cell that stands alone is named, by its
    ``row_number`` in the table, from 1.
    """
    lines = []
    for j, name in enumerate(names):
        wide = np.flatnonzero(found.wide[:, j] * bool(name)).tolist()
        far = np.flatnonzero(found.far[:, j] * bool(name)).tolist()
        cells = {} if rows is None else {i: lone_cell(rows, i, j) for i in wide}
        alone = {i: cell for i, cell in cells.items() if cell is not None}
        for i, cell in list(alone.items())[:MOST]:
            where = "" if row_number is None else f"row {row_number(cell.row):,}, "
            lines.append(
                f"{where}user {show(users.tolist()[i])}: {name} is {number(cell.value, 6)}, and "
                f"{number(cell.low)} to {number(cell.high)} in the user's other rows: mistyped, or "
                "a code for a missing value?"
            )
        if len(alone) > MOST:
            lines.append(f"{len(alone) - MOST:,} more users with one such value of {name}")
        loud = [i for i in wide if i not in alone]
        if loud:
            times = number(float(np.median(found.wide[loud, j])))
            text = f"{name} varies {times} times as much as everybody else's: another unit?"
            lines.append(f"{_who(users, loud)}: {text}")
        away = [i for i in far if i not in wide]
        if away:
            gap = number(float(np.median(np.abs(found.far[away, j]))))
            text = f"{name} lies {gap} away from everybody else's: another unit?"
            lines.append(f"{_who(users, away)}: {text}")
    return lines


def _who(users: Array, some: list[int]) -> str:
    names = ", ".join(show(user) for user in users[some[:MOST]].tolist())
    if len(some) == 1:
        return f"user {names}"
    return f"{len(some):,} users ({names}{', ...' * (len(some) > MOST)})"


def unusual_notices(
    rows: Federation, names: Sequence[str], row_number: Callable[[int], int] | None = None
) -> list[str]:
    """What is odd about some users of a table; ``names`` and ``row_number`` as above."""
    few = rows.some_users(SAMPLE)
    whole = len(few) == rows.n_users
    part = rows if whole else rows.take(few)
    if not whole and row_number is not None:
        at, number = rows.rows_of(few), row_number
        return unusual_notices(part, names, lambda row: number(int(at[row])))
    return unusual_lines(unusual_users(ColumnMoments.of(part)), part.users, names, part, row_number)
