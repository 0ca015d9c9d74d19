"""Huber's loss: squared loss far from delta, and models that outliers do not move."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from odcl import Method, ODCLRegressor, Risk, fit
from odcl.clustering.labels import same_partition
from odcl.data.federation import Federation
from odcl.mixed.gaussian import _mode, pseudo_targets
from odcl.risk.losses import Huber

from .worlds import rows_of


def federation_of(rows, *, outliers=0.0, seed=0, n_users=45):
    """Three groups, users with ``rows`` rows each, some of them far off."""
    rng = np.random.default_rng(seed)
    theta = 3.0 * np.eye(3)[np.arange(n_users) % 3]
    X, y, users = rows_of(theta, rows)
    far = rng.random(len(y)) < outliers
    y = y + np.where(far, 40 * rng.standard_t(2, len(y)), 0.0)
    order = np.argsort(users, kind="stable")
    offsets = np.searchsorted(users[order], np.arange(n_users + 1))
    return Federation(X[order], y[order], offsets, np.arange(n_users)), theta


@pytest.mark.parametrize("unequal", [False, True])
def test_without_rows_beyond_delta_it_is_squared_loss(unequal):
    """Unequal noise: a user whose rows are many, and all inside, knows its own."""
    f, _ = federation_of(16)
    if unequal:
        rng = np.random.default_rng(2)
        noise = np.exp(rng.standard_normal(f.n_users))[f.row_user]
        f = f.with_y(f.y + 2 * noise * rng.standard_normal(len(f.y)))
    huber = fit(f, Risk(Huber(1e6), intercept=True))
    squared = fit(f, Risk("squared", intercept=True))
    assert huber.method.clusterer.uses_terms
    assert squared.step.mixture.noise.common is not unequal
    assert_array_equal(huber.labels, squared.labels)
    # A user between groups: its weights know of the centers' own error with squared loss only.
    assert_allclose(huber.models, squared.models, atol=2e-3 if unequal else 1e-8)
    assert_allclose(huber.received.noise, squared.received.noise, rtol=1e-8)


@pytest.mark.parametrize(("rows", "share"), [(6, 0.4), (10, 0.1), (30, 0.1)])
def test_outliers_do_not_move_the_models(rows, share):
    """With 6 and 10 rows for 3 parameters a user cannot tell outliers alone; its last step can."""
    f, theta = federation_of(rows, outliers=0.08)
    errors = [
        ((fit(some, risk).models[:, :2] - theta[:, 1:]) ** 2).sum()
        for some, risk in (
            (f, Risk(Huber(1.345), intercept=True)),
            (f, Risk("squared", intercept=True)),
        )
    ]
    assert errors[0] < share * errors[1]


def test_a_users_group_is_the_one_whose_model_it_has():
    """Outliers in few rows mislead the server about a user's place, not the user's last step."""
    f, _ = federation_of(8, outliers=0.08, seed=4)
    result = fit(f, Risk(Huber(1.345), intercept=True))
    assert result.n_clusters == 3
    gap = ((result.models[:, None] - result.centers) ** 2).sum(axis=2)
    assert_array_equal(result.labels, gap.argmin(axis=1))
    assert (result.labels != result.step.labels).any()
    assert same_partition(result.labels, np.arange(45) % 3)
    model = ODCLRegressor(loss=Huber(1.345)).fit(f.X, f.y, f.users[f.row_user])
    assert same_partition(model.labels_, np.arange(45) % 3)
    assert_array_equal(model.probability_, model.result_.received.sure)
    assert (model.probability_ != model.result_.step.probabilities).any()
    assert (result.received.noise < 4 * np.median(result.received.noise)).all()


def test_pseudo_targets_have_the_huber_fit_for_least_squares():
    """sum z (y* - z'theta) = sum z psi / l = 0 at the fit, and their spread is the sandwich's."""
    rng = np.random.default_rng(3)
    Z = np.column_stack([np.ones(60), rng.normal(size=(60, 2))])
    y = Z @ [1.0, 2.0, -1.0] + rng.standard_t(2, 60)
    delta = 1.345
    loss = Huber(delta)
    found = minimize(lambda t: loss.value((Z @ t)[:, None], y).sum(), np.zeros(3), tol=1e-14).x
    users = np.zeros(60, int)
    told = pseudo_targets(Z @ found, y, users, 1, delta, 3, None)
    cut, share = told.y, told.share
    assert not told.few.any()
    assert_allclose(np.linalg.lstsq(Z, cut, rcond=None)[0], found, atol=1e-5)
    psi = np.clip(y - Z @ found, -delta, delta)
    inside = (np.abs(y - Z @ found) <= delta).sum()
    assert_allclose(share, (inside + 1) / 61)
    assert_allclose(((cut - Z @ found) ** 2).sum(), (psi**2).sum() / share[0] ** 2)


def test_users_with_few_rows_keep_their_targets():
    y = np.array([1.0, 50.0, 2.0, 3.0])
    told = pseudo_targets(np.zeros(4), y, np.zeros(4, int), 1, 1.0, 3, None)
    assert_array_equal(told.y, y)
    assert told.few.all()


def test_the_mode_of_the_last_step_is_the_minimum():
    rng = np.random.default_rng(5)
    Z, r = rng.normal(size=(2, 9, 3)), 4 * rng.standard_t(2, size=(2, 9))
    weight, phi = rng.uniform(0.5, 2.0, size=(2, 9)), np.array([0.7, 1.9])
    got, value = _mode(Z, r, weight, phi, 1.1)
    loss = Huber(1.1)
    for i in range(2):

        def cost(a, i=i):
            rho = loss.value((Z[i] @ a)[:, None], r[i])
            return (weight[i] * rho).sum() / phi[i] + 0.5 * a @ a

        best = minimize(cost, np.zeros(3), tol=1e-14)
        assert_allclose(got[i], best.x, atol=1e-6)
        assert_allclose(value[i], best.fun, rtol=1e-12)
        alone, _ = _mode(Z[[i]], r[[i]], weight[[i]], phi[[i]], 1.1)
        assert_array_equal(alone[0], got[i])  # whoever else is in the batch


def test_estimator_saves_loads_and_gives_intervals(tmp_path):
    f, _ = federation_of(14, outliers=0.05)
    users = f.users[f.row_user]
    model = ODCLRegressor(loss="huber").fit(f.X, f.y, users)
    assert model.method_.clusterer == Method().clusterer
    low, high = model.predict_interval(f.X, users=users)
    assert 0.8 < ((f.y > low) & (f.y < high)).mean() < 0.97
    model.save(tmp_path / "m")
    assert_array_equal(
        ODCLRegressor.load(tmp_path / "m").predict(f.X, users), model.predict(f.X, users)
    )
