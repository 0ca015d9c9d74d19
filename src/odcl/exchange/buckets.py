"""Files by bucket of users: rows on their way to their user, and the users' models.

Each piece of a table is written once, its rows sorted by bucket, as an Arrow file with one batch
per bucket; a task that gathers a bucket reads its batch from every file, in the order of the
pieces. So the rows of a user arrive in the order of the table, and a task that is repeated writes
the same file again; files outlive the worker that wrote them. Uploads travel as Arrow tables with
one row per user, through whatever carries tables: a Parquet data set, Dask, Spark, Ray.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odcl._typing import Array, Ints
from odcl.data.address import Address
from odcl.data.columns import is_text
from odcl.data.columns import keys as as_keys
from odcl.data.federation import as_ids, stirred
from odcl.data.schema import KINDS
from odcl.data.tables import arrow_column
from odcl.declared import Count, Digest, expect, from_json, one_of, to_json
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
    shapes = Uploads.array_shapes(upload_sizes(risk, dim))
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
    return replace(Uploads.from_arrays(ids_from_arrow(table[USER]), arrays), risk=risk)


# -- rows by bucket --------------------------------------------------------------------------------


_ODD = np.uint64(0x9E3779B97F4A7C15)  # splitmix64
GROUP_USERS, GROUP_BYTES = 20_000, 2**28  # at most, of a row group, which is read at a time


def buckets_of(table: pa.Table, user: str, kind: str, n: int) -> Ints:
    """A bucket from 0 to n - 1 for each row's user, the same wherever it is asked.

    ``kind`` is that of the ids in the fit (TableSchema.user_kind): 7, 7.0 and, where ids are
    numbers, "7" are one user. Rows without a user go anywhere.
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
    return (stirred(keys + _ODD) % np.uint64(n)).astype(np.intp)


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


def send(table: pa.Table, buckets: Ints, n: int, file: Address) -> None:
    """Write the rows of a piece by bucket, in their order."""
    order = np.argsort(buckets.astype(np.uint16 if n < 2**16 else np.int64), kind="stable")
    ends = np.cumsum(np.bincount(buckets, minlength=n))
    batch = table.take(pa.array(order)).combine_chunks()
    starts = np.concatenate([[0], ends[:-1]])
    with file.writing() as stream, pa.ipc.new_file(stream, table.schema) as writer:
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            part = batch.slice(start, end - start).to_batches()
            writer.write_batch(part[0] if part else pa.RecordBatch.from_pylist([], table.schema))


def receive(files: Iterable[Address], bucket: int) -> pa.Table | None:
    """The rows of a bucket, piece after piece; None where nothing was sent."""
    batches = []
    for file in files:
        with file.open() as stream:
            batch = pa.ipc.open_file(stream).get_batch(bucket)
            if batch.num_rows:
                batches.append(batch)
    return pa.Table.from_batches(batches) if batches else None


# -- the users' models ----------------------------------------------------------------------------

EXAMPLES = 2000  # users that the estimator itself holds


@dataclass(frozen=True)
class UserFile:
    """A file of users' models."""

    file: str
    users: Count
    bytes: Count
    sha256: Digest


@dataclass(frozen=True, eq=False)
class UserFiles:
    """Where the models of a run's users are. A user's id tells its file."""

    folder: Address
    kind: str  # of the ids: see TableSchema.user_kind
    parts: Sequence[UserFile]
    kept: bool = False  # where they lie, by a run or a model that needs them there

    @property
    def n_users(self) -> int:
        """Users of all files together."""
        return sum(part.users for part in self.parts)

    @property
    def n_examples(self) -> int:
        """Users whose models are in the estimator as well."""
        return min(EXAMPLES, self.n_users)

    def buckets(self, table: pa.Table, user: str) -> Array:
        """The file of each row's user, (n_rows,)."""
        return buckets_of(table, user, self.kind, len(self.parts))

    def read(self, bucket: int) -> pa.Table:
        """The models of one file, which is refused if it was cut or exchanged."""
        part = self.parts[bucket]
        file = self.folder / part.file
        if not file.kind():
            raise ValueError(f"{file} is missing: copy the whole folder again, or fit again.")
        if file.size() != part.bytes:
            raise ValueError(
                f"{file} has {file.size()} bytes, not {part.bytes}: it is damaged or was changed. "
                "Copy the whole folder again, or fit again."
            )
        with file.open() as stream:
            content = stream.read_buffer()
        self._check(part, hashlib.sha256(content).hexdigest())
        return pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)

    def _check(self, part: UserFile, digest: str) -> None:
        """A file that has its size may have other content."""
        if digest != part.sha256:
            raise ValueError(
                f"{self.folder / part.file} is not the file that was written: it is damaged or was "
                "changed. Copy the whole folder again, or fit again."
            )

    def models(self, ids: Array) -> pa.Table:
        """The models of these users; users who are not there are left out."""
        found = [self.read(0).slice(0, 0)]
        kind = found[0][USER].type
        least, beyond = (0, 2**64) if pa.types.is_uint64(kind) else (-(2**63), 2**63)
        own = [u for u in ids.tolist() if _fits(u, self.kind, range(least, beyond))]
        asked = pa.table({USER: pa.array(own, kind)})
        buckets = self.buckets(asked, USER)
        for bucket in np.unique(buckets):
            table, wanted = self.read(int(bucket)), asked.filter(pa.array(buckets == bucket))[USER]
            found.append(table.filter(pc.is_in(table[USER], wanted.combine_chunks())))
        return pa.concat_tables(found)

    def bring(self, folder: Path) -> None:
        """Bring the files to a folder of this disk, which is made: moved, or copied and checked."""
        if self.folder.is_local and not self.kept:
            shutil.move(self.folder.text, folder)
            return
        folder.mkdir()
        for part in self.parts:
            digest = hashlib.sha256()
            with (self.folder / part.file).open() as source, open(folder / part.file, "xb") as to:
                while chunk := source.read(2**22):
                    digest.update(chunk)
                    to.write(chunk)
            self._check(part, digest.hexdigest())

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "parts": to_json(self.parts)}

    @classmethod
    def from_json(cls, words: Any, folder: Address) -> UserFiles:
        """What :meth:`to_json` wrote, checked: files may come from elsewhere."""
        kind = from_json(Annotated[str, one_of(KINDS)], words.get("kind"), "kind")
        parts = from_json(tuple[UserFile, ...], words.get("parts"), "parts")
        expect(parts, "it lists no files")
        for number, part in enumerate(parts):
            expect(part.file == part_name(number), f"{part.file!r} is not the file's name")
        return cls(folder, kind, parts, kept=True)


def part_name(bucket: int) -> str:
    return f"part-{bucket:05d}.parquet"


def write_numbers(table: pa.Table, file: Address) -> None:
    """Write a Parquet file of numbers, one row per user."""
    each = max(table.nbytes // max(table.num_rows, 1), 1)
    with file.writing() as stream:
        pq.write_table(
            packed(table),
            stream,
            row_group_size=min(GROUP_USERS, max(GROUP_BYTES // each, 1)),
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )


def write_models(models: pa.Table, folder: Address, bucket: int) -> UserFile:
    """Write the file of a bucket's models."""
    file = folder / part_name(bucket)
    write_numbers(models, file)
    with file.open() as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return UserFile(file.name, models.num_rows, file.size(), digest)


def _fits(user: Any, kind: str, integers: range) -> bool:
    """Can it be an id of this kind?"""
    if kind == "text":
        return isinstance(user, str)
    if kind == "bool":
        return isinstance(user, bool)
    number = isinstance(user, int | float) and not isinstance(user, bool)
    return number and (kind == "float" or (isinstance(user, int) and user in integers))
