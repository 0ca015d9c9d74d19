"""Tables written: columns as CSV or Parquet files, whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from odcl.data.columns import is_text
from odcl.data.tables import (
    PARQUET_ENDINGS,
    TEXT_ENDINGS,
    is_csv,
    is_formula,
    over_text,
    separator_of,
)
from odcl.errors import InputError
from odcl.files import atomic_path


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> None:
    """Write columns of equal length as CSV or Parquet, by the ending, whole or not at all.

    Numbers are written so that they read back exactly; a column of mixed ids is written as text.
    Text that a spreadsheet would run as a formula (=1+1), be it a column's name, has a quote before
    it in a CSV file, which :func:`odcl.data.tables.read_table` takes away again.
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
