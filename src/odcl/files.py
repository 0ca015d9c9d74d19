"""Files and folders: written whole or not at all, changed by one writer at a time, and files from
outside read only if they are plain files of a bearable size."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from odcl.errors import InputError, Setting

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LITTER = (".DS_Store", "Thumbs.db", "desktop.ini")  # what file managers leave behind
_POLL = 0.02  # seconds between two looks at a lock
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_OUTSIDE = os.O_RDONLY | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


# -- writing ---------------------------------------------------------------------------------------


def check_replace(path: str | os.PathLike[str], force: bool) -> None:
    """Refuse a file that is there, unless it may be replaced."""
    if Path(path).is_file() and not force:
        again = Setting("force", True)
        raise InputError(f"{path} exists already. Say ", again, " to replace it, or name another.")


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, flush: bool = True) -> Iterator[Path]:
    """A temporary path in the folder of ``path`` that becomes ``path`` when the block ends well.

    The temporary name ends as ``path`` does, so that writers which go by the ending choose the
    same format. If the block or the disk fails, or the user interrupts, the temporary file is
    removed and a file that stood at ``path`` is as it was. A device or a pipe (/dev/stdout)
    cannot be renamed onto and is written directly. ``flush`` False: a power cut may lose the file.
    """
    given = Path(path)
    if given.exists() and not given.is_file() and not given.is_dir():
        yield given
        return
    final = _real(given)
    if final.is_dir():
        raise ValueError(f"{given} is a folder, and a file is to be written: name a file in it.")
    temporary = _sibling(final, "tmp")
    with naming(given, temporary):
        try:
            yield temporary
            if not temporary.exists():
                raise ValueError(f"Nothing was written for {given}: its writer made no file.")
            if final.exists():
                shutil.copymode(final, temporary)
            if flush:
                _flush(temporary)
            os.replace(temporary, final)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        if flush:
            _flush_folder(final.parent)


@contextmanager
def atomic_folder(
    path: str | os.PathLike[str], *, force: bool = False, own: Collection[str] | None = None
) -> Iterator[Path]:
    """A new folder beside ``path`` that becomes ``path`` when the block ends well.

    An existing ``path`` is refused unless ``force``; if ``own`` is given, it is refused even then
    as soon as it holds anything but these: ``name`` is a file, ``name/`` a folder with all that is
    in it, ``name/file`` a file of a folder. With ``force`` it stays where it is
    until the new folder is complete; then the two change places in two renames and the old one is
    removed. If anything goes wrong, or the user interrupts, the old folder is back under its
    name, whole, and the temporary one is gone. Should the power fail between the two renames, the
    old folder lies whole as ``.old-...`` in the same place, and :func:`locked` brings it back.
    """
    given, final = Path(path), _real(Path(path))
    _check_target(final, given, force, own)
    temporary, old = _sibling(final, "tmp"), _sibling(final, "old")
    with naming(given, temporary):
        temporary.mkdir()
        try:
            if final.exists():
                shutil.copymode(final, temporary)  # a private folder stays private
            yield temporary
            for folder, _, files in os.walk(temporary):
                for file in files:
                    _flush(Path(folder) / file)
                _flush_folder(Path(folder))
            _check_target(final, given, force, own)
            _swap(temporary, final, old)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _flush_folder(final.parent)
        with suppress(OSError):
            os.rename(old, temporary)  # what is half removed is no longer an ".old-..."
        shutil.rmtree(temporary, ignore_errors=True)


def check_folder(
    path: str | os.PathLike[str], *, force: bool = False, own: Collection[str] | None = None
) -> None:
    """Refuse at once a place that :func:`atomic_folder` would refuse after the work."""
    final = _real(Path(path))
    _check_target(final, Path(path), force, own)
    if not os.access(final.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: folder {final.parent} is not yours to change.")


@contextmanager
def naming(path: Path, temporary: Path) -> Iterator[None]:
    """Errors of the file system name ``path``, which the user knows, and not ``temporary``."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a library's own, such as Pillow's
            raise OSError(errno.EIO, f"cannot be written ({error})", str(path)) from error
        place = str(error.filename or temporary)
        if not place.startswith(str(temporary)):
            raise
        name = str(path) + place.removeprefix(str(temporary))
        raise OSError(error.errno, error.strerror, name) from error


def _check_target(final: Path, given: Path, force: bool, own: Collection[str] | None) -> None:
    if not final.exists():
        return
    if not final.is_dir():
        raise ValueError(f"{given} is a file, and a folder is to be written: name another place.")
    if Path.cwd().resolve().is_relative_to(final):
        raise ValueError(
            f"{given} is the folder you work in, or lies around it, and would be replaced as a "
            "whole: name a new folder."
        )
    foreign = None if own is None else next(_foreign(final, own), None)
    if foreign:
        raise ValueError(
            f"{given} exists already and holds what odcl did not write (such as {foreign!r}), "
            "so that it is not replaced: name another folder, or move that away."
        )
    if not force:
        raise InputError(
            f"{given} exists already, and its contents would be replaced. Say ",
            Setting("force", True),
            " to replace it, or name a new folder.",
        )
    if not os.access(final, os.W_OK):
        raise ValueError(f"{given} cannot be replaced: it is not yours to change.")


def _foreign(folder: Path, own: Collection[str]) -> Iterator[str]:
    """What a folder holds beside ``own``, by name: see :func:`atomic_folder`."""
    own = {*own, *LITTER}
    for path in sorted(folder.iterdir()):
        start = f"{path.name}/"
        if path.is_symlink() or not path.is_dir():
            yield from () if path.name in own else (path.name,)
        elif start not in own:
            inside = [name.removeprefix(start) for name in own if name.startswith(start)]
            yield from (start + name for name in _foreign(path, inside)) if inside else (path.name,)


def _swap(temporary: Path, final: Path, old: Path) -> None:
    """Put ``temporary`` at ``final``; what stood there is at ``old``, or back where it was."""
    try:
        if final.exists():
            os.rename(final, old)
        os.rename(temporary, final)
    except BaseException:
        if old.exists() and not final.exists():
            os.rename(old, final)
        raise


def _real(path: Path) -> Path:
    """The path behind links, so that a link keeps pointing where it did."""
    final = Path(os.path.realpath(path))
    if not final.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}. Make it.")
    return final


def _sibling(path: Path, word: str) -> Path:
    return path.with_name(f".{word}-{secrets.token_hex(4)}-{path.name}")


def _flush(file: Path) -> None:
    """Wait until the file's bytes are on the disk: a rename must not overtake them."""
    if file.is_symlink():
        return
    with naming(file, file), open(file, "rb" if os.name == "posix" else "rb+") as stream:
        os.fsync(stream.fileno())


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- one writer at a time --------------------------------------------------------------------------


@contextmanager
def locked(folder: str | os.PathLike[str], *, timeout: float = 60.0) -> Iterator[None]:
    """Let no other process or thread that asks for the same lock run while the block does.

    Put it around reading, changing and writing ``folder``. The lock is a file beside it,
    ``.NAME.lock``, because :func:`atomic_folder` swaps the folder itself, and the operating system
    drops it when its holder ends, however that ends. The lock cannot be taken twice by one thread.
    What a writer left when it was killed is settled first: the old folder comes back, half-written
    ones are removed.
    """
    final = _real(Path(folder))
    path = final.with_name(f".{final.name}.lock")
    deadline = time.monotonic() + timeout
    while (descriptor := _try_lock(path)) is None:
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"{folder} is being changed by another program, which has held {path} for "
                f"{timeout:g} seconds: try again when it has finished."
            )
        time.sleep(_POLL)
    try:
        for old in _swapped_out(final)[:1]:  # its writer was killed between two renames
            os.rename(old, final)
        for left in _left_behind(final, "tmp", *(["old"] if final.exists() else [])):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        _unlock(descriptor, path)


def interrupted(folder: str | os.PathLike[str]) -> bool:
    """Is a swap of ``folder`` under way, or did one end half-way? :func:`locked` settles both."""
    return bool(_swapped_out(Path(os.path.realpath(folder))))


def _swapped_out(final: Path) -> list[Path]:
    """Where the old folder lies while none has its name."""
    return [] if final.exists() or not final.parent.is_dir() else _left_behind(final, "old")


def _left_behind(final: Path, *words: str) -> list[Path]:
    """What writers of a folder left beside it when they were killed."""
    names = [f".{word}-" for word in words]
    there = [p for p in final.parent.iterdir() if p.name[13:] == f"-{final.name}"]
    return [p for p in there if p.name[:5] in names]


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock, or None: it is held, or its file was just removed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o666)
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except (BlockingIOError, FileNotFoundError, PermissionError):  # the last one is Windows'
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _unlock(descriptor: int, path: Path) -> None:
    """Remove the file while it is still locked: who wakes up with it finds it gone, and retries."""
    try:
        with suppress(OSError):  # Windows removes no file that is open: it stays, and does no harm
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                os.unlink(path)
    finally:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # for children that inherited it, too
        os.close(descriptor)


# -- files from outside ----------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file from outside for reading, unless it is a link, a pipe, a device or a folder.

    A pipe would keep its reader waiting for ever, and a link may lead anywhere.
    """
    refusal = ValueError(f"{path} is not a plain file (but a link, a pipe or the like): copy it.")
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise refusal
    stream = open(os.open(path, _OUTSIDE), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):  # it has changed since
        stream.close()
        raise refusal
    return stream


def read_regular(path: str | os.PathLike[str], *, most: int) -> bytes:
    """All bytes of a plain file from outside, if they are not more than ``most``."""
    with open_regular(path) as stream:
        content = stream.read(most + 1) if os.fstat(stream.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise ValueError(f"{path} is larger than {most} bytes, and so not what it should be.")
    return content
