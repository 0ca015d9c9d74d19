"""Diagnosis, drift and late users where columns act in curves."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import ODCLRegressor
from odcl.data.curves import with_bends
from odcl.diagnose.own_models import own_models
from odcl.risk.risk import Curve

BENT = (Curve(0, (2, 3, 4, 5)),)


@cache
def world(own: float = 0.0, levels: float = 1.0, groups: int = 1, users: int = 30, rows: int = 24):
    """X, y, users, and the part of y that is the common curve of the first of two columns."""
    rng = np.random.default_rng(7)
    who = np.repeat(np.arange(users), rows)
    X = rng.standard_normal((len(who), 2))
    bends = with_bends(X, BENT)[:, 2:]
    curve = bends @ [1.5, -0.5, 0.0, 0.0]
    differ = (bends[:, :1] * rng.normal(0, own, (users, 1))[who]).sum(axis=1)
    y = X @ [1.0, 0.5] + 4 * (who % groups) * X[:, 1] + levels * rng.standard_normal(users)[who]
    return X, y + differ + 0.5 * rng.standard_normal(len(who)) + curve, who, curve


def fitted(curves="auto", **kind) -> ODCLRegressor:
    X, y, who, _ = world(**kind)
    return ODCLRegressor(curves=curves).fit(X, y, users=who)


def test_own_models_are_least_squares_on_lines_beside_the_common_curve():
    model = fitted()
    X, y, who, _ = world()
    assert [curve.name for curve in model.risk_.curves] == ["x0"]
    users = own_models(model.uploads_, model.fitted_.mixed)
    assert_array_equal(users.own, [0, 1, 6])
    Z = model.scaling_.apply(X)
    common = model.theta_[0, 2:6]
    for i in (0, 5, 29):
        D = np.column_stack([Z[who == i, :2], np.ones(24)])
        left = y[who == i] - Z[who == i, 2:] @ common
        theta, (square,), *_ = np.linalg.lstsq(D, left, rcond=None)
        assert_allclose(users.theta[i], theta, rtol=1e-7)
        assert_allclose(users.dispersion[i], square / (24 - 3), rtol=1e-7)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_diagnosis_beside_a_curve_is_that_of_rows_without_it(groups):
    """What a common curve takes out of the targets is nobody's difference."""
    X, y, who, curve = world(groups=groups)
    bent = fitted(groups=groups).diagnose()
    flat = ODCLRegressor(curves=False).fit(X, y - curve, users=who).diagnose()
    assert bent.verdict.advice == flat.verdict.advice
    assert (bent.dim, bent.n_clusters) == (flat.dim, flat.n_clusters) == (3, groups)
    for name in ("one", "used", "pooled", "drawn"):
        assert_allclose(getattr(bent.errors, name), getattr(flat.errors, name), rtol=0.1)
    assert_allclose(bent.noise.variance, flat.noise.variance, rtol=0.1)
    assert_allclose(bent.tau2_in_noise, flat.tau2_in_noise, rtol=0.1)
    assert_allclose(bent.membership.distance, flat.membership.distance, atol=0.3)
    beside = "its lines beside the common curve of x0, which no user would find alone."
    assert bent.verdict.reason.endswith(beside)
    assert beside not in flat.verdict.reason


def test_users_who_differ_in_their_curves_alone_are_not_sent_one_model():
    found = fitted(own=1.0, levels=0.0).diagnose()
    assert found.verdict.advice == "mixed"
    assert "the curve of x0" in found.verdict.reason
    assert fitted(levels=0.0).diagnose().verdict.advice == "one-model"


def test_new_rows_of_a_bent_world_hold_and_a_curve_that_moved_is_named():
    X, y, who, curve = world()
    first = np.arange(len(y)) % 2 == 0
    model = ODCLRegressor().fit(X[first], y[first], users=who[first])
    assert model.drift(X[~first], y[~first], users=who[~first]).verdict == "holds"
    moved = model.drift(X[~first], (y - 2 * curve)[~first], users=who[~first])
    assert moved.verdict == "refit"
    assert "the curve of x0" in moved.shifts[0]
    assert "the curve of x0 by" in str(moved)
    level = model.drift(X[~first], y[~first] + 3 * (who[~first] == 4), users=who[~first])
    assert level.users[level.moved].tolist() == [4]


@pytest.mark.parametrize("settings", [{}, {"periodic": {1: 3.0}}])
def test_a_user_in_portions_is_that_of_all_its_rows(settings, tmp_path):
    """Assigned, added, updated, saved in between: the same posterior, exactly."""
    X, y, who, _ = world(own=0.5)
    late = who == 3
    model = ODCLRegressor(**settings).fit(X[~late], y[~late], users=who[~late])
    assert model.risk_.curves
    model.add_user(3, X[late][:5], y[late][:5])
    model.save(tmp_path / "model")
    again = ODCLRegressor.load(tmp_path / "model")
    for one in (model, again):
        one.update_user(3, X[late][5:], y[late][5:])
        whole = one.assign(X[late], y[late])
        assert_allclose(one.theta_[-1], whole.theta, rtol=1e-9, atol=1e-12)
        assert_allclose(one.covariance_[-1], whole.received.covariance[0], rtol=1e-7, atol=1e-12)
    assert_array_equal(model.predict(X, users=who), again.predict(X, users=who))
    one.update_user(3, X[late], y[late], all_rows=True)
    assert_allclose(one.theta_[-1], whole.theta, rtol=1e-9, atol=1e-12)


def test_a_user_unlike_all_others_has_a_smooth_curve_of_its_own():
    X, y, who, curve = world()
    model = fitted()
    mine = who == 3
    found = model.assign(X[mine], y[mine] - 9 * curve[mine] + 30)
    assert found.none_of_these
    expected = model.scaling_.apply(X[mine]) @ found.theta[:-1] + found.theta[-1]
    truth = X[mine] @ [1.0, 0.5] - 8 * curve[mine] + 30
    assert np.corrcoef(expected, truth)[0, 1] > 0.99
