"""Rivals are what they are called."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression

from odcl import Federation
from odcl.evaluate.rivals import own_intercepts
from odcl.evaluate.scores import Comparison
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


def test_a_better_rival_is_named_with_its_option_and_a_tie_is_not():
    rng = np.random.default_rng(0)
    base = rng.uniform(1, 2, 50)
    scores = {"local": base + 1, "mixed": base - 0.2 + 0.01 * rng.standard_normal(50), "odcl": base}
    told = verdict(Comparison("RMSE", scores, 500, 50), shell=True)
    assert "odcl is not the best here: mixed model without groups" in told
    assert "--clusters auto:1" in told
    scores["mixed"] = base + rng.standard_normal(50) - 0.05
    assert "not the best" not in verdict(Comparison("RMSE", scores, 500, 50))
    right = {"local": base - 0.1, "odcl": base, "paper": base + 0.1}
    assert Comparison("accuracy", right, 9, 50).beaten_by("odcl") == "paper"
