"""Bends of skewed columns: in the logarithm, and only where a column is skewed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from odcl import ODCLRegressor
from odcl.data.curves import KNOTS, misfit, origin_of, with_bends
from odcl.risk.risk import Curve

DRAWS = {
    "normal": (lambda rng: rng.standard_normal(2000), False),
    "uniform": (lambda rng: rng.uniform(size=2000), False),
    "years": (lambda rng: rng.integers(1963, 1993, 2000), False),
    "normal, one value far off": (lambda rng: np.append(rng.normal(40, 12, 2000), 140), False),
    "log-normal": (lambda rng: rng.lognormal(3, 1, 2000), True),
    "exponential": (lambda rng: rng.exponential(size=2000), True),
    "counts": (lambda rng: rng.poisson(2, 2000), True),
}


def _origin(x):
    return origin_of(float(x.mean()), float(x.std()), float(x.min()), float(x.max()))


@pytest.mark.parametrize(("draw", "skewed"), DRAWS.values(), ids=DRAWS)
def test_skewed_columns_have_an_origin_beyond_their_shorter_end_and_no_others(draw, skewed):
    x = draw(np.random.default_rng(0)).astype(float)
    origin = _origin(x)
    assert (origin is not None) == skewed
    if origin is not None:
        assert origin < x.min()
        assert_allclose(_origin(-x), -origin)
        assert_allclose(_origin(5 + 1000 * x), 5 + 1000 * origin)


def test_a_line_and_bends_follow_the_logarithm_of_a_log_normal_column():
    """Both ends included: splines of the column itself leave three times as much of it."""
    x = np.random.default_rng(0).lognormal(3, 1.2, 5000)
    middle, ends = (x.mean(), x.std()), (x.min(), x.max())
    left = {}
    for origin in (None, _origin(x)):
        curve = Curve(0, (1, 2, 3, 4), *middle, ends=ends, origin=origin)
        Z = np.column_stack([np.ones(len(x)), with_bends(x[:, None], [curve])])
        residual = np.log(x) - Z @ np.linalg.lstsq(Z, np.log(x))[0]
        left[origin is None] = residual.std() / np.log(x).std()
    assert left[False] < 0.04
    assert left[False] < 0.5 * left[True]


def test_beyond_its_ends_a_skewed_column_goes_on_as_a_line():
    curve = Curve(0, (1, 2, 3, 4), 1.0, 1.0, ends=(0.0, 7.0), origin=-0.2)
    for far in ([7.0, 8.0, 9.0], [-2.0, -1.0, 0.0]):
        bends = with_bends(np.array(far)[:, None], [curve])[:, 1:]
        assert np.isfinite(bends).all()
        assert_allclose(np.diff(bends, 2, axis=0), 0, atol=1e-12)


def test_an_origin_within_the_ends_of_a_column_is_refused():
    for origin, ends in ((0.5, (0.0, 7.0)), (-0.2, None)):
        with pytest.raises(ValueError, match="not beyond its ends"):
            Curve(0, (1, 2), 1.0, 1.0, ends=ends, origin=origin)


def test_users_are_no_groups_because_prices_are_skewed():
    """The effect is linear in the logarithm: splines of the price itself led to four groups."""
    rng, users = np.random.default_rng(0), np.repeat(np.arange(60), 30)
    price, level = rng.lognormal(3, 1, 1800), rng.normal(0, 0.7, 60)
    y = level[users] + np.log(price) + rng.standard_normal(1800)
    model = ODCLRegressor().fit(pd.DataFrame({"price": price}), y, users=users)
    assert model.n_clusters_ == 1
    grid = np.quantile(price, [0.1, 0.25, 0.5, 0.75, 0.9])
    guess = model.predict(
        pd.DataFrame({"price": np.repeat(grid, 60)}), users=np.tile(users[::30], 5)
    )
    # A standard error of the common curve is about .06 there.
    assert_allclose(guess.reshape(5, 60).mean(axis=1) - level.mean(), np.log(grid), atol=0.2)


def test_one_row_per_user_is_fitted_with_curves():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((400, 2)), columns=["x", "z"])
    y = X["x"] + np.abs(X["z"]) + 0.5 * rng.standard_normal(400)
    model = ODCLRegressor().fit(X, y, users=np.arange(400))
    assert "z~1" in model.coefficients().columns


@pytest.mark.parametrize(("effect", "bent"), [((0, 2, 1, 3), True), ((0, 1, 2, 3), False)])
def test_four_doses_may_act_in_a_curve(effect, bent):
    rng, users = np.random.default_rng(0), np.repeat(np.arange(40), 8)
    dose, level = np.tile([1.0, 2.0, 3.0, 4.0], 80), rng.normal(0, 2, 40)
    truth = level[users] + np.array(effect)[dose.astype(int) - 1]
    y = truth + 0.3 * rng.standard_normal(320)
    model = ODCLRegressor().fit(pd.DataFrame({"dose": dose}), y, users=users)
    assert ("dose~1" in model.coefficients().columns) == bent
    guess = model.predict(pd.DataFrame({"dose": dose}), users=users)
    assert (
        np.abs(guess - truth).mean() < 0.15
    )  # a level's standard error is .1, a line is off by .8


def test_what_bends_cannot_follow_is_the_rest_of_a_gaussian_process():
    """Its covariance is that of a twice integrated white noise, whose size a first bend tells.

    Between the outer knots bends are its least squares under the standard normal; beyond them it
    is known at the knots.
    """
    curve, start = Curve(0, (1, 2, 3, 4)), -9.0

    def covariance(a, b):
        near, far = np.minimum.outer(a - start, b - start), np.maximum.outer(a - start, b - start)
        return near**2 * (3 * far - near) / 6

    fine = np.linspace(KNOTS[0], KNOTS[-1], 4001)
    first = with_bends(fine[:, None], [curve])[:, 1]
    size = (np.diff(first, 2) ** 2).sum() / (fine[1] - fine[0]) ** 3

    z = np.linspace(-6, 6, 1201)
    D = np.column_stack([np.ones(len(z)), with_bends(z[:, None], [curve])])
    W = D * np.exp(-(z**2) / 2)[:, None]
    rest = np.eye(len(z)) - D @ np.linalg.solve(D.T @ W, W.T)
    left = np.einsum("ij,jk,ik->i", rest, covariance(z, z), rest)
    some = np.abs(z) < KNOTS[-1]
    assert_allclose(misfit(z, curve)[some], size * left[some], rtol=0.02)

    far = np.array([-4.0, 2.5, 3.5])
    free = 1e6 * (1 + np.outer(KNOTS, KNOTS))  # any line goes
    K, lines = covariance(KNOTS, far) + 1e6 * (1 + np.outer(KNOTS, far)), 1e6 * (1 + far**2)
    left = np.diag(covariance(far, far)) + lines
    left = left - (K * np.linalg.solve(covariance(KNOTS, KNOTS) + free, K)).sum(axis=0)
    assert_allclose(misfit(far, curve, inside=False), size * left, rtol=1e-3)
    assert_allclose(misfit(KNOTS, curve, inside=False), 0, atol=1e-5)


def test_bands_hold_a_bell_between_the_knots_and_beyond_them():
    held = []
    for seed in range(3):
        rng, users = np.random.default_rng(seed), np.repeat(np.arange(40), 50)
        x = rng.normal(15, 10, 2000)
        y = 50 * np.exp(-(((x - 18) / 8) ** 2) / 2) + rng.normal(0, 10, 40)[users]
        X = pd.DataFrame({"temperature": x})
        model = ODCLRegressor().fit(X, y + rng.normal(0, 8, 2000), users=users)
        found = model.curve("temperature", points=41)
        bell = 50 * np.exp(-(((found["x"] - 18) / 8) ** 2) / 2)
        truth = bell - (50 * np.exp(-(((x - 18) / 8) ** 2) / 2)).mean()
        held.append((found["low"] <= truth) & (truth <= found["high"]))
    assert np.mean(held) >= 0.85  # without what bends cannot follow: .27
