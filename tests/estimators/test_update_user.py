"""Users that are known get more rows; new ones are added once; all of it is remembered."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import ODCLRegressor
from odcl.diagnose.own_models import own_models
from tests.helpers import refusal


@pytest.fixture
def fitted(table):
    """Every user's last ten rows are kept for later."""
    X, y, users = table
    later = np.zeros(len(y), dtype=bool)
    for user in np.unique(users):
        later[np.flatnonzero(users == user)[-10:]] = True
    model = ODCLRegressor(random_state=0).fit(X[~later], y[~later], users=users[~later])
    return model, later


def test_rows_in_two_portions_are_rows_at_once(table, fitted):
    """And as all rows of the user given anew, for what it would upload."""
    X, y, users = table
    model, later = fitted
    rows = np.flatnonzero(later & (users == 3))
    model.update_user(3, X[rows[:4]], y[rows[:4]])
    label = model.update_user(3, X[rows[4:]], y[rows[4:]])
    in_portions = model.uploads_[3], model.theta_[3], model.n_rows_[3]
    assert in_portions[0].n_samples[0] == 60
    all_rows = users == 3
    assert label == model.update_user(3, X[all_rows], y[all_rows], all_rows=True)
    at_once = model.uploads_[3], model.theta_[3], model.n_rows_[3]
    for name in ("theta", "n_samples", "curvature", "dispersion"):
        one, other = (getattr(own_models(told[0]), name) for told in (in_portions, at_once))
        assert_allclose(one, other, rtol=1e-7, atol=1e-9, err_msg=name)
    assert in_portions[2] == at_once[2] == 60
    assert_allclose(in_portions[1], at_once[1], rtol=1e-6, atol=1e-6)


def test_an_update_leaves_the_others_and_the_fits_result_as_they_were(table, fitted):
    X, y, users = table
    model, later = fitted
    result = model.result_
    kept = model.theta_.copy(), result.labels.copy(), model.uploads_.factor.copy()
    before = result.models.copy(), result.uploads.factor.copy()
    rows = later & (users == 3)
    # Rows of another group's user: the user changes its mind.
    other = np.flatnonzero(model.labels_ != model.labels_[3])[0]
    label = model.update_user(3, X[users == other], y[users == other], all_rows=True)
    assert label == model.labels_[3] == model.labels_[other] != kept[1][3]
    assert_array_equal(model.result_.models, before[0])
    assert_array_equal(model.result_.labels, kept[1])
    rest = np.arange(24) != 3
    assert_array_equal(model.theta_[rest], kept[0][rest])
    assert_array_equal(model.uploads_.factor[rest], kept[2][rest])
    assert_array_equal(result.uploads.factor, before[1])
    assert (model.uploads_.factor[3] != kept[2][3]).any()
    refusal(model.update_user, "nobody", X[rows], y[rows], match="with add_user")


@pytest.mark.parametrize("user", [0, 23])
def test_no_user_is_added_twice(table, fitted, user):
    X, y, users = table
    model, _ = fitted
    refusal(model.add_user, user, X[users == user], y[users == user], match="known already")
    assert len(model.users_) == len(model.theta_) == len(model.uploads_) == 24


def test_users_without_a_group_are_left_out_of_the_diagnosis(table, fitted):
    X, _, users = table
    model, _ = fitted
    rows = X[users == 0]
    stranger = rows @ np.full(5, 50.0) + np.random.default_rng(0).normal(size=60)
    assert model.add_user("stranger", rows, stranger).none_of_these
    assert model.labels_[-1] == -1
    assert model.uploads_.users.tolist() == [*range(24), "stranger"]
    found = model.diagnose(resamples=1)
    assert found.n_users == 24
