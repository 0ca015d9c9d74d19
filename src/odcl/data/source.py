"""A table and what its columns mean, as a fit takes them: from a file or a frame."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from odcl._typing import Array
from odcl.data.columns import as_names, has_decimal_commas, is_text, times
from odcl.data.federation import Federation
from odcl.data.roles import check_columns
from odcl.data.schema import Encoded, TableSchema
from odcl.data.stacking import InUse
from odcl.data.tables import (
    as_table,
    file_digest,
    read_column_names,
    read_table,
    release_memory,
    rows_of_files,
)
from odcl.errors import InputError, Setting, listing

# More classes than this, and more than one in two rows has its own: labels that are not classes.
_PLAUSIBLE_CLASSES = 20
_TASKS = {"logistic": "classification", "multinomial": "classification", "poisson": "count"}


@dataclass(frozen=True, eq=False)
class Source:
    """A table as arrays, with the schema it was read by."""

    name: str
    schema: TableSchema
    encoded: Encoded
    loss: str
    guessed: bool  # nobody said which loss
    time: Array | None = None  # (n_rows,), what orders the encoded rows; by ``time``
    digest: str | None = None  # SHA-256 of its file, or files in order; None: not from a file

    def without_rows(self) -> Source:
        """The same once its rows are in other hands: what was left out or filled in stays."""
        return replace(self, encoded=self.encoded.counts(), time=None)


def read_source(
    source: Any,
    *,
    user: str,
    target: str,
    features: Iterable[str] | None = None,
    drop: Iterable[str] = (),
    categorical: Iterable[str] = (),
    missing: str = "error",
    loss: str = "auto",
    time: str | None = None,
) -> Source:
    """Read a table, a path or a frame, for a fit.

    The options are those of :meth:`TableSchema.fit`. ``loss`` is "auto" (see :func:`guess_loss`)
    or the name of one; it decides whether the target is a number, a class or a count. ``time``
    names a column that orders the rows of a user, and is no feature unless ``features`` names it.
    """
    fixed = (user, target) if time is None else (user, target, time)
    in_use = InUse.of(fixed, features, drop, categorical)
    table, drop = _table(source, in_use)
    kind = guess_loss(table, target) if loss == "auto" else loss
    if time is not None:
        drop = dropped_with(time, drop, table.column_names, user, target, in_use.features)
    with rows_of_files(source):
        schema = TableSchema.fit(
            table,
            user=user,
            target=target,
            features=in_use.features,
            drop=drop,
            categorical=in_use.categorical,
            missing=missing,
            task=task_of(kind),
        )
        _check_classes(schema, table.num_rows)
        encoded = schema.encode(table)
        order = None if time is None else times(table, time, encoded.rows)
    del table
    release_memory()
    name, digest = "table", None
    if isinstance(source, str | os.PathLike):
        name, digest = Path(source).name, file_digest(source)
    return Source(name, schema, encoded, kind, loss == "auto", order, digest)


def dropped_with(
    time: str,
    drop: Iterable[str],
    columns: Sequence[str],
    user: str,
    target: str,
    asked: Iterable[str] | None,
) -> tuple[str, ...]:
    """Columns that are no features where ``time`` orders the rows: it is none, unless asked for."""
    check_columns([time], columns)
    if time in (user, target):
        role = "user" if time == user else "target"
        raise InputError(f"Column {time!r} is the {role}, and cannot order the rows as well.")
    given = as_names(drop)
    return given if asked is not None and time in asked else (*given, time)


def federation_from_table(
    source: Any,
    *,
    user: str,
    target: str,
    features: Iterable[str] | None = None,
    drop: Iterable[str] = (),
    categorical: Iterable[str] = (),
    **options: Any,
) -> tuple[Federation, TableSchema]:
    """The federation of a table in which a column names the user, and the schema it was read by.

    ``source`` is a path or a frame; the options are those of :meth:`TableSchema.fit`.
    """
    in_use = InUse.of((user, target), features, drop, categorical)
    table, drop = _table(source, in_use)
    with rows_of_files(source):
        schema = TableSchema.fit(
            table,
            user=user,
            target=target,
            features=in_use.features,
            drop=drop,
            categorical=in_use.categorical,
            **options,
        )
        return schema.encode(table).federation(), schema


def _table(source: Any, in_use: InUse) -> tuple[pa.Table, tuple[str, ...]]:
    """A table, and what is still to be dropped: columns that nobody uses are not read of a folder,
    whose files need to agree in the others alone."""
    if not isinstance(source, str | os.PathLike):
        return as_table(source), in_use.drop
    several = Path(source).is_dir()
    if several:
        check_columns(in_use.named, read_column_names(source))
    text = (in_use.fixed[0], *in_use.categorical)
    table = read_table(source, text=text, columns=in_use if several else None)
    release_memory()  # of the file's own bytes
    left = in_use.drop if not several else (n for n in in_use.drop if n in table.column_names)
    return table, tuple(left)


def task_of(loss: str) -> str:
    """What a loss takes the target for: "regression", "classification" or "count"."""
    return _TASKS.get(loss, "regression")


def guess_loss(table: pa.Table, target: str) -> str:
    """Classes where the target is text or true/false, a number otherwise.

    Text that is mostly numbers is a column of numbers with a slip in it: taken as numbers, it is
    refused with the row of the slip.
    """
    if target not in table.column_names:
        return "squared"
    kind = table.schema.field(target).type
    if is_text(kind) and has_decimal_commas(table[target]):
        return "squared"  # refused with the reason
    if is_text(kind):
        values = pc.unique(table[target].drop_null())
        n_numbers = pc.sum(pc.match_substring_regex(values, r"^\s*[+-]?[0-9.]+\s*$")).as_py() or 0
        slips = len(values) > _PLAUSIBLE_CLASSES and 0.5 * len(values) < n_numbers < len(values)
        return "squared" if slips else "logistic"
    return "logistic" if pa.types.is_boolean(kind) or pa.types.is_dictionary(kind) else "squared"


def _check_classes(schema: TableSchema, n_rows: int) -> None:
    classes = schema.classes or ()
    if len(classes) > _PLAUSIBLE_CLASSES and 2 * len(classes) > n_rows:
        raise InputError(
            f"Target {schema.target!r} has {len(classes)} distinct values in {n_rows} rows "
            f"({listing(classes, 3)}): labels that are not classes. For a target that is a number "
            "say ",
            Setting("loss", "squared"),
            ".",
        )
