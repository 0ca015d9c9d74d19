"""Flower's simulation engine, on Ray: a node per user of the paper's linear federation."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")

from numpy.testing import assert_array_equal

import odcl
from odcl.data.synthetic import linear_federation
from odcl.engines.flower.deployment import Deployment
from odcl.engines.flower.trial import simulate

pytestmark = pytest.mark.slow


def test_a_hundred_simulated_nodes_give_the_in_process_models_bit_for_bit(tmp_path):
    result, seconds = simulate(tmp_path / "simulation", 100, seed=3, timeout=600.0)
    found = odcl.ODCLRegressor.load(result)
    expected = odcl.fit(
        linear_federation(100, 100, n_clusters=10, seed=3), method=odcl.Method(robust=True), seed=3
    )
    assert_array_equal(found.theta_, expected.models)
    assert_array_equal(found.labels_, expected.labels)
    assert found.reason_ == expected.step.reason
    report = json.loads((result / "report.json").read_text())
    assert (report["bytes_up"], report["bytes_down"]) == (expected.bytes_up, expected.bytes_down)
    assert seconds > 0


def test_a_simulation_that_fails_says_why_and_leaves_no_process_behind(tmp_path):
    with pytest.raises(OSError, match=r"timeout=-1\.0"):
        simulate(tmp_path / "simulation", 10, seed=0, timeout=-1.0)
    assert not Deployment.read(tmp_path / "simulation").running()
