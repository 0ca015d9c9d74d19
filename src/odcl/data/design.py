"""From features to design columns: numbers as they are, categories as columns of 0 and 1."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from odcl._typing import Bools, Floats, Ints
from odcl.data.columns import (
    MOST_KEYS,
    Column,
    Keys,
    counted,
    is_numeric,
    keys,
    kind_of,
    levels_of,
    no_value,
    not_numbers,
    numbers,
)
from odcl.declared import OPTIONAL, Check, expect, fields_from_json
from odcl.errors import Advice, InputError, Row, Setting, did_you_mean, listing, show

UNSEEN = ("error", "reference")
OTHER = "other"  # the level that unknown ones count as, where a feature has agreed to that


def _are_levels(values: tuple[Any, ...]) -> bool:
    return are_keys(values, 1) and list(values[1:]) == sorted(values[1:])


Levels = Annotated[tuple[Any, ...], Check("distinct keys, sorted after the first", _are_levels)]


@dataclass(frozen=True, eq=False)
class DesignRows:
    """Rows that are design columns already, for an estimator that else takes a table's."""

    X: Floats  # (n_rows, n_columns)


def read_columns(
    table: pa.Table, features: Iterable[str], kinds: Mapping[str, str | None]
) -> Mapping[str, Column]:
    """The features' columns: keys for those in ``kinds``, as what they were in the fit.

    Of a long table numbers are read when they are asked for: a copy of one column at a time.
    """
    features = tuple(features)
    others = [n for n in features if n not in kinds and not is_numeric(table[n].type)]
    if others:
        raise not_numbers(table, others)
    columns = _Columns(table, features, kinds)
    return columns if table.num_rows > _LONG else dict(columns)


_LONG = 1_000_000  # rows


class _Columns(Mapping[str, Column]):
    """Columns of a table that are read anew at every look, save for keys."""

    def __init__(
        self, table: pa.Table, features: tuple[str, ...], kinds: Mapping[str, str | None]
    ) -> None:
        self._table, self._features = table, features
        self._keys = {name: keys(table, name, kinds[name]) for name in features if name in kinds}

    def __getitem__(self, name: str) -> Column:
        return self._keys[name] if name in self._keys else numbers(self._table, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)


@dataclass(frozen=True)
class NumberSummary:
    """Mean and ends of a column of numbers, without its gaps; summaries of pieces add up."""

    rows: int = 0  # with a value
    mean: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def of(cls, values: Floats) -> NumberSummary:
        """The mean is summed in units of a power of two: 1e308 is no limit."""
        values = values[~np.isnan(values)]
        if len(values) == 0:
            return cls()
        low, high = float(values.min()), float(values.max())
        _, exponent = math.frexp(max(abs(low), abs(high)))
        mean = math.ldexp(np.ldexp(values, -exponent).mean(), exponent)
        return cls(len(values), mean, low, high)

    @property
    def fill(self) -> float:
        """What stands for a missing value: the mean, rounded to 40 bits of the largest number.

        The last bits of a mean depend on how the table was cut into pieces, and rows are held out
        by what is in them.
        """
        if self.low == self.high:
            return self.low
        _, exponent = math.frexp(max(abs(self.low), abs(self.high)))
        return math.ldexp(round(math.ldexp(self.mean, 40 - exponent)), exponent - 40)

    def __add__(self, other: NumberSummary) -> NumberSummary:
        if not (self.rows and other.rows):
            return self if self.rows else other
        n = self.rows + other.rows
        mean = self.mean * (self.rows / n) + other.mean * (other.rows / n)
        return NumberSummary(n, mean, min(self.low, other.low), max(self.high, other.high))


FeatureSummary = NumberSummary | Counter[Any]  # of a category: how many rows hold each level


def summarize(columns: Mapping[str, Column], keep: Bools) -> dict[str, FeatureSummary]:
    """The features of the rows to ``keep``, one by one."""
    everything = bool(keep.all())
    return {
        name: counted(column, keep)
        if isinstance(column, Keys)
        else NumberSummary.of(column if everything else column[keep])
        for name, column in columns.items()
    }


@dataclass(frozen=True)
class Design:
    """How features become design columns.

    A categorical feature with k levels gives k - 1 columns of 0 and 1: the most frequent level (of
    equally frequent ones the first by name) is the reference, at which all of them are 0, because
    k columns beside an intercept are collinear.
    """

    features: tuple[str, ...]
    levels: dict[str, Levels]  # categorical feature -> its levels, the reference first
    fill: dict[str, float]  # numeric feature -> its mean in the fit
    # Categorical features whose unknown levels count as "other".
    other: tuple[str, ...] = field(default=(), metadata=OPTIONAL)

    @classmethod
    def of(cls, features: tuple[str, ...], found: Mapping[str, FeatureSummary]) -> Design:
        """The design of features whose values were summarized."""
        levels: dict[str, tuple[Any, ...]] = {}
        fill: dict[str, float] = {}
        for name in features:
            one = found[name]
            if isinstance(one, Counter):
                levels[name] = levels_of(name, one)
            elif not one.rows:
                raise no_value(name)
            else:
                fill[name] = one.fill
        return cls(features, levels, fill).checked()

    def checked(self) -> Design:
        """The design, unless it has no column, or two of one name."""
        columns = self.columns
        if not columns:
            raise InputError(
                "The features give no design column: each is a category of a single level."
            )
        if len(set(columns)) < len(columns):
            name = next(name for name in columns if columns.count(name) > 1)
            raise InputError(
                f"Two design columns would be called {name!r} (a level and a column): rename one."
            )
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the design columns: ``price`` for a number, ``region=north`` for a level."""
        names: list[str] = []
        for name in self.features:
            names += [f"{name}={level}" for level in self.levels.get(name, ())[1:]]
            names += [] if name in self.levels else [name]
        return tuple(names)

    @property
    def kinds(self) -> dict[str, str]:
        """What the levels of each categorical feature are: text, int, ..."""
        return {name: kind_of(levels) for name, levels in self.levels.items()}

    @property
    def factors(self) -> dict[str, tuple[int, ...]]:
        """Categorical feature -> the positions of its design columns."""
        found, at = {}, 0
        for name in self.features:
            n = len(self.levels[name]) - 1 if name in self.levels else 1
            if name in self.levels and n > 0:
                found[name] = tuple(range(at, at + n))
            at += n
        return found

    def rows(
        self, columns: Mapping[str, Column], rows: Ints, unseen: str = "error"
    ) -> tuple[Floats, dict[tuple[str, Any], int]]:
        """The design matrix of the given rows, and how many hold each (column, unseen level)."""
        X = np.zeros((len(rows), len(self.columns)))
        replaced: dict[tuple[str, Any], int] = {}
        at = 0
        for name in self.features:
            column = columns[name]
            if isinstance(column, Keys):
                level, strange = self._level_codes(name, column, rows, unseen)
                (hot,) = np.nonzero(level > 0)
                X[hot, at + level[hot] - 1] = 1.0
                at += len(self.levels[name]) - 1
                replaced |= {(name, value): n for value, n in strange.items()}
            else:
                values = column if len(rows) == len(column) else column[rows]
                X[:, at] = values
                empty = np.isnan(values)
                if empty.any():
                    X[empty, at] = self.fill[name]
                at += 1
        return X, replaced

    def _level_codes(
        self, name: str, column: Keys, rows: Ints, unseen: str
    ) -> tuple[Ints, Counter[Any]]:
        """Position of each row's level (0, the reference, where there is none), unseen ones."""
        level = key_positions(column.values, self.levels[name])[column.codes[rows]]
        strange = level == -2
        if name in self.other:
            level[strange] = self.levels[name].index(OTHER)
        elif strange.any() and unseen == "error":
            row = int(rows[strange.argmax()])
            value = column.values[column.codes[row]]
            raise InputError(
                f"Column {name!r} has level {show(value)} in ",
                Row(row + 1),
                f", which is not known{did_you_mean(value, self.levels[name])} Levels: "
                f"{listing(self.levels[name])}. ",
                *(Advice("Say "), Setting("unseen", "reference")),
                f" to read new levels as {show(self.levels[name][0])}.",
            )
        new = Counter(column.values[code] for code in column.codes[rows[strange]].tolist())
        return np.maximum(level, 0), new

    @classmethod
    def from_json(cls, content: Any) -> Design:
        """The design that :func:`~odcl.declared.to_json` wrote; what no fit gives is refused."""
        return fields_from_json(cls, content).written()

    def written(self) -> Design:
        """The design, unless no fit can have written it."""
        names, known = set(self.features), {*self.levels, *self.fill}
        expect(len(names) == len(self.features) > 0, "its features are not distinct names")
        expect(not set(self.levels) & set(self.fill), "a feature has levels and a mean")
        expect(known == names, "levels and means are not those of the features")
        listed = all(OTHER in self.levels.get(name, ()) for name in self.other)
        expect(listed, f"a feature counts unknown levels as {OTHER!r}, and has no such level")
        return self.checked()


def are_keys(values: Any, least: int) -> bool:
    """A list of distinct keys of one kind, as :func:`odcl.data.columns.keys` gives them."""
    if not isinstance(values, list | tuple) or not least <= len(values) <= MOST_KEYS:
        return False
    types = {type(value) for value in values}
    if not any(types <= kinds for kinds in ({str}, {bool}, {int, float})):
        return False
    finite = all(abs(v) < 2**64 for v in values if type(v) is int)
    finite &= all(math.isfinite(v) for v in values if type(v) is float)
    return finite and len(set(values)) == len(values)


def key_positions(values: list[Any], known: tuple[Any, ...]) -> Ints:
    """Position among the known of each value, and -1 at the end for code -1; -2: not known."""
    position = {value: i for i, value in enumerate(known)}
    return np.array([*(position.get(v, -2) for v in values), -1], dtype=np.intp)
