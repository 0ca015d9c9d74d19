"""One round over a table in pieces: every stage is a map over pieces, buckets or uploads.

    summarize  pieces  -> one summary    -> schema, and moments of numeric columns
    measure    pieces  -> moments        -> units, where the first pass could not
    shuffle    pieces  -> files          rows, or sums of many rows of a user, by bucket of users
    gather     buckets -> uploads        one Parquet file each
    (server)   uploads -> small sums     as often as the server's step asks
    finish     uploads -> places, models one Parquet file each

Only small values come back to the caller. Files lie in a folder that all workers reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.address import Address
from odcl.data.federation import positions
from odcl.data.roles import CATEGORY, ColumnLook, Roles, is_open, looks_at
from odcl.data.scaling import TableMoments
from odcl.data.schema import TableSchema
from odcl.data.summary import TableSummary
from odcl.engines.dask.cluster import Cluster
from odcl.engines.dask.table import PiecedTable, SampledUsers
from odcl.engines.pieces import FitPlan, merge_uploads, upload_rows, user_models, with_coefficients
from odcl.exchange.buckets import (
    USER,
    UserFile,
    buckets_of,
    ids_from_arrow,
    receive,
    send,
    write_models,
    write_numbers,
)
from odcl.exchange.upload import Uploads
from odcl.server.chunks import in_chunks, sum_of

if TYPE_CHECKING:
    from odcl.server.result import StreamedStep

Advance = Callable[[int], None] | None
BUCKET_BYTES = 2**26  # of rows that are gathered at a time
WORTH = 0.1  # of a piece's numbers that sums must save: bringing the two together is work


# -- columns and units -----------------------------------------------------------------------------


def settled(table: PiecedTable, roles: Roles, cluster: Cluster) -> Roles:
    """Roles of columns not named, by a look at their values."""
    kinds = {name: table.schema.field(name).type for name in roles.features}
    looks = {name: CATEGORY for name, kind in kinds.items() if pa.types.is_dictionary(kind)}
    rest = [n for n in kinds if n not in (*looks, *roles.categorical) and is_open(kinds[n])]
    if rest:  # integers that do not count the rows of the first piece count none
        first = cluster.run(_looks, table.pieces[:1], rest)[0]
        rest = [n for n, look in first.items() if look.text or look.ends or not look.rows]
    for found in cluster.run(_looks, table.pieces, rest) if rest else ():
        looks |= {name: looks.get(name, ColumnLook(0)) + look for name, look in found.items()}
    return roles.settled(looks)


def _looks(piece: Any, names: list[str]) -> dict[str, ColumnLook]:
    return looks_at(piece.read(names), names)


@dataclass(frozen=True, eq=False)
class FirstPass:
    """What a first read of all pieces tells."""

    summary: TableSummary
    moments: tuple[TableMoments | None, ...]  # of each piece; None: not known without the others


def summarize(
    table: PiecedTable, roles: Roles, cluster: Cluster, progress: Advance = None
) -> FirstPass:
    """The summary of all pieces."""
    found = cluster.run(_summarize, table.pieces, roles, progress=progress)
    summaries, moments = zip(*found, strict=True)
    return FirstPass(TableSummary.merged(summaries), moments)


def _summarize(piece: Any, roles: Roles) -> tuple[TableSummary, TableMoments | None]:
    rows = piece.read(roles.columns)
    summary = TableSummary.of(rows, roles, piece.place)
    return summary, summary.moments(rows, roles)


def measure(
    table: PiecedTable,
    schema: TableSchema,
    first: FirstPass,
    cluster: Cluster,
    progress: Advance = None,
) -> TableMoments:
    """Moments of the design columns over all pieces; some were measured at the first read."""
    left = [piece for piece, m in zip(table.pieces, first.moments, strict=True) if m is None]
    own = iter(cluster.run(_measure, left, schema, progress=progress))
    return reduce(add, (next(own) if one is None else one for one in first.moments))


def _measure(piece: Any, schema: TableSchema) -> TableMoments:
    rows = piece.read([schema.user, *schema.features, schema.target])
    return TableMoments.of(schema.encode(rows, piece=True).X)


# -- rows to uploads -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ShuffleFiles:
    """The files that hold a table's rows by bucket of users, and sums of rows beside them."""

    folder: Address
    n_buckets: int
    rows: tuple[Address, ...]
    sums: tuple[Address, ...]
    n_rows: int = 0  # rows that went as they are


def n_buckets(table: PiecedTable, columns: int, cluster: Cluster) -> int:
    """Buckets of users whose rows fit into a worker's memory with ease."""
    rows = table.rows if table.rows is not None else 250_000 * table.n_pieces
    size = 8 * columns * rows
    return max(math.ceil(size / BUCKET_BYTES), min(2 * cluster.n_workers, math.ceil(size / 2**20)))


def shuffle(
    table: PiecedTable,
    plan: FitPlan,
    n: int,
    work: Address,
    cluster: Cluster,
    progress: Advance = None,
) -> ShuffleFiles:
    """Every piece's rows by bucket; of users with many rows in a piece, the sum of these."""
    folder = (work / "sent").make()
    found = cluster.run(_shuffle, table.pieces, plan, n, folder, progress=progress)
    rows, sums, n_rows = zip(*found, strict=True)
    files = tuple(filter(None, rows)), tuple(filter(None, sums))
    return ShuffleFiles(folder, n, *files, sum(n_rows))


def _shuffle(
    piece: Any, plan: FitPlan, n: int, folder: Address
) -> tuple[Address | None, Address | None, int]:
    kind, rows = plan.schema.user_kind, piece.read(plan.columns)
    many = sums_pay(rows, plan)
    rows_file, sums_file, n_rows = None, None, 0
    if not many.all() or not len(many):
        own = rows.filter(pa.array(~many)) if many.any() else rows
        rows_file = folder / f"rows-{piece.number:05d}.arrow"
        buckets = buckets_of(own, plan.schema.user, kind, n)
        send(own, buckets, n, rows_file)
        n_rows = own.num_rows
    if many.any():
        sums = upload_rows(rows.filter(pa.array(many)), plan)
        sums_file = folder / f"sums-{piece.number:05d}.arrow"
        send(sums, buckets_of(sums, USER, kind, n), n, sums_file)
    return rows_file, sums_file, n_rows


def sums_pay(rows: pa.Table, plan: FitPlan) -> Bools:
    """Rows of users whose sum has fewer numbers than their rows here, (n_rows,): none of them
    where losses do not add up, or where too little is saved."""
    none = np.zeros(rows.num_rows, np.bool_)
    if not plan.adds_up or not rows.num_rows:
        return none
    width, each = plan.scaling.width + 1, rows.num_columns
    sums = 1 + width + width * (width + 1) // 2
    coded = rows[plan.schema.user].dictionary_encode().unify_dictionaries().combine_chunks()
    codes = coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)
    own = np.bincount(codes)[codes]
    many = own * each > sums
    saved = (each - sums / own[many]).sum()
    return many if saved > WORTH * each * rows.num_rows else none


@dataclass(frozen=True, eq=False)
class UploadFiles:
    """The uploads of all users, bucket by bucket, and the rows that they came from."""

    files: tuple[Address, ...]
    shuffled: ShuffleFiles
    n_users: int
    n_rows: int
    n_bytes: int  # that users sent
    single: int  # users with one row
    sample: SampledUsers


def gather_uploads(
    shuffled: ShuffleFiles,
    plan: FitPlan,
    work: Address,
    cluster: Cluster,
    few: int,
    progress: Advance = None,
) -> UploadFiles:
    """The uploads of every bucket's users; a ``few`` of the users are sampled by their ids."""
    given = (shuffled, plan, work, few)
    found = cluster.run(_gather, range(shuffled.n_buckets), *given, progress=progress)
    files, users, rows, size, single, samples = zip(*found, strict=True)
    if plan.adds_up:  # the rows are not needed again
        shuffled.folder.remove()
    sample = SampledUsers.merged([one for one in samples if len(one.ids)], few)
    return UploadFiles(files, shuffled, sum(users), sum(rows), sum(size), sum(single), sample)


def _gather(
    bucket: int, shuffled: ShuffleFiles, plan: FitPlan, work: Address, few: int
) -> tuple[Address, int, int, int, int, SampledUsers]:
    rows, sums = receive(shuffled.rows, bucket), receive(shuffled.sums, bucket)
    table = plan.no_uploads() if rows is None else upload_rows(rows, plan)
    if sums is not None:
        parts = [sums] if rows is None else [table, sums]
        table = merge_uploads(pa.concat_tables(parts), plan)
    file = work / f"uploads-{bucket:05d}.parquet"
    write_numbers(table, file)
    own = plan.from_arrow(table)
    n = own.n_samples
    counts = len(own), int(n.sum()), int(own.n_bytes.sum()), int((n == 1).sum())
    return file, *counts, SampledUsers.of(own.users, n, few)


# -- the server's passes ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DaskChunks:
    """Uploads as the server's step takes them: a function goes to them, file by file."""

    uploads: UploadFiles
    plan: FitPlan
    cluster: Cluster

    def added(self, function: Callable[[Uploads], Any]) -> Any:
        return sum_of(self.cluster.run(_pass, self.uploads.files, self.plan, function))


def _pass(file: Address, plan: FitPlan, function: Callable[[Uploads], Any]) -> Any:
    """The sum over a file, in chunks that stay near the processor."""
    groups = (plan.from_arrow(table) for table in _groups(file))
    return sum_of(function(part) for uploads in groups for part in in_chunks(uploads).read())


def _groups(file: Address) -> Iterable[pa.Table]:
    with file.open() as stream:
        content = pq.ParquetFile(stream)
        for group in range(content.num_row_groups):
            yield content.read_row_group(group, use_threads=False)


# -- the last steps --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LastSteps:
    """The models of all users, in files, and what else their last steps told."""

    parts: tuple[UserFile, ...]
    sizes: Ints  # (n_groups,), users where their own last steps placed them
    rows: Floats  # (n_groups,), and their rows
    bytes_down: int
    uploads: pa.Table  # of the users sampled
    models: pa.Table


def finish_users(
    uploads: UploadFiles,
    plan: FitPlan,
    step: StreamedStep,
    out: Address,
    cluster: Cluster,
    progress: Advance = None,
) -> LastSteps:
    """Every user's place and model; the files of ``out``, one for each bucket."""
    buckets, given = range(len(uploads.files)), (uploads, plan, step, out)
    found = cluster.run(_finish, buckets, *given, progress=progress)
    parts, sizes, rows, down, sent, models = zip(*found, strict=True)
    few = (pa.concat_tables(tables) for tables in (sent, models))
    return LastSteps(parts, sum(sizes), sum(rows), sum(down), *few)


def _finish(
    bucket: int, files: UploadFiles, plan: FitPlan, step: StreamedStep, out: Address
) -> tuple[UserFile, Ints, Floats, int, pa.Table, pa.Table]:
    with files.files[bucket].open() as stream:
        uploads = pq.ParquetFile(stream).read(use_threads=False)
    rows = None if plan.adds_up else receive(files.shuffled.rows, bucket)
    models = user_models(uploads, plan, step, rows)
    part = write_models(with_coefficients(models, plan), out, bucket)
    group: Array = models["group"].to_numpy()
    k, each = len(step.sizes), models["rows"].to_numpy()
    sizes = np.bincount(group, minlength=k)
    counts = np.bincount(group, weights=each, minlength=k).astype(np.float64)
    down = 0
    if models.num_rows:  # the same for every user
        down = models.num_rows * int(step.place(plan.from_arrow(uploads.slice(0, 1))).n_bytes[0])
    few = np.flatnonzero(positions(files.sample.ids, ids_from_arrow(models[USER])) >= 0)
    return part, sizes, counts, down, uploads.take(few), models.take(few)
