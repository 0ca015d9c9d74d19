"""Processes under a mark: all of them are ended, however they hide, and no other."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
import tomllib

import pytest

from tests.engines.flower import deployment
from tests.engines.flower.deployment import (
    MARK,
    Deployment,
    end,
    running,
    toml_pairs,
    wait_until,
)

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
    children = []

    def begin(mark, *words):
        child = subprocess.Popen(
            [sys.executable, path, *words],
            env={**os.environ, **({MARK: mark} if mark else {})},
            start_new_session=True,
        )
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def mark():
    one = secrets.token_hex(16)
    yield one
    end(one, grace=0.1)


@pytest.fixture(params=["/proc", "ps"])
def listing(request, monkeypatch, tmp_path):
    """How processes are found: by /proc, or where there is none by ps."""
    if request.param == "ps":
        if shutil.which("ps") is None:
            pytest.skip("no ps here")
        monkeypatch.setattr(deployment, "_PROC", tmp_path / "nowhere")


@pytest.mark.parametrize("manner", ["", "deaf"])
def test_children_in_sessions_of_their_own_are_ended_too(program, mark, manner, listing):
    program(mark, "parent", manner)
    assert wait_until(lambda: len(running(mark)) == 2, 20)
    assert end(mark, grace=0.5) == 2
    assert running(mark) == set()


def test_children_are_found_when_their_parent_was_killed(program, mark):
    known = program(mark, "parent")
    assert wait_until(lambda: len(running(mark)) == 2, 20)
    known.kill()
    assert wait_until(lambda: len(running(mark)) == 1, 10)
    assert end(mark) == 1
    assert running(mark) == set()


def test_processes_of_another_mark_and_none_are_left_alone(program, mark, listing):
    other = secrets.token_hex(16)
    theirs, unmarked = program(other), program("")
    program(mark)
    assert wait_until(lambda: len(running(mark)) == len(running(other)) == 1, 20)
    assert end(mark) == 1
    assert theirs.poll() is None
    assert unmarked.poll() is None


def test_waiting_ends_when_time_is_up_and_says_so():
    began = time.monotonic()
    assert not wait_until(lambda: False, 0.1)
    assert time.monotonic() - began < 5
    assert wait_until(lambda: True, 0.0)


def test_a_log_is_readable_by_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(deployment, "program", lambda name: shutil.which(name))
    made = Deployment.make(tmp_path / "d", ["north"])
    made._start("it", made.home, "true")
    assert (made.logs / "it.log").stat().st_mode & 0o077 == 0


def test_settings_are_written_as_flower_reads_them():
    given = {"site": 'a "b" c', "n": 3, "share": 0.5, "force": True}
    for name, value in given.items():
        assert tomllib.loads(toml_pairs({name: value})) == {name: value}
    assert toml_pairs({"n": 3, "force": True}) == "n=3 force=true"
