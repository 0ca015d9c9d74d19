"""One table in or out: CSV and Parquet files and frames, as Arrow tables."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from odcl.data.columns import is_text, without_decimal_commas
from odcl.errors import InputError, did_you_mean, listing
from odcl.files import atomic_path

# What a CSV file writes for a value that is not there, in any column.
NULL_VALUES = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-nan", "NULL", "null", "<NA>")

TEXT_ENDINGS = (".csv", ".tsv")
PARQUET_ENDINGS = (".parquet", ".pq")
_PACKED_ENDINGS = (".gz", ".bz2", ".zst")
_HEAD = 2**20  # bytes of a CSV file in which its line of names ends
KNOWN = "CSV (.csv, .tsv, also .csv.gz) or Parquet (.parquet)"


def csv_header(file: Path) -> list[str]:
    """The names of a CSV file's columns as they are written."""
    head = _head(file)
    lines = io.StringIO(head.decode("utf-8-sig", errors="replace"), newline="")
    return next(csv.reader(lines, delimiter=separator_of(file, head)))


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
            check_names([str(name) for name in data.columns], "The table")
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


def read_csv(
    file: Path, text: tuple[str, ...], null_values: Sequence[str], columns: Container[str] | None
) -> pa.Table:
    header = csv_header(file)
    plain = dict(zip(header, unmarked(header), strict=True))
    names = [] if columns is None else [n for n in header if plain[n] in columns]
    check_names([plain[n] for n in names], str(file))  # of two the reader would take the first
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


def check_names(names: Sequence[str], source: str) -> None:
    double = [name for name, times in Counter(names).items() if times > 1]
    if double:
        raise InputError(
            f"{source} has two columns called {double[0]!r}, and a name must say which: rename one."
        )


def checked(table: pa.Table, source: str) -> pa.Table:
    """A table that can be worked on, its text in the types of string that every kernel knows."""
    if table.num_columns == 0:
        raise InputError(f"{source} has no columns: a user, a target and a feature are needed.")
    check_names(table.column_names, source)
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
    """The table with its text columns changed, or only the text columns in ``names``."""
    for at, field in enumerate(table.schema):
        if is_text(field.type) and (names is None or field.name in names):
            table = table.set_column(at, field.name, change(table[at]))
    return table


# -- tables out ------------------------------------------------------------------------------------


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> None:
    """Write columns of equal length as CSV or Parquet, by the ending, whole or not at all.

    Numbers are written so that they read back exactly; a column of mixed ids is written as text.
    Text that a spreadsheet would run as a formula (=1+1), be it a column's name, has a quote before
    it in a CSV file, which :func:`odcl.read_table` takes away again.
    """
    with piecewise(path) as write:
        write(columns)


@contextmanager
def piecewise(
    path: str | os.PathLike[str] | None, stream: BinaryIO | None = None
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that writes columns, a piece of a long table at every call.

    To a file, by its ending, that appears whole or not at all, or as CSV to an open ``stream``.
    """
    if path is None:
        assert stream is not None
        yield _csv_pieces(stream, ",")
        return
    check_ending(path)
    with atomic_path(path) as temporary:
        if is_csv(path):
            with open(temporary, "wb") as file:
                yield _csv_pieces(file, separator_of(path))
            return
        writers: list[pq.ParquetWriter] = []

        def write(columns: Mapping[str, Any]) -> None:
            table = _arrow_table(columns)
            if not writers:
                writers.append(pq.ParquetWriter(temporary, table.schema))
            writers[0].write_table(table.cast(writers[0].schema))

        try:
            yield write
        finally:
            for writer in writers:
                writer.close()


def _csv_pieces(stream: BinaryIO, separator: str) -> Callable[[Mapping[str, Any]], None]:
    begun: list[bool] = []

    def write(columns: Mapping[str, Any]) -> None:
        _write_csv(_arrow_table(columns), stream, separator, header=not begun)
        begun.append(True)

    return write


def check_ending(path: str | os.PathLike[str]) -> None:
    """Refuse a file name whose ending names no format to write."""
    endings = (*TEXT_ENDINGS, *PARQUET_ENDINGS)
    if Path(path).suffix.lower() not in endings:
        raise InputError(f"{path} must end in one of {', '.join(endings)} to be written.")


def _arrow_table(columns: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: arrow_column(values) for name, values in columns.items()})


def arrow_column(values: Any) -> pa.Array:
    array = np.asarray(values)
    if array.dtype != object:
        return pa.array(array, from_pandas=True)  # NaN is an empty field
    try:
        return pa.array(array.tolist())
    except (pa.ArrowException, OverflowError):  # ids of several types
        return pa.array([None if v is None else str(v) for v in array.tolist()])


def _write_csv(table: pa.Table, stream: BinaryIO, separator: str, *, header: bool = True) -> None:
    """CSV with quotes only where some text needs them."""
    special = f'["\r\n{separator}]|^$'
    if header:
        marked = _mark_formulas(pa.chunked_array([table.column_names], pa.string())).to_pylist()
        names = [
            f'"{n.replace(chr(34), chr(34) * 2)}"' if re.search(special, n) else n for n in marked
        ]
        stream.write(f"{separator.join(names)}\n".encode())
    table = over_text(table, _mark_formulas)
    texts = [column for column in table.columns if is_text(column.type)]
    quote = any(pc.any(pc.match_substring_regex(column, special)).as_py() for column in texts)
    options = pa_csv.WriteOptions(
        include_header=False, delimiter=separator, quoting_style="needed" if quote else "none"
    )
    pa_csv.write_csv(table, stream, options)


def beside(theirs: dict[str, Any], ours: dict[str, Any], *, first: bool = False) -> dict[str, Any]:
    """Columns of the table with ours beside them; ours give way where a name is taken."""
    renamed = {}
    for name, values in ours.items():
        while name in theirs:
            name = f"odcl_{name}"
        renamed[name] = values
    return renamed | theirs if first else theirs | renamed


def _mark_formulas(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text with a quote before what a spreadsheet would run."""
    quote, nothing = pa.scalar("'", column.type), pa.scalar("", column.type)
    marked = pc.binary_join_element_wise(quote, column, nothing)
    return pc.if_else(is_formula(column), marked, column)
