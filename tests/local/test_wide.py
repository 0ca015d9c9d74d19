"""Newton on the rows' Gram matrix gives what the singular value decomposition gives."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl.data.federation import Federation
from odcl.local import exact
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


def fit_either_way(federation, loss, l2, monkeypatch, *, narrow: bool = False):
    with monkeypatch.context() as patch:
        if narrow:  # the decomposition for everybody
            patch.setattr(exact, "MANY_FEATURES", 10**9)
            patch.setattr(exact, "MANY_ROWS", 10**9)
        return fit_users(federation, Risk(loss, l2))


@pytest.mark.parametrize("l2", [1e-8, 1e-5, 1e-2, 10.0])
@pytest.mark.parametrize("loss", [Logistic(), Huber(0.5), Poisson()], ids=lambda loss: loss.name)
def test_both_ways_give_the_same_models(loss, l2, monkeypatch):
    federation = dependent(5, 12, 200)
    if loss.name == "poisson":
        federation = federation.with_y(np.maximum(federation.y, 0.0))
    ours = fit_either_way(federation, loss, l2, monkeypatch)
    theirs = fit_either_way(federation, loss, l2, monkeypatch, narrow=True)
    assert ours.converged.all()
    assert (ours.gradient_norm <= 1e-9).all()
    # A risk that is l2-strongly convex leaves a model this far from the minimiser, not farther.
    left = (ours.gradient_norm + theirs.gradient_norm).max() / l2
    size = np.abs(theirs.theta).max()
    assert_allclose(ours.theta, theirs.theta, rtol=0, atol=1e-9 * size + left)


def test_a_user_is_the_same_alone_and_in_company(monkeypatch):
    federation = dependent(4, 12, 200)
    together = fit_either_way(federation, Logistic(), 1e-5, monkeypatch).theta
    for i in range(4):
        alone = fit_either_way(federation.take(np.array([i])), Logistic(), 1e-5, monkeypatch).theta
        assert_array_equal(alone[0], together[i])


def test_a_penalty_too_weak_for_the_systems_is_left_to_the_decomposition(monkeypatch):
    by_kernel = []
    original = exact.newton

    def newton(problem):
        by_kernel.append(problem.kernel is not None)
        return original(problem)

    monkeypatch.setattr(exact, "newton", newton)
    federation = dependent(2, 12, 200)
    fit_users(federation, Risk("logistic", 1e-13))
    assert not any(by_kernel)
    fit_users(federation, Risk("logistic", 1e-5))
    assert any(by_kernel)


def test_pooled_groups_with_nearly_dependent_rows_are_solved_here():
    """As many rows as a group of the Cluster Oracle, on a smaller scale."""
    rng = np.random.default_rng(1)
    low = rng.standard_normal((600, 40)) @ rng.standard_normal((40, 700))
    X = low + 1e-3 * rng.standard_normal((600, 700))
    y = np.sign(low[:, 0] + rng.standard_normal(600))
    federation = Federation(X, y, np.array([0, 600]), np.arange(1))
    found = fit_users(federation, Risk("logistic", 1e-4))
    assert found.converged.all()
    assert found.gradient_norm[0] < 1e-9
