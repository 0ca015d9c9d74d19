"""Fixtures of the Flower engine's tests: deployments, which leave no process behind."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

# Tests that need no Flower run in the main environment, once.
collect_ignore = (
    ["test_certs.py", "test_processes.py", "test_without_flower.py"] if find_spec("flwr") else []
)


@pytest.fixture(scope="module")
def deploy(tmp_path_factory):
    """Makes deployments under test; all their processes are ended, and looked for afterwards."""
    pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")
    from tests.engines.flower.deployed import SITES, Federated
    from tests.engines.flower.deployment import Deployment

    made = []

    def make(sites=SITES):
        one = Deployment.make(tmp_path_factory.mktemp("flower") / "deployment", sites)
        made.append(one)
        return Federated(one)

    yield make
    for one in made:
        one.down()
        assert not one.running(), "processes outlived their tests"
