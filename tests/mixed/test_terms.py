"""Data terms: nothing is lost, whatever origin and units; copies and constants are named."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl.mixed.layout import coordinates
from odcl.mixed.terms import DataTerms, Levels, data_terms, merge, quadratics
from odcl.risk.risk import Factor

from .predictions import prediction
from .worlds import rows_of, seen


def federation(seed=0, n_users=6, dim=4):
    rng = np.random.default_rng(seed)
    return rows_of(rng.standard_normal((n_users, dim)), rng.integers(1, 9, n_users), seed=seed)


def test_a_term_holds_means_and_the_centered_scatter():
    X, y, users = federation()
    terms = data_terms(X, y, users, 6)
    for i in range(6):
        rows = np.column_stack([X, y])[users == i]
        assert_allclose(terms.mean[i], rows.mean(axis=0), atol=1e-14)
        away = rows - rows.mean(axis=0)
        assert_allclose(terms.factor[i].T @ terms.factor[i], away.T @ away, atol=1e-12)


def test_a_users_term_is_the_same_bit_for_bit_alone_and_in_a_batch():
    X, y, users = federation()
    terms = data_terms(X, y, users, 6)
    for i in range(6):
        alone = data_terms(X[users == i], y[users == i], np.zeros((users == i).sum(), int), 1)
        assert_array_equal(alone.factor[0], terms.factor[i])
        assert_array_equal(alone.mean[0], terms.mean[i])


def test_a_row_of_weight_two_is_two_rows_and_of_weight_zero_none():
    X, y, users = federation()
    weights = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    twice = np.repeat(np.arange(len(y)), weights.astype(int))
    a, b = data_terms(X, y, users, 6, weights), data_terms(X[twice], y[twice], users[twice], 6)
    assert_allclose(a.rows, b.rows)
    assert_allclose(a.mean, b.mean, atol=1e-13)
    assert_allclose(_scatter(a), _scatter(b), atol=1e-12)


def _scatter(terms):
    return terms.factor.transpose(0, 2, 1) @ terms.factor


def test_merged_terms_are_the_term_of_all_rows():
    X, y, users = federation()
    together = data_terms(X, y, np.zeros(len(y), int), 1)
    merged = merge(data_terms(X, y, users, 6))
    assert_allclose(merged.rows, together.rows)
    assert_allclose(merged.mean, together.mean, atol=1e-13)
    assert_allclose(_scatter(merged), _scatter(together), atol=1e-11)


def test_users_without_rows_take_no_part_in_a_merge():
    X, y, users = federation()
    some = data_terms(X, y, users, 9)
    assert_array_equal(some.rows[6:], 0)
    assert_allclose(merge(some).mean, merge(some[:6]).mean, atol=1e-14)


def test_a_target_of_a_billion_keeps_its_residuals():
    """Raw sums give -8192 for a residual sum of squares of 37; the factor gives all its digits."""
    X, y, users = federation(n_users=3)
    far = 1e9 + y
    near = far - 1e9  # the digits that 1e9 + y holds
    _, _, q = seen(X, near, users)
    _, _, q_far = seen(X, far, users)
    assert_allclose(q_far.uu, q.uu, rtol=1e-6)
    assert_allclose(q_far.pure, q.pure, rtol=1e-6, atol=1e-12)
    assert_allclose(q_far.b, q.b, atol=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
def test_quadratics_are_the_sums_over_rows_relative_to_the_pooled_fit(intercept):
    X, y, users = federation()
    _, at, q = seen(X, y, users, intercept=intercept)
    Z = at.design(X)
    pooled = np.linalg.lstsq(
        np.column_stack([np.ones(len(X)), X]) if intercept else X, y, rcond=None
    )[0]
    fitted = np.column_stack([np.ones(len(X)), X]) @ pooled if intercept else X @ pooled
    assert_allclose(prediction(at, np.zeros(len(y)), Z), fitted, atol=1e-12)
    u = at.target(y, Z)
    assert_allclose(u, (y - fitted) / at.target_scale, atol=1e-12)
    for i in range(6):
        z, ui = Z[users == i], u[users == i]
        assert_allclose(q.A[i], z.T @ z, atol=1e-11)
        assert_allclose(q.b[i], z.T @ ui, atol=1e-11)
        assert_allclose(q.uu[i], ui @ ui, atol=1e-11)
        rest = ui - z @ np.linalg.lstsq(z, ui, rcond=None)[0]
        assert q.dof[i] == len(ui) - np.linalg.matrix_rank(z)
        assert_allclose(q.pure[i], rest @ rest, atol=1e-11)


def test_raw_coefficients_predict_what_the_coordinates_predict():
    X, y, users = federation()
    _, at, _ = seen(5 + 3 * X, y, users)
    theta = np.random.default_rng(2).standard_normal(at.dim)
    offset, change = at.raw()
    raw = offset + change @ theta
    new = np.random.default_rng(3).standard_normal((7, 3))
    z = at.design(new)
    assert_allclose(new @ raw[:-1] + raw[-1], prediction(at, z @ theta, z), atol=1e-11)


def test_constant_columns_and_copies_are_dropped():
    X, y, users = federation()
    wide = np.column_stack([X[:, 0], np.full(len(X), 0.1), 7 - 2 * X[:, 0], X[:, 1], X[:, 0]])
    terms = data_terms(wide, y, users, 6)
    assert_array_equal(coordinates(terms).kept, [0, 3])


def test_without_an_intercept_a_constant_column_is_a_feature():
    X, y, users = federation()
    wide = np.column_stack([np.full(len(X), 3.0), X, np.zeros(len(X))])
    at = coordinates(data_terms(wide, y, users, 6), intercept=False)
    assert_array_equal(at.kept, [0, 1, 2, 3])


def test_a_target_without_noise_and_a_constant_target_have_finite_coordinates():
    X, _, users = federation()
    for y in (np.full(len(X), 4.0), 2 + X @ np.ones(3)):
        terms = data_terms(X, y, users, 6)
        q = quadratics(terms, coordinates(terms))
        assert all(np.isfinite(part).all() for part in (q.A, q.b, q.uu, q.pure))
        assert_allclose(q.uu, 0, atol=1e-20)


def test_terms_of_some_users_are_a_part():
    X, y, users = federation()
    terms = data_terms(X, y, users, 6)
    part = terms[np.array([4, 1])]
    assert isinstance(part, DataTerms)
    assert_array_equal(part.mean, terms.mean[[4, 1]])


# -- factors -----------------------------------------------------------------------------------


def with_levels(seed=0, n_users=5):
    X, y, users = federation(seed, n_users, dim=3)
    level = np.random.default_rng(seed).integers(0, 4, len(y))
    return X, np.eye(4)[level], y, users


def test_references_of_factors_are_columns_like_the_others():
    X, dummies, y, users = with_levels()
    rows = np.column_stack([X, dummies[:, 1:]])
    levels = Levels.of([Factor((2, 3, 4))], 5)
    every = np.column_stack([X, dummies[:, 1:], dummies[:, 0]])
    assert_array_equal(levels.rows(rows), every)
    terms, whole = data_terms(rows, y, users, 5), data_terms(every, y, users, 5)
    assert_allclose(levels.terms(terms).mean, whole.mean, atol=1e-14)
    assert_allclose(_scatter(levels.terms(terms)), _scatter(whole), atol=1e-12)


@pytest.mark.parametrize("reference", [0, 2, None])
def test_coordinates_do_not_tell_which_level_is_the_reference(reference):
    """None: all levels have a column of their own, and the rest of them is nothing."""
    X, dummies, y, users = with_levels()

    def seen_from(reference):
        own = [j for j in range(4) if j != reference]
        rows = np.column_stack([X, dummies[:, own]])
        terms = data_terms(rows, y, users, 5)
        at = coordinates(terms, factors=[Factor(tuple(range(2, 2 + len(own))))])
        return rows, at, quadratics(terms, at)

    _, _, q = seen_from(1)
    rows, at, same = seen_from(reference)
    assert at.dim == 7
    assert_allclose(np.linalg.eigvalsh(same.A), np.linalg.eigvalsh(q.A), atol=1e-10)
    assert_allclose(same.uu, q.uu, rtol=1e-12)
    assert_allclose(same.pure, q.pure, atol=1e-12)
    assert_array_equal(same.dof, q.dof)
    # Models of all levels are models of the columns.
    theta = np.random.default_rng(1).standard_normal(at.dim)
    offset, change = at.raw()
    raw, z = offset + change @ theta, at.design(rows)
    assert_allclose(rows @ raw[:-1] + raw[-1], prediction(at, z @ theta, z), atol=1e-12)


def test_a_factor_of_columns_that_are_not_there_is_refused():
    X, _, y, users = with_levels()
    with pytest.raises(ValueError, match="column 4, and there are 2 features"):
        coordinates(data_terms(X, y, users, 5), factors=[Factor((0, 4))])
