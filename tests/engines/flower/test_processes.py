"""Processes under a mark: all of them are ended, however they hide, and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest

from odcl.engines.flower import processes
from odcl.engines.flower.processes import Process, belonging, end, new_mark, start, wait_until

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="by /proc")

# A program with a child in a session of its own, both deaf to a polite request if told so.
PARENT = """
import signal, subprocess, sys, time
if "deaf" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "parent" in sys.argv:
    subprocess.Popen([sys.executable, __file__, *sys.argv[2:]], start_new_session=True)
time.sleep(600)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PARENT)

    def begin(mark, *words):
        return start([sys.executable, path, *words], mark, dict(os.environ), tmp_path / "log")

    return begin


@pytest.fixture
def mark():
    one = new_mark()
    yield one
    end(one, grace=0.1)


def n_running(mark):
    return len(belonging(mark))


@pytest.mark.parametrize("manner", ["", "deaf"])
def test_children_in_sessions_of_their_own_are_ended_too(program, mark, manner):
    known = program(mark, "parent", manner)
    assert wait_until(lambda: n_running(mark) == 2, 20)
    assert end(mark, [known], grace=0.5) == 2
    assert n_running(mark) == 0
    assert not known.runs


def test_children_are_found_when_their_parent_was_killed(program, mark):
    known = program(mark, "parent")
    assert wait_until(lambda: n_running(mark) == 2, 20)
    os.kill(known.pid, 9)
    assert wait_until(lambda: not known.runs, 10)
    assert end(mark, [known]) == 1
    assert n_running(mark) == 0


def test_processes_of_another_mark_and_none_are_left_alone(program, mark, tmp_path):
    other = new_mark()
    theirs = program(other)
    unmarked = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        ours = program(mark)
        assert wait_until(lambda: n_running(mark) == n_running(other) == 1, 20)
        end(mark, [ours])
        assert theirs.runs
        assert unmarked.poll() is None
    finally:
        end(other, [theirs])
        unmarked.kill()
        unmarked.wait()


def test_a_number_given_to_another_process_is_not_the_process_that_was_known(mark):
    """State files outlive their processes: by number alone, `down` would end a stranger."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        known = Process(stranger.pid, "1")
        assert not known.runs
        assert end(mark, [known]) == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("place", ["/proc", "nowhere"])
def test_a_process_without_the_mark_is_left_alone_whatever_the_state_file_says(
    place, monkeypatch, mark, tmp_path
):
    """Numbers and starts may agree by chance, after a reboot as before it: the mark decides."""
    if place == "nowhere":
        if shutil.which("ps") is None:
            pytest.skip("no ps here")
        monkeypatch.setattr(processes, "_PROC", tmp_path / place)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        known = Process(stranger.pid, processes._started(stranger.pid))
        assert known.runs
        assert belonging(mark, [known]) == []
        assert end(mark, [known], grace=0.2) == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_waiting_ends_when_time_is_up_and_says_so():
    began = time.monotonic()
    assert not wait_until(lambda: False, 0.1)
    assert time.monotonic() - began < 5
    assert wait_until(lambda: True, 0.0)


def test_a_log_is_readable_by_its_owner_alone(program, mark, tmp_path):
    program(mark)
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_where_there_is_no_proc_known_processes_are_found_by_ps(
    monkeypatch, program, mark, tmp_path
):
    if shutil.which("ps") is None:
        pytest.skip("no ps here")
    monkeypatch.setattr(processes, "_PROC", tmp_path / "nowhere")
    known = program(mark)
    assert known.runs
    assert end(mark, [known]) == 1
    assert not known.runs
