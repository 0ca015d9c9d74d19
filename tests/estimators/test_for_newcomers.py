"""What only later users need waits until one comes, and is then what the fit's rows say."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression

from odcl import Federation, Method, ODCLClassifier, ODCLRegressor
from odcl.local import fit as local_fit
from odcl.local import predict
from odcl.server import assign

METHODS = ["default", Method.paper(n_clusters=4), Method("kmeans:4")]
HEAVY = ((assign, "groups_of"), (predict, "one_for_all"))


@pytest.mark.parametrize("method", METHODS, ids=["default", "paper", "kmeans"])
def test_a_fit_works_out_nothing_that_only_newcomers_need(table, method, monkeypatch):
    X, y, users = table
    asked = []
    for module, name in HEAVY:
        own = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, own=own, name=name: asked.append(name) or own(*a)
        )
    model = ODCLRegressor(method=method).fit(X, y, users=users)
    model.predict(X, users=users)
    assert asked == []
    for _ in range(2):
        assert all(getattr(model, name) is not None for name in ("groups_", "pooled_theta_"))
    assert sorted(asked) == ["groups_of", "one_for_all"]  # once each


def test_the_pooled_model_is_least_squares_of_all_rows(table):
    X, y, users = table
    model = ODCLRegressor().fit(X, y, users=users)
    coef, intercept = model.fitted_.in_table_units(model.pooled_theta_[None])
    expected = LinearRegression().fit(X, y)
    assert_allclose(coef[0], expected.coef_, rtol=1e-10)
    assert_allclose(intercept[0], expected.intercept_, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", ["weights", "no weights", "federation"])
@pytest.mark.parametrize("method", METHODS, ids=["default", "paper", "kmeans"])
def test_arrays_changed_after_the_fit_change_nothing(table, method, rows):
    """A fit with weights picks rows out, which copies them; others see the caller's own arrays."""
    X, y, users = table
    order = np.argsort(users, kind="stable")  # rows by user, which a fit need not copy
    X, y, users = X[order], y[order], users[order]
    expected = ODCLRegressor(method=method).fit(X, y, users=users)
    newcomer = X[:40].copy(), y[:40].copy()
    want = expected.assign(*newcomer)
    X_own, y_own, weight = X.copy(), y.copy(), np.ones(len(y))
    model = ODCLRegressor(method=method)
    if rows == "federation":
        model.fit_federation(Federation.from_arrays(X_own, y_own, users, weight=weight))
    else:
        model.fit(X_own, y_own, users, weight if rows == "weights" else None)
    X_own[:], y_own[:], weight[:] = 1e3, -1e3, 7.0
    got = model.assign(*newcomer)
    assert got.label == want.label
    assert_allclose(got.probabilities, want.probabilities, rtol=1e-7, atol=1e-12)
    assert_allclose(model.pooled_theta_, expected.pooled_theta_, rtol=1e-9, atol=1e-12)


def test_a_pickled_model_knows_the_same_and_holds_no_rows(table):
    X, y, users = table
    model = ODCLRegressor(method=Method("kmeans:4")).fit(X, y, users=users)
    content = pickle.dumps(model.fitted_)
    assert X.tobytes() not in content
    assert model.scaling_.apply(X)[users == 0].tobytes() not in content
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.pooled_theta_, model.pooled_theta_)
    assert again.groups_.noise == model.groups_.noise
    assert again.assign(X[:40], y[:40]).probability == model.assign(X[:40], y[:40]).probability


def test_own_models_of_classes_wait_until_somebody_asks(table, monkeypatch):
    """Sites need none. Pickles hold the models, and no rows to work them out from."""
    X, y, users = table
    kind = y > np.median(y)
    solved = []
    monkeypatch.setattr(
        local_fit, "solve_users", lambda *a, own=local_fit.solve_users: solved.append(1) or own(*a)
    )
    model = ODCLClassifier().fit(X, kind, users=users)
    model.predict(X, users=users)
    assert solved == []
    local = model.result_.local
    again = pickle.loads(pickle.dumps(local))
    assert again.rows is None
    assert_array_equal(again.theta, local.theta)
    assert solved == [1]
    assert local.converged.all()
