"""The columns of a table in their roles, and the rows that can be used.

A row that lacks a value is refused, left out or filled in, as ``missing`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odcl._typing import Array, Bools, Ints
from odcl.data.columns import (
    Column,
    Keys,
    gaps,
    is_numeric,
    is_text,
    keys,
    kind_of,
    not_numbers,
    numbers,
)
from odcl.data.federation import as_ids, distinct_integers, group_rows
from odcl.errors import Advice, InputError, Row, Rule, Setting, listing


class Gap(NamedTuple):
    """Where a column has no value."""

    first: Row
    rows: int  # without one

    @classmethod
    def of(cls, gap: Bools, file: str = "", before: int = 0) -> Gap:
        """``file`` and the rows ``before`` say where the rows of ``gap`` stand."""
        return cls(Row(int(gap.argmax()) + 1 + before, file), int(gap.sum()))


@dataclass(frozen=True, eq=False)
class Gaps:
    """The rows of a table that lack a value, column by column."""

    n_rows: int
    columns: dict[str, Bools]  # (n_rows,) each; columns without a gap are not here
    roles: tuple[str, ...]  # the user and the target, which can be neither filled in nor left out

    @classmethod
    def of(
        cls,
        owner: Mapping[str, Keys],
        features: Mapping[str, Column],
        target: Mapping[str, Column],
    ) -> Gaps:
        named = chain(owner.items(), features.items(), target.items())
        found = {name: gap for name, column in named if (gap := gaps(column)).any()}
        n_rows = len(next(iter(owner.values())).codes)
        return cls(n_rows, found, (*owner, *target))

    @property
    def n_incomplete(self) -> int:
        """Rows that lack a value in some column."""
        return int(np.any(list(self.columns.values()), axis=0).sum()) if self.columns else 0

    @property
    def counts(self) -> dict[str, int]:
        """Rows without a value, by column."""
        return {name: int(gap.sum()) for name, gap in self.columns.items()}

    def listed(self, file: str = "", before: int = 0) -> dict[str, Gap]:
        """The first row without a value and their number, by column."""
        return {name: Gap.of(gap, file, before) for name, gap in self.columns.items()}

    def usable(self, missing: str) -> Bools:
        """Rows to use, (n_rows,): complete ones, with "mean" all that have a user and a target."""
        unusable = np.zeros(self.n_rows, dtype=np.bool_)
        for name, gap in self.columns.items():
            if missing != "mean" or name in self.roles:
                unusable |= gap
        return ~unusable

    def checked_rows(self, missing: str, *, is_fit: bool, piece: bool = False) -> Bools:
        """The rows to use; a table with gaps is refused where ``missing`` is "error", and one
        without any row to use unless it is a ``piece`` of another."""
        if missing == "error" and self.columns:
            given = self.n_incomplete, self.n_rows, self.roles
            raise missing_error(self.listed(), *given, is_fit=is_fit)
        keep = self.usable(missing)
        if not piece and not keep.any():
            raise no_row_error(self.listed(), self.n_rows, self.roles)
        return keep


def refuse_gaps(columns: Mapping[Any, Column], *, fitting: bool = False) -> None:
    """Refuse columns of a frame that lack a value, by their names and rows."""
    found = {name: Gap.of(gap) for name, c in columns.items() if (gap := gaps(c)).any()}
    if not found:
        return
    some = ", ".join(f"{name!r} ({gap.first})" for name, gap in list(found.items())[:12])
    then = "fill it in, leave such rows out, or fit with missing='mean'."
    now = "say missing='drop' (leave such rows out) or missing='mean' (fill in the mean)."
    raise ValueError(f"Input X contains NaN: no value in column {some}: {now if fitting else then}")


def without_value(values: Any) -> Keys:
    """Which of some ids or targets are missing: code -1."""
    return Keys([], np.array([-(value is None) for value in as_ids(values).tolist()], np.intp))


def no_row_error(lacking: Mapping[str, Gap], n_rows: int, roles: Sequence[str]) -> InputError:
    """Nothing is left of a table when rows that lack a value are."""
    worst = max(lacking, key=lambda name: lacking[name].rows)
    leave = (", or do without the column: ", Setting("drop", [worst]))
    return InputError(
        f"Not one of {n_rows} rows has all its values, and none is left to use: column "
        f"{worst!r} lacks {lacking[worst].rows}. Fill them in",
        *(() if worst in roles else leave),
        ".",
    )


def missing_error(
    lacking: Mapping[str, Gap], n_lacking: int, n_rows: int, roles: Sequence[str], *, is_fit: bool
) -> InputError:
    """Names the first row without a value, in it the first column, and the other columns.

    ``roles`` are the user and the target, which can be neither filled in nor done without.
    """
    name = min(lacking, key=lambda name: (lacking[name].first.file, lacking[name].first.number))
    row, here = lacking[name]
    also = f", {here} of them in this column" if here < n_lacking else ""
    others = [other for other in lacking if other != name]
    also += f"; also in {listing(others)}" if others else ""
    what, why = "has no value", "a model needs them all"
    if name == roles[0]:
        what, why = "names no user", "every row needs its owner"
    advice: list[str | Setting] = [Setting("missing", "drop"), " (leave these rows out)"]
    if not set(lacking) <= set(roles):
        advice += [", ", Setting("missing", "mean"), " (fill in the mean)"]
    spare = [column for column in lacking if column not in roles]
    if is_fit and spare:  # at prediction the columns are given
        many = "s" * (len(spare) > 1)
        advice += [", or ", Setting("drop", spare), f" (do without the column{many})"]
    return InputError(
        *(Rule(f"Column {name!r} {what}"), " in ", row),
        f" (incomplete rows: {n_lacking} of {n_rows}{also}), and {why}. ",
        *(Advice("Say "), *advice),
        ".",
    )


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


def ownerless(table: pa.Table, user: str) -> tuple[Bools, str]:
    """Rows without an owner, and what ids look like; no Python object per id is made."""
    column = table[user]
    kind = column.type
    if pa.types.is_integer(kind) or is_text(kind) or pa.types.is_boolean(kind):
        empty = pc.is_null(column).to_numpy()
        word = "text" if is_text(kind) else "bool" if pa.types.is_boolean(kind) else "int"
        return empty, "" if empty.all() else word
    if pa.types.is_floating(kind):
        values = pc.cast(column, pa.float64(), safe=False).to_numpy()
        empty = np.isnan(values)
        if np.isfinite(values[~empty]).all():
            whole = bool((values[~empty] == np.floor(values[~empty])).all())
            return empty, "" if empty.all() else "int" if whole else "float"
    found = keys(table, user)  # other types; an infinite id is refused there
    return gaps(found), kind_of(found.values) if found.values else ""


def owners(table: pa.Table, user: str, kind: str) -> tuple[Array, Ints]:
    """Ids in canonical order, and the position of each row's among them, -1 where it has none.

    Integers and text, by the million, without a Python object for each row.
    """
    column = table[user]
    own, empty = column.type, None
    if kind == "int" and pa.types.is_integer(own) and not pa.types.is_uint64(own):
        if column.null_count:
            empty = pc.is_null(column).to_numpy()
            column = pc.fill_null(column, pc.min(column))
        ids, codes = distinct_integers(column.to_numpy().astype(np.int64))
    elif kind == "text" and is_text(own):
        coded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        ids, rank = group_rows(coded.dictionary.to_pylist())
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        codes = np.append(rank, -1)[codes]
    else:
        found = keys(table, user, kind)
        ids, rank = group_rows(found.values)
        codes = np.append(rank, -1)[found.codes]
    codes = codes.reshape(-1).astype(np.intp)
    if empty is not None:
        codes[empty] = -1
    return ids, codes
