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
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from odcl import __version__
from odcl._typing import Array
from odcl.artifact.arrays import (
    ArraySpec,
    Header,
    arrays_of,
    check_declared,
    contents_of,
    expect,
    header_bytes,
    is_count,
    number_bytes,
    parse_json,
    read_header,
    read_numbers,
)
from odcl.engines.files.keys import SigningKey, is_signed_by
from odcl.engines.files.names import KEY, check_site
from odcl.errors import ended, printable, show
from odcl.files import atomic_path, open_regular

FORMAT = 1
KINDS = ("upload", "download", "groups")
MOST_BYTES = 2**27
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_FIELDS = ("kind", "format", "odcl", "task", "site", "created", "words", "contents", "sha256")


class Stamped(Protocol):
    """What files belong to: a task, by its name, its round and the digest of all it says."""

    @property
    def name(self) -> str: ...
    @property
    def round(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def stamp(self) -> dict[str, Any]: ...


class Refused(ValueError):
    """Why a file is not taken, without its name: whoever reads it puts that in front."""


@dataclass(frozen=True, eq=False)
class Envelope:
    """What a file says of itself, checked, before its arrays are looked at."""

    kind: str
    task: Mapping[str, Any]  # name, round and sha256
    site: str
    created: str | None  # UTC; downloads carry none
    words: Mapping[str, Any]  # what the kind of file has to say beside arrays
    header: Header
    numbers: Array  # bytes of the arrays
    manifest: str
    key: str  # public key that the signature is said to be of; "": not signed
    signature: str
    sha256: str  # of the whole file
    n_bytes: int

    def arrays(self, specs: Mapping[str, ArraySpec], **sizes: int) -> dict[str, Array]:
        """The arrays of the file, which are just those declared."""
        with refusing():
            check_declared(self.header, specs, sizes)
            return arrays_of(self.header, self.numbers, specs)

    def check_task(self, task: Stamped) -> None:
        """Refuse a file of another task, or of another round of this one."""
        if self.task["sha256"] == task.digest:
            return
        name, number = self.task["name"], self.task["round"]
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
        return is_signed_by(self.key, self.signature, _to_sign(self.manifest))


def _to_sign(manifest: str) -> bytes:
    return b"odcl file\n" + manifest.encode()


# -- writing ---------------------------------------------------------------------------------------


def envelope_bytes(
    kind: str,
    task: Stamped,
    site: str,
    arrays: Mapping[str, Array],
    words: Mapping[str, Any],
    *,
    created: str | None = None,
    key: SigningKey | None = None,
) -> bytes:
    """A file: the same contents and key always give the same bytes."""
    contents = contents_of(arrays)
    numbers = b"".join(number_bytes(arrays))
    manifest = _text(
        {
            "kind": kind,
            "format": FORMAT,
            "odcl": __version__,
            "task": task.stamp,
            "site": site,
            "created": created,
            "words": words,
            "contents": {name: [dtype, list(shape)] for name, (dtype, shape) in contents.items()},
            "sha256": hashlib.sha256(numbers).hexdigest(),
        }
    )
    signed = "" if key is None else key.sign(_to_sign(manifest))
    metadata = _metadata(manifest, "" if key is None else key.public, signed)
    content = header_bytes(contents, metadata) + numbers
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"The {kind} of {site} would have {len(content)} bytes, and files of more than "
            f"{MOST_BYTES} are not read: divide the site, or use fewer features."
        )
    return content


def _metadata(manifest: str, key: str, signature: str) -> dict[str, str]:
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    return {"manifest": manifest, "sha256": digest, "key": key, "signature": signature}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def write_envelope(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all."""
    with atomic_path(path) as place, open(place, "xb") as stream:
        stream.write(content)


# -- reading ---------------------------------------------------------------------------------------


def read_envelope(path: str | os.PathLike[str], kind: str | None = None) -> Envelope:
    """Read a file that may come from anyone; whose it is and of which task is checked later.

    Sizes are checked before memory is taken. :class:`Refused` says why a file is not taken.
    """
    try:
        stream = open_regular(path)
    except FileNotFoundError:
        raise
    except ValueError:
        raise Refused("it is not a plain file, but a link, a pipe or a folder") from None
    with stream:
        size = os.fstat(stream.fileno()).st_size
        return _read(stream, size, kind)


def _read(stream: BinaryIO, size: int, kind: str | None) -> Envelope:
    if size == 0:
        raise Refused("it is empty")
    if size > MOST_BYTES:
        raise Refused(f"it has {size} bytes, and files of more than {MOST_BYTES} are not read")
    claimed = int.from_bytes(stream.read(8), "little")
    stream.seek(0)
    if claimed > size - 8:
        raise Refused("it ends too early, or is no file of odcl at all")
    with refusing():
        header = read_header(_Checked(stream), size)
        whole = tuple(header.metadata) == ("manifest", "sha256", "key", "signature")
        expect(whole, "it has no manifest")
        said = _said(header.metadata)
        numbers = read_numbers(_Checked(stream), header)
    with refusing():
        digest = hashlib.sha256(numbers.data).hexdigest()
        expect(digest == said["sha256"], "its numbers are not those that its manifest names")
        contents = {name: [t, list(shape)] for name, (t, shape) in header.contents.items()}
        expect(contents == said["contents"], "its manifest disagrees with its arrays")
        head = header_bytes(header.contents, header.metadata)
        stream.seek(0)
        expect(stream.read(len(head)) == head, "its header is not the one that odcl writes")
        expect(len(head) + len(numbers) == size, "its header is not the one that odcl writes")
    if kind is not None and said["kind"] != kind:
        raise Refused(f"it is a file of the kind {said['kind']}, and not {_a(kind)}")
    sha256 = hashlib.sha256(head)
    sha256.update(numbers.data)
    return Envelope(
        said["kind"],
        said["task"],
        said["site"],
        said["created"],
        said["words"],
        header,
        numbers,
        header.metadata["manifest"],
        header.metadata["key"],
        header.metadata["signature"],
        sha256.hexdigest(),
        size,
    )


def _said(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The manifest, of which each field is what it should be."""
    text = metadata["manifest"]
    said = parse_json(text.encode())
    expect(isinstance(said, dict) and is_count(said.get("format")), "its manifest names no format")
    if said["format"] != FORMAT:
        newer = "newer" if said["format"] > FORMAT else "older"
        raise Refused(
            f"it has format {said['format']}, and this odcl ({__version__}) reads {FORMAT}: "
            f"{newer} odcl wrote it, version {show(said.get('odcl'))}"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()
    expect(digest == metadata["sha256"], "its manifest was changed")
    expect(tuple(said) == _FIELDS and _text(said) == text, "its manifest has other fields")
    expect(said["kind"] in KINDS, f"its kind is {said['kind']!r}")
    task = said["task"]
    fields = isinstance(task, dict) and tuple(task) == ("name", "round", "sha256")
    expect(fields and isinstance(task["name"], str), "its manifest names no task")
    expect(is_count(task["round"]) and _is(_DIGEST, task["sha256"]), "its manifest names no task")
    if said["kind"] != "groups":
        check_site(said["site"])
    expect(said["kind"] != "groups" or said["site"] == "", "groups are of no site")
    expect(said["created"] is None or _is(_TIME, said["created"]), "its time is no time")
    expect((said["kind"] == "upload") == (said["created"] is not None), "uploads have a time")
    expect(isinstance(said["words"], dict), "its manifest has no words")
    expect(_is(_DIGEST, said["sha256"]), "its manifest has no digest")
    key, signature = metadata["key"], metadata["signature"]
    signed = _is(KEY, key) and _is(_SIGNATURE, signature)
    expect(signed or not (key or signature), "its signature is no signature")
    return said


def _is(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and bool(pattern.fullmatch(value))


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


class _Checked:
    """A stream whose short reads are noticed where they happen."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        content = self._stream.read(size)
        expect(len(content) == size, "it ends too early")
        return content

    def readinto(self, buffer: Array, /) -> int:
        return self._stream.readinto(buffer.data)  # type: ignore[attr-defined]


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
