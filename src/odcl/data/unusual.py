"""Users whose columns lie where nobody else's do: another unit, a mistyped number, a missing code.

Units and groups are read off the others, and they are placed afterwards: six sites
in Kelvin must not decide how far apart everybody else's temperatures seem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.data.federation import Federation

FAR = 20.0  # usual spreads between a user's mean and the median user's
WIDE = 8.0  # usual spreads of a user's log standard deviation above the median
LEAST_LOG = 0.25  # that spread is taken to be no less: no user is wide below a factor of e^2
TAME = 3.0  # usual spreads up to which a user's mean and log deviation move common units
MANY = 0.25  # of the users; a column in which more than this share lie outside is just skewed
SAMPLE = 2000  # users, drawn by their ids, who are looked at
BLOCK = 1 << 18  # numbers that are looked at at a time
FEWEST = 5  # users: with fewer it is unknown what is usual
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
        step = max(BLOCK * rows.n_users // max(rows.X.size, 1), 1)
        for first in range(0, rows.n_users, step):  # users whose rows stay near the processor
            part, own = slice(first, first + step), n[first : first + step]
            inside = slice(rows.offsets[first], rows.offsets[first + len(own)])
            starts = rows.offsets[part][: len(own)] - rows.offsets[first]
            for values, to in ((rows.X[inside], slice(p)), (y[inside, None], slice(p, None))):
                middle = np.add.reduceat(values, starts) / own[:, None]
                away = values - np.repeat(middle, own, axis=0)
                away *= away
                mean[part, to] = middle
                sd[part, to] = np.sqrt(np.add.reduceat(away, starts) / own[:, None])
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

    def tamed(self) -> ColumnMoments:
        """With means and deviations beyond three usual spreads brought back to there."""
        logs = np.log(np.maximum(self.sd, 1e-300))
        (middle, between), (log, spread) = _robust(self.mean), _robust(logs)
        reach, times = TAME * between, TAME * np.maximum(spread, LEAST_LOG)
        mean, near = (
            np.where(known > 0, np.clip(values, at - far, at + far), values)
            for values, at, far, known in (
                (self.mean, middle, reach, between),
                (logs, log, times, spread),
            )
        )
        return ColumnMoments(self.rows, mean, np.where(spread > 0, np.exp(near), self.sd))

    @property
    def varies(self) -> Bools:
        """Whether the column varies within the user, (n_users, p + 1)."""
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
    times: Floats  # (p + 1,), how many times the median deviation is usual

    @classmethod
    def of(cls, columns: ColumnMoments) -> Limits:
        """The limits that these users set.

        A column that is constant within most users (the size of a store) says nothing of its unit:
        nobody is judged by it. Nor by one in which a quarter of the users would lie outside, which
        is just skewed, nor among fewer than five users.
        """
        varies, mean, sd = columns.varies, columns.mean, columns.sd
        # A column of 0 and 1 has no unit, however rare its ones are.
        yes_no = (np.abs(mean * (1 - mean) - sd**2) < 1e-6).all(axis=0)
        judged = (columns.varying() >= 0.5) & (varies.sum(axis=0) >= FEWEST) & ~yes_no
        means = np.where(varies | ~judged, mean, np.nan)
        logs = np.log(np.where(varies, sd, np.where(judged, np.nan, 1.0)))
        (middle, between), (log, spread) = _robust(means), _robust(logs)
        at = cls(
            middle,
            np.where(judged, FAR * np.maximum(between, np.exp(log)), np.inf),
            np.exp(log),
            np.where(judged, np.exp(WIDE * np.maximum(spread, LEAST_LOG)), np.inf),
        )
        at.reach[-1] = np.inf
        found = at.outside(columns)
        at.reach[(found.far != 0).mean(axis=0) > MANY] = np.inf
        at.times[(found.wide > 0).mean(axis=0) > MANY] = np.inf
        return at

    def outside(self, columns: ColumnMoments, *, constant: bool = False) -> Unusual:
        """Who lies outside; of users of several rows, by what is ``constant`` in them if asked."""
        judged = columns.varies | ((columns.rows > 0) & (constant | (columns.rows < 2)))[:, None]
        away, times = columns.mean - self.middle, columns.sd / self.deviation
        # A large store lies far out in sales, which vary by as much in it: that is no other unit.
        reach = np.maximum(self.reach, FAR * columns.sd)
        far = np.where(judged & (np.abs(away) > reach), away, 0.0)
        return Unusual(far, np.where(judged & (times > self.times), times, 0.0))


def unusual_users(columns: ColumnMoments) -> Unusual:
    """Users who lie outside the limits that they set together."""
    return Limits.of(columns).outside(columns)


def _robust(values: Floats) -> tuple[Floats, Floats]:
    """Columns' medians, and the standard deviations that median distances from them stand for."""
    median = np.nanmedian if np.isnan(values).any() else np.median
    middle = np.asarray(median(values, axis=0))
    return middle, 1.4826 * np.asarray(median(np.abs(values - middle), axis=0))


def sample_moments(rows: Federation) -> ColumnMoments:
    """Of all users, or of a sample where there are many."""
    few = rows.some_users(SAMPLE)
    return ColumnMoments.of(rows if len(few) == rows.n_users else rows.take(few))
