"""Huber's loss as quadratics: squared loss far from delta, and models that outliers do not move."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from odcl.mixed.huber import huber_quadratics
from odcl.mixed.posterior import download_of, posterior
from odcl.mixed.search import search

from .worlds import rows_of, seen


def test_without_rows_beyond_delta_it_is_squared_loss():
    X, y, users = rows_of(
        np.random.default_rng(0).standard_normal((8, 3)), [1, 2, 3, 4, 6, 7, 8, 9]
    )
    _, at, q = seen(X, y, users)
    Z = at.design(X)
    got = huber_quadratics(Z, at.target(y, Z), users, 8, delta=1e6)
    assert_allclose(got.A, q.A, atol=1e-9)
    assert_allclose(got.b, q.b, atol=1e-8)
    assert_allclose(got.dof, q.dof)
    theta = np.random.default_rng(1).standard_normal(3)
    value = got.uu - 2 * got.b @ theta + (got.A @ theta) @ theta
    assert_allclose(value, q.uu - 2 * q.b @ theta + (q.A @ theta) @ theta, rtol=1e-6)


def test_outliers_do_not_move_the_models():
    rng = np.random.default_rng(0)
    theta = 3.0 * np.eye(3)[np.arange(45) % 3]
    X, y, users = rows_of(theta, 30)
    y = y + np.where(rng.random(len(y)) < 0.1, 40 * rng.choice([-1, 1], len(y)), 0)
    _, at, q = seen(X, y, users)
    Z = at.design(X)
    robust = huber_quadratics(Z, at.target(y, Z), users, 45, delta=1.35 / at.target_scale)
    errors = []
    for some in (robust, q):
        fit = search(some)
        raw = posterior(some, download_of(fit, at)).coefficients()[0]
        errors.append(((raw[:, [2, 0, 1]] - theta) ** 2).sum())
    assert errors[0] < 0.1 * errors[1]
