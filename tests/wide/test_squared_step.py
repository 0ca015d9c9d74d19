"""The last step of wide users with squared loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax
from sklearn.linear_model import RidgeCV

from odcl.data.federation import Federation
from odcl.risk.risk import Risk
from odcl.wide import squared_step
from odcl.wide.last_step import stratified_folds
from odcl.wide.moments import FOLDS, WideGroups
from odcl.wide.squared_step import wide_last_step_squared

RISK = Risk("squared", intercept=True)


def users_of(models, n, *, noise=0.5, seed=0):
    """Rows of users with these models, (m, d + 1)."""
    rng = np.random.default_rng(seed)
    m, dim = models.shape
    X = rng.standard_normal((m * n, dim - 1))
    owner = np.repeat(np.arange(m), n)
    y = (X * models[owner, :-1]).sum(axis=1) + models[owner, -1]
    return Federation.from_arrays(X, y + noise * rng.standard_normal(m * n), owner)


def made(m, d, n_groups, differ, seed=1):
    """Groups' models, (K, d + 1), users' own and their groups."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((n_groups, d + 1)) / np.sqrt(d)
    group = np.arange(m) % n_groups
    return centers, centers[group] + differ * rng.standard_normal((m, d + 1)) / np.sqrt(d), group


def known(centers):
    return np.broadcast_to(centers, (1 + FOLDS, *centers.shape))


def last_step(federation, risk, models, given, noise, *, alike=False, level=0.0):
    """The last step among groups with these models, (1 + FOLDS, K, dim)."""
    parts, k, d = models.shape[0], models.shape[1], federation.n_features
    scores = np.zeros((parts, k, d + 1, 1))
    scores[:, :, : models.shape[2], 0] = models
    shares, unit = np.ones((k, 1)), np.ones(d)
    groups = WideGroups(np.full(k, 1 / k), scores, shares, 1.0, unit, alike, noise, level)
    return wide_last_step_squared(federation, risk, groups, given)


def far(found, own):
    """Squared distance from the true models, over their squared length."""
    return ((found - own) ** 2).sum(axis=1) / (own**2).sum(axis=1)


def alone(federation):
    grid = np.logspace(-2, 4, 13)
    fits = [RidgeCV(grid).fit(X, y) for _, X, y in federation]
    return np.array([np.append(fit.coef_, fit.intercept_) for fit in fits])


def test_users_who_are_alike_keep_their_groups_model():
    centers, own, group = made(20, 150, 2, 0.0)
    federation, given = users_of(own, 30), np.eye(2)[group]
    fixed = (federation, RISK, known(centers), given, np.full(2, 0.25))
    step, careful = (last_step(*fixed, alike=alike) for alike in (True, False))
    assert_array_equal(step.group, group)
    assert far(step.models, own).mean() < 0.5 * far(careful.models, own).mean() < 0.01


@pytest.mark.parametrize("n", [20, 100])
def test_users_who_differ_gain_over_their_group_and_over_themselves(n):
    centers, own, group = made(20, 120, 2, 0.7)
    federation = users_of(own, n)
    step = last_step(federation, RISK, known(centers), np.eye(2)[group], np.full(2, 0.75))
    mine = far(step.models, own).mean()
    assert mine < far(centers[group], own).mean()
    assert mine < far(alone(federation), own).mean()


@pytest.mark.parametrize("n", [60, 400])
def test_a_wrong_group_costs_little_where_rows_are_many(n):
    centers, own, _ = made(6, 110, 1, 0.0)
    federation = users_of(own, n)
    step = last_step(federation, RISK, known(-3 * centers), np.ones((6, 1)), np.ones(1))
    assert far(step.models, own).mean() < 1.05 * far(alone(federation), own).mean()


@pytest.mark.parametrize(("n", "d"), [(23, 40), (60, 6)])
@pytest.mark.parametrize("intercept", [True, False])
def test_shares_and_fits_are_those_of_ridge_fold_by_fold(n, d, intercept):
    """Every fit made anew in all features by its normal equations."""
    risk, rng = Risk("squared", intercept=intercept), np.random.default_rng(2)
    federation = users_of(rng.standard_normal((1, d + 1)) / np.sqrt(d), n)
    weight = rng.choice([1.0, 3.0], n)
    federation = replace(federation, weight=weight)
    model = rng.standard_normal(d + intercept) / np.sqrt(d)
    step = last_step(federation, risk, known(model[None]), np.ones((1, 1)), np.ones(1))

    X, y = federation.X, federation.y
    order, dealt = stratified_folds(federation, np.zeros(n, dtype=int))
    fold = dealt[np.argsort(order)]
    center = np.average(X, axis=0, weights=weight) if intercept else 0.0
    unit = np.average(((X - center) ** 2).sum(axis=1), weights=weight)
    columns = np.column_stack([X - center, np.ones(n)])[:, : d + intercept]

    def ridge(kept, target, slopes, level):
        pull = np.append(np.full(d, slopes * unit), level)[: d + intercept]
        gram = (columns * kept[:, None]).T @ columns + np.diag(np.minimum(pull, 1e12))
        return columns @ np.linalg.solve(gram, (columns * kept[:, None]).T @ target)

    pulls = [(True, *squared_step.LEVEL_ONLY)]
    pulls += [(True, g, g) for g in squared_step.STRENGTHS]
    pulls += [(False, g, 0.0) for g in squared_step.STRENGTHS]
    base = risk.design(X) @ model

    def fitted(kept):
        each = [base]
        for leans, slopes, level in pulls:
            each.append(base * leans + ridge(kept, y - base * leans, slopes, level))
        return np.array(each)

    total = np.zeros(1 + len(pulls))
    for f in range(5):
        out = fold == f
        total += (y[out] - fitted(weight * ~out)[:, out]) ** 2 @ weight[out]
    leaning = 1 + len(squared_step.STRENGTHS)
    prior = [0.6] + [0.39 / leaning] * leaning + [0.01 / (leaning - 1)] * (leaning - 1)
    share = np.exp(log_softmax(np.log(prior) - weight.sum() / 2 * np.log(total)))
    assert_allclose(risk.design(X) @ step.models[0], share @ fitted(weight), rtol=1e-6, atol=1e-6)


def test_own_rows_place_new_users():
    centers, own, group = made(9, 130, 3, 0.0)
    federation = users_of(own, 25)
    for given in (np.full((9, 3), 1 / 3), np.eye(3)[(group + 1) % 3]):
        step = last_step(federation, RISK, known(centers), given, np.full(3, 0.25))
        assert_array_equal(step.group, group)


def test_three_rows_leave_the_groups_model():
    centers, own, group = made(4, 105, 2, 0.0)
    federation = users_of(own, 3)
    step = last_step(federation, RISK, known(centers), np.eye(2)[group], np.full(2, 0.25))
    assert_allclose(step.models, centers[group], atol=0.05)


def test_levels_that_vary_are_drawn_to_their_groups_as_far_as_they_vary():
    """Where slopes are known, a user's level is its mean residual, n / (n + noise / variance)."""
    centers, own, group = made(30, 120, 2, 0.0)
    levels = 10 * np.random.default_rng(5).standard_normal(30)
    own[:, -1] += levels
    for n in (2, 30):
        federation = users_of(own, n)
        step = last_step(
            federation,
            RISK,
            known(centers),
            np.eye(2)[group],
            np.full(2, 0.25),
            alike=True,
            level=9.0,
        )
        start = centers[group]
        mean = [
            (y - RISK.design(X) @ c).mean() for (_, X, y), c in zip(federation, start, strict=True)
        ]
        expected = np.array(mean) * n / (n + 0.25 / 9)
        assert_allclose(step.models[:, -1] - start[:, -1], expected, rtol=0.02, atol=0.02)
        assert_allclose(step.models[:, :-1], start[:, :-1], atol=0.06)
