"""The steps of a fit and what it costs, against numerical derivatives and textbook formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import f as fisher
from scipy.stats import multivariate_normal

from odcl.mixed import em
from odcl.mixed.candidates import _within_reach, one_group
from odcl.mixed.em import Stopping, charge, fit_mixture
from odcl.mixed.mixture import (
    CAUTION,
    GRID,
    Noise,
    Spread,
    center_step,
    group_sums,
    misfits,
    moments,
    pure_noise,
)
from odcl.mixed.scoring import bound_slopes
from odcl.mixed.select import GAP, SCALES, _shares, center_prior, with_tails
from odcl.mixed.streaming_em import Parameters, pass_sums

from .worlds import dense_log_density, rows_of, seen

COMMON = Noise(np.inf, 1.0, 1.0)


def some_users(seed=0, n_users=12, dim=3, rows=6):
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((n_users, dim))
    return seen(*rows_of(theta, rows, seed=seed))


def spread_of(shape, dim=3):
    matrix = {
        "scalar": 0.4 * np.eye(dim),
        "diag": np.diag([0.5, 0.0, 0.2]),
        "full": np.array([[0.5, 0.2, 0.0], [0.2, 0.3, 0.1], [0.0, 0.1, 0.2]]),
    }[shape]
    return Spread(shape, matrix, np.diag(matrix) > 0)


@pytest.mark.parametrize("shape", ["scalar", "diag", "full"])
@pytest.mark.parametrize("K", [1, 2])
def test_slopes_are_the_derivatives_of_the_bound(shape, K):
    """In T: (Omega - H) / 2, symmetric; in log s2_i: (rss_i - left_i) / 2."""
    _, _, q = some_users()
    rng = np.random.default_rng(1)
    T, s2 = spread_of(shape), rng.uniform(0.5, 1.5, len(q))
    r = rng.dirichlet(np.ones(K), len(q))
    m = moments(q, T, s2)
    centers = center_step(*group_sums(m, r[None]), None if K == 1 else np.eye(3))

    def bound(matrix, s2):
        at = moments(q, Spread("full", matrix, np.ones(3, bool)), s2)
        return -0.5 * (r * misfits(at, centers)[0]).sum()

    got, h = bound_slopes(q, m, T, r, centers), 1e-5
    slope = (got.omega - got.H) / 2
    if shape == "scalar":
        up, down = (bound(T.matrix + step * np.eye(3), s2) for step in (h, -h))
        assert_allclose(np.trace(slope), (up - down) / (2 * h), rtol=1e-6)
    else:
        pairs = np.outer(T.open, T.open) if shape == "full" else np.diag(T.open)
        for j, k in np.argwhere(pairs):
            turn = np.zeros((3, 3))
            turn[j, k] += 0.5
            turn[k, j] += 0.5
            up, down = (bound(T.matrix + step * turn, s2) for step in (h, -h))
            assert_allclose(slope[j, k], (up - down) / (2 * h), rtol=1e-5, atol=1e-7)
    for i in range(len(q)):
        step = np.where(np.arange(len(q)) == i, np.exp(h), 1.0)
        numeric = (bound(T.matrix, s2 * step) - bound(T.matrix, s2 / step)) / (2 * h)
        assert_allclose((got.rss[i] - got.left[i]) / 2, numeric, rtol=1e-5, atol=1e-7)


def test_centers_cost_their_divergence_from_the_prior():
    """KL(N(c, C) || N(c_bar, B)), summed over groups."""
    _, _, q = some_users()
    B = np.array([[1.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 0.4]])
    r = np.eye(2)[np.arange(len(q)) % 2][None]
    got = center_step(*group_sums(moments(q, Spread.zero(3), np.ones(len(q))), r), B)
    cost = 0.0
    for c, C in zip(got.c[0], got.C[0], strict=True):
        away, inverse = c - got.mean[0], np.linalg.inv(B)
        cost += np.trace(inverse @ C) + away @ inverse @ away - 3
        cost += np.linalg.slogdet(B)[1] - np.linalg.slogdet(C)[1]
    assert_allclose(got.price[0], cost / 2, rtol=1e-10)
    told = sum(np.linalg.inv(B) - np.linalg.inv(B) @ C @ np.linalg.inv(B) for C in got.C[0])
    assert_allclose(got.common[0], np.linalg.slogdet(told)[1], rtol=1e-8)


def test_one_centers_bound_is_the_marginal_with_the_mean_integrated_out():
    """REML: N(u; 0, V) over a flat mean, from the dense matrix."""
    _, _, q = some_users(rows=4)
    fit = fit_mixture(q, np.ones((len(q), 1)), spread_of("full"), COMMON, np.ones(len(q)))
    X, y, users = rows_of(np.random.default_rng(0).standard_normal((12, 3)), 4, seed=0)
    _, at, _ = seen(X, y, users)
    Z = at.design(X)
    u, c = at.target(y, Z), fit.centers[0]
    T, s2 = fit.spread.matrix, fit.s2[0]
    level = sum(dense_log_density(Z[users == i], u[users == i], s2, c, T) for i in range(12))
    assert_allclose(fit.log_likelihood, level, rtol=1e-9)
    assert_allclose(fit.bound, level - 0.5 * fit.common, rtol=1e-6)


def test_evidence_charges_shares_spread_and_the_prior_of_centers():
    """log m per number (a scalar is told of by all coordinates), and which are open."""
    m, d, log = 50, 4, np.log
    zero, every = Spread.zero(d), np.ones(d, bool)
    two = np.array([True, True, False, False])
    assert charge(zero, 1, None, m) == 0
    assert_allclose(charge(Spread("scalar", np.eye(d), every), 1, None, m), log(m * d))
    assert_allclose(charge(Spread("diag", np.eye(d), every), 1, None, m), d * log(m))
    assert_allclose(charge(Spread("diag", np.eye(d), two), 1, None, m), 2 * log(m) + 2 * log(6))
    assert_allclose(charge(Spread("full", np.eye(d), every), 1, None, m), 10 * log(m))
    assert_allclose(charge(zero, 3, np.eye(d), m), 2 * log(m) + log(m * d))
    assert_allclose(charge(zero, 3, np.diag([1.0, 2, 3, 4]), m), (2 + d) * log(m))
    assert_allclose(charge(zero, 3, np.eye(d) + 0.1, m), (2 + 10) * log(m))
    _, _, q = some_users()
    r = np.eye(2)[np.arange(len(q)) % 2]
    fit = fit_mixture(
        q, r, Spread.zero(3), COMMON, np.ones(len(q)), np.eye(3), stop=Stopping(sweeps=5)
    )
    assert_allclose(fit.evidence, -2 * fit.bound + charge(fit.spread, 2, np.eye(3), len(q)))


def test_the_prior_of_centers_grows_to_where_they_are_and_never_shrinks():
    """B = beta base with beta = mean of base^-1 E (c_k - c_bar)^2, at least one."""
    groups = np.arange(20) % 2
    _, _, q = seen(*rows_of(np.array([[-3.0, 0, 1], [3, 2, -1]])[groups], 10))
    fits = {}
    for size in (1e-3, 1e3):
        args = (np.eye(2)[groups], Spread.zero(3), COMMON, np.ones(20), size * np.eye(3))
        fits[size] = fit_mixture(q, *args)
    assert_allclose(fits[1e3].prior, 1e3 * np.eye(3))
    away = fits[1e-3].centers - fits[1e-3].centers.mean(axis=0)
    second = away.T @ away + fits[1e-3].covariances.sum(axis=0)
    assert_allclose(fits[1e-3].prior, np.trace(second) / 6 * np.eye(3), rtol=1e-3)


def test_a_fit_that_cannot_win_ends_early_and_others_are_left_alone():
    _, _, q = some_users(n_users=30)
    r = np.random.default_rng(0).dirichlet(np.ones(3), 30)
    T, s2, B = spread_of("scalar"), np.ones(30), np.eye(3)
    whole = fit_mixture(q, r, T, COMMON, s2, B, stop=Stopping(1e-6))
    lost = fit_mixture(q, r, T, COMMON, s2, B, stop=Stopping(1e-6, evidence=-1e6))
    near = fit_mixture(q, r, T, COMMON, s2, B, stop=Stopping(1e-6, evidence=whole.evidence + 1e-3))
    assert len(lost.trace) < len(whole.trace)
    assert lost.evidence > -1e6
    assert near.bound == whole.bound


def test_a_fit_may_hope_that_some_of_its_sweeps_gain_as_much_as_the_last():
    """It wins in the end, by nine; after two sweeps it is behind."""
    _, _, q = some_users(n_users=30)
    r = np.random.default_rng(0).dirichlet(np.ones(3), 30)
    args = q, r, spread_of("scalar"), COMMON, np.ones(30), np.eye(3)
    whole = fit_mixture(*args, stop=Stopping(1e-2, 30))
    some, none = (
        fit_mixture(*args, stop=Stopping(1e-2, 30, evidence=whole.evidence + 9, hope=hope))
        for hope in (1 / 3, 0.0)
    )
    assert some.bound == whole.bound
    assert len(none.trace) < len(whole.trace)


def test_what_groups_can_reach_is_what_true_groups_reach():
    """Within four standard deviations of a chi-squared of one number per user and parameter."""
    rng = np.random.default_rng(3)
    groups = np.arange(80) % 5
    _, _, q = seen(*rows_of(2 * rng.standard_normal((5, 4))[groups], 20, seed=3))
    noise, s2 = pure_noise(q)
    single = one_group(q, noise, s2)["scalar"]
    prior = center_prior(single)
    fit = fit_mixture(q, np.eye(5)[groups], Spread.zero(4), noise, s2, prior)
    reach = _within_reach(q, single, prior, np.array([5]))[0]
    assert abs(reach - fit.evidence) < 4 * np.sqrt(2 * 80 * 4)


def test_the_noise_prior_is_the_one_of_largest_likelihood():
    """Pure error over f s0 has Fisher's F distribution with f and nu degrees of freedom."""
    rng = np.random.default_rng(0)
    sd = np.repeat(np.exp(0.5 * rng.standard_normal(80)), 12)
    _, _, q = seen(*rows_of(rng.standard_normal((80, 3)), 12, noise=sd, seed=2))
    noise, s2 = pure_noise(q)

    def level(nu, s0):
        return fisher.logpdf(q.pure / (q.dof * s0), q.dof, nu).sum() - len(q) * np.log(s0)

    best = level(noise.nu / CAUTION, noise.s0)
    assert noise.nu / CAUTION in GRID
    assert best > max(level(noise.nu / CAUTION, noise.s0 * x) for x in (0.98, 1.02))
    scales = noise.s0 * np.linspace(0.5, 2, 61)
    assert best > max(level(nu, s0) for nu in GRID for s0 in scales) - 1e-3
    common = q.pure.sum() / q.dof.sum()
    assert best - level(1e9, common) > 0.5 * np.log(len(q))
    assert_allclose(s2, (noise.nu * noise.s0 + q.pure) / (noise.nu + q.dof))


@pytest.mark.parametrize("unequal", [False, True])
def test_users_who_are_fitted_exactly_say_nothing_of_others_noise(unequal):
    """Closed shops, all of whose sales are zero: three of ten users here."""
    rng = np.random.default_rng(0)
    sd = np.exp(0.8 * unequal * rng.standard_normal(100))
    theta = rng.standard_normal((100, 3))
    theta[:30], sd[:30] = 0.0, 0.0
    _, _, q = seen(*rows_of(theta, 12, noise=np.repeat(sd, 12), seed=2))
    (noise, s2), (others, _) = pure_noise(q), pure_noise(q[np.arange(30, 100)])
    assert noise.nu == others.nu
    assert_allclose(noise.s0, others.s0, rtol=1e-9)
    assert noise.common != unequal
    assert s2.min() > 0.05 * noise.s0
    at = Parameters(
        np.ones(1), np.zeros((1, 3)), np.zeros((1, 3, 3)), Spread.zero(3), replace(noise, nu=4.0)
    )
    everyone, some = pass_sums(q, at), pass_sums(q[np.arange(30, 100)], at)
    assert_allclose(everyone.noise_slope, some.noise_slope, rtol=1e-9)


def test_equal_noise_is_hardly_ever_taken_for_unequal():
    """A finite nu must earn log m: by chance it does in less than 2 of 100 federations."""
    found = 0
    for seed in range(40):
        theta = np.random.default_rng(seed).standard_normal((30, 2))
        found += not pure_noise(seen(*rows_of(theta, 8, seed=seed))[2])[0].common
    assert found <= 3


@pytest.mark.parametrize("shape", ["diag", "full"])
def test_sweeps_that_look_ahead_end_sooner_in_the_same_place_and_never_fall(shape, monkeypatch):
    """Unequal noise and few rows: sweeps by themselves creep."""
    rng = np.random.default_rng(3)
    theta = rng.standard_normal((40, 3)) * [1.0, 0.3, 0.1]
    X, y, users = rows_of(theta, 6, seed=3)
    _, _, q = seen(X, y * np.repeat(rng.uniform(0.2, 3.0, 40), 6), users)
    T = Spread(shape, np.diag([0.5, 0.2, 0.1]), np.ones(3, bool))
    args = q, np.ones((40, 1)), T, Noise(2.0, 0.5, 1.0), np.full(40, 0.5)
    quick = fit_mixture(*args, stop=Stopping(movement=1e-10))
    monkeypatch.setattr(em, "_ahead", lambda seen, after: after)
    plain = fit_mixture(*args, stop=Stopping(movement=1e-10))
    assert plain.converged
    assert quick.converged
    assert len(quick.trace) < 0.7 * len(plain.trace)
    assert (np.diff(quick.trace) > -1e-9).all()
    assert_allclose(quick.bound, plain.bound, rtol=1e-12)
    assert_allclose(quick.spread.matrix, plain.spread.matrix, atol=1e-7)
    assert_allclose(quick.s2, plain.s2, rtol=1e-7)


def test_tails_are_a_mixture_of_scales_and_pay_for_themselves():
    rng = np.random.default_rng(0)
    X, y, users = rows_of(rng.standard_t(2, size=(150, 3)), 12)
    _, at, q = seen(X, y, users)
    noise, s2 = pure_noise(q)
    plain = one_group(q, noise, s2)["scalar"]
    fit = with_tails(q, plain)
    Z = at.design(X)
    u, c, T = at.target(y, Z), fit.centers[0], fit.spread.matrix
    C = fit.covariances[0]
    gain = 0.0
    for i in range(len(q)):
        z, t = Z[users == i], u[users == i]
        each = []
        for scale in SCALES:
            V = fit.s2[i] * np.eye(len(t)) + scale * z @ T @ z.T
            level = multivariate_normal(z @ c, V).logpdf(t)
            each.append(np.exp(level - 0.5 * np.trace(np.linalg.solve(V, z @ C @ z.T))))
        gain += np.log(fit.shares @ each) - np.log(each[1])
    assert SCALES[1] == 1
    assert_allclose(fit.tail_gain, gain, atol=0.02)
    assert_allclose(plain.evidence - fit.evidence, 2 * fit.tail_gain - np.log(150), rtol=1e-9)


@pytest.mark.parametrize("degrees", [2, 30])
@pytest.mark.parametrize("shape", ["scalar", "diag", "full"])
def test_tails_are_left_out_only_where_none_could_win(degrees, shape):
    """The bar is the evidence to beat."""
    rng = np.random.default_rng(3)
    _, _, q = seen(*rows_of(rng.standard_t(degrees, size=(80, 3)), 12))
    plain = one_group(q, *pure_noise(q))[shape]
    for times in (0.2, 1.0, 5.0):  # also around a T that does not fit
        wrong = replace(plain, spread=replace(plain.spread, matrix=times * plain.spread.matrix))
        tailed = with_tails(q, wrong)
        assert with_tails(q, wrong, tailed.evidence + 1e-6).tail_gain == tailed.tail_gain
        assert with_tails(q, wrong, -1e9) is wrong


def test_shares_of_the_scales_are_those_of_largest_likelihood():
    """EM's level is within its own bound of that of a hundred times as many steps."""
    levels = np.random.default_rng(0).standard_normal((200, 4)) * [1, 0.3, 0.5, 2]
    _, level = _shares(levels, -np.inf)
    shares, density = np.full(4, 0.25), np.exp(levels)
    for _ in range(30_000):
        shares = shares * (density / (density @ shares)[:, None]).mean(axis=0)
    best = np.log(density @ shares).sum()
    assert best - GAP <= level <= best + 1e-9
    assert _shares(levels, best + 1)[1] <= best


def test_users_around_a_center_as_normal_have_no_tails():
    rng = np.random.default_rng(1)
    _, _, q = seen(*rows_of(rng.standard_normal((100, 3)), 12))
    fit = one_group(q, *pure_noise(q))["scalar"]
    assert with_tails(q, fit) is fit
