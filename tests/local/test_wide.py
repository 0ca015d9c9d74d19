"""Users with fewer rows than features, whose rows depend on one another."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from odcl.data.federation import Federation
from odcl.local.fit import fit_users
from odcl.risk.losses import Huber, Logistic, Poisson
from odcl.risk.risk import Risk
from tests.helpers import equal_users


def dependent(n_users: int, n: int, p: int, seed: int = 0) -> Federation:
    """Rows less their user's mean: the last follows from the others."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_users, n, p)) + 2.0
    X -= X.mean(axis=1, keepdims=True)
    y = np.sign(rng.standard_normal(n_users * n))
    return equal_users(X.reshape(-1, p), y, n_users)


@pytest.mark.parametrize("l2", [1e-8, 1e-5, 1e-2, 10.0])
@pytest.mark.parametrize("loss", [Logistic(), Huber(0.5), Poisson()], ids=lambda loss: loss.name)
def test_rows_that_depend_on_one_another_are_fitted(loss, l2):
    federation = dependent(5, 12, 200)
    if loss.name == "poisson":
        federation = federation.with_y(np.maximum(federation.y, 0.0))
    risk = Risk(loss, l2)
    found = fit_users(federation, risk)
    assert found.converged.all()
    for theta, (_, X, y) in zip(found.theta, federation, strict=True):
        assert np.linalg.norm(risk.gradient(theta, X, y)) <= 1e-9


def test_a_user_is_the_same_alone_and_in_company():
    federation, risk = dependent(4, 12, 200), Risk(Logistic(), 1e-5)
    together = fit_users(federation, risk).theta
    for i in range(4):
        assert_array_equal(fit_users(federation.take(np.array([i])), risk).theta[0], together[i])


def test_pooled_groups_with_nearly_dependent_rows_are_solved_here():
    """As many rows as a group of the Cluster Oracle, on a smaller scale."""
    rng = np.random.default_rng(1)
    low = rng.standard_normal((600, 40)) @ rng.standard_normal((40, 700))
    X = low + 1e-3 * rng.standard_normal((600, 700))
    y = np.sign(low[:, 0] + rng.standard_normal(600))
    federation = Federation(X, y, np.array([0, 600]), np.arange(1))
    risk = Risk("logistic", 1e-4)
    found = fit_users(federation, risk)
    assert found.converged.all()
    assert np.linalg.norm(risk.gradient(found.theta[0], X, y)) < 1e-9
