"""Private uploads end to end: groups through noise, and nobody worse off than alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import (
    Federation,
    Method,
    Privacy,
    Risk,
    fit,
    linear_federation,
    logistic_federation,
    server_step,
)
from odcl.clustering.labels import same_partition
from odcl.errors import InputError
from odcl.exchange.mixture import mixture_from_arrays, mixture_to_arrays
from odcl.local.receive import receive
from odcl.privacy import looks
from odcl.privacy.terms import Sent, denoised
from odcl.risk.losses import Multinomial
from tests.privacy.test_noise import entropy_of

PRIVATE_UPLOAD = looks.private_upload


@pytest.fixture(autouse=True)
def _entropy(monkeypatch):
    """Noise of these tests comes from a generator, so that they are the same every time."""
    entropy = entropy_of(0)
    monkeypatch.setattr(looks, "private_upload", lambda *a: PRIVATE_UPLOAD(*a, entropy))


def errors(result, users):
    gaps = (np.linalg.norm(a - users.optima, axis=1) for a in (result.models, result.local.theta))
    return tuple(float(one.mean()) for one in gaps)


def numbers(epsilon, n=400, dim=5, m=40, **more):
    users = linear_federation(m, n, n_clusters=4, dim=dim, **more)
    privacy = Privacy(epsilon, 1e-5, row_norm=5**0.5, target_range=(-10, 10))
    return users, fit(users, Risk(), Method(privacy=privacy))


def test_groups_of_numbers_are_found_through_noise():
    users, result = numbers(4.0)
    assert same_partition(result.labels, users.groups)
    mine, alone = errors(result, users)
    assert mine < 0.5 * alone
    exact = fit(users, Risk())
    assert mine < 1.6 * errors(exact, users)[0]


def test_groups_of_classes_are_found_through_noise():
    users = logistic_federation(40, 500, seed=1)
    method = Method(privacy=Privacy(4.0, 1e-5, row_norm=1.9))
    result = fit(users, Risk("logistic"), method)
    assert same_partition(result.labels, users.groups)
    mine, alone = errors(result, users)
    assert mine < 0.6 * alone


def counts(m, n, seed):
    """Four groups of log-linear rates around three, three features and an intercept."""
    rng = np.random.default_rng(seed)
    centers = np.column_stack([0.35 * rng.normal(size=(4, 3)), 1.1 + 0.3 * rng.normal(size=4)])
    theta, X = centers[np.arange(m) % 4], rng.normal(size=(m, n, 3))
    y = rng.poisson(np.exp((X @ theta[:, :3, None])[..., 0] + theta[:, 3:])).astype(float)
    rows = Federation.from_arrays(X.reshape(-1, 3), y.ravel(), np.repeat(np.arange(m), n))
    return rows, theta, Risk("poisson", intercept=True)


def three_classes(m, n, seed):
    """Four groups of classes, two features and an intercept."""
    rng, loss = np.random.default_rng(seed), Multinomial(3)
    centers = 0.8 * rng.normal(size=(4, 3, 2))
    theta, X = centers[np.arange(m) % 4], rng.normal(size=(m, n, 2))
    scores = (np.concatenate([X, np.ones((m, n, 1))], axis=2) @ theta) @ loss.basis.T
    y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=2).astype(float)
    rows = Federation.from_arrays(X.reshape(-1, 2), y.ravel(), np.repeat(np.arange(m), n))
    return rows, theta.reshape(m, -1), Risk(loss, intercept=True)


@pytest.mark.parametrize(("world", "bounds"), [(counts, (0, 20)), (three_classes, None)])
def test_counts_and_more_classes_gain_from_many_rows_and_lose_nothing_with_few(world, bounds):
    for n, epsilon, most in ((600, 4.0, 0.75), (60, 0.3, 1.03)):
        rows, optima, risk = world(32, n, seed=1)
        method = Method(privacy=Privacy(epsilon, 1e-5, target_range=bounds))
        result = fit(rows, risk, method)
        mine, alone = (
            np.linalg.norm(models - optima, axis=1).mean()
            for models in (result.models, result.local.theta)
        )
        assert mine < most * alone
    assert np.abs(result.models).max() < 10


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("n", [12, 60])
def test_users_of_groups_that_noise_hides_are_no_worse_off_than_alone(epsilon, n):
    users, result = numbers(epsilon, n)
    mine, alone = errors(result, users)
    assert mine < 1.03 * alone


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_users_in_small_corners_of_the_ranges_are_no_worse_off_than_alone(epsilon):
    """Features that hardly vary within a user have larger coefficients than bounds suggest."""
    rng = np.random.default_rng(0)
    m, n = 60, 40
    year, level = rng.uniform(-2, 2, (m, n)), rng.uniform(-2, 2, (m, 1))
    size = level + 0.05 * year + 0.03 * rng.normal(size=(m, n))
    slopes = rng.normal([0.0, 3.0], [0.3, 2.0], (m, 2))
    y = (
        slopes[:, :1] * year
        + slopes[:, 1:] * (size - level)
        + level
        + 0.05 * rng.normal(size=(m, n))
    )
    X = np.stack([year, size], axis=2)
    some = np.arange(n) < 20
    rows = Federation.from_arrays(
        X[:, some].reshape(-1, 2), y[:, some].ravel(), np.arange(m).repeat(20)
    )
    privacy = Privacy(epsilon, 1e-5, target_range=(-5, 5))
    result = fit(rows, Risk(intercept=True), Method(privacy=privacy))
    others = np.concatenate([X[:, ~some], np.ones((m, 20, 1))], axis=2)
    mine, alone = (
        np.sqrt((((others * models[:, None]).sum(axis=2) - y[:, ~some]) ** 2).mean(axis=1)).mean()
        for models in (result.models, result.local.theta)
    )
    assert mine < 1.03 * alone


def test_nothing_exact_is_in_an_upload():
    """The same rows twice: every number differs, the number of rows included."""
    users, one = numbers(1.0, m=4)
    two = fit(users, Risk(), one.method).uploads.present
    assert set(two) == {
        *("n_samples", "private_curvature", "private_curvature_sd", "private_slope"),
        *("private_offset", "private_sd", "private_residuals"),
    }
    for name, values in one.uploads.present.items():
        if name == "private_curvature_sd":  # which is public: it follows from the guarantee
            continue
        assert (values != two[name]).any(), name


def test_units_and_origins_of_columns_are_the_bounds_own():
    """Rows in other units with bounds in these units, and the same noise: the same uploads."""
    users = linear_federation(5, 300, n_clusters=4, dim=5)
    shift, scale = np.array([3.0, -1.0, 0.0, 10.0, 2.0]), np.array([2.0, 0.1, 1.0, 5.0, 7.0])
    sent = []
    for X, units in ((users.X, {}), (users.X * scale + shift, {"shift": shift, "scale": scale})):
        privacy = Privacy(4.0, 1e-5, target_range=(-10, 10), **units)
        looked = users.with_X(X), Risk(intercept=True), privacy, entropy_of(5)
        sent.append(PRIVATE_UPLOAD(*looked))
    for name, values in sent[0].items():
        assert_allclose(sent[1][name], values, rtol=1e-3, atol=1e-2 * np.abs(values).max())


def test_the_order_of_users_changes_nothing():
    _users, result = numbers(4.0, n=200, m=24)
    order = np.random.default_rng(0).permutation(24)
    again = server_step(result.uploads.take(order), result.method)
    assert_allclose(again.centers, result.step.centers, atol=1e-9)
    assert_array_equal(again.labels, result.step.labels[order])
    assert_allclose(again.own_curvature, result.step.own_curvature[order])


def test_a_users_last_step_is_the_same_alone():
    for users, result in (
        numbers(2.0, n=50, m=12),
        (
            logistic := logistic_federation(12, 60, seed=2),
            fit(logistic, Risk("logistic"), Method(privacy=Privacy(2.0, row_norm=1.9))),
        ),
    ):
        downloads = result.step.downloads
        one = receive(users.take(np.array([3])), result.risk, result.uploads[3], downloads[3])
        assert_array_equal(one.models[0], result.models[3])


def test_the_mixture_and_what_lies_beyond_it_go_to_arrays_and_back():
    _, result = numbers(4.0, n=200, m=24)
    mixture = result.step.mixture
    again = mixture_from_arrays(*mixture_to_arrays(mixture), Risk(), 5)
    assert_array_equal(again.beyond, mixture.beyond)
    assert_array_equal(again.centers, mixture.centers)


def test_a_term_is_the_posterior_of_an_exact_user():
    """Without noise, and with the curvature known, a private term is least squares itself."""
    rng = np.random.default_rng(0)
    X, theta = rng.normal(size=(200, 3)), np.array([1.0, -2.0, 0.5])
    y = X @ theta + rng.normal(size=200)
    A, offset = (X.T @ X)[None], rng.normal(size=(1, 3))
    b = (X.T @ (y - X @ offset[0]))[None]
    sent = Sent(A, b, offset, np.full(1, 1e-9), np.full(1, 1e-9))
    curvature = denoised(A, np.full(1, 1e-9), np.full(1, 200.0), np.eye(3), alone=False)
    terms = sent.terms(curvature, np.ones(1), np.zeros((1, 3, 3)))
    assert_allclose(terms.J, A, rtol=1e-6)
    own = np.linalg.lstsq(X, y, rcond=None)[0]
    assert_allclose(np.linalg.solve(terms.J[0], terms.h[0]), own, rtol=1e-6)


def test_denoised_curvatures_are_nearer_and_say_how_near():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 100, 4))
    A, sd = X.swapaxes(1, 2) @ X, 40.0
    noise = rng.normal(size=A.shape) * sd / np.sqrt(2)
    noise = np.triu(noise, 1) + np.triu(noise, 1).swapaxes(1, 2)
    noise[:, range(4), range(4)] = rng.normal(size=(300, 4)) * sd
    found = denoised(A + noise, np.full(300, sd), np.full(300, 100.0), np.eye(4), alone=False)
    own = np.eye(4, dtype=bool)
    for some, claimed in ((own, found.own), (~own, found.other)):
        gap = ((found.A - A)[:, some] ** 2).mean()
        assert gap < 0.2 * (noise[:, some] ** 2).mean()
        assert gap == pytest.approx(claimed.mean(), rel=0.4)


def test_what_a_user_sent_is_taken_out_before_its_rows_come_in():
    """One center, users alike: own term out, own rows in, is the others' pooled precision."""
    from odcl.local.private import _without_own

    _, result = numbers(4.0, n=300, m=24, seed=3)
    step, one = result.step, result.step.downloads[0]
    c, C = _without_own(step.mixture, one, 1)
    k = int(step.labels[0])
    grown = np.linalg.inv(C[0, k]) + step.own_curvature[0]
    assert_allclose(grown, np.linalg.inv(step.mixture.covariances[k]), rtol=1e-2, atol=1.0)
    assert not np.array_equal(c[0, k], step.mixture.centers[k])
    bare = replace(one, own_curvature=None, own_slope=None)
    assert_array_equal(_without_own(step.mixture, bare, 1)[0][0], step.mixture.centers)


def test_private_uploads_need_their_guarantee_at_the_server():
    _, result = numbers(4.0, n=50, m=6)
    with pytest.raises(InputError, match="privacy"):
        server_step(result.uploads, Method())


@pytest.mark.parametrize(
    ("field", "times"),
    [
        *(("n_samples", 1e6), ("private_curvature", 1e6), ("private_curvature", 1e200)),
        *(("private_slope", 1e6), ("private_offset", 1e200), ("private_sd", 1e-12)),
    ],
)
def test_an_absurd_private_upload_does_not_spoil_the_round(field, times):
    users, result = numbers(4.0)
    method = result.method
    clean = server_step(result.uploads, method)
    assert clean.outliers == ()
    values = result.uploads.present[field].copy()
    values[3] *= times
    step = server_step(replace(result.uploads, **{field: values}), method)
    some = np.arange(len(users.users)) != 3
    assert [(one.user, one.kind) for one in step.outliers] == [(users.users[3], "numbers")]
    assert same_partition(step.labels[some], clean.labels[some])
    away = np.abs(step.models - clean.models)[some].mean()
    assert away < 0.1 * np.abs(clean.models).mean()
