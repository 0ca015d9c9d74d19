"""The app to start from: whose rows a node has, and what it says of those it cannot take."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")

from numpy.testing import assert_array_equal

from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from odcl.engines.flower.template import app_folder
from tests.engines.flower.world import app_config


@pytest.fixture(scope="module")
def client():
    path = app_folder() / "client_app.py"
    spec = importlib.util.spec_from_file_location("odcl_table_client", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def context_of(node, **said):
    return SimpleNamespace(run_config={**app_config(), **said}, node_config=node)


def shares(client, n, **said):
    nodes = ({"partition-id": i, "num-partitions": n} for i in range(n))
    return [client.load(context_of(node, **said)).train for node in nodes]


def test_simulated_nodes_share_the_users_of_the_runs_table(client, tmp_path):
    stores = store_tables(0)[0]
    mine = {"shop" if name == "store" else name: column for name, column in stores.items()}
    write_table(tmp_path / "all.csv", mine)
    own = shares(client, 3, user="shop", data=str(tmp_path / "all.csv"))
    made = shares(client, 3)
    assert sum(part.n_users for part in own) == 60
    for one, other in zip(own, made, strict=True):
        assert one.users.tolist() == other.users.tolist()
        assert_array_equal(one.X, other.X)


def test_no_row_is_held_out_unless_it_is_asked_for(client):
    node = {"partition-id": 0, "num-partitions": 60}
    whole, cut = (client.load(context_of(node, **how)) for how in ({}, {"holdout": 0.25}))
    assert whole.test is None
    assert len(cut.train.y) + len(cut.test.y) == len(whole.train.y)


def test_categories_are_refused_with_what_to_write_instead(client, tmp_path):
    stores = store_tables(0)[0]
    write_table(tmp_path / "north.csv", {**stores, "rain": ["wet"] * len(stores["rain"])})
    with pytest.raises(ValueError, match="columns of 0 and 1") as refused:
        client.load(context_of({"data": str(tmp_path / "north.csv")}))
    assert "categorical=" not in str(refused.value)  # nobody can say that here


def test_a_column_that_is_missing_is_said_to_be_without_talk_of_categories(client, tmp_path):
    write_table(tmp_path / "north.csv", {"store": ["a"], "sales": [1.0], "price": [2.0]})
    with pytest.raises(ValueError, match="Columns promotion, temperature, weekend") as refused:
        client.load(context_of({"data": str(tmp_path / "north.csv")}))
    assert "categories" not in str(refused.value)
