"""What users' data terms say: own models and their noise, pooled models, how far users differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression, Ridge

from odcl import Federation, Risk, Uploads
from odcl.diagnose.measure import measure
from odcl.diagnose.noise import estimated_noise
from odcl.diagnose.own_models import (
    OwnModels,
    covariances,
    noise_prior,
    own_models,
    pooled_dispersion,
    pooled_models,
)
from odcl.local.fit import fit_users
from odcl.risk.losses import Huber

SIZES = np.array([40, 25, 60, 90, 31, 200, 45, 33])
LABELS = np.array([0, 1, 0, 2, 1, 0, 1, 1])  # user 3 is alone


def linear_users(weighted=False):
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(8), SIZES)
    X = rng.normal(size=(len(users), 4)) + 0.5
    theta = rng.normal(size=(3, 4))[LABELS]
    y = (X * theta[users]).sum(axis=1) + 2.0 + rng.normal(size=len(users))
    weight = rng.uniform(0.2, 2.0, len(users)) if weighted else None
    return Federation.from_arrays(X, y, users, weight=weight)


def told_by(federation, risk):
    return own_models(fit_users(federation, risk, terms=True).uploads)


def regression(federation, members, alpha, fit_intercept):
    """The members' rows as one least-squares or ridge problem, by scikit-learn."""
    part = federation.take(np.asarray(members))
    if alpha == 0:
        model = LinearRegression(fit_intercept=fit_intercept, tol=1e-14)
    else:
        model = Ridge(alpha=alpha, fit_intercept=fit_intercept, solver="svd")
    model.fit(part.X, part.y, sample_weight=part.weight)
    return np.append(model.coef_, model.intercept_)[: part.n_features + fit_intercept]


# -- pooled models -----------------------------------------------------------------------------


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.05, 3.0])
def test_pooled_models_are_the_regressions_of_the_groups_rows(fit_intercept, weighted, l2):
    """With and without each user; the penalty counts once, for a user of mean size."""
    federation = linear_users(weighted)
    n = federation.n_samples
    centers, others = pooled_models(told_by(federation, Risk("squared", l2, fit_intercept)), LABELS)
    for k in range(3):
        members = np.flatnonzero(np.equal(LABELS, k))
        expected = regression(federation, members, l2 * n[members].mean(), fit_intercept)
        assert_allclose(centers[k], expected, rtol=1e-7)
    for i in range(8):
        rest = np.setdiff1d(np.flatnonzero(LABELS[i] == LABELS), [i])
        rest = rest if len(rest) else [i]  # alone in its group
        expected = regression(federation, rest, l2 * n[rest].mean(), fit_intercept)
        assert_allclose(others[i], expected, rtol=1e-7)


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_users_with_fewer_rows_than_parameters_take_part_in_full(l2):
    """Twenty users of 3 rows and 8 features: no model of their own, one of them together."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 8))
    y = X @ rng.normal(size=8) + 1.0 + 0.1 * rng.normal(size=60)
    federation = Federation.from_arrays(X, y, np.repeat(np.arange(20), 3))
    told = told_by(federation, Risk("squared", l2, True))
    found, _ = pooled_models(told, np.zeros(20, dtype=np.intp))
    assert_allclose(found[0], regression(federation, range(20), 3 * l2, True), rtol=1e-6)
    assert np.isinf(told.dispersion).all()


def test_pooled_models_do_not_depend_on_the_units_of_the_features():
    federation = linear_users()
    units = np.array([1e6, 1.0, 1e-6, 1e3])
    plain, scaled = (
        pooled_models(told_by(f, Risk()), LABELS)[0]
        for f in (federation, federation.with_X(federation.X * units))
    )
    assert_allclose(scaled * units, plain, rtol=1e-6)


# -- how far users of a group differ -----------------------------------------------------------


def precise_users(n_groups, size, tau, *, dim=5, seed=0):
    """Groups of equal size, models known up to 0.03 per coefficient, users differing by ``tau``."""
    rng = np.random.default_rng(seed)
    m = n_groups * size
    labels = np.repeat(np.arange(n_groups), size)
    theta = 3 * rng.normal(size=(n_groups, dim))[labels] + tau * rng.normal(size=(m, dim))
    theta += 0.03 * rng.normal(size=(m, dim))
    H = np.tile(np.eye(dim) / 0.03**2, (m, 1, 1))
    terms = Uploads(np.arange(m), np.full(m, 1000.0), theta, risk=Risk())
    return OwnModels(terms, np.arange(theta.shape[1]), theta, H, np.ones(m)), labels


def tau2_of(users, labels):
    return measure(users, labels, None, estimated_noise(users), "mean").tau2


@pytest.mark.parametrize("size", [2, 3, 20])
def test_tau2_is_that_of_the_users_however_small_their_groups(size):
    """The centre of two users has taken up half of their difference."""
    assert_allclose(tau2_of(*precise_users(1200 // size, size, tau=0.5)), 0.25, rtol=0.1)


def test_users_who_are_the_same_have_no_tau2():
    assert tau2_of(*precise_users(20, 10, tau=0.0)) == 0.0


def test_tau2_does_not_depend_on_how_far_from_zero_the_models_are():
    users, labels = precise_users(30, 10, tau=0.5)
    far = tau2_of(replace(users, theta=users.theta + 2.0**20), labels)
    assert_allclose(far, tau2_of(users, labels), rtol=1e-6)


def test_users_alone_in_their_groups_tell_nothing_of_differences():
    users, _ = precise_users(10, 1, tau=0.5)
    assert tau2_of(users, np.arange(10)) == 0.0


# -- noise scales ------------------------------------------------------------------------------


def noisy_users(m, dof, differ, *, dim=3, seed=0, loss="squared"):
    """Noise scales estimated with ``dof`` degrees of freedom; the true ones differ, or are 2."""
    rng = np.random.default_rng(seed)
    true = 2.0 * np.exp(differ * rng.normal(size=m))
    phi, theta = true * rng.chisquare(dof, m) / dof, np.zeros((m, dim))
    terms = Uploads(np.arange(m), np.full(m, float(dof + dim)), theta, risk=Risk(loss))
    return OwnModels(
        terms, np.arange(theta.shape[1]), theta, np.tile(np.eye(dim), (m, 1, 1)), phi
    ), true


def test_users_of_one_noise_get_one_noise():
    users, _ = noisy_users(300, 5, differ=0.0, seed=2)
    found = pooled_dispersion(users)
    assert np.ptp(found) < 0.3 * np.ptp(users.dispersion)
    assert_allclose(np.median(found), 2.0, rtol=0.1)


def test_users_of_different_noise_are_drawn_together_as_far_as_helps():
    users, true = noisy_users(300, 5, differ=0.7)
    found = pooled_dispersion(users)
    own, one = users.dispersion, np.full(300, users.dispersion.mean())
    error = [np.square(np.log(phi / true)).mean() for phi in (found, own, one)]
    assert error[0] < 0.8 * min(error[1:])
    scale, dof = noise_prior(own, np.full(300, 5.0))
    assert_allclose(found, (dof * scale + 5 * own) / (dof + 5), rtol=1e-12)


def test_users_who_cannot_tell_their_noise_get_the_typical_one():
    users, _ = noisy_users(300, 5, differ=0.7)
    silent = replace(users, dispersion=np.append(users.dispersion[:-1], np.inf))
    scale, _ = noise_prior(users.dispersion[:-1], np.full(299, 5.0))
    assert pooled_dispersion(silent)[-1] == pytest.approx(scale)
    assert pooled_dispersion(replace(users, dispersion=np.full(300, np.inf))) is None
    exact = replace(users, dispersion=np.append(users.dispersion[:-1], 0.0))  # without noise
    assert_allclose(pooled_dispersion(exact), pooled_dispersion(silent))
    fixed, _ = noisy_users(300, 5, differ=0.7, loss="logistic")
    assert_array_equal(pooled_dispersion(fixed), 1.0)


def test_covariances_are_noise_over_curvature_and_infinite_where_not_known():
    kept = np.ones(524, dtype=bool)
    kept[2:40] = False  # of the first user, two rows for four parameters
    users = told_by(linear_users().select_rows(kept), Risk())
    phi = np.linspace(1.0, 2.0, 8)
    found = covariances(users, phi)
    assert np.isposinf(found[0]).all()
    for i in range(1, 8):
        assert_allclose(found[i], phi[i] * np.linalg.inv(users.curvature[i]), rtol=1e-9)
    assert covariances(users, None) is None


def test_few_rows_with_an_outlier_among_them_do_not_tell_their_noise():
    """Huber's loss: such users keep their targets, whose scatter is the outlier's."""
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    y = X @ [1.0, 2.0] + rng.normal(size=60)
    y[3] += 300.0
    told = told_by(Federation.from_arrays(X, y, users), Risk(Huber(1.345), intercept=True))
    assert np.isinf(told.dispersion).tolist() == [True] + 5 * [False]
