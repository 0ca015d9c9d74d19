"""Artifacts: what is fitted as a folder, written whole, read part by part, changed under a lock.

``manifest.json`` says what an artifact is, and the size and digest of each of its files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np

from odcl import __version__
from odcl._typing import Array
from odcl.artifact.arrays import (
    ArraySpec,
    expect,
    json_bytes,
    parse_json,
    read_arrays,
)
from odcl.declared import (
    Check,
    Count,
    Digest,
    fields_from_json,
    fields_to_json,
    from_json,
    matching,
)
from odcl.files import (
    atomic_folder,
    check_folder,
    interrupted,
    locked,
    naming,
    open_regular,
    read_regular,
)

FORMAT = 3
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
    if number != FORMAT:
        what = "Use that version or a newer one." if number > FORMAT else "Fit again."
        raise ValueError(
            f"{file} has format {number}, and this odcl ({__version__}) reads {FORMAT}: "
            f"odcl {words.get('odcl')!r} wrote it. {what}"
        )
    with blaming(file):
        words.pop("sha256", None)  # to_bytes makes it anew
        manifest = fields_from_json(Manifest, words)
        expect(manifest.to_bytes() == content, "its digest is not that of its contents")
    return manifest


# -- the files -------------------------------------------------------------------------------------


MOST_BYTES = 2**28  # of a file that is not arrays, when it is read
_CHUNK = 2**22  # bytes
_TRIES = 100  # to open a folder that is being replaced

PathLike = str | os.PathLike[str]
Content = bytes | Callable[[Path], object]  # of a file, or a function that writes it to a path


@dataclass(frozen=True, eq=False)
class Artifact:
    """The files of an artifact, by their names."""

    kind: str
    files: Mapping[str, Content]
    # Folders of parts, listed by a JSON file of their name: "users" by "parts" of "users.json".
    folders: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)


# -- writing ---------------------------------------------------------------------------------------


def check_artifact_place(path: PathLike, *, force: bool = False) -> None:
    """Refuse at once a place that :func:`write_artifact` would refuse after the work."""
    check_folder(path, force=force, own=_own_files(Path(path)) if force else None)


def write_artifact(path: PathLike, artifact: Artifact, *, force: bool = False) -> None:
    """Write an artifact as a folder that appears whole or not at all.

    With ``force`` it replaces another artifact, but no folder that holds a file which the other's
    manifest does not name.
    """
    check_artifact_place(path, force=force)
    with locked(path):
        own = _own_files(Path(path)) if force else None
        with atomic_folder(path, force=force, own=own) as place:
            _write_files(artifact, place, Path(path))
            _write_manifest(artifact.kind, artifact.files, place, Path(path))


def update_artifact(
    path: PathLike, change: Callable[[StoredArtifact], Artifact], *, kind: str
) -> Artifact:
    """Read, change and write an artifact while no one else can.

    ``change`` reads what it needs and gives back the files that are new; all others stay, notes
    that people left in the folder included. Several processes and threads may do this at once:
    each sees what the one before it wrote.
    """
    folder = Path(path)
    check_folder(path, force=True)
    with locked(path):
        there = os.listdir(path) if folder.is_dir() else []
        with atomic_folder(path, force=True, own=[*there, *(f"{n}/" for n in there)]) as place:
            with open_artifact(path, kind=kind) as old:
                new = change(old)
                _write_files(new, place, folder)
                kept = [name for name in old.names if name not in new.files]
                for name in kept:
                    with naming(folder / name, place / name):
                        old.copy(name, place / name)
                for name in set(there) - {MANIFEST, *old.names}:
                    _copy_note(folder / name, place / name)
            _write_manifest(new.kind, [*new.files, *kept], place, folder)
    return new


def _own_files(folder: Path) -> list[str]:
    """What may be removed with an artifact: its manifest and the files that this names."""
    if not os.path.lexists(folder / MANIFEST):
        return []
    try:
        names = read_manifest(folder).files
    except ValueError as error:
        raise ValueError(f"{error} Nor is it replaced: name a new folder.") from None
    plain = [MANIFEST, *(name for name in names if not (folder / name).is_symlink())]
    return plain + [part for name in plain for part in _parts(folder / name)]


def _parts(file: Path) -> list[str]:
    """The files of a folder that a JSON file of its name lists; none where it lists none."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        if file.suffix == ".json" and file.with_suffix("").is_dir():
            listed = parse_json(read_regular(file, most=MOST_BYTES))["parts"]
            return [f"{file.stem}/{part['file']}" for part in listed]
    return []


def _write_files(artifact: Artifact, place: Path, final: Path) -> None:
    for name, content in artifact.files.items():
        check_name(name)
        with naming(final / name, place / name):
            if callable(content):
                content(place / name)
                continue
            expect(len(content) <= MOST_BYTES, f"{name} would be too large to read ({MOST_BYTES})")
            with open(place / name, "xb") as stream:
                stream.write(content)
    for name, write in artifact.folders.items():
        check_name(name)
        expect(f"{name}.json" in artifact.files, f"nothing describes the folder {name!r}")
        with naming(final / name, place / name):
            write(place / name)


def _write_manifest(kind: str, names: Collection[str], place: Path, final: Path) -> None:
    expect(len(names) <= MOST_FILES, f"{len(names)} files are too many for an artifact")
    manifest = Manifest.of(kind, {name: Entry.of(place / name) for name in names})
    with naming(final / MANIFEST, place / MANIFEST), open(place / MANIFEST, "xb") as stream:
        stream.write(manifest.to_bytes())


def _copy_note(source: Path, target: Path) -> None:
    """A file or folder that is not the artifact's own, as it is."""
    if os.path.lexists(target):
        raise ValueError(f"{source} is not odcl's, and stands where odcl writes: move it away.")
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


# -- reading ---------------------------------------------------------------------------------------


class StoredArtifact:
    """An artifact on disk, its files open. Each is checked by its digest when it is read."""

    def __init__(self, folder: Path, manifest: Manifest, files: Mapping[str, BinaryIO]) -> None:
        self.folder, self.manifest, self._files = folder, manifest, files

    def __contains__(self, name: str) -> bool:
        return name in self._files

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def words(self, name: str, fields: Collection[str] = ()) -> dict[str, Any]:
        """A JSON file whose value is an object with these fields."""
        content = self.content(name)
        with self.checking(name):
            words = parse_json(content)
            expect(isinstance(words, dict), "it is not a JSON object")
            missing = [field for field in fields if field not in words]
            expect(not missing, f"it has no {', '.join(missing)}")
        return dict(words)

    def arrays(self, name: str, specs: Mapping[str, ArraySpec], **sizes: int) -> dict[str, Array]:
        """The arrays of a file, exactly those declared; see :func:`read_arrays`."""
        content = np.empty(self._entry(name).bytes, dtype=np.uint8)
        at = 0
        for chunk in self._chunks(name):
            content[at : at + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            at += len(chunk)
        with self.checking(name):
            return read_arrays(content, specs, sizes)

    def content(self, name: str, *, most: int = MOST_BYTES) -> bytes:
        """The bytes of a file that is not too large."""
        if self._entry(name).bytes > most:
            raise ValueError(f"{self.folder / name} is larger than {most} bytes: it is not read.")
        return b"".join(self._chunks(name))

    def check(self, names: Collection[str]) -> None:
        """Refuse files that were changed, without keeping what is in them."""
        for name in names:
            for _ in self._chunks(name):
                pass

    def copy(self, name: str, target: Path) -> None:
        """Copy a file as it is."""
        with open(target, "xb") as stream:
            for chunk in self._chunks(name):
                stream.write(chunk)

    def checking(self, name: str) -> AbstractContextManager[None]:
        """Errors about the contents of a file become a ValueError that names the file."""
        return blaming(self.folder / name)

    def _entry(self, name: str) -> Entry:
        if name not in self._files:
            raise ValueError(f"{self.folder} has no {name}: fit again to have it.")
        return self.manifest.files[name]

    def _chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a file; at its end, one whose digest is not the manifest's is refused."""
        entry, digest, left = self._entry(name), hashlib.sha256(), self._entry(name).bytes
        stream = self._files[name]
        stream.seek(0)
        while chunk := stream.read(min(_CHUNK, left)):
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        with self.checking(name):
            expect(digest.hexdigest() == entry.sha256, "its digest is another")


@contextmanager
def open_artifact(path: PathLike, *, kind: str) -> Iterator[StoredArtifact]:
    """Open an artifact to read parts of it.

    All files that the manifest names must be there, plain and of the size it says; other files are
    ignored. What is read is one version of the artifact, even while another replaces it.
    """
    folder = Path(path)
    with ExitStack() as stack:
        stored = _open_version(folder, stack)
        if stored.manifest.kind != kind:
            raise ValueError(f"{path} holds a {stored.manifest.kind!r}, not a {kind!r}.")
        yield stored


def _open_version(folder: Path, stack: ExitStack) -> StoredArtifact:
    for attempt in range(_TRIES):
        if interrupted(folder):  # wait for the writer; if it was killed, the old folder comes back
            with suppress(PermissionError), locked(folder):
                pass
        before = _version(folder)
        with ExitStack() as files:
            try:
                stored = _open_files(folder, files)
            except (OSError, ValueError):
                settled = not interrupted(folder) and _version(folder) == before
                if settled or attempt == _TRIES - 1:
                    raise
                continue
            if _version(folder) == before:
                stack.push(files.pop_all())
                return stored
    raise ValueError(f"{folder} is replaced again and again: read it when that has ended.")


def _open_files(folder: Path, stack: ExitStack) -> StoredArtifact:
    manifest = read_manifest(folder)
    files = {}
    for name, entry in manifest.files.items():
        with blaming(folder / name):
            try:
                files[name] = stack.enter_context(open_regular(folder / name))
            except FileNotFoundError:
                raise ValueError("it is missing") from None
            size = os.fstat(files[name].fileno()).st_size
            expect(size == entry.bytes, f"it has {size} bytes, not {entry.bytes}")
    return StoredArtifact(folder, manifest, files)


def _version(folder: Path) -> tuple[int, int, int] | None:
    """Another one whenever the folder is replaced."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
