"""Tables in: CSV files, Parquet files and frames as Arrow tables."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from odcl.data.columns import is_text, whole_text_to_int, without_decimal_commas
from odcl.data.stacking import InUse, common_schema, mixed_columns
from odcl.errors import InputError, did_you_mean, listing

# What a CSV file writes for a value that is not there, in any column.
NULL_VALUES = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "<NA>")

TEXT_ENDINGS = (".csv", ".tsv")
PARQUET_ENDINGS = (".parquet", ".pq")
_PACKED_ENDINGS = (".gz", ".bz2", ".zst")
_HEAD = 2**20  # bytes of a CSV file in which its line of names ends
KNOWN = "CSV (.csv, .tsv, also .csv.gz) or Parquet (.parquet)"


def read_table(
    path: str | os.PathLike[str],
    *,
    text: Iterable[str] = (),
    null_values: Sequence[str] = NULL_VALUES,
    columns: InUse | None = None,
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
    found = [_names_of(file) for file in table_files(Path(path))]
    counted = [names for names, rows in found if rows] or [names for names, _ in found]
    return list(dict.fromkeys(name for names in counted for name in names))


def _names_of(file: Path) -> tuple[list[str], bool]:
    """The columns of a file, and whether it has rows."""
    if is_parquet(file):
        with readable(file, "Parquet"), pq.ParquetFile(file) as content:
            names = without_index(content.schema_arrow.empty_table()).column_names
            return list(names), content.metadata.num_rows > 0
    with readable(file, "CSV"):
        return unmarked(_header(file)), True


def _header(file: Path) -> list[str]:
    """The names of a CSV file's columns as they are written."""
    head = _head(file)
    lines = io.StringIO(head.decode("utf-8-sig", errors="replace"), newline="")
    return next(csv.reader(lines, delimiter=separator_of(file, head)))


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


def as_table(data: Any) -> pa.Table:
    """An Arrow table of a pandas or polars frame, or of anything that speaks Arrow.

    A frame's index is not a column, as everywhere in scikit-learn. A mapping of names to arrays
    is taken as well.
    """
    if isinstance(data, pa.Table):
        return checked(data, "The table")
    data = collected(data)
    try:
        if type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns"):
            _check_names([str(name) for name in data.columns], "The table")
            table = pa.Table.from_pandas(data, preserve_index=False)
        elif hasattr(data, "__arrow_c_stream__") or isinstance(data, Mapping):
            table = pa.table(data)
        elif hasattr(data, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            table = from_dataframe(data)
        else:
            raise InputError(
                f"A value of type {type(data).__name__} is not a table: give a pandas or polars "
                "frame, an Arrow table, or a path to read_table."
            )
    except (pa.ArrowException, TypeError) as error:
        raise InputError(
            f"This {type(data).__name__} could not be turned into a table: "
            f"{' '.join(map(str, error.args))}. Give every column one type, e.g. with astype(str)."
        ) from error
    return checked(table, "The table")


def collected(data: Any) -> Any:
    """A lazy frame of polars as a frame; others as they are."""
    lazy = type(data).__module__.split(".")[0] == "polars" and hasattr(data, "collect")
    return data.collect() if lazy else data


def table_files(place: Path) -> list[Path]:
    """The file, or the tables in the folder."""
    if not place.exists():
        siblings = [p.name for p in place.parent.iterdir()] if place.parent.is_dir() else []
        raise InputError(f"There is no file or folder {place}{did_you_mean(place.name, siblings)}")
    if not place.is_dir():
        if is_csv(place) or is_parquet(place):
            return [place]
        raise InputError(
            f"{place} ends in {place.suffix!r}, and tables are {KNOWN}: save it as one of these."
        )
    there = sorted(p for p in place.iterdir() if not p.name.startswith((".", "_")))
    files = [p for p in there if (is_csv(p) or is_parquet(p)) and p.is_file()]
    if not files:
        found = f"only {listing([p.name for p in there], 5)}" if there else "nothing"
        raise InputError(f"Folder {place} holds {found}: no table to read. Tables are {KNOWN}.")
    return files


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a table's bytes; of a folder, of its files one after the other."""
    digest = hashlib.sha256()
    for file in table_files(Path(path)):
        with open(file, "rb") as stream:
            while chunk := stream.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()


def _ending(file: str | os.PathLike[str]) -> str:
    """The ending that names the format, without that of a compression."""
    name = Path(file).name.lower()
    for packed in _PACKED_ENDINGS:
        name = name.removesuffix(packed)
    return Path(name).suffix


def is_csv(file: str | os.PathLike[str]) -> bool:
    return _ending(file) in TEXT_ENDINGS


def is_parquet(file: str | os.PathLike[str]) -> bool:
    return Path(file).suffix.lower() in PARQUET_ENDINGS


def _read_file(
    file: Path,
    text: tuple[str, ...],
    null_values: Sequence[str],
    columns: InUse | None,
) -> pa.Table:
    if is_parquet(file):
        with readable(file, "Parquet"), pq.ParquetFile(file) as content:
            there = content.schema_arrow.names
            wanted = None if columns is None else [name for name in there if name in columns]
            table = without_index(content.read(wanted))
    else:
        with readable(file, "CSV"):
            table = _read_csv(file, text, null_values, columns)
    if columns is not None:
        table = table.select([i for i, n in enumerate(table.column_names) if n in columns])
    _check_names(table.column_names, str(file))
    return table


@contextmanager
def readable(file: Path | str, what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        seen = " ".join(str(error).split())
        seen = seen if len(seen) <= 200 else f"{seen[:197]}..."
        advice = "is it whole, and what its ending says?"
        if isinstance(error, UnicodeDecodeError) or "UTF8" in seen:
            advice = "save it as 'CSV UTF-8'."
        raise InputError(
            f"{file} could not be read as {what} ({seen.rstrip('.')}): {advice}"
        ) from error


def _head(file: Path) -> bytes:
    """The beginning of a CSV file, which is refused if it cannot be one."""
    with pa.input_stream(file) as stream:
        head = stream.read(_HEAD)
    lines = head.strip().splitlines()
    if len(lines) < 2 and len(head) < _HEAD:
        seen = "holds a single line" if lines else "is empty"
        raise InputError(f"{file} {seen}: a table needs a line of column names, then rows.")
    if b"\0" in head or head.startswith((b"PK\3\4", b"PAR1")):
        raise InputError(
            f"{file} is not a CSV file in UTF-8 (it holds binary data): save it as 'CSV UTF-8'."
        )
    return head


def _read_csv(
    file: Path, text: tuple[str, ...], null_values: Sequence[str], columns: InUse | None
) -> pa.Table:
    header = _header(file)
    plain = dict(zip(header, unmarked(header), strict=True))
    names = [] if columns is None else [n for n in header if plain[n] in columns]
    _check_names([plain[n] for n in names], str(file))  # of two the reader would take the first
    options = pa_csv.ConvertOptions(
        include_columns=names,  # none: all of them
        column_types={written: pa.string() for written in plain if plain[written] in text},
        null_values=list(null_values),
        strings_can_be_null=True,
    )
    separator = separator_of(file, _head(file))
    # Quoted text may hold line breaks, and without the option a block may end in one.
    parse = pa_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    try:
        table = pa_csv.read_csv(file, parse_options=parse, convert_options=options)
    except pa.ArrowInvalid:  # once more on one thread, which knows the number of the bad row
        alone = pa_csv.ReadOptions(use_threads=False)
        table = pa_csv.read_csv(file, alone, parse_options=parse, convert_options=options)
    table = table.rename_columns([plain.get(name, name) for name in table.column_names])
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_binary(column.type):
            raise InputError(
                f"Column {name!r} of {file} is not in UTF-8: save the file as 'CSV UTF-8'."
            )
    if separator != ",":
        written = table
        table = over_text(table, without_decimal_commas, {*table.column_names} - {*text})
        fields = zip(table.schema, written.schema, strict=True)
        found = [new.name for new, old in fields if new.type != old.type]
        if found:
            warnings.warn(
                f"{file.name} has decimal commas in {listing(found, 5)}: 3,14 is read as 3.14.",
                stacklevel=2,
            )
    return over_text(table, _unmark_formulas)


def separator_of(file: str | os.PathLike[str], head: bytes = b"") -> str:
    """Tab for .tsv; else a comma, unless the line of names has none but ";" or tabs."""
    if not head or _ending(file) == ".tsv":
        return "\t" if _ending(file) == ".tsv" else ","
    names = re.sub(rb'"[^"]*"', b"", head).splitlines()[0]
    return next((s for s in (",", ";", "\t") if s.encode() in names), ",")


def without_index(table: pa.Table) -> pa.Table:
    """A Parquet file of a pandas frame without the frame's nameless index."""
    about = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    nameless = [c for c in about.get("index_columns", ()) if str(c).startswith("__index_level_")]
    return table.drop_columns([c for c in nameless if c in table.column_names])


def _stacked(tables: Sequence[pa.Table], files: Sequence[Path], columns: InUse | None) -> pa.Table:
    """The rows of all tables, one after the other."""
    schemas, names = [table.schema for table in tables], [file.name for file in files]
    first = common_schema(schemas, names, columns).names
    tables = [table.select(first).replace_schema_metadata() for table in tables]
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")


def _check_names(names: Sequence[str], source: str) -> None:
    double = [name for i, name in enumerate(names) if name in names[:i]]
    if double:
        raise InputError(
            f"{source} has two columns called {double[0]!r}, and a name must say which: rename one."
        )


def checked(table: pa.Table, source: str) -> pa.Table:
    """A table that can be worked on, its text in the types of string that every kernel knows."""
    if table.num_columns == 0:
        raise InputError(f"{source} has no columns: a user, a target and a feature are needed.")
    _check_names(table.column_names, source)
    if table.num_rows == 0:
        raise InputError(
            f"{source} has no rows under its columns ({listing(table.column_names)}): there is "
            "nothing to work on."
        )
    for at, field in enumerate(table.schema):
        if "string_view" in str(field.type):
            table = table.set_column(at, field.name, _plain_strings(table[at]))
    return table


def _plain_strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """polars' strings and categories in the older type of string that every kernel knows."""
    if pa.types.is_dictionary(column.type):
        text = [chunk.dictionary.cast(pa.large_string()) for chunk in column.chunks]
        pairs = zip(column.chunks, text, strict=True)
        return pa.chunked_array([pa.DictionaryArray.from_arrays(c.indices, t) for c, t in pairs])
    return column if pa.types.is_nested(column.type) else column.cast(pa.large_string())


# A spreadsheet runs text that begins with one of these, and takes text after a quote as text. A
# number with its sign is no formula. Quotes before a formula are counted in, so that text which
# had some before it was marked comes back with them.
_FORMULA = r"(?s)^'*[=+@\t\r-]."
_SIGNED_NUMBER = r"^'*[+-]([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def is_formula(column: pa.ChunkedArray) -> pa.ChunkedArray:
    number = pc.match_substring_regex(column, _SIGNED_NUMBER)
    return pc.and_not(pc.match_substring_regex(column, _FORMULA), number)


def _unmark_formulas(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without the quotes of ``write_table``, which leaves no formula in a column bare."""
    formula, quoted = is_formula(column), pc.starts_with(column, "'")
    if not pc.any(formula).as_py() or pc.any(pc.and_not(formula, quoted)).as_py():
        return column
    return pc.if_else(formula, pc.utf8_slice_codeunits(column, 1), column)


def unmarked(names: Sequence[str]) -> list[str]:
    """Column names of a CSV file without the quotes of ``write_table``."""
    return [*_unmark_formulas(pa.chunked_array([names], pa.string())).to_pylist()]


def over_text(
    table: pa.Table,
    change: Callable[[pa.ChunkedArray], pa.ChunkedArray],
    names: Collection[str] | None = None,
) -> pa.Table:
    """The table with its text columns, or those of them in ``names``, changed."""
    for at, field in enumerate(table.schema):
        if is_text(field.type) and (names is None or field.name in names):
            table = table.set_column(at, field.name, change(table[at]))
    return table
