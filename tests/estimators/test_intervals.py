"""Intervals follow the residuals of rows that were left out, over all users."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import t as student

import odcl
from odcl import ODCLRegressor
from odcl.fitted import tails
from odcl.fitted.persist import MODEL
from odcl.fitted.tails import Tails
from tests.helpers import refusal, seal

NORMAL = Tails()


def world(noise, n_users=40, n_rows=40, seed=0):
    """Rows to fit and new rows of the same users, whose levels and slopes differ."""
    rng = np.random.default_rng(seed)
    users = np.tile(np.repeat(np.arange(n_users), n_rows), 2)
    X = rng.standard_normal((len(users), 2))
    theta = rng.standard_normal((n_users, 3)) * [1, 0.3, 0.3]
    y = theta[users, 0] + (theta[users, 1:] * X).sum(axis=1) + noise(rng, len(users))
    half = len(users) // 2
    return (X[:half], y[:half], users[:half]), (X[half:], y[half:], users[half:])


def heavy(rng, n):
    return rng.standard_t(3, n)


def normal(rng, n):
    return rng.standard_normal(n)


def lines(**more):
    return ODCLRegressor(clusterer="auto:1", curves=False, **more)


def fitted(rows, **more):
    X, y, users = rows
    return lines(**more).fit(X, y, users=users)


def covered(model, rows, coverage):
    X, y, users = rows
    low, high = model.predict_interval(X, coverage, users=users)
    return float(np.mean((low <= y) & (y <= high)))


@pytest.mark.parametrize("weighed", [False, True])
def test_a_residual_left_out_is_that_of_the_mixed_model_without_the_row(weighed, monkeypatch):
    (X, y, users), _ = world(normal, 6, 8, seed=2)
    w = np.random.default_rng(2).integers(1, 4, len(y)) if weighed else np.ones(len(y), int)
    asked, real = {}, tails._scores
    monkeypatch.setattr(tails, "_scores", lambda *a: asked.setdefault("scores", real(*a)))
    model = lines().fit(X, y, users=users, sample_weight=w if weighed else None)
    assert model.fitted_.newcomers.tails is not None
    mixture = model.fitted_.mixed
    at, T, s2 = mixture.coordinates, mixture.spread.matrix, mixture.noise.s0
    assert T.any()
    assert mixture.noise.common
    scaling = model.fitted_.scaling
    Z = at.design((X - scaling.shift) / scaling.scale)
    u, expected = at.target(y, Z), []
    for row in range(len(y)):  # every other row, as many times as it weighs
        rest = np.repeat(np.arange(len(y)), np.where(np.arange(len(y)) == row, 0, w))
        A, own = Z[rest], users[rest] == users[row]
        S = s2 * np.eye(len(rest)) + (A @ T @ A.T) * (users[rest][:, None] == users[rest])
        inverse = np.linalg.inv(S)
        C = np.linalg.inv(A.T @ inverse @ A)
        c = C @ A.T @ inverse @ u[rest]
        pull = (Z[row] @ T @ A.T) * own @ inverse
        away = Z[row] - pull @ A
        variance = s2 + Z[row] @ T @ Z[row] - pull @ ((A @ T @ Z[row]) * own) + away @ C @ away
        off = abs(u[row] - Z[row] @ c - pull @ (u[rest] - A @ c))
        expected.append(off / np.sqrt(variance))
    expected = -student.ppf(student.cdf(-np.sort(expected), mixture.noise.dof), np.inf)
    assert_allclose(asked["scores"][asked["scores"].argsort()], expected, rtol=1e-4)


def test_heavy_tails_make_half_intervals_narrower_and_wide_ones_wider():
    rows, new = world(heavy)
    model = fitted(rows)
    assert model.fitted_.newcomers.tails.nu <= 8
    for coverage in (0.5, 0.8, 0.9, 0.95):
        assert covered(model, new, coverage) == pytest.approx(coverage, abs=0.035)
    vars(model.fitted_.newcomers)["tails"] = NORMAL
    assert covered(model, new, 0.5) > 0.56


def test_normal_noise_leaves_intervals_as_they_are_assumed():
    rows, (X, _, users) = world(normal)
    model = fitted(rows)
    assert model.fitted_.newcomers.tails == NORMAL
    low, high = model.predict_interval(X, 0.9, users=users)
    std, dof = model.predict(X, users=users, return_std=True)[1], model.fitted_.users.dof[0]
    assert_allclose(high - low, 2 * student.ppf(0.95, dof) * std, rtol=1e-10)


def test_the_law_is_saved_pickled_and_kept_when_curves_are_closed(tmp_path):
    (X, y, users), _ = world(heavy, 20, 20)
    model = ODCLRegressor(clusterer="auto:1").fit(X, y, users=users)
    model.save(tmp_path / "model")
    model.report(tmp_path / "page.html")
    assert "intervals of predictions do, too" in (tmp_path / "page.html").read_text()
    found = model.predict_interval(X, 0.8, users=users)
    assert model.fitted_.newcomers.tails != NORMAL
    for other in (ODCLRegressor.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert_array_equal(other.predict_interval(X, 0.8, users=users), found)


def test_the_order_of_users_and_rows_changes_no_interval():
    (X, y, users), _ = world(heavy, 20, 20)
    order = np.random.default_rng(1).permutation(len(y))
    one, other = fitted((X, y, users)), fitted((X[order], y[order], users[order]))
    assert_allclose(one.fitted_.newcomers.tails, other.fitted_.newcomers.tails, rtol=1e-6)


def test_users_who_sell_nothing_say_nothing_of_how_others_scatter():
    (X, y, users), (X_new, y_new, users_new) = world(normal)
    closed = 15
    y = np.where(users < closed, 0.0, y)
    model = fitted((X, y, users))
    some = users_new >= closed
    for coverage in (0.5, 0.9, 0.95):
        found = covered(model, (X_new[some], y_new[some], users_new[some]), coverage)
        assert found == pytest.approx(coverage, abs=0.04)


def test_users_who_are_set_aside_say_nothing_of_how_others_scatter():
    (X, y, users), _ = world(normal)
    rng = np.random.default_rng(5)
    y = np.where(users < 2, 1e4 + 1e3 * rng.standard_t(1, len(y)), y)
    with pytest.warns(UserWarning, match="take no part"):
        model = fitted((X, y, users), robust=True)
    assert {one.user for one in model.fitted_.outliers if one.set_aside} == {0, 1}
    assert model.fitted_.newcomers.tails == NORMAL


def test_few_rows_tell_of_no_law(monkeypatch):
    rows, _ = world(lambda rng, n: rng.standard_t(2, n), 4, 7, seed=2)
    assert fitted(rows).fitted_.newcomers.tails == NORMAL
    monkeypatch.setattr(tails, "FEWEST", 28)
    assert fitted(rows).fitted_.newcomers.tails != NORMAL


@pytest.mark.parametrize("n_rows", [5, 12])
def test_users_of_unequal_noise_leave_a_normal_law(n_rows):
    """A row is in its user's own noise: what it leaves out of that is left out as well."""
    wider = []
    for seed in range(4):
        own = np.exp(0.5 * np.random.default_rng(seed).standard_normal(60))
        rows, _ = world(
            lambda rng, n, own=own: np.tile(np.repeat(own, n_rows), 2) * rng.standard_normal(n),
            60,
            n_rows,
            seed,
        )
        model = fitted(rows)
        assert not model.fitted_.mixed.noise.common
        wider.append(model.fitted_.newcomers.tails.half_width(np.array([20.0]), 0.9)[0])
    assert np.mean(wider) == pytest.approx(student.ppf(0.95, 20), rel=0.05)


@pytest.mark.parametrize("nu", [np.inf, 4.0])
def test_half_widths_are_those_of_the_law(nu):
    law = Tails(0.8, nu)
    score = 0.8 * student.ppf(0.95, nu)
    assert_allclose(law.half_width(np.array([1e6]), 0.9), score, rtol=1e-5)
    assert (law.half_width(np.array([5.0]), 0.9) > score).all()
    assert np.isfinite(law.half_width(np.array([1e6]), 1 - 1e-9)).all()


def test_one_row_per_user_tells_no_model_from_noise():
    """A line through a sine: likelihood takes what it misses for differences between users."""
    rng = np.random.default_rng(3)
    x = 1.5 * rng.standard_normal((300, 2))
    y = np.sin(x) + 0.5 * rng.standard_normal(x.shape)
    users = np.arange(300)
    model = lines().fit(x[:, :1], y[:, 0], users=users)
    assert model.fitted_.mixed.spread.matrix.any()
    low, high = model.predict_interval(x[:, 1:], 0.9, users=users)
    assert np.mean((low <= y[:, 1]) & (y[:, 1] <= high)) > 0.8
    with pytest.warns(UserWarning, match="average users"):
        unknown = np.diff(model.predict_interval(x[:, 1:], 0.9, users=users + 1000), axis=0)[0]
    assert_allclose(high - low, unknown)


def test_rows_of_a_sample_are_asked_where_there_are_many(monkeypatch):
    rows, _ = world(heavy)
    every = fitted(rows).fitted_.newcomers.tails
    monkeypatch.setattr(tails, "MOST", 800)
    some = fitted(rows).fitted_.newcomers.tails
    assert some != every
    assert some.scale == pytest.approx(every.scale, rel=0.15)


def test_a_run_from_a_table_knows_the_law_without_its_rows():
    (X, y, users), _ = world(heavy, 20, 20)
    table = pd.DataFrame({"shop": users, "a": X[:, 0], "b": X[:, 1], "sales": y})
    found = odcl.fit_table(table, user="shop", target="sales", curves=False, holdout=0)
    own = lines(users="shop").fit(table[["shop", "a", "b"]], table["sales"])
    assert own.fitted_.newcomers.tails != NORMAL
    assert_allclose(found.model.fitted_.newcomers.tails, own.fitted_.newcomers.tails, rtol=1e-6)


@pytest.mark.parametrize("damage", [[0.0, 4.0], [-1.0, 4.0], [1.0, 0.5]])
def test_a_saved_law_that_is_none_is_refused(damage, tmp_path):
    rows, _ = world(heavy, 8, 8)
    fitted(rows).save(tmp_path / "model")
    words = json.loads((tmp_path / "model" / MODEL).read_text())
    assert words["tails"] != damage
    (tmp_path / "model" / MODEL).write_text(json.dumps(words | {"tails": damage}))
    seal(tmp_path / "model")
    refusal(ODCLRegressor.load, tmp_path / "model", match="tails are")
