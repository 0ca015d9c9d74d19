"""What leaves a node: no name of a user and no cell, for no file and no log of the server."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from numpy.testing import assert_allclose, assert_array_equal

from odcl import Method, fit
from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from odcl.engines.flower import ODCL, make_client_app
from odcl.engines.flower import strategy as strategies
from odcl.engines.flower.client import KEY
from odcl.engines.flower.template import app_folder
from tests.engines.flower.deployment import COMPLETED
from tests.engines.flower.test_app import client  # noqa: F401  a fixture
from tests.engines.flower.test_result import Killed, killed
from tests.engines.flower.world import Node, app_config, federation, grid_of, models_of, parts_of
from tests.helpers import files_below

ROWS = replace(federation("squared"), users=np.array([f"patient {i:02d}" for i in range(12)]))
PARTS = parts_of(ROWS, 4)
WARDS = [replace(part, users=np.array(["ward-0", "ward-1", "ward-2"])) for part in PARTS]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Flower's home of the nodes, which share one here."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def private(grid):
    for node in grid.online.values():
        node.run_config = {}
    return grid


def known_names(folder, names):
    """Names that stand somewhere in the files of a folder."""
    content = b"".join(files_below(folder).values())
    return [name for name in names if name.encode() in content]


@pytest.mark.parametrize("how", ["one shot", "bare"])
def test_no_name_of_a_user_is_in_a_file_or_the_log_of_the_server(how, tmp_path, caplog):
    caplog.set_level("DEBUG", logger="flwr")
    got, run = {}, tmp_path / "run"
    grid = private(grid_of(PARTS, got))
    method = Method() if how == "one shot" else Method.paper(n_clusters=2)
    ODCL("squared", method, result_dir=run).start(grid)
    users = ROWS.users.tolist()
    assert sorted(got) == users  # at the node they are known
    assert known_names(run, users) == []
    assert not [name for name in users if name in caplog.text]
    assert len((run / "nodes.json").read_bytes()) > 500


def test_models_are_those_of_one_process_that_calls_users_by_their_digests():
    """Bit for bit; by their names users stand in another order, and sums round in another way."""
    got, grid = {}, private(grid_of(PARTS))
    strategy = ODCL()
    for number, node in grid.online.items():
        part = PARTS[node.config["partition-id"]]
        node.app = make_client_app(
            lambda _, part=part: part, on_model=lambda m, _, n=number: got.update({n: m})
        )
    strategy.start(grid)
    called = strategy.outcome.nodes
    name_of = {d: u for n in called for d, u in zip(called[n], got[n].users.tolist(), strict=True)}
    ids = np.array(sorted(name_of))
    order = np.array([ROWS.users.tolist().index(name_of[one]) for one in ids.tolist()])
    robust = Method(robust=True)
    same = fit(replace(ROWS.take(order), users=ids), method=robust)
    node_of = {digest: node for node in called for digest in called[node]}
    models = np.array([got[node_of[one]].model(name_of[one]) for one in ids.tolist()])
    assert_array_equal(models, same.models)
    assert_allclose(models, fit(ROWS, method=robust).models[order], rtol=1e-9)


def test_a_key_is_made_once_for_its_owner_alone_and_digests_stay(home):
    called = []
    for _ in range(2):
        strategy = ODCL()
        strategy.start(private(grid_of(PARTS)))
        called.append(strategy.outcome.uploads.users.tolist())
    assert called[0] == called[1]
    assert all(len(one) == 16 and set(one) <= set("0123456789abcdef") for one in called[0])
    assert os.stat(home / KEY).st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == [KEY]
    (home / KEY).unlink()
    strategy = ODCL()
    strategy.start(private(grid_of(PARTS)))
    assert not set(strategy.outcome.uploads.users.tolist()) & set(called[0])


def test_nothing_leaves_under_a_key_that_is_cut_off(home):
    home.mkdir()
    (home / KEY).touch(mode=0o600)
    with pytest.raises(ValueError, match="0 replies can be taken") as error:
        ODCL().start(private(grid_of(PARTS)))
    assert "ValueError, which the node's log explains" in error.value.__notes__[0]


def test_an_interrupted_run_goes_on_under_the_same_digests(tmp_path, monkeypatch):
    run, got = tmp_path / "run", {}
    grid = private(grid_of(PARTS, got))
    with monkeypatch.context() as patch:
        patch.setattr(strategies, "server_step", killed)
        with pytest.raises(Killed):
            ODCL(result_dir=run).start(grid)
    assert known_names(tmp_path / "run.arrived", ROWS.users.tolist()) == []
    for node in grid.online.values():
        node.state.clear()  # another process, which has the key and no memory
    ODCL(result_dir=run).start(grid)
    assert [node.asked for node in grid.online.values()] == [["train", "evaluate"]] * 4
    assert_allclose(
        models_of(got, ROWS.users), fit(ROWS, method=Method(robust=True)).models, rtol=1e-9
    )


def test_nodes_that_share_a_key_have_users_of_their_own_all_the_same():
    strategy = ODCL()
    strategy.start(private(grid_of(WARDS)))
    assert strategy.outcome.set_aside == strategy.outcome.undelivered == ()
    assert len(strategy.outcome.uploads) == 12


def test_another_word_for_names_is_refused():
    grid = private(grid_of(PARTS))
    next(iter(grid.online.values())).run_config = {"names": "no"}
    strategy = ODCL()
    strategy.start(grid)
    (aside,) = strategy.outcome.set_aside
    assert "names = 'no' in the run's config is neither 'digests' nor 'plain'" in aside.reason


CELL = "cell of Mrs Smith"
BROKEN = {
    "text": ({"rain": CELL}, "Column 'rain' holds text where numbers are needed"),
    "a date": ({"rain": "2024-02-30"}, "Column 'rain' holds text where numbers are needed"),
    "infinity": ({"rain": "inf"}, "Column 'rain' is infinite"),
    "nothing": ({"rain": ""}, "Column 'rain' has no value"),
    "no user": ({"store": ""}, "Column 'store' names no user"),
    "a target": ({"sales": CELL}, "Column 'sales' holds text where numbers are needed"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_of_a_broken_table_column_and_rule_leave_the_node_and_no_value(
    fault,
    client,  # noqa: F811
    tmp_path,
    caplog,
):
    change, rule = BROKEN[fault]
    stores = {name: [*map(str, column)] for name, column in store_tables(0)[0].items()}
    for name, value in change.items():
        stores[name][1] = value
    lines = [",".join(stores), *map(",".join, zip(*stores.values(), strict=True))]
    (tmp_path / "north.csv").write_text("\n".join(lines) + "\n")
    grid = private(grid_of(PARTS))
    grid.online[7] = Node(client.app, {"data": str(tmp_path / "north.csv")})
    grid.online[7].run_config = app_config()
    strategy = ODCL()
    strategy.start(grid)
    (aside,) = strategy.outcome.set_aside
    assert rule in aside.reason
    told = caplog.text + str(aside)
    assert not [value for value in (CELL, "2024-02-30", "inf ", "store-01") if value in told]


@pytest.mark.parametrize("where", ["fit", "last step", "on_model"])
def test_what_an_apps_own_code_says_stays_at_the_node(where, caplog):
    from odcl.engines.flower import Fit

    class Own(Fit):
        def uploads(self, rows, agreed, *, seed):
            return self.done("fit") or super().uploads(rows, agreed, seed=seed)

        def last_step(self, *args, **how):
            return self.done("last step") or super().last_step(*args, **how)

        def done(self, what):
            if what == where:
                raise KeyError(CELL)

    def keep(found, context):
        if where == "on_model":
            raise ValueError(f"no file for {found.users.tolist()}")

    grid = private(grid_of(PARTS))
    part = PARTS[0]
    node = next(n for n, one in grid.online.items() if one.config["partition-id"] == 0)
    app = make_client_app(lambda _: part, fit=Own(), on_model=keep)
    grid.online[node].app = app
    strategy = ODCL()
    strategy.start(grid)
    out = strategy.outcome
    (aside,) = out.set_aside + out.undelivered
    assert "Error, which the node's log explains" in aside.reason
    assert not [name for name in (CELL, *ROWS.users.tolist()) if name in caplog.text + str(aside)]


# -- a real deployment -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def up(deploy):
    return deploy(["north", "south", "west"])


@pytest.mark.slow
def test_a_deployment_keeps_names_and_cells_from_everything_at_the_server(up):
    """Three sites with wards of the same names; a cell of the third's table is no number."""
    stores = store_tables(0)[0]
    owner = np.unique(stores["store"], return_inverse=True)[1]
    folder = up.deployment.folder
    nodes = {}
    for i, site in enumerate(("north", "south", "west")):
        rows = owner % 3 == i
        table = {name: np.asarray(column)[rows] for name, column in stores.items()}
        table["store"] = np.array([f"secret ward {n // 3:02d}" for n in owner[rows]])
        if site == "west":
            table["rain"] = np.where(np.arange(rows.sum()) == 4, CELL, table["rain"].astype(str))
        path = folder / "flags" / f"{site}.csv"
        write_table(path, table)
        nodes[site] = {"data": str(path), "models": str(folder / "models" / f"{site}.csv")}
    up.deployment.up(nodes)
    result = folder / "result"
    told = {"min-replies": 2, "nodes": 3, "result-dir": str(result), "timeout": 60.0}
    run_id = up.deployment.run(app_folder(), told)
    status = up.deployment.wait(run_id, 150)["status"]
    log = up.deployment.run_log(run_id)
    assert status == COMPLETED, log
    up.deployment.down()
    words = json.loads((result / "nodes.json").read_text())
    assert sorted(len(one["users"]) for one in words["nodes"].values()) == [20, 20]
    (aside,) = words["set_aside"]
    assert "Column 'rain' holds text where numbers are needed" in aside["reason"]
    for site in ("north", "south"):
        assert (folder / "models" / f"{site}.csv").read_text().count("secret ward") == 20
        assert (folder / "home" / site / KEY).stat().st_mode & 0o777 == 0o600
    own = {"flags", "models", *(f"{site}.log" for site in nodes), *nodes}  # what lies at the sites
    files = [path for path in folder.rglob("*") if path.is_file()]
    at_server = [path for path in files if not own & set(path.relative_to(folder).parts)]
    assert {"superlink.db", "superlink.log", "nodes.json"} <= {path.name for path in at_server}
    for secret in ("secret ward", CELL):
        assert secret not in log
        assert [p for p in at_server if secret.encode() in p.read_bytes()] == []
    assert CELL in (folder / "logs" / "west.log").read_text()  # where people may see it
