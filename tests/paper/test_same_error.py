"""What rounds cost beside one shot, for the same error."""

from __future__ import annotations

import numpy as np
import pytest

from odcl import Method, fit
from odcl.data.synthetic import linear_federation
from odcl.evaluate.scores import nmse
from odcl.exchange.ledger import ifca_exchange
from odcl.paper.baselines import fedavg, ifca
from odcl.paper.baselines.same_error import Cost, cost_table, costs_to_error


@pytest.fixture(scope="module")
def world():
    rows = linear_federation(20, 100, n_clusters=4, seed=0)
    found = fit(rows, "squared", Method.paper(4))
    return rows, nmse(found.models, rows.optima), found


def test_rounds_end_at_the_error_of_the_one_shot(world):
    rows, error, _ = world
    costs = costs_to_error(rows, error, n_clusters=4, rounds=50, n_starts=2, local_steps=(1, 5))
    plain, random, near = costs
    assert not plain.reached  # one model for four groups
    assert plain.n_rounds == 50
    assert near.reached
    assert near.error <= error
    assert near.told == ("the true groups",)
    assert random.told == ()
    call = {"n_clusters": 4, "average": "models", "start": "oracle", "groups": rows.groups}
    each = [ifca(rows, **call, local_steps=tau, stop_at=error, rounds=50) for tau in (1, 5)]
    least = min(one.bytes_up + one.bytes_down for one in each)
    assert near.bytes_up + near.bytes_down == least
    same = ifca_exchange(20, rows.n_features, 4).over(near.n_rounds)
    assert (near.bytes_up, near.bytes_down) == (same.total_up, same.total_down)


def test_one_group_needs_no_truth_and_fedavg_gets_there():
    rows = linear_federation(10, 60, n_clusters=1, seed=1)
    error = 1.02 * nmse(fit(rows, "squared", Method.paper(1)).models, rows.optima)
    found = costs_to_error(rows, error, n_clusters=1, rounds=100, n_starts=1)
    assert found[0].reached
    best = [fedavg(rows, local_steps=tau, stop_at=error, rounds=100).n_rounds for tau in (1, 10)]
    assert found[0].n_rounds == min(best)


def test_the_table_says_what_was_not_reached(world):
    _, error, found = world
    costs = [
        Cost("one shot", error, 1, found.bytes_up, found.bytes_down),
        Cost("FedAvg", 0.9, 50, 10_000, 10_000, reached=False),
    ]
    text = cost_table(costs, 20)
    assert "not in 50" in text
    assert "168 bytes" in text  # 20 coefficients and the number of rows
    assert np.isfinite(error)
