"""Penalised fits in the span of the rows, against solutions in all features."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from odcl.wide.slopes import Fits, RowSpan, fit_slopes


def some_rows(n, d, n_classes, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    X = rng.standard_normal((n_classes, d))[y] + 2 * rng.standard_normal((n, d)) + 3.0
    return X, y, rng


def one_hot(y, n_classes):
    return (y == np.arange(n_classes)[:, None]).astype(float)


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize(("n", "d"), [(30, 80), (60, 15)])
def test_without_offsets_the_fit_is_scikit_learns(n, d, n_classes):
    X, y, rng = some_rows(n, d, n_classes)
    weight, scale = rng.uniform(0.5, 3.0, n), rng.uniform(1.0, 2.0, d)
    span = RowSpan.of(X, weight, scale, centred=True)
    intercept, slope = 2.0, 0.3
    variance = span.variances(np.array([intercept]), np.array([slope]))
    offset = np.zeros((1, n_classes, n))
    guess = rng.standard_normal((1, n_classes, len(span.size)))
    guess -= guess.mean(axis=1, keepdims=True)
    fits = Fits(span, one_hot(y, n_classes), weight[None], offset, variance, guess)
    b = fit_slopes([fits], 1e-12)[0][0]
    W = span.coefficients(b)

    center = np.average(X, axis=0, weights=weight)
    columns = np.column_stack([slope * (X - center) / scale, np.full(n, intercept)])
    # Two classes have one coefficient vector there, the difference of ours: twice the variance.
    theirs = LogisticRegression(
        C=2.0 if n_classes == 2 else 1.0, fit_intercept=False, tol=1e-10, max_iter=10_000
    )
    z = theirs.fit(columns, y, sample_weight=weight).decision_function(columns)
    mine = X @ W[:-1] + W[-1]
    if n_classes == 2:
        assert_allclose(mine[:, 1] - mine[:, 0], z, atol=2e-4)
    else:
        assert_allclose(mine - mine.mean(axis=1, keepdims=True), z, atol=2e-4)
    assert_allclose(W.sum(axis=1), 0.0, atol=1e-8)


def objective(b, span, own, weight, offset, variance):
    B = b.reshape(len(own), -1)
    f = offset + B @ span.Z.T
    top = f.max(axis=0)
    e = np.exp(f - top)
    value = weight @ (top + np.log(e.sum(axis=0)) - (own * f).sum(axis=0))
    slope = (weight * (e / e.sum(axis=0) - own)) @ span.Z + B / variance
    return value + (B**2 / variance).sum() / 2, slope.ravel()


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_offsets_of_any_size_leave_every_fit_at_its_minimum(size):
    """Also where most rows are surely wrong at the start, and for fits of very different spread."""
    n, n_classes = 25, 3
    X, y, rng = some_rows(n, 40, n_classes, seed=3)
    span, own = RowSpan.of(X, np.ones(n), np.full(40, 6.0), centred=True), one_hot(y, n_classes)
    slopes = np.array([0.0, 1.0, 10.0, 100.0])
    variance = span.variances(np.ones(4), slopes)
    weight = rng.choice([0.0, 1.0, 4.0], (4, n), p=[0.2, 0.6, 0.2])
    offset = size * rng.standard_normal((4, n_classes, n))
    nothing = np.zeros((4, n_classes, len(span.size)))
    found = fit_slopes([Fits(span, own, weight, offset, variance, nothing)], 1e-7)[0]
    for t in range(4):
        free = np.maximum(variance[t], 1e-12)
        fixed = (span, own, weight[t], offset[t], free)
        best = minimize(
            *(objective, np.zeros(found[t].size), fixed),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-8},
        )
        assert objective(found[t].ravel(), *fixed)[0] < best.fun + 0.1 * (size > 1) + 1e-4
    assert not found[0, :, :-1].any()


def test_half_the_digits_are_enough_for_a_score():
    X, y, rng = some_rows(30, 50, 5, seed=1)
    span, own = RowSpan.of(X, np.ones(30), np.full(50, 7.0), centred=True), one_hot(y, 5)
    given = (own, np.ones((2, 30)), rng.standard_normal((2, 5, 30)))
    variance = span.variances(np.ones(2), np.array([3.0, 10.0]))
    fits = Fits(span, *given, variance, np.zeros((2, 5, len(span.size))))
    whole, half = fit_slopes([fits], 1e-6)[0], fit_slopes([fits], 1e-6, np.float32)[0]
    assert half.dtype == np.float32
    assert_allclose(half @ span.Z.T, whole @ span.Z.T, atol=0.02)


def test_users_side_by_side_are_fitted_as_if_alone():
    """Bit for bit, whatever the others' rows: 17 to 24 rows are filled up alike."""
    users = []
    for n, seed in ((17, 0), (24, 1), (20, 2)):
        X, y, rng = some_rows(n, 22, 3, seed)
        span = RowSpan.of(X, rng.uniform(1, 2, n), np.full(22, 5.0), centred=True)
        variance = span.variances(np.ones(3), np.array([0.0, 3.0, 30.0]))
        offset = rng.standard_normal((3, 3, n))
        nothing = np.zeros((3, 3, len(span.size)))
        users.append(Fits(span, one_hot(y, 3), np.ones((3, n)), offset, variance, nothing))
    assert len({fits.shape for fits in users}) == 1
    together = fit_slopes(users, 1e-6)
    for fits, found in zip(users, together, strict=True):
        assert found.shape == fits.start.shape
        assert_array_equal(found, fit_slopes([fits], 1e-6)[0])
