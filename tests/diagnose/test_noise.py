"""Formulas of the noise of groups, and of how surely users belong to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl.diagnose.measure import measure
from odcl.diagnose.noise import GroupModels, ModelNoise, center_covariance, estimated_noise
from odcl.diagnose.own_models import own_models
from tests.diagnose.cases import Case


def test_a_groups_model_is_as_noisy_as_the_draws_of_it_and_more_without_a_user():
    """Precision-weighted means of normal draws, with users who differ by tau2."""
    v, labels, tau2 = np.array([1.0, 2.0, 4.0, np.inf]), np.zeros(4, dtype=int), 0.5
    noise = ModelNoise(v[:, None, None], "curvature")
    rng = np.random.default_rng(1)
    w = 1 / v[:3]
    drawn = (rng.standard_normal((200_000, 3)) * np.sqrt(v[:3] + tau2)) @ w / w.sum()
    covariance = center_covariance(noise, labels, tau2 * np.eye(1))
    assert_allclose(covariance[0, 0, 0], drawn.var(), rtol=0.02)
    pair = GroupModels(np.zeros((1, 2)), np.zeros((2, 2)), np.full((1, 1, 1), 0.5), np.array([2]))
    assert_allclose(pair.seen_without(np.array([0, 0])), 1.0)  # the other one's alone


def test_differences_that_no_rows_could_overcome_are_left_out_of_the_rows_needed():
    case = Case("", (20, 20), 4, 1.5, 14)
    f, users = case.federation(0), own_models(case.result(0).uploads)
    noise = estimated_noise(users)
    alike = replace(measure(users, f.groups, None, noise, None), spread=np.zeros((4, 4)))
    assert alike.rows_needed() > 14
    some = replace(alike, spread=0.01 * np.eye(4))
    assert some.rows_needed() > alike.rows_needed()
    # Three standard deviations apart however many rows there are: 40 Phi(-1.5) users wrong.
    assert replace(alike, spread=0.25 * np.eye(4)).rows_needed() == alike.rows_needed()


@pytest.mark.parametrize("away", [0.0, 1.0])
def test_a_user_alone_is_elsewhere_if_a_member_of_another_group_is_as_far(away):
    case = Case("", (20, 20), 4, 6, 40)
    f, users = case.federation(0), own_models(case.result(0).uploads)
    theta = users.theta.copy()
    theta[0] = theta[1:20].mean(axis=0) + away
    users, labels = replace(users, theta=theta), f.groups.copy()
    labels[0] = 2
    found = measure(users, labels, None, estimated_noise(users), None).membership
    assert found.rival[0] == 0
    assert found.elsewhere[0] > 0.9 if away == 0 else found.elsewhere[0] < 1e-6


def test_there_is_one_probability_of_a_users_group():
    """What users are told is what the diagnosis counts and names."""
    case = Case("", (30, 30, 30), 6, 1.25, 16)
    result = case.result(200)
    sure, found = result.step.probabilities, result.diagnose()
    assert ((sure > 0.5) & (sure < 0.95)).any()
    assert_allclose(1 - found.membership.elsewhere, sure, atol=1e-12)
    assert_allclose(found.misplaced, (1 - sure).sum())
    assert_array_equal(np.sort(found.border), np.flatnonzero(1 - sure >= 0.05))
