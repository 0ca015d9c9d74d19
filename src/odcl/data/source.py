"""Tables of files: a folder's files as one table, in memory or a piece at a time, and a table as a
fit takes it, with what its columns mean."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odcl._typing import Array
from odcl.data.columns import has_decimal_commas, is_text, times, whole_text_to_int
from odcl.data.federation import Federation
from odcl.data.roles import ColumnOptions, check_columns
from odcl.data.schema import Encoded, TableSchema
from odcl.data.summary import Place
from odcl.data.tables import (
    NULL_VALUES,
    as_table,
    check_names,
    checked,
    csv_header,
    file_digest,
    is_csv,
    is_parquet,
    over_text,
    read_csv,
    readable,
    table_files,
    unmarked,
    without_index,
)
from odcl.errors import InputError, Setting, listing

ROWS = 500_000  # of a piece; a table of up to two is one piece
# More classes than this, and more than one in two rows has its own: labels that are not classes.
_PLAUSIBLE_CLASSES = 20
_TASKS = {"logistic": "classification", "multinomial": "classification", "poisson": "count"}


def read_table(
    path: str | os.PathLike[str],
    *,
    text: Iterable[str] = (),
    null_values: Sequence[str] = NULL_VALUES,
    columns: Container[str] | None = None,
) -> pa.Table:
    """A CSV or Parquet file, or a folder of them, as one Arrow table.

    The files of a folder are taken in the order of their names and need the same columns; other
    files in it, those whose name starts with "." or "_", and those without a row are left alone.
    Rows are counted over all of them.

    ``text`` names columns in which "007" is not 7: ids and categories. Such a column is read as
    text and becomes integers only if each of its values is written as that integer would be;
    in Parquet, which knows its types, text stays text. Other columns of a file with ";" or tabs
    between them may have decimal commas, and a warning says so.
    ``null_values`` are the words of a CSV file for a missing value; ``("",)`` keeps "NA".
    ``columns`` are those in use, by default all: others are not read.
    """
    files = table_files(Path(path))
    text = (text,) if isinstance(text, str) else tuple(text)
    tables = [_read_file(file, text, null_values, columns) for file in files]
    if any(table.num_rows for table in tables):  # of no rows no types are known
        counted = [(t, f) for t, f in zip(tables, files, strict=True) if t.num_rows]
        tables, files = (list(part) for part in zip(*counted, strict=True))
    mixed = mixed_columns([table.schema for table in tables])
    if mixed:  # numbers in one file, text in another: the row that is not a number decides
        tables = [
            _read_file(file, (*text, *mixed), null_values, columns) if is_csv(file) else table
            for file, table in zip(files, tables, strict=True)
        ]
    table = _stacked(tables, files, columns)
    if all(map(is_csv, files)):
        table = over_text(table, whole_text_to_int, set(text))
    return checked(table, str(path))


def read_column_names(path: str | os.PathLike[str]) -> list[str]:
    """The columns that any file of a table has, without its rows."""
    found = []
    for file in table_files(Path(path)):
        with readable(file, "CSV"):
            if is_csv(file):
                found.append((unmarked(csv_header(file)), [1]))
            else:
                schema, counts = parquet_footer(file, str(file))
                found.append((schema.names, counts))
    used = [names for names, rows in found if sum(rows)] or [names for names, _ in found]
    return list(dict.fromkeys(name for names in used for name in names))


def parquet_footer(source: Any, name: str) -> tuple[pa.Schema, list[int]]:
    """The columns of a Parquet file, and the rows of its row groups."""
    with readable(name, "Parquet"), pq.ParquetFile(source) as content:
        schema = without_index(content.schema_arrow.empty_table()).schema.remove_metadata()
        about = content.metadata
        return schema, [about.row_group(g).num_rows for g in range(about.num_row_groups)]


def _parquet_batches(file: Path, columns: Container[str] | None) -> Iterator[pa.Table]:
    """The columns in use of a Parquet file, some rows at a time; of no rows a table without any."""
    with readable(file, "Parquet"), pq.ParquetFile(file) as content:
        own = without_index(content.schema_arrow.empty_table())
        names = [name for name in own.column_names if columns is None or name in columns]
        check_names(names, str(file))
        if not content.metadata.num_rows:
            yield own.select(names)
        for batch in content.iter_batches(ROWS, columns=names):
            yield pa.Table.from_batches([batch]).select(names)


def _read_file(
    file: Path, text: tuple[str, ...], null_values: Sequence[str], columns: Container[str] | None
) -> pa.Table:
    if is_parquet(file):
        return pa.concat_tables(_parquet_batches(file, columns))
    with readable(file, "CSV"):
        table = read_csv(file, text, null_values, columns)
    check_names(table.column_names, str(file))
    return table


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of a table, and where they stand."""

    table: pa.Table
    before: int  # rows of the whole table before these
    place: Place = Place()  # noqa: RUF009
    whole: pa.Table | None = None  # the table that the piece is cut from, where it is in memory


def read_pieces(
    path: str | os.PathLike[str], names: Sequence[str], *, text: Sequence[str] = ()
) -> Iterator[Piece]:
    """The columns ``names`` of a table, some rows at a time, in the table's order.

    Parquet knows its types, and a long table of such files is read as it goes. What a cell of a
    CSV file means depends on its whole column: such a table is read at once, as a short one is.
    """
    files, columns = table_files(Path(path)), tuple(names)
    found = [parquet_footer(f, str(f)) for f in files] if all(map(is_parquet, files)) else []
    if sum(sum(counts) for _, counts in found) <= 2 * ROWS:
        table = read_table(path, text=text, columns=columns)
        release_memory()  # of the file's own bytes
        n = table.num_rows
        step = ROWS if n > 2 * ROWS else n
        for first in range(0, n, step):
            yield Piece(table.slice(first, step), first, whole=table)
        return
    used = {file: schema for file, (schema, n) in zip(files, found, strict=True) if sum(n)}
    common_schema(list(used.values()), [file.name for file in used], columns)
    before = 0
    for file in used:
        first = 0
        for table in _parquet_batches(file, columns):
            place = Place(file.name, first)
            yield Piece(checked(table, str(file)), before + first, place)
            first += table.num_rows
        before += first


@contextmanager
def rows_of_files(path: Any) -> Iterator[None]:
    """Errors name rows by file, if the table is a folder of Parquet files: others do not tell how
    many rows they have."""
    try:
        yield
    except InputError as error:
        files = []
        if isinstance(path, str | os.PathLike) and Path(path).is_dir():
            files = table_files(Path(path))
        if not files or not all(map(is_parquet, files)):
            raise
        counts = [int(pq.read_metadata(file).num_rows) for file in files]
        raise error.of_files([file.name for file in files], counts) from None


def release_memory() -> None:
    """Give back what Arrow keeps for its next table."""
    pa.default_memory_pool().release_unused()


def _stacked(
    tables: Sequence[pa.Table], files: Sequence[Path], columns: Container[str] | None
) -> pa.Table:
    """The rows of all tables, one after the other."""
    schemas, names = [table.schema for table in tables], [file.name for file in files]
    first = common_schema(schemas, names, columns).names
    tables = [table.select(first).replace_schema_metadata() for table in tables]
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")


def all_names(schemas: Iterable[pa.Schema]) -> list[str]:
    """The columns that any of the files has."""
    return list(dict.fromkeys(name for schema in schemas for name in schema.names))


def mixed_columns(schemas: Sequence[pa.Schema]) -> list[str]:
    """Columns that are text, a date or a truth value in one table and something else in another."""
    kinds: dict[str, set[str]] = {}
    for schema in schemas:
        for field in schema:
            number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
            kind = "number" if number else str(field.type)
            kinds.setdefault(field.name, set()).update({kind} - {"null"})
    return [name for name, seen in kinds.items() if len(seen) > 1]


def common_schema(
    schemas: Sequence[pa.Schema],
    files: Sequence[str],
    columns: Container[str] | None = None,
) -> pa.Schema:
    """The columns of tables that are stacked, in the order of the first: each in one type.

    Only ``columns`` count, by default all.
    """
    names = [name for name in all_names(schemas) if columns is None or name in columns]
    held = [frozenset(schema.names).intersection(names) for schema in schemas]
    usual = Counter(held).most_common(1)[0][0]
    for own, file in zip(held, files, strict=True):
        if own != usual:
            lacks, extra = ([n for n in names if n in odd] for odd in (usual - own, own - usual))
            odd = {"lacks": lacks, "adds": extra}
            found = " and ".join(f"{word} {listing(names)}" for word, names in odd.items() if names)
            raise InputError(
                f"{file} {found}, compared with {files[held.index(usual)]}: the files of a folder "
                "need the same columns. ",
                *_advice([*lacks, *extra], columns),
            )
    fields = []
    for name in names:
        own_types = [schema.field(name).type for schema in schemas]
        common = _common_type(own_types)
        if common is None:
            raise _types_differ(name, own_types, files, columns)
        fields.append(pa.field(name, common))
    return pa.schema(fields)


def _advice(odd: list[str], columns: Container[str] | None) -> tuple[str | Setting, ...]:
    if not (isinstance(columns, ColumnOptions) and columns.spares(odd)):
        return ("Mend the file.",)
    what = "column" if len(odd) == 1 else "columns"
    return (f"Mend the file, or do without the {what}: ", Setting("drop", odd), ".")


def _common_type(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """The type that holds the values of all of them; None: there is none."""
    distinct = dict.fromkeys(types)
    try:
        each = [pa.schema([pa.field("", kind)]) for kind in distinct]
        return pa.unify_schemas(each, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def _types_differ(
    name: str, types: Sequence[pa.DataType], files: Sequence[str], columns: Container[str] | None
) -> InputError:
    """Names the files whose type does not go with that of most, or all of them."""

    def with_it(kind: pa.DataType) -> list[bool]:
        return [_common_type([kind, other]) is not None for other in types]

    told = [kind for kind in dict.fromkeys(types) if not pa.types.is_null(kind)]
    fits = max(map(with_it, told), key=sum)
    unclear = all(fits) or 2 * sum(fits) <= len(fits)  # who is odd
    where: dict[str, list[str]] = {}
    for kind, file, good in zip(types, files, fits, strict=True):
        if not good or unclear:
            where.setdefault(str(kind), []).append(file)
    odd = ", ".join(f"{kind} in {_some(own)}" for kind, own in where.items())
    usual = dict.fromkeys(str(kind) for kind, good in zip(types, fits, strict=True) if good)
    rest = "" if unclear else f", and {' or '.join(usual)} in the other files"
    return InputError(
        f"Column {name!r} is {odd}{rest}: the files of a folder need the same types. ",
        *_advice([name], columns),
    )


def _some(files: Sequence[str]) -> str:
    more = len(files) - 3
    return f"{', '.join(files[:3])}{f' and {more} more' * (more > 0)}"


# -- a table as a fit takes it ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TableSource:
    """A table as arrays, with the schema it was read by."""

    name: str
    schema: TableSchema
    encoded: Encoded
    loss: str
    time: Array | None = None  # (n_rows,), what orders the encoded rows; by ``time``
    digest: str | None = None  # SHA-256 of its file, or files in order; None: not from a file

    def without_rows(self) -> TableSource:
        """The source without its rows: counts of what was left out or filled in stay."""
        return replace(self, encoded=self.encoded.counts(), time=None)


def read_source(source: Any, options: ColumnOptions, loss: str = "auto") -> TableSource:
    """Read a table, a path or a frame, for a fit.

    ``loss`` is "auto" (see :func:`guess_loss`) or the name of one; it decides whether the target is
    a number, a class or a count.
    """
    table, left = _table(source, options)
    kind = guess_loss(table, options.target) if loss == "auto" else loss
    with rows_of_files(source):
        schema = TableSchema.fit(table, **vars(replace(left, task=task_of(kind))))
        _check_classes(schema, table.num_rows)
        encoded = schema.encode(table)
        order = None if options.time is None else times(table, options.time, encoded.rows)
    del table
    release_memory()
    name, digest = "table", None
    if isinstance(source, str | os.PathLike):
        name, digest = Path(source).name, file_digest(source)
    return TableSource(name, schema, encoded, kind, order, digest)


def federation_from_table(
    source: Any, *, user: str, target: str, **options: Any
) -> tuple[Federation, TableSchema]:
    """The federation of a table in which a column names the user, and the schema it was read by.

    ``source`` is a path or a frame. ``features`` defaults to all columns but the user and the
    target; ``drop`` takes some away. Columns of text hold categories; those that ``features`` does
    not name are left out where nearly every row has its own level, or where integers count the
    rows (a warning says so). ``categorical`` names others, such as codes. ``missing`` says what to
    do with a row that lacks a value: "error" stops, "drop" leaves the row out, "mean" fills in the
    column's mean, or a category's most frequent level (a row without a user or a target is left out
    all the same). ``task`` says what the target is: any number ("regression"), classes
    ("classification"), or counts 0, 1, 2, ... ("count").
    """
    table, left = _table(source, ColumnOptions(user, target, **options))
    with rows_of_files(source):
        schema = TableSchema.fit(table, **vars(left))
        return schema.encode(table).federation(), schema


def _table(source: Any, options: ColumnOptions) -> tuple[pa.Table, ColumnOptions]:
    """A table, and the options with the columns still to be dropped. Of a folder only columns in
    use are read, and only these must agree across files."""
    if not isinstance(source, str | os.PathLike):
        return as_table(source), options
    several = Path(source).is_dir()
    if several:
        check_columns(options.named, read_column_names(source))
    text = (options.user, *options.categorical)
    table = read_table(source, text=text, columns=options if several else None)
    release_memory()  # of the file's own bytes
    if several:
        left = tuple(name for name in options.drop if name in table.column_names)
        options = replace(options, drop=left)
    return table, options


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
