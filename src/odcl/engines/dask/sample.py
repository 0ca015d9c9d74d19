"""A few users of a table in pieces, drawn by their ids as in memory, and all rows of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from odcl._typing import Array, Floats
from odcl.data.columns import times
from odcl.data.federation import group_rows, id_keys, joined_ids, positions
from odcl.data.rows import owners
from odcl.data.schema import TableSchema
from odcl.engines.dask.cluster import Cluster
from odcl.engines.dask.table import PiecedTable
from odcl.exchange.upload import Uploads

MOST_BYTES = 2**30  # of the rows that come together: users with very many rows make it fewer users


@dataclass(frozen=True, eq=False)
class Drawn:
    """Users with the smallest keys of all, in the order of these, and how many rows they have."""

    keys: Array  # (n_users,)
    ids: Array  # (n_users,)
    rows: Floats  # (n_users,)

    def first(self, most: int) -> Drawn:
        """At most so many of them."""
        return Drawn(self.keys[:most], self.ids[:most], self.rows[:most])


def drawn_from(uploads: Uploads, most: int) -> Drawn:
    """The users of a bucket who may be among those with the smallest keys."""
    keys = id_keys(uploads.users)
    some = np.argsort(keys, kind="stable")[:most]
    return Drawn(keys[some], uploads.users[some], uploads.n_samples[some])


def drawn_of_all(buckets: Sequence[Drawn], most: int) -> Drawn:
    """Of the users of all buckets those with the smallest keys."""
    ids = reduce(joined_ids, (one.ids for one in buckets))
    keys, rows = (np.concatenate([getattr(one, n) for one in buckets]) for n in ("keys", "rows"))
    some = np.argsort(keys, kind="stable")[:most]
    return Drawn(keys[some], ids[some], rows[some])


def first_users(table: PiecedTable, schema: TableSchema, cluster: Cluster, most: int) -> Drawn:
    """The users with the smallest keys, before rows have come together by user."""
    found = cluster.run(_first_users, table.pieces, schema, most)
    ids, codes = group_rows(reduce(joined_ids, (one.ids for one in found)))
    rows = np.bincount(codes, np.concatenate([one.rows for one in found])).astype(np.float64)
    keys = id_keys(ids)
    some = np.argsort(keys, kind="stable")[:most]
    return Drawn(keys[some], ids[some], rows[some])


def _first_users(piece: Any, schema: TableSchema, most: int) -> Drawn:
    ids, codes = owners(piece.read([schema.user]), schema.user, schema.user_kind)
    keys, rows = id_keys(ids), np.bincount(codes[codes >= 0], minlength=len(ids))
    some = np.argsort(keys, kind="stable")[:most]
    return Drawn(keys[some], ids[some], rows[some].astype(np.float64))


def rows_of(
    table: PiecedTable,
    schema: TableSchema,
    drawn: Drawn,
    cluster: Cluster,
    time: str | None = None,
) -> pa.Table:
    """All rows of the users drawn, or of the first of them; with the column ``time``, if named."""
    columns = [schema.user, *schema.features, schema.target]
    columns += [time] if time is not None and time not in columns else []
    fit = np.cumsum(drawn.rows) * 8 * len(columns) <= MOST_BYTES
    fit[0] = True
    found = cluster.run(_rows_of, table.pieces, schema, columns, drawn.ids[fit], time)
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
