"""Units common to all users: the same to the last bit whatever the order of rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl.data.scaling import RowColumns, Scaling, TableMoments


def columns(n=301, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)) * [1e-4, 1.0, 1e9] + [5.0, -1.0, 1e10]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_the_order_of_rows_changes_no_bit(center, weighted):
    X, rng = columns(), np.random.default_rng(1)
    weight = rng.uniform(0.1, 3.0, len(X)) if weighted else None
    first = Scaling.of(RowColumns(X, weight), center=center, standardize=True)
    for _ in range(20):
        order = rng.permutation(len(X))
        turned = RowColumns(X[order], None if weight is None else weight[order])
        again = Scaling.of(turned, center=center, standardize=True)
        assert_array_equal(again.shift, first.shift)
        assert_array_equal(again.scale, first.scale)


def test_a_unit_by_range_lies_between_deviation_and_reach():
    """A pixel lit once in a hundred rows: of sd 0.0995 and reach 0.99."""
    X = np.column_stack([np.arange(100) == 7, np.arange(100) % 2]).astype(float)
    seen = RowColumns(X)
    scaling = Scaling.of(seen, center=True, standardize=True).by_range(seen)
    assert_allclose(scaling.scale, np.sqrt(X.std(axis=0) * [0.99, 0.5]), rtol=1e-6)
    endless = Scaling(np.zeros(2), np.ones(2), np.arange(2), 2)
    wide = TableMoments(2, np.array([-np.inf, 0]), np.array([1.0, 0]), np.zeros(2), np.eye(2))
    assert_array_equal(endless.by_range(wide).scale, 1.0)


def test_columns_have_mean_zero_and_deviation_one_or_mean_square_one():
    X, weight = columns(), np.random.default_rng(1).integers(1, 4, 301).astype(float)
    for w in (None, weight):
        z = Scaling.of(RowColumns(X, w), center=True, standardize=True).apply(X)
        assert_allclose(np.average(z, axis=0, weights=w), 0.0, atol=1e-8)
        assert_allclose(np.average(z**2, axis=0, weights=w), 1.0, rtol=1e-8)
        scaling = Scaling.of(RowColumns(X, w), center=False, standardize=True)
        assert_array_equal(scaling.shift, 0.0)
        assert_allclose(np.average(scaling.apply(X) ** 2, axis=0, weights=w), 1.0, rtol=1e-8)


@pytest.mark.parametrize("center", [False, True])
def test_models_in_the_tables_units_predict_what_they_predicted(center):
    """A constant column has no coefficient: beside an intercept it says nothing."""
    X = np.insert(columns(), 1, 7.0, axis=1)
    scaling = Scaling.of(RowColumns(X), center=center, standardize=True)
    assert scaling.used.tolist() == ([0, 2, 3] if center else [0, 1, 2, 3])
    rng = np.random.default_rng(2)
    coef, intercept = rng.normal(size=(5, len(scaling.used), 2)), rng.normal(size=(5, 2))
    own, constant = scaling.undo(coef, intercept)
    assert own.shape == (5, 4, 2)
    if center:
        assert_array_equal(own[:, 1], 0.0)
    expected = scaling.apply(X) @ coef + intercept[:, None]
    assert_allclose(X @ own + constant[:, None], expected, rtol=1e-6, atol=1e-6)


def test_without_standardising_columns_stay_as_they_are():
    X = np.insert(columns(), 0, 0.0, axis=1)
    scaling = Scaling.of(RowColumns(X), center=False, standardize=False)
    assert_array_equal(scaling.apply(X), X[:, 1:])
    X = X[:, 1:]
    assert Scaling.of(RowColumns(X), center=True, standardize=False).apply(X) is X


def test_a_column_that_is_constant_up_to_rounding_is_left_out_and_a_far_one_is_not():
    X = np.column_stack([np.full(50, 0.1) * 3, 1e8 + np.arange(50.0), np.arange(50.0) * 1e300])
    X[::2, 0] = 0.3  # 0.1 * 3 is not 0.3
    assert Scaling.of(RowColumns(X), center=True, standardize=True).used.tolist() == [1, 2]


@pytest.mark.parametrize("center", [True, False])
def test_moments_of_a_table_give_its_scales_to_the_bit(center):
    """Folds are drawn by content: a last digit of a scaled row would draw others."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        X = rng.standard_normal((300, 3)) * [1.0, 10.0, 0.1] + [0.0, 100.0, 5.0]
        mean = X.mean(axis=0)
        known = TableMoments(300.0, X.min(axis=0), X.max(axis=0), mean, np.linalg.qr(X - mean)[1])
        scales = Scaling.of(RowColumns(X), center=center, standardize=True)
        again = Scaling.of(known, center=center, standardize=True)
        assert_array_equal(scales.shift, again.shift)
        assert_array_equal(scales.scale, again.scale)
