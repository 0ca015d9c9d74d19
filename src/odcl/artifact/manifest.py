"""``manifest.json``: what an artifact is, and the size and digest of each of its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from odcl import __version__
from odcl.artifact.arrays import expect, json_bytes, parse_json
from odcl.declared import (
    Check,
    Count,
    Digest,
    fields_from_json,
    fields_to_json,
    from_json,
    matching,
)
from odcl.files import open_regular, read_regular

FORMAT = 2
MANIFEST = "manifest.json"
MOST_FILES = 64
_MOST_BYTES = 2**16  # of a manifest
# In the folder itself, on any system, and not the manifest's own.
FileName = Annotated[
    str,
    matching(r"(?!manifest\.json$)[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", "a file name of an artifact"),
]


@dataclass(frozen=True)
class Entry:
    """What a manifest says of a file."""

    bytes: Count
    sha256: Digest

    @classmethod
    def of(cls, file: Path) -> Entry:
        with open_regular(file) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return cls(os.fstat(stream.fileno()).st_size, digest)


_Files = Annotated[
    Mapping[FileName, Entry],
    Check(f"at most {MOST_FILES} files", lambda files: len(files) <= MOST_FILES),
]


@dataclass(frozen=True)
class Manifest:
    format: int
    odcl: str
    kind: str
    files: _Files

    @classmethod
    def of(cls, kind: str, files: Mapping[str, Entry]) -> Manifest:
        return cls(FORMAT, __version__, kind, {name: files[name] for name in sorted(files)})

    def to_bytes(self) -> bytes:
        """The file, which ends with a digest of all that stands before it."""
        words = fields_to_json(self)
        return json_bytes(words | {"sha256": hashlib.sha256(json_bytes(words)).hexdigest()})


def check_name(name: str) -> None:
    from_json(FileName, name, "a name")


@contextmanager
def blaming(file: Path) -> Iterator[None]:
    """Whatever is wrong with the contents of a file becomes a ValueError that names the file."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ValueError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{file} is damaged or was changed ({why}): fit again, or copy the whole folder again."
        ) from None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact, or a line that says why this folder is none we can read."""
    file = folder / MANIFEST
    if not folder.exists():
        raise ValueError(f"There is no folder {folder}: name the folder of a fit.")
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file: name the folder of a fit.")
    if not os.path.lexists(file):
        raise ValueError(
            f"{folder} is not the folder of a fit: it has no {MANIFEST}. Name one that odcl wrote; "
            "if an early version did, fit again."
        )
    content = read_regular(file, most=_MOST_BYTES)
    with blaming(file):
        words = parse_json(content)
        expect(isinstance(words, dict), "it is not a table of files")
        number = from_json(Count, words.get("format"), "format")
    if number > FORMAT:
        raise ValueError(
            f"{file} has format {number}, and this odcl ({__version__}) reads {FORMAT}: "
            f"odcl {words.get('odcl')!r} wrote it. Use that version or a newer one."
        )
    with blaming(file):
        expect(number == FORMAT, f"it has format {number}")
        words.pop("sha256", None)  # to_bytes makes it anew
        manifest = fields_from_json(Manifest, words)
        expect(manifest.to_bytes() == content, "its digest is not that of its contents")
    return manifest
