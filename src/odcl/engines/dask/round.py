"""One round over a table in pieces: every stage is a map over pieces, buckets or uploads.

    look      pieces  -> one summary      -> schema, and sums of numeric columns
    measure   pieces  -> one row of sums  -> units, where a look could not
    send      pieces  -> files            rows, or sums of many rows of a user, by bucket of users
    gather    buckets -> uploads          one Parquet file each
    (server)  uploads -> small sums       as often as the server's step asks
    finish    uploads -> places, models   one Parquet file each

Only what is small comes back to whoever asked. Files lie in a folder that all workers reach.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import positions
from odcl.data.roles import CATEGORY, Look, Roles, is_open, looks_at
from odcl.data.scaling import Moments
from odcl.data.schema import TableSchema
from odcl.data.summary import TableSummary
from odcl.engines.dask.address import Address
from odcl.engines.dask.cluster import Cluster, is_delayed
from odcl.engines.dask.exchange import receive, send, targets_of
from odcl.engines.dask.sample import Drawn, drawn_from, drawn_of_all
from odcl.engines.dask.table import PiecedTable, rows_of_owners
from odcl.engines.dask.user_files import Part, part_name
from odcl.engines.partition.look import Job
from odcl.engines.partition.models import user_models, with_coefficients
from odcl.engines.partition.uploads import (
    from_arrow,
    merged,
    no_uploads,
    to_arrow,
    upload_rows,
    uploads_of,
)
from odcl.exchange.arrow import USER, ids_from_arrow, packed
from odcl.exchange.upload import Uploads
from odcl.server.chunks import in_chunks, sum_of

if TYPE_CHECKING:
    from odcl.server.result import StreamedStep

BUCKET_BYTES = 2**26  # of rows that are gathered at a time
GROUP_USERS = 20_000  # of a row group, which is read at a time
WORTH = 0.1  # of a piece's numbers that sums must save: bringing the two together is work


@dataclass(frozen=True, eq=False)
class Looked:
    """What a first read of all pieces tells."""

    summary: TableSummary
    moments: tuple[Moments | None, ...]  # of each piece; None: not known without the others


def settled(table: PiecedTable, roles: Roles, cluster: Cluster) -> Roles:
    """Roles of columns that nobody named, by a look at their values."""
    kinds = {name: table.schema.field(name).type for name in roles.features}
    looks = {name: CATEGORY for name, kind in kinds.items() if pa.types.is_dictionary(kind)}
    rest = [n for n in kinds if n not in (*looks, *roles.categorical) and is_open(kinds[n])]
    if rest:  # integers that do not count the rows of the first piece count none
        first = cluster.run(_looks, table.pieces[:1], rest)[0]
        rest = [n for n, look in first.items() if look.text or look.ends or not look.rows]
    for found in cluster.run(_looks, table.pieces, rest) if rest else ():
        looks |= {name: looks.get(name, Look(0)) + look for name, look in found.items()}
    return roles.settled(looks)


def _looks(piece: Any, names: list[str]) -> dict[str, Look]:
    return looks_at(piece.read(names), names)


def looked_at(table: PiecedTable, roles: Roles, cluster: Cluster, told: Any = None) -> Looked:
    """What all pieces tell of the columns."""
    found = cluster.run(_look, table.pieces, roles, progress=told)
    summaries, moments = zip(*found, strict=True)
    return Looked(TableSummary.merged(summaries), moments)


def _look(piece: Any, roles: Roles) -> tuple[TableSummary, Moments | None]:
    rows = piece.read(roles.columns)
    summary = TableSummary.of(rows, roles, piece.place)
    return summary, summary.moments(rows, roles)


def measured(
    table: PiecedTable, schema: TableSchema, looked: Looked, cluster: Cluster, told: Any = None
) -> Moments:
    """Moments of the design columns over all pieces; some were measured at the first read."""
    left = [piece for piece, m in zip(table.pieces, looked.moments, strict=True) if m is None]
    own = iter(cluster.run(_measure, left, schema, progress=told))
    return reduce(add, (next(own) if one is None else one for one in looked.moments))


def _measure(piece: Any, schema: TableSchema) -> Moments:
    rows = piece.read([schema.user, *schema.features, schema.target])
    return Moments.of(schema.encode(rows, piece=True).X)


# -- rows to uploads -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sent:
    """The files that hold a table's rows by bucket of users, and sums of rows beside them."""

    folder: Address
    n: int  # buckets
    rows: tuple[Address, ...]
    sums: tuple[Address, ...]
    n_rows: int = 0  # rows that went as they are
    n_bytes: int = 0


def n_buckets(table: PiecedTable, columns: int, cluster: Cluster) -> int:
    """Buckets of users whose rows fit into a worker's memory with ease."""
    rows = table.rows if table.rows is not None else 250_000 * table.n_pieces
    size = 8 * columns * rows
    return max(math.ceil(size / BUCKET_BYTES), min(2 * cluster.n_workers, math.ceil(size / 2**20)))


def send_rows(
    table: PiecedTable,
    job: Job,
    n: int,
    work: Address,
    cluster: Cluster,
    told: Callable[[int], None] | None = None,
) -> Sent:
    """Every piece's rows by bucket; of users with many rows in a piece, the sum of these."""
    folder = (work / "sent").make()
    found = cluster.run(_send, numbered(table.pieces), job, n, folder, progress=told)
    return Sent(
        folder,
        n,
        tuple(one[0] for one in found if one[0]),
        tuple(one[1] for one in found if one[1]),
        sum(one[2] for one in found),
        sum(one[3] for one in found),
    )


@dataclass(frozen=True, eq=False)
class Numbered:
    """A piece, and which one it is."""

    number: int
    piece: Any


def numbered(pieces: Sequence[Any]) -> list[Any]:
    """Pieces with their numbers; those of a frame are made where they are worked on."""
    make: Any = Numbered
    if any(map(is_delayed, pieces)):
        from dask import delayed

        make = delayed(Numbered, pure=False)
    return [make(i, piece) for i, piece in enumerate(pieces)]


def _send(
    one: Numbered, job: Job, n: int, work: Address
) -> tuple[Address | None, Address | None, int, int]:
    schema = job.schema
    rows = one.piece.read([schema.user, *schema.features, schema.target])
    many = _many(rows, job)
    rows_file = sums_file = None
    n_rows = n_bytes = 0
    if many is None or not many.all():
        own = rows if many is None or not many.any() else rows.filter(pa.array(~many))
        rows_file = work / f"rows-{one.number:05d}.arrow"
        targets = targets_of(own, schema.user, schema.user_kind, n)
        n_rows, n_bytes = own.num_rows, send(own, targets, n, rows_file)
    if many is not None and many.any():
        sums = upload_rows(rows.filter(pa.array(many)), job)
        sums_file = work / f"sums-{one.number:05d}.arrow"
        n_bytes += send(sums, targets_of(sums, USER, schema.user_kind, n), n, sums_file)
    return rows_file, sums_file, n_rows, n_bytes


def _many(rows: pa.Table, job: Job) -> Any:
    """Rows of users who have so many here that their sum is smaller, (n_rows,); None: no row, or
    so few that it does not pay."""
    if not job.adds_up or not rows.num_rows:
        return None
    width, each = len(job.scaling.used) + 1, rows.num_columns
    sums = 1 + width + width * (width + 1) // 2
    own = rows_of_owners(rows[job.schema.user])
    many = own * each > sums
    saved = (each - sums / own[many]).sum()
    return many if saved > WORTH * each * rows.num_rows else None


@dataclass(frozen=True, eq=False)
class UploadFiles:
    """The uploads of all users, bucket by bucket, and the rows that they came from."""

    files: tuple[Address, ...]
    sent: Sent
    n_users: int
    n_rows: int
    n_bytes: int  # that users sent
    drawn: Drawn  # a few of the users, by their ids
    single: int = 0  # users with one row


def gather_uploads(
    sent: Sent, job: Job, work: Address, cluster: Cluster, few: int, told: Any = None
) -> UploadFiles:
    """The uploads of every bucket's users; a ``few`` of the users are drawn by their ids."""
    found = cluster.run(_gather, range(sent.n), sent, job, work, few, progress=told)
    files, users, rows, size, single, drawn = zip(*found, strict=True)
    some = drawn_of_all([one for one in drawn if one is not None], few)
    if not job.needs_rows:  # nobody looks at them again
        sent.folder.remove()
    return UploadFiles(files, sent, sum(users), sum(rows), sum(size), some, sum(single))


def _gather(
    bucket: int, sent: Sent, job: Job, work: Address, few: int
) -> tuple[Address, int, int, int, int, Drawn | None]:
    rows, sums = receive(sent.rows, bucket), receive(sent.sums, bucket)
    parts = [] if sums is None else [from_arrow(sums, job)]
    own = None if rows is None else uploads_of(rows, job)
    if own is not None and parts:
        both = pa.concat_tables([to_arrow(own, job), sums])
        own = merged(from_arrow(both, job))
    elif parts:
        own = merged(parts[0])
    file = work / f"uploads-{bucket:05d}.parquet"
    _write(no_uploads(job) if own is None else to_arrow(own, job), file)
    if own is None:
        return file, 0, 0, 0, 0, None
    sizes = len(own), int(own.n_samples.sum()), int(own.n_bytes.sum())
    return file, *sizes, int((own.n_samples == 1).sum()), drawn_from(own, few)


def _write(table: pa.Table, file: Address) -> None:
    """Write a Parquet file of numbers."""
    with file.writing() as stream:
        pq.write_table(
            packed(table),
            stream,
            row_group_size=GROUP_USERS,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )


def _digest(file: Address) -> str:
    digest = hashlib.sha256()
    with file.open() as stream:
        while chunk := stream.read(2**22):
            digest.update(chunk)
    return digest.hexdigest()


# -- the server's passes ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DaskChunks:
    """Uploads as the server's step takes them: a function goes to them, file by file."""

    uploads: UploadFiles
    job: Job
    cluster: Cluster
    told: Callable[[int], None] | None = field(default=None)

    def added(self, function: Callable[[Uploads], Any]) -> Any:
        files = self.uploads.files
        return sum_of(self.cluster.run(_pass, files, self.job, function, progress=self.told))


def _pass(file: Address, job: Job, function: Callable[[Uploads], Any]) -> Any:
    """The sum over a file, in chunks that stay near the processor."""
    groups = (from_arrow(table, job) for table in _groups(file))
    return sum_of(function(part) for uploads in groups for part in in_chunks(uploads).read())


def _groups(file: Address) -> Iterable[pa.Table]:
    with file.open() as stream:
        content = pq.ParquetFile(stream)
        for group in range(content.num_row_groups):
            yield content.read_row_group(group, use_threads=False)


# -- the last steps --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Finished:
    """The models of all users, in files, and what else their last steps told."""

    parts: tuple[Part, ...]
    sizes: Ints  # (n_groups,), users where their own last steps placed them
    rows: Floats  # (n_groups,), and their rows
    bytes_down: int
    uploads: pa.Table  # of the users drawn
    models: pa.Table


def finish_users(
    uploads: UploadFiles,
    job: Job,
    step: StreamedStep,
    out: Address,
    cluster: Cluster,
    told: Any = None,
) -> Finished:
    """Every user's place and model; the files of ``out``, one for each bucket."""
    rows = uploads.sent if job.needs_rows else None
    named = [Numbered(i, file) for i, file in enumerate(uploads.files)]
    given = (job, step, rows, out, uploads.drawn.ids)
    found = cluster.run(_finish, named, *given, progress=told)
    parts, sizes, counts, down, sent, models = zip(*found, strict=True)
    few = (pa.concat_tables(tables) for tables in (sent, models))
    return Finished(parts, sum(sizes), sum(counts), sum(down), *few)


def _finish(
    one: Numbered, job: Job, step: StreamedStep, sent: Sent | None, out: Address, drawn: Array
) -> tuple[Part, Ints, Floats, int, pa.Table, pa.Table]:
    with one.piece.open() as stream:
        uploads = pq.ParquetFile(stream).read(use_threads=False)
    rows = None if sent is None else receive(sent.rows, one.number)
    models = user_models(uploads, job, step, rows)
    file = out / part_name(one.number)
    _write(with_coefficients(models, job), file)
    k = len(step.sizes)
    group = models["group"].to_numpy()
    sizes = np.bincount(group, minlength=k)
    each = models["rows"].to_numpy()
    counts = np.bincount(group, weights=each, minlength=k).astype(np.float64)
    down = 0
    if models.num_rows:  # the same for every user
        down = models.num_rows * int(step.place(from_arrow(uploads.slice(0, 1), job)).n_bytes[0])
    part = Part(file.name, models.num_rows, file.size(), _digest(file))
    few = np.flatnonzero(positions(drawn, ids_from_arrow(models[USER])) >= 0)
    return part, sizes, counts, down, uploads.take(few), models.take(few)
