"""The command as a process: full disks, interrupts, pipes and terminals."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from odcl import Method
from tests.helpers import NO_HOLDOUT, ROLES, files_below, full_disk, people, save_csv, start_python

# -- things that go wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "writer",
    [
        "odcl.artifact.arrays.write_arrays",
        "odcl.runs.run.write_table",
        "os.fsync",
        "os.rename",
    ],
)
def test_a_full_disk_leaves_the_old_run_whole_and_no_litter(command, monkeypatch, writer):
    save_csv(people())
    command("fit", "table.csv", *NO_HOLDOUT, "--out", "run")
    before = files_below()
    with monkeypatch.context() as patch:
        patch.setattr(writer, full_disk)
        said = command("fit", "table.csv", *NO_HOLDOUT, "--paper", "--out", "run", "--force")
        assert said.code == 1
        assert re.fullmatch(r"odcl: run(/\S+)?: No space left on device\.\n", said.err)
        fresh = command("fit", "table.csv", *NO_HOLDOUT, "--out", "fresh")
        assert (fresh.code, fresh.out) == (1, "")
    assert files_below() == before
    assert os.listdir() == ["run", "table.csv"] or os.listdir() == ["table.csv", "run"]


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "run", "table.csv", "--out", "p.csv", "--force"),
        ("assign", "run", "n.csv", "--add"),
    ],
)
def test_a_full_disk_leaves_predictions_and_runs_as_they_were(command, monkeypatch, words):
    command("fit", save_csv(people()), *NO_HOLDOUT, "--out", "run")
    save_csv(people(n_users=1).assign(user="new"), "n.csv")
    Path("p.csv").write_text("old")
    before = files_below()
    monkeypatch.setattr("os.fsync", full_disk)
    said = command(*words)
    assert said.code == 1
    assert re.fullmatch(r"odcl: (p\.csv|run/\S+): No space left on device\.\n", said.err)
    assert files_below() == before


def test_a_file_that_cannot_be_written_is_named(command, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "secret/table.csv")

    monkeypatch.setattr("odcl.data.source.read_table", denied)
    said = command("fit", save_csv(people()), *NO_HOLDOUT, "--out", "run")
    assert (said.code, said.err) == (1, "odcl: secret/table.csv: Permission denied.\n")


SLOW = """
import sys, time, odcl.{module} as module
def slow(*_, **__):
    print("now", flush=True)
    for _ in range(600):  # a signal that comes just before a sleep is seen after it
        time.sleep(0.1)
module.{name} = slow
sys.argv = ["odcl", *sys.argv[1:]]
from odcl.cli.main import main
main()
"""
WRITES = ("runs.run", "write_table")  # while the files are written


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("place", "number", "code"),
    [
        (("data.notices", "about_values"), signal.SIGINT, 130),  # after a fit
        (WRITES, signal.SIGINT, 130),
        (WRITES, signal.SIGTERM, 143),
    ],
)
def test_an_interrupt_leaves_the_old_run_whole_and_no_litter(
    command, fit_once, place, number, code
):
    fit_once(save_csv(people()), *NO_HOLDOUT)
    before = files_below()
    script = SLOW.format(module=place[0], name=place[1])
    words = ["fit", "table.csv", *NO_HOLDOUT, "--paper", "--out", "run", "--force"]
    process = start_python("-c", script, *words)
    assert process.stdout.readline() == "now\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err == ("odcl: interrupted.\n" if number == signal.SIGINT else "")
    assert files_below() == before
    assert sorted(os.listdir()) == ["run", "table.csv"]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_a_reader_who_has_seen_enough_ends_the_command_in_silence(command, fit_once):
    frame = pd.concat([people()] * 60)
    fit_once(save_csv(people()), *NO_HOLDOUT)
    process = start_python("-m", "odcl", "predict", "run", save_csv(frame, "long.csv"))
    assert process.stdout.readline() == "user,row,prediction\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_a_failure(buffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "odcl", "fit", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    assert (done.returncode, done.stderr) == (1, "odcl: No space left on device.\n")


# -- a terminal ------------------------------------------------------------------------------------


def test_a_terminal_sees_a_bar_on_stderr_and_the_same_results(command, monkeypatch):
    save_csv(people())
    piped = command("fit", "table.csv", *ROLES, "--out", "run")
    monkeypatch.setenv("TERM", "xterm")
    terminal = sys.stderr
    monkeypatch.setattr(type(terminal), "isatty", lambda stream: stream is terminal)
    watched = command("fit", "table.csv", *ROLES, "--out", "run", "--force")
    assert watched.out == piped.out
    assert "writing" in watched.err
    assert "\x1b[" in watched.err
    quiet = command("fit", "table.csv", *ROLES, "--out", "run", "--force", "--quiet")
    assert (quiet.out, quiet.err) == (piped.out, "")


def test_no_bar_runs_through_predictions_on_a_terminal(command, monkeypatch):
    command("fit", save_csv(people()), *NO_HOLDOUT, "--out", "run")
    piped = command("predict", "run", "table.csv")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
    assert command("predict", "run", "table.csv") == piped
    assert "\x1b[" in command("predict", "run", "table.csv", "--out", "p.csv").err


def test_every_local_model_moves_the_bar():
    from odcl.data.roles import ColumnOptions
    from odcl.runs.fit import fit
    from odcl.runs.settings import FitSettings, Silent

    class Counted(Silent):
        stages, users = [], 0

        def stage(self, text, n_users=None):
            self.stages.append(text)

        def advance(self, n_users):
            self.users += n_users

    seen = Counted()
    fit(save_csv(people()), FitSettings(ColumnOptions("user", "y"), Method()), progress=seen)
    assert seen.stages == ["reading the table", "comparing on held-out rows", "fitting all rows"]
    assert seen.users == 3 * 8  # ours and the paper's on the rows kept, ours on all rows


HOSTILE = "a\x1b[31m\x07\u202eb"  # colours, rings and turns the text around
VISIBLE = "a\\x1b[31m\\x07\\u202eb"


@pytest.fixture
def hostile_run(command):
    frame = people(n_users=3).assign(user=lambda f: HOSTILE + f.user)
    command("fit", save_csv(frame, f"{HOSTILE}.csv"), *NO_HOLDOUT, "--out", f"{HOSTILE}-run")
    return f"{HOSTILE}-run"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
@pytest.mark.parametrize("to", ["terminal", "pipe"])
@pytest.mark.parametrize(
    "words",
    [
        ("fit", f"{HOSTILE}.csv", *NO_HOLDOUT, "--out", f"{HOSTILE}-new"),
        ("predict", f"{HOSTILE}-run", f"{HOSTILE}.csv"),
        ("assign", f"{HOSTILE}-run", f"{HOSTILE}.csv"),
        ("predict", f"{HOSTILE}-run", f"{HOSTILE}-none.csv"),
    ],
)
def test_names_from_outside_do_not_steer_a_terminal(hostile_run, to, words):
    """What is data stays as it is in a pipe, as with ``ls``."""
    ours, theirs = os.openpty() if to == "terminal" else os.pipe()
    call = [sys.executable, "-m", "odcl", *words]
    with subprocess.Popen(call, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        content = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 65_536):
                content += piece
        err = process.stderr.read()
    os.close(ours)
    out = content.decode()
    assert process.returncode == (2 if "-none" in words[-1] else 0)
    assert not set("\x1b\x07\u202e") & set(err)
    if process.returncode:
        assert f"There is no file or folder {VISIBLE}-none.csv" in err
    elif to == "pipe":
        assert HOSTILE in out
    else:
        assert VISIBLE in out
        assert not set("\x1b\x07\u202e") & set(out)
