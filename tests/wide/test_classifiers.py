"""Groups' classifiers from class moments, their calibration, and class shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import dirichlet_multinomial
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from odcl.wide import classifiers
from odcl.wide.classifiers import (
    calibrate,
    class_shares,
    fit_scores,
    score_sums,
    share_concentration,
)
from odcl.wide.moments import Folds, user_folds
from tests.wide.worlds import grouped_rows, moments_of


@pytest.mark.parametrize("d", [12, 150])
def test_the_path_is_that_of_shrunk_discriminants(d):
    X, y, users = grouped_rows(0, [0] * 8, 12, d=d)
    ridges = np.array([0.1, 1.0, 30.0])
    found = fit_scores(moments_of(X, y, users, 3), np.ones((8, 1)), ridges)
    for i, ridge in enumerate(ridges):
        lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=ridge / (1 + ridge)).fit(X, y)
        assert_allclose(found.weights[i, 0].T * (1 + ridge), lda.coef_, rtol=1e-6, atol=1e-9)
        level = lda.intercept_ - np.log(lda.priors_)
        assert_allclose(found.offsets[i, 0] * (1 + ridge), level, rtol=1e-6, atol=1e-9)


def test_a_group_is_fitted_on_its_own_users():
    group = np.arange(12) % 2
    X, y, users = grouped_rows(1, group, 12, d=20, apart=3.0)
    data = moments_of(X, y, users, 3)
    both = fit_scores(data, np.eye(2)[group])
    for k in range(2):
        alone = fit_scores(data.take(group == k), np.ones((6, 1)))
        assert_allclose(both.weights[:, k], alone.weights[:, 0], atol=1e-10)
        assert_allclose(both.offsets[:, k], alone.offsets[:, 0], atol=1e-10)


def test_groups_may_share_the_scatter_around_their_own_means():
    """As if the rows of all groups had been moved onto one group's means."""
    group = np.arange(12) % 2
    X, y, users = grouped_rows(1, group, 12, d=20, apart=3.0)
    means = np.array(
        [[X[(group[users] == k) & (y == c)].mean(axis=0) for c in range(3)] for k in (0, 1)]
    )
    found = fit_scores(moments_of(X, y, users, 3), np.eye(2)[group], common=True)
    for k in range(2):
        moved = X - means[group[users], y] + means[k, y]
        one = fit_scores(moments_of(moved, y, users, 3), np.ones((12, 1)))
        assert_allclose(found.weights[:, k], one.weights[:, 0], rtol=1e-6, atol=1e-9)


def test_a_group_with_nobody_outside_a_fold_leans_on_everybody():
    X, y, users = grouped_rows(1, [0] * 6, 12, d=20)
    data = moments_of(X, y, users, 3)
    found = fit_scores(data, np.column_stack([np.ones(6), np.zeros(6)]))
    assert_allclose(found.weights[:, 1], found.weights[:, 0])


def test_a_class_that_a_group_lacks_is_everybodys():
    group = np.arange(12) % 2
    X, y, users = grouped_rows(1, group, 12, d=20)
    y = np.where((group[users] == 1) & (y == 2), 1, y)
    found = fit_scores(moments_of(X, y, users, 3), np.eye(2)[group])
    rows = X[y == 2] @ found.weights[4, 1] + found.offsets[4, 1]
    assert np.mean(rows.argmax(axis=1) == 2) > 0.8


def test_moments_of_scores_are_those_of_the_rows(monkeypatch):
    """Between and inside users: together the covariance of scores of rows, by class."""
    monkeypatch.setattr(classifiers, "PRIOR_DOF", 0.0)
    X, y, users = grouped_rows(2, [0] * 20, 15, d=10, differ=2.0)
    data, r = moments_of(X, y, users, 3), np.ones((20, 1))
    folds, told = Folds(user_folds(data.users)), []
    fitted = folds.learned(data, lambda part, some: fit_scores(part, r[some]))
    sums = folds.held_out(data, fitted, lambda one, part, some: score_sums(one, part, r[some]))
    points = classifiers._points
    monkeypatch.setattr(classifiers, "_points", lambda *one: told.append(one) or points(*one))
    calibrate(sums, np.full((1, 3), 1 / 3))
    scores = np.empty((len(X), 3))
    for some, one in zip(folds.members, fitted, strict=True):
        own = some[users]
        scores[own] = X[own] @ one.weights[3, 0] + one.offsets[3, 0]
    mean, covariance = told[3]
    for c in range(3):
        assert_allclose(mean[0, c], scores[y == c].mean(axis=0), atol=1e-10)
        assert_allclose(covariance[0, c], np.cov(scores[y == c].T, bias=True), atol=1e-10)


def test_points_have_the_moments_asked_for(monkeypatch):
    rng = np.random.default_rng(0)
    mean, root = rng.standard_normal((1, 3, 3)), rng.standard_normal((1, 3, 3, 3))
    covariance = root @ root.swapaxes(-1, -2)
    monkeypatch.setattr(classifiers, "TAIL", 1e6)  # normal: a sample's moments are near
    found = classifiers._points(mean, covariance)[0]
    assert_allclose(found.mean(axis=1), mean[0], atol=1e-10)
    for c in range(3):
        assert_allclose(np.cov(found[c].T), covariance[0, c], rtol=0.4, atol=0.4)


def test_temperature_and_levels_are_the_best_of_their_points():
    rng = np.random.default_rng(0)
    points = 3 * np.eye(3)[None, :, None] + 2 * rng.standard_normal((2, 3, 40, 3))
    points[1] *= 1000.0  # whatever the unit of scores is
    shares = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    slopes, levels, losses = classifiers._temperatures(points, shares, True)
    y = np.repeat(np.arange(3), 40)
    for k in range(2):
        flat = points[k].reshape(-1, 3)

        def loss(v, flat=flat, k=k, hold=1e-4):
            z = log_softmax(v[0] * flat / flat.std() + v[1:] + np.log(shares[k]), axis=1)
            own = -z[np.arange(120), y] * shares[k][y] / 40
            return own.sum() + hold / 2 * (v**2).sum()

        best = minimize(loss, np.r_[1.0, np.zeros(3)], tol=1e-12)
        at = np.r_[slopes[k] * flat.std(), levels[k]]
        assert_allclose(loss(at, hold=0.0), losses[k], rtol=1e-10)
        assert losses[k] <= loss(best.x, hold=0.0) + 1e-3
        assert_allclose(slopes[k] * flat.std(), best.x[0], rtol=0.05)
        assert_allclose(levels[k] - levels[k].mean(), best.x[1:] - best.x[1:].mean(), atol=0.05)


def test_probabilities_of_new_users_are_true():
    """Calibrated on moments alone, log-loss on new rows is near that of the best temperature."""
    X, y, users = grouped_rows(3, [0] * 60, 20, d=100, length=2.0)
    old, r = users < 30, np.ones((30, 1))
    data = moments_of(X[old], y[old], users[old], 3)
    folds = Folds(user_folds(data.users))
    fitted = folds.learned(data, lambda part, some: fit_scores(part, r[some]))
    sums = folds.held_out(data, fitted, lambda one, part, some: score_sums(one, part, r[some]))
    calibration = calibrate(sums, np.full((1, 3), 1 / 3))
    weights, offsets = calibration.applied(fit_scores(data, r))
    z = X[~old] @ weights[0] + offsets[0]

    def loss(slope):
        return -log_softmax(slope * z, axis=1)[np.arange(len(z)), y[~old]].mean()

    assert loss(1.0) < min(map(loss, np.logspace(-1, 1, 41))) * 1.03
    assert_allclose(calibration.loss, loss(1.0), rtol=0.15)


def test_calibration_is_a_line_of_the_scores():
    X, y, users = grouped_rows(3, [0] * 6, 10, d=20)
    scores = fit_scores(moments_of(X, y, users, 3), np.ones((6, 1)))
    slopes, levels = np.array([3.0]), np.array([[1.0, 2.0, 4.0]])
    weights, offsets = classifiers.Calibration(2, slopes, levels, 0.0).applied(scores)
    z = X @ scores.weights[2, 0] + scores.offsets[2, 0]
    assert_allclose(X @ weights[0] + offsets[0], 3.0 * z + levels[0])


def test_units_of_features_change_no_probability():
    X, y, users = grouped_rows(3, [0] * 20, 10, d=40)
    folds, r, found = Folds(user_folds(np.arange(20))), np.ones((20, 1)), []
    for unit in (1e-8, 1.0, 1e8):
        data = moments_of(unit * X, y, users, 3)
        fitted = folds.learned(data, lambda part, some: fit_scores(part, r[some]))
        sums = folds.held_out(data, fitted, lambda one, part, some: score_sums(one, part, r[some]))
        weights, offsets = calibrate(sums, np.full((1, 3), 1 / 3)).applied(fit_scores(data, r))
        found.append(unit * X @ weights[0] + offsets[0])
    assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)
    assert_allclose(found[2], found[1], rtol=1e-5, atol=1e-5)


def test_class_shares_are_the_likeliest():
    rng = np.random.default_rng(0)
    group = np.arange(30) % 2
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])[group]
    own = np.array([rng.dirichlet(8 * one) for one in p])
    counts = np.array([rng.multinomial(n, one) for n, one in zip(range(5, 35), own, strict=True)])
    y = np.concatenate([np.repeat(np.arange(3), row) for row in counts])
    users = np.repeat(np.arange(30), counts.sum(axis=1))
    data = moments_of(rng.standard_normal((len(y), 2)), y, users, 3)
    r = np.eye(2)[group]
    shares = class_shares(data, r)
    alpha = share_concentration(data, r, shares)
    for k in range(2):
        rows = counts[group == k].sum(axis=0) + 0.5
        assert_allclose(shares[k], rows / rows.sum())
    grid = 10.0 ** np.linspace(-1, 4, 51)
    level = [
        sum(
            dirichlet_multinomial.logpmf(row, a * shares[k], row.sum())
            for row, k in zip(counts, group, strict=True)
        )
        for a in grid
    ]
    assert_allclose(alpha, grid[int(np.argmax(level))])
    assert 2 < alpha < 40


def test_without_an_intercept_scores_are_least_squares_through_the_origin():
    X, y, users = grouped_rows(3, [0] * 8, 12, d=15)
    X = X + 1.0
    data = replace(moments_of(X, y, users, 3), intercept=False)
    found = fit_scores(data, np.ones((8, 1)), np.array([0.5]))
    assert not found.offsets.any()
    inside = X - np.array([X[y == c].mean(axis=0) for c in range(3)])[y]
    ridge = 0.5 * (inside**2).sum() / 15
    expected = np.linalg.solve(X.T @ X + ridge * np.eye(15), X.T @ np.eye(3)[y])
    assert_allclose(found.weights[0, 0], expected, rtol=1e-6, atol=1e-9)
