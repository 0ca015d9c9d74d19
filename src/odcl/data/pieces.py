"""Long tables a piece at a time: files whose rows need not be in memory at once."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from odcl.data.tables import (
    NULL_VALUES,
    is_csv,
    readable,
    separator_of,
    table_files,
    without_index,
)

ROWS = 500_000  # of a piece
LONG_BYTES = 2**28  # of a CSV file: a longer one is read in pieces
_BLOCK = 2**25  # bytes of a CSV file that are parsed at a time


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of a table, and where they stand."""

    table: pa.Table
    file: str
    first: int  # of its rows in the file, from 0
    before: int  # rows of the whole table before these


def is_long(path: str | os.PathLike[str]) -> bool:
    """Is a table better taken in pieces?"""
    size = total = 0
    for file in table_files(Path(path)):
        if is_csv(file):
            size += file.stat().st_size
        else:
            with readable(file, "Parquet"):
                total += int(pq.read_metadata(file).num_rows)
    return total > 2 * ROWS or size > LONG_BYTES


def read_pieces(
    path: str | os.PathLike[str],
    names: Collection[str],
    *,
    text: Collection[str] = (),
) -> Iterator[Piece]:
    """The columns ``names`` of a table, some rows at a time, in the table's order.

    Of a CSV file the columns in ``text`` are text, and the others numbers.
    """
    before = 0
    for file in table_files(Path(path)):
        first = 0
        for table in _batches(file, names, text):
            yield Piece(table, file.name, first, before + first)
            first += table.num_rows
        before += first


def _batches(file: Path, names: Collection[str], text: Collection[str]) -> Iterator[pa.Table]:
    if is_csv(file):
        yield from _csv_batches(file, names, text)
        return
    with readable(file, "Parquet"), pq.ParquetFile(file) as content:
        there = without_index(content.schema_arrow.empty_table()).column_names
        asked = [name for name in there if name in names]
        for batch in content.iter_batches(ROWS, columns=asked):
            yield pa.Table.from_batches([batch])


def _csv_batches(file: Path, names: Collection[str], text: Collection[str]) -> Iterator[pa.Table]:
    with readable(file, "CSV"):
        with pa.input_stream(file) as stream:
            separator = separator_of(file, stream.read(65_536))
        kinds = {name: pa.string() if name in text else pa.float64() for name in names}
        options = pa_csv.ConvertOptions(
            column_types=kinds, null_values=list(NULL_VALUES), strings_can_be_null=True
        )
        parse = pa_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        read = pa_csv.ReadOptions(block_size=_BLOCK)
        with pa_csv.open_csv(file, read, parse, options) as reader:
            there = [name for name in reader.schema.names if name in names]
            for batch in reader:
                yield pa.Table.from_batches([batch]).select(there)
