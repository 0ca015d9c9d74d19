"""The methods ODCL is compared with: against loops written out here, the paper, and each other."""

import re
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

import odcl
from odcl import (
    Federation,
    Huber,
    Method,
    Multinomial,
    ProjectedSGD,
    Result,
    Risk,
    linear_federation,
)
from odcl.clustering.labels import same_partition
from odcl.data.federation import user_rng
from odcl.data.synthetic import SyntheticFederation, logistic_federation
from odcl.exchange.message import Exchange
from odcl.paper.baselines import (
    METHODS,
    BaselineResult,
    all_for_all,
    cluster_oracle,
    fedavg,
    ifca,
    local,
    make_result,
    naive,
    oracle_averaging,
    register,
    run,
)
from odcl.paper.baselines.iterated import start_models
from odcl.paper.baselines.result import problem_of
from odcl.paper.baselines.steps import Block, Draws, WideBlock, blocks_of
from odcl.server.models import average_by_cluster
from tests.helpers import offsets_of


def small_federation(counts, *, dim=3, n_groups=2, seed=0, logistic=False):
    """A few users by hand: optima far apart, or labels of a logistic model."""
    rng = np.random.default_rng(seed)
    m = len(counts)
    groups = np.arange(m) % n_groups
    centers = 3.0 * rng.standard_normal((n_groups, dim))
    X = rng.standard_normal((sum(counts), dim))
    owner = np.repeat(np.arange(m), counts)
    z = (X * centers[groups[owner]]).sum(axis=1)
    noise = rng.standard_normal(len(z))
    y = np.where(z + noise > 0, 1.0, -1.0) if logistic else z + 0.3 * noise
    return SyntheticFederation(
        X, y, offsets_of(counts), np.arange(m), groups=groups, optima=centers[groups]
    )


def rows_by_user(federation):
    """(X, y) of every user."""
    return [(X, y) for _, X, y in federation]


def squared_gradient(theta, X, y):
    return X.T @ (X @ theta - y) / len(y)


def squared_risk(theta, X, y):
    return ((X @ theta - y) ** 2).mean() / 2


def logistic_gradient(theta, X, y):
    return -X.T @ (y / (1 + np.exp(y * (X @ theta)))) / len(y)


def logistic_risk(theta, X, y):
    return np.log1p(np.exp(-y * (X @ theta))).mean()


HAND = {
    "squared": (squared_risk, squared_gradient),
    "logistic": (logistic_risk, logistic_gradient),
}
# Users with more rows than parameters, with fewer, and both among others.
COUNTS = {"tall": [9, 7, 8, 12, 9, 9], "wide": [2, 3, 2, 3, 1, 2], "both": [2, 9, 40, 3, 7, 1]}


# -- one round or none -----------------------------------------------------------------------


def test_local_models_are_the_users_own_and_nothing_is_sent():
    federation = small_federation([9, 12, 8, 30])
    result = local(federation)
    own = [np.linalg.lstsq(X, y, rcond=None)[0] for X, y in rows_by_user(federation)]
    assert_allclose(result.models, own, rtol=1e-10)
    assert (result.n_rounds, result.bytes_up, result.bytes_down) == (0, 0, 0)
    assert_allclose(result.history.error, [result.nmse()])


def test_naive_averaging_is_the_mean_of_all():
    federation = small_federation([9, 12, 8, 30])
    own = [np.linalg.lstsq(X, y, rcond=None)[0] for X, y in rows_by_user(federation)]
    result = naive(federation)
    assert_allclose(result.models, np.tile(np.mean(own, axis=0), (4, 1)), rtol=1e-10)
    assert result.n_clusters == 1


def test_oracle_averaging_is_the_mean_inside_the_true_groups():
    federation = small_federation([9, 12, 8, 30, 9, 9], n_groups=3)
    result = oracle_averaging(federation, groups=federation.groups)
    expected = average_by_cluster(local(federation).models, federation.groups)
    assert_allclose(result.models, expected[federation.groups], rtol=1e-12)
    assert "told the true groups" in result.summary()


@pytest.mark.parametrize("counts", [[8] * 6, [8, 20, 5, 9, 40, 7]])
def test_cluster_oracle_minimises_equation_3(counts):
    """Each user counts once: rows weigh 1 / n_i. With equal sizes that is pooled least squares."""
    federation = small_federation(counts)
    result = cluster_oracle(federation, groups=federation.groups)
    for k in (0, 1):
        data = [
            d for d, g in zip(rows_by_user(federation), federation.groups, strict=True) if g == k
        ]
        A = sum(X.T @ X / len(y) for X, y in data)
        h = sum(X.T @ y / len(y) for X, y in data)
        assert_allclose(result.models[federation.groups == k], [np.linalg.solve(A, h)] * 3)
    assert result.bytes_up == 8 * federation.X.size + 8 * len(federation.y)
    assert result.bytes_down == 8 * result.models.size


def test_groups_are_given_by_user_whatever_the_order_of_users():
    """The server sorts users by id: groups must go with them."""
    federation = small_federation([9, 12, 8, 30, 9, 9], n_groups=3).take(
        np.array([3, 0, 5, 4, 1, 2])
    )
    groups = federation.users % 3
    result = oracle_averaging(federation, groups=groups)
    expected = average_by_cluster(local(federation).models, groups)[groups]
    assert_allclose(result.models, expected, rtol=1e-12)


# -- the users' risks ------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "logistic", Huber(0.5), Multinomial(3), "poisson"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_blocks_agree_with_the_risk_of_one_user(loss, intercept, counts):
    """Risk, gradient and three local steps of every form of block, several models at a time."""
    federation = small_federation(counts)
    targets = {"logistic": np.sign, "multinomial": lambda y: np.abs(y) // 1 % 3, "poisson": np.abs}
    risk = Risk(loss, l2=0.1, intercept=intercept)
    y = targets.get(risk.loss.name, np.asarray)(federation.y)
    theta = 0.3 * np.random.default_rng(1).standard_normal((len(counts), 4, risk.dim(3)))
    seen = 0
    for block in blocks_of(federation, y, risk):
        for position, i in enumerate(block.users):
            rows = federation.rows(int(i))
            data = (federation.X[rows], y[rows])
            mine = theta[block.users]
            for r in range(4):
                point = theta[i, r]
                assert_allclose(block.risk(mine)[position, r], risk.value(point, *data))
                gradient = risk.gradient(point, *data)
                assert_allclose(block.gradient(mine)[position, r], gradient, atol=1e-12)
                for _ in range(3):
                    point = point - 0.1 * risk.gradient(point, *data)
                assert_allclose(block.descend(mine, 0.1, 3)[position, r], point, atol=1e-12)
            same = block.risk(theta[:1])[position]
            assert_allclose(same, [risk.value(t, *data) for t in theta[0]])
            L = block.smoothness(2.0)[position]
            exact = risk.constants(*data, 2.0).L
            assert exact * (1 - 1e-12) <= L <= exact + 0.1 + 1e-12  # the penalty on the intercept
            seen += 1
    assert seen == len(counts)


def test_each_user_is_held_in_its_cheapest_form():
    federation = small_federation(COUNTS["both"])
    blocks = blocks_of(federation, federation.y, Risk())
    (summed,) = (block for block in blocks if type(block) is Block)
    assert summed.D.shape[1:] == (4, 3)  # of more rows than inputs a triangle is left
    assert WideBlock in map(type, blocks)
    y = np.sign(federation.y)
    kinds = {type(b) for b in blocks_of(federation, y, Risk("logistic", 0.1, intercept=True))}
    assert kinds == {Block}  # a free intercept beside a penalty: no common shrinkage


def test_draws_come_from_the_users_own_streams_however_many_are_taken_at_a_time():
    federation = small_federation([5, 9, 4])
    some, all_at_once = Draws(federation, 3), Draws(federation, 3)
    parts = np.concatenate([some.take(size) for size in (1, 7, 1500, 2)], axis=1)
    assert_array_equal(parts, all_at_once.take(1510))
    for i in range(3):
        assert_array_equal(np.unique(parts[i]), np.arange(18)[federation.rows(i)])
        first = user_rng(3, i).integers(*federation.offsets[i : i + 2], size=20)
        assert_array_equal(first, parts[i, :20])
        other = Draws(federation.take(np.array([i])), 3).take(20)[0]
        assert_array_equal(other + federation.offsets[i], parts[i, :20])


# -- IFCA ------------------------------------------------------------------------------------


def published_ifca(data, models, step, rounds):
    """Ghosh et al., option I as published: squared loss without 1/2, sums divided by m."""
    models = [theta.copy() for theta in models]
    m = len(data)
    path = [np.array(models)]
    for _ in range(rounds):
        total = [np.zeros_like(theta) for theta in models]
        for X, y in data:
            losses = [np.mean((y - X @ theta) ** 2) for theta in models]
            k = int(np.argmin(losses))
            total[k] += 2 * X.T @ (X @ models[k] - y) / len(y)
        models = [theta - step * t / m for theta, t in zip(models, total, strict=True)]
        path.append(np.array(models))
    return path


def choices(data, models, risk):
    return np.array([np.argmin([risk(theta, X, y) for theta in models]) for X, y in data])


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_gradient_averaging_follows_the_published_trajectory(counts):
    """The same data, start and step, twice theirs for our loss with 1/2: round by round."""
    federation = small_federation(counts, seed=4)
    start = np.random.default_rng(2).standard_normal((3, 3))
    data = rows_by_user(federation)
    path = published_ifca(data, start, 0.1, 12)
    for t in (0, 1, 2, 5, 12):
        result = ifca(federation, n_clusters=3, start=start, step_size=0.2, rounds=t)
        expected = path[t][choices(data, path[t], squared_risk)]
        assert_allclose(result.models, expected, rtol=1e-10, atol=1e-12)
        assert_allclose(result.history.error[-1], result.nmse())
    assert_allclose(
        result.history.risk,
        [
            np.mean([min(squared_risk(theta, X, y) for theta in models) for X, y in data])
            for models in path
        ],
        rtol=1e-9,
    )


@pytest.mark.parametrize("loss", HAND)
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_model_averaging_is_the_mean_of_the_models_after_tau_steps(loss, counts):
    """Option II; a third model that starts far from everybody is chosen by nobody and stays."""
    federation = small_federation(counts, logistic=loss == "logistic")
    risk, gradient = HAND[loss]
    start = np.random.default_rng(2).standard_normal((3, 3))
    if loss == "squared":
        start[2] = 1e3
    data = rows_by_user(federation)
    models = start.copy()
    for _ in range(4):
        chosen = choices(data, models, risk)
        moved = []
        for (X, y), k in zip(data, chosen, strict=True):
            theta = models[k]
            for _ in range(3):
                theta = theta - 0.05 * gradient(theta, X, y)
            moved.append(theta)
        for k in range(3):
            if (chosen == k).any():
                models[k] = np.mean(
                    [t for t, c in zip(moved, chosen, strict=True) if c == k], axis=0
                )
    result = ifca(
        federation,
        n_clusters=3,
        average="models",
        start=start,
        step_size=0.05,
        local_steps=3,
        rounds=4,
        risk=Risk(loss),
    )
    assert loss != "squared" or (models[2] == 1e3).all()
    assert_allclose(result.models, models[choices(data, models, risk)], rtol=1e-10)
    assert same_partition(result.labels, choices(data, models, risk))


def test_stochastic_steps_use_the_rows_each_user_draws():
    federation = small_federation([9, 7, 8, 12])
    start = np.random.default_rng(2).standard_normal((2, 3))
    rows = Draws(federation, 6).take(2 * 3 * 2).reshape(4, 2, 3, 2)  # user, round, step, batch
    data, models = rows_by_user(federation), start.copy()
    for t in range(2):
        chosen = choices(data, models, squared_risk)
        moved = models[chosen]
        for step in range(3):
            for i in range(4):
                batch = rows[i, t, step]
                pull = squared_gradient(moved[i], federation.X[batch], federation.y[batch])
                moved[i] = moved[i] - 0.1 * pull
        models = np.array(
            [moved[chosen == k].mean(axis=0) if (chosen == k).any() else models[k] for k in (0, 1)]
        )
    result = ifca(
        federation,
        n_clusters=2,
        average="models",
        start=start,
        step_size=0.1,
        local_steps=3,
        batch_size=2,
        rounds=2,
        seed=6,
    )
    assert_allclose(result.models, models[choices(data, models, squared_risk)], rtol=1e-10)


@pytest.mark.parametrize(("name", "variance"), [("ifca-1", 1.0), ("ifca-2", 4.0)])
def test_ifca_1_and_2_start_from_the_cluster_oracle_plus_noise(name, variance):
    """N(0, 4) is a variance: 60 starts of 4 models of 20 numbers tell it from 2 and 16."""
    federation = linear_federation(12, 60, n_clusters=4, dim=20, seed=3)
    oracle = cluster_oracle(federation, groups=federation.groups).centers
    settings = METHODS[name].settings
    told = {"n_clusters": 4, "labels": federation.groups, "variance": settings["variance"]}
    starts = np.stack(
        [
            start_models(problem_of(federation, Risk(), seed), settings["start"], **told)
            for seed in range(60)
        ]
    )
    assert_allclose(starts.mean(axis=0), oracle, atol=5 * np.sqrt(variance / 60))
    assert_allclose(np.mean((starts - oracle) ** 2), variance, rtol=0.1)
    begun = run(name, federation, rounds=0, seed=1)  # the same start
    again = run(name, federation, rounds=0, seed=1, around=oracle)
    assert_allclose(begun.models, again.models)
    assert (np.abs(begun.models[0] - starts[1]).max(axis=1) < 1e-12).any()


@pytest.mark.parametrize("between", [(1 / 6, 1 / 4), (1 / 5, 1 / 3)])
def test_starts_near_the_optima_keep_their_distance(between):
    federation = linear_federation(20, 60, n_clusters=4, seed=3)
    centers = average_by_cluster(federation.optima, federation.groups)
    D = min(np.linalg.norm(a - b) for i, a in enumerate(centers) for b in centers[:i])
    found = []
    for seed in range(10):
        result = run("ifca-near", federation, rounds=0, between=between, seed=seed)
        assert same_partition(result.labels, federation.groups)
        found += list(np.linalg.norm(result.models - federation.optima, axis=1) / D)
    assert between[0] <= min(found)
    assert max(found) <= between[1]
    assert max(found) - min(found) > 0.5 * (between[1] - between[0])


def test_random_starts_are_standard_normal():
    federation = linear_federation(8, 30, n_clusters=4, seed=0)
    starts = ifca(federation, n_clusters=50, rounds=0, seed=1).models
    assert 0.7 < starts.std() < 1.3
    with pytest.raises(ValueError, match="give groups="):
        ifca(federation, n_clusters=4, start="oracle")
    with pytest.raises(ValueError, match="one gradient"):
        ifca(federation, n_clusters=4, local_steps=10)
    with pytest.raises(ValueError, match="batch_size=0"):
        fedavg(federation, batch_size=0)


def test_ifca_with_one_model_is_fedavg_where_users_have_equally_many_rows():
    federation = small_federation([9, 9, 9, 9])
    call = {"rounds": 6, "step_size": 0.1, "local_steps": 4}
    one = ifca(federation, n_clusters=1, average="models", start=np.zeros((1, 3)), **call)
    assert_allclose(one.models, fedavg(federation, **call).models, rtol=1e-12)


# -- FedAvg and ALL-for-ALL ------------------------------------------------------------------


def test_fedavg_weighs_models_by_sample_size():
    federation = small_federation([9, 7, 20, 12])
    theta = np.zeros(3)
    for _ in range(5):
        moved = []
        for X, y in rows_by_user(federation):
            local_theta = theta
            for _ in range(4):
                local_theta = local_theta - 0.1 * squared_gradient(local_theta, X, y)
            moved.append(local_theta)
        theta = np.average(moved, axis=0, weights=[9, 7, 20, 12])
    result = fedavg(federation, rounds=5, step_size=0.1, local_steps=4)
    assert_allclose(result.models, np.tile(theta, (4, 1)), rtol=1e-10)


@pytest.mark.parametrize("loss", HAND)
def test_all_for_all_with_uniform_mixing_is_descent_on_each_groups_risk(loss):
    federation = small_federation([9, 7, 8, 12, 3, 5], logistic=loss == "logistic")
    _, gradient = HAND[loss]
    data = rows_by_user(federation)
    result = all_for_all(
        federation, groups=federation.groups, step_size=0.2, rounds=9, risk=Risk(loss)
    )
    for k in (0, 1):
        theta = np.zeros(3)
        members = np.flatnonzero(federation.groups == k)
        for _ in range(9):
            theta = theta - 0.2 * np.mean([gradient(theta, *data[i]) for i in members], axis=0)
        assert_allclose(result.models[members], np.tile(theta, (3, 1)), rtol=1e-10)


def test_all_for_all_ends_at_the_cluster_oracle():
    federation = linear_federation(40, 60, n_clusters=4, seed=1)
    oracle = cluster_oracle(federation, groups=federation.groups).models
    mixed = run("all-for-all", federation, rounds=300)
    assert_allclose(mixed.models, oracle, atol=1e-8)


# -- what is sent, when to stop, when it runs away -------------------------------------------


def test_bytes_are_what_is_sent():
    """8 bytes a number: K models down every round and once more at the end, one vector up."""
    m, d, K, T = 20, 20, 4, 7
    federation = linear_federation(m, 30, n_clusters=K, seed=0)
    result = run("ifca-r", federation, rounds=T)
    assert_array_equal(result.history.ledger.down, [8 * m * K * d] * T)
    assert_array_equal(result.history.ledger.up, [8 * m * (d + 1)] * T)  # and which model it is
    assert result.bytes_down == 8 * m * K * d * (T + 1)
    assert result.bytes_up == 8 * m * (d + 1) * T
    average = fedavg(federation, rounds=T)
    assert average.bytes_down == 8 * m * d * (T + 1)
    assert average.bytes_up == 8 * m * (d + 1) * T
    peers = run("all-for-all", federation, rounds=T)
    assert peers.bytes_up == peers.bytes_down == 8 * d * T * K * 5 * 4
    once = run("odcl-km++", federation)
    itself = odcl.fit(federation, method=Method.paper(4))
    assert (once.bytes_up, once.bytes_down) == (itself.bytes_up, itself.bytes_down)
    assert once.bytes_up == 8 * m * (d + 1)  # and the number of rows
    assert once.bytes_down == 8 * m * (d + 2)  # and the number and the size of the group
    assert run("odcl-cc", federation).bytes_up == once.bytes_up  # bare models, as in the paper


def test_as_many_models_as_parameters_are_no_symmetric_matrix():
    """K = dim: K models go down as a whole, not as a triangle."""
    result = ifca(small_federation([9, 7, 8, 12]), n_clusters=3, rounds=2)
    assert result.bytes_down == 8 * 4 * 3 * 3 * (2 + 1)


def test_a_ledger_adds_up_rounds():
    each = Exchange(5, sends=((3,), ()), receives=((3,),), delivers=True)
    ledger = each.over(3)
    assert ledger.up.tolist() == [8 * 5 * 4] * 3
    assert ledger.down.tolist() == [8 * 5 * 3] * 3
    assert (ledger.total_up, ledger.total_down) == (8 * 5 * 12, 8 * 5 * 12)
    assert (each.over(0).total_up, each.over(0).total_down) == (0, 8 * 5 * 3)


def test_stops_at_the_first_round_that_matches_the_error():
    """Table 3's rule: rounds until the NMSE of the one-shot method is matched."""
    federation = linear_federation(40, 400, n_clusters=4, seed=0)
    target = run("odcl-km++", federation).nmse()
    call = {"step_size": 0.05, "seed": 1}
    stopped = run("ifca-near", federation, stop_at=target, rounds=1000, **call)
    assert stopped.history.reached
    t = stopped.n_rounds
    assert 1 < t < 1000
    error = run("ifca-near", federation, rounds=t + 5, **call).history.error
    assert (error[:t] > target).all()
    assert error[t] <= target
    assert_allclose(stopped.history.error, error[: t + 1])
    never = run("ifca-near", federation, stop_at=0.0, rounds=3, **call)
    assert (never.history.reached, never.n_rounds) == (False, 3)
    plain = Federation(federation.X, federation.y, federation.offsets, federation.users)
    with pytest.raises(ValueError, match="optima"):
        ifca(plain, n_clusters=4, stop_at=0.1)
    assert ifca(plain, n_clusters=4, rounds=2).history.error is None
    told = run("ifca-r", plain, n_clusters=4, optima=federation.optima, stop_at=1e9)
    assert told.history.reached
    assert told.n_rounds == 0


@pytest.mark.parametrize("average", ["gradients", "models"])
@pytest.mark.parametrize("step_size", [10.0, 1e6, 1e200])
def test_a_step_beyond_two_over_L_is_reported_and_leaves_numbers(average, step_size):
    federation = small_federation([9, 7, 8, 12])
    with pytest.warns(ConvergenceWarning, match="Lower step_size"):
        result = ifca(
            federation, n_clusters=2, average=average, step_size=step_size, rounds=300, seed=1
        )
    assert result.diverged
    assert np.isfinite(result.models).all()
    assert "models ran away" in result.summary()


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_the_automatic_step_descends(loss, batch_size):
    federation = small_federation([9, 7, 30, 12], logistic=loss == "logistic")
    risk = Risk(loss)
    for result in (
        fedavg(federation, rounds=50, batch_size=batch_size, risk=risk),
        ifca(federation, n_clusters=2, rounds=50, batch_size=batch_size, risk=risk),
        all_for_all(
            federation, groups=federation.groups, rounds=50, batch_size=batch_size, risk=risk
        ),
    ):
        assert not result.diverged
        assert result.history.risk[-1] < result.history.risk[0]
        if batch_size is None and result.name != "fedavg":
            assert (np.diff(result.history.risk) <= 1e-12).all()


# -- all methods together --------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_the_same_call_and_the_same_kind_of_result(name):
    federation = linear_federation(20, 40, n_clusters=4, seed=0)
    method, fast = METHODS[name], {}
    if isinstance(method.settings.get("solver"), ProjectedSGD):
        fast["solver"] = ProjectedSGD(200)
    if "rounds" in signature(method.call).parameters:
        fast["rounds"] = 5
    risk = Risk("squared", l2=1e-3, intercept=True)
    result = run(name, federation, risk=risk, seed=1, **fast)
    assert isinstance(result, BaselineResult)
    assert isinstance(result, Result)
    assert (result.name, result.risk, result.seed) == (name, risk, 1)
    assert result.models.shape == (20, 21)
    assert result.labels.shape == (20,)
    assert_array_equal(np.unique(result.labels), np.arange(result.n_clusters))
    assert result.centers.shape == (result.n_clusters, 21)
    assert len(result.history.ledger.up) == len(result.history.ledger.down) == result.n_rounds
    assert len(result.history.error) == result.n_rounds + 1
    assert np.isfinite(result.nmse())
    assert name in result.summary()
    assert f"{result.n_rounds} round" in result.summary()


@pytest.mark.parametrize(
    "name",
    [
        "ifca-r",
        "ifca-near/stochastic",
        "fedavg",
        "ifca-1/model-averaging",
        "all-for-all",
        "odcl-km++",
    ],
)
def test_the_seed_decides_and_the_order_of_users_does_not(name):
    federation = linear_federation(20, 40, n_clusters=4, seed=0)
    options = {} if name.startswith("odcl") else {"rounds": 8}
    first = run(name, federation, seed=3, **options)
    assert_array_equal(first.models, run(name, federation, seed=3, **options).models)
    order = np.random.default_rng(0).permutation(20)
    shuffled = run(
        name,
        federation.take(order),
        groups=federation.groups[order],
        optima=federation.optima[order],
        seed=3,
        **options,
    )
    assert_allclose(shuffled.models, first.models[order], rtol=1e-9, atol=1e-11)
    assert same_partition(shuffled.labels, first.labels[order])
    if name.startswith("ifca"):
        assert not np.allclose(run(name, federation, seed=4, **options).models, first.models)


def test_methods_stand_in_the_papers_order_on_the_linear_set_up():
    """Figure 1: the oracles and ODCL together, then the local models, then one model for all."""
    federation = linear_federation(100, 100, n_clusters=10, seed=0)
    error = {
        name: run(name, federation).nmse()
        for name in ("local", "naive", "oracle-averaging", "cluster-oracle", "odcl-km", "odcl-km++")
    }
    assert error["cluster-oracle"] < error["oracle-averaging"]
    assert_allclose(error["odcl-km"], error["oracle-averaging"], rtol=1e-9)
    assert_allclose(error["odcl-km++"], error["oracle-averaging"], rtol=1e-9)
    assert 5 * error["oracle-averaging"] < error["local"] < 0.1 * error["naive"]


def test_errors_fall_as_1_over_n_and_averaging_gains_the_size_of_the_cluster():
    """Theorem 1: O(1 / n_i) alone, O(1 / (n |C_k|)) together; |C_k| = 10 here."""
    sizes = np.array([100, 200, 400, 800])
    error = {name: np.zeros(4) for name in ("local", "oracle-averaging")}
    for name, e in error.items():
        for j, n in enumerate(sizes):
            runs = [linear_federation(100, int(n), n_clusters=10, seed=s) for s in range(3)]
            e[j] = np.mean([run(name, federation).nmse() for federation in runs])
    # n - d - 1 in place of n: the exact factor of least squares with Gaussian features.
    effective = np.log(sizes - 21)
    for e in error.values():
        slope = np.polyfit(effective, np.log(e), 1)[0]
        assert -1.15 < slope < -0.85
    # 300 users of 20 numbers a point: a few per cent of noise.
    assert_allclose(error["local"] / error["oracle-averaging"], 10, rtol=0.2)


def test_our_default_is_odcl_itself():
    federation = linear_federation(20, 60, n_clusters=4, tau=0.1, seed=5)
    assert_array_equal(run("odcl", federation).models, odcl.fit(federation).models)


def test_optima_without_an_intercept_have_the_intercept_zero():
    federation = logistic_federation(8, 200, seed=0)
    result = run("oracle-averaging", federation, risk=Risk("logistic", intercept=True))
    by_hand = np.column_stack([federation.optima, np.zeros(8)])
    with pytest.raises(ValueError, match="with or without the intercept"):
        result.nmse(np.ones((8, 1)))
    assert_allclose(
        result.nmse(),
        np.mean(((result.models - by_hand) ** 2).sum(axis=1) / (by_hand**2).sum(axis=1)),
    )


def test_weighted_rows_count_as_often_as_they_say():
    rng = np.random.default_rng(0)
    federation = small_federation([9, 7, 8, 12])
    weight = rng.integers(1, 4, size=len(federation.y))
    repeat = np.repeat(np.arange(len(weight)), weight)
    owner = federation.row_user
    weighted = Federation.from_arrays(federation.X, federation.y, owner, weight=weight)
    repeated = Federation.from_arrays(federation.X[repeat], federation.y[repeat], owner[repeat])
    for name in ("cluster-oracle", "ifca-1", "fedavg"):
        options = {} if name == "cluster-oracle" else {"rounds": 5, "step_size": 0.1}
        two = [
            run(name, f, groups=federation.groups, **options).models for f in (weighted, repeated)
        ]
        assert_allclose(*two, rtol=1e-9)
    assert not run("fedavg", weighted, batch_size=2, rounds=5).diverged


def test_a_method_is_added_by_one_line_and_told_only_what_it_asks_for():
    heard = {}

    def mine(federation, **call):
        heard.update(call)
        return local(federation)

    try:
        register("mine", mine, "n_clusters", strength=3)
        federation = linear_federation(8, 30, n_clusters=4, seed=0)
        result = run("mine", federation)
        assert result.name == "mine"
        assert heard == {"n_clusters": 4, "strength": 3}
        with pytest.raises(ValueError, match="already"):
            register("mine", mine)
        plain = Federation(federation.X, federation.y, federation.offsets, federation.users)
        with pytest.raises(ValueError, match=r"Give n_clusters=\.\.\."):
            run("mine", plain)
    finally:
        METHODS.pop("mine", None)
    with pytest.raises(ValueError, match="There are: local"):
        run("mine", federation)


@pytest.fixture
def registered():
    """Methods registered in a test are forgotten after it."""
    before = dict(METHODS)
    yield register
    METHODS.clear()
    METHODS.update(before)


def test_a_method_may_give_what_fit_gives_or_labels_and_models(registered):
    federation = linear_federation(8, 30, n_clusters=4, seed=0)

    def alone(federation, *, seed=0, **call):
        models = odcl.fit(federation, seed=seed).local.theta
        labels = ["b", "a"] * 4
        return make_result(
            federation, labels, models, rounds=3, bytes_up=10, bytes_down=7, options=call
        )

    registered("alone", alone)
    registered("default", lambda federation, **call: odcl.fit(federation, **call))
    one, two = run("alone", federation, seed=1, trick=2), run("default", federation)
    assert (one.n_rounds, one.bytes_up, one.bytes_down, one.n_clusters) == (3, 10, 7, 2)
    assert one.options["trick"] == 2
    assert_array_equal(one.history.ledger.up, [3, 3, 4])
    assert_array_equal(one.labels, [0, 1] * 4)
    assert_allclose(one.nmse(), run("local", federation).nmse(), rtol=1e-12)
    assert two.name == "default"
    assert_array_equal(two.models, odcl.fit(federation).models)
    assert "alone: 8 users, 2 clusters, 3 rounds" in one.summary()
    registered("peeks", lambda federation, *, groups, **call: odcl.fit(federation), "groups")
    assert run("peeks", federation).told == ("the true groups",)
    with pytest.raises(ValueError, match="NaN"):
        make_result(federation, one.labels, one.models * np.nan, rounds=1, bytes_up=0, bytes_down=0)
    with pytest.raises(ValueError, match=r"one model of finite numbers per user, \(8, 20\)"):
        make_result(federation, [0] * 8, np.ones((8, 3)), rounds=1, bytes_up=0, bytes_down=0)


def test_what_is_wrong_with_a_method_or_a_call_is_said(registered):
    federation = linear_federation(8, 30, n_clusters=4, seed=0)
    registered("array", lambda federation, **call: np.ones((8, 20)))
    with pytest.raises(TypeError, match=r"gave back a ndarray.*make_result"):
        run("array", federation)
    with pytest.raises(TypeError, match="is a str, not a function"):
        registered("word", "mine")
    with pytest.raises(ValueError, match="not 'k'"):
        registered("needy", local, "k")
    with pytest.raises(ValueError, match="did you mean 'odcl-km"):
        run("odcl-km+", federation)
    with pytest.raises(TypeError, match=r"Federation\.from_arrays"):
        run("ifca-1", [1, 2])
    with pytest.raises(TypeError, match=r"ifca-1 takes no step=\. It takes n_clusters, average"):
        run("ifca-1", federation, step=3)
    with pytest.raises(
        TypeError, match=r"local takes no rounds=\. It takes risk, seed, solver, n_jobs"
    ):
        run("local", federation, rounds=3)
    registered("strict", lambda federation: None)
    with pytest.raises(TypeError, match=r"accept \*\*options"):
        run("strict", federation, seed=1)
    bare = federation.take(np.arange(8))
    with pytest.raises(ValueError, match=r"Give groups="):
        run("oracle-averaging", bare)


def test_a_method_that_is_still_on_its_way_says_so():
    federation = linear_federation(20, 40, n_clusters=4, seed=0)
    short, long = (run("all-for-all", federation, rounds=T) for T in (5, 2000))
    assert short.unfinished
    assert "still falling" in short.summary()
    assert not long.unfinished
    assert "still falling" not in long.summary()
    assert not run("odcl", federation).unfinished
    assert repr(short) == f"<BaselineResult: {short.summary()}>"


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "baselines.md"


def test_the_documentation_lists_every_method():
    page = PAGE.read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("| `")]
    named = [name for line in table for name in re.findall("`([^`]+)`", line.split("|")[1])]
    assert sorted(named) == sorted(METHODS)


def test_the_documentations_example_is_what_comes_out():
    page = PAGE.read_text(encoding="utf-8")
    federation = linear_federation(100, 100, n_clusters=10)
    for name in ("local", "naive", "oracle-averaging", "odcl-km++", "odcl"):
        assert f"\n{run(name, federation).summary()}\n" in page


def test_oracles_refuse_groups_of_another_size():
    federation = linear_federation(8, 30, n_clusters=4, seed=0)
    with pytest.raises(ValueError, match="told the true groups"):
        oracle_averaging(federation, groups=[0, 1])


def test_inexact_models_come_to_the_exact_error():
    federation = linear_federation(100, 100, n_clusters=10)
    exact = run("odcl-km++", federation).nmse()
    for output in ("last", "average"):
        early, late = (
            run("i-odcl-km++", federation, solver=ProjectedSGD(T, output=output)).nmse()
            for T in (1_000, 8_000)
        )
        assert early > 2 * exact
        assert late < 1.5 * exact
