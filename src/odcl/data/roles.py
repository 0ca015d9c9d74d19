"""What the columns of a table are taken for: the user, the target, features and categories.

Columns of text become categories; ids and row numbers are left out unless asked for. What decides
about a column is a value that the pieces of a table add up to, in their order.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odcl.data.columns import DECIMAL_COMMA, MOST_KEYS, NUMBER, as_names, is_text
from odcl.errors import InputError, Rule, Setting, did_you_mean, listing, show

MISSING = ("error", "drop", "mean")
TASKS = ("regression", "classification", "count")

Names = tuple[str, ...]
_FEW = 10  # levels of a small table that are a category, though most rows have their own
_DATE = r"^[0-9]{4}-[0-9]{2}|^[0-9]{1,2}[./][0-9]{1,2}[./][0-9]{2,4}"
_OTHERWISE = rf"{NUMBER}|{DECIMAL_COMMA}|{_DATE}"


@dataclass(frozen=True)
class ColumnLook:
    """What some rows tell of a column of text, of categories or of integers."""

    rows: int  # with a value
    text: bool = False
    otherwise: int = 0  # rows whose text reads as a number or a date
    levels: frozenset[str] = frozenset()  # of text: one more at most than a category may have
    ends: tuple[int, int] | None = None  # the first and the last integer, if they rise row by row

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> ColumnLook:
        """The look at a column whose type is open, or one of categories."""
        kind, n = column.type, len(column) - column.null_count
        if pa.types.is_dictionary(kind):
            return CATEGORY
        if is_text(kind):
            counted = pc.value_counts(column.drop_null()).flatten()
            other = pc.match_substring_regex(counted[0], _OTHERWISE)
            rows = int(pc.sum(pc.filter(counted[1], other)).as_py() or 0)
            levels = frozenset(counted[0][: MOST_KEYS + 1].to_pylist())
            return cls(n, True, rows, levels)
        if not n or column.null_count or (np.diff(column.to_numpy()) < 1).any():
            return cls(n)
        return cls(n, ends=(column[0].as_py(), column[-1].as_py()))

    def __add__(self, other: ColumnLook) -> ColumnLook:
        if not (self.rows and other.rows):
            return self if self.rows else other
        ends = None
        if self.ends and other.ends and other.ends[0] > self.ends[1]:
            ends = self.ends[0], other.ends[1]
        n, odd = self.rows + other.rows, self.otherwise + other.otherwise
        levels = frozenset(sorted(self.levels | other.levels)[: MOST_KEYS + 1])
        return ColumnLook(n, self.text or other.text, odd, levels, ends)

    @property
    def is_category(self) -> bool:
        return self.text and 2 * self.otherwise <= self.rows and self.rows > 0

    @property
    def rises(self) -> bool:
        """Is the column another, larger integer in every row, as ids are?"""
        return self.ends is not None and self.rows > _FEW

    @property
    def left_out(self) -> str:
        """Why the column is no feature unless asked for: it numbers the rows, or nearly; or ""."""
        n = len(self.levels)
        if self.rises and self.ends in ((0, self.rows - 1), (1, self.rows)):
            return "it counts the rows"
        if self.is_category and (n > MOST_KEYS or 2 * n > max(2 * _FEW, self.rows)):
            levels = f"more than {MOST_KEYS:,}" if n > MOST_KEYS else f"{n:,}"
            return f"{levels} levels in {self.rows:,} rows"
        return ""


CATEGORY = ColumnLook(1, text=True)  # as its type says, whatever its values


def looks_at(table: pa.Table, names: Iterable[str]) -> dict[str, ColumnLook]:
    """Looks at the columns of categories, and at those whose type leaves open what they are."""
    kinds = {name: table[name].type for name in names}
    some = [n for n, kind in kinds.items() if is_open(kind) or pa.types.is_dictionary(kind)]
    return {name: ColumnLook.of(table[name]) for name in some}


def is_open(kind: pa.DataType) -> bool:
    """Whether values decide what a column is, as with text and integers."""
    return is_text(kind) or bool(pa.types.is_integer(kind))


def settle(
    features: Names, categorical: Names, looks: Mapping[str, ColumnLook], *, asked: bool
) -> tuple[Names, Names]:
    """Features and categories of a table, with one warning about columns not named.

    Features that were ``asked`` for by name are not left out.
    """
    found = {name: looks[name] for name in features if name in looks and name not in categorical}
    left = {name: look.left_out for name, look in found.items() if look.left_out}
    if asked or len(left) == len(features):
        left = {}
    texts = [name for name, look in found.items() if look.is_category and name not in left]
    new = [name for name in texts if looks[name].levels]  # others have a type that says so
    said = [f"Columns of text are taken as categories: {listing(new)}."] if new else []
    if left:
        some = ", ".join(f"{show(name)} ({why})" for name, why in left.items())
        said.append(f"Left out: {some}. Ask for a column by its name to keep it.")
    rising = [name for name, look in found.items() if look.rises and name not in left]
    if rising and not asked:
        verb = "rises" if len(rising) == 1 else "rise"
        said.append(f"{listing(rising)} {verb} from row to row: drop what is an id.")
    if said:
        warnings.warn(" ".join(said), stacklevel=3)
    kept = tuple(name for name in features if name not in left)
    return kept, (*categorical, *texts)


@dataclass(frozen=True)
class ColumnOptions:
    """What a caller says of a table's columns, before any row is read.

    Whether the files of a folder agree in columns that are not in use does not matter.
    """

    user: str
    target: str
    features: Names | None = None  # None: all columns but those to drop
    drop: Names = ()
    categorical: Names = ()
    missing: str = "error"
    task: str = "regression"
    time: str | None = None  # orders the rows of a user; no feature unless ``features`` names it

    def __post_init__(self) -> None:
        for name in ("features", "drop", "categorical"):  # a single one may stand for itself
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_names(getattr(self, name)))
        check_choice("missing", self.missing, MISSING)
        check_choice("task", self.task, TASKS)

    @property
    def fixed(self) -> Names:
        """The columns in a role that has to be filled."""
        return (self.user, self.target, *(() if self.time is None else (self.time,)))

    @property
    def named(self) -> Names:
        """The columns that were named, and must be there."""
        return (*self.fixed, *(self.features or ()), *self.drop, *self.categorical)

    def __contains__(self, name: object) -> bool:
        """Whether a column is in use."""
        if name in self.fixed or name in self.categorical:
            return True
        return name not in self.drop if self.features is None else name in self.features

    def spares(self, names: Iterable[str]) -> bool:
        """Whether all of them may be dropped."""
        return self.features is None and not set(names).intersection(self.fixed)

    def roles(self, columns: Iterable[str]) -> Roles:
        """What the columns of a table are taken for, by their names."""
        names = list(columns)
        check_columns(self.fixed, names)
        if self.time in (self.user, self.target):
            role = "user" if self.time == self.user else "target"
            raise InputError(
                f"Column {self.time!r} is the {role}, and cannot order the rows as well."
            )
        chosen = _choose_features(names, self)
        own = self.user, self.target, chosen, self.categorical
        return Roles(*own, self.missing, self.task, self.features is not None)


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are taken for."""

    user: str
    target: str
    features: Names
    categorical: Names = ()
    missing: str = "error"
    task: str = "regression"
    asked: bool = False  # features were asked for by name

    @classmethod
    def of(cls, columns: Iterable[str], **options: Any) -> Roles:
        """The roles of columns; ``options`` are those of :class:`ColumnOptions`."""
        return ColumnOptions(**options).roles(columns)

    def settled(self, looks: Mapping[str, ColumnLook]) -> Roles:
        """The roles by a look at the values: columns of text are categories, ids left out."""
        chosen, category = settle(self.features, self.categorical, looks, asked=self.asked)
        return replace(self, features=chosen, categorical=category)

    @property
    def columns(self) -> list[str]:
        return [self.user, *self.features, self.target]


def check_choice(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{option} is one of {', '.join(known)}, not {show(value)}.")


def check_columns(names: Iterable[str], columns: Sequence[str]) -> None:
    """Refuse names that are not among ``columns``, with the nearest to one that is not."""
    lacking = [name for name in dict.fromkeys(names) if name not in columns]
    if lacking:
        some, near = f"Column {lacking[0]!r} is not", did_you_mean(lacking[0], columns)
        if len(lacking) > 1:
            some, near = f"Columns {listing(lacking)} are not", "."
        raise InputError(Rule(f"{some} in the table"), f"{near} Columns: {listing(columns)}.")


def _choose_features(columns: Sequence[str], options: ColumnOptions) -> Names:
    """Names of the features."""
    user, target, drop = options.user, options.target, options.drop
    asked = options.features or ()
    if user == target:
        raise InputError(f"Column {user!r} cannot be the user and the target at once.")
    given = {"features": asked, "drop": drop, "categorical": options.categorical}
    for role, names in given.items():
        check_columns(names, columns)
        for name in names:
            if name in (user, target):
                other = "user" if name == user else "target"
                raise InputError(
                    f"Column {name!r} is the {other}, and cannot stand in {role} as well."
                )
    both = [name for name in asked if name in drop]
    if both:
        raise InputError(f"Column {both[0]!r} is both asked for and dropped: choose one.")
    left_out = {user, target, *drop, *({options.time} if options.time not in asked else ())}
    known = dict.fromkeys(columns if options.features is None else asked)
    chosen = tuple(name for name in known if name not in left_out)
    idle = [name for name in options.categorical if name not in chosen]
    if idle:
        raise InputError(
            f"Column {idle[0]!r} is named as categorical but is not among the features: "
            f"{listing(chosen)}."
        )
    if not chosen:
        raise InputError(
            "No feature is left beside the user and the target, and a model needs at least one. "
            f"Columns: {listing(columns)}."
        )
    if any(not name.strip() for name in chosen):
        raise InputError(
            "A column has no name (a row index written along?) and would count as a feature: give "
            "it a name, or leave it out (",
            Setting("drop", [""]),
            "; in pandas, to_csv(index=False)).",
        )
    return chosen


def column_position(names: list[Any], column: Any, what: str = "the users") -> int:
    """Position of a column, by its name or position, among a frame's."""
    if column in names:
        return names.index(column)
    if is_position(column) and -len(names) <= column < len(names):
        return int(column) % len(names)
    raise ValueError(f"X has no column {column!r} for {what}{did_you_mean(column, names)}")


def is_position(column: Any) -> bool:
    return isinstance(column, Integral) and not isinstance(column, bool)


def is_dask_frame(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "dask" and hasattr(data, "to_delayed")
