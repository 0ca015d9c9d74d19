"""A cluster's models become one (Algorithm 1, step 2(iii)): plain means, or weighed by rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from odcl.clustering.labels import sum_by_cluster
from odcl.exchange.upload import Uploads
from odcl.server.models import ClusterSums, average_by_cluster

unhurried = settings(deadline=None, derandomize=True)
SIZES = np.array([40.0, 25, 60, 90, 31, 200, 45, 33])
LABELS = np.array([0, 1, 0, 2, 1, 0, 1, 1])  # user 3 is alone
THETA = np.random.default_rng(0).normal(size=(8, 4))


@unhurried
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 99))
def test_sums_and_means_by_cluster(labels, seed):
    labels = np.unique(labels, return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    theta, weights = rng.normal(size=(len(labels), 3)), rng.uniform(0.1, 5.0, len(labels))
    deep = rng.normal(size=(len(labels), 2, 2))
    means, weighted = average_by_cluster(theta, labels), average_by_cluster(theta, labels, weights)
    for k in range(labels.max() + 1):
        mine = labels == k
        assert_allclose(sum_by_cluster(deep, labels)[k], deep[mine].sum(axis=0), rtol=1e-12)
        assert_allclose(means[k], theta[mine].mean(axis=0), rtol=1e-12, atol=1e-15)
        expected = np.average(theta[mine], axis=0, weights=weights[mine])
        assert_allclose(weighted[k], expected, rtol=1e-12, atol=1e-15)


def test_mean_and_samples_are_what_they_are_called():
    """Remark 10: the paper's mean counts users once each, whatever their sample size."""
    uploads = Uploads(np.arange(8), SIZES, THETA)
    mean, samples = (ClusterSums.of(uploads, LABELS, how, 3) for how in ("mean", "samples"))
    for k in range(3):
        mine = np.flatnonzero(np.equal(LABELS, k))
        assert_allclose(mean.centers[k], THETA[mine].mean(axis=0), rtol=1e-13)
        expected = np.average(THETA[mine], axis=0, weights=SIZES[mine])
        assert_allclose(samples.centers[k], expected, rtol=1e-13)
    assert_allclose(mean.pooled, THETA.mean(axis=0), rtol=1e-12)
    assert_allclose(samples.pooled, np.average(THETA, axis=0, weights=SIZES), rtol=1e-12)
    assert (mean.told, samples.told) == ("plain mean", "mean weighted by sample size")


def test_sums_of_parts_of_the_users_add_up():
    uploads = Uploads(np.arange(8), SIZES, THETA)
    whole = ClusterSums.of(uploads, LABELS, "samples", 3)
    parts = [
        ClusterSums.of(uploads.take(at), LABELS[at], "samples", 3) for at in ([0, 1], np.r_[2:8])
    ]
    assert_allclose((parts[0] + parts[1]).centers, whole.centers, rtol=1e-13)
