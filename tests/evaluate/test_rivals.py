"""Rivals are what they are called."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression

from odcl import Federation, Risk
from odcl.data.federation import folds
from odcl.evaluate import PENALTIES, Comparison, own_intercepts, own_models
from odcl.local.fit import solve_users
from odcl.report.text import verdict


def rows(seed=0, n_users=12, n=15):
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(n_users), n)
    X = rng.standard_normal((len(who), 3)) + who[:, None] % 3
    z = X @ [1.0, -0.5, 0.0] + rng.standard_normal(n_users)[who]
    return X, z, who, rng


def test_own_intercepts_of_numbers_are_least_squares_on_dummies():
    X, z, who, rng = rows()
    y = z + rng.standard_normal(len(z))
    predict = own_intercepts(Federation.from_arrays(X, y, who), "squared")
    dummies = np.column_stack([X, np.eye(12)[who]])
    expected = LinearRegression(fit_intercept=False).fit(dummies, y).predict(dummies)
    assert_allclose(predict(X, who), expected, rtol=1e-9)
    weight = rng.integers(1, 4, len(y)).astype(float)
    weighed = own_intercepts(Federation.from_arrays(X, y, who, weight=weight), "squared")
    twice = LinearRegression(fit_intercept=False).fit(dummies, y, sample_weight=weight)
    assert_allclose(weighed(X, who), twice.predict(dummies), rtol=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_own_intercepts_of_classes_and_counts_follow_the_users_level(loss):
    X, z, who, rng = rows(n=60)
    y = (z > 0).astype(float) if loss == "logistic" else rng.poisson(np.exp(z / 2)).astype(float)
    predicted = own_intercepts(Federation.from_arrays(X, y, who), loss)(X, who)
    if loss == "logistic":  # shares of both classes
        assert_allclose(predicted.sum(axis=1), 1)
        predicted = predicted[:, 1]
    levels = [np.mean((predicted - y)[who == user]) for user in range(12)]
    assert np.abs(levels).max() < 0.2
    assert np.mean((predicted - y) ** 2) < 0.6 * np.var(y)
    assert own_intercepts(Federation.from_arrays(X, y, who), "huber") is None


def test_own_intercepts_of_classes_count_rows_by_their_weight():
    X, z, who, rng = rows(n=30)
    y = (z + 2 * rng.standard_normal(len(z)) > 0).astype(float)
    plain, weighed = (
        own_intercepts(Federation.from_arrays(X, y, who, weight=w), "logistic")(X, who)[:, 1].mean()
        for w in (np.ones(len(y)), np.where(y > 0, 20.0, 1.0))
    )
    assert weighed > plain + 0.2


def test_own_models_weigh_penalties_on_rows_of_users_who_can_spare_one():
    """Users with a single row get a model, and have no say in the penalty."""
    X, z, who, rng = rows(n=6)
    y = z + 2 * rng.standard_normal(len(z))
    kept = (who % 4 != 1) | (np.arange(len(who)) % 6 == 0)
    few = Federation.from_arrays(X[kept], y[kept], who[kept])
    assert few.n_rows.tolist() == [6, 1, 6, 6] * 3
    l2, models = own_models(few, Risk("squared", 0.0, True))
    assert models.shape == (12, 4)
    others = few.take(np.flatnonzero(few.n_rows > 1))
    again, own = own_models(others, Risk("squared", 0.0, True))
    assert l2 == again > 0
    assert_array_equal(models[few.n_rows > 1], own)
    # The best of the penalties is that of the smallest error on the rows held out.
    fold = folds(others, 5, 0)
    error = {}
    for tried in PENALTIES:
        error[tried] = 0.0
        for part in range(5):
            out, risk = fold == part, Risk("squared", tried, True)
            theta = solve_users(others.select_rows(~out), risk).theta[others.row_user[out]]
            expected = (others.X[out] * theta[:, :3]).sum(axis=1) + theta[:, 3]
            error[tried] += ((others.y[out] - expected) ** 2).sum()
    assert l2 == min(error, key=error.__getitem__)


def test_a_better_rival_is_named_with_its_option_and_a_tie_is_not():
    rng = np.random.default_rng(0)
    base = rng.uniform(1, 2, 50)
    scores = {"local": base + 1, "mixed": base - 0.2 + 0.01 * rng.standard_normal(50), "odcl": base}
    told = verdict(Comparison("RMSE", scores, 500, 50), shell=True)
    assert "odcl is not the best here: mixed model without groups" in told
    assert "--clusters auto:1" in told
    flat = {"local": base + 1, "lines": scores["mixed"], "odcl": base, "asked": base}
    assert verdict(Comparison("RMSE", flat, 500, 50)).endswith("For it: curves=False.")
    asked = verdict(Comparison("RMSE", flat, 500, 50, ours="asked"), shell=True)
    assert asked.endswith("For it: the default settings and --no-curves.")
    scores["mixed"] = base + rng.standard_normal(50) - 0.05
    assert "not the best" not in verdict(Comparison("RMSE", scores, 500, 50))
    scores["mixed"] = base + np.resize([1.0, -1.1], 50)  # better by a twentieth, and by chance
    assert Comparison("RMSE", scores, 500, 50).beaten_by("odcl") is None
    scores["mixed"] = base + np.resize([0.1, -0.2], 50)
    assert Comparison("RMSE", scores, 500, 50).beaten_by("odcl") == "mixed"
    right = {"local": base - 0.1, "odcl": base, "paper": base + 0.1}
    assert Comparison("accuracy", right, 9, 50).beaten_by("odcl") == "paper"
