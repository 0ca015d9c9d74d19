"""Units of features and targets change neither groups nor predictions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Method, ODCLRegressor
from odcl.data.federation import positions
from tests.helpers import (
    FRAME_COLUMNS,
    LOSS_NAMES,
    estimator_for,
    models_of,
    response,
    target_of_kind,
    train_and_test,
)


@pytest.mark.parametrize("loss", LOSS_NAMES)
@pytest.mark.parametrize(("scale", "shift"), [((1e6, 1e-6, 1e12, 1e-12, 1), 0.0), (1, 1e3)])
def test_units_of_the_features_change_neither_groups_nor_predictions(table, loss, scale, shift):
    X, y, users = table
    y = target_of_kind(loss, y)
    model = estimator_for(loss).fit(X, y, users=users)
    other = X * np.array(scale) + shift
    moved = estimator_for(loss).fit(other, y, users=users)
    assert_array_equal(moved.labels_, model.labels_)
    # A shift of 1000 standard deviations costs three of the sixteen digits; iterated fits of
    # classes and counts end when they move by 1e-9.
    assert_allclose(response(moved, other, users), response(model, X, users), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("unit", [1e6, 1e-6, 1e12, 1e-12])
def test_predictions_scale_with_the_target(table, loss, unit):
    """Huber's delta is in units of the residuals' scale."""
    X, y, users = table
    model = estimator_for(loss).fit(X, y, users=users)
    scaled = estimator_for(loss).fit(X, unit * y, users=users)
    assert_array_equal(scaled.labels_, model.labels_)
    assert_allclose(scaled.predict(X, users) / unit, model.predict(X, users), rtol=1e-8, atol=1e-9)


def test_without_standardising_units_matter(table):
    """standardize=False and the paper's setting cluster the coefficients as they are."""
    X, y, users = table
    plain = Method(standardize=False)
    for method in (plain, "paper"):
        settings = {"method": method, "l2": 0.1, "clusterer": "kmeans:4", "random_state": 0}
        model = ODCLRegressor(**settings).fit(X, y, users=users)
        tiny = ODCLRegressor(**settings).fit(1e-3 * X, y, users=users)
        assert_array_equal(model.scaling_.scale, 1.0)
        # An l2 of 0.1 on coefficients that had to be 1000 times as large leaves the intercepts.
        assert np.std(tiny.predict(1e-3 * X, users)) < 0.2 * np.std(model.predict(X, users))


@pytest.mark.parametrize("loss", LOSS_NAMES)
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("method", ["default", "paper"])
def test_models_are_in_the_units_of_the_table(table, loss, fit_intercept, method):
    """X @ coefficients + intercept is what predict works with."""
    X, y, users = table
    X = X * np.array([10.0, 0.1, 1, 1, 1]) + (5.0 if method == "default" else 0.0)
    X = np.column_stack([X[:, :2], np.full(len(X), 3.0), X[:, 2:]])  # a constant column inside
    y = target_of_kind(loss, y)
    model = estimator_for(loss, fit_intercept=fit_intercept, method=method, clusterer="kmeans:4")
    model.fit(X, y, users=users)
    D = np.column_stack([X, np.ones(len(X))]) if fit_intercept else X
    mine = models_of(model)[positions(model.users_, users)]
    if loss == "multinomial":
        z = np.einsum("nd,ncd->nc", D, mine)
        assert_allclose(mine.sum(axis=1), 0.0, atol=1e-9)  # coefficients sum to zero over classes
        assert_allclose(z, model.decision_function(X, users=users), rtol=1e-7, atol=1e-8)
    elif loss == "logistic":
        z = (D * mine).sum(axis=1)
        assert_allclose(z, model.decision_function(X, users=users), rtol=1e-7, atol=1e-8)
    else:
        z = model.risk_.loss.mean((D * mine).sum(axis=1))
        assert_allclose(z, model.predict(X, users=users), rtol=1e-7, atol=1e-8)
    assert models_of(model).shape[-1] == models_of(model, groups=True).shape[-1] == D.shape[1]
    assert len(models_of(model, groups=True)) == model.n_clusters_


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_coefficients_stand_under_their_names_in_the_units_of_the_table(frame, fit_intercept):
    """The users' column stands between the features; no number may move under its name."""
    X, y = frame
    X = X.assign(b=1000.0 * X.b, d=7.0)
    model = ODCLRegressor(users="store", fit_intercept=fit_intercept).fit(X, y)
    assert model.feature_names_ == FRAME_COLUMNS
    assert model.feature_names_in_.tolist() == ["a", "store", "b", "c", "d", "e"]
    shown = model.coefficients()
    ending = ["(intercept)"] if fit_intercept else []
    assert shown.columns.tolist() == ["user", "group", *FRAME_COLUMNS, *ending]
    assert shown.user.tolist() == model.users_.tolist()
    assert shown.group.tolist() == model.labels_.tolist()
    assert_array_equal(shown[FRAME_COLUMNS + ending], models_of(model))
    rows = shown.set_index("user").loc[X.store]
    by_hand = sum(X[name].to_numpy() * rows[name].to_numpy() for name in FRAME_COLUMNS)
    by_hand = by_hand + (rows["(intercept)"].to_numpy() if fit_intercept else 0.0)
    assert_allclose(by_hand, model.predict(X), rtol=1e-9, atol=1e-9)


def test_coefficients_of_classes_and_of_arrays(table):
    X, y, users = table
    model = estimator_for("multinomial").fit(X, target_of_kind("multinomial", y), users=users)
    shown = model.coefficients()
    assert shown.columns.tolist()[:4] == ["user", "group", "class", "x0"]
    assert shown["class"].tolist() == [0, 1, 2] * 24
    assert_array_equal(shown.user, np.repeat(model.users_, 3))
    assert_array_equal(shown[[f"x{j}" for j in range(5)]], model.coef_.reshape(-1, 5))


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_a_constant_column_changes_nothing(table, loss):
    X, y, users = table
    y = target_of_kind(loss, y)
    model = estimator_for(loss).fit(X, y, users=users)
    rounded = 0.1 + 2e-17 * (np.arange(len(X)) % 2)  # constant up to rounding
    assert len(np.unique(rounded)) == 2
    more = np.column_stack([np.full(len(X), 7.0), X, rounded])
    same = estimator_for(loss).fit(more, y, users=users)
    assert_array_equal(same.labels_, model.labels_)
    # The columns' means are sums by another kernel: a few ulps.
    assert_allclose(response(same, more, users), response(model, X, users), rtol=1e-9, atol=1e-11)
    assert (models_of(same)[..., [0, 6]] == 0).all()


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_columns_that_no_user_can_tell_apart_are_accepted(table, loss):
    """A copy of a column, and a column that is constant within every user."""
    X, y, users = table
    y = target_of_kind(loss, y)
    train, test = train_and_test(len(y))
    more = np.column_stack([X, X[:, 0], np.random.default_rng(0).normal(size=24)[users]])
    model, same = estimator_for(loss, clusterer=4), estimator_for(loss, clusterer=4)
    model.fit(X[train], y[train], users=users[train])
    same.fit(more[train], y[train], users=users[train])
    worse = model.score(X[test], y[test], users=users[test]) - 0.05
    assert same.score(more[test], y[test], users=users[test]) > worse
    assert np.isfinite(same.assign(more[:20], y[:20]).coef).all()


def test_only_constant_columns_leave_the_intercept(table):
    _, y, users = table
    X = np.ones((len(y), 2))
    model = ODCLRegressor(clusterer="kmeans:1", random_state=0).fit(X, y, users=users)
    assert_allclose(model.predict(X, users=users), y.mean(), rtol=1e-6)
    assert models_of(model).shape == (24, 3)


@pytest.mark.parametrize("loss", LOSS_NAMES)
@pytest.mark.parametrize("method", ["default", "paper"])
def test_any_users_are_accepted(table, loss, method):
    """One row, one class, rows that repeat, columns from 1e-12 to 1e12."""
    X, y, users = table
    y = target_of_kind(loss, y)
    users = np.concatenate([users, [100, 101, 102], np.full(20, 103), np.full(6, 104)])
    rows = np.concatenate([np.arange(len(y)), [0, 1, 2], np.zeros(20, int), np.arange(6)])
    X, y = X[rows] * [1e12, 1e-12, 1, 1, 1], y[rows]
    model = estimator_for(loss, method=method).fit(X, y, users=users)
    assert np.isfinite(response(model, X, users)).all()
    assert len(model.users_) == 29
    assert_array_equal(np.unique(model.labels_), np.arange(model.n_clusters_))
