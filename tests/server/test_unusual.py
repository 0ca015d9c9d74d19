"""Users in another unit, and mistyped numbers: they hurt nobody but their sender, and are named."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose

from odcl import Federation, Method, ODCLClassifier, ODCLRegressor, Risk, fit
from odcl.clustering.labels import same_partition
from odcl.data.notices import unusual_notices
from odcl.data.scaling import Scaling
from odcl.data.unusual import ColumnMoments, unusual_users
from odcl.server.columns import unusual_sites

N_USERS, N_ROWS = 42, 20
CLASSES = {"logistic": ODCLClassifier}


def world(loss: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two clear groups: features, targets, whose rows they are, and the users' groups."""
    rng = np.random.default_rng(seed)
    group, owner = np.arange(N_USERS) % 2, np.repeat(np.arange(N_USERS), N_ROWS)
    X = rng.standard_normal((len(owner), 3))
    models = np.array([[1.5, -1.0, 0.5, 0.3], [-1.5, 1.0, -0.5, 1.0]])[group[owner]]
    eta = (X * models[:, :3]).sum(axis=1) + models[:, 3]
    if loss == "logistic":
        y = (rng.random(len(eta)) < 1 / (1 + np.exp(-2 * eta))).astype(float)
    elif loss == "poisson":
        y = rng.poisson(np.exp(0.5 * eta)).astype(float)
    else:
        y = eta + 0.5 * rng.standard_normal(len(eta))
    return X, y, owner, group


def kelvin(X, y, own):
    X[own < 6, 0] += 273.15


def millimeters(X, y, own):
    X[own < 6, 0] *= 300


def far_away(X, y, own):
    X[np.isin(own, [3, 8, 15]), 1] += 1e4


def missing_code(X, y, own):
    y[5 * N_ROWS + 2] = 99999.0


def missing_feature(X, y, own):
    X[5 * N_ROWS + 2, 0] = 99999.0


def other_currency(X, y, own):
    y[own < 6] *= 1000


FAULTS = [kelvin, millimeters, far_away, missing_feature]
WORLDS = [
    *((loss, fault) for loss in ("squared", "huber", "logistic", "poisson") for fault in FAULTS),
    *((loss, missing_code) for loss in ("squared", "huber", "poisson")),
    ("squared", other_currency),
]


def fitted(loss, X, y, owner):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CLASSES.get(loss, ODCLRegressor)(loss=loss).fit(X, y, users=owner)
    coef = model.coef_.reshape(len(model.users_), -1)
    return model, np.column_stack([coef, model.intercept_.ravel()])


@pytest.mark.parametrize(("loss", "fault"), WORLDS, ids=lambda x: getattr(x, "__name__", x))
def test_a_few_users_in_another_unit_change_nobody_elses_model(loss, fault):
    """Everybody else's models are about as far from the truth as they are without these users."""
    X, y, owner, group = world(loss, seed=2)
    clean, spoiled = (X.copy(), y.copy()), (X.copy(), y.copy())
    fault(*spoiled, owner)
    changed = np.any((spoiled[0] != clean[0]).any(axis=1) | (spoiled[1] != clean[1]), axis=None)
    assert changed
    rows = (spoiled[0] != clean[0]).any(axis=1) | (spoiled[1] != clean[1])
    odd = np.isin(np.arange(N_USERS), owner[rows])
    usual = ~odd[owner]
    alone = fitted(loss, clean[0][usual], clean[1][usual], owner[usual])[1]
    model, together = fitted(loss, *spoiled, owner)
    assert same_partition(model.labels_[~odd], group[~odd])
    scale = np.sqrt((alone**2).mean())
    gap = np.sqrt(((together[~odd] - alone) ** 2).mean())
    assert gap < 0.1 * scale


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_they_are_named_in_a_warning_and_a_mistyped_cell_with_its_row(loss):
    told = {}
    for fault in (kelvin, millimeters, missing_feature, missing_code):
        X, y, owner, _ = world(loss, seed=1)
        fault(X, y, owner)
        order = np.random.default_rng(0).permutation(len(y))
        row = 1 + int(np.flatnonzero(order == 5 * N_ROWS + 2)[0])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            ODCLRegressor(loss=loss).fit(X[order], y[order], users=owner[order])
        told[fault] = " ".join(str(one.message) for one in seen)
        if fault in (missing_feature, missing_code):
            assert f"row {row}, user 5: " in told[fault]
            assert "is 99,999, and " in told[fault]
    assert "6 users (0, 1, 2, ...): x0 lies 273 away from everybody else's" in told[kelvin]
    assert "x0 varies 2" in told[millimeters]


def test_ordinary_users_are_not_called_odd():
    """Skewed columns, rare levels, constants within users, levels far apart and one row each."""
    rng = np.random.default_rng(0)
    own = np.repeat(np.arange(200), rng.integers(1, 12, 200))
    n = len(own)
    size = np.exp(1.5 * rng.standard_normal(200))[own]
    columns = [
        size * np.exp(0.5 * rng.standard_normal(n)),  # turnover
        size,  # floor space
        (rng.random(n) < 0.01).astype(float),  # a rare holiday
        rng.poisson(0.05, n).astype(float),
        np.exp(rng.standard_normal(n)),
    ]
    y = 50 * rng.standard_normal(200)[own] + rng.standard_normal(n)
    rows = Federation.from_arrays(np.column_stack(columns), y, own)
    assert unusual_notices(rows, [f"x{j}" for j in range(5)] + ["y"], int) == []


def test_a_column_that_is_constant_within_most_users_judges_nobody():
    own = np.repeat(np.arange(30), 10)
    x = np.where(own < 3, 1e6, 1.0) + 0.0
    rows = Federation.from_arrays(np.column_stack([x, np.arange(300.0) % 7]), x, own)
    assert not unusual_users(ColumnMoments.of(rows)).users.any()


def test_users_who_say_nothing_of_their_rows_are_not_judged():
    """One row each, kept at home: their averages are zeros, and years are far from zero."""
    X, y, owner, _ = world("squared", seed=0)
    X[:, 0] = 2000 + np.arange(len(X)) % 7
    kept = (owner >= 3) | (np.arange(len(y)) % N_ROWS == 0)
    federation = Federation.from_arrays(X[kept], y[kept], owner[kept])
    result = fit(federation, Risk(intercept=True), Method(short_terms=False))
    assert "unlike everybody else's" not in result.step.reason


def test_nobody_is_odd_where_a_quarter_of_the_users_would_be():
    X, y, owner, _ = world("squared", seed=0)
    X[owner < 12, 0] += 273.15
    rows = Federation.from_arrays(X, y, owner)
    assert not unusual_users(ColumnMoments.of(rows)).users.any()
    X[owner < 12, 0] -= 273.15
    X[owner < 9, 0] += 273.15
    rows = Federation.from_arrays(X, y, owner)
    assert unusual_users(ColumnMoments.of(rows)).users.sum() == 9


def test_of_many_users_those_outside_take_no_part_in_the_passes(monkeypatch):
    """A streamed step finds limits on its sample and keeps to them for everybody."""
    monkeypatch.setattr("odcl.server.chunks.MIXED_SAMPLE", 30)
    X, y, owner, group = world("squared", seed=3)
    clean = fit(Federation.from_arrays(X, y, owner), Risk(intercept=True))
    X[np.isin(owner, [1, 8, 20, 33]), 0] += 1e5
    step = fit(Federation.from_arrays(X, y, owner), Risk(intercept=True))
    usual = ~np.isin(np.arange(N_USERS), [1, 8, 20, 33])
    assert same_partition(step.labels[usual], group[usual])
    assert_allclose(step.models[usual], clean.models[usual], atol=0.1)


def test_with_a_given_number_of_groups_odd_users_get_no_group_of_their_own():
    X, y, owner, _ = world("squared", seed=0)
    kelvin(X, y, owner)
    federation = Federation.from_arrays(X, y, owner)
    assert fit(federation, Risk(intercept=True), Method("auto:2")).n_clusters == 2
    told = fit(federation, Risk(intercept=True)).step.reason
    assert "6 users with columns unlike everybody else's make up 2 groups of their own." in told


@pytest.mark.parametrize("per_site", [1, 8])
@pytest.mark.parametrize(
    ("column", "change", "says"),
    [
        (0, lambda x: 365 * x, "site 'south': a varies 3\\d\\d times as much as everybody else's"),
        (1, lambda x: x / 100, "site 'south': b varies 0.0\\d+ times as much as everybody else's"),
        (2, lambda x: x + 273.15, "site 'south': c lies 27\\d away from everybody else's"),
        (3, lambda y: 24 * y, "site 'south': y varies 2\\d(.\\d)? times as much"),
        (0, lambda x: 3 * x + 2, None),
    ],
)
def test_of_three_sites_the_one_in_another_unit_is_told(per_site, column, change, says):
    rng = np.random.default_rng(0)
    table = rng.standard_normal((600, 4)) + np.array([0, 3, 1, 0])
    table[:, 3] += table[:, :3].sum(axis=1)
    owner = np.arange(600) % (3 * per_site)
    south = owner % 3 == 1
    table[south, column] = change(table[south, column])
    found = fit(Federation.from_arrays(table[:, :3], table[:, 3], owner), Risk(intercept=True))
    sites = np.array(["east", "south", "west"])[found.uploads.users % 3]
    lines = unusual_sites(found.uploads, Scaling.none(3), "abc", "y", sites)
    assert len(lines) == (says is not None)
    assert says is None or re.match(says, lines[0])
    assert not unusual_sites(found.uploads, Scaling.none(3), "abc", "y", sites == "south")
