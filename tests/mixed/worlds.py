"""Small federations with a known truth, for the tests of mixed groups."""

from __future__ import annotations

import numpy as np

from odcl.mixed.layout import coordinates
from odcl.mixed.terms import data_terms, quadratics


def rows_of(theta, n_rows, *, noise=1.0, seed=0, intercept=True):
    """X, y and the users of linear rows: user i has ``n_rows[i]`` of them under ``theta[i]``."""
    rng = np.random.default_rng(seed)
    n_rows = np.broadcast_to(n_rows, len(theta))
    users = np.repeat(np.arange(len(theta)), n_rows)
    X = rng.standard_normal((len(users), theta.shape[1] - int(intercept)))
    Z = np.column_stack([np.ones(len(X)), X]) if intercept else X
    y = (Z * theta[users]).sum(axis=1) + noise * rng.standard_normal(len(users))
    return X, y, users


def seen(X, y, users, *, intercept=True, weights=None):
    """Terms, coordinates and quadratics of a federation."""
    terms = data_terms(X, y, users, int(users.max()) + 1, weights)
    at = coordinates(terms, intercept=intercept)
    return terms, at, quadratics(terms, at)


def dense_log_density(Z, u, s2, c, T):
    """log N(u; Z c, s2 I + Z T Z'), from the matrix itself."""
    S = s2 * np.eye(len(u)) + Z @ T @ Z.T
    away = u - Z @ c
    return -0.5 * (
        len(u) * np.log(2 * np.pi) + np.linalg.slogdet(S)[1] + away @ np.linalg.solve(S, away)
    )
