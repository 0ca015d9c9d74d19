"""Groups of wide users with squared loss, and their ridge models."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score

from odcl import ODCLRegressor
from odcl.data.federation import Federation
from odcl.exchange.upload import Uploads
from odcl.local import wide_terms
from odcl.local.terms import user_terms
from odcl.risk.risk import Risk
from odcl.server import wide
from odcl.server.step import server_step
from odcl.server.wide import thin_terms
from odcl.wide.squared import (
    group_regressions,
    held_out_cost,
    pooled_model,
    refine,
    ridge,
    shares_by_losses,
)

RISK = Risk("squared", intercept=True)


def made(seed, group, n, d=120, noise=0.5, level=3.0):
    """Rows of users whose groups have their own models; features far from the origin."""
    rng, group = np.random.default_rng(seed), np.asarray(group)
    theta = rng.standard_normal((group.max() + 1, d)) / np.sqrt(d)
    users = np.repeat(np.arange(len(group)), n)
    X = rng.standard_normal((len(users), d)) + level
    y = (X * theta[group[users]]).sum(axis=1) + noise * rng.standard_normal(len(users))
    return X, y, users


def sent(X, y, users, **words):
    f = Federation.from_arrays(X, y, users)
    return Uploads(f.users, f.n_samples, risk=RISK, **user_terms(f, RISK, **words))


def always(_):
    return True


def centered(X, y, users):
    return tuple(v - np.stack([v[users == i].mean(axis=0) for i in users]) for v in (X, y))


@pytest.mark.parametrize("n_groups", [1, 2, 4])
def test_groups_are_found(n_groups):
    group = np.arange(40) % n_groups
    step = server_step(sent(*made(0, group, 60)))
    assert len(step.centers) == n_groups
    assert adjusted_rand_score(group, step.labels) == 1.0
    assert_allclose(step.mixture.noise, 0.25, rtol=0.5)


@pytest.mark.parametrize("n", [30, 300])
def test_models_are_ridges_of_the_rows_of_their_groups(n):
    """Whether factors are contrasts (few rows) or triangles (many)."""
    group = np.arange(10) % 2
    X, y, users = made(1, group, n)
    terms = thin_terms(sent(X, y, users))
    assert terms is not None
    assert_allclose(terms.told, n - 1)
    r, found = group_regressions(terms, np.eye(2)[group], lambda _: False, alike=True)
    strength = refine(terms, np.eye(2)[group], lambda _: False)[1]
    assert_allclose(r, np.eye(2)[group])
    Z, t = centered(X, y, users)
    for k in range(2):
        for part in range(-1, 5):
            own = (group[users] == k) & (wide_folds(10)[users] != part)
            A = Z[own].T @ Z[own] + strength * np.eye(120)
            model = np.linalg.solve(A, Z[own].T @ t[own])
            assert_allclose(found.scores[1 + part, k, :-1, 0], model, rtol=1e-3, atol=1e-4)
            level = np.mean(y[own] - X[own] @ model)
            assert_allclose(found.scores[1 + part, k, -1, 0], level, rtol=1e-2, atol=1e-2)


def wide_folds(m):
    from odcl.wide.moments import user_folds

    return user_folds(np.arange(m))


def test_losses_are_those_of_the_rows_around_their_averages():
    X, y, users = made(2, [0] * 5, 20)
    terms = thin_terms(sent(X, y, users))
    models = np.random.default_rng(0).standard_normal((3, 120))
    Z, t = centered(X, y, users)
    errors = (t[:, None] - Z @ models.T) ** 2
    due = np.stack([errors[users == i].sum(axis=0) for i in range(5)])
    assert_allclose(terms.losses(np.ones(5, bool), models), due, rtol=1e-4)


def score_fit(terms):
    """Scores at the pooled model: their squares over the noise that their draws claim."""
    scores = terms.scores(pooled_model(terms))
    variance = np.mean(scores.draws**2, axis=0)
    return np.mean(scores.counts[..., None] * scores.means**2 / variance, axis=(0, 1))


@pytest.mark.parametrize("n", [12, 40, 150, 600])
def test_scores_have_the_noise_that_draws_claim(n):
    """Contrasts of few rows, or the triangle of more rows than columns."""
    fit = score_fit(thin_terms(sent(*made(3, [0] * 60, n, d=110))))
    assert_allclose(fit.mean(), 1.0, atol=0.12)
    assert_allclose(fit[:30].mean(), fit[-30:].mean(), atol=0.25)


def test_draws_of_all_users_point_everywhere():
    """Triangles of two users are nearly the same: the same sums of their rows would be, too."""
    terms = thin_terms(sent(*made(3, [0] * 60, 300, d=110)))
    draws = terms.scores(pooled_model(terms)).draws
    values = np.linalg.eigvalsh(draws.T @ draws / len(draws))
    assert values[-1] < 3 * values.mean()


def test_a_sketch_is_no_surer_than_its_rows(monkeypatch):
    for room in (wide_terms, wide):
        monkeypatch.setattr(room, "MOST_RANK", 20)
    terms = thin_terms(sent(*made(4, [0] * 60, 200, d=110)))
    assert_allclose(terms.told, 20)
    assert_allclose(score_fit(terms).mean(), 1.0, atol=0.15)
    # Two models apart by a little: log-odds vary about as much as they favour the truth.
    truth = pooled_model(terms)
    other = truth + 0.02 * np.random.default_rng(0).standard_normal(110)
    losses = terms.losses(np.ones(60, bool), np.stack([truth, other]))
    assert_allclose(losses[:, 0].mean() / 20, 0.25, rtol=0.2)
    odds = 0.5 * (losses[:, 1] - losses[:, 0]) / 0.25
    assert 0.5 < odds.var() / (2 * odds.mean()) < 2.5


def test_one_row_says_nothing_of_groups():
    X, y, users = made(5, np.arange(12) % 2, 60)
    one = np.r_[np.flatnonzero(users < 10), np.flatnonzero(users == 10)[:1]]
    terms = thin_terms(sent(X[one], y[one], users[one]))
    assert terms.told[10] == 0
    losses = terms.losses(np.ones(11, bool), np.zeros((2, 120)))
    weights, s2 = np.array([0.3, 0.7]), np.array([1e-3, 10.0])
    assert_allclose(shares_by_losses(losses, terms.told, weights, s2)[10], weights)
    assert terms.scores(np.zeros(120)).counts[10, 0] == 0


def test_users_who_keep_their_rows_move_no_level():
    X, y, users = made(6, [0] * 12, 60)
    kept = np.r_[np.flatnonzero(users < 8), [np.flatnonzero(users == i)[0] for i in range(8, 12)]]
    every, some = (
        thin_terms(sent(X[rows], y[rows], users[rows], short_terms=False))
        for rows in (kept, np.flatnonzero(users < 8))
    )
    assert_allclose(every.rows[8:], 0.0)
    levels = []
    for terms in (every, some):
        one = np.ones((len(terms.rows), 1))
        levels.append(group_regressions(terms, one, always, alike=True)[1].scores[0, 0, -1, 0])
    assert_allclose(*levels, rtol=1e-6)


def test_users_in_the_wrong_group_change_it_where_that_is_allowed():
    group = np.arange(24) % 2
    terms = thin_terms(sent(*made(7, group, 100)))
    wrong = group.copy()
    wrong[:3] = 1 - wrong[:3]
    r = refine(terms, np.eye(2)[wrong], always)[0]
    assert (r.argmax(axis=1) == group).all()
    assert_allclose(refine(terms, np.eye(2)[wrong], lambda _: False)[0], np.eye(2)[wrong])


def test_true_groups_cost_least():
    group = np.arange(24) % 2
    terms = thin_terms(sent(*made(8, group, 60)))
    three = np.where(np.arange(24) % 4 == 3, 2, group)
    costs = [held_out_cost(terms, np.eye(k.max() + 1)[k]) for k in (group, 0 * group, three)]
    assert min(costs) == costs[0]


def test_units_change_nothing_but_units():
    group = np.arange(20) % 2
    X, y, users = made(9, group, 60)
    plain, other = server_step(sent(X, y, users)), server_step(sent(1e4 * X, 1e-6 * y, users))
    assert (plain.labels == other.labels).all()
    assert_allclose(other.centers[:, :-1], 1e-10 * plain.centers[:, :-1], rtol=1e-3, atol=1e-14)


def test_ridge_is_that_of_the_normal_equations():
    rng = np.random.default_rng(0)
    F = rng.standard_normal((30, 8))
    due = np.linalg.solve(F[:, :-1].T @ F[:, :-1] + 3 * np.eye(7), F[:, :-1].T @ F[:, -1])
    assert_allclose(ridge(F.T @ F, 3.0), due)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_few_users_are_one_group(m):
    X, y, users = made(0, [0] * m, 20)
    step = server_step(sent(X, y, users))
    assert len(step.centers) == 1
    assert np.isfinite(step.centers).all()


@pytest.mark.parametrize("what", ["target", "features"])
def test_constant_columns_have_finite_models(what):
    X, y, users = made(0, [0] * 8, 20)
    step = server_step(sent(*((X, 0 * y, users) if what == "target" else (0 * X, y, users))))
    assert np.isfinite(step.centers).all()


@pytest.mark.parametrize("n_groups", [1, 3])
@pytest.mark.parametrize("size", [0.0, 0.3, 3.0, 300.0])
def test_how_far_levels_vary_is_found_and_told(n_groups, size):
    """The server sees it in users' averages alone, up to what 90 users tell of a variance."""
    group = np.arange(90) % n_groups
    X, y, users = made(0, group, 30)
    levels = size * np.random.default_rng(1).standard_normal(90)
    step = server_step(sent(X, y + levels[users], users))
    assert len(step.centers) == n_groups
    assert_allclose(np.sqrt(step.mixture.level), levels.std(), rtol=0.1)
    told = "differ only by noise" if size == 0 else "differ in the level (standard deviation"
    assert told in step.reason


def test_levels_that_do_not_vary_are_seldom_seen_to():
    seen = 0
    for seed in range(40):
        X, y, users = made(seed, np.zeros(30, int), 12, d=105)
        seen += server_step(sent(X, y, users)).mixture.level > 0
    assert seen <= 3


def test_models_do_not_depend_on_how_far_apart_levels_are():
    """Slopes are those of centered rows, and levels are free where they lie far apart."""
    X, y, users = made(0, np.zeros(40, int), 25)
    own = np.random.default_rng(3).standard_normal(40)
    X_new, _, _ = made(4, np.zeros(40, int), 5)
    owners, found = np.repeat(np.arange(40), 5), []
    for size in (30.0, 3e4):
        model = ODCLRegressor().fit(X, y + size * own[users], users)
        found.append(model.predict(X_new, users=owners) - size * own[owners])
    assert np.abs(found[0] - found[1]).mean() < 0.02  # rows are dealt to other folds


def test_intervals_of_users_without_rows_hold_their_levels(tmp_path):
    X, y, users = made(0, np.zeros(200, int), 12)
    level = 3 * np.random.default_rng(1).standard_normal(200)
    y = y + level[users]
    some = users < 100
    model = ODCLRegressor(unknown="pooled").fit(X[some], y[some], users[some])
    model.save(tmp_path / "run")
    new = X[~some], 0.9, users[~some]
    with pytest.warns(UserWarning, match="not in the fit"):
        low, high = model.predict_interval(*new)
    with pytest.warns(UserWarning, match="not in the fit"):
        again = ODCLRegressor.load(tmp_path / "run").predict_interval(*new)
    assert_array_equal(again, (low, high))
    assert 0.8 < ((low <= y[~some]) & (y[~some] <= high)).mean() < 0.98
