"""Users join the group that explains their rows best, wherever zero is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Risk, Uploads, linear_federation
from odcl.clustering.labels import number_by_first_user
from odcl.local.fit import fit_users
from odcl.server.step import dissolve_small, misfit, settle


def users_and_centers(l2, seed=0):
    federation = linear_federation(12, 40, n_clusters=4, dim=4, n_active=4, seed=seed)
    uploads = fit_users(federation, Risk(l2=l2)).uploads
    return federation, uploads, federation.optima[[0, 5, 11]] + 0.1


@pytest.mark.parametrize("l2", [0.0, 0.4])
def test_without_differences_inside_groups_the_misfit_is_that_of_the_rows(l2):
    """Half the squared residuals of each group's model, up to a constant per user; no penalty."""
    federation, uploads, centers = users_and_centers(l2)
    some = np.array([1, 4, 7, 10])
    found = misfit(uploads, np.ones(12), 0.0, centers, some)
    for row, i in zip(found, some, strict=True):
        part = federation.rows(i)
        residual = federation.y[part] - centers @ federation.X[part].T
        expected = 0.5 * np.square(residual).sum(axis=1)
        assert_allclose(row - row[0], expected - expected[0], rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("l2", [0.0, 0.4])
def test_with_differences_inside_groups_the_misfit_is_that_of_the_rows_law(l2):
    """y ~ N(X c, phi I + tau^2 X X'): the same, by the rows' own covariance."""
    federation, uploads, centers = users_and_centers(l2)
    phi, tau2, some = np.full(12, 1.3), 0.5, np.array([0, 3, 8])
    found = misfit(uploads, phi, tau2, centers, some)
    for row, i in zip(found, some, strict=True):
        X, y = federation.X[federation.rows(i)], federation.y[federation.rows(i)]
        cov = 1.3 * np.eye(len(y)) + tau2 * X @ X.T
        residual = y - centers @ X.T
        expected = 0.5 * (residual * np.linalg.solve(cov, residual.T).T).sum(axis=1)
        assert_allclose(row - row[0], expected - expected[0], rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("tau2", [0.0, 0.5])
def test_models_far_from_zero_lose_no_digits_of_the_misfit(tau2):
    _, uploads, centers = users_and_centers(0.0)
    shift = 2.0**30  # and numbers that such a shift does not round
    uploads = replace(uploads, theta=np.round(uploads.theta * 2**20) / 2**20)
    centers = np.round(centers * 2**20) / 2**20
    far = replace(uploads, theta=uploads.theta + shift)
    here, there = (
        misfit(u, np.ones(12), tau2, c, np.arange(12))
        for u, c in ((uploads, centers), (far, centers + shift))
    )
    assert_allclose(there - there[:, :1], here - here[:, :1], rtol=1e-5, atol=1e-5)


def test_a_misplaced_user_finds_its_group_and_others_stay():
    federation, uploads, _ = users_and_centers(0.0)
    misplaced = federation.groups.copy()
    misplaced[1] = (misplaced[1] + 1) % 4
    assert_array_equal(settle(uploads, np.ones(12), misplaced, True), federation.groups)
    assert_array_equal(settle(uploads, np.ones(12), misplaced, False), misplaced)
    cannot_seed = replace(uploads, dispersion=np.where(np.arange(12) == 1, np.inf, 1.0))
    assert_array_equal(settle(cannot_seed, np.ones(12), misplaced, False), federation.groups)


def test_users_and_groups_are_brought_in_line_until_nobody_moves():
    federation, uploads, _ = users_and_centers(0.0)
    rng = np.random.default_rng(3)
    moved = 0
    for _ in range(10):
        start = number_by_first_user(rng.permutation(federation.groups))
        rested = settle(uploads, None, start, True)
        assert_array_equal(settle(uploads, None, rested, True), rested)
        moved += (rested != start).sum()
    assert moved > 20


def test_users_of_a_dissolved_group_join_the_nearest_of_those_left():
    theta = np.array([[0.0], [0.2], [9.0], [9.4], [9.2], [3.0], [6.1]])
    labels = np.array([0, 0, 1, 1, 1, 2, 3])
    uploads = Uploads.of(theta)
    assert_array_equal(dissolve_small(uploads, labels, 2), [0, 0, 1, 1, 1, 0, 1])
    assert dissolve_small(uploads, labels, 1) is labels
    assert_array_equal(dissolve_small(uploads, labels, 3), np.zeros(7))  # one group is left
    assert_array_equal(dissolve_small(uploads, labels, 4), np.zeros(7))  # none is
