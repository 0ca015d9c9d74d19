"""A table in pieces: Parquet files wherever they lie, or the partitions of a Dask frame."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odcl._typing import Array, Floats
from odcl.data.address import Address
from odcl.data.columns import owners, times
from odcl.data.federation import group_rows, id_keys, joined_ids, positions
from odcl.data.schema import TableSchema
from odcl.data.source import all_names, common_schema, parquet_footer
from odcl.data.summary import Place
from odcl.data.tables import is_csv, is_parquet, readable
from odcl.engines.dask.cluster import Cluster
from odcl.errors import InputError, listing

PIECE_BYTES = 2**26  # of the columns in use, as they lie in memory
MOST_BYTES = 2**30  # of a sample's rows: users with very many rows make it fewer users


@dataclass(frozen=True, eq=False)
class FilePiece:
    """Some row groups of a Parquet file."""

    number: int  # of the piece in the table
    file: Address
    groups: tuple[int, ...]
    first: int  # of its rows in the file, from 0
    rows: int
    schema: pa.Schema  # of the whole table
    stamp: Any  # of the file when the table was opened

    @property
    def place(self) -> Place:
        return Place(self.file.name, self.first)

    def check(self) -> None:
        """Refuse a file that was written again since the table was opened."""
        if self.file.stamp() != self.stamp:
            raise InputError(
                f"{self.file} was changed while the table was read, and the answer would be of old "
                "and new rows together: try again when it is complete."
            )

    def read(self, columns: Sequence[str]) -> pa.Table:
        self.check()
        with readable(str(self.file), "Parquet"), self.file.open() as stream:
            table = pq.ParquetFile(stream).read_row_groups(
                list(self.groups), columns=list(columns), use_threads=False
            )
        return as_declared(table, self.schema, columns)


@dataclass(frozen=True, eq=False)
class FramePiece:
    """A partition of a Dask frame, where it is."""

    number: int
    frame: Any  # pandas
    schema: pa.Schema

    @property
    def place(self) -> Place:
        return Place(f"partition {self.number}", 0)

    def read(self, columns: Sequence[str]) -> pa.Table:
        table = pa.Table.from_pandas(self.frame[list(columns)], preserve_index=False)
        return as_declared(table, self.schema, columns)


def as_declared(table: pa.Table, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """The columns asked for in the types that they have in all pieces."""
    wanted = pa.schema([schema.field(name) for name in columns])
    found = []
    for field in wanted:
        column = table[field.name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        whole = pa.types.is_integer(field.type)  # one that is too large would be another
        found.append(column if column.type == field.type else column.cast(field.type, safe=whole))
    return pa.table(found, schema=wanted)


@dataclass(frozen=True, eq=False)
class PiecedTable:
    """A table whose pieces are read one by one."""

    name: str
    schema: pa.Schema  # types as they are written; pieces give categories as their values
    pieces: Sequence[Any]  # FilePiece, or a delayed FramePiece
    rows: int | None = None  # None: not known without reading

    @property
    def n_pieces(self) -> int:
        """How many pieces there are."""
        return len(self.pieces)

    def check_unchanged(self, cluster: Cluster) -> None:
        """Refuse a table whose files were written again while it was read."""
        files = {one.file: one for one in self.pieces if isinstance(one, FilePiece)}
        cluster.run(FilePiece.check, files.values())


@dataclass(frozen=True, eq=False)
class TableFiles:
    """The Parquet files of a table, known by their footers.

    Files without a row are left out: what they say of types, and of columns, is nothing to go by.
    """

    address: Address
    files: Sequence[Address]
    schemas: Sequence[pa.Schema]
    counts: Sequence[Sequence[int]]  # rows of each row group
    stamps: Sequence[Any]  # see Address.stamp

    @property
    def names(self) -> list[str]:
        """The columns that any of the files has."""
        return all_names(self.schemas)

    def table(
        self,
        cluster: Cluster,
        *,
        columns: Container[str] | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> PiecedTable:
        """The table of the ``columns`` in use; see :func:`common_schema`."""
        names = [file.name for file in self.files]
        whole = common_schema(self.schemas, names, columns)
        plain = _plain(whole)
        width = max(1, sum(_width(field.type) for field in plain))
        total = width * sum(sum(counts) for counts in self.counts)
        share = max(total // (2 * cluster.n_workers), 2**20)  # work for every worker
        most = max(1, min(piece_bytes, share) // width)
        pieces: list[FilePiece] = []
        for file, counts, stamp in zip(self.files, self.counts, self.stamps, strict=True):
            starts = np.concatenate([[0], np.cumsum(counts)])
            for group in _gathered(counts, most):
                rows = int(sum(counts[g] for g in group))
                if rows:
                    first = int(starts[group[0]])
                    pieces.append(FilePiece(len(pieces), file, group, first, rows, plain, stamp))
        return PiecedTable(self.address.name, whole, pieces, sum(piece.rows for piece in pieces))


def table_files(place: Any, cluster: Cluster) -> TableFiles:
    """A Parquet file or a folder of such files."""
    address = place if isinstance(place, Address) else Address.of(place)
    files = _files_of(address)
    footers = cluster.run(_footer, files)
    found = [(file, *one) for file, one in zip(files, footers, strict=True) if sum(one[1])]
    if not found:
        names = all_names(footer[0] for footer in footers)
        raise InputError(
            f"{address} has no rows under its columns ({listing(names)}): there is nothing "
            "to work on."
        )
    return TableFiles(address, *zip(*found, strict=True))


def frame_table(frame: Any) -> PiecedTable:
    """The partitions of a Dask frame."""
    import dask

    schema = pa.Schema.from_pandas(frame._meta, preserve_index=False).remove_metadata()
    plain = _plain(schema)
    make = dask.delayed(FramePiece, pure=False)
    parts = frame.to_delayed()
    return PiecedTable("frame", schema, [make(i, one, plain) for i, one in enumerate(parts)])


def table_bytes(place: Any) -> int:
    """About how many bytes a table of Parquet files takes in memory: eight for each value."""
    address = Address.of(place)
    return sum(_in_memory(file) for file in _files_of(address))


def _in_memory(file: Address) -> int:
    schema, counts, _ = _footer(file)
    return int(sum(counts)) * sum(_width(field.type) for field in schema)


def _files_of(address: Address) -> list[Address]:
    found = address.kind()
    if not found:
        raise InputError(f"There is no file or folder {address}.")
    if found == "file":
        if not is_parquet(address.name):
            raise InputError(f"{address} is not a Parquet file, {_ONLY_PARQUET}")
        return [address]
    there = address.children()
    files = [file for file in there if is_parquet(file.name)]
    text = [file for file in there if is_csv(file.name)]
    if text:
        raise InputError(f"{address} holds {text[0].name}, {_ONLY_PARQUET}")
    if not files:
        seen = f"only {listing([file.name for file in there], 5)}" if there else "nothing"
        raise InputError(f"Folder {address} holds {seen}: no Parquet file to read.")
    return files


_ONLY_PARQUET = (
    "and beyond memory tables are Parquet, which tells its types before its rows: convert it, e.g. "
    "with pyarrow, polars or DuckDB."
)


def _footer(file: Address) -> tuple[pa.Schema, list[int], Any]:
    """The columns of a file, the rows of its row groups, and its stamp before any was read."""
    stamp = file.stamp()
    with readable(str(file), "Parquet"), file.open() as stream:
        return *parquet_footer(stream, str(file)), stamp


def _gathered(counts: Sequence[int], most: int) -> Iterable[tuple[int, ...]]:
    """Row groups one after the other, as many at a time as have ``most`` rows."""
    group: list[int] = []
    held = 0
    for g, count in enumerate(counts):
        if group and held + count > most:
            yield tuple(group)
            group, held = [], 0
        group.append(g)
        held += count
    if group:
        yield tuple(group)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Categories as their values, polars' strings as the older ones."""
    fields = []
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        kind = pa.large_string() if "string_view" in str(kind) else kind
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _width(kind: pa.DataType) -> int:
    try:
        return max(kind.bit_width // 8, 1)
    except ValueError:
        return 24  # text, about


# -- a few users, drawn by their ids as in memory ------------------------------------------------


@dataclass(frozen=True, eq=False)
class SampledUsers:
    """Users with the smallest keys of all (see ``id_keys``), smallest first, and their rows."""

    ids: Array  # (n_users,)
    rows: Floats  # (n_users,), how many they have

    @classmethod
    def of(cls, ids: Array, rows: Floats, most: int) -> SampledUsers:
        """The first ``most`` of these users; rows of the same user are added up."""
        users, codes = group_rows(ids)
        first = np.argsort(id_keys(users), kind="stable")[:most]
        own = np.bincount(codes, rows, len(users)).astype(np.float64)
        return cls(users[first], own[first])

    @classmethod
    def merged(cls, parts: Sequence[SampledUsers], most: int) -> SampledUsers:
        """Of the users of all parts those with the smallest keys."""
        ids = joined_ids(*(one.ids for one in parts))
        return cls.of(ids, np.concatenate([one.rows for one in parts]), most)

    def first(self, most: int) -> SampledUsers:
        """The first ``most`` of them."""
        return SampledUsers(self.ids[:most], self.rows[:most])


def first_users(
    table: PiecedTable, schema: TableSchema, cluster: Cluster, most: int
) -> SampledUsers:
    """The users with the smallest keys, before rows have come together by user."""
    return SampledUsers.merged(cluster.run(_first_users, table.pieces, schema, most), most)


def _first_users(piece: Any, schema: TableSchema, most: int) -> SampledUsers:
    ids, codes = owners(piece.read([schema.user]), schema.user, schema.user_kind)
    rows = np.bincount(codes[codes >= 0], minlength=len(ids)).astype(np.float64)
    return SampledUsers.of(ids, rows, most)


def rows_of(
    table: PiecedTable,
    schema: TableSchema,
    users: SampledUsers,
    cluster: Cluster,
    time: str | None = None,
) -> pa.Table:
    """All rows of some users, or of the first of them; with the column ``time``, if named."""
    columns = [schema.user, *schema.features, schema.target]
    columns += [time] if time is not None and time not in columns else []
    fit = np.cumsum(users.rows) * 8 * len(columns) <= MOST_BYTES
    fit[0] = True
    found = cluster.run(_rows_of, table.pieces, schema, columns, users.ids[fit], time)
    return pa.concat_tables(found)


def _rows_of(
    piece: Any, schema: TableSchema, columns: list[str], users: Array, time: str | None
) -> pa.Table:
    rows = piece.read(columns)
    ids, codes = owners(rows.select([schema.user]), schema.user, schema.user_kind)
    wanted = np.append(positions(users, ids) >= 0, False)  # the last: rows without an id
    at = np.flatnonzero(wanted[codes])
    found = rows.take(at)
    if time is not None and len(at):  # a row without a time is refused where its place is known
        with piece.place.naming_rows():
            times(rows, time, at[schema.encode(found, piece=True).rows])
    return found
