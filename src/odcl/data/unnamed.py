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

_FEW = 10  # levels of a small table that are a category, though most rows have their own
_DATE = r"^[0-9]{4}-[0-9]{2}|^[0-9]{1,2}[./][0-9]{1,2}[./][0-9]{2,4}"
_OTHERWISE = rf"{NUMBER}|{DECIMAL_COMMA}|{_DATE}"


@dataclass(frozen=True)
class Look:
    """What some rows tell of a column of text, of categories or of integers."""

    rows: int
    text: bool = False
    values: int = 0  # rows with a value
    otherwise: int = 0  # of them, whose text reads as a number or a date
    levels: frozenset[str] = frozenset()  # of text: one more at most than a category may have
    ends: tuple[int, int] | None = None  # the first and the last integer, if they count the rows

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Look:
        """The look at a column whose type is open, or one of categories."""
        kind, n = column.type, len(column)
        if pa.types.is_dictionary(kind):
            return CATEGORY
        if is_text(kind):
            counted = pc.value_counts(column.drop_null()).flatten()
            other = pc.match_substring_regex(counted[0], _OTHERWISE)
            rows = int(pc.sum(pc.filter(counted[1], other)).as_py() or 0)
            levels = frozenset(counted[0][: MOST_KEYS + 1].to_pylist())
            return cls(n, True, n - column.null_count, rows, levels)
        if not n or column.null_count or column[-1].as_py() - column[0].as_py() != n - 1:
            return cls(n)
        steps = bool((np.diff(column.to_numpy()) == 1).all())
        return cls(n, ends=(column[0].as_py(), column[-1].as_py()) if steps else None)

    def __add__(self, other: Look) -> Look:
        if not (self.rows and other.rows):
            return self if self.rows else other
        go_on = self.ends and other.ends and other.ends[0] == self.ends[1] + 1
        return Look(
            rows=self.rows + other.rows,
            text=self.text or other.text,
            values=self.values + other.values,
            otherwise=self.otherwise + other.otherwise,
            levels=frozenset(sorted(self.levels | other.levels)[: MOST_KEYS + 1]),
            ends=(self.ends[0], other.ends[1]) if go_on and self.ends and other.ends else None,
        )

    @property
    def is_category(self) -> bool:
        return self.text and 2 * self.otherwise <= self.values and self.values > 0

    @property
    def is_id(self) -> bool:
        """Has text nearly as many levels as rows, or more than a model can have?"""
        n = len(self.levels)
        return self.is_category and (n > MOST_KEYS or 2 * n > max(2 * _FEW, self.values))

    @property
    def counts_rows(self) -> bool:
        return self.ends is not None and self.ends[0] in (0, 1) and self.rows > _FEW


CATEGORY = Look(1, text=True, values=1)  # as its type says, whatever its values


def looks_at(table: pa.Table, names: Iterable[str]) -> dict[str, Look]:
    """Looks at the columns of categories, and at those whose type leaves open what they are."""
    kinds = {name: table[name].type for name in names}
    some = [n for n, kind in kinds.items() if is_open(kind) or pa.types.is_dictionary(kind)]
    return {name: Look.of(table[name]) for name in some}


def is_open(kind: pa.DataType) -> bool:
    """Do values decide what a column is? So it is with text, and with integers."""
    return is_text(kind) or bool(pa.types.is_integer(kind))


def settle(
    features: tuple[str, ...],
    categorical: tuple[str, ...],
    looks: Mapping[str, Look],
    *,
    asked: bool,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Features and categories of a table, with one warning about those that nobody named.

    Features that were ``asked`` for by name are not left out.
    """
    found = {name: looks[name] for name in features if name in looks and name not in categorical}
    left = {name: look for name, look in found.items() if look.is_id or look.counts_rows}
    if asked or len(left) == len(features):
        left = {}
    texts = [name for name, look in found.items() if look.is_category and name not in left]
    new = [name for name in texts if looks[name].levels]  # others have a type that says so
    said = [f"Columns of text are taken as categories: {listing(new)}."] if new else []
    if left:
        some = ", ".join(f"{show(name)} ({_why(look)})" for name, look in left.items())
        said.append(f"Left out: {some}. Ask for a column by its name to keep it.")
    if said:
        warnings.warn(" ".join(said), stacklevel=3)
    kept = tuple(name for name in features if name not in left)
    return kept, (*categorical, *texts)


def _why(look: Look) -> str:
    if not look.text:
        return "it counts the rows"
    n = len(look.levels)
    levels = f"more than {MOST_KEYS:,}" if n > MOST_KEYS else f"{n:,}"
    return f"{levels} levels in {look.values:,} rows"
