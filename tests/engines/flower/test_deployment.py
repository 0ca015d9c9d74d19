"""A real deployment: TLS, registered keys, eight nodes, and every fault that one can have.

All tests of this file share one deployment and two runs; each looks at what it promises.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower's tests run in .venv-flower")

from numpy.testing import assert_array_equal

import odcl
from tests.engines.flower.deployed import SITES, Round, federation
from tests.engines.flower.deployment import wait_until

pytestmark = pytest.mark.slow

CLEAN = SITES[:8]
LATE = SITES[8]
FAULTY = {
    "n2": "raises",
    "n3": "dies",
    "n4": "silent",
    "n5": "nan",
    "n6": "shape",
    "n7": "task",
}
TIMEOUT = 40.0


@pytest.fixture(scope="module")
def up(deploy):
    """Eight nodes; a ninth has its key registered and comes late, a stranger's is not known."""
    one = deploy([*SITES, "stranger"])
    one.start(CLEAN)
    return one


@pytest.fixture(scope="module")
def clean(up):
    """A run in which all is well."""
    return up.finished("clean")


@pytest.fixture(scope="module")
def faulty(up, clean):
    """A run in which six of eight nodes do wrong, each in its own way, and a ninth comes late."""
    faults = ",".join(f"{site}:{what}" for site, what in FAULTY.items())
    up.deployment.register(LATE)
    config = {"faults": faults, "min_replies": 2, "timeout": TIMEOUT}
    run_id, result = up.run("faulty", **config)
    assert wait_until(lambda: (up.flags / "fitting-n4").exists(), 60)
    up.deployment.start_node(LATE, up.node_config(LATE))
    # Two rounds, each of which may last as long as its timeout, and Flower's own start and end.
    status = up.deployment.wait(run_id, 2 * TIMEOUT + 60)["status"]
    return Round(run_id, status, result)


def test_eight_nodes_receive_the_in_process_models_bit_for_bit(up, clean):
    assert clean.is_good, up.deployment.run_log(clean.run_id)
    expected = odcl.fit(federation(CLEAN), method=odcl.Method(robust=True))
    got = np.concatenate([up.model_of(site) for site in CLEAN])
    users = np.concatenate([np.arange(int(site[1:]), 27, 9) for site in CLEAN])
    assert_array_equal(got[np.argsort(users)], expected.models)
    assert not clean.report["set_aside"]
    assert all(node["confirmed"] for node in clean.report["nodes"].values())


def test_the_result_of_a_deployment_predicts_as_a_fit_does(up, clean):
    model = odcl.ODCLRegressor.load(clean.folder)
    assert sorted(model.users_.tolist()) == federation(CLEAN).users.tolist()


def test_a_run_goes_on_without_the_nodes_that_do_wrong(up, faulty):
    assert faulty.is_good, up.deployment.run_log(faulty.run_id)
    sent = {user for node in faulty.report["nodes"].values() for user in node["users"]}
    assert {0, 9, 18, 1, 10, 19} <= sent
    assert set(up.why_set_aside(faulty)) == set(FAULTY)


@pytest.mark.parametrize(
    ("site", "told"),
    [
        ("n2", "the rows are not where they were"),
        ("n3", ""),  # silence, until Flower misses its heartbeats, which takes a minute and more
        ("n4", f"did not answer within {TIMEOUT:g} s"),
        ("n5", "not finite"),
        ("n6", "shape"),
        ("n7", "another task"),
    ],
    ids=[*FAULTY.values()],
)
def test_a_node_that_does_wrong_is_set_aside_with_the_reason(up, faulty, site, told):
    assert told in up.why_set_aside(faulty)[site]


def test_a_node_that_joins_while_the_round_is_open_takes_part(up, faulty):
    assert {8, 17, 26} <= {u for node in faulty.report["nodes"].values() for u in node["users"]}
    expected = odcl.fit(federation(["n0", "n1", LATE]), method=odcl.Method(robust=True))
    got = np.concatenate([up.model_of(site) for site in ("n0", "n1", LATE)])
    users = np.array([0, 9, 18, 1, 10, 19, 8, 17, 26])
    assert_array_equal(got[np.argsort(users)], expected.models)


def test_a_node_that_joins_after_the_run_is_served_from_its_result(up, clean, faulty):
    """Of the nodes that are connected it alone has no model of that run, and it alone is asked."""
    for flag in up.flags.iterdir():
        flag.unlink()
    (up.models / f"{LATE}.npz").unlink()
    before = {site: up.model_of(site) for site in CLEAN}
    late = up.finished("clean", late=True, timeout=60.0)
    assert late.is_good, up.deployment.run_log(late.run_id)
    assert {flag.name for flag in up.flags.iterdir()} == {f"fitting-{LATE}"}
    assert up.model_of(LATE).shape == (3, 6)
    own = late.report["nodes"][up.deployment.registered[LATE]]
    assert (own["users"], own["confirmed"]) == ([8, 17, 26], True)
    for site in CLEAN:
        assert_array_equal(up.model_of(site), before[site])


def test_a_node_whose_key_is_not_registered_is_refused(up, clean):
    up.deployment.start_node("stranger", up.node_config("n0"))
    stranger = up.deployment.pids["stranger"]
    assert wait_until(lambda: stranger not in up.deployment.running(), 60)
    assert "stranger" not in up.deployment.online()


def test_fewer_nodes_than_the_quorum_fail_the_run_with_the_reason(up, clean):
    few = up.finished("few", min_replies=50, wait=2.0, seconds=60)
    assert few.status == "finished:failed"
    assert "50 replies are needed" in up.deployment.run_log(few.run_id)
    assert not few.folder.exists()
