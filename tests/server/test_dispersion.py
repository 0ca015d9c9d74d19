"""How far users of a group differ: found where the rows can tell, and not known elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import odcl
from odcl import Federation, Method, Risk, Uploads, linear_federation, server_step
from odcl.local.fit import fit_users
from odcl.risk.losses import Huber
from odcl.server.combine import average_by_cluster
from odcl.server.dispersion import (
    covariances,
    evidence_tau2,
    most_likely_tau2,
    noise_prior,
    noise_traces,
    pooled_dispersion,
    with_noise,
)


def precise_users(n_groups, size, tau, *, dim=5, seed=0):
    """Groups of equal size, models known up to 0.03 per coefficient, users differing by ``tau``."""
    rng = np.random.default_rng(seed)
    m = n_groups * size
    labels = np.repeat(np.arange(n_groups), size)
    theta = 3 * rng.normal(size=(n_groups, dim))[labels] + tau * rng.normal(size=(m, dim))
    theta += 0.03 * rng.normal(size=(m, dim))
    H = np.tile(np.eye(dim) / 0.03**2, (m, 1, 1))
    return Uploads(np.arange(m), np.full(m, 1000.0), theta, H, np.ones(m), risk=Risk()), labels


@pytest.mark.parametrize("size", [2, 3, 20])
def test_tau2_is_that_of_the_users_however_small_their_groups(size):
    """The centre of two users has taken up half of their difference."""
    uploads, labels = precise_users(1200 // size, size, tau=0.5)
    centers = average_by_cluster(uploads.theta, labels)
    found = evidence_tau2(uploads, labels, centers, np.ones(len(labels)))
    assert_allclose(found, 0.25, rtol=0.1)


def test_users_who_are_the_same_have_no_tau2():
    uploads, labels = precise_users(20, 10, tau=0.0)
    centers = average_by_cluster(uploads.theta, labels)
    assert evidence_tau2(uploads, labels, centers, np.ones(len(labels))) == 0.0


def test_tau2_does_not_depend_on_how_far_from_zero_the_models_are():
    uploads, labels = precise_users(30, 10, tau=0.5)
    near, far = (
        evidence_tau2(
            replace(uploads, theta=uploads.theta + shift),
            labels,
            average_by_cluster(uploads.theta, labels) + shift,
            np.ones(len(labels)),
        )
        for shift in (0.0, 2.0**20)
    )
    assert_allclose(far, near, rtol=1e-6)


def test_the_penalty_says_nothing_of_how_far_users_differ():
    """With l2 the models are drawn to zero, far from them; the rows' own evidence is as before."""
    rng = np.random.default_rng(3)
    owner, X = np.repeat(np.arange(60), 200), rng.normal(size=(12_000, 4))
    optima = 5.0 + 0.5 * rng.normal(size=(60, 4))
    y = (X * optima[owner]).sum(axis=1) + rng.normal(size=len(owner))
    federation = Federation.from_arrays(X, y, owner)
    found = [odcl.fit(federation, Risk(l2=l2), Method(1)).step.tau2 for l2 in (0.0, 0.2)]
    assert_allclose(found[0], 0.25, rtol=0.3)
    assert_allclose(found[1], found[0], rtol=0.1)


@pytest.mark.parametrize(("l2", "known"), [(0.0, True), (0.1, True), (1.0, False), (30.0, False)])
def test_where_the_penalty_sets_the_models_tau2_is_not_known(l2, known):
    """Standard normal features: the rows determine 1 / (1 + l2) of a model. Then each user looks
    for its strength on its own rows."""
    federation = linear_federation(30, 100, n_clusters=1, dim=4, n_active=4, tau=0.5, seed=0)
    result = odcl.fit(federation, Risk(l2=l2), Method(1))
    assert (result.step.tau2 is not None) == known
    assert ("cross-validation" in result.received.how) != known


@pytest.mark.parametrize(("share", "known"), [(0.4, False), (0.6, True)])
def test_half_of_the_users_must_tell_their_noise_for_a_tau2(share, known):
    uploads, labels = precise_users(10, 10, tau=0.5)
    phi = np.where(np.arange(100) % 10 < 10 * share, 1.0, np.inf)
    uploads = replace(uploads, dispersion=phi)
    centers = average_by_cluster(uploads.theta, labels)
    found = evidence_tau2(uploads, labels, centers, np.ones(100))
    assert (found is not None) == known


def test_users_alone_in_their_groups_tell_nothing_of_differences():
    uploads, _ = precise_users(10, 1, tau=0.5)
    assert evidence_tau2(uploads, np.arange(10), uploads.theta, np.ones(10)) is None


def test_the_evidence_is_highest_at_the_tau2_found_and_a_little_must_pay_its_price():
    rng = np.random.default_rng(1)
    a = rng.uniform(0.5, 50.0, size=(40, 3))
    gap2 = a * (1 + a * 0.3) * rng.chisquare(1, size=a.shape)

    def misfit(t):
        return (np.log1p(t * a) - t * gap2 / (1 + t * a)).sum()

    best = most_likely_tau2(a, gap2, price=0.0)
    grid = np.geomspace(1e-3, 10, 2000)
    assert misfit(best) <= min(map(misfit, grid)) + 1e-6
    assert most_likely_tau2(a, gap2, price=-misfit(best) + 1e-6) == 0.0
    assert most_likely_tau2(a, gap2, price=-misfit(best) - 1e-6) == best


# -- where the evidence is not to be had -------------------------------------------------------


def many_users(tau, curvature, seed=4):
    federation = linear_federation(80, 60, n_clusters=4, dim=5, n_active=5, tau=tau, seed=seed)
    return fit_users(federation, Risk(), curvature).uploads


@pytest.mark.parametrize("given", ["nothing", "traces"])
def test_without_whole_curvatures_tau2_is_not_known(given, monkeypatch):
    """As beyond a hundred parameters: users cross-validate, and a tau2 of 0 is not claimed."""
    monkeypatch.setattr("odcl.local.fit.FULL_UP_TO", 0)
    uploads = many_users(0.6, "auto")
    uploads = uploads if given == "traces" else Uploads.of(uploads.theta)
    step = server_step(uploads, Method("mixture", "mean", "evidence"))
    assert step.n_clusters == 4
    assert step.tau2 is None
    assert step.others is not None
    assert step.downloads.tau2 is None
    assert step.downloads.dispersion is None


@pytest.mark.parametrize("combine", ["mean", "samples"])
def test_where_tau2_is_not_known_users_are_sent_their_groups_model_without_themselves(combine):
    """They will cross-validate, and rows held out must not speak through the model received."""
    uploads = many_users(0.6, "none")
    uploads = replace(uploads, n_samples=np.linspace(20.0, 90.0, 80))
    step = server_step(uploads, Method(4, combine, "evidence", curvature="none"))
    assert step.tau2 is None
    for i in (0, 17, 79):
        rest = np.flatnonzero((step.labels == step.labels[i]) & (np.arange(80) != i))
        weights = None if combine == "mean" else uploads.n_samples[rest]
        expected = np.average(uploads.theta[rest], axis=0, weights=weights)
        assert_allclose(step.downloads.others[i], expected, rtol=1e-9)


def test_evidence_asks_users_for_their_curvature():
    """Even where nothing else does: K-means and plain means."""
    assert Method(2, "mean", "evidence").sends == "auto"
    assert Method(2, "mean", "cv").sends == Method(2, "samples", 0.3).sends == "none"
    assert Method(2, "precision", None).sends == Method("mixture", "mean", None).sends == "auto"
    assert Method(2, "mean", "evidence", curvature="full").sends == "full"
    federation = linear_federation(20, 30, n_clusters=4, dim=3, n_active=3, tau=0.5, seed=0)
    result = odcl.fit(federation, method=Method(4, "mean", "evidence"))
    assert result.step.tau2 is not None
    assert "from the evidence" in result.received.how


# -- noise scales ------------------------------------------------------------------------------


def noisy_users(m, dof, differ, *, dim=3, seed=0):
    """Noise scales estimated with ``dof`` degrees of freedom; the true ones differ, or are 2."""
    rng = np.random.default_rng(seed)
    true = 2.0 * np.exp(differ * rng.normal(size=m))
    phi = true * rng.chisquare(dof, m) / dof
    n = np.full(m, float(dof + dim))
    return Uploads(np.arange(m), n, np.zeros((m, dim)), dispersion=phi, risk=Risk()), true


def test_users_of_one_noise_get_one_noise():
    uploads, _ = noisy_users(300, 5, differ=0.0, seed=2)
    found = pooled_dispersion(uploads)
    assert np.ptp(found) < 0.3 * np.ptp(uploads.dispersion)
    assert_allclose(np.median(found), 2.0, rtol=0.1)


def test_users_of_different_noise_are_drawn_together_as_far_as_helps():
    uploads, true = noisy_users(300, 5, differ=0.7)
    found = pooled_dispersion(uploads)
    own, one = uploads.dispersion, np.full(300, uploads.dispersion.mean())
    error = [np.square(np.log(phi / true)).mean() for phi in (found, own, one)]
    assert error[0] < 0.8 * min(error[1:])
    scale, dof = noise_prior(own, np.full(300, 5.0))
    assert_allclose(found, (dof * scale + 5 * own) / (dof + 5), rtol=1e-12)


def test_users_who_cannot_tell_their_noise_get_the_typical_one():
    uploads, _ = noisy_users(300, 5, differ=0.7)
    silent = replace(uploads, dispersion=np.append(uploads.dispersion[:-1], np.inf))
    scale, _ = noise_prior(uploads.dispersion[:-1], np.full(299, 5.0))
    assert pooled_dispersion(silent)[-1] == pytest.approx(scale)
    assert pooled_dispersion(replace(uploads, dispersion=np.full(300, np.inf))) is None
    assert pooled_dispersion(replace(uploads, dispersion=None)) is None
    exact = replace(uploads, dispersion=np.append(uploads.dispersion[:-1], 0.0))  # without noise
    assert_allclose(pooled_dispersion(exact), pooled_dispersion(silent))
    fixed = replace(uploads, risk=Risk("logistic"))
    assert_array_equal(pooled_dispersion(fixed), 1.0)


def test_covariances_are_noise_over_curvature_and_infinite_where_not_known():
    federation = linear_federation(6, [2, *[30] * 5], n_clusters=1, dim=3, n_active=3, seed=0)
    uploads = fit_users(federation, Risk(), "full").uploads
    phi = np.linspace(1.0, 2.0, 6)
    found = covariances(uploads, phi)
    assert np.isposinf(found[0]).all()
    for i in range(1, 6):
        assert_allclose(found[i], phi[i] * np.linalg.inv(uploads.curvature[i]), rtol=1e-9)
    assert covariances(uploads, None) is None


def test_traces_are_those_of_the_covariances(monkeypatch):
    federation = linear_federation(10, [2, *[30] * 9], n_clusters=1, dim=3, n_active=3, seed=0)
    uploads = fit_users(federation, Risk(), "full").uploads
    phi = pooled_dispersion(uploads)
    expected = [
        p * np.trace(np.linalg.inv(H)) for p, H in zip(phi[1:], uploads.curvature[1:], strict=True)
    ]
    found = noise_traces(uploads, phi)
    assert found[0] == np.inf
    assert_allclose(found[1:], expected, rtol=1e-9)
    monkeypatch.setattr("odcl.local.fit.FULL_UP_TO", 0)
    by_trace = fit_users(federation, Risk()).uploads
    assert_allclose(noise_traces(by_trace, phi), found, rtol=1e-9)


def test_few_rows_with_an_outlier_among_them_do_not_tell_their_noise():
    """Huber's loss: such users keep their targets, whose scatter is the outlier's."""
    rng = np.random.default_rng(0)
    X, users = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    y = X @ [1.0, 2.0] + rng.normal(size=60)
    y[3] += 300.0
    risk = Risk(Huber(1.345), intercept=True)
    told = with_noise(fit_users(Federation.from_arrays(X, y, users), risk, terms=True).uploads)
    assert np.isinf(told.dispersion).tolist() == [True] + 5 * [False]
