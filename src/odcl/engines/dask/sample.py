"""All rows of a few users of a table in pieces, drawn by their ids as in memory."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odcl._typing import Array, Floats
from odcl.data.federation import id_keys, joined_ids, positions
from odcl.data.schema import TableSchema, owners
from odcl.engines.dask.address import Address
from odcl.engines.dask.cluster import Cluster
from odcl.engines.dask.round import UploadFiles
from odcl.engines.dask.table import PiecedTable
from odcl.engines.partition.look import Job
from odcl.engines.partition.uploads import from_arrow
from odcl.exchange.arrow import FIELD, USER

MOST_BYTES = 2**30  # of the rows that come together: users with very many rows make it fewer users
Drawn = tuple[Array, Array, Floats]  # keys, ids and numbers of rows, each (n_users,)


def rows_of_some(
    table: PiecedTable, job: Job, uploads: UploadFiles, cluster: Cluster, most: int
) -> pa.Table:
    """The rows of at most so many users: those with the smallest keys, as in memory."""
    drawn = cluster.run(_drawn, uploads.files, job, most)
    _, ids, rows = reduce(partial(_smallest, most=most), drawn)
    schema = job.schema
    columns = [schema.user, *schema.features, schema.target]
    fit = np.cumsum(rows) * 8 * len(columns) <= MOST_BYTES
    fit[0] = True
    found = cluster.run(_rows_of, table.pieces, schema, columns, ids[fit])
    return pa.concat_tables(found)


def _smallest(one: Drawn, other: Drawn, most: int) -> Drawn:
    """Of two lists of users those with the smallest keys, in the order of these."""
    keys, rows = (np.concatenate([one[i], other[i]]) for i in (0, 2))
    some = np.argsort(keys, kind="stable")[:most]
    return keys[some], joined_ids(one[1], other[1])[some], rows[some]


def _drawn(file: Address, job: Job, most: int) -> Drawn:
    """The users of a file who may be among those with the smallest keys."""
    with file.open() as stream:
        told = pq.ParquetFile(stream).read([USER, FIELD + "n_samples"], use_threads=False)
    found = from_arrow(told, job)
    keys = id_keys(found.users) if len(found) else np.empty(0, np.uint64)
    some = np.argsort(keys, kind="stable")[:most]
    return keys[some], found.users[some], found.n_samples[some]


def _rows_of(piece: Any, schema: TableSchema, columns: list[str], users: Array) -> pa.Table:
    rows = piece.read(columns)
    ids, codes = owners(rows.select([schema.user]), schema.user, schema.user_kind)
    wanted = np.append(positions(users, ids) >= 0, False)  # the last: rows without an id
    return rows.filter(pa.array(wanted[codes]))
