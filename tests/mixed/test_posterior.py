"""The user's last step: Bayes' formula, the server's answer again, intervals that cover."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from odcl.mixed.mixture import Noise, Spread
from odcl.mixed.posterior import Mixture, mixture_of, posterior
from odcl.mixed.search import search
from odcl.mixed.terms import data_terms, quadratics

from .predictions import coefficients, components, interval, predict, predict_std
from .worlds import dense_log_density, rows_of, seen


def small(seed=0):
    rng = np.random.default_rng(seed)
    X, y, users = rows_of(rng.standard_normal((5, 3)), [1, 2, 3, 6, 9], seed=seed)
    return X, y, users, *seen(X, y, users)


def some_mixture(at, *, scales=(1.0,), shares=(1.0,), C=0.0):
    rng = np.random.default_rng(7)
    L = rng.standard_normal((3, 3))
    return Mixture(
        at,
        np.array([0.3, 0.7]),
        rng.standard_normal((2, 3)),
        C * np.stack([np.eye(3), 2 * np.eye(3)]),
        Spread("full", L @ L.T, np.ones(3, bool)),
        np.array(scales),
        np.array(shares),
        Noise(np.inf, 0.8, 100.0),
    )


def test_the_posterior_is_bayes_formula():
    """Groups by their marginal likelihood; inside a group, T^-1 and Z'Z / s2 added up."""
    X, y, users, _, at, q = small()
    down = some_mixture(at, scales=(1.0, 4.0), shares=(0.6, 0.4))
    got = posterior(q, down)
    Z, s2 = at.design(X), down.noise.s0
    u = at.target(y, Z)
    for i in range(5):
        z, ui = Z[users == i], u[users == i]
        want, weights = [], []
        for scale, share in zip(down.scales, down.shares, strict=True):
            T = scale * down.spread.matrix
            V = np.linalg.inv(np.linalg.inv(T) + z.T @ z / s2)
            for c, weight in zip(down.centers, down.weights, strict=True):
                want.append(V @ (np.linalg.solve(T, c) + z.T @ ui / s2))
                weights.append(share * weight * np.exp(dense_log_density(z, ui, s2, c, T)))
            assert_allclose(got.V[i, int(scale > 1)], V, atol=1e-10)
        weights = np.array(weights) / np.sum(weights)
        assert_allclose(got.shares[i].ravel(), weights, rtol=1e-8)
        assert_allclose(got.theta[i].reshape(4, 3), want, atol=1e-9)
        assert_allclose(got.mean()[i], weights @ np.array(want), atol=1e-9)


def test_coefficients_and_errors_are_those_of_the_predictions():
    *_, at, q = small()
    got = posterior(q, some_mixture(at, C=0.3))
    raw, errors = coefficients(got)
    new, who = np.random.default_rng(1).standard_normal((5, 2)), np.arange(5)
    line = (new * raw[:, :-1]).sum(axis=1) + raw[:, -1]
    assert_allclose(predict(got, new, who), line, atol=1e-10)
    at_zero = predict_std(got, np.zeros((5, 2)), who)
    noise = at.target_scale**2 * got.s2
    assert_allclose(errors[:, -1] ** 2 + noise, at_zero**2, rtol=1e-9)


def test_what_a_center_is_not_known_to_is_added_through_what_the_user_does_not_know():
    _, _, _, _, at, q = small()
    got = posterior(q, some_mixture(at, C=0.5))
    known = replace(got, mixture=some_mixture(at))
    grown, r = got.covariance() - known.covariance(), got.responsibilities
    for i in range(5):
        C = 0.5 * (r[i, 0] + 2 * r[i, 1]) * np.eye(3)
        assert_allclose(grown[i], got.J[i, 0] @ C @ got.J[i, 0].T, atol=1e-10)


def test_an_interval_is_cut_at_the_mixtures_quantiles():
    X, _, users, _, at, q = small()
    got = posterior(q, some_mixture(at, C=0.1))
    r, means, variances = components(got, X, users)
    for p, bound in zip((0.05, 0.95), interval(got, X, users), strict=True):
        below = stats.t.cdf((bound[:, None] - means) / np.sqrt(variances), 100.0)
        assert_allclose((r * below).sum(axis=1), p, atol=1e-9)


def grouped(seed, *, n_users=60, rows=8, own_noise=False):
    rng = np.random.default_rng(seed)
    theta = 3 * rng.standard_normal((3, 3))[np.arange(n_users) % 3]
    theta = theta + 0.3 * rng.standard_normal((n_users, 3))
    sd = np.sqrt(6 / rng.chisquare(6, n_users)) if own_noise else np.ones(n_users)
    X, y, users = rows_of(theta, 2 * rows, seed=seed, noise=np.repeat(sd, 2 * rows))
    old = np.tile(np.arange(2 * rows) < rows, n_users)
    return X, y, users, old


@pytest.mark.parametrize("own_noise", [False, True])
def test_the_user_finds_what_the_server_found(own_noise):
    X, y, users, _ = grouped(0, rows=12, own_noise=own_noise)
    _, at, q = seen(X, y, users)
    fit = search(q)
    assert fit.noise.common is not own_noise
    got = posterior(q, mixture_of(fit, at))
    assert_allclose(got.responsibilities, fit.responsibilities, atol=1e-4)
    assert_allclose(got.s2, fit.s2, rtol=1e-3)


@pytest.mark.slow
def test_intervals_cover_held_out_rows():
    """90 % intervals on 16 federations of 480 held-out rows, half of them with unequal noise."""
    covered = []
    for seed in range(16):
        X, y, users, old = grouped(seed, own_noise=seed % 2 == 0)
        _, at, q = seen(X[old], y[old], users[old])
        got = posterior(q, mixture_of(search(q), at))
        low, high = interval(got, X[~old], users[~old])
        covered.append(np.mean((low <= y[~old]) & (y[~old] <= high)))
    assert 0.88 <= np.mean(covered) <= 0.92
    assert np.min(covered) >= 0.83


def test_a_new_user_takes_the_same_step_from_its_first_row_on():
    X, y, users, _ = grouped(1)
    _, at, q = seen(X, y, users)
    down = mixture_of(search(q), at)
    mine = users == 4
    alone = quadratics(data_terms(X[mine], y[mine], np.zeros(mine.sum(), int), 1), at)
    both = posterior(q, down).mean()[4]
    assert_allclose(posterior(alone, down).mean()[0], both, rtol=1e-10, atol=1e-12)


def test_a_user_without_rows_has_the_mixtures_mean():
    X, y, users, _ = grouped(1)
    _, at, q = seen(X, y, users)
    down = mixture_of(search(q), at)
    nobody = quadratics(data_terms(X[:0], y[:0], users[:0], 1), at)
    got = posterior(nobody, down)
    assert_allclose(got.mean()[0], down.weights @ down.centers, atol=1e-10)
    low, high = interval(got, X[:3], np.zeros(3, int))
    assert (low < high).all()


def test_noise_of_one_user_does_not_hang_on_the_others():
    X, y, users, _ = grouped(2, rows=12, own_noise=True)
    _, at, q = seen(X, y, users)
    down = mixture_of(search(q), at)
    down = replace(down, noise=replace(down.noise, nu=4.0))
    assert_allclose(posterior(q[:7], down).s2, posterior(q, down).s2[:7], rtol=1e-9)
