"""Inexact local models: projected SGD (I-ODCL, Theorem 2), and other people's estimators."""

from __future__ import annotations

import numpy as np
import pytest
from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import (
    ElasticNet,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
)
from sklearn.neighbors import KNeighborsClassifier

from odcl.data.federation import Federation
from odcl.local.fit import fit_users
from odcl.local.solvers import ProjectedSGD
from odcl.risk.losses import Huber, Logistic, Multinomial, Poisson, Squared
from odcl.risk.risk import Risk
from tests.helpers import every_loss, logistic_labels


def users_with(loss, n_users=12, n=50, p=3, seed=0, weighted=False):
    """Users with targets of the kind that the loss takes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_users * n, p))
    users = np.repeat(np.arange(n_users), n)
    z = (X * rng.normal(size=(n_users, p))[users]).sum(axis=1)
    y = {
        "squared": z + rng.normal(size=len(z)),
        "huber": z + rng.standard_t(2, size=len(z)),
        "logistic": logistic_labels(z, rng),
        "poisson": rng.poisson(np.exp(np.clip(z, -3, 2))).astype(float),
        "multinomial": rng.integers(0, 3, len(z)).astype(float),
    }[loss.name]
    weight = rng.uniform(0.1, 3.0, len(z)) if weighted else None
    return Federation.from_arrays(X, y, users, weight=weight)


def fit_local(federation, loss, l2=0.5, intercept=False, **kwargs):
    return fit_users(federation, Risk(loss, l2, intercept), **kwargs)


@pytest.mark.slow
@every_loss
@pytest.mark.parametrize("output", ["last", "average"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_error_falls_as_one_over_T(loss, output, weighted):
    """Theorem 2's rate for steps 1/(mu t): nine times the steps, a ninth of the squared error."""
    federation = users_with(loss, n_users=24, weighted=weighted)
    exact = fit_local(federation, loss).theta
    error = []
    for n_iter in (500, 4500):
        found = fit_local(federation, loss, solver=ProjectedSGD(n_iter, radius=5.0, output=output))
        error.append(((found.theta - exact) ** 2).sum(axis=1).mean())
    assert error[1] < 0.02 * (exact**2).sum(axis=1).mean()
    # 24 users of 3 parameters: a relative spread of 0.2 to 0.4 in each of the two averages. More
    # than nine it may be, where the first steps were too large for the loss.
    assert error[0] / error[1] > 3.5


@every_loss
def test_no_user_is_called_converged(loss):
    """The iterates are close to the minimiser, not at it."""
    federation = users_with(loss, weighted=True)
    found = fit_local(federation, loss, solver=ProjectedSGD(200, radius=5.0))
    assert not found.converged.any()


@every_loss
def test_streams_depend_on_the_seed_and_the_users_id_alone(loss):
    federation = users_with(loss)
    together = fit_local(federation, loss, solver=ProjectedSGD(60, radius=3.0), seed=7)
    for who in ([0], [5, 3], [11, 0, 4]):
        part = fit_local(
            federation.take(np.array(who)), loss, solver=ProjectedSGD(60, radius=3.0), seed=7
        )
        assert_array_equal(part.theta, together.theta[who])
    other = fit_local(federation, loss, solver=ProjectedSGD(60, radius=3.0), seed=8)
    assert (other.theta != together.theta).any(axis=1).all()
    renamed = Federation(federation.X, federation.y, federation.offsets, federation.users + 100)
    other = fit_local(renamed, loss, solver=ProjectedSGD(60, radius=3.0), seed=7)
    assert (other.theta != together.theta).any(axis=1).all()


def test_rows_drawn_beforehand_are_held_a_few_users_at_a_time(monkeypatch):
    federation = users_with(Squared())
    at_once = fit_local(federation, Squared(), solver=ProjectedSGD(50))
    monkeypatch.setattr("odcl.local.solvers._DRAWS", 120)
    assert_array_equal(
        fit_local(federation, Squared(), solver=ProjectedSGD(50)).theta, at_once.theta
    )


def test_the_first_steps_are_those_of_the_paper():
    """theta_1 = P(-(gradient of row j_1 at 0) / mu), on a user all of whose rows are the same."""
    X, y = np.full((4, 2), [3.0, 4.0]), np.ones(4)
    federation = Federation.from_arrays(X, y, np.zeros(4, dtype=int))
    # mu = l2; the gradient at 0 is -(3, 4), so the step 1/mu leads to (3, 4) / l2.
    found = fit_local(federation, Squared(), l2=10.0, solver=ProjectedSGD(1, radius=100.0))
    assert_allclose(found.theta[0], [0.3, 0.4], rtol=1e-12)
    found = fit_local(federation, Squared(), l2=0.1, solver=ProjectedSGD(1, radius=2.0))
    assert_allclose(found.theta[0], [1.2, 1.6], rtol=1e-12)  # back on the ball
    # theta_2 = theta_1 - (x (x theta_1 - y) + l2 theta_1) / (2 mu), averaged 1 : 2.
    first = np.array([0.3, 0.4])
    second = first - (X[0] * (X[0] @ first - 1) + 10 * first) / 20
    found = fit_local(federation, Squared(), l2=10.0, solver=ProjectedSGD(2, output="average"))
    assert_allclose(found.theta[0], (first + 2 * second) / 3, rtol=1e-12)


@every_loss
def test_iterates_stay_in_the_ball_however_steep_the_loss(loss):
    federation = users_with(loss)
    far = federation.with_X(300.0 * federation.X)
    with np.errstate(all="raise", under="ignore"):
        found = fit_local(far, loss, l2=1e-3, solver=ProjectedSGD(30, radius=50.0))
    assert np.isfinite(found.theta).all()
    assert (np.linalg.norm(found.theta, axis=1) <= 50.0 * (1 + 1e-12)).all()


def test_without_strong_convexity_there_is_no_step():
    """mu = 0, or 1e-40 as with log-odds in the hundreds: the error says what to set."""
    with pytest.raises(ValueError, match=r"user 0 is not strongly convex.*Set l2 > 0"):
        fit_local(users_with(Logistic()), Logistic(), l2=0.0, solver="sgd")
    collinear = users_with(Squared())
    collinear = collinear.with_X(np.column_stack([collinear.X, collinear.X[:, 0]]))
    with pytest.raises(ValueError, match="mu = 0"):
        fit_local(collinear, Squared(), l2=0.0, solver=ProjectedSGD(10))
    with pytest.raises(ValueError, match="fit no intercept"):
        fit_local(users_with(Huber()), Huber(), intercept=True, solver=ProjectedSGD(10))
    # Small features are no flat risk: the step is in their units.
    small = users_with(Squared())
    tiny = fit_local(small.with_X(1e-8 * small.X), Squared(), l2=0.0, solver=ProjectedSGD(50, 1e12))
    plain = fit_local(small, Squared(), l2=0.0, solver=ProjectedSGD(50, 1e4))
    assert_allclose(tiny.theta, 1e8 * plain.theta, rtol=1e-6)


@pytest.mark.parametrize(
    ("solver", "says"),
    [
        (ProjectedSGD(output="first"), "neither 'last' nor 'average'"),
        (ProjectedSGD(0), "n_iter >= 1"),
        (ProjectedSGD(radius=0.0), "radius > 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(solver, says):
    with pytest.raises(ValueError, match=says):
        fit_local(users_with(Squared()), Squared(), solver=solver)


# -- any scikit-learn estimator with coef_ and intercept_ --------------------------------------


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_scikit_learn_estimators_give_the_models_that_the_exact_solver_gives(fit_intercept):
    how = {"fit_intercept": fit_intercept}
    sharp = {"tol": 1e-10, "max_iter": 10_000, **how}
    cases = [
        (Squared(), LinearRegression(**how), 0.0, 1e-10),
        (Squared(), Ridge(alpha=50 * 0.1, **how), 0.1, 1e-10),
        (Logistic(), LogisticRegression(C=1 / (50 * 0.1), **sharp), 0.1, 1e-5),
        (Multinomial(3), LogisticRegression(C=1 / (50 * 0.1), **sharp), 0.1, 1e-5),
        (Multinomial(2), LogisticRegression(C=2 / (50 * 0.1), **sharp), 0.1, 1e-5),
        (Poisson(), PoissonRegressor(alpha=0.1, **sharp), 0.1, 1e-5),
    ]
    for loss, estimator, l2, tolerance in cases:
        federation = users_with(loss)
        if loss.n_outputs == 1 and loss.name == "multinomial":
            # Their penalty is on the difference of the two classes, ours on both of them.
            federation = federation.with_y(federation.y % 2)
        theirs = fit_local(federation, loss, solver=estimator, intercept=fit_intercept)
        ours = fit_local(federation, loss, l2=l2, intercept=fit_intercept)
        assert_allclose(theirs.theta, ours.theta, rtol=tolerance, atol=tolerance)
        assert theirs.converged.all()


def test_sample_weights_reach_the_estimator():
    federation = users_with(Squared(), weighted=True)
    theirs = fit_local(federation, Squared(), solver=LinearRegression(fit_intercept=False))
    assert_allclose(theirs.theta, fit_local(federation, Squared(), l2=0.0).theta, rtol=1e-9)


def test_users_whom_an_estimator_refuses_get_the_prior():
    """One class only, or not all classes of the federation: no finite model to upload."""
    federation = users_with(Multinomial(3))
    y = federation.y.copy()
    y[:50] = 1.0
    y[50:100] %= 2
    federation = federation.with_y(y)
    found = fit_local(federation, Multinomial(3), solver=LogisticRegression(), intercept=True)
    assert_array_equal(found.prior, np.arange(12) < 2)
    assert np.isfinite(found.theta).all()
    coef = found.theta.reshape(12, 4, 2) @ Multinomial(3).basis.T
    assert_allclose(coef.sum(axis=2), 0.0, atol=1e-12)
    assert (coef[0, 3] @ [1, -2, 1] < 0).all()  # the class that user 0 knows is the likely one


def test_an_estimator_without_a_random_state_gets_the_users_stream():
    federation = users_with(Logistic())
    solver = SGDClassifier(loss="log_loss")
    how = {"solver": solver, "intercept": True}
    once = fit_local(federation, Logistic(), seed=3, **how)
    assert solver.random_state is None
    assert_array_equal(fit_local(federation, Logistic(), seed=3, **how).theta, once.theta)
    assert (fit_local(federation, Logistic(), seed=4, **how).theta != once.theta).any()
    part = fit_local(federation.take(np.array([4, 2])), Logistic(), seed=3, **how)
    assert_array_equal(part.theta, once.theta[[4, 2]])
    with parallel_config(backend="threading"):  # processes take seconds to start
        with_jobs = fit_local(federation, Logistic(), seed=3, n_jobs=2, **how)
    assert_array_equal(with_jobs.theta, once.theta)


def test_what_cannot_be_uploaded_is_refused():
    with pytest.raises(ValueError, match="KNeighborsClassifier has no coef_"):
        fit_local(users_with(Logistic()), Logistic(), solver=KNeighborsClassifier())
    with pytest.raises(ValueError, match="fitted an intercept and the risk has none"):
        fit_local(users_with(Squared()), Squared(), solver=ElasticNet(alpha=0.1))
    without = fit_local(
        users_with(Squared()), Squared(), solver=Ridge(fit_intercept=False), intercept=True
    )
    assert_array_equal(without.theta[:, 3], 0.0)
