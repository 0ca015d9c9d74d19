"""Messages as Arrow tables: one row per user, each field a list of fixed size.

So uploads travel through whatever carries tables: a Parquet data set, Dask, Spark, Ray.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from odcl._typing import Array
from odcl.data.federation import as_ids
from odcl.data.tables import arrow_column
from odcl.errors import InputError, show
from odcl.exchange.upload import Uploads, upload_sizes
from odcl.risk.risk import Risk

USER = "user"  # the column of ids
FIELD = "up_"  # before the names of an upload's fields: none of them is a table's column


def number_lists(values: Array) -> pa.Array:
    """(n, ...) numbers as n lists of fixed size; (n,) as they are."""
    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))


def numbers_of(column: Any, shape: tuple[int, ...] = (), dtype: str = "float64") -> Array:
    """The way back from :func:`number_lists` (and from its packed form), as (n, *shape)."""
    one = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    n = len(one)
    if pa.types.is_fixed_size_binary(one.type):
        size = one.type.byte_width
        count = n * size // np.dtype(dtype).itemsize
        flat = np.frombuffer(one.buffers()[1], dtype, count, one.offset * size)
    elif pa.types.is_fixed_size_list(one.type) or pa.types.is_list(one.type):
        flat = one.flatten().to_numpy(zero_copy_only=False)
    else:
        flat = one.to_numpy(zero_copy_only=False)
    return flat.reshape(n, *shape)


def _padded_numbers(column: Any, width: int, dtype: str) -> Array:
    """Lists of whole rows as (n, most rows, width): shorter lists end in zeros."""
    one = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    lengths = one.value_lengths().to_numpy(zero_copy_only=False)
    size = max(int(lengths.max(initial=0)), width)
    numbers = np.zeros((len(one), size), dtype)
    numbers[np.arange(size) < lengths[:, None]] = one.flatten().to_numpy(zero_copy_only=False)
    return numbers.reshape(len(one), size // width, width)


def packed(table: pa.Table) -> pa.Table:
    """The table with lists of fixed size as bytes: Parquet reads these thirty times as fast."""
    for at, field in enumerate(table.schema):
        if pa.types.is_fixed_size_list(field.type):
            values = numbers_of(table[at], (field.type.list_size,))
            kind = pa.binary(values.itemsize * field.type.list_size)
            buffer = pa.py_buffer(np.ascontiguousarray(values))
            column = pa.Array.from_buffers(kind, len(values), [None, buffer])
            table = table.set_column(at, field.name, column)
    return table


def as_lists(table: pa.Table) -> pa.Table:
    """The table with plain lists: Spark knows none of fixed size."""
    for at, field in enumerate(table.schema):
        if pa.types.is_fixed_size_list(field.type):
            table = table.set_column(at, field.name, _as_list(table[at]))
    return table


def _as_list(column: Any) -> Any:
    return column.cast(pa.list_(column.type.value_type))


def ids_to_arrow(users: Array, kind: pa.DataType | None = None) -> pa.Array:
    """Ids in one type."""
    if kind is None:
        return arrow_column(users)
    try:
        plain = users.dtype.kind in "iufb"
        return pa.array(users).cast(kind) if plain else pa.array(users.tolist(), kind)
    except (OverflowError, pa.ArrowInvalid):
        raise InputError(
            f"An id is beyond the integers of the others ({kind}; the last is "
            f"{show(users.tolist()[-1])}): write ids of this size as text."
        ) from None


def ids_from_arrow(column: Any) -> Array:
    """Ids as they are in memory."""
    if pa.types.is_uint64(column.type):
        return as_ids(column)
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return np.asarray(column.to_numpy())
    return as_ids(column)


def uploads_to_arrow(uploads: Uploads, ids: pa.DataType | None = None) -> pa.Table:
    """One row per user: its id, and the fields that it sends, symmetric matrices as triangles."""
    columns = {USER: ids_to_arrow(uploads.users, ids)}
    for name, values in uploads.to_arrays().items():
        lists = number_lists(values)
        columns[FIELD + name] = _as_list(lists) if Uploads.parts()[name].padded else lists
    return pa.table(columns)


def uploads_from_arrow(table: pa.Table, risk: Risk, dim: int) -> Uploads:
    """The way back; the risk and the number of parameters are known to everybody."""
    shapes = Uploads.array_shapes("users", upload_sizes(risk, dim))
    arrays = _arrays(table, shapes)
    found = Uploads.from_arrays(ids_from_arrow(table[USER]), arrays)
    return replace(found, risk=risk)


def _arrays(table: pa.Table, shapes: Mapping[str, tuple[int | str, ...]]) -> dict[str, Array]:
    arrays = {}
    for name in table.column_names:
        if name.startswith(FIELD):
            own = name.removeprefix(FIELD)
            part, sizes = Uploads.parts()[own], shapes[own][1:]
            if part.padded:
                found = _padded_numbers(table[name], int(sizes[-1]), part.dtype)
            else:
                found = numbers_of(table[name], tuple(map(int, sizes)), part.dtype)
            arrays[own] = found.astype(part.dtype, copy=False)
    return arrays
