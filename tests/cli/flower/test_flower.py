"""``odcl flower``: what its commands write, say and leave running (nothing)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from tests.engines.flower.deployment import free_port, wait_until

COLUMNS = "price,promotion,temperature,weekend,rain"


# -- without Flower --------------------------------------------------------------------------------


def test_a_new_app_is_a_package_that_is_called_as_the_folder(command):
    said = command("flower", "new", "My Stores")
    assert said.code == 0, said.err
    assert "flwr run 'My Stores' --stream" in said.out
    found = {path.name for path in Path("My Stores").iterdir()}
    assert found == {"README.md", "deploy.sh", "pyproject.toml", "odcl_my_stores"}
    assert os.access("My Stores/deploy.sh", os.X_OK)
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


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        (["a.csv"], "There is no file a.csv."),
        ([], "Flower is missing: pip install 'odcl[flower]'."),
    ],
)
def test_a_deployment_that_cannot_be_says_why_before_anything_starts(command, tables, told):
    command("flower", "new", "app")
    tools = Path("bin")
    tools.mkdir()
    if tables:
        (tools / "flower-superlink").touch(mode=0o755)
    for name in ("bash", "dirname", "basename", "env"):
        (tools / name).symlink_to(shutil.which(name))
    said = subprocess.run(
        ["app/deploy.sh", *tables],
        env={"PATH": str(tools.resolve())},
        capture_output=True,
        text=True,
    )
    assert (said.returncode, said.stdout, said.stderr.strip()) == (2, "", told)
    assert not Path("deployment").exists()


def test_a_deployment_replaces_no_folder(command):
    command("flower", "new", "app")
    Path("bin").mkdir()
    Path("bin/flower-superlink").touch(mode=0o755)
    Path("deployment").mkdir()
    path = os.pathsep.join([str(Path("bin").resolve()), os.environ["PATH"]])
    said = subprocess.run(
        ["app/deploy.sh"], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert said.returncode != 0
    assert "deployment" in said.stderr
    assert list(Path("deployment").iterdir()) == []


# -- with Flower -----------------------------------------------------------------------------------


@pytest.fixture
def flower():
    pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")


def processes():
    """Running processes that carry the mark of a deployment in this folder."""
    listed = subprocess.run(["ps", "axeww", "-o", "command="], capture_output=True, text=True)
    mark = f"ODCL_DEPLOYMENT={Path('deployment').resolve()}"
    return [line for line in listed.stdout.splitlines() if mark in line.split()]


@contextmanager
def deployed(*tables, environment=()):
    """A deployment by the app's own script, until the block ends."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        [Path("app/deploy.sh").resolve(), *tables],
        env={**os.environ, "PATH": path, "PORT": str(free_port()), **dict(environment)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert wait_until(lambda: not processes(), 20)


def said_until(process, last):
    """What a deployment prints, up to a line that begins so."""
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(last):
            break
    return "".join(said)


@pytest.mark.slow
def test_a_new_app_deploys_itself_on_this_machine_and_leaves_nothing_running(command, flower):
    command("flower", "new", "app")
    with deployed() as process:
        said = said_until(process, "Ctrl-C ends")
        assert "Models, groups and what became of each node" in said, said
        assert "Confirmed: {'nodes': 4}" in said
        assert "3 groups found" in said
        assert len(processes()) >= 5
        assert Path("deployment/models/site-2.csv").read_text().count("\n") == 16
    result = json.loads(Path("deployment/result/nodes.json").read_text())
    assert len(result["nodes"]) == 4


@pytest.mark.slow
def test_deployed_tables_stay_under_digests_at_the_server(command, flower):
    """Two sites whose wards have the same names."""
    stores = store_tables(0)[0]
    owner = np.unique(stores["store"], return_inverse=True)[1]
    for i, site in enumerate(("north", "south")):
        rows = owner % 2 == i
        table = {name: np.asarray(column)[rows] for name, column in stores.items()}
        write_table(
            f"{site}.csv", table | {"store": np.array([f"W{n // 2:02d}" for n in owner[rows]])}
        )
    command("flower", "new", "app")
    with deployed("north.csv", "south.csv") as process:
        said = said_until(process, "Ctrl-C ends")
        assert "60 users of 2 nodes arrived" in said, said
        assert "W0" not in said
        assert "W0" not in Path("deployment/result/assignment.csv").read_text()
        assert "W0" in Path("deployment/models/south.csv").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_deployment_that_is_interrupted_ends_what_it_started(command, flower, how):
    command("flower", "new", "app")
    with deployed() as process:
        assert wait_until(lambda: len(processes()) > 1, 60)
        process.send_signal(how)
        assert process.wait(60) == 130
        assert wait_until(lambda: not processes(), 20)
