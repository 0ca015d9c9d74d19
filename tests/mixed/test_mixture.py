"""The mixture's moments and fit, against dense Gaussians, pooled least squares and MixedLM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from odcl.mixed.em import Stopping, fit_mixture, with_noise_freedom
from odcl.mixed.mixture import (
    Centers,
    Noise,
    Spread,
    center_step,
    group_sums,
    misfits,
    moments,
    pure_noise,
)

from .worlds import dense_log_density, rows_of, seen

COMMON = Noise(np.inf, 1.0, 1.0)


def spread(shape, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    L = rng.standard_normal((dim, dim))
    matrix = {
        "zero": np.zeros((dim, dim)),
        "scalar": 0.7 * np.eye(dim),
        "diag": np.diag([0.5, 0.0, 2.0]),
        "full": L @ L.T,
        "rank one": np.outer(L[0], L[0]),
    }[shape]
    return Spread("full" if shape == "rank one" else shape, matrix, np.diag(matrix) > 0)


def random_users(seed=0, dim=3, n_users=5):
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((n_users, dim))
    return rows_of(theta, [1, 2, 3, 6, 9][:n_users], seed=seed)


def at_points(c):
    dim = c.shape[-1]
    return Centers(
        c[None],
        np.zeros((1, len(c), dim, dim)),
        np.zeros((1, dim)),
        np.zeros(1),
        np.zeros((1, dim, dim)),
    )


@pytest.mark.parametrize("shape", ["zero", "scalar", "diag", "full", "rank one"])
def test_log_marginals_equal_the_dense_gaussian(shape):
    """Users of 1, 2, 3, 6 and 9 rows for 3 parameters: singular curvatures are ordinary."""
    X, y, users = random_users()
    _, at, q = seen(X, y, users)
    T, rng = spread(shape), np.random.default_rng(1)
    s2, c = rng.uniform(0.5, 2, 5), rng.standard_normal((4, 3))
    m = moments(q, T, s2)
    got = -0.5 * misfits(m, at_points(c))[0]
    Z = at.design(X)
    u = at.target(y, Z)
    for i in range(5):
        mine = users == i
        want = [dense_log_density(Z[mine], u[mine], s2[i], ck, T.matrix) for ck in c]
        assert_allclose(got[i], want, rtol=1e-11)


@pytest.mark.parametrize("shape", ["zero", "scalar", "full"])
def test_an_uncertain_center_costs_half_the_trace(shape):
    X, y, users = random_users()
    _, _, q = seen(X, y, users)
    m = moments(q, spread(shape), np.ones(5))
    c, C = np.ones((1, 1, 3)), np.diag([1.0, 2.0, 3.0])[None, None]
    sure = misfits(m, at_points(c[0]))
    unsure = misfits(m, Centers(c, C, c[0], np.zeros(1), C[:, 0]))
    assert_allclose(unsure[0, :, 0] - sure[0, :, 0], np.trace(m.W @ C[0], axis1=1, axis2=2))


def test_centers_are_the_mode_of_their_joint_posterior():
    """c_k and c_bar together solve the normal equations of sum (c_k - c_bar)'B^-1 (c_k - c_bar)."""
    rng = np.random.default_rng(0)
    L = rng.standard_normal((1, 3, 2, 2))
    M, v = L @ L.transpose(0, 1, 3, 2), rng.standard_normal((1, 3, 2))
    B = np.array([[0.5, 0.7], [0.7, 2.0]])
    got = center_step(M, v, B)
    inverse = np.linalg.inv(B)
    system = np.zeros((8, 8))
    for k in range(3):
        mine = slice(2 * k, 2 * k + 2)
        system[mine, mine] = M[0, k] + inverse
        system[mine, 6:] = system[6:, mine] = -inverse
    system[6:, 6:] = 3 * inverse
    want = np.linalg.solve(system, np.append(v.ravel(), [0, 0]))
    assert_allclose(got.c.ravel(), want[:6], rtol=1e-8)
    assert_allclose(got.mean.ravel(), want[6:], rtol=1e-8)
    assert_allclose(got.C[0], np.linalg.inv(M[0] + inverse), rtol=1e-10)


def test_known_groups_without_spread_are_pooled_least_squares():
    """The paper's step 2(iii) with precision combining, for a prior that says nothing."""
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1], 5)
    theta = np.array([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]])[groups]
    X, y, users = rows_of(theta, 6, seed=1)
    _, at, q = seen(X, y, users)
    m = moments(q, Spread.zero(3), np.ones(10))
    centers = center_step(*group_sums(m, np.eye(2)[groups][None]), 1e9 * np.eye(3))
    offset, change = at.raw()
    for k in range(2):
        mine = np.isin(users, np.flatnonzero(groups == k))
        design = np.column_stack([X[mine], np.ones(mine.sum())])
        want = np.linalg.lstsq(design, y[mine], rcond=None)[0]
        assert_allclose(offset + change @ centers.c[0, k], want, atol=1e-6)
    assert rng is not None


def fitted(q, shape, *, K=1, start=None, prior=None, tol=1e-10):
    noise = Noise(np.inf, 1.0, 1.0)
    every = np.ones(q.dim, bool) if shape != "zero" else np.zeros(q.dim, bool)
    T = Spread(shape, 0.3 * np.diag(every.astype(float)), every)
    start = np.ones((len(q), 1)) if start is None else start
    stop = Stopping(tol, sweeps=3000)
    fit = fit_mixture(q, start, T, noise, np.ones(len(q)), prior, stop=stop)
    return with_noise_freedom(q, fit)


def longitudinal(seed, *, n_users=40, T=((1.0, 0.3), (0.3, 0.5)), rows=(3, 9)):
    rng = np.random.default_rng(seed)
    theta = np.array([2.0, -1.0]) + rng.multivariate_normal([0, 0], T, n_users)
    return rows_of(theta, rng.integers(*rows, n_users), seed=seed)


def mixed_lm(X, y, users):
    lme = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    Z = np.column_stack([np.ones(len(X)), X])
    model = lme.MixedLM(y, Z, users, exog_re=Z)
    return model.fit(reml=True, method=["bfgs", "lbfgs"], gtol=1e-10, maxiter=1000)


def restricted_likelihood(fit, at, n_rows):
    """In the table's units: the bound differs by constants of the design's scales."""
    change = at.raw()[1]
    log_scale = np.linalg.slogdet(change[[1, 0]])[1]
    return fit.bound - n_rows * np.log(at.target_scale) + np.log(2 * np.pi) + log_scale


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.filterwarnings("ignore")
def test_one_group_is_the_linear_mixed_model(seed):
    """Likelihood, T, noise and predicted effects of statsmodels' MixedLM (REML)."""
    X, y, users = longitudinal(seed)
    theirs = mixed_lm(X, y, users)
    _, at, q = seen(X, y, users)
    ours = fitted(q, "full")
    _, change = at.raw()
    order = [1, 0]  # raw coefficients are [slope, intercept]
    T = (change @ ours.spread.matrix @ change.T)[np.ix_(order, order)]
    assert_allclose(T, theirs.cov_re, rtol=1e-4, atol=1e-5)
    assert_allclose(ours.noise.s0 * at.target_scale**2, theirs.scale, rtol=1e-4)
    assert_allclose(restricted_likelihood(ours, at, len(y)), theirs.llf, rtol=1e-6)
    m = moments(q, ours.spread, ours.s2)
    effects = (m.w - m.W @ ours.centers[0]) @ ours.spread.matrix @ change[order].T
    wanted = np.array([theirs.random_effects[i] for i in range(40)])
    assert_allclose(effects, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "T", [((1.0, 0.0), (0.0, 0.0)), ((0.0, 0.0), (0.0, 0.0)), ((1, 1), (1, 1))]
)
@pytest.mark.filterwarnings("ignore")
def test_on_the_boundary_the_likelihood_is_no_lower_than_statsmodels(T):
    X, y, users = longitudinal(3, T=T, rows=(2, 5))
    theirs = mixed_lm(X, y, users)
    _, at, q = seen(X, y, users)
    ours = fitted(q, "full")
    assert restricted_likelihood(ours, at, len(y)) >= theirs.llf - 1e-4
    assert np.linalg.eigvalsh(ours.spread.matrix).min() >= -1e-12


@pytest.mark.parametrize("shape", ["zero", "scalar", "diag", "full"])
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("own_noise", [False, True])
def test_the_bound_never_falls(shape, K, own_noise):
    rng = np.random.default_rng(K)
    for seed in range(3):
        theta = rng.standard_normal((3, 4))[np.arange(30) % 3] + 0.3 * rng.standard_normal((30, 4))
        noise_sd = np.repeat(rng.uniform(0.3, 2, 30), 4)
        X, y, users = rows_of(theta, 4, seed=seed, noise=noise_sd)
        _, _, q = seen(X, y, users)
        noise = Noise(2.0, 0.5, 1.0) if own_noise else COMMON
        every = np.full(4, shape != "zero")
        T = Spread(shape, 0.2 * np.diag(every.astype(float)), every)
        start = rng.dirichlet(np.ones(K), 30)
        prior = None if K == 1 else np.eye(4)
        fit = fit_mixture(q, start, T, noise, np.ones(30), prior, stop=Stopping(sweeps=60))
        assert np.diff(fit.trace).min() >= -1e-10 * abs(fit.bound)


def test_directions_that_nobody_sees_stay_at_the_reference():
    X, y, users = random_users()
    _, _, q = seen(np.column_stack([X, X[:, 0] + X[:, 1]]), y, users)
    assert np.linalg.matrix_rank(q.A.sum(axis=0), tol=1e-8) == 3
    for shape in ("zero", "scalar", "diag", "full"):
        fit = fitted(q, shape, tol=1e-6)
        assert np.isfinite(fit.bound)
        assert np.abs(fit.centers).max() < 100


@pytest.mark.parametrize("K", [1, 3])
def test_a_direction_that_nobody_sees_costs_no_evidence(K):
    """Columns that are collinear in every user say what fewer columns say."""
    rng = np.random.default_rng(K)
    root = rng.standard_normal((1, K, 7, 4))
    M, v = root.transpose(0, 1, 3, 2) @ root, rng.standard_normal((1, K, 4))
    turn = np.linalg.qr(rng.standard_normal((6, 6)))[0][:, :4]  # 4 directions out of 6
    B = None if K == 1 else 2.0
    few = center_step(M, v, None if B is None else B * np.eye(4))
    wide = center_step(turn @ M @ turn.T, v @ turn.T, None if B is None else B * np.eye(6))
    assert_allclose(wide.common, few.common, rtol=1e-9)
    assert_allclose(wide.price, few.price, rtol=1e-9)
    assert_allclose(wide.c @ turn, few.c, atol=1e-9)


def test_equal_noise_is_common_and_unequal_noise_is_not():
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((60, 3))
    for spread_of_noise, finite in ((0.0, False), (1.0, True)):
        sd = np.repeat(np.exp(spread_of_noise * rng.standard_normal(60)), 12)
        _, _, q = seen(*rows_of(theta, 12, noise=sd, seed=2))
        noise, s2 = pure_noise(q)
        assert noise.common is not finite
        assert len(s2) == 60


def test_without_pure_error_the_noise_is_common():
    rng = np.random.default_rng(0)
    _, _, q = seen(*rows_of(rng.standard_normal((20, 5)), 3))
    assert (q.dof == 0).all()
    assert pure_noise(q)[0].common


def test_of_rows_that_repeat_rounding_is_no_pure_error():
    rng = np.random.default_rng(3)
    X, y, users = (np.repeat(a, 2, axis=0) for a in rows_of(rng.standard_normal((20, 5)), 3))
    _, _, q = seen(X, y, users)
    noise, s2 = pure_noise(q)
    assert (q.dof > 0).all()
    assert noise.common
    assert_allclose(s2, 0.5)  # in units of the usual deviation: no sure noise to start from


def test_where_nobody_has_a_row_to_spare_rounding_is_no_pure_error():
    rng = np.random.default_rng(3)
    _, _, q = seen(*rows_of(rng.standard_normal((20, 5)), 1))
    noise, s2 = pure_noise(replace(q, pure=np.full(len(q), 1e-16)))
    assert (q.dof == 0).all()
    assert noise.common
    assert_allclose(s2, 0.5)
