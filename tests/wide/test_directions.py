"""Directions in which users differ, and the terms of users held out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from odcl.wide import directions
from odcl.wide.directions import (
    common_terms,
    find_directions,
    how_many,
    look_at,
    noise_ratio,
    placed_terms,
)
from odcl.wide.moments import Folds, user_folds
from tests.wide.worlds import grouped_rows, moments_of


def test_components_of_complete_users_are_those_of_the_closed_form(monkeypatch):
    """Tipping and Bishop: with noise of variance 1 / n, U U' = V (L - I / n) V'."""
    monkeypatch.setattr(directions, "SWEEPS", 500)
    rng, n = np.random.default_rng(0), 1.0
    z = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 10)) + 1.0
    z = (z + rng.standard_normal(z.shape) / np.sqrt(n)).reshape(40, 2, 5)
    counts = np.full((40, 2), n)
    middle = z.mean(axis=0)
    start = directions._main_axes(np.sqrt(n) * (z - middle), 2)
    middle, axes = directions._components(z, counts, middle, start)
    flat, U = z.reshape(40, 10), axes.reshape(10, 2)
    values, vectors = np.linalg.eigh(np.cov(flat.T, bias=True))
    top, V = values[-2:], vectors[:, -2:]
    assert_allclose(middle.ravel(), flat.mean(axis=0), atol=1e-8)
    assert_allclose(U @ U.T, (V * (top - 1 / n)) @ V.T, rtol=1e-4, atol=1e-4)


def test_components_with_counts_and_holes_are_the_likeliest(monkeypatch):
    monkeypatch.setattr(directions, "SWEEPS", 3000)
    rng = np.random.default_rng(1)
    n = rng.integers(0, 6, (15, 2)).astype(float)
    U, m = rng.standard_normal((2, 3, 1)), rng.standard_normal((2, 3))
    z = m + np.einsum("cpq,iq->icp", 2 * U, rng.standard_normal((15, 1)))
    z = np.where(n[..., None] > 0, z + rng.standard_normal(z.shape), 0.0)

    def likelihood(middle, axes):
        total = 0.0
        for i in range(15):
            seen = np.flatnonzero(n[i])
            if len(seen):
                own = axes[seen].reshape(-1, 1)
                noise = np.repeat(1 / n[i, seen], 3)
                at = middle[seen].ravel()
                covariance = own @ own.T + np.diag(noise)
                total += multivariate_normal.logpdf(z[i, seen].ravel(), at, covariance)
        return total

    middle = np.einsum("ic,icp->cp", n, z) / n.sum(axis=0)[:, None]
    away = np.sqrt(n)[..., None] * (z - middle)
    found = directions._components(z, n, middle, directions._main_axes(away, 1))
    best = likelihood(*found)
    for _ in range(30):
        step = [1e-2 * rng.standard_normal(part.shape) for part in found]
        assert likelihood(*(a + b for a, b in zip(found, step, strict=True))) < best + 1e-7


def test_directions_are_orthonormal_and_the_largest_comes_first():
    X, y, users = grouped_rows(0, np.arange(30) % 3, 20, d=40, apart=3.0)
    data = moments_of(X, y, users, 3)
    found = find_directions(data)
    n = data.counts.mean(axis=0)
    assert_allclose(np.einsum("c,cab->ab", n, found.metric), np.eye(found.axes.shape[2]), atol=1e-8)
    part = look_at(found, data, np.ones(30, bool))
    spread = part.b0.var(axis=0)
    assert spread[:2].min() > 3 * spread[2:].max()
    assert_allclose(found.slopes, np.linalg.solve(found.root.T, found.axes), atol=1e-10)
    whitened = np.linalg.solve(found.root, data.means[0].T).T
    b0 = sum(
        data.counts[0, c] * found.axes[c].T @ (whitened[c] - found.middle[c]) for c in range(3)
    )
    assert_allclose(part.b0[0], b0, atol=1e-8)


def terms_of(seed, group, n, **words):
    X, y, users = grouped_rows(seed, group, n, **words)
    data = moments_of(X, y, users, words.get("n_classes", 3))
    folds = Folds(user_folds(data.users))
    learned = folds.learned(data, lambda part, _: find_directions(part))
    return data, learned, folds.held_out(data, learned, look_at)


def standardized(part, ratio):
    V = np.diagonal(part.noise(ratio), axis1=1, axis2=2)
    return part.b0[:, : V.shape[1]] / np.sqrt(V)


@pytest.mark.parametrize("n", [12, np.arange(60) % 20 + 1])
def test_terms_of_users_held_out_have_the_noise_they_claim(n):
    found = []
    for seed in range(3):
        _, _, terms = terms_of(seed, [0] * 60, n, d=30)
        ratio = noise_ratio(terms)
        found.append(np.concatenate([standardized(part, ratio) for part in terms.parts]))
    assert_allclose(np.mean(np.square(found)), 1.0, atol=0.08)


def test_users_who_found_the_directions_seem_to_differ():
    """Why terms are held out: otherwise pure noise has several times its variance."""
    data, _, terms = terms_of(0, [0] * 60, 12, d=30)
    inside = look_at(find_directions(data), data, np.ones(60, bool))
    assert np.mean(standardized(inside, noise_ratio(terms)) ** 2) > 1.5


def test_the_average_user_is_uncertain_too():
    """With nine users the average of the others adds an eighth to the noise."""
    found = []
    for seed in range(30):
        _, _, terms = terms_of(seed, [0] * 9, 8, d=12, n_classes=2)
        ratio = noise_ratio(terms)
        found += [standardized(part, ratio)[:, :4].ravel() for part in terms.parts]
    assert_allclose(np.mean(np.concatenate(found) ** 2), 1.0, atol=0.07)


def test_users_who_came_later_have_the_noise_they_claim():
    X, y, users = grouped_rows(5, [0] * 90, 12, d=30)
    first = users < 60
    data = moments_of(X[first], y[first], users[first], 3)
    late = moments_of(X[~first], y[~first], users[~first], 3)
    folds = Folds(user_folds(data.users))
    learned = folds.learned(data, lambda part, _: find_directions(part))
    ratio = noise_ratio(folds.held_out(data, learned, look_at))
    q = placed_terms(find_directions(data), late, ratio, 8)
    # beta = 0: b ~ N(0, A).
    fit = np.einsum("ia,iab,ib->i", q.b, np.linalg.inv(q.A), q.b)
    assert_allclose(fit.mean(), 8.0, atol=1.6)


@pytest.mark.parametrize("seed", range(5))
def test_users_without_differences_have_no_directions(seed):
    uneven = np.random.default_rng(seed).integers(1, 60, 40)
    assert how_many(terms_of(seed, [0] * 40, 12)[2]) == 0
    assert how_many(terms_of(seed, [0] * 40, uneven)[2]) == 0


@pytest.mark.parametrize("n_groups", [2, 3, 4])
def test_groups_differ_in_one_direction_less_than_there_are(n_groups):
    terms = terms_of(0, np.arange(48) % n_groups, 20, apart=4.0)[2]
    assert how_many(terms) == n_groups - 1


def test_a_weak_direction_does_not_hide_a_strong_one(monkeypatch):
    gains = iter([50.0, 0.0, 40.0, 0.0, 0.0, 45.0])
    monkeypatch.setattr(directions, "_spread_gain", lambda *_: next(gains, 0.0))
    assert how_many(terms_of(0, [0] * 20, 8, d=20)[2]) == 3


def test_the_gain_of_a_spread_is_that_of_its_likelihood():
    rng = np.random.default_rng(0)
    J, V = rng.uniform(1, 5, 50), rng.uniform(1, 3, 50)
    b = rng.standard_normal(50) * np.sqrt(V + 2.0 * J**2)
    grid = 10.0 ** np.linspace(-3, 3, 400)
    each = [multivariate_normal.logpdf(b, np.zeros(50), np.diag(V + t * J**2)) for t in grid]
    none = multivariate_normal.logpdf(b, np.zeros(50), np.diag(V))
    assert_allclose(directions._spread_gain(b, J, V), max(each) - none, rtol=2e-3)


def test_folds_agree_on_where_groups_lie():
    """Each fold has its own directions and origin; in common terms groups lie at one place."""
    group = np.arange(60) % 2
    folds = user_folds(np.arange(60))
    group[folds == 0] = 0  # the others' average is then another
    data, learned, terms = terms_of(0, group, 40, apart=4.0, d=60)
    q = common_terms(terms, learned, find_directions(data), 1)
    beta = (q.b / q.A[:, 0])[:, 0]
    far = abs(beta[group == 0].mean() - beta[group == 1].mean())
    for k in range(2):
        at = [beta[(group == k) & (folds == f)].mean() for f in range(k, 5)]
        assert np.ptp(at) < 0.2 * far
    # No spread is left inside groups but the noise that terms claim.
    z = np.concatenate([(beta - beta[group == k].mean())[group == k] for k in range(2)])
    noise = np.concatenate([1 / q.A[group == k, 0, 0] for k in range(2)])
    assert_allclose(np.mean(z**2 / noise), 1.0, atol=0.5)


def test_noisy_users_claim_more_noise():
    """Draws tell how noisy a user is: else its noise passes for a difference."""
    rng = np.random.default_rng(0)
    X, y, users = grouped_rows(0, [0] * 60, 40, d=30, length=0.0)
    X *= np.where(np.arange(60) % 2, 1.0, 3.0)[users, None]
    data = moments_of(X, y, users, 3)
    kept = rng.random(len(data.draws)) < 0.5  # not all of them are sent
    told = data.draws[kept], data.owner[kept], data.of_class[kept]
    data = type(data)(data.users, data.counts, data.means, *told, data.width)
    folds = Folds(user_folds(data.users))
    learned = folds.learned(data, lambda part, _: find_directions(part))
    terms = folds.held_out(data, learned, look_at)
    ratio, fits = noise_ratio(terms), np.zeros(60)
    for some, part in zip(folds.members, terms.parts, strict=True):
        fits[some] = np.mean(standardized(part, ratio) ** 2, axis=1)
    assert fits[::2].mean() < 1.35
    assert fits[1::2].mean() > 0.4  # leaning on others


def test_folds_of_large_and_small_users_measure_alike():
    """Directions have length one by the counts of those who found them."""
    folds, group = user_folds(np.arange(60)), np.arange(60) % 2
    n = np.where(folds == 1, 90, 9)
    data, learned, terms = terms_of(1, group, n, apart=8.0, d=60)
    q = common_terms(terms, learned, find_directions(data), 1)
    beta = (q.b / q.A[:, 0])[:, 0]
    far = [
        abs(np.ptp([beta[(folds == f) & (group == k)].mean() for k in range(2)])) for f in range(5)
    ]
    assert max(far) < 1.15 * min(far)
