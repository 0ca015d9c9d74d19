"""RUN on disk: changed files are refused, several writers lose nobody, foreign files are kept."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from odcl import ODCLRegressor
from tests.helpers import NO_HOLDOUT, files_below, people, save_csv, start_python

FILES = ("model.json", "models.safetensors", "uploads.safetensors", "schema.json", "manifest.json")
FILES += ("report.json", "assignment.csv", "groups.csv")
FILES += ("report.html", "evidence.json", "evidence.safetensors")


def newcomers(name, n_users=1, seed=9):
    """A table of users that the run does not know."""
    frame = people(n_users=n_users, seed=seed).assign(user=lambda f: f"{name}-" + f.user)
    return save_csv(frame, f"{name}.csv")


@pytest.fixture
def run(command, fit_once):
    """Run commands beside a run that ``odcl fit`` wrote."""
    fit_once(save_csv(people()), *NO_HOLDOUT)
    return command


# -- files that were changed -----------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_refused_by_the_name_of_its_file(run, name):
    content = bytearray(Path("run", name).read_bytes())
    newcomers("new")
    content[len(content) // 2] ^= 1
    Path("run", name).write_bytes(content)
    before = files_below()
    for words in (("predict", "run", "table.csv"), ("assign", "run", "new.csv", "--add")):
        said = run(*words)
        assert (said.code, said.out) == (2, "")
        assert re.fullmatch(rf"odcl: run/{name} is damaged or was changed \(.*\): .*\n", said.err)
    assert files_below() == before


@pytest.mark.parametrize("name", ["models.safetensors", "uploads.safetensors", "groups.csv"])
def test_a_file_of_another_run_is_refused(run, name):
    run("fit", save_csv(people(seed=1), "other.csv"), *NO_HOLDOUT, "--out", "other")
    shutil.copy(f"other/{name}", f"run/{name}")
    said = run("predict", "run", "table.csv")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"odcl: run/{name} is damaged or was changed")


def test_two_features_swapped_in_the_schema_are_refused(run):
    path = Path("run/schema.json")
    path.write_text(path.read_text().replace('"a",\n  "b"', '"b",\n  "a"'))
    assert json.loads(path.read_text())["features"] == ["b", "a", "c"]
    said = run("predict", "run", "table.csv")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("odcl: run/schema.json is damaged or was changed")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", ["manifest.json", "models.safetensors", "groups.csv"])
def test_a_pipe_in_the_folder_is_refused_at_once(run, name):
    Path("run", name).unlink()
    os.mkfifo(f"run/{name}")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(30)  # nobody writes to it: whoever waited would wait for ever
    try:
        said = run("predict", "run", "table.csv")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert (said.code, said.out) == (2, "")
    assert f"run/{name} is not a plain file" in said.err
    assert said.err.count("\n") == 1


def test_a_folder_of_the_first_format_is_told_from_a_foreign_one(run):
    Path("old").mkdir()
    Path("old/model.json").write_text('{"format": 1, "odcl": "0.1.0"}')
    for words in (("predict", "old", "table.csv"), ("diagnose", "old")):
        said = run(*words)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("odcl: old is not the folder of a fit: it has no manifest.json")
    with pytest.raises(ValueError, match=r"an early version did, fit again"):
        ODCLRegressor.load("old")


# -- what is not ours ------------------------------------------------------------------------------


def test_force_removes_nothing_that_odcl_did_not_write(run):
    Path("run/notes.txt").write_text("mine")
    before = files_below()
    said = run("fit", "table.csv", *NO_HOLDOUT, "--paper", "--out", "run", "--force")
    assert (said.code, said.out) == (2, "")
    assert "holds what odcl did not write (such as 'notes.txt')" in said.err
    with pytest.raises(ValueError, match=r"such as 'notes.txt'"):
        ODCLRegressor.load("run").save("run", force=True)
    assert files_below() == before


def a_folder(name):
    return lambda: Path("run", name, "mine").mkdir(parents=True)


def a_link(name):
    return lambda: Path("run", name).symlink_to(Path.cwd())


def in_place_of(name, make):
    return lambda: (Path("run", name).unlink(), make(name)())


FOREIGN = {
    "report": a_folder("report"),
    "model": a_folder("model"),
    "schema": a_link("schema"),
    "users": a_folder("users"),
    "report.json": in_place_of("report.json", a_folder),
    "model.json": in_place_of("model.json", a_link),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_force_knows_files_from_folders_and_links_of_their_names(run, name):
    FOREIGN[name]()
    before = sorted(Path("run").rglob("*"))
    said = run("fit", "table.csv", *NO_HOLDOUT, "--paper", "--out", "run", "--force")
    assert (said.code, said.out) == (2, "")
    assert f"holds what odcl did not write (such as {name!r})" in said.err
    assert sorted(Path("run").rglob("*")) == before


@pytest.mark.parametrize(
    "words", [("predict", "run", "table.csv"), ("assign", "run", "new.csv"), ("update", "run", "u")]
)
def test_an_answer_replaces_a_file_only_by_force(run, words):
    newcomers("new")
    Path("answer.csv").write_text("mine")
    words = (*words[:2], save_csv(people(n=2), "u.csv")) if words[0] == "update" else words
    before = files_below()
    said = run(*words, "--out", "answer.csv")
    assert (said.code, said.out) == (2, "")
    assert (
        said.err == "odcl: answer.csv exists already. Say --force to replace it, or name another.\n"
    )
    assert files_below() == before
    assert run(*words, "--out", "answer.csv", "--force").code == 0
    assert "user," in Path("answer.csv").read_text()


# -- a disk that fills -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "file"),
    [
        (300, r"\S+"),
        (1100, r"models?\.(json|safetensors)"),
        (20_000, r"report\.html"),
    ],
)
def test_a_limit_on_files_is_one_line_and_the_old_run_stays(run, limit, file):
    newcomers("new")
    before = files_below()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        fitted = run("fit", "table.csv", *NO_HOLDOUT, "--paper", "--out", "run", "--force")
        added = run("assign", "run", "new.csv", "--add")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for said in (fitted, added):
        assert (said.code, said.out) == (1, "")
        assert re.fullmatch(rf"odcl: run/{file}: File too large\.\n", said.err)
    assert files_below() == before


# -- several at once -------------------------------------------------------------------------------

SEVERAL = """
import shlex, sys
import odcl.runs.folder
from odcl.cli.main import run_command
print("ready", flush=True)
sys.stdin.readline()
sys.exit(max(run_command(shlex.split(line)) for line in sys.argv[1:]))
"""


def at_once(*lines: list[str]) -> None:
    """One process for each list of command lines, which all start when all are ready."""
    some = [start_python("-c", SEVERAL, *each, stdin=subprocess.PIPE) for each in lines]
    for process in some:
        assert process.stdout.readline() == "ready\n"
    for process in some:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in some:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err


@pytest.mark.slow
def test_processes_that_add_and_update_users_at_once_lose_nobody(run):
    """Two processes read, change and write one run: each change must build on the last."""
    save_csv(people(n_users=2, n=3, seed=5), "more.csv")
    left, right = [], []
    for i in range(5):
        left.append(f"assign run {newcomers(f'left{i}')} --add -q --out left{i}.out.csv")
        right.append(f"assign run {newcomers(f'right{i}')} --add -q --out right{i}.out.csv")
        right.append(f"update run more.csv --again -q --out update{i}.csv")
    at_once(left, right)
    assigned = pd.read_csv("run/assignment.csv").set_index("user")
    added = {f"{side}{i}-u0" for side in ("left", "right") for i in range(5)}
    assert set(assigned.index) == {f"u{i}" for i in range(8)} | added
    assert assigned["rows"].loc[["u0", "u1", "u2"]].tolist() == [29, 29, 14]
    assert set(ODCLRegressor.load("run").users_) == set(assigned.index)
