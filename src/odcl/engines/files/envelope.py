"""The files that travel: arrays in the safetensors layout, a manifest, and a signature on it.

    8 bytes                  how long the header is
    header                   JSON: a line per array, and as metadata
        manifest             kind, format, task, site, time, contents, SHA-256 of the numbers
        sha256               of the manifest
        key, signature       of the manifest, by Ed25519; empty where files are not signed
    numbers                  of the arrays, one after the other

Each byte is covered: the numbers by the manifest's digest, the manifest by its own digest and the
signature, and the header must be, byte for byte, the one that follows from them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from odcl import __version__
from odcl._typing import Array
from odcl.artifact.arrays import (
    ArraySpec,
    Header,
    arrays_of,
    contents_of,
    expect,
    header_bytes,
    number_bytes,
    parse_json,
    read_header,
)
from odcl.declared import Count, Digest, fields_from_json, from_json, matching, to_json
from odcl.engines.files.keys import KEY, SigningKey, check_site, is_signed_by
from odcl.errors import ended, printable, show
from odcl.files import atomic_path, open_regular

FORMAT = 1
MOST_BYTES = 2**27
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
Time = Annotated[
    str, matching(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "a time in UTC with microseconds")
]


def now() -> str:
    """The time as files have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Refused(ValueError):
    """Why a file is not taken, without its name, which the reader puts in front."""


@dataclass(frozen=True)
class Stamp:
    """The task that a file belongs to: its name, round, and the digest of all it says."""

    name: str
    round: Count
    sha256: Digest


@dataclass(frozen=True)
class FileManifest:
    """What a file says about itself."""

    kind: Literal["upload", "download", "groups"]
    format: Count
    odcl: str
    task: Stamp
    site: str
    created: Time | None  # UTC; only uploads have one
    words: Mapping[str, Any]  # what the kind of file says beside arrays
    contents: Mapping[str, tuple[str, tuple[Count, ...]]]  # type and shape of each array
    sha256: Digest  # of the arrays' numbers

    def __post_init__(self) -> None:
        if self.kind != "groups":
            check_site(self.site)
        expect(self.kind != "groups" or self.site == "", "groups are of no site")
        expect((self.kind == "upload") == (self.created is not None), "uploads have a time")


@dataclass(frozen=True, eq=False)
class Envelope:
    """A file whose manifest was checked; its arrays are looked at later."""

    kind: str
    task: Stamp
    site: str
    created: str | None
    words: Mapping[str, Any]
    header: Header
    content: Array  # (n_bytes,), the whole file
    sha256: str  # of the whole file

    @property
    def n_bytes(self) -> int:
        return len(self.content)

    @property
    def key(self) -> str:
        """The public key that the signature is said to be of; "": not signed."""
        return self.header.metadata["key"]

    def arrays(self, specs: Mapping[str, ArraySpec], **sizes: int) -> dict[str, Array]:
        """The arrays of the file, exactly those declared."""
        with refusing():
            return arrays_of(self.content, self.header, specs, sizes)

    def check_task(self, task: Stamp) -> None:
        """Refuse a file of another task, or of another round of this one."""
        if self.task.sha256 == task.sha256:
            return
        name, number = self.task.name, self.task.round
        if name != task.name:
            raise Refused(f"it belongs to another task, {show(name)}, and not to {task.name!r}")
        if number != task.round:
            raise Refused(f"it belongs to round {number} of {name!r}, and this is {task.round}")
        raise Refused(f"it was made with another version of the card of {name!r}: make it anew")

    def check_signature(self, allowed: tuple[str, ...], who: str) -> None:
        """Refuse a file that none of the allowed keys has signed."""
        if not self.key:
            raise Refused("it is not signed, and the card asks for signatures")
        if self.key not in allowed:
            raise Refused(f"it is signed with a key that the card does not list for {who}")
        if not self.is_authentic:
            raise Refused(f"its signature is wrong: it is not what {who} signed")

    @property
    def is_authentic(self) -> bool:
        """Is the signature that of the key which the file names?"""
        metadata = self.header.metadata
        return is_signed_by(self.key, metadata["signature"], _to_sign(metadata["manifest"]))


def _to_sign(manifest: str) -> bytes:
    return b"odcl file\n" + manifest.encode()


# -- writing ---------------------------------------------------------------------------------------


def envelope_bytes(
    kind: Literal["upload", "download", "groups"],
    task: Stamp,
    site: str,
    arrays: Mapping[str, Array],
    words: Mapping[str, Any],
    *,
    created: str | None = None,
    key: SigningKey | None = None,
) -> bytes:
    """A file: the same contents and key always give the same bytes."""
    contents, numbers = contents_of(arrays), b"".join(number_bytes(arrays))
    digest = hashlib.sha256(numbers).hexdigest()
    about = (kind, FORMAT, __version__, task, site, created, words, contents, digest)
    manifest = _text(FileManifest(*about))
    metadata = {
        "manifest": manifest,
        "sha256": hashlib.sha256(manifest.encode()).hexdigest(),
        "key": "" if key is None else key.public,
        "signature": "" if key is None else key.sign(_to_sign(manifest)),
    }
    content = header_bytes(contents, metadata) + numbers
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"The {kind} of {site} would have {len(content)} bytes, and files of more than "
            f"{MOST_BYTES} are not read: divide the site, or use fewer features."
        )
    return content


def _text(manifest: FileManifest) -> str:
    return json.dumps(to_json(manifest), separators=(",", ":"), allow_nan=False)


def write_envelope(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all."""
    with atomic_path(path) as place, open(place, "xb") as stream:
        stream.write(content)


# -- reading ---------------------------------------------------------------------------------------


def read_envelope(path: str | os.PathLike[str] | bytes, kind: str | None = None) -> Envelope:
    """Read a file that may come from anyone; its site and task are checked later.

    Sizes are checked before memory is taken. :class:`Refused` says why a file is not taken.
    """
    content = np.frombuffer(path, np.uint8) if isinstance(path, bytes) else _content(path)
    with refusing():
        header = read_header(content)
        whole = tuple(header.metadata) == ("manifest", "sha256", "key", "signature")
        expect(whole, "it has no manifest")
        said = _manifest(header.metadata)
        digest = hashlib.sha256(content[header.start :].data).hexdigest()
        expect(digest == said.sha256, "its numbers are not those that its manifest names")
        expect(header.contents == said.contents, "its manifest disagrees with its arrays")
        head = header_bytes(header.contents, header.metadata)
        same = content[: header.start].tobytes() == head
        expect(same, "its header is not the one that odcl writes")
    if kind is not None and said.kind != kind:
        article = "an" if kind[0] in "aeiou" else "a"
        raise Refused(f"it is a file of the kind {said.kind}, and not {article} {kind}")
    about = (said.kind, said.task, said.site, said.created, said.words)
    return Envelope(*about, header, content, hashlib.sha256(content.data).hexdigest())


def _content(path: str | os.PathLike[str]) -> Array:
    """The bytes of a file, (n_bytes,)."""
    try:
        stream = open_regular(path)
    except ValueError:
        raise Refused("it is not a plain file, but a link, a pipe or a folder") from None
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if size == 0:
            raise Refused("it is empty")
        if size > MOST_BYTES:
            raise Refused(f"it has {size} bytes, and files of more than {MOST_BYTES} are not read")
        content: Array = np.empty(size, dtype=np.uint8)
        if stream.readinto(content.data) != size:
            raise Refused("it ends too early")
    return content


def _manifest(metadata: Mapping[str, str]) -> FileManifest:
    text = metadata["manifest"]
    words = parse_json(text.encode())
    expect(isinstance(words, dict), "its manifest is not a table")
    number = from_json(Count, words.get("format"), "format")
    if number != FORMAT:
        newer = "newer" if number > FORMAT else "older"
        raise Refused(
            f"it has format {number}, and this odcl ({__version__}) reads {FORMAT}: "
            f"{newer} odcl wrote it, version {show(words.get('odcl'))}"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()
    expect(digest == metadata["sha256"], "its manifest was changed")
    manifest = fields_from_json(FileManifest, words)
    expect(_text(manifest) == text, "its manifest is not written as odcl writes it")
    key, signature = metadata["key"], metadata["signature"]
    signed = KEY.fullmatch(key) and _SIGNATURE.fullmatch(signature)
    expect(bool(signed) or not (key or signature), "its signature is no signature")
    return manifest


@contextmanager
def refusing(said: str = "it is damaged or was changed") -> Iterator[None]:
    """Whatever is wrong with the contents of a file is the reason why it is refused."""
    try:
        yield
    except Refused:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ValueError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise Refused(f"{said} ({why.rstrip('.')})") from None


@contextmanager
def naming_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """A refusal as a ValueError that names the file."""
    try:
        yield
    except Refused as error:
        raise ValueError(ended(f"{Path(path)} is refused: {printable(str(error))}")) from None
