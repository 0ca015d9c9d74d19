"""More rows of a user that is known: as if all its rows had come at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Federation, ODCLRegressor, Risk, Uploads
from odcl.local.fit import fit_users
from odcl.server.assign_models import GroupStatistics, place_of, with_more_rows
from tests.helpers import logistic_labels, refusal


def rows(n, seed, loss="squared"):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) + 0.5
    z = X @ [1.0, -2.0, 0.5] + 3.0
    return X, z + rng.normal(size=n) if loss == "squared" else logistic_labels(z - 3, rng)


def upload_of(X, y, risk, curvature="full"):
    return fit_users(Federation.from_arrays(X, y, np.zeros(len(y))), risk, curvature).uploads


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("more", [1, 40])
def test_for_the_squared_loss_more_rows_give_the_upload_of_all_rows(l2, intercept, more):
    risk = Risk("squared", l2, intercept)
    (X, y), (X_more, y_more) = rows(25, 0), rows(more, 1)
    found = with_more_rows(upload_of(X, y, risk), X_more, y_more, risk)
    whole = upload_of(np.vstack([X, X_more]), np.append(y, y_more), risk)
    for name in ("theta", "n_samples", "curvature", "dispersion"):
        assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-8, err_msg=name)


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_for_the_logistic_loss_they_nearly_do(l2):
    risk = Risk("logistic", l2, intercept=True)
    (X, y), (X_more, y_more) = rows(300, 0, "logistic"), rows(100, 1, "logistic")
    old = upload_of(X, y, risk)
    found = with_more_rows(old, X_more, y_more, risk)
    whole = upload_of(np.vstack([X, X_more]), np.append(y, y_more), risk)
    gap = np.linalg.norm(found.theta - whole.theta)
    assert gap < 0.1 * np.linalg.norm(old.theta - whole.theta)
    assert found.dispersion[0] == 1.0
    assert found.n_samples[0] == 400


def test_rows_enough_for_a_noise_scale_end_a_users_not_knowing_it():
    risk = Risk()
    (X, y), (X_more, y_more) = rows(3, 0), rows(30, 1)
    old = upload_of(X, y, risk)
    assert np.isinf(old.dispersion[0])
    found = with_more_rows(old, X_more, y_more, risk)
    whole = upload_of(np.vstack([X, X_more]), np.append(y, y_more), risk)
    assert_allclose(found.dispersion, whole.dispersion, rtol=1e-8)


def test_a_user_that_kept_its_curvature_back_has_to_give_all_its_rows():
    X, y = rows(30, 0)
    refusal(with_more_rows, upload_of(X, y, Risk(), "none"), X, y, Risk(), match="all_rows")
    few = upload_of(X[:2], y[:2], Risk(), "auto")
    refusal(with_more_rows, few, X, y, Risk(), match="sent no curvature")


# -- its place ---------------------------------------------------------------------------------


def groups(centers, members, tau2=0.0):
    k = len(centers)
    centers = np.array(centers, dtype=float)
    return GroupStatistics(
        centers, np.array(members), np.full(k, 1e6), np.ones(k), tau2, tau2, 1.0, 1e9
    )  # fmt: skip


def place(user, known, refit):
    """Where a user belongs that was in the first group."""
    return place_of(user, known, refit, 0)


def known_user(theta, *, l2=0.0, n=20.0):
    """Curvature n I beside the penalty's."""
    theta = np.array([theta], dtype=float)
    H = n * (1 + l2) * np.eye(theta.shape[1])[None]
    return Uploads(np.array(["u"]), np.array([n]), theta, H, np.ones(1), risk=Risk(l2=l2))


@pytest.mark.parametrize("tau2", [0.0, 0.5])
def test_a_user_between_two_groups_joins_by_their_shares_of_users(tau2):
    label, _, sure = place(
        known_user([0.0, 0.1]), groups([[-0.2, 0.0], [0.2, 0.0]], [10, 30], tau2), "evidence"
    )
    assert (label, sure) == (1, pytest.approx(0.75))


@pytest.mark.parametrize(("tau2", "variance"), [(0.0, 1 / 20), (0.5, 1 / 20 + 0.5)])
def test_how_surely_is_bayes_rule_on_the_users_model(tau2, variance):
    """theta ~ N(c_k, phi / n + tau^2)."""
    centers = np.array([[0.0], [0.5]])
    _, _, sure = place(known_user([0.1]), groups(centers, [10, 10], tau2), "evidence")
    density = np.exp(-0.5 * np.square(0.1 - centers[:, 0]) / variance)
    assert sure == pytest.approx(density[0] / density.sum(), rel=1e-6)


def test_its_model_is_refitted_as_the_others_were():
    user, known = known_user([2.0, 0.0]), groups([[1.0, 1.0]], [5], 0.1)
    # Rows of n = 20 with curvature 1: theta is n of 20, the centre phi / tau^2 = 10.
    _, theta, _ = place(user, known, "evidence")
    assert_allclose(theta, (20 * user.theta[0] + 10 * known.centers[0]) / 30, rtol=1e-6)
    _, theta, _ = place(user, known, 1.5)
    assert_allclose(theta, (user.theta[0] + 1.5 * known.centers[0]) / 2.5)
    assert_array_equal(place(user, known, None)[1], known.centers[0])
    assert_array_equal(place(user, replace(known, tau2=0.0), "evidence")[1], known.centers[0])


def test_with_strength_zero_a_users_model_is_its_own_penalty_included():
    user = known_user([2.0, 0.0], l2=0.7)
    assert_allclose(place(user, groups([[1.0, 1.0]], [5], 0.1), 0)[1], user.theta[0])


def test_the_pull_to_the_group_replaces_the_penalty():
    user = known_user([2.0, 0.0], l2=0.5)  # what the rows say by themselves: 1.5 times that
    _, theta, _ = place(user, groups([[2.8, 0.1]], [5]), 1.0)
    assert_allclose(theta, (1.5 * user.theta[0] + [2.8, 0.1]) / 2)


def test_a_user_alone_in_its_group_learns_from_its_new_rows():
    """Its group's model is what it was; its own is that of all its rows."""
    rng = np.random.default_rng(0)
    models = np.array([[5.0, 0.0], [5.0, 0.0], [-5.0, 3.0]])
    owner = np.repeat(np.arange(3), 30)
    X = rng.normal(size=(90, 2))
    y = (X * models[owner]).sum(axis=1) + rng.normal(size=90)
    model = ODCLRegressor(clusterer=2).fit(X, y, users=owner)
    assert model.labels_[2] == 1
    assert (model.labels_ == 1).sum() == 1
    X_more = rng.normal(size=(60, 2))
    y_more = X_more @ models[2] + rng.normal(size=60)
    assert model.update_user(2, X_more, y_more) == 1
    mine = owner == 2
    D = np.column_stack([np.vstack([X[mine], X_more]), np.ones(90)])
    expected = np.linalg.lstsq(D, np.append(y[mine], y_more), rcond=None)[0]
    assert_allclose(np.append(model.coef_[2], model.intercept_[2]), expected, rtol=1e-6)
    assert_array_equal(model.labels_[:2], 0)
    assert model.n_rows_.tolist() == [30, 30, 90]
