"""Fixtures of the Flower engine's tests: deployments, which leave no process behind."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def deploy(tmp_path_factory):
    """Makes deployments under test; all their processes are ended, and looked for afterwards."""
    pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")
    from odcl.engines.flower.deployment import Deployment
    from tests.engines.flower.deployed import SITES, Federated

    made = []

    def make(sites=SITES):
        one = Deployment.make(tmp_path_factory.mktemp("flower") / "deployment", sites)
        made.append(one)
        return Federated(one)

    yield make
    seen = [process for one in made for process in one.processes()]
    for one in made:
        one.down()
    left = [process for process in seen if process.runs]
    left += [process for one in made for process in one.processes()]
    assert not left, f"processes outlived their tests: {left}"
