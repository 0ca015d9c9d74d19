"""Many parameters: steps by conjugate gradients end where steps by Cholesky do."""

from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression

from odcl import ODCLClassifier
from odcl.data.federation import Federation
from odcl.local import newton
from odcl.local.fit import solve_users
from odcl.local.problem import Penalty
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk
from tests.helpers import peak_memory

RISKS = {
    "multinomial": Risk(Multinomial(6), 0.02, True),
    "logistic": Risk("logistic", 0.02, True),
    "poisson": Risk("poisson", 0.02, True),
}


def federation(loss, *, n_rows=(40, 90, 61), p=45, seed=0):
    """Correlated features, fewer and more rows than features."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(len(n_rows)), n_rows)
    X = rng.standard_normal((len(users), 8)) @ rng.standard_normal((8, p)) / 3
    X += 0.5 * rng.standard_normal(X.shape)
    z = 0.5 * X @ rng.standard_normal((p, 6))
    y = {
        "multinomial": (z + rng.gumbel(size=z.shape)).argmax(axis=1),
        "logistic": np.where(z[:, 0] + rng.logistic(size=len(z)) > 0, 1.0, -1.0),
        "poisson": rng.poisson(np.exp(np.clip(z[:, 0], -3, 2))),
    }[loss]
    return Federation.from_arrays(X, y, users)


@pytest.mark.parametrize("loss", RISKS)
@pytest.mark.parametrize("free", [True, False])
def test_conjugate_gradients_end_where_cholesky_does(loss, free, monkeypatch):
    rows, risk = federation(loss), RISKS[loss]
    penalty = Penalty(np.full(rows.n_users, 0.02), free=free)
    monkeypatch.setattr(newton, "MANY", 10**9)
    dense = solve_users(rows, risk, penalty)
    monkeypatch.setattr(newton, "MANY", 0)
    found = solve_users(rows, risk, penalty)
    assert found.converged.all()
    assert dense.converged.all()
    # The penalty bounds the error by the gradient's size over 0.02.
    assert_allclose(found.theta, dense.theta, rtol=1e-8, atol=1e-9)


def test_six_classes_are_those_of_scikit_learn():
    rows, n = federation("multinomial", n_rows=(90,)), 90
    found = solve_users(rows, Risk(Multinomial(6), 0.02, True))
    assert Risk(Multinomial(6), intercept=True).dim(rows.n_features) > newton.MANY
    model = found.theta[0].reshape(46, 5) @ Multinomial(6).basis.T
    other = LogisticRegression(C=1 / (0.02 * n), tol=1e-10, max_iter=10_000)
    other.fit(rows.X, rows.y)
    assert_allclose(model[:45].T, other.coef_, atol=2e-6)
    assert_allclose(model[45] - model[45].mean(), other.intercept_, atol=2e-6)


def test_a_user_is_the_same_alone_and_in_any_stack(monkeypatch):
    rows, risk = federation("multinomial", n_rows=(40, 90, 40, 90, 40, 90)), RISKS["multinomial"]
    together = solve_users(rows, risk).theta
    for i in range(rows.n_users):
        assert_array_equal(solve_users(rows.take(np.array([i])), risk).theta[0], together[i])
    monkeypatch.setattr(newton, "NEAR_BYTES", 1)  # every user in a stack of its own
    assert_array_equal(solve_users(rows, risk).theta, together)


def test_separable_classes_without_a_penalty_are_told():
    rows = federation("multinomial", n_rows=(40, 30))
    assert solve_users(rows, Risk(Multinomial(6), 0.0, True)).prior.all()


def in_classes(n_classes, *, m=20, n=100, seed=0):
    """One feature, many classes: few parameters per class, a large curvature per row."""
    rng = np.random.default_rng(seed)
    X, users = rng.standard_normal((m * n, 1)), np.repeat(np.arange(m), n)
    z = X @ rng.standard_normal((1, n_classes)) + rng.gumbel(size=(m * n, n_classes))
    y = z.argmax(axis=1)
    y[:n_classes] = np.arange(n_classes)  # each is there
    return Federation.from_arrays(X, y, users)


def test_many_classes_of_few_features_end_where_cholesky_does(monkeypatch):
    rows, risk = in_classes(24, m=3), Risk(Multinomial(24), 0.02, True)
    assert risk.dim(rows.n_features) < newton.MANY
    penalty = Penalty(np.full(3, 0.02), free=False)
    found = solve_users(rows, risk, penalty)
    monkeypatch.setattr(newton, "MANY_OUTPUTS", 10**9)
    dense = solve_users(rows, risk, penalty)
    assert found.converged.all()
    assert_allclose(found.theta, dense.theta, rtol=1e-8, atol=1e-9)


def test_some_classes_are_the_same_in_stacks_of_any_size(monkeypatch):
    rows, risk = in_classes(12, m=6), Risk(Multinomial(12), 0.02, True)
    together = solve_users(rows, risk).theta
    monkeypatch.setattr(newton, "DENSE_BYTES", 1)
    assert_array_equal(solve_users(rows, risk).theta, together)


def test_forty_classes_cost_time_and_memory_in_proportion():
    """With a curvature of classes by classes per row and fit: .8 GB, and 57 times the time."""

    def fitted(n_classes):
        rows = in_classes(n_classes, m=10)
        start = time.process_time()
        ODCLClassifier().fit(rows.X, rows.y, users=rows.row_user)
        return time.process_time() - start

    _, few = fitted(5), fitted(5)  # the first imports
    many, peak = peak_memory(lambda: fitted(40))
    assert peak < 50e6
    assert many < 15 * few
