"""Users who come after the round, where groups are of models: which loses least on them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal

import odcl
from odcl import Method, ODCLRegressor, Risk, Uploads, linear_federation
from odcl.server.assign import GroupStatistics, assign_rows, groups_of, place_upload
from tests.helpers import refusal


def groups(centers, noise=1.0):
    centers = np.atleast_2d(np.asarray(centers, dtype=float))
    k = len(centers)
    return GroupStatistics(centers, np.full(k, 10), np.full(k, 1e3), noise)


def test_probabilities_of_numbers_are_those_of_normal_rows_around_the_groups_models():
    """y ~ N(X c_k, phi I), by scipy."""
    rng = np.random.default_rng(0)
    centers = np.array([[0.5, 0.0], [0.0, 0.4], [0.2, 0.2]])
    X = rng.normal(size=(4, 2))
    y = X @ centers[2] + 0.5 * rng.normal(size=4)
    found = assign_rows(X, y, Risk(), groups(centers, 1.5**2))
    p = np.array([multivariate_normal(X @ c, 1.5**2 * np.eye(4)).pdf(y) for c in centers])
    assert_allclose(found.probabilities, p / p.sum(), rtol=1e-9)
    assert found.label == p.argmax()
    assert_array_equal(found.theta, centers[found.label])  # the paper's: it takes that model


def test_probabilities_of_classes_are_those_of_the_labels():
    X, y = np.linspace(0.5, 3.0, 8)[:, None], np.array([-1.0, 1, 1, 1, 1, 1, 1, 1])
    centers = np.array([1.0, 6.0])
    likelihood = np.prod(1 / (1 + np.exp(-y[:, None] * X * centers)), axis=0)
    found = assign_rows(X, y, Risk("logistic"), groups(centers[:, None]))
    assert_allclose(found.probabilities, likelihood / likelihood.sum(), rtol=1e-9)
    assert (found.label, found.none_of_these) == (0, False)


def test_rows_that_say_nothing_leave_every_group_as_likely():
    found = assign_rows(np.zeros((3, 2)), np.ones(3), Risk(), groups([[1.0, 0.0], [-1.0, 2.0]]))
    assert_allclose(found.probabilities, 0.5)


def test_where_no_noise_is_known_the_best_group_sets_it():
    """Rows of mean square 4 around the nearer model."""
    X, y = np.ones((6, 1)), np.array([2.0, -2.0] * 3)
    found = assign_rows(X, y, Risk(), groups([[0.0], [1.0]], np.nan))
    assert_allclose(found.probabilities[1] / found.probabilities[0], np.exp(-6 / (2 * 4.0)))


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
def test_groups_of_a_fit_hold_members_rows_and_noise(loss):
    federation = linear_federation(
        40, [40] * 10 + [80] * 30, n_clusters=4, dim=3, n_active=3, noise=2.0, seed=1
    )
    y = {"squared": federation.y, "logistic": np.sign(federation.y)}.get(loss)
    federation = federation.with_y(np.ones(len(federation.y)) if y is None else y)
    risk = Risk(loss, l2=0.01)
    result = odcl.fit(federation, risk, Method("kmeans:4"))
    known = groups_of(federation, risk, result.step)
    assert_array_equal(known.members, np.bincount(result.labels))
    assert_array_equal(known.samples, np.bincount(result.labels, weights=federation.n_samples))
    if loss == "squared":
        left = federation.y - (federation.X * result.models[federation.row_user]).sum(axis=1)
        assert known.noise == pytest.approx((left**2).mean(), rel=1e-9)
    else:
        assert np.isnan(known.noise)


def test_a_model_without_rows_goes_to_the_nearest_group_and_nobody_knows_how_surely():
    found = place_upload(Uploads.of([[0.9, 0.1]]), groups([[0.0, 0.0], [1.0, 0.0]]))
    assert found.label == 1
    assert np.isnan(found.probability)
    assert_array_equal(found.theta, [1.0, 0.0])


def test_more_rows_of_a_user_whose_model_was_clustered_come_with_all_its_rows():
    rng = np.random.default_rng(0)
    models = np.array([[5.0, 0.0], [5.0, 0.0], [-5.0, 3.0]])
    owner, X = np.repeat(np.arange(3), 30), rng.normal(size=(90, 2))
    y = (X * models[owner]).sum(axis=1) + rng.normal(size=90)
    model = ODCLRegressor(clusterer="kmeans:2").fit(X, y, users=owner)
    assert model.labels_.tolist() == [0, 0, 1]
    refusal(model.update_user, 2, X[:5], y[:5] + 1.0, match="all_rows=True")
    assert model.update_user(2, X[:60], y[:60], all_rows=True) == 0  # they are the others' now
    assert_array_equal(model.coef_[2], model.coef_[0])
    assert model.n_rows_.tolist() == [30, 30, 60]
