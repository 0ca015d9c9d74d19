"""The models of all users of a run, in Parquet files by bucket of ids."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odcl._typing import Array
from odcl.artifact.arrays import expect, is_count
from odcl.data.schema import KINDS
from odcl.engines.dask.address import Address
from odcl.engines.dask.exchange import targets_of
from odcl.exchange.arrow import USER

FOLDER = "users"  # of a run
EXAMPLES = 2000  # users that the estimator itself holds


@dataclass(frozen=True)
class Part:
    """A file of users' models."""

    file: str
    users: int
    bytes: int
    sha256: str


@dataclass(frozen=True, eq=False)
class UserFiles:
    """Where the models of a run's users are. A user's id tells its file."""

    folder: Address
    kind: str  # of the ids: see TableSchema.user_kind
    parts: Sequence[Part]
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
        return targets_of(table, user, self.kind, len(self.parts))

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

    def _check(self, part: Part, digest: str) -> None:
        """A file that has its size may have other content."""
        if digest != part.sha256:
            raise ValueError(
                f"{self.folder / part.file} is not the file that was written: it is damaged or was "
                "changed. Copy the whole folder again, or fit again."
            )

    def models(self, ids: Array) -> pa.Table:
        """The models of these users; whoever is not there is left out."""
        found = [self.read(0).slice(0, 0)]
        kind = found[0][USER].type
        least, beyond = (0, 2**64) if pa.types.is_uint64(kind) else (-(2**63), 2**63)
        own = [u for u in ids.tolist() if _fits(u, self.kind, range(least, beyond))]
        asked = pa.table({USER: pa.array(own, kind)})
        targets = self.buckets(asked, USER)
        for bucket in np.unique(targets):
            table, wanted = self.read(int(bucket)), asked.filter(pa.array(targets == bucket))[USER]
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
        return {"kind": self.kind, "parts": [asdict(part) for part in self.parts]}

    @classmethod
    def from_json(cls, words: Any, folder: Address) -> UserFiles:
        """What :meth:`to_json` wrote, checked: files may come from elsewhere."""
        expect(words.get("kind") in KINDS, f"ids of kind {words.get('kind')!r}")
        listed = words.get("parts")
        expect(isinstance(listed, list) and bool(listed), "it lists no files")
        parts = []
        for number, one in enumerate(listed):
            expect(isinstance(one, dict) and set(one) == set(_FIELDS), "a file is not described")
            expect(one["file"] == part_name(number), f"{one['file']!r} is not the file's name")
            expect(is_count(one["users"]) and is_count(one["bytes"]), "a file has no size")
            expect(isinstance(one["sha256"], str), "a file has no digest")
            parts.append(Part(**one))
        return cls(folder, words["kind"], tuple(parts), kept=True)


_FIELDS = ("file", "users", "bytes", "sha256")


def part_name(bucket: int) -> str:
    return f"part-{bucket:05d}.parquet"


def _fits(user: Any, kind: str, integers: range) -> bool:
    """Can it be an id of this kind?"""
    if kind == "text":
        return isinstance(user, str)
    if kind == "bool":
        return isinstance(user, bool)
    number = isinstance(user, int | float) and not isinstance(user, bool)
    return number and (kind == "float" or (isinstance(user, int) and user in integers))
