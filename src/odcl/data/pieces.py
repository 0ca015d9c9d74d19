"""Long tables a piece at a time: their rows are worked on, and written, some at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odcl.data.stacking import InUse, common_schema
from odcl.data.summary import Place
from odcl.data.tables import (
    checked,
    is_parquet,
    read_table,
    readable,
    release_memory,
    table_files,
    without_index,
)

ROWS = 500_000  # of a piece; a table of up to two is one piece


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
    files, columns = table_files(Path(path)), InUse(tuple(names), ())
    contents = [_content(file) for file in files] if all(map(is_parquet, files)) else []
    if sum(rows for _, rows in contents) > 2 * ROWS:
        yield from _parquet_pieces(files, contents, columns)
        return
    table = read_table(path, text=text, columns=columns)
    release_memory()  # of the file's own bytes
    n = table.num_rows
    step = ROWS if n > 2 * ROWS else n
    for first in range(0, n, step):
        yield Piece(table.slice(first, step), first, whole=table)


def _content(file: Path) -> tuple[pa.Schema, int]:
    """The columns of a Parquet file, and how many rows it has."""
    with readable(file, "Parquet"), pq.ParquetFile(file) as content:
        table = without_index(content.schema_arrow.empty_table())
        return table.schema, int(content.metadata.num_rows)


def _parquet_pieces(
    files: Sequence[Path], contents: Sequence[tuple[pa.Schema, int]], columns: InUse
) -> Iterator[Piece]:
    told = [(file, schema) for file, (schema, n) in zip(files, contents, strict=True) if n]
    common_schema([schema for _, schema in told], [file.name for file, _ in told], columns)
    before = 0
    for file, schema in told:
        first, asked = 0, [name for name in schema.names if name in columns]
        with readable(file, "Parquet"), pq.ParquetFile(file) as content:
            for batch in content.iter_batches(ROWS, columns=asked):
                table = checked(pa.Table.from_batches([batch]), str(file))
                yield Piece(table, before + first, Place(file.name, first))
                first += table.num_rows
        before += first
