"""Users who come after the round: weighed by the groups' models and shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal

import odcl
from odcl import Federation, KMeansPP, Method, Risk, linear_federation, server_step
from odcl.clustering.labels import same_partition
from odcl.local.fit import fit_users
from odcl.server.assign_models import GroupStatistics, assign_rows, groups_of


def groups(centers, *, members=None, tau2=0.0, phi=1.0, phi_dof=1e6, samples=1e9):
    """GroupStatistics known as exactly as one could wish."""
    centers = np.atleast_2d(np.asarray(centers, dtype=float))
    k = len(centers)
    members = np.full(k, 10) if members is None else np.array(members)
    return GroupStatistics(
        centers, members, np.full(k, samples), np.ones(k), tau2, tau2, phi, phi_dof
    )  # fmt: skip


def test_rows_that_say_nothing_leave_the_groups_their_shares():
    """Features of zero: every model explains them alike."""
    known = groups([[1.0, 0.0], [-1.0, 2.0], [5.0, 5.0]], members=[30, 10, 60])
    found = assign_rows(np.zeros((3, 2)), np.ones(3), Risk(), known, Method())
    assert_allclose(found.probabilities, [0.3, 0.1, 0.6], rtol=1e-9)
    assert (found.label, found.none_of_these) == (2, False)


@pytest.mark.parametrize("tau2", [0.0, 0.4])
def test_probabilities_are_bayes_rule_on_the_rows(tau2):
    """y ~ N(X c_k, phi I + tau^2 X X') times the groups' shares, by scipy."""
    rng = np.random.default_rng(0)
    centers = np.array([[0.5, 0.0], [0.0, 0.4], [0.2, 0.2]])
    X = rng.normal(size=(4, 2))
    y = X @ centers[2] + 0.5 * rng.normal(size=4)  # no noisier than is typical
    known = groups(centers, members=[5, 3, 2], tau2=tau2, phi=1.5**2)
    found = assign_rows(X, y, Risk(), known, Method())
    cov = 1.5**2 * np.eye(4) + tau2 * X @ X.T
    p = np.array([multivariate_normal(X @ c, cov).pdf(y) for c in centers]) * [5, 3, 2]
    assert_allclose(found.probabilities, p / p.sum(), rtol=1e-4)


def test_probabilities_of_logistic_rows_are_near_those_of_the_integral():
    """One coefficient ~ N(c_k, tau^2), integrated out on a grid; Laplace's method is close.

    Far out the loss bends less, so the mode alone would be too sure of the group there.
    """
    X, y = np.linspace(0.5, 3.0, 8)[:, None], np.array([-1.0, 1, 1, 1, 1, 1, 1, 1])
    centers, tau2 = np.array([1.0, 6.0]), 4.0
    theta = np.linspace(-20, 30, 20_001)
    likelihood = np.exp(-np.log1p(np.exp(-y[:, None] * X * theta)).sum(axis=0))
    density = np.exp(-0.5 * np.square(theta - centers[:, None]) / tau2)
    p = (density * likelihood).sum(axis=1)
    found = assign_rows(X, y, Risk("logistic"), groups(centers[:, None], tau2=tau2), Method())
    assert_allclose(found.probabilities, p / p.sum(), atol=0.03)


def test_one_row_that_was_nearly_certain_makes_no_stranger():
    """It goes wrong for one member in 400; a stranger is rarer than one in 10,000."""
    known = groups([[6.0], [-6.0]], members=[99, 1])
    found = assign_rows(np.ones((1, 1)), np.array([-1.0]), Risk("logistic"), known, Method())
    wrong = replace(known, centers=known.centers[:1], members=known.members[:1])
    alone = assign_rows(np.ones((1, 1)), np.array([-1.0]), Risk("logistic"), wrong, Method())
    assert not alone.none_of_these
    assert alone.distance < 4.0
    far = assign_rows(-np.ones((3, 1)), np.ones(3), Risk("logistic"), wrong, Method())
    assert far.none_of_these  # three such rows: one member in 64 million
    assert found.label == 1  # a hundred times as rare, four hundred times as likely


def test_the_distance_is_one_at_one_standard_deviation():
    """Squared loss, known noise: sqrt(mean of (slope / its deviation)^2), centre's noise included.

    With n rows x = 1 and a centre from as many rows, the gap has variance 2 phi / n, and users of a
    group add tau^2.
    """
    n, gap, phi = 50, 0.7, 4.0
    X, y = np.ones((n, 1)), np.full(n, 3.0 + gap)
    y = y + np.where(np.arange(n) % 2 == 0, 1.0, -1.0)  # no noisier than is typical
    for samples, tau2 in ((1e12, 0.0), (n, 0.0), (1e12, 0.3)):
        known = groups([[3.0]], phi=phi, phi_dof=1e9, samples=samples, tau2=tau2)
        found = assign_rows(X, y, Risk(), known, Method(refit=None))
        variance = phi / n * (1 + n / samples) + tau2
        assert found.distance == pytest.approx(gap / np.sqrt(variance), rel=1e-3)
        assert_array_equal(found.theta, [3.0])


def test_a_newcomers_noise_is_drawn_up_to_the_typical_one_and_never_down():
    known = groups([[0.0]], phi=2.0, phi_dof=10.0)
    assert known.drawn_up(1.0, 10.0) == pytest.approx(1.5)
    assert known.drawn_up(8.0, 10.0) == 8.0
    assert replace(known, phi=np.nan, phi_dof=0.0).drawn_up(3.0, 5.0) == 3.0


def test_a_newcomer_of_a_fit_is_refitted_with_the_strength_that_was_given():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(20, 2))
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=20)
    known = groups([[1.1, 1.9]], phi=0.01)
    for strength in (0.5, 7.0):
        found = assign_rows(X, y, Risk(l2=9.0), known, Method(refit=strength))
        left = X.T @ X / 20 + strength * np.eye(2)
        expected = np.linalg.solve(left, X.T @ y / 20 + strength * known.centers[0])
        assert_allclose(found.theta, expected, rtol=1e-9)
    alone = assign_rows(X, y, Risk(l2=0.3), known, Method(refit=0))
    assert_allclose(alone.theta, np.linalg.solve(X.T @ X / 20 + 0.3 * np.eye(2), X.T @ y / 20))
    assert_allclose(alone.upload.theta[0], alone.theta)


# -- what a fit leaves behind ------------------------------------------------------------------


def test_groups_of_a_fit_hold_members_rows_noise_and_the_share_of_the_penalty():
    federation = linear_federation(
        40, [40] * 10 + [80] * 30, n_clusters=4, dim=3, n_active=3, tau=0.5, seed=1
    )
    risk, method = Risk(l2=0.01), Method(4)
    result = odcl.fit(federation, risk, method)
    known = groups_of(federation, risk, result.local, result.step, method)
    counts = np.bincount(result.labels)
    assert_array_equal(known.members, counts)
    assert_array_equal(known.samples, np.bincount(result.labels, weights=federation.n_samples))
    assert_allclose(known.penalty_share, 1 / counts)  # the penalty counts once per group
    assert known.tau2 == result.step.tau2
    assert known.spread == pytest.approx(0.25, rel=0.5)
    assert known.phi == pytest.approx(1.0, rel=0.1)
    assert known.phi_dof > 100
    means = Method(4, combine="mean")
    result = odcl.fit(federation, risk, means)
    assert_array_equal(
        groups_of(federation, risk, result.local, result.step, means).penalty_share, 1.0
    )


def test_users_without_a_finite_model_tell_nothing_of_the_noise():
    """Counts that are all zero fit any small mean without any scatter."""
    rng = np.random.default_rng(4)
    owner, X = np.repeat(np.arange(25), 40), rng.normal(size=(1000, 2))
    y = rng.poisson(np.exp(0.3 * X.sum(axis=1) + rng.gamma(4.0, 0.25, 1000)))  # more than Poisson
    y[owner < 5] = 0
    risk, method = Risk("poisson", intercept=True), Method(1)
    found = []
    for least in (0, 5):
        some = owner >= least
        federation = Federation.from_arrays(X[some], y[some].astype(float), owner[some])
        result = odcl.fit(federation, risk, method)
        assert result.local.prior.sum() == 5 - least
        found.append(groups_of(federation, risk, result.local, result.step, method))
    assert found[0].phi == pytest.approx(found[1].phi)
    assert found[0].phi > 1.1


def test_differences_inside_groups_of_two_are_not_halved():
    """The centre of two users has taken up half of what they differ by."""
    rng = np.random.default_rng(0)
    owner, labels = np.repeat(np.arange(160), 50), np.arange(160) // 2
    optima = 40.0 * rng.normal(size=(80, 3))[labels] + 0.5 * rng.normal(size=(160, 3))
    X = rng.normal(size=(len(owner), 3))
    y = (X * optima[owner]).sum(axis=1) + rng.normal(size=len(owner))
    federation = Federation.from_arrays(X, y, owner)
    risk, method = Risk(), Method(KMeansPP(80, random_state=0), "mean", None, curvature="none")
    local = fit_users(federation, risk, method.sends)
    step = server_step(local.uploads, method)
    assert same_partition(step.labels, labels)
    assert step.tau2 is None
    known = groups_of(federation, risk, local, step, method)
    assert known.spread == known.tau2 == pytest.approx(0.25, rel=0.2)
