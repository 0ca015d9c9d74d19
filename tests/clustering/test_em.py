"""The mixture's sums, checked one by one against what they are by definition."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from odcl.clustering.mixture.em import (
    Cloud,
    MixtureParameters,
    from_labels,
    icl,
    responsibilities,
    sweep,
)
from odcl.clustering.mixture.noise_mixture import noise_mixture


def cloud_and_mixture(n=40, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    cloud = Cloud(rng.normal(size=(n, dim)), rng.uniform(0.2, 2.0, n), dim)
    mixture = MixtureParameters(
        rng.normal(size=(2, dim)), np.array([9.0, 11.0]), np.array([0.3, 0.7]), 0.1
    )
    return cloud, mixture


def test_probabilities_and_likelihood_are_those_of_the_normal_law():
    cloud, mixture = cloud_and_mixture()
    log = np.array(
        [
            [
                np.log(share) + multivariate_normal(c, (v + 0.1) * np.eye(3)).logpdf(z)
                for c, share in zip(mixture.centers, mixture.shares, strict=True)
            ]
            for z, v in zip(cloud.points, cloud.noise, strict=True)
        ]
    )
    total = logsumexp(log, axis=1)
    r, _, found = responsibilities(cloud, mixture)
    assert_allclose(found, total, rtol=1e-10)
    assert_allclose(r, np.exp(log - total[:, None]), rtol=1e-9)
    state = sweep(cloud, mixture)
    weight = 1 / (cloud.noise + 0.1)
    assert state.loglik == pytest.approx(total.sum())
    assert state.entropy == pytest.approx(-(r * np.log(r)).sum())
    assert_array_equal(state.labels, r.argmax(axis=1))
    assert_allclose(state.mass, r.sum(axis=0))
    assert_allclose(state.precision, weight @ r)
    assert_allclose(state.pull, (r * weight[:, None]).T @ cloud.points)
    assert_allclose(state.freedom, 1 - weight * (r @ (1 / mixture.precision)))


@pytest.mark.parametrize("sizes", [(2, 3, 5), (1, 9), (4, 4, 4)])
def test_each_centre_uses_up_one_user_of_its_group(sizes):
    """Equal noise, groups far apart: a user of a group of g has 1 - 1/g left."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(0)
    points = 1e3 * labels[:, None] + rng.normal(size=(len(labels), 2))
    cloud = Cloud(points, np.ones(len(labels)), 2)
    state = sweep(cloud, from_labels(cloud, labels)[0])
    assert_allclose(state.freedom, 1 - 1 / np.repeat(sizes, sizes), atol=1e-12)


def test_tau2_is_not_lost_in_groups_of_three():
    """Restricted likelihood: a third of the spread is in the centres, and counted."""
    rng = np.random.default_rng(1)
    centers = 100 * rng.normal(size=(20, 10))
    theta = np.repeat(centers, 3, axis=0) + rng.normal(size=(60, 10))
    found = noise_mixture(theta, noise=np.full(60, 10 * 1e-4), n_clusters=20)
    assert found.tau2 == pytest.approx(1.0, rel=0.12)


@pytest.mark.parametrize(("n", "log_n"), [(3, 2.0), (7, 2.0), (8, np.log(8)), (50, np.log(50))])
@pytest.mark.parametrize("k", [1, 2])
def test_a_group_costs_its_share_and_its_centre_and_no_less_among_few_users(n, log_n, k):
    """K (1 + dim) log n, log n at least 2; centres this close have no dearer price."""
    dim = 3
    points = 1e-3 * np.random.default_rng(0).normal(size=(n, dim))
    mixture = MixtureParameters(points[:k], np.full(k, n / k), np.full(k, 1 / k))
    found = icl(Cloud(points, np.ones(n), dim), mixture, loglik=-5.0, entropy=0.5)
    assert found == pytest.approx(10 + 1 + k * (1 + dim) * log_n)
