"""Flower's simulation engine, on Ray: a node per user of the paper's linear federation."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")

from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from numpy.testing import assert_allclose

import odcl
from odcl.clustering.labels import same_partition
from odcl.data.synthetic import linear_federation
from odcl.engines.flower import ODCL, make_client_app

pytestmark = pytest.mark.slow


def test_a_hundred_simulated_nodes_give_the_models_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    whole, result = linear_federation(100, 100, n_clusters=10, seed=3), tmp_path / "result"
    kept = tmp_path / "kept"
    kept.mkdir()

    def load(context):
        return whole.take(np.array([context.node_config["partition-id"]]))

    def keep(found, context):
        np.savez(kept / str(found.users[0]), model=found.models[0], group=found.labels[0])

    server = ServerApp()

    @server.main()
    def main(grid, context):
        ODCL("squared", min_replies=100, seed=3, result_dir=result).start(grid)

    run_simulation(server, make_client_app(load, on_model=keep), 100)
    expected = odcl.fit(whole, method=odcl.Method(robust=True), seed=3)
    found = [np.load(kept / f"{user}.npz") for user in whole.users.tolist()]
    report = json.loads((result / "report.json").read_text())
    # The server orders users by their digests, and sums round in another way.
    assert_allclose([one["model"] for one in found], expected.models, rtol=1e-9, atol=1e-11)
    assert same_partition(np.array([int(one["group"]) for one in found]), expected.labels)
    assert (report["bytes_up"], report["bytes_down"]) == (expected.bytes_up, expected.bytes_down)
