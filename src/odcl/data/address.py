"""Addresses: folders and files on a disk, or wherever fsspec reaches (s3://, gs://, memory://)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs

from odcl.errors import InputError
from odcl.files import atomic_path


@dataclass(frozen=True)
class Address:
    """A path of the local file system, absolute, or a URL that fsspec knows."""

    text: str

    @classmethod
    def of(cls, place: str | os.PathLike[str]) -> Address:
        """Of a path, which is made absolute, or a URL."""
        text = os.fspath(place)
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        return cls(text.rstrip("/") if "://" in text else os.path.abspath(text))

    @property
    def is_local(self) -> bool:
        return "://" not in self.text

    @property
    def name(self) -> str:
        return self.text.rsplit("/", 1)[-1]

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self.text}/{name}")

    def _reach(self) -> tuple[Any, str]:
        if self.is_local:
            return pa_fs.LocalFileSystem(), self.text
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise InputError(
                f"{self.text} is not on this disk, and reading it needs fsspec: "
                "pip install 'odcl[dask]'."
            ) from None
        try:
            files, path = url_to_fs(self.text)
        except (ImportError, ValueError) as error:
            raise InputError(f"{self.text} cannot be reached: {error}") from None
        return pa_fs.PyFileSystem(pa_fs.FSSpecHandler(files)), path

    def kind(self) -> str:
        """ "file", "folder" or "" where there is nothing."""
        files, path = self._reach()
        found = files.get_file_info(path).type
        return {pa_fs.FileType.File: "file", pa_fs.FileType.Directory: "folder"}.get(found, "")

    def children(self) -> list[Address]:
        """The files of a folder, in the order of their names; "." and "_" hide one."""
        files, path = self._reach()
        found = files.get_file_info(pa_fs.FileSelector(path))
        names = sorted(f.base_name for f in found if f.type == pa_fs.FileType.File)
        return [self / name for name in names if not name.startswith((".", "_"))]

    def size(self) -> int:
        return self.stamp()[0]

    def stamp(self) -> tuple[int, int | None]:
        """Size and time of a file, which change when it is written again."""
        files, path = self._reach()
        found = files.get_file_info(path)
        return int(found.size or 0), found.mtime_ns

    def make(self) -> Address:
        """Make the folder, unless it is there."""
        files, path = self._reach()
        files.create_dir(path, recursive=True)
        return self

    def remove(self) -> None:
        """Remove the folder and all in it; nothing happens where there is none."""
        files, path = self._reach()
        if files.get_file_info(path).type == pa_fs.FileType.Directory:
            files.delete_dir(path)

    def open(self) -> pa.NativeFile:
        files, path = self._reach()
        return files.open_input_file(path)

    @contextmanager
    def writing(self) -> Iterator[pa.NativeFile]:
        """A stream whose file appears whole: a task that runs twice harms nobody."""
        files, path = self._reach()
        if not self.is_local:  # an object appears when it is closed
            with files.open_output_stream(path) as stream:
                yield stream
            return
        with (
            atomic_path(path, flush=False) as whole,
            files.open_output_stream(str(whole)) as stream,
        ):
            yield stream
