"""Files and folders appear whole or not at all, one writer at a time; pipes are not read."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from odcl import files
from odcl.files import (
    atomic_folder,
    atomic_path,
    check_folder,
    interrupted,
    locked,
    open_regular,
    read_regular,
)
from tests.helpers import files_below, full_disk

INTERRUPTIONS = [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")]


def contents(folder: Path) -> dict[str, str]:
    """The text of every file below a folder."""
    return {name: content.decode() for name, content in files_below(folder).items()}


def write_and_fail(path: Path, error: BaseException) -> None:
    path.write_text("half")
    raise error


def test_a_file_appears_under_its_name_only_when_it_is_complete(tmp_path):
    with atomic_path(tmp_path / "a.csv") as temporary:
        temporary.write_text("half")
        assert not (tmp_path / "a.csv").exists()
        assert temporary.parent == tmp_path
        assert temporary.name.endswith("a.csv")
        temporary.write_text("whole")
    assert contents(tmp_path) == {"a.csv": "whole"}


@pytest.mark.parametrize("interruption", INTERRUPTIONS, ids=lambda e: type(e).__name__)
def test_an_interrupted_file_leaves_the_old_one_as_it_was(tmp_path, interruption):
    (tmp_path / "a.csv").write_text("old")
    with pytest.raises(type(interruption)), atomic_path(tmp_path / "a.csv") as temporary:
        write_and_fail(temporary, interruption)
    assert contents(tmp_path) == {"a.csv": "old"}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fills_up_at_the_end_leaves_the_old_file_as_it_was(tmp_path, monkeypatch, call):
    (tmp_path / "a.csv").write_text("old")
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(OSError, match="No space"), atomic_path(tmp_path / "a.csv") as temporary:
        temporary.write_text("new")
    assert contents(tmp_path) == {"a.csv": "old"}


def test_a_file_keeps_its_mode_and_a_link_keeps_pointing(tmp_path):
    real = tmp_path / "real.txt"
    real.write_text("old")
    real.chmod(0o640)
    (tmp_path / "link.txt").symlink_to(real)
    with atomic_path(tmp_path / "link.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_directly():
    with atomic_path(os.devnull) as temporary:
        assert temporary == Path(os.devnull)


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "folder").mkdir()
    for path, reason in [("folder", "is a folder"), ("none/a.csv", "there is no folder")]:
        with pytest.raises(ValueError, match=reason), atomic_path(tmp_path / path) as temporary:
            temporary.write_text("")
    with pytest.raises(ValueError, match="Nothing was written"), atomic_path(tmp_path / "a"):
        pass


def test_a_folder_appears_under_its_name_only_when_it_is_complete(tmp_path):
    with atomic_folder(tmp_path / "run") as temporary:
        (temporary / "deep").mkdir()
        (temporary / "deep" / "a.txt").write_text("new")
        assert not (tmp_path / "run").exists()
    assert contents(tmp_path) == {"run/deep/a.txt": "new"}


def test_an_existing_folder_is_replaced_as_a_whole_and_only_with_force(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old.txt").write_text("old")
    with pytest.raises(ValueError, match="force=True"), atomic_folder(tmp_path / "run"):
        pytest.fail("the work must not begin")
    assert contents(tmp_path) == {"run/old.txt": "old"}
    with atomic_folder(tmp_path / "run", force=True) as temporary:
        (temporary / "new.txt").write_text("new")
        assert contents(tmp_path / "run") == {"old.txt": "old"}
    assert contents(tmp_path) == {"run/new.txt": "new"}
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("interruption", INTERRUPTIONS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("force", [False, True])
def test_an_interrupted_folder_leaves_the_old_one_whole(tmp_path, interruption, force):
    if force:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "old.txt").write_text("old")
    before = contents(tmp_path)
    with (
        pytest.raises(type(interruption)),
        atomic_folder(tmp_path / "run", force=force) as temporary,
    ):
        write_and_fail(temporary / "half.txt", interruption)
    assert contents(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == force


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("error", INTERRUPTIONS, ids=lambda e: type(e).__name__)
def test_a_rename_that_fails_brings_the_old_folder_back(tmp_path, monkeypatch, failing, error):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old.txt").write_text("old")
    rename, calls = os.rename, []

    def rename_or_fail(source, target):
        calls.append(target)
        if len(calls) == failing:
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_or_fail)
    with (
        pytest.raises(type(error)),
        atomic_folder(tmp_path / "run", force=True) as temporary,
    ):
        (temporary / "new.txt").write_text("new")
    assert contents(tmp_path) == {"run/old.txt": "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_force_never_replaces_the_folder_one_works_in_or_a_file(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "file").write_text("old")
    monkeypatch.chdir(tmp_path / "here")
    for path in (".", "..", tmp_path, "../file"):
        with pytest.raises(ValueError, match="name"), atomic_folder(path, force=True):
            pytest.fail("the work must not begin")
    assert contents(tmp_path) == {"file": "old"}


def test_force_removes_nothing_but_the_names_it_may(tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("a.txt", ".DS_Store", "notes.txt"):
        (tmp_path / "run" / name).write_text("old")
    before = contents(tmp_path)
    for check in (check_folder, lambda *a, **k: atomic_folder(*a, **k).__enter__()):
        with pytest.raises(ValueError, match=r"did not write.*'notes.txt'"):
            check(tmp_path / "run", force=True, own=["a.txt"])
    assert contents(tmp_path) == before
    (tmp_path / "run" / "notes.txt").unlink()
    with atomic_folder(tmp_path / "run", force=True, own=["a.txt"]) as temporary:
        (temporary / "b.txt").write_text("new")
    assert contents(tmp_path) == {"run/b.txt": "new"}


def test_a_note_left_during_the_work_is_not_removed(tmp_path):
    (tmp_path / "run").mkdir()
    with (
        pytest.raises(ValueError, match=r"'notes.txt'"),
        atomic_folder(tmp_path / "run", force=True, own=[]),
    ):
        (tmp_path / "run" / "notes.txt").write_text("mine")
    assert contents(tmp_path) == {"run/notes.txt": "mine"}


def test_a_private_folder_stays_private(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    with atomic_folder(tmp_path / "run", force=True) as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), OSError("encoder error -2")],
    ids=str,
)
def test_a_disk_that_fills_up_is_reported_under_the_name_that_the_user_gave(tmp_path, error):
    with pytest.raises(OSError, match=r"No space|encoder") as raised, atomic_path(tmp_path / "a"):
        raise error
    assert raised.value.filename == str(tmp_path / "a")
    with pytest.raises(FileNotFoundError) as raised, atomic_folder(tmp_path / "run") as temporary:
        (temporary / "deep" / "a.txt").write_text("")
    assert raised.value.filename == str(tmp_path / "run" / "deep" / "a.txt")


# -- one writer at a time --------------------------------------------------------------------------

KILLED = """
import os, sys
from odcl.files import atomic_folder, locked

rename, calls = os.rename, []

def rename_or_die(source, target):
    calls.append(target)
    if len(calls) == int(sys.argv[2]):
        os._exit(9)
    rename(source, target)

os.rename = rename_or_die
with locked(sys.argv[1]), atomic_folder(sys.argv[1], force=True) as place:
    (place / "new.txt").write_text("new")
os._exit(9)
"""


@pytest.mark.parametrize(("at", "left"), [(1, "old"), (2, "old"), (3, "new"), (4, "new")])
def test_a_writer_killed_at_any_rename_leaves_the_old_folder_or_the_new_one(tmp_path, at, left):
    """And no lock: the next one goes on at once."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old.txt").write_text("old")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run"), str(at)])
    assert ended.returncode == 9
    assert interrupted(tmp_path / "run") == (at == 2)
    with locked(tmp_path / "run", timeout=0):
        assert contents(tmp_path / "run") == {f"{left}.txt": left}
    assert not interrupted(tmp_path / "run")


def test_a_thread_waits_for_the_lock_until_its_holder_leaves(tmp_path, monkeypatch):
    waiting, entered = threading.Event(), threading.Event()
    monkeypatch.setattr(files.time, "sleep", lambda _: waiting.set())

    def enter():
        with locked(tmp_path / "run"):
            entered.set()

    thread = threading.Thread(target=enter)
    with locked(tmp_path / "run"):
        thread.start()
        assert waiting.wait(timeout=60)
        assert not entered.is_set()
    thread.join()
    assert entered.is_set()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_held_is_waited_for_and_then_named(tmp_path):
    with (
        locked(tmp_path / "run"),
        pytest.raises(TimeoutError, match=r"run is being changed by another program.*try again"),
        locked(tmp_path / "run", timeout=0),
    ):
        pytest.fail("two hold the lock")
    with locked(tmp_path / "run", timeout=0), locked(tmp_path / "other", timeout=0):
        pass


def test_who_waited_for_a_lock_file_that_was_removed_waits_for_the_new_one(tmp_path, monkeypatch):
    """Its lock on the removed file keeps nobody out."""
    import fcntl

    flock, seen = fcntl.flock, []

    def flock_after_another(descriptor, how):
        if not seen:  # between opening the file and locking it, another holder comes and goes
            seen.append(descriptor)
            (tmp_path / ".run.lock").unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock_after_another)
    with locked(tmp_path / "run", timeout=5):
        assert (tmp_path / ".run.lock").exists()
        with pytest.raises(TimeoutError), locked(tmp_path / "run", timeout=0):
            pytest.fail("two hold the lock")


# -- files from outside ----------------------------------------------------------------------------


def test_only_plain_files_are_opened(tmp_path):
    """A pipe would wait for ever for somebody to write to it."""
    (tmp_path / "plain").write_bytes(b"abc")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path / "folder", "/dev/null"):
        with pytest.raises(ValueError, match="is not a plain file"):
            open_regular(path)
    with open_regular(tmp_path / "plain") as stream:
        assert stream.read() == b"abc"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_a_file_that_turns_into_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"abc")
    plain = os.lstat(tmp_path / "file")
    (tmp_path / "file").unlink()
    os.mkfifo(tmp_path / "file")
    monkeypatch.setattr(os, "lstat", lambda _: plain)
    with pytest.raises(ValueError, match="is not a plain file"):
        open_regular(tmp_path / "file")


def test_a_large_file_takes_no_memory(tmp_path):
    with open(tmp_path / "large", "wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(ValueError, match="larger than 3 bytes"):
        read_regular(tmp_path / "large", most=3)
    (tmp_path / "small").write_bytes(b"abc")
    assert read_regular(tmp_path / "small", most=3) == b"abc"
