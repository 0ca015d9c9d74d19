"""Rows brought together by user, through files: what a map task writes, a reduce task reads.

Each piece of the table is written once, its rows sorted by target, as an Arrow file with one batch
per target; whoever gathers a target reads its batch from every file, in the order of the pieces.
So the rows of a user arrive in the order of the table, whatever was slow or lost meanwhile: a task
that is repeated writes the same file again, and files outlive the worker that wrote them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odcl._typing import Array, Ints
from odcl.data.columns import is_text
from odcl.data.columns import keys as as_keys
from odcl.engines.dask.address import Address

_ODD = np.uint64(0x9E3779B97F4A7C15)  # splitmix64


def targets_of(table: pa.Table, user: str, kind: str, n: int) -> Ints:
    """A target from 0 to n - 1 for each row's user, the same wherever it is asked.

    ``kind`` is that of the ids in the fit (TableSchema.user_kind): 7, 7.0 and, where ids are
    numbers, "7" are one user. Rows without one go anywhere.
    """
    column = table[user]
    own = column.type
    whole = pa.types.is_integer(own) or pa.types.is_boolean(own)
    if kind in ("int", "float", "bool") and (whole or pa.types.is_floating(own)):
        filled = pc.fill_null(column, False if pa.types.is_boolean(own) else 0)
        numbers = np.nan_to_num(filled.to_numpy())
        keys = _number_keys(numbers, kind)
    elif kind == "text" and is_text(own):
        coded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        words = [zlib.crc32(word.encode()) for word in coded.dictionary.to_pylist()]
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        keys = np.array([*words, 0], dtype=np.uint64)[codes]
    else:
        found = as_keys(table, user, kind)
        each = [_key(value, kind) for value in found.values]
        keys = np.array([*each, 0], dtype=np.uint64)[found.codes]
    return (_mixed(keys) % np.uint64(n)).astype(np.intp)


def _number_keys(numbers: Array, kind: str) -> Array:
    if kind == "float":
        return (numbers.astype(np.float64) + 0.0).view(np.uint64)  # -0 is 0
    with np.errstate(invalid="ignore"):  # ids that are not whole are nobody's
        return numbers.astype(np.int64).view(np.uint64)


def _key(value: Any, kind: str) -> int:
    if isinstance(value, str):
        return zlib.crc32(value.encode())
    if isinstance(value, int) and kind != "float":
        return value % 2**64  # whatever its size
    return int(_number_keys(np.array([value]), kind)[0])


def _mixed(keys: Array) -> Array:
    """Integers whose bits all depend on all bits of the keys."""
    x = keys + _ODD
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def send(table: pa.Table, targets: Ints, n: int, file: Address) -> int:
    """Write the rows of a piece by target, in their order; how many bytes."""
    order = np.argsort(targets.astype(np.uint16 if n < 2**16 else np.int64), kind="stable")
    ends = np.cumsum(np.bincount(targets, minlength=n))
    batch = table.take(pa.array(order)).combine_chunks()
    starts = np.concatenate([[0], ends[:-1]])
    with file.writing() as stream, pa.ipc.new_file(stream, table.schema) as writer:
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            part = batch.slice(start, end - start)
            whole = part.to_batches()
            writer.write_batch(whole[0] if whole else _no_rows(table.schema))
    return int(batch.nbytes)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def receive(files: Iterable[Address], target: int) -> pa.Table | None:
    """The rows of a target, piece after piece; None where nothing was sent."""
    batches = []
    for file in files:
        with file.open() as stream:
            batch = pa.ipc.open_file(stream).get_batch(target)
            if batch.num_rows:
                batches.append(batch)
    return pa.Table.from_batches(batches) if batches else None
