"""Class moments, and the span that ridge solutions do not leave."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from odcl.wide.classifiers import RIDGES, fit_scores
from odcl.wide.moments import Folds, Span, user_folds
from tests.wide.worlds import grouped_rows, moments_of


def test_moments_are_those_of_the_rows():
    X, y, users = grouped_rows(0, [0] * 8, 9, d=20)
    data = moments_of(X + 5.0, y, users, 3)
    assert_allclose(data.middle, X.mean(axis=0) + 5.0)
    cells = [X[(users == i) & (y == c)] for i in range(8) for c in range(3)]
    within = sum(((own - own.mean(axis=0)) ** 2).sum() for own in cells if len(own))
    assert_allclose(data.variance, within / len(data.draws) / 20)


def test_some_users_keep_their_own_draws():
    X, y, users = grouped_rows(1, [0] * 6, 8, d=10)
    data, some = moments_of(X, y, users, 3), np.array([1, 0, 0, 1, 1, 0], bool)
    part = data.take(some)
    alone = moments_of(X[some[users]], y[some[users]], users[some[users]], 3)
    for name in ("users", "counts", "means", "draws", "owner", "of_class"):
        assert_allclose(getattr(part, name), getattr(alone, name))


@pytest.mark.parametrize("d", [15, 200])
def test_classifiers_of_the_span_are_those_of_all_columns(d):
    X, y, users = grouped_rows(2, [0] * 6, 8, d=d)
    X = X + np.linspace(0, 30, d)  # far from the origin
    data, r = moments_of(X, y, users, 3), np.random.default_rng(0).dirichlet([1, 1], 6)
    span = Span.of(data)
    assert (span.basis is None) == (d == 15)
    found = fit_scores(span.inside(data), r)
    found = span.outside(found.weights, found.offsets)
    Z, w = X - X.mean(axis=0), r[users]
    for k in range(2):
        mu = np.stack([np.average(Z[y == c], axis=0, weights=w[y == c, k]) for c in range(3)])
        n = np.array([[((users == i) & (y == c)).sum() for c in range(3)] for i in range(6)])
        own = r[data.owner, k]
        inside = 1 - (r[:, [k]] * (n > 0)).sum() / w[:, k].sum()
        S = inside * (own[:, None] * data.draws).T @ data.draws / own.sum()
        for i in range(6):
            for c in np.flatnonzero(n[i]):
                off = Z[(users == i) & (y == c)].mean(axis=0) - mu[c]
                S += r[i, k] * n[i, c] / w[:, k].sum() * np.outer(off, off)
        for one, ridge in zip(found[:, k], RIDGES, strict=True):
            weights = np.linalg.solve(S + ridge * np.trace(S) / d * np.eye(d), mu.T)
            assert_allclose(one[:-1], weights, rtol=1e-6, atol=1e-8)
            level = -0.5 * (mu.T * weights).sum(axis=0)
            assert_allclose(X @ one[:-1] + one[-1], Z @ weights + level, atol=1e-6)


def test_what_is_learned_without_a_fold_never_meets_it():
    X, y, users = grouped_rows(3, [0] * 20, 8, d=10)
    folds = Folds(user_folds(np.arange(20)))
    first = folds.members[0]
    spoiled = X + 100.0 * first[users, None]
    seen = []
    for rows in (X, spoiled):
        data = moments_of(rows, y, users, 3)
        seen.append(folds.learned(data, lambda part, some: (part.means, part.draws, some)))
    assert_allclose(seen[0][0][0], seen[1][0][0])
    assert_allclose(seen[0][0][1], seen[1][0][1])
    assert not np.allclose(seen[0][1][0], seen[1][1][0])
    held = folds.held_out(data, seen[0], lambda one, part, some: (one[2], part.users, some))
    for learned_on, ids, some in held.parts:
        assert not (learned_on & some).any()
        assert (learned_on | some).all()
        assert set(ids) == set(np.flatnonzero(some))
