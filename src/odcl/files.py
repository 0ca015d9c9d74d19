"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from odcl.errors import InputError, Setting


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the folder of ``path`` that becomes ``path`` when the block ends well.

    The temporary name ends as ``path`` does, so that writers which go by the ending choose the
    same format. If the block or the disk fails, or the user interrupts, the temporary file is
    removed and a file that stood at ``path`` is as it was. A device or a pipe (/dev/stdout)
    cannot be renamed onto and is written directly.
    """
    given = Path(path)
    if given.exists() and not given.is_file() and not given.is_dir():
        yield given
        return
    final = _real(given)
    if final.is_dir():
        raise ValueError(f"{given} is a folder, and a file is to be written: name a file in it.")
    temporary = _sibling(final, "tmp")
    try:
        yield temporary
        if not temporary.exists():
            raise ValueError(f"Nothing was written for {given}: its writer made no file.")
        if final.exists():
            shutil.copymode(final, temporary)
        _flush(temporary)
        os.replace(temporary, final)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _flush_folder(final.parent)


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """A new folder beside ``path`` that becomes ``path`` when the block ends well.

    An existing ``path`` is refused unless ``force``. With ``force`` it stays where it is until
    the new folder is complete; then the two change places in two renames and the old one is
    removed. If anything goes wrong, or the user interrupts, the old folder is back under its
    name, whole, and the temporary one is gone. Should the power fail between the two renames,
    the old folder is found whole as ``.old-...`` in the same place.
    """
    final = _real(Path(path))
    _check_target(final, Path(path), force)
    temporary, old = _sibling(final, "tmp"), _sibling(final, "old")
    temporary.mkdir()
    try:
        yield temporary
        for folder, _, files in os.walk(temporary):
            for file in files:
                _flush(Path(folder) / file)
            _flush_folder(Path(folder))
        _check_target(final, Path(path), force)
        _swap(temporary, final, old)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _flush_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def check_folder(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Refuse at once a place that :func:`atomic_folder` would refuse after the work."""
    final = _real(Path(path))
    _check_target(final, Path(path), force)
    if not os.access(final.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: folder {final.parent} is not yours to change.")


def _check_target(final: Path, given: Path, force: bool) -> None:
    if not final.exists():
        return
    if not final.is_dir():
        raise ValueError(f"{given} is a file, and a folder is to be written: name another place.")
    if Path.cwd().resolve().is_relative_to(final):
        raise ValueError(
            f"{given} is the folder you work in, or lies around it, and would be replaced as a "
            "whole: name a new folder."
        )
    if not force:
        raise InputError(
            f"{given} exists already, and its contents would be replaced. Say ",
            Setting("force", True),
            " to replace it, or name a new folder.",
        )


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
    with open(file, "rb+") as stream:
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
