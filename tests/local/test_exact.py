"""Exact local models: the minimiser, for every user, whatever the company it is solved in."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog, minimize
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)

from odcl.data.federation import Federation
from odcl.local.fit import PRIOR, fit_users, solve_users
from odcl.local.problem import Penalty, Solution
from odcl.risk.losses import Huber, Logistic, Multinomial, Poisson, Squared
from odcl.risk.risk import Risk
from tests.helpers import LOSSES, every_loss, logistic_labels

with_or_without_intercept = pytest.mark.parametrize("intercept", [False, True])
unhurried = settings(deadline=None, derandomize=True, max_examples=40)


def targets_around(loss, z, rng):
    """Targets of the loss's own kind around the predictor z."""
    n = len(z)
    if loss.name == "squared":
        return z + rng.normal(size=n)
    if loss.name == "huber":
        return z + rng.standard_t(2, size=n)
    if loss.name == "logistic":
        return logistic_labels(z, rng)
    if loss.name == "poisson":
        return rng.poisson(np.exp(np.minimum(z, 6))).astype(float)
    utility = np.column_stack([z, -z, np.zeros(n)]) + rng.gumbel(size=(n, 3))
    return utility.argmax(axis=1).astype(float)


def federation_of_blocks(blocks, weight=None):
    """One user per block (X, y)."""
    X = np.vstack([np.asarray(x, dtype=float) for x, _ in blocks])
    y = np.concatenate([np.asarray(t, dtype=float) for _, t in blocks])
    users = np.repeat(np.arange(len(blocks)), [len(t) for _, t in blocks])
    return Federation.from_arrays(X, y, users, weight=weight)


def solve(federation, loss, l2=0.0, *, intercept=False, **kwargs) -> Solution:
    return solve_users(federation, Risk(loss, l2, intercept), **kwargs)


def fit(federation, loss, l2=0.0, *, intercept=False, **kwargs):
    return fit_users(federation, Risk(loss, l2, intercept), **kwargs)


def solve_one(X, y, loss, l2=0.0, weight=None, **kwargs) -> Solution:
    return solve(federation_of_blocks([(X, y)], weight), loss, l2, **kwargs)


def true_gradient(federation, i, theta, loss, l2, intercept):
    rows = federation.rows(i)
    weight = None if federation.weight is None else federation.weight[rows]
    X, y = federation.X[rows], federation.y[rows]
    return Risk(loss, l2, intercept).gradient(theta, X, y, weight)


def gaussian_users(loss, sizes, p, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    blocks = []
    for n in sizes:
        X = rng.normal(size=(n, p))
        blocks.append((X, targets_around(loss, X @ rng.normal(size=p) * scale / np.sqrt(p), rng)))
    return federation_of_blocks(blocks)


# -- agreement with scipy and scikit-learn, user by user ---------------------------------------

SIZES = [30, 47, 64, 65, 90, 200, 333]


@with_or_without_intercept
def test_least_squares_is_that_of_scikit_learn(intercept):
    federation = gaussian_users(Squared(), SIZES, 5)
    found = solve(federation, Squared(), intercept=intercept)
    for (_, X, y), theta in zip(federation, found.theta, strict=True):
        theirs = LinearRegression(fit_intercept=intercept).fit(X, y)
        expected = np.append(theirs.coef_, theirs.intercept_)[: 5 + intercept]
        assert_allclose(theta, expected, rtol=1e-11, atol=1e-13)


@with_or_without_intercept
@pytest.mark.parametrize("l2", [1e-6, 0.1, 10.0])
def test_ridge_is_that_of_scikit_learn(intercept, l2):
    """Their penalty is on the sum over rows, ours on the mean: alpha = n l2."""
    federation = gaussian_users(Squared(), [3, 5, 6, *SIZES], 5)
    found = solve(federation, Squared(), l2, intercept=intercept)
    for (_, X, y), theta in zip(federation, found.theta, strict=True):
        theirs = Ridge(alpha=len(y) * l2, fit_intercept=intercept, solver="svd").fit(X, y)
        expected = np.append(theirs.coef_, theirs.intercept_)[: 5 + intercept]
        assert_allclose(theta, expected, rtol=1e-9, atol=1e-12)


@with_or_without_intercept
@pytest.mark.parametrize("l2", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("loss", [Logistic(), Poisson()], ids=lambda loss: loss.name)
def test_logistic_and_poisson_are_those_of_scikit_learn(loss, l2, intercept):
    federation = gaussian_users(loss, SIZES, 4)
    found = solve(federation, loss, l2, intercept=intercept)
    assert found.converged.all()
    assert not found.prior.any()
    for (_, X, y), theta in zip(federation, found.theta, strict=True):
        if loss.name == "logistic":
            C = 1 / (len(y) * l2) if l2 else np.inf
            theirs = LogisticRegression(
                C=C, tol=1e-10, max_iter=10_000, fit_intercept=intercept, solver="newton-cg"
            )
        else:
            theirs = PoissonRegressor(
                alpha=l2, tol=1e-10, fit_intercept=intercept, solver="newton-cholesky"
            )
        theirs.fit(X, y)
        expected = np.append(theirs.coef_, theirs.intercept_)[: 4 + intercept]
        # Theirs stops at a gradient of 1e-10.
        assert_allclose(theta, expected, rtol=1e-7, atol=1e-8)


@with_or_without_intercept
@pytest.mark.parametrize("l2", [1e-3, 1.0])
def test_multinomial_is_that_of_scikit_learn(l2, intercept):
    """With a penalty, theirs sums to zero over the classes of itself."""
    loss = Multinomial(3)
    federation = gaussian_users(loss, SIZES, 4)
    found = solve(federation, loss, l2, intercept=intercept)
    for (_, X, y), theta in zip(federation, found.theta, strict=True):
        theirs = LogisticRegression(
            C=1 / (len(y) * l2), tol=1e-10, max_iter=10_000, fit_intercept=intercept
        ).fit(X, y)
        ours = theta.reshape(4 + intercept, 2) @ loss.basis.T
        assert_allclose(ours.sum(axis=1), 0.0, atol=1e-14)
        assert_allclose(ours[:4].T, theirs.coef_, rtol=1e-5, atol=1e-6)
        if intercept:
            centred = theirs.intercept_ - theirs.intercept_.mean()
            assert_allclose(ours[4], centred, rtol=1e-5, atol=1e-6)


@with_or_without_intercept
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_huber_is_where_scipy_finds_it(l2, intercept):
    loss = Huber(1.0)
    risk = Risk(loss, l2, intercept)
    federation = gaussian_users(loss, SIZES, 4)
    found = solve(federation, loss, l2, intercept=intercept)
    assert found.converged.all()
    for (_, X, y), theta in zip(federation, found.theta, strict=True):
        theirs = minimize(
            partial(risk.value, X=X, y=y),
            np.zeros(4 + intercept),
            jac=partial(risk.gradient, X=X, y=y),
            method="BFGS",
            options={"gtol": 1e-9},
        )
        assert_allclose(theta, theirs.x, rtol=1e-6, atol=1e-7)


@every_loss
@with_or_without_intercept
@pytest.mark.parametrize("l2", [0.0, 1e-10, 1e-2, 10.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_vanishes_at_what_is_called_a_minimiser(loss, l2, intercept, weighted):
    federation = gaussian_users(loss, [1, 3, 8, 12, 40, 150], 8, scale=2.0)
    if weighted:
        weight = 10 ** np.random.default_rng(1).uniform(-1, 1, len(federation.y))
        federation = Federation(
            federation.X, federation.y, federation.offsets, federation.users, weight
        )
    found = solve(federation, loss, l2, intercept=intercept)
    assert found.converged.all()
    for i in np.flatnonzero(~found.prior):
        gradient = true_gradient(federation, i, found.theta[i], loss, l2, intercept)
        # Slopes of 1e3 (counts) times a rounding of 1e-16 in 150 rows, or what a step of 1e-6
        # in the predictor leaves: its square.
        assert np.linalg.norm(gradient) < 2e-10


# -- bit for bit -------------------------------------------------------------------------------


def awkward_user(kind, n, p, loss, rng):
    X = rng.normal(size=(n, p))
    if kind == "collinear" and p > 1:
        X[:, -1] = X[:, 0]
    elif kind == "nearly collinear" and p > 1:
        X[:, -1] = X[:, 0] + 1e-9 * rng.normal(size=n)
    elif kind == "units":
        X *= 10.0 ** rng.integers(-6, 7, size=p)
    elif kind == "shifted":
        X += 100.0
    elif kind == "zeros and ones":
        X = rng.integers(0, 2, size=(n, p)).astype(float)
    elif kind == "one row again and again":
        X[:] = X[0]
    z = X @ rng.normal(size=p) / max(1.0, np.abs(X).max()) * rng.choice([0.3, 3.0, 30.0])
    return X, targets_around(loss, np.clip(z, -30, 6), rng)


KINDS = [
    "plain",
    "collinear",
    "nearly collinear",
    "units",
    "shifted",
    "zeros and ones",
    "one row again and again",
]
USERS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(1, 40) | st.integers(100, 300)),
    min_size=2,
    max_size=7,
)


def fields_of_user(solution, i):
    return [getattr(solution, f.name)[i] for f in fields(solution)]


@every_loss
@unhurried
@given(
    users=USERS,
    p=st.sampled_from([1, 2, 7, 20]),
    l2=st.sampled_from([0.0, 1e-10, 0.1]),
    intercept=st.booleans(),
    weighted=st.booleans(),
    free=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_user_is_the_same_alone_in_any_batch_and_in_any_order(
    loss, users, p, l2, intercept, weighted, free, seed
):
    rng = np.random.default_rng(seed)
    blocks = [awkward_user(kind, n, p, loss, rng) for kind, n in users]
    rows = sum(n for _, n in users)
    federation = federation_of_blocks(blocks, rng.uniform(0.1, 10, rows) if weighted else None)
    m = len(users)

    def solved(who, **kwargs):
        part = federation.take(np.asarray(who))
        pen = Penalty(np.full(len(who), l2), free)
        return solve_users(part, Risk(loss, intercept=intercept), pen, **kwargs)

    together = solved(np.arange(m))
    order = rng.permutation(m)
    shuffled = solved(order, n_jobs=2)
    assert np.isfinite(together.theta).all()
    assert together.converged.all()
    for at, i in enumerate(order):
        alone = solved([i])
        for a, b, c in zip(
            fields_of_user(together, i),
            fields_of_user(shuffled, at),
            fields_of_user(alone, 0),
            strict=True,
        ):
            assert_array_equal(a, b)
            assert_array_equal(a, c)


@every_loss
def test_uploads_are_the_same_alone_and_in_any_batch(loss):
    federation = gaussian_users(loss, [2, 5, 30, 64, 65, 100], 4)
    how = {"l2": 0.1, "intercept": True}
    together = fit(federation, loss, **how).uploads
    for i in range(6):
        alone = fit(federation.take(np.array([i])), loss, **how).uploads
        assert_array_equal(alone.theta[0], together.theta[i])


def test_many_stacks_are_solved_like_one(monkeypatch):
    federation = gaussian_users(Logistic(), [50] * 40, 3)
    at_once = solve(federation, Logistic(), 0.1, intercept=True)
    monkeypatch.setattr("odcl.local.problem._TALL_BYTES", 5000)
    seen = []
    in_stacks = solve(federation, Logistic(), 0.1, intercept=True, progress=seen.append)
    assert sum(seen) == 40
    assert len(seen) == 10
    assert_array_equal(at_once.theta, in_stacks.theta)


# -- under-determined and ill-conditioned users ------------------------------------------------


@pytest.mark.parametrize(("n", "p"), [(1, 1), (1, 9), (5, 9), (8, 9), (9, 9), (30, 200), (64, 64)])
@with_or_without_intercept
def test_under_determined_users_get_the_model_of_minimum_norm(n, p, intercept):
    """Of the coefficients, with a free intercept: that of the centred rows, as in scikit-learn."""
    rng = np.random.default_rng(n + p)
    X, y = rng.normal(size=(n, p)), rng.normal(size=n)
    theta = solve_one(X, y, Squared(), intercept=intercept).theta[0]
    mean_X, mean_y = (X.mean(axis=0), y.mean()) if intercept else (0.0, 0.0)
    coef = np.linalg.lstsq(X - mean_X, y - mean_y, rcond=None)[0]
    assert_allclose(theta[:p], coef, rtol=1e-8, atol=1e-11)
    if intercept:
        assert_allclose(theta[p], mean_y - mean_X @ coef, rtol=1e-8, atol=1e-11)
    assert_allclose(X @ theta[:p] + theta[p:].sum(), y, atol=1e-9)  # no rows are left unfitted


@with_or_without_intercept
def test_repeated_columns_share_their_coefficient(intercept):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    for loss in LOSSES:
        y = targets_around(loss, X[:, 0], rng)
        once = solve_one(X, y, loss, intercept=intercept).theta
        twice = solve_one(np.column_stack([X, X[:, 1]]), y, loss, intercept=intercept).theta
        once = once.reshape(3 + intercept, loss.n_outputs)
        twice = twice.reshape(4 + intercept, loss.n_outputs)
        half = once[1] / 2
        assert_allclose(twice[:4], [once[0], half, once[2], half], rtol=1e-9, atol=1e-11)
        assert_allclose(twice[4:], once[3:], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("gap", [1e-5, 1e-7, 1e-9])
@with_or_without_intercept
def test_nearly_collinear_columns_are_told_apart_as_well_as_lstsq_does(gap, intercept):
    """Condition numbers of 1e5 to 1e9, where normal equations would lose all digits from 1e8 on."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    X[:, 3] = X[:, 0] + gap * rng.normal(size=60)
    theta = np.array([1.0, -2.0, 0.5, 3.0])
    D = np.column_stack([X, np.ones(60)])[:, : 4 + intercept]
    y = D @ np.append(theta, 0.7)[: 4 + intercept]
    found = solve_one(X, y, Squared(), intercept=intercept).theta[0]
    # The rows themselves are rounded: 1e-16 / gap of the coefficients is not in them.
    assert_allclose(found[:4], theta, atol=1e-14 / gap)
    y = y + rng.normal(size=60)
    found = solve_one(X, y, Squared(), intercept=intercept).theta[0]
    theirs = np.linalg.lstsq(D, y, rcond=None)[0]
    # With residuals of 1, coefficients of 1 / gap are known to 1e-16 / gap of themselves.
    assert_allclose(found, theirs, rtol=1e-12 / gap, atol=1e-12 / gap)
    assert np.sum((y - D @ found) ** 2) <= np.sum((y - D @ theirs) ** 2) * (1 + 1e-7)


@pytest.mark.parametrize("condition", [1e10, 1e12, 1e14])
def test_the_fit_of_an_ill_conditioned_user_is_that_of_lstsq(condition):
    rng = np.random.default_rng(1)
    U, _ = np.linalg.qr(rng.normal(size=(80, 6)))
    V, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    X = (U * np.geomspace(1, 1 / condition, 6)) @ V.T
    y = U @ rng.normal(size=6) * np.geomspace(1, 1 / condition, 6).mean() + rng.normal(size=80)
    found = solve_one(X, y, Squared())
    theirs = np.linalg.lstsq(X, y, rcond=None)[0]
    ours, best = (np.linalg.norm(y - X @ t) for t in (found.theta[0], theirs))
    # Coefficients of up to 1e13 that cancel are rounded at 1e-3: so little of it shows in the fit.
    assert ours <= best * (1 + 1e-6)
    for loss in (Logistic(), Huber(), Poisson()):
        target = targets_around(loss, U[:, 0], rng)
        assert solve_one(X, target, loss).converged.all()


@with_or_without_intercept
def test_the_units_of_the_columns_do_not_matter(intercept):
    """Columns at 1e12 and 1e-12: the coefficients are those of equal columns, in other units."""
    rng = np.random.default_rng(2)
    units = np.array([1e12, 1e-12, 1.0, 1e6])
    for loss in LOSSES:
        X = rng.normal(size=(120, 4))
        y = targets_around(loss, X @ np.array([1.0, -1.0, 0.5, 0.2]), rng)
        plain = solve_one(X, y, loss, intercept=intercept)
        scaled = solve_one(X * units, y, loss, intercept=intercept)
        in_units = scaled.theta.reshape(4 + intercept, loss.n_outputs)
        in_units[:4] *= units[:, None]
        assert scaled.converged.all()
        assert_allclose(in_units.ravel(), plain.theta[0], rtol=1e-8, atol=1e-10)


@every_loss
def test_constant_columns_are_left_to_the_intercept(loss):
    """Zeros, a constant, a constant that rounds: coefficient zero, and the rest as without."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(70, 2))
    y = targets_around(loss, X[:, 0], rng)
    more = np.column_stack([X, np.zeros(70), np.full(70, 5.0), np.full(70, 0.1) * 3e7])
    for shift in (0.0, 1e-9):
        with_them = solve_one(more + shift, y, loss, intercept=True).theta[0]
        without = solve_one(X + shift, y, loss, intercept=True).theta[0]
        with_them = with_them.reshape(6, loss.n_outputs)
        without = without.reshape(3, loss.n_outputs)
        assert_allclose(with_them[[0, 1, 5]], without, rtol=1e-8, atol=1e-9)
        assert_array_equal(with_them[2:5], 0.0)


@every_loss
@pytest.mark.parametrize("shift", [10.0, 1e4, 1e7])
def test_features_far_from_zero_cost_no_digits_but_their_own(loss, shift):
    rng = np.random.default_rng(4)
    X = np.round(rng.normal(size=(80, 3)), 6)  # exact when shifted
    y = targets_around(loss, X[:, 0], rng)
    near, far = (solve_one(X + s, y, loss, intercept=True) for s in (0.0, shift))
    assert far.converged.all()
    q = loss.n_outputs
    coef = near.theta.reshape(4, q)[:3]
    assert_allclose(far.theta.reshape(4, q)[:3], coef, rtol=1e-6, atol=1e-8)
    intercept = near.theta.reshape(4, q)[3] - shift * coef.sum(axis=0)
    assert_allclose(far.theta.reshape(4, q)[3], intercept, rtol=1e-6, atol=1e-8 * shift)


@every_loss
@pytest.mark.parametrize("p", [30, 400])
def test_wide_users_are_solved_in_the_span_of_their_rows(loss, p):
    """n < dim: the same minimiser as the long way round, and a combination of the rows."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(12, p))
    y = targets_around(loss, X[:, 0], rng)
    found = solve_one(X, y, loss, 0.05)
    coef = found.theta.reshape(p, loss.n_outputs)
    in_span = X.T @ np.linalg.lstsq(X.T, coef, rcond=None)[0]
    assert_allclose(coef, in_span, atol=1e-12)
    gradient = Risk(loss, 0.05).gradient(found.theta[0], X, y)
    assert np.linalg.norm(gradient) < 1e-11


@every_loss
@with_or_without_intercept
def test_rows_that_repeat_among_wide_users(loss, intercept):
    """The rows' Gram matrix is singular, whatever l2 is."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(6, 20))[[0, 1, 2, 3, 4, 5, 0, 1, 2]]
    y = targets_around(loss, X[:, 0], rng)
    for l2 in (1e-8, 0.1):
        found = solve_one(X, y, loss, l2, intercept=intercept)
        assert found.converged.all()
        if not found.prior.any():
            gradient = true_gradient(
                federation_of_blocks([(X, y)]), 0, found.theta[0], loss, l2, intercept
            )
            assert np.linalg.norm(gradient) < 1e-10


# -- weights -----------------------------------------------------------------------------------


@every_loss
@with_or_without_intercept
@pytest.mark.parametrize(("n", "p"), [(60, 3), (8, 20)])
def test_whole_weights_are_repeated_rows(loss, intercept, n, p):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, p))
    y = targets_around(loss, X[:, 0], rng)
    weight = rng.integers(1, 5, n)
    again = np.repeat(np.arange(n), weight)
    for l2 in (0.0, 0.1):
        once = solve_one(X, y, loss, l2, weight, intercept=intercept)
        repeated = solve_one(X[again], y[again], loss, l2, intercept=intercept)
        assert_array_equal(once.prior, repeated.prior)
        assert_allclose(once.theta, repeated.theta, rtol=1e-8, atol=1e-9)


@every_loss
@with_or_without_intercept
@pytest.mark.parametrize(("n", "p"), [(100, 3), (8, 20)])
def test_very_uneven_weights(loss, intercept, n, p):
    """From 1e-6 to 1e6; and their common factor does not matter."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(n, p))
    y = targets_around(loss, X[:, 0], rng)
    weight = 10 ** rng.uniform(-6, 6, n)
    federation = federation_of_blocks([(X, y)], weight)
    found = solve(federation, loss, 0.01, intercept=intercept)
    assert found.converged.all()
    if not found.prior.any():
        gradient = true_gradient(federation, 0, found.theta[0], loss, 0.01, intercept)
        assert np.linalg.norm(gradient) < 1e-10
    other = solve_one(X, y, loss, 0.01, weight * 2.0**20, intercept=intercept)
    if not found.prior.any():  # the prior is one of the sum over rows
        assert_allclose(other.theta, found.theta, rtol=1e-9, atol=1e-12)


# -- users without a finite minimiser ----------------------------------------------------------

rng = np.random.default_rng(9)
NORMAL = rng.normal(size=(40, 2))
NOISY = np.where(NORMAL[:, 0] + rng.normal(size=40) > 0, 1.0, -1.0)
DUMMY = np.column_stack([NORMAL, np.arange(40) < 4])  # a column that only four rows know
COUNTS = rng.poisson(2.0, 40).astype(float) + 1
THREE = rng.integers(0, 3, 40).astype(float)
ONES_FIRST = np.where(np.arange(40) < 4, 1.0, NOISY)

WITHOUT_MINIMISER = {
    "separable": (Logistic(), NORMAL, np.sign(NORMAL[:, 0] + 0.3), 0.0, True),
    "separable through zero": (Logistic(), NORMAL, np.sign(NORMAL[:, 0]), 0.0, False),
    "quasi-separable": (Logistic(), DUMMY, ONES_FIRST, 0.0, True),
    "quasi-separable through zero": (Logistic(), DUMMY, ONES_FIRST, 0.0, False),
    "touching": (Logistic(), [[-2], [-1], [0], [0], [1]], [-1, -1, -1, 1, 1], 0.0, True),
    "rows of zeros": (Logistic(), [[0.0], [0.0], [1.0], [2.0]], [1, -1, 1, 1], 0.0, False),
    "one class": (Logistic(), NORMAL, np.ones(40), 1.0, True),
    "one row": (Logistic(), [[1.0, 2.0]], [1], 0.0, True),
    "wide": (Logistic(), np.eye(5, 9), [1, -1, 1, 1, -1], 0.0, False),
    "no counts": (Poisson(), NORMAL, np.zeros(40), 1.0, True),
    "no counts where the dummy is": (Poisson(), DUMMY, COUNTS * ~(np.arange(40) < 4), 0.0, True),
    "counts on one side": (Poisson(), np.abs(NORMAL), np.zeros(40), 0.0, False),
    "a class never seen": (Multinomial(4), NORMAL, THREE, 1.0, True),
    "three separable classes": (Multinomial(3), np.eye(3)[THREE.astype(int)], THREE, 0.0, False),
    "one class of three set apart": (
        Multinomial(3),
        np.column_stack([NORMAL, THREE == 1]),
        THREE,
        0.0,
        True,
    ),
}
WITH_MINIMISER = {
    "leverage": (Logistic(), [[1], [1], [1], [1], [100]], [1, 1, 1, -1, 1], 0.0, False),
    "leverage of 1e9": (Logistic(), [[1], [1], [1], [1], [1e9]], [1, 1, 1, -1, 1], 0.0, False),
    "overlap of 1e-6": (
        Logistic(),
        np.append(np.linspace(-1, 0, 50), np.linspace(-1e-6, 1, 50))[:, None],
        np.repeat([-1, 1], 50),
        0.0,
        True,
    ),
    "separable, l2 = 1e-10": (Logistic(), NORMAL, np.sign(NORMAL[:, 0]), 1e-10, False),
    "quasi-separable, l2 = 1e-10": (Logistic(), DUMMY, ONES_FIRST, 1e-10, True),
    "one of 5000": (
        Logistic(),
        np.random.default_rng(0).normal(size=(5000, 3)),
        np.where(np.arange(5000) == 7, 1, -1),
        0.0,
        True,
    ),
    "identical rows": (Logistic(), [[1.0, 2.0]] * 6, [1, 1, 1, -1, -1, 1], 0.0, True),
    "rows of zeros only": (Logistic(), np.zeros((4, 2)), [1, 1, -1, 1], 0.0, True),
    "no features": (Logistic(), np.zeros((4, 0)), [1, 1, -1, 1], 0.0, True),
    "no features, counts": (Poisson(), np.zeros((4, 0)), [3, 0, 1, 8], 0.0, True),
    "no features, outlier": (Huber(), np.zeros((5, 0)), [3, 0, 1, 8, 1e6], 0.0, True),
    "one row, l2": (Logistic(), [[3.0, 4.0]], [1], 0.1, False),
    "one count": (Poisson(), [[2.0]], [5], 0.0, False),
    "one count, intercept": (Poisson(), [[2.0]], [5], 0.0, True),
    "no counts on both sides": (Poisson(), NORMAL, np.zeros(40), 0.0, False),
    "a count against leverage": (Poisson(), [[1.0], [-1e5]], [10, 0], 0.0, False),
    "counts to a million": (Poisson(), NORMAL, np.round(np.exp(7 + 2 * NORMAL[:, 0])), 0.0, True),
    "a million, no intercept": (Poisson(), np.abs(NORMAL), np.full(40, 1e6), 0.0, False),
    "counts, l2 = 1e-10": (Poisson(), DUMMY, COUNTS * ~(np.arange(40) < 4), 1e-10, True),
    "features at 1e6": (Poisson(), 1e6 * NORMAL + 1e7, COUNTS, 0.0, True),
    "class never seen, no intercept": (Multinomial(3), NORMAL, THREE % 2, 0.0, False),
    "three classes, l2 = 1e-10": (Multinomial(3), np.eye(3)[THREE.astype(int)], THREE, 1e-10, True),
    "outlier of 1e12": (
        Huber(),
        NORMAL,
        np.where(np.arange(40) == 3, 1e12, NORMAL[:, 0] + COUNTS),
        0.0,
        True,
    ),
    "Huber leverage": (
        Huber(),
        np.append(NORMAL[:, :1], [[300.0]], axis=0),
        np.append(NORMAL[:, 0], 0.0),
        0.0,
        False,
    ),
    "Huber, all far out": (Huber(1e-6), NORMAL, 1e3 * NORMAL[:, 0] ** 2, 0.0, True),
    "Huber, hardly more rows than columns": (
        Huber(),
        np.random.default_rng(1).normal(size=(12, 8)),
        1e3 * np.random.default_rng(2).standard_cauchy(12),
        0.0,
        False,
    ),
}


@pytest.mark.parametrize("name", WITHOUT_MINIMISER)
def test_users_without_a_finite_minimiser_get_the_prior(name):
    """The stated one: N(0, 10^2) on every coefficient, the intercept included, on top of l2."""
    loss, X, y, l2, intercept = WITHOUT_MINIMISER[name]
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    found = solve_one(X, y, loss, l2, intercept=intercept)
    assert found.prior[0]
    assert found.converged[0]
    q, n = loss.n_outputs, len(y)
    pen = np.full((X.shape[1] + intercept, q), l2 + PRIOR / n)
    pen[X.shape[1] :] = PRIOR / n
    bare = Risk(loss, intercept=intercept).gradient(found.theta[0], X, y)
    assert np.linalg.norm(bare + pen.ravel() * found.theta[0]) < 1e-9


@pytest.mark.parametrize("name", WITH_MINIMISER)
def test_users_with_a_finite_minimiser_find_it_however_far(name):
    loss, X, y, l2, intercept = WITH_MINIMISER[name]
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    found = solve_one(X, y, loss, l2, intercept=intercept)
    assert found.converged[0]
    assert not found.prior[0]
    gradient = Risk(loss, l2, intercept).gradient(found.theta[0], X, y)
    # Against the pulls that balance: sizes of the columns times sizes of the slopes.
    D = np.column_stack([X, np.ones(len(X))])[:, : X.shape[1] + intercept]
    z = D @ found.theta[0].reshape(D.shape[1], loss.n_outputs)
    pull = np.abs(D).T @ (1.0 + np.abs(loss.slope(z, y))) / len(y)
    assert (np.abs(gradient) <= 1e-9 * pull.ravel()).all()


def test_one_lost_user_does_not_stop_the_others():
    good = gaussian_users(Logistic(), [50, 80], 2)
    blocks = [(X, y) for _, X, y in good]
    mixed = federation_of_blocks([blocks[0], (NORMAL, np.sign(NORMAL[:, 0])), blocks[1]])
    found = solve(mixed, Logistic())
    assert_array_equal(found.prior, [False, True, False])
    assert_array_equal(found.theta[[0, 2]], solve(good, Logistic()).theta)


def falls_for_ever(D, y, loss):
    """By linear programming: along some way, does no row's loss rise and some row's fall?"""
    D = D / np.where(np.abs(D).max(axis=0) > 0, np.abs(D).max(axis=0), 1.0)
    level = np.zeros((0, D.shape[1]))
    if loss.name == "logistic":
        down = y[:, None] * D
    elif loss.name == "poisson":
        down, level = -D[y == 0], D[y > 0]
    else:
        own = loss.basis[y.astype(int)]
        gaps = own[:, None] - loss.basis[None]
        down = np.einsum("nk,ncq->nckq", D, gaps).reshape(-1, D.shape[1] * loss.n_outputs)
    if len(down) == 0:
        return False
    best = linprog(
        -down.sum(axis=0),
        A_ub=-down,
        b_ub=np.zeros(len(down)),
        A_eq=level if len(level) else None,
        b_eq=np.zeros(len(level)) if len(level) else None,
        bounds=(-1, 1),
    )
    return -best.fun > 1e-7


@pytest.mark.parametrize(
    "loss", [Logistic(), Poisson(), Multinomial(3)], ids=lambda loss: loss.name
)
@with_or_without_intercept
def test_who_is_lost_is_what_linear_programming_says(loss, intercept):
    """Small whole numbers: separable, touching and overlapping users in about equal shares."""
    rng = np.random.default_rng(10)
    blocks = []
    for _ in range(150):
        n, span = rng.integers(2, 22), rng.integers(1, 4)
        X = rng.integers(-span, span + 1, size=(n, 3)).astype(float)
        X *= 10.0 ** rng.integers(-3, 4, size=3)
        if rng.random() < 0.2:
            X[:, 1] = X[:, 0]
        z = X / np.maximum(np.abs(X).max(axis=0), 1e-9) @ rng.normal(size=3)
        blocks.append((X, targets_around(loss, rng.choice([1.0, 3.0]) * z, rng)))
    found = solve(federation_of_blocks(blocks), loss, intercept=intercept)
    truth = [
        falls_for_ever(np.column_stack([X, np.ones(len(X))])[:, : 3 + intercept], y, loss)
        for X, y in blocks
    ]
    assert_array_equal(found.prior, truth)
    assert found.converged.all()
    assert 10 < np.sum(truth) < 145


# -- penalties that hold the intercept ---------------------------------------------------------


@every_loss
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("n", [6, 60])
def test_a_penalty_may_hold_the_intercept(loss, free, n):
    rng = np.random.default_rng(11)
    X = rng.normal(size=(n, 9)) + 1.0
    y = targets_around(loss, X[:, 0] - 1.0, rng)
    y[:3] = [0, 1, 2] if loss.name == "multinomial" else [1, -1, 1]  # all classes are there
    y = np.abs(y) if loss.name == "poisson" else y
    federation, q = federation_of_blocks([(X, y)]), loss.n_outputs
    found = solve_users(federation, Risk(loss, intercept=True), Penalty(np.array([0.3]), free=free))
    assert found.converged[0]
    strength = np.full((10, q), 0.3)
    strength[9] = 0.0 if free else 0.3
    gradient = Risk(loss, intercept=True).gradient(found.theta[0], X, y)
    gradient += strength.ravel() * found.theta[0]
    assert np.linalg.norm(gradient) < 1e-10


# -- what users upload -------------------------------------------------------------------------


def test_what_cannot_be_fitted_is_named():
    federation = gaussian_users(Squared(), [10, 10], 2)
    X = federation.X.copy()
    X[13, 1] = np.nan
    with pytest.raises(ValueError, match=r"1 of 20 rows .*user 1\).* not finite"):
        fit(federation.with_X(X), Squared())
    with pytest.raises(ValueError, match="nothing to fit"):
        fit(federation.with_X(np.zeros((20, 0))), Squared())
    mean_only = fit(federation.with_X(np.zeros((20, 0))), Squared(), intercept=True)
    assert_allclose(mean_only.theta[:, 0], [federation.y[:10].mean(), federation.y[10:].mean()])
    with pytest.raises(ValueError, match=r"l2=-1\.0 is the weight of a squared norm"):
        fit(federation, Squared(), l2=-1.0)
    with pytest.raises(ValueError, match="neither 'exact'"):
        fit(federation, Squared(), solver="newton")


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("intercept", [True, False])
def test_least_squares_of_data_terms_are_those_of_the_rows(l2, intercept):
    """Tall and wide users, far from zero; the shortest model where many would do."""
    rng = np.random.default_rng(7)
    users = np.repeat(np.arange(4), [30, 9, 3, 1])
    X, y = rng.normal(3.0, 1.0, size=(len(users), 4)), rng.normal(50.0, 9.0, len(users))
    federation, risk = Federation.from_arrays(X, y, users), Risk("squared", l2, intercept)
    found = fit_users(federation, risk, terms=True)
    assert found.solved is None
    assert_allclose(found.theta, solve_users(federation, risk).theta, rtol=1e-8, atol=1e-8)
    assert found.converged.all()
    for theta, (_, rows, seen) in zip(found.theta, federation, strict=True):
        assert np.linalg.norm(risk.gradient(theta, rows, seen)) < 1e-9
