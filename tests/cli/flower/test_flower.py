"""``odcl flower``: what its commands write, say and leave running (nothing)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from odcl.engines.flower.deployment import Deployment, toml_pairs, wait_until

COLUMNS = "price,promotion,temperature,weekend,rain"


# -- without Flower --------------------------------------------------------------------------------


def test_a_new_app_is_a_package_that_is_called_as_the_folder(command):
    said = command("flower", "new", "My Stores")
    assert said.code == 0, said.err
    assert "flwr run 'My Stores' --stream" in said.out
    found = {path.name for path in Path("My Stores").iterdir()}
    assert found == {"README.md", "pyproject.toml", "odcl_my_stores"}
    modules = {path.name for path in Path("My Stores/odcl_my_stores").iterdir()}
    assert modules == {"__init__.py", "client_app.py", "server_app.py"}
    assert "`odcl_my_stores/client_app.py`" in Path("My Stores/README.md").read_text()
    config = tomllib.loads(Path("My Stores/pyproject.toml").read_text())
    assert config["project"]["name"] == "my-stores"
    assert config["project"]["dependencies"] == []  # Flower would fetch them at every run
    app = config["tool"]["flwr"]["app"]
    assert app["components"]["clientapp"] == "odcl_my_stores.client_app:app"
    assert app["components"]["serverapp"] == "odcl_my_stores.server_app:app"
    assert app["config"]["features"] == COLUMNS
    assert app["config"]["result-dir"] == str(Path("My Stores/result").resolve())


def test_a_new_app_replaces_nothing_unless_forced(command):
    assert command("flower", "new", "app").code == 0
    Path("app/odcl_app/client_app.py").write_text("mine")
    said = command("flower", "new", "app")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert Path("app/odcl_app/client_app.py").read_text() == "mine"
    assert command("flower", "new", "app", "--force").code == 0
    Path("app/notes.txt").touch()
    assert "did not write" in command("flower", "new", "app", "--force").err


def test_certs_says_where_each_file_goes(command):
    said = command("flower", "certs", "c", "--sites", "north,south", "--host", "f.example.org")
    assert said.code == 0, said.err
    assert "north: c/nodes/north.key goes to the site, c/nodes/north.pub is registered" in said.out
    assert "south" in said.out
    assert command("flower", "certs", "c", "--sites", "north").code == 2


def test_up_names_the_table_that_lacks_a_column_before_anything_starts(command, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, **_: name)
    command("flower", "new", "app")
    Path("north.csv").write_text(f"store,sales,{COLUMNS}\na,1,2,3,4,5,6\n")
    Path("south.csv").write_text(f"store,sales,{COLUMNS}\na,1,2,3,4,5,6\n".replace("rain", "rains"))
    tables = ("--data", "north.csv", "--data", "south.csv")
    said = command("flower", "up", "d", *tables, "--app", "app")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("odcl: south.csv: ")
    assert "'rain'" in said.err
    assert not Path("d").exists()


def test_where_flower_is_missing_the_message_has_the_line_that_installs_it(command, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    said = command("flower", "up", "trial")
    assert (said.code, said.out) == (2, "")
    assert "pip install 'odcl[flower]'" in said.err
    assert not Path("trial").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("up", "d", "--data", "a.csv", "--nodes", "3"), "one per file"),
        (("up", "d", "--data", "a.csv"), "--data needs --app"),
        (("up", "d", "--app", "nowhere"), "no pyproject.toml"),
        (("down", "d"), "holds no deployment"),
        (("status", "d"), "holds no deployment"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_before_anything_starts(
    command, monkeypatch, words, told
):
    monkeypatch.setattr("shutil.which", lambda name, **_: name)
    said = command("flower", *words)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert told in said.err


def test_settings_are_written_as_flower_reads_them():
    given = {"site": 'a "b" c', "n": 3, "share": 0.5, "force": True}
    for name, value in given.items():
        assert tomllib.loads(toml_pairs({name: value})) == {name: value}
    assert toml_pairs({"n": 3, "force": True}) == "n=3 force=true"


# -- with Flower -----------------------------------------------------------------------------------


@pytest.fixture
def flower():
    pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")


def nothing_runs(folder):
    return not Deployment.read(folder).running()


@pytest.mark.slow
def test_up_runs_a_new_app_on_nodes_status_tells_and_down_ends_it_all(command, flower):
    command("flower", "new", "app")
    try:
        said = command("flower", "up", "trial", "--nodes", "2", "--app", "app")
        assert said.code == 0, said.err
        assert "2 nodes with 60 users" in said.out
        assert "3 groups found" in said.out
        assert Path("trial/result/manifest.json").is_file()
        assert Path("trial/models/site-2.csv").read_text().count("\n") == 31
        status = command("flower", "status", "trial").out
        assert status.count("connected") == 3
        assert "finished:completed" in status
        again = command("flower", "up", "trial", "--force")
        assert (again.code, "is up already" in again.err) == (2, True)
    finally:
        ended = command("flower", "down", "trial")
    assert "processes ended" in ended.out
    assert nothing_runs("trial")
    assert command("flower", "down", "trial").out == "Nothing was running.\n"
    assert command("flower", "status", "trial").out.count("ended") == 3
    write_table("stores.csv", store_tables(0)[0])
    assert command("predict", "trial/result", "stores.csv", "-q").code == 0


@pytest.mark.slow
def test_up_on_own_tables_prints_the_digests_that_the_server_knows(command, flower):
    """Two sites whose wards have the same names."""
    stores = store_tables(0)[0]
    owner = np.unique(stores["store"], return_inverse=True)[1]
    for i, site in enumerate(("north", "south")):
        rows = owner % 2 == i
        table = {name: np.asarray(column)[rows] for name, column in stores.items()}
        write_table(
            f"{site}.csv", table | {"store": np.array([f"W{n // 2:02d}" for n in owner[rows]])}
        )
    tables = ("--data", "north.csv", "--data", "south.csv")
    command("flower", "new", "app")
    try:
        said = command("flower", "up", "trial", *tables, "--app", "app")
        assert said.code == 0, said.err
        assert "2 nodes with 60 users" in said.out
        assert "W0" not in said.out
        sizes = [line.split()[2:4] for line in said.out.splitlines() if line.startswith("group ")]
        assert [sum(map(int, column)) for column in zip(*sizes, strict=True)] == [60, 1573]
        assert "W0" not in Path("trial/result/assignment.csv").read_text()
        assert "W0" in Path("trial/models/south.csv").read_text()
    finally:
        command("flower", "down", "trial")
    assert nothing_runs("trial")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_up_that_is_interrupted_ends_what_it_started(flower, how):
    words = [sys.executable, "-m", "odcl", "flower", "up", "trial", "--nodes", "2"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    try:
        state = Path("trial/state.json")
        assert wait_until(lambda: state.is_file() and "superlink" in state.read_text(), 60)
        process.send_signal(how)
        assert process.wait(60) == (130 if how == signal.SIGINT else 143)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert nothing_runs("trial")
    assert os.path.isdir("trial/logs")
