"""Predictions: what a new count may be."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import nbinom, poisson

from odcl import ODCLRegressor
from odcl.local.predict import count_interval, count_std


def test_of_a_known_rate_the_ends_are_poissons_quantiles():
    rates = np.array([1e-3, 0.4, 3.0, 17.0, 5e3, 1e7])
    low, high = count_interval(np.log(rates), np.zeros(6), 0.9)
    assert_array_equal(low, poisson.ppf(0.05, rates))
    assert_array_equal(high, poisson.ppf(0.95, rates))
    assert_allclose(count_std(np.log(rates), np.zeros(6)), np.sqrt(rates))


def test_counts_that_scatter_more_have_the_quantiles_of_a_negative_binomial_law():
    rates, times = np.array([1e-3, 0.4, 3.0, 17.0, 5e3]), 4.0
    low, high = count_interval(np.log(rates), np.zeros(5), 0.9, times)
    law = nbinom(rates / (times - 1), 1 / times)
    assert_array_equal(low, law.ppf(0.05))
    assert_array_equal(high, law.ppf(0.95))
    assert_allclose(count_std(np.log(rates), np.zeros(5), times), law.std())


def test_an_uncertain_rate_is_averaged_over():
    rng = np.random.default_rng(0)
    z, S = np.array([0.0, 2.0, 5.0]), np.array([0.5, 0.1, 0.02])
    low, high = count_interval(z, S, 0.8)
    draws = rng.poisson(np.exp(z + np.sqrt(S) * rng.normal(size=(400_000, 3))))
    assert_allclose(count_std(z, S), draws.std(axis=0), rtol=0.02)
    # The smallest count at which each tail is reached; draws are good to half a percent.
    for side, p in ((low, 0.1), (high, 0.9)):
        assert ((draws <= side).mean(axis=0) >= p - 0.005).all()
        assert ((draws <= side - 1).mean(axis=0) <= p + 0.005).all()


def test_intervals_of_counts_hold_what_they_promise():
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(40), 24)
    X = rng.normal(size=(len(users), 2))
    level = rng.normal(1.0, 0.5, 40)
    y = rng.poisson(np.exp(level[users] + X @ [0.4, -0.2]))
    fit = np.arange(len(y)) % 3 > 0
    model = ODCLRegressor(loss="poisson").fit(X[fit], y[fit], users[fit])
    low, high = model.predict_interval(X[~fit], users=users[~fit])
    # Counts lie on a grid, so that an interval holds rather more than it promises.
    assert 0.88 <= ((y[~fit] >= low) & (y[~fit] <= high)).mean() <= 0.985
    mean, std = model.predict(X[~fit], users[~fit], return_std=True)
    assert 0.8 < (((y[~fit] - mean) / std) ** 2).mean() < 1.2


def test_intervals_of_overdispersed_counts_hold_what_they_promise():
    """Rows scatter four times as much as Poisson's: its intervals would hold 60 % of them."""
    rng = np.random.default_rng(2)
    users = np.repeat(np.arange(60), 24)
    X = rng.normal(size=(len(users), 2))
    rate = 5 * np.exp(rng.normal(0, 0.3, 60)[users] + X @ [0.4, -0.2])
    y = rng.negative_binomial(rate / 3, 0.25)
    fit = np.arange(len(y)) % 3 > 0
    model = ODCLRegressor(loss="poisson").fit(X[fit], y[fit], users[fit])
    low, high = model.predict_interval(X[~fit], 0.9, users[~fit])
    assert 0.87 < ((low <= y[~fit]) & (y[~fit] <= high)).mean() < 0.97  # ends are counts
