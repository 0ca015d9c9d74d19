"""``manifest.json``: what an artifact is, and the size and digest of each of its files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from odcl import __version__
from odcl.artifact.arrays import expect, is_count, json_bytes, parse_json
from odcl.files import open_regular, read_regular

FORMAT = 2
MANIFEST = "manifest.json"
MOST_FILES = 64
_OLD_WORDS = "model.json"  # what had the format in folders without a manifest
_MOST_BYTES = 2**16  # of a manifest
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")  # in the folder itself, on any system
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """What a manifest says of a file."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, file: Path) -> Entry:
        with open_regular(file) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return cls(os.fstat(stream.fileno()).st_size, digest)


@dataclass(frozen=True)
class Manifest:
    kind: str
    files: Mapping[str, Entry]
    odcl: str = __version__

    def to_bytes(self) -> bytes:
        """The file, which ends with a digest of all that stands before it."""
        words = {
            "format": FORMAT,
            "odcl": self.odcl,
            "kind": self.kind,
            "files": {name: asdict(self.files[name]) for name in sorted(self.files)},
        }
        return json_bytes(words | {"sha256": hashlib.sha256(json_bytes(words)).hexdigest()})

    @classmethod
    def from_json(cls, words: Mapping[str, Any], content: bytes) -> Manifest:
        """Read a manifest that may come from anyone: each byte of its ``content`` is checked."""
        kind, odcl, listed = (words.get(name) for name in ("kind", "odcl", "files"))
        expect(isinstance(kind, str) and isinstance(odcl, str), "it names no kind or version")
        expect(isinstance(listed, dict) and len(listed) <= MOST_FILES, "it lists no files")
        files = {name: _entry(name, line) for name, line in (listed or {}).items()}
        manifest = cls(str(kind), files, str(odcl))
        expect(manifest.to_bytes() == content, "its digest is not that of its contents")
        return manifest


def _entry(name: str, words: Any) -> Entry:
    check_name(name)
    expect(isinstance(words, dict) and is_count(words.get("bytes")), f"{name} has no size")
    digest = words.get("sha256")
    expect(isinstance(digest, str) and bool(_DIGEST.fullmatch(digest)), f"{name} has no digest")
    return Entry(words["bytes"], digest)


def check_name(name: str) -> None:
    plain = bool(_NAME.fullmatch(name)) and name != MANIFEST
    expect(plain, f"{name!r} is not a name for a file of an artifact")


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
    if not os.path.lexists(file):
        raise _no_artifact(folder)
    content = read_regular(file, most=_MOST_BYTES)
    with blaming(file):
        words = parse_json(content)
        expect(isinstance(words, dict) and is_count(words.get("format")), "it names no format")
    if words["format"] > FORMAT:
        raise ValueError(
            f"{file} has format {words['format']}, and this odcl ({__version__}) reads {FORMAT}: "
            f"odcl {words.get('odcl')!r} wrote it. Use that version or a newer one."
        )
    with blaming(file):
        expect(words["format"] == FORMAT, f"it has format {words['format']}")
        return Manifest.from_json(words, content)


def _no_artifact(folder: Path) -> ValueError:
    if not folder.exists():
        return ValueError(f"There is no folder {folder}: name the folder of a fit.")
    if not folder.is_dir():
        return ValueError(f"{folder} is a file: name the folder of a fit.")
    if is_first_format(folder):
        return ValueError(
            f"{folder} is in the first format of odcl 0.1.0, which had no digests and is no longer "
            "read: fit again, into a new folder."
        )
    return ValueError(
        f"{folder} is not the folder of a fit: it has no {MANIFEST}. Name one that odcl wrote."
    )


def is_first_format(folder: Path) -> bool:
    """Was the folder written before there were manifests?"""
    try:
        words = parse_json(read_regular(folder / _OLD_WORDS, most=2**28))
    except (OSError, ValueError):
        return False
    return isinstance(words, dict) and words.get("format") == 1
