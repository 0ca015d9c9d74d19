"""Files and folders appear whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from odcl.files import atomic_folder, atomic_path
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
