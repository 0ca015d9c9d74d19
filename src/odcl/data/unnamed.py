"""Columns that nobody named: text becomes categories, ids and row numbers are left out.

What decides about a column is a value that the pieces of a table add up to, in their order.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odcl.data.columns import DECIMAL_COMMA, MOST_KEYS, NUMBER, is_text
from odcl.errors import listing, show

Names = tuple[str, ...]
_FEW = 10  # levels of a small table that are a category, though most rows have their own
_DATE = r"^[0-9]{4}-[0-9]{2}|^[0-9]{1,2}[./][0-9]{1,2}[./][0-9]{2,4}"
_OTHERWISE = rf"{NUMBER}|{DECIMAL_COMMA}|{_DATE}"


@dataclass(frozen=True)
class Look:
    """What some rows tell of a column of text, of categories or of integers."""

    rows: int  # with a value
    text: bool = False
    otherwise: int = 0  # rows whose text reads as a number or a date
    levels: frozenset[str] = frozenset()  # of text: one more at most than a category may have
    ends: tuple[int, int] | None = None  # the first and the last integer, if they count the rows

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Look:
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
        if not n or column.null_count or (np.diff(column.to_numpy()) != 1).any():
            return cls(n)
        return cls(n, ends=(column[0].as_py(), column[-1].as_py()))

    def __add__(self, other: Look) -> Look:
        if not (self.rows and other.rows):
            return self if self.rows else other
        ends = None
        if self.ends and other.ends and other.ends[0] == self.ends[1] + 1:
            ends = self.ends[0], other.ends[1]
        n, odd = self.rows + other.rows, self.otherwise + other.otherwise
        levels = frozenset(sorted(self.levels | other.levels)[: MOST_KEYS + 1])
        return Look(n, self.text or other.text, odd, levels, ends)

    @property
    def is_category(self) -> bool:
        return self.text and 2 * self.otherwise <= self.rows and self.rows > 0

    @property
    def left_out(self) -> str:
        """Why the column is no feature unless asked for: it numbers the rows, or nearly; or ""."""
        n = len(self.levels)
        if self.ends is not None and self.ends[0] in (0, 1) and self.rows > _FEW:
            return "it counts the rows"
        if self.is_category and (n > MOST_KEYS or 2 * n > max(2 * _FEW, self.rows)):
            levels = f"more than {MOST_KEYS:,}" if n > MOST_KEYS else f"{n:,}"
            return f"{levels} levels in {self.rows:,} rows"
        return ""


CATEGORY = Look(1, text=True)  # as its type says, whatever its values


def looks_at(table: pa.Table, names: Iterable[str]) -> dict[str, Look]:
    """Looks at the columns of categories, and at those whose type leaves open what they are."""
    kinds = {name: table[name].type for name in names}
    some = [n for n, kind in kinds.items() if is_open(kind) or pa.types.is_dictionary(kind)]
    return {name: Look.of(table[name]) for name in some}


def is_open(kind: pa.DataType) -> bool:
    """Do values decide what a column is? So it is with text, and with integers."""
    return is_text(kind) or bool(pa.types.is_integer(kind))


def settle(
    features: Names, categorical: Names, looks: Mapping[str, Look], *, asked: bool
) -> tuple[Names, Names]:
    """Features and categories of a table, with one warning about those that nobody named.

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
    if said:
        warnings.warn(" ".join(said), stacklevel=3)
    kept = tuple(name for name in features if name not in left)
    return kept, (*categorical, *texts)
