"""Users with classes and many parameters: their fits side by side are those of one at a time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Downloads, Federation, Risk
from odcl.data.federation import folds
from odcl.local import receive as last_step
from odcl.local import trials
from odcl.local.fit import Penalty, fit_users, solve_users
from odcl.local.receive import N_FOLDS, receive
from odcl.local.trials import StrengthFits, UserRows
from odcl.risk.losses import Logistic, Multinomial

# Rows, features and classes with more than 200 parameters in the span of the rows: more rows than
# features and fewer.
SHAPES = {"tall": (90, 50, 6), "wide": (60, 100, 6), "two classes": (260, 210, 2)}


def classes(n, p, k, *, m=3, seed=0, weighted=False, collinear=False):
    """Users that differ a little; the second lacks the last class if there are more than two."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m * n, p)) * np.linspace(0.2, 2.0, p) + 0.3
    if collinear:
        X[:, -1], X[:, -2] = X[:, 0] + X[:, 1], 0.0
    models = rng.normal(size=(p, k)) + 0.5 * rng.normal(size=(m, p, k))
    owner = np.repeat(np.arange(m), n)
    z = np.einsum("jp,jpk->jk", X, models[owner]) / np.sqrt(p) + rng.gumbel(size=(m * n, k))
    if k > 2:
        z[owner == 1, -1] = -np.inf
    weight = rng.uniform(0.3, 3.0, m * n) if weighted else None
    return Federation.from_arrays(X, z.argmax(axis=1), owner, weight=weight)


def risk_of(k, l2=0.01, intercept=True):
    return Risk(Multinomial(k) if k > 2 else Logistic(), l2, intercept)


def messages(federation, risk, seed=1):
    """Uploads, and downloads of one group whose model is about right, without each user less so."""
    uploads = fit_users(federation, risk, "none").uploads
    m, dim = uploads.theta.shape
    mean = uploads.theta.mean(axis=0)
    others = mean + 0.1 * np.random.default_rng(seed).normal(size=(m, dim))
    sent = {"group": np.zeros(m, dtype=int), "group_size": np.full(m, m), "others": others}
    return uploads, Downloads(uploads.users, refit="cv", model=np.tile(mean, (m, 1)), **sent)


def user_rows(federation, risk, i, seed=0):
    part = federation.rows(i)
    fold = folds(federation, N_FOLDS, seed)[part]
    weight = np.ones(len(fold)) if federation.weight is None else federation.weight[part]
    y = risk.loss.encode(federation.y)[part]
    return UserRows(risk, risk.design(federation.X[part]), y, weight, fold == np.arange(5)[:, None])


@pytest.fixture
def exact(monkeypatch):
    """Trials as exact as the solver of single fits."""
    monkeypatch.setattr(trials, "SCORED", (1e-6, 1e-6))
    monkeypatch.setattr(trials, "AVERAGED", (1e-6, 1e-6))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", ["plain", "weighted", "collinear"])
def test_models_drawn_to_the_centre_are_those_of_the_solver(shape, kind):
    federation = classes(*shape, **{} if kind == "plain" else {kind: True})
    risk = risk_of(shape[2])
    center = 0.1 * np.random.default_rng(2).normal(size=(3, risk.dim(shape[1])))
    strengths = np.array([1.0, 0.1, 0.01, 1e-3])
    for i in range(3):
        drawn = StrengthFits.of(user_rows(federation, risk, i), strengths, center[i])
        for g, strength in enumerate(strengths):
            penalty = Penalty(np.full(3, strength), center, free=False)
            expected = solve_users(federation, risk, penalty).theta[i]
            found = drawn.average(np.eye(4)[g])
            # Log-odds are right to 1e-6, and coefficients of rows of size 10 likewise.
            assert_allclose(found, expected, atol=1e-6)
        halves = drawn.average(np.array([0.0, 0.5, 0.5, 0.0]))
        apart = drawn.average(np.eye(4)[1]), drawn.average(np.eye(4)[2])
        assert_allclose(halves, np.mean(apart, axis=0), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_strengths_are_weighed_as_by_fits_one_at_a_time(exact, shape, intercept, weighted):
    """The user who lacks a class has no finite intercept for it alone: a small prior, as ever."""
    federation = classes(*shape, weighted=weighted)
    risk = risk_of(shape[2], intercept=intercept)
    trial, ends = _trial(federation, risk)
    models, strength = last_step._side_by_side(trial, ends)
    expected, by_fits = last_step._fit_by_fit(trial, ends)
    assert_allclose(models, expected, atol=2e-5)
    assert_array_equal(strength, by_fits)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_held_out_lose_as_much_as_by_fits_one_at_a_time(exact, shape, intercept, weighted):
    """Every strength, and the users' own fits; one user has no finite intercept for a class."""
    federation = classes(*shape, weighted=weighted)
    risk = risk_of(shape[2], intercept=intercept)
    trial, ends = _trial(federation, risk)
    strengths = np.array([1.0, 0.1, 0.01, 1e-3])
    drawn = trial.refitted(np.repeat(strengths[:, None], 3, axis=1), ends.center)
    cost = np.array([*drawn, trial.of_own()])
    expected = np.add.reduceat(cost, federation.offsets[:-1], axis=1)
    for i in range(3):
        rows = user_rows(federation, risk, i)
        score = StrengthFits.of(rows, strengths, ends.center[i]).score(ends.own[i])
        assert_allclose(score, expected[:, i], rtol=1e-5)


def test_features_that_are_nothing_beside_the_intercept_are_fitted_one_at_a_time():
    """Rows of size 1e-9 beside a column of ones: side by side, their directions would be lost."""
    federation, risk = classes(60, 100, 6), risk_of(6)
    assert last_step._suits_trials(federation, risk).all()
    assert not last_step._suits_trials(federation.with_X(1e-9 * federation.X), risk).any()


def test_a_stronger_pooling_that_is_about_as_good_is_taken():
    total = np.array([5.0, 3.05, 3.0, 3.2, 3.0])
    assert last_step._first_of_equals(total, 0.1) == 1
    assert last_step._first_of_equals(total, 0.0) == 2


def _trial(federation, risk, seed=0):
    uploads, downloads = messages(federation, risk)
    trial = last_step._Trial(federation, risk, folds(federation, N_FOLDS, seed), None)
    return trial, last_step._Anchors(downloads.others, downloads.model, uploads.models)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_scores_are_as_right_as_weights_need(monkeypatch, shape):
    federation = classes(*shape)
    risk = risk_of(shape[2])
    uploads, downloads = messages(federation, risk)
    strengths = np.array([1.0, 0.1, 0.01, 1e-3])

    def weights():
        scores = []
        for i in range(3):
            rows = user_rows(federation, risk, i)
            scores.append(
                StrengthFits.of(rows, strengths, downloads.others[i]).score(uploads.models[i])
            )
        return last_step._weights(np.array(scores).T, None)

    about = weights()
    monkeypatch.setattr(trials, "SCORED", (1e-6, 1e-6))
    assert_allclose(about, weights(), atol=0.02)


@pytest.mark.parametrize("l2", [0.01, 0.0])
def test_a_users_last_step_does_not_depend_on_the_company_or_the_order_of_rows(l2):
    federation, risk = classes(90, 50, 6, m=4), risk_of(6, l2)
    uploads, downloads = messages(federation, risk)
    found = receive(federation, risk, uploads, downloads)
    for some in (np.array([2]), np.array([3, 1])):
        part = receive(federation.take(some), risk, uploads.take(some), downloads.take(some))
        assert_array_equal(part.models, found.models[some])
        assert_array_equal(part.strength, found.strength[some])
    on_two = receive(federation, risk, uploads, downloads, n_jobs=2)
    assert_array_equal(on_two.models, found.models)
    order = np.random.default_rng(0).permutation(len(federation.y))
    owner = federation.row_user[order]
    shuffled = Federation.from_arrays(federation.X[order], federation.y[order], owner)
    again = receive(shuffled, risk, uploads, downloads)
    assert_allclose(again.models, found.models, atol=1e-8)


def test_few_and_many_rows_meet_in_one_federation():
    """A user of ten rows has few parameters in their span and is fitted as before."""
    many, risk = classes(90, 50, 6, m=3), risk_of(6)
    few = classes(10, 50, 6, m=3, seed=5)
    owner = np.concatenate([many.row_user, 3 + few.row_user])
    X, y = np.concatenate([many.X, few.X]), np.concatenate([many.y, few.y])
    federation = Federation.from_arrays(X, y, owner)
    uploads, downloads = messages(federation, risk)
    found = receive(federation, risk, uploads, downloads)
    for some in (np.arange(3), np.arange(3, 6)):
        part = receive(federation.take(some), risk, uploads.take(some), downloads.take(some))
        assert_array_equal(part.models, found.models[some])
