"""A SuperLink that is killed while nodes fit, and a SuperNode: nothing that had arrived is lost.

What Flower does: started again on its database, the SuperLink calls the run failed; until then a
ServerApp that finds its way back may still hear nodes. Nodes come back by themselves, under the
same ids, and what they send for the old run after that is refused. What odcl does: uploads
lie on the server's disk as they arrive, and the next run of the same task asks only those nodes
that had not been heard.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")

from numpy.testing import assert_array_equal

import odcl
from tests.engines.flower.deployed import Round, federation
from tests.engines.flower.deployment import wait_until

pytestmark = pytest.mark.slow

NODES = ["n0", "n1", "n2"]
TIMEOUT = 30.0


@pytest.fixture(scope="module")
def up(deploy):
    one = deploy(NODES)
    one.start(NODES)
    return one


def kill(up, name):
    """End a program as a power cut would, without a word."""
    pid = up.deployment.pids[name]
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: pid not in up.deployment.running(), 10)


@pytest.fixture(scope="module")
def interrupted(up):
    """A run whose SuperLink was killed when one node had sent and two were at work."""
    run_id, result = up.run(
        "result", faults="n1:slow,n2:slow", min_replies=3, nodes=3, timeout=100.0
    )
    kept = result.with_name("result.arrived")
    assert wait_until(lambda: any(kept.rglob("*.upload")), 60)
    assert wait_until(lambda: all((up.flags / f"fitting-{n}").exists() for n in NODES), 60)
    kill(up, "superlink")
    up.deployment.start_superlink()
    up.deployment.wait_online(NODES)
    status = up.deployment.wait(run_id, 90)["status"]
    (up.flags / "enough").touch()  # only now: a ServerApp that found its way back would hear them
    return Round(run_id, status, result)


@pytest.fixture(scope="module")
def resumed(up, interrupted):
    """The same task again; this time the SuperNode of n2 is killed while it fits."""
    for flag in up.flags.glob("fitting-*"):  # "enough" stays: nodes of the old run may still wait
        flag.unlink()
    run_id, result = up.run("result", faults="n2:silent", min_replies=2, nodes=3, timeout=TIMEOUT)
    assert wait_until(lambda: (up.flags / "fitting-n2").exists(), 60)
    kill(up, "n2")
    return Round(run_id, up.deployment.wait(run_id, 2 * TIMEOUT + 60)["status"], result)


def test_flower_calls_a_run_failed_whose_superlink_was_killed(interrupted):
    assert interrupted.status == "finished:failed"
    assert not interrupted.folder.exists()


def test_the_next_run_goes_on_from_the_uploads_that_had_arrived(up, resumed):
    assert resumed.is_good, up.deployment.run_log(resumed.run_id)
    assert not (up.flags / "fitting-n0").exists()  # it was not asked again
    assert (up.flags / "fitting-n1").exists()
    got = np.concatenate([up.model_of(site) for site in ("n0", "n1")])
    order = np.argsort([0, 9, 18, 1, 10, 19])
    same = odcl.fit(federation(["n0", "n1"]), method=odcl.Method(robust=True))
    assert_array_equal(got[order], same.models)


def test_a_node_that_is_killed_while_it_fits_is_set_aside(up, resumed):
    reasons = up.why_set_aside(resumed)
    assert set(reasons) == {"n2"}
    assert f"did not answer within {TIMEOUT:g} s" in reasons["n2"]
