"""An artifact is written whole, read only as it was written, and changed by one at a time."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from odcl.artifact import folder
from odcl.artifact.arrays import ArraySpec, array_file, json_bytes
from odcl.artifact.folder import (
    MANIFEST,
    Artifact,
    Entry,
    Manifest,
    check_artifact_place,
    open_artifact,
    read_manifest,
    update_artifact,
    write_artifact,
)
from odcl.files import open_regular

WORDS, NUMBERS, TABLE, NOTE = "model.json", "models.safetensors", "groups.csv", "report.txt"
SPECS = {"theta": ArraySpec(("m", "dim")), "labels": ArraySpec(("m",), ("int64",))}


def artifact(value=1.0, users=("a", "b")):
    m = len(users)
    return Artifact(
        "model",
        {
            WORDS: json_bytes({"users": list(users), "value": value}),
            NUMBERS: array_file({"theta": np.full((m, 3), value), "labels": np.arange(m)}),
            TABLE: lambda path: path.write_text(f"group,x\n0,{value}\n"),
            NOTE: b"fine",
        },
    )


def everything(path):
    """All parts of an artifact, read and checked."""
    with open_artifact(path, kind="model") as stored:
        arrays = stored.arrays(NUMBERS, SPECS)
        return (
            stored.words(WORDS, ["users", "value"]),
            {name: array.tolist() for name, array in arrays.items()},
            stored.content(TABLE),
            stored.content(NOTE),
        )


def files(folder):
    """Every file below a folder, hidden ones included."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """The speed of the disk is not at stake."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def run(tmp_path):
    write_artifact(tmp_path / "run", artifact())
    return tmp_path / "run"


# -- there and back --------------------------------------------------------------------------------


def test_an_artifact_comes_back_part_by_part(run):
    words, arrays, table, note = everything(run)
    assert words == {"users": ["a", "b"], "value": 1.0}
    assert_array_equal(arrays["theta"], np.ones((2, 3)))
    assert (table, note) == (b"group,x\n0,1.0\n", b"fine")
    with open_artifact(run, kind="model") as stored:
        assert NOTE in stored
        assert "picture.png" not in stored
        with pytest.raises(ValueError, match=r"has no picture\.png: fit again"):
            stored.content("picture.png")


def test_the_same_artifact_gives_the_same_bytes(tmp_path):
    for name in ("one", "other"):
        write_artifact(tmp_path / name, artifact())
    assert files(tmp_path / "one") == files(tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "other"]


def test_the_manifest_names_sizes_and_digests_every_file(run):
    words = json.loads((run / MANIFEST).read_text())
    assert (words["format"], words["kind"]) == (3, "model")
    assert words["files"].keys() | {MANIFEST} == files(run).keys()
    assert words["files"][NOTE]["bytes"] == 4


def test_a_file_whose_contents_do_not_fit_together_is_named(run):
    with open_artifact(run, kind="model") as stored:
        with pytest.raises(ValueError, match=rf"{NUMBERS} is damaged.*theta has shape \(2, 3\)"):
            stored.arrays(NUMBERS, SPECS, dim=4)
        with pytest.raises(ValueError, match=rf"{WORDS} is damaged.*it has no classes"):
            stored.words(WORDS, ["users", "classes"])
        with pytest.raises(ValueError, match=r"larger than 3 bytes"):
            stored.content(NOTE, most=3)
        for error, reason in [(KeyError("name"), "no 'name'"), (TypeError("a list"), "a list")]:
            with pytest.raises(ValueError, match=reason), stored.checking(WORDS):
                raise error


# -- files that were changed -----------------------------------------------------------------------


def test_one_flipped_bit_anywhere_is_refused(run):
    """Seeded places in every file; in the manifest, which guards the others, every byte."""
    rng = np.random.default_rng(0)
    for name, content in files(run).items():
        places = range(len(content)) if name == MANIFEST else rng.integers(len(content), size=20)
        read = read_manifest if name == MANIFEST else everything
        for place in map(int, places):
            put_byte(run / name, place, content[place] ^ 1 << int(rng.integers(8)))
            with pytest.raises(ValueError, match=name) as refused:
                read(run)
            assert str(refused.value).count("\n") == 0
            put_byte(run / name, place, content[place])
    everything(run)


def put_byte(file, place, byte):
    with open(file, "r+b") as stream:
        stream.seek(place)
        stream.write(bytes([byte]))


@pytest.mark.parametrize("name", [MANIFEST, WORDS, NUMBERS, TABLE])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_file_cut_short_is_refused(run, name, share):
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        everything(run)


@pytest.mark.parametrize("name", [WORDS, NUMBERS, TABLE])
def test_a_file_of_another_run_or_of_the_same_size_is_refused(run, name):
    write_artifact(run.with_name("other"), artifact(2.0))
    shutil.copy(run.with_name("other") / name, run / name)
    with pytest.raises(ValueError, match=f"{name} is damaged.*digest"):
        everything(run)


@pytest.mark.parametrize(("left", "reason"), [(None, "missing"), (b"x", "1 bytes, not")])
def test_a_file_missing_or_cut_short_is_refused_even_if_it_is_not_read(run, left, reason):
    (run / TABLE).unlink()
    if left is not None:
        (run / TABLE).write_bytes(left)
    with (
        pytest.raises(ValueError, match=rf"{TABLE} is damaged.*{reason}"),
        open_artifact(run, kind="model"),
    ):
        pytest.fail("it is not whole")


@pytest.mark.parametrize("name", [MANIFEST, WORDS, NUMBERS, NOTE])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "device"])
def test_what_is_no_plain_file_is_refused_at_once(run, name, kind):
    """A pipe would keep its reader waiting for ever, a device would never end."""
    (run / name).rename(run.parent / name)
    makers = {
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to(run.parent / name),
        "folder": os.mkdir,
        "device": lambda path: path.symlink_to("/dev/zero"),
    }
    makers[kind](run / name)
    with pytest.raises(ValueError, match=rf"{name} is not a plain file"):
        everything(run)


def test_a_manifest_that_names_what_is_elsewhere_is_refused(run):
    (run.parent / "secret.txt").write_text("secret")
    entry = Entry.of(run.parent / "secret.txt")
    for name in ("../secret.txt", str(run.parent / "secret.txt"), "", ".", "a\0", MANIFEST):
        (run / MANIFEST).write_bytes(Manifest.of("model", {name: entry}).to_bytes())
        with pytest.raises(ValueError, match=r"a name in files is .*, and not a file name"):
            everything(run)


def test_a_manifest_that_names_a_file_too_many_is_refused(run):
    entries = json.loads((run / MANIFEST).read_text())["files"]
    listed = {name: Entry(**words) for name, words in entries.items()}
    (run / MANIFEST).write_bytes(
        Manifest.of("model", listed | {"more.txt": listed[NOTE]}).to_bytes()
    )
    with pytest.raises(ValueError, match=r"more\.txt is damaged.*missing"):
        everything(run)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 10**4, "nested"),
        (b"[]", "not a table"),
        (b'{"format": "2"}', "format is '2', and not a whole number"),
        (b'{"format": 0}', "format 0"),
        (b'{"format": 3}', "odcl is missing"),
        (b'{"format": 3, "kind": "model", "odcl": "0.1.0", "files": []}', "files is"),
        (
            b'{"format": 3, "kind": "model", "odcl": "0.1.0", "files": {"a": {}}}',
            "files.a.bytes is missing",
        ),
        (b'{"format": 3, "kind": "model", "odcl": "0.1.0", "files": {}}', "its digest"),
        (bytes(2**17), "larger than"),
        (b'{"format": 4, "odcl": "0.9.0"}', r"has format 4.*odcl '0\.9\.0' wrote it"),
    ],
)
def test_a_manifest_that_is_none_or_a_newer_one_is_refused(run, content, reason):
    (run / MANIFEST).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{MANIFEST} .*{reason}"):
        everything(run)


def test_folders_that_are_no_such_artifact_are_refused(run, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / WORDS).write_text('{"format": 1, "version": "0.1.0"}')
    for name, reason in [
        ("none", "There is no folder"),
        ("file", "is a file"),
        (".", f"has no {MANIFEST}"),
        ("old", "if an early version did, fit again"),
    ]:
        with pytest.raises(ValueError, match=reason):
            everything(tmp_path / name)
    with pytest.raises(ValueError, match="did not write"):
        write_artifact(tmp_path / "old", artifact(), force=True)
    with pytest.raises(ValueError, match="holds a 'model', not a 'task'"):
        open_artifact(run, kind="task").__enter__()


# -- whole or not at all ---------------------------------------------------------------------------


def test_force_replaces_an_artifact_but_nothing_that_is_not_its_own(run):
    with pytest.raises(ValueError, match=r"exists already, .*force=True"):
        write_artifact(run, artifact(2.0))
    (run / ".DS_Store").write_text("litter")
    write_artifact(run, artifact(2.0), force=True)
    assert everything(run)[0]["value"] == 2.0
    (run / "notes.txt").write_text("mine")
    before = files(run)
    for write in (
        check_artifact_place,
        lambda path, force: write_artifact(path, artifact(), force=force),
    ):
        with pytest.raises(ValueError, match=r"did not write \(such as 'notes\.txt'\)"):
            write(run, force=True)
    assert files(run) == before
    everything(run)  # notes do not disturb the reader


def test_a_note_left_while_an_artifact_is_written_is_not_removed(run):
    def leave_a_note(path):
        path.write_text("table")
        (run / "notes.txt").write_text("mine")

    with pytest.raises(ValueError, match=r"such as 'notes\.txt'"):
        write_artifact(run, Artifact("model", {TABLE: leave_a_note}), force=True)
    assert (run / "notes.txt").read_text() == "mine"
    assert everything(run)[0]["value"] == 1.0


def test_force_never_replaces_a_folder_that_is_no_artifact(tmp_path):
    (tmp_path / "letters").mkdir()
    write_artifact(tmp_path / "letters", artifact(), force=True)  # empty
    for name in files(tmp_path / "letters"):
        (tmp_path / "letters" / name).unlink()
    (tmp_path / "letters" / NOTE).write_text("dear")
    with pytest.raises(ValueError, match="did not write"):
        write_artifact(tmp_path / "letters", artifact(), force=True)
    assert files(tmp_path) == {f"letters/{NOTE}": b"dear"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")])
@pytest.mark.parametrize("how", ["write", "update"])
def test_a_failure_of_any_file_operation_leaves_the_old_artifact_or_the_new_one(
    run, monkeypatch, error, how
):
    """Each operation in turn fails, until one try has none left to fail."""
    names = ("open", "mkdir", "rename", "fsync", "unlink", "chmod", "rmdir", "lstat", "fstat")
    real = {name: getattr(os, name) for name in names}
    count, at = 0, 0

    def failing(name):
        def operation(*args, **kwargs):
            nonlocal count
            count += 1
            if count == at:
                raise error
            return real[name](*args, **kwargs)

        return operation

    value = 1.0
    while count >= at:
        before, value = everything(run)[0]["value"], value + 1
        at, count = at + 1, 0
        new = artifact(value)
        with monkeypatch.context() as patched:
            for name in names:
                patched.setattr(os, name, failing(name))
            try:
                if how == "write":
                    write_artifact(run, new, force=True)
                else:
                    update_artifact(run, lambda _, new=new: new, kind="model")
                wrote = True
            except (KeyboardInterrupt, OSError, ValueError):
                wrote = False
        assert everything(run)[0]["value"] in ((value,) if wrote else (before, value))
    assert at > 30


LIMITED = """
import resource, sys
import numpy as np
from odcl.artifact.arrays import array_file, json_bytes
from odcl.artifact.folder import Artifact, write_artifact

large = np.zeros(10**6)
extras = {"table.csv": lambda path: path.write_bytes(bytes(10**6))}
new = {
    "arrays": Artifact("model", {"models.safetensors": array_file({"theta": large})}),
    "words": Artifact("model", {"model.json": json_bytes(["x" * 10**6])}),
    "extras": Artifact("model", extras),
}[sys.argv[2]]
resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, 10**5))
try:
    write_artifact(sys.argv[1], new, force=True)
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("kind", "name"), [("arrays", NUMBERS), ("words", WORDS), ("extras", "table.csv")]
)
def test_a_file_beyond_the_limit_is_one_line_and_the_old_artifact_stays(run, kind, name):
    """As on a full disk; the limit also sends a signal, which must not end the program."""
    before = files(run.parent)
    words = [sys.executable, "-c", LIMITED, str(run), kind]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"[Errno {errno.EFBIG}] File too large: '{run / name}'\n"
    assert files(run.parent) == before


# -- several at once -------------------------------------------------------------------------------


def add_user(path, user):
    def change(old):
        words = old.words(WORDS)
        return Artifact("model", {WORDS: json_bytes(words | {"users": [*words["users"], user]})})

    update_artifact(path, change, kind="model")


ADDING = """
import os, sys
from tests.artifact.test_folder import add_user

os.fsync = lambda descriptor: None  # the speed of the disk is not at stake
for i in range(50):
    add_user(sys.argv[1], f"{sys.argv[2]}{i}")
"""


def test_two_processes_that_add_users_at_once_lose_none(run):
    adding = [
        subprocess.Popen(
            [sys.executable, "-c", ADDING, str(run), who], cwd=Path(__file__).parents[2]
        )
        for who in "xy"
    ]
    while any(process.poll() is None for process in adding):
        assert everything(run)[0]["users"][:2] == ["a", "b"]  # readers see one version or another
    assert [process.returncode for process in adding] == [0, 0]
    added = {f"{who}{i}" for who in "xy" for i in range(50)}
    users = everything(run)[0]["users"]
    assert len(users) == 102
    assert set(users) == {"a", "b"} | added
    assert [p.name for p in run.parent.iterdir()] == ["run"]


def test_threads_that_add_users_at_once_lose_none(run):
    def add(who):
        for i in range(10):
            add_user(run, f"{who}{i}")

    threads = [threading.Thread(target=add, args=(who,)) for who in "vwxy"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(everything(run)[0]["users"])) == 42


def test_an_update_keeps_the_other_files_and_the_notes_of_people(run):
    (run / "notes").mkdir()
    (run / "notes" / "a.txt").write_text("mine")
    (run / "notes" / "a.txt").chmod(0o400)
    (run / "nowhere").symlink_to("none")
    before = files(run)
    add_user(run, "c")
    after = files(run)
    assert everything(run)[0]["users"] == ["a", "b", "c"]
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == {WORDS, MANIFEST}
    assert os.readlink(run / "nowhere") == "none"


def test_an_update_does_not_write_over_a_note(run):
    (run / "more.txt").write_text("mine")
    before = files(run)
    with pytest.raises(ValueError, match=r"more\.txt is not odcl's"):
        update_artifact(run, lambda _: Artifact("model", {"more.txt": b""}), kind="model")
    assert files(run) == before


def test_an_update_does_not_carry_on_a_damaged_file(run):
    (run / NOTE).write_bytes(b"evil")
    with pytest.raises(ValueError, match=f"{NOTE} is damaged"):
        add_user(run, "c")


def test_an_update_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="There is no folder"):
        add_user(tmp_path / "none", "c")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_is_overtaken_reads_the_new_version_whole(run, monkeypatch):
    """The artifact is replaced by one of the same sizes after its first file was opened."""
    opened = []

    def open_and_replace(path):
        stream = open_regular(path)
        opened.append(path)
        if len(opened) == 1:
            write_artifact(run, artifact(2.0), force=True)
        return stream

    monkeypatch.setattr(folder, "open_regular", open_and_replace)
    assert everything(run)[1]["theta"] == [[2.0] * 3] * 2
    assert sum(path.parent == run for path in opened) == 8  # others are being written


def test_a_reader_brings_back_a_folder_whose_writer_was_killed(run):
    """Between two renames; :func:`odcl.files.locked` does it, and the reader asks for it."""
    run.rename(run.with_name(".old-0123abcd-run"))
    assert everything(run)[0]["value"] == 1.0
    assert [p.name for p in run.parent.iterdir()] == ["run"]
