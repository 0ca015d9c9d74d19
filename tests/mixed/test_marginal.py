"""Users' models integrated out, against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl.mixed.marginal import drops, invert_lower, marginals, stack_size

rational = np.vectorize(Fraction, otypes=[object])


def some_users(n_users, dim, seed=0):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n_users, dim + 8, dim))
    return Z.transpose(0, 2, 1) @ Z, 3 * rng.standard_normal((n_users, dim))


def spread_of(kind):
    """Matrices of four coordinates that have no rounding in them."""
    if kind == "diagonal":
        return np.diag([1.0, 1.25, 1.5, 2.0])
    if kind == "some coordinates":
        return np.diag([0.0, 1.25, 0.0, 2.0])
    root = np.array([[2.0, 1, 0, 0], [-1, 1, 0, 1], [0, 2, 1, 0], [1, 0, -1, 2]])
    if kind == "some directions":
        root = root[:, :2]
    return root @ root.T


def exactly(A, b, T):
    """(I + A T)^-1 [A b], log|I + A T| and b'T w of one user, by Gauss in rational numbers."""
    A, b, T = rational(A), rational(b), rational(T)
    rows = np.concatenate([rational(np.eye(len(b))) + A @ T, A, b[:, None]], axis=1)
    determinant = Fraction(1)
    for i in range(len(b)):
        determinant *= rows[i, i]
        rows[i] = rows[i] / rows[i, i]
        for j in range(len(b)):
            if j != i:
                rows[j] = rows[j] - rows[j, i] * rows[i]
    found = rows[:, len(b) :]
    W, w = found[:, :-1].astype(np.float64), found[:, -1].astype(np.float64)
    return W, w, np.log(float(determinant)), float(b @ T @ found[:, -1])


@pytest.mark.parametrize("size", [2.0**-40, 2.0**-10, 1.0, 2.0**20, 2.0**40])
@pytest.mark.parametrize("kind", ["diagonal", "some coordinates", "some directions", "full"])
def test_models_are_integrated_out_to_the_last_digits(kind, size):
    """Whatever the size of At T: the noise may be next to nothing, or T."""
    (A,), (b,) = some_users(1, 4)
    T, s2 = size * spread_of(kind), 0.5
    W, w, ld, drop = (x[0] for x in marginals(A[None], b[None], T, np.full(1, s2)))
    exact_W, exact_w, exact_ld, exact_drop = exactly(A / s2, b / s2, T)
    assert_allclose(W, exact_W, atol=1e-13 * np.abs(exact_W).max())
    assert_allclose(w, exact_w, atol=1e-13 * np.abs(exact_w).max())
    assert_allclose(ld, exact_ld, rtol=1e-13, atol=1e-14)
    assert_allclose(drop, exact_drop, rtol=1e-13)
    assert_array_equal(W, W.T)


@pytest.mark.parametrize("kind", ["diagonal", "some coordinates", "full"])
def test_a_user_is_the_same_alone_and_in_any_batch(kind):
    n_users = stack_size(4) + 5  # more than one stack
    A, b = some_users(n_users, 4)
    s2 = np.linspace(0.5, 1.5, n_users)
    everybody = marginals(A, b, spread_of(kind), s2)
    for i in (0, 7, n_users - 1):
        for all_of_them, own in zip(
            everybody, marginals(A[[i]], b[[i]], spread_of(kind), s2[[i]]), strict=True
        ):
            assert_array_equal(all_of_them[i], own[0])


def test_a_curvature_that_rounding_has_made_negative_is_cut_off_and_harms_nobody():
    A, b = some_users(3, 4)
    others = marginals(A[1:], b[1:], np.eye(4), np.ones(2))
    A[0] = np.diag([1e16, 1.0, 1.0, -1.5])
    W, w, ld, _ = found = marginals(A, b, np.eye(4), np.ones(3))
    for mine, theirs in zip(found, others, strict=True):
        assert_array_equal(mine[1:], theirs)
    assert np.isfinite(W).all()
    assert_allclose(ld[0], np.log(1e16) + 2 * np.log(2.0), rtol=1e-12)
    assert_allclose(w[0, 1:3], b[0, 1:3] / 2, rtol=1e-12)


def test_triangles_of_any_size_are_inverted():
    for dim in range(1, 30):
        A, _ = some_users(5, dim, seed=dim)
        L = np.linalg.cholesky(A)
        Y = np.zeros_like(L)
        invert_lower(L, Y)
        assert_allclose(Y @ L, np.broadcast_to(np.eye(dim), A.shape), atol=1e-11)
        assert_array_equal(np.triu(Y, 1), 0.0)


@pytest.mark.parametrize("kind", ["diagonal", "some coordinates", "some directions", "full"])
def test_what_users_models_take_away_is_a_square(kind):
    """W = At - F'F and w = bt - F'f, with as many rows as T has directions."""
    (A, b), T, s2 = some_users(5, 4), spread_of(kind), np.linspace(0.5, 2.0, 5)
    W, w, *_ = marginals(A, b, T, s2)
    F, f = np.split(drops(A, b, T, s2), [4], axis=2)
    assert F.shape[1] == np.linalg.matrix_rank(T)
    back = F.transpose(0, 2, 1)
    assert_allclose(A / s2[:, None, None] - back @ F, W, atol=1e-11)
    assert_allclose(b / s2[:, None] - (back @ f)[..., 0], w, atol=1e-11)
