"""Curves that nobody asked for are looked for in rows of few users before anybody else's bend."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from odcl import Federation, ODCLClassifier, ODCLRegressor, Risk
from odcl.engines import in_process
from odcl.engines.in_process import ENOUGH_ROWS
from odcl.risk.risk import Curve


def world(bend: float, seed: int = 0, m: int = 900, n: int = 80, low: float = 0.0):
    """Users in two groups, the first column with a bell that is ``bend`` high."""
    rng = np.random.default_rng(seed)
    X, users = rng.standard_normal((m * n, 2)), np.repeat(np.arange(m), n)
    theta = rng.standard_normal((2, 2))[users % 2]
    eta = (X * theta).sum(axis=1) + bend * np.exp(-(X[:, 0] ** 2)) + low
    return X, eta, users


def looked_at(monkeypatch):
    """The columns that first looks leave, as they come."""
    answers, look = [], in_process.curves_at_first_sight

    def noted(*args, **words):
        found = look(*args, **words)
        answers.append([curve.name for curve in found])
        return found

    monkeypatch.setattr("odcl.estimators.base.curves_at_first_sight", noted)
    return answers


def test_where_few_users_show_no_bend_the_fit_is_that_of_lines(monkeypatch):
    answers, (X, eta, users) = looked_at(monkeypatch), world(0.0)
    y = eta + np.random.default_rng(1).standard_normal(len(eta))
    found = ODCLRegressor().fit(X, y, users)
    lines = ODCLRegressor(curves=False).fit(X, y, users)
    assert answers == [[]]
    assert found.risk_ == lines.risk_
    assert_array_equal(found.theta_, lines.theta_)
    assert found.fitted_.bytes_up == lines.fitted_.bytes_up  # nobody sent a bend


@pytest.mark.parametrize("kind", ["numbers", "yes or no"])
def test_a_bend_that_few_users_show_is_found_among_all(kind, monkeypatch):
    answers, (X, eta, users) = looked_at(monkeypatch), world(0.6)
    rng = np.random.default_rng(1)
    if kind == "numbers":
        model = ODCLRegressor().fit(X, eta + rng.standard_normal(len(eta)), users)
    else:
        yes = eta + rng.logistic(size=len(eta)) > 0
        model = ODCLClassifier().fit(X, yes, users)
    assert answers == [["x0"]]  # others' bends are worked out by nobody
    assert [curve.name for curve in model.fitted_.curves] == ["x0"]


def test_where_one_of_many_columns_bends_it_has_room_for_all_its_bends():
    """Of thirty columns each may have two bends; the one that shows has four."""
    X, eta, users = world(0.6)
    rng = np.random.default_rng(1)
    X = np.column_stack([X, rng.standard_normal((len(X), 28))])
    model = ODCLRegressor().fit(X, eta + rng.standard_normal(len(eta)), users)
    assert [(curve.name, len(curve.columns)) for curve in model.fitted_.curves] == [("x0", 4)]


def test_a_bend_that_few_rows_do_not_show_is_worth_less_than_a_thousandth():
    """What a first look may miss: the error without it is next to that with it."""
    X, eta, users = world(0.05)
    y = eta + np.random.default_rng(1).standard_normal(len(eta))
    X_new, eta_new, users_new = world(0.05, n=10)
    rng = np.random.default_rng(2)
    y_new = eta_new + rng.standard_normal(len(eta_new))

    def error(curves):
        model = ODCLRegressor(curves=curves).fit(X, y, users)
        return np.sqrt(np.mean((model.predict(X_new, users_new) - y_new) ** 2))

    assert error("auto") <= 1.001 * error([0])


@pytest.mark.parametrize(
    "settings", [{"curves": [0]}, {"periodic": {0: 6.0}}, {"curves": False}], ids=str
)
def test_curves_that_were_asked_for_are_looked_for_among_all(settings, monkeypatch):
    answers, (X, eta, users) = looked_at(monkeypatch), world(0.0, m=300, n=220)
    ODCLRegressor(**settings).fit(X, eta, users)
    assert answers == []


def test_all_are_asked_where_few_users_have_most_of_the_rows():
    """Then others' columns may bend where theirs do not."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(60), [1, *[1000] * 59])
    rows = Federation.from_arrays(rng.standard_normal((len(users), 1)), users * 1.0, users)
    risk = Risk("squared", 0.0, True, curves=(Curve(0, (1, 2), name="x0"),))
    assert in_process.curves_at_first_sight(lambda: rows, risk, 100_000) == risk.curves
    some = np.repeat(np.arange(400), [2] * 300 + [700] * 100)
    rows = Federation.from_arrays(rng.standard_normal((len(some), 1)), some * 1.0, some)
    assert in_process.curves_at_first_sight(lambda: rows, risk, 60_001) == risk.curves


def test_bends_of_users_own_are_found_without_a_common_one():
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(150), 40)
    x = rng.standard_normal(len(users))
    own = rng.standard_normal(150)[users] * 0.6
    y = x + own * (x**2 - 1) + rng.standard_normal(len(users))
    model = ODCLRegressor(clusterer="auto:1").fit(x[:, None], y, users)
    assert "in a curve that differs between users" in model.reason_


def test_all_rows_are_asked_where_they_are_few():
    risk = Risk("squared", 0.0, True, curves=(Curve(0, (1, 2), name="x0"),))
    look = partial(in_process.curves_at_first_sight, lambda: pytest.fail("looked"), risk)
    assert look(3 * ENOUGH_ROWS - 1) == risk.curves
