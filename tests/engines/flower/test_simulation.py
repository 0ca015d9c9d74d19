"""Flower's simulation engine, on Ray: a node per user of the paper's linear federation."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")

from numpy.testing import assert_array_equal

import odcl
from odcl.data.synthetic import linear_federation
from odcl.engines.flower.deployment import Deployment
from odcl.engines.flower.simulation import simulate

pytestmark = pytest.mark.slow


def test_a_hundred_simulated_nodes_receive_the_in_process_models_bit_for_bit(tmp_path):
    found = simulate(100, seed=3, folder=tmp_path)
    expected = odcl.fit(linear_federation(100, 100, n_clusters=10, seed=3), seed=3)
    assert_array_equal(found.models, expected.models)
    assert_array_equal(found.labels, expected.labels)
    assert found.reason == expected.step.reason
    assert (found.bytes_up, found.bytes_down) == (expected.bytes_up, expected.bytes_down)


def test_a_simulation_that_fails_says_why_and_leaves_no_process_behind(tmp_path):
    with pytest.raises(OSError, match=r"timeout=-1\.0"):
        simulate(10, folder=tmp_path, timeout=-1.0)
    assert not Deployment.read(tmp_path / "simulation").processes()
