"""Step 2 of Algorithm 1: a pure function of the uploads; and what users make of the download."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal, assert_equal
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import DBSCAN, AgglomerativeClustering, KMeans

from odcl.clustering.kmeans.kmeanspp import KMeansPP
from odcl.clustering.labels import number_by_first_user, same_partition
from odcl.data.synthetic import linear_federation
from odcl.engines.in_process import fit
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.server.models import average_by_cluster, dissolve_small
from odcl.server.step import server_step

unhurried = settings(deadline=None, derandomize=True, max_examples=12)
CLUSTERERS = ["auto", KMeansPP(4), KMeans(4, n_init=2), AgglomerativeClustering(4)]
IDS = [
    np.arange(24),
    np.arange(24)[::-1] * 7 - 50,
    np.array([f"store {i % 5}-{i}" for i in range(24)]),
    np.array([3, "3", 2.5, None, *range(100, 120)], dtype=object),
]


class Labels(ClusterMixin, BaseEstimator):
    """A clusterer that says what it is told to."""

    def __init__(self, labels):
        self.labels = labels

    def fit(self, X, y=None):
        self.labels_ = np.asarray(self.labels)
        return self


def uploads_of_24(ids=None):
    federation = linear_federation(24, [30, 60] * 12, n_clusters=4, dim=3, n_active=3, seed=1)
    uploads = fit_users(federation, Risk()).uploads
    return uploads if ids is None else replace(uploads, users=ids)


def step_of(uploads, clusterer, combine="mean", *, seed=0):
    return server_step(uploads, Method(clusterer, combine), seed=seed)


def fields_by_kind(step):
    """The fields of a step that hold one row per user, and the others."""
    names = [f.name for f in fields(step)]
    per_user = ["users", "labels", "models", "probabilities"]
    return per_user, [n for n in names if n not in (*per_user, "weighed")]


@pytest.mark.parametrize("clusterer", CLUSTERERS, ids=str)
@unhurried
@given(
    ids=st.sampled_from(IDS),
    combine=st.sampled_from(["mean", "samples"]),
    order=st.permutations(range(24)),
)
def test_shuffling_the_uploads_changes_no_bit(clusterer, ids, combine, order):
    order = np.array(order)
    uploads = uploads_of_24(ids)
    step = step_of(uploads, clusterer, combine, seed=5)
    shuffled = step_of(uploads.take(order), clusterer, combine, seed=5)
    per_user, at_once = fields_by_kind(step)
    for name in per_user:
        one, other = getattr(step, name), getattr(shuffled, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert_array_equal(one[order], other)
    for name in at_once:
        assert_array_equal(getattr(step, name), getattr(shuffled, name))
    one, other = step.weighed, shuffled.weighed
    assert (one is None) == (other is None)
    if one is not None:
        assert (one.measure, one.chosen) == (other.measure, other.chosen)
        assert_equal([vars(o) for o in one.take(order).options], [vars(o) for o in other.options])


@pytest.mark.parametrize("ids", IDS, ids=["numbers", "unsorted", "text", "mixed"])
def test_clusters_are_numbered_by_their_first_user(ids):
    """In canonical order: numbers, then text, then the missing id."""
    uploads = uploads_of_24(ids)
    step = step_of(uploads, KMeansPP(4))
    canonical = step.labels[uploads.canonical_order()]
    assert_array_equal(canonical, number_by_first_user(canonical))
    assert canonical[0] == 0
    assert same_partition(step.labels, step_of(uploads_of_24(), KMeansPP(4)).labels)
    assert_array_equal(step.users, ids)


@pytest.mark.parametrize("combine", ["mean", "samples"])
def test_each_user_is_sent_its_clusters_model(combine):
    """Algorithm 1, steps 2(iii) and 2(iv)."""
    uploads = uploads_of_24()
    step = step_of(uploads, KMeansPP(4), combine)
    assert_array_equal(step.models, step.centers[step.labels])
    weights = None if combine == "mean" else uploads.n_samples
    expected = average_by_cluster(uploads.theta, step.labels, weights)
    assert_allclose(step.centers, expected, rtol=1e-13)
    assert step.n_clusters == 4
    assert_array_equal(step.downloads.n_bytes, 8 * (3 + 2))  # and the group's number and size


def test_labels_that_a_clusterer_leaves_unused_leave_no_empty_cluster():
    theta = np.random.default_rng(0).normal(size=(5, 2))
    step = step_of(theta, Labels([2, 0, 2, 7, 0]))
    assert_array_equal(step.labels, [0, 1, 0, 2, 1])
    assert step.n_clusters == 3
    assert_allclose(step.centers[0], theta[[0, 2]].mean(axis=0))
    assert_allclose(step.centers[2], theta[3])


def test_users_without_a_cluster_are_refused():
    theta = np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [9.0, 9.0]])
    with pytest.raises(
        ValueError, match=r"DBSCAN left 1 of 4 users without a cluster \(label -1\)"
    ):
        step_of(theta, DBSCAN(eps=0.5, min_samples=2))
    with pytest.raises(ValueError, match=r"Choose a method that assigns all points, e\.g\. KMeans"):
        step_of(theta, Labels([0, -1, -1, 0]))
    with pytest.raises(ValueError, match="labels for 4 users"):
        step_of(theta, Labels([0, 1]))


def test_a_plain_matrix_is_the_papers_upload():
    theta = uploads_of_24().theta
    step = step_of(theta, KMeansPP(4), seed=3)
    same = step_of(Uploads(np.arange(24), np.ones(24), theta), KMeansPP(4), seed=3)
    assert_array_equal(step.models, same.models)
    with pytest.raises(ValueError, match="Models must be a matrix"):
        step_of(np.ones(5), 2)


def test_what_would_spoil_the_other_users_models_is_refused_by_name():
    uploads = uploads_of_24(np.array([f"u{i:02d}" for i in range(24)]))
    for bad in (np.nan, np.inf):
        theta = uploads.theta.copy()
        theta[7, 1] = bad
        with pytest.raises(ValueError, match=r"1 of 24 uploads have a theta.*u07"):
            step_of(replace(uploads, theta=theta), 4)
        n_samples = uploads.n_samples.copy()
        n_samples[3] = bad
        with pytest.raises(ValueError, match=r"'u03' uploaded .* as its number of samples"):
            step_of(replace(uploads, n_samples=n_samples), 4)
    with pytest.raises(ValueError, match="'u00' uploaded 0 as its number"):
        step_of(replace(uploads, n_samples=np.zeros(24)), 4)


@pytest.mark.parametrize(
    "ids", [[1, 2, 1], ["a", "b", "b"], [None, float("nan"), 3], [1, 1.0, "1"], [True, 1, 2]]
)
def test_a_user_uploads_once(ids):
    uploads = replace(Uploads.of(np.eye(3)), users=np.array(ids, dtype=object))
    with pytest.raises(ValueError, match="uploaded more than once"):
        step_of(uploads, 2)
    different = replace(uploads, users=np.array([1, "1", None], dtype=object))
    assert step_of(different, 2).n_clusters == 2


def test_the_seed_decides_where_the_clusterer_leaves_it_open():
    """And the clusterer that was handed in is left as it was."""
    theta = np.random.default_rng(0).normal(size=(60, 2))  # no clusters: seedings differ
    loose = KMeansPP(6, n_init=1)
    runs = [step_of(theta, loose, seed=s).labels for s in range(6)]
    assert_array_equal(step_of(theta, loose, seed=2).labels, runs[2])
    assert any((r != runs[0]).any() for r in runs)
    assert loose.random_state is None
    assert not hasattr(loose, "labels_")
    fixed = KMeansPP(6, n_init=1, random_state=1)
    assert_array_equal(step_of(theta, fixed, seed=0).labels, step_of(theta, fixed, seed=9).labels)


@pytest.mark.parametrize(
    ("clusterer", "combine", "says"),
    [
        ("kmeans", "mean", "not one of 'auto', 'convex', 'elbow', 'silhouette'"),
        (object(), "mean", "has no fit"),
        (2, "median", "combine is 'median', and not one of mean, samples"),
    ],
)
def test_settings_that_make_no_sense_are_refused(clusterer, combine, says):
    with pytest.raises(ValueError, match=says):
        step_of(uploads_of_24(), clusterer, combine)


@pytest.mark.parametrize("rule", ["auto", "silhouette", "elbow", "convex"])
@pytest.mark.parametrize("m", [1, 2])
def test_one_or_two_users_are_one_group_for_rules_that_need_more(rule, m):
    theta = np.array([[0.0, 1.0], [0.1, 1.0]])[:m]
    step = step_of(theta, rule)
    assert step.n_clusters == 1
    assert_allclose(step.models, np.tile(theta.mean(axis=0), (m, 1)))
    if rule != "convex":
        said = "1 group: 2 users are too few"
        assert step.reason == "1 group: there is one user." if m == 1 else said in step.reason


def test_users_of_a_dissolved_group_join_the_nearest_of_those_left():
    theta = np.array([[0.0], [0.2], [9.0], [9.4], [9.2], [3.0], [6.1]])
    labels = np.array([0, 0, 1, 1, 1, 2, 3])
    uploads = Uploads.of(theta)
    assert_array_equal(dissolve_small(uploads, labels, 2), [0, 0, 1, 1, 1, 0, 1])
    assert dissolve_small(uploads, labels, 1) is labels
    assert_array_equal(dissolve_small(uploads, labels, 3), np.zeros(7))  # one group is left
    assert_array_equal(dissolve_small(uploads, labels, 4), np.zeros(7))  # none is


def test_the_papers_settings_give_the_papers_method():
    """Algorithm 1: K-means on the local models, the plain mean of each cluster, nothing after."""
    federation = linear_federation(20, 100, n_clusters=4, dim=5, seed=8)
    result = fit(federation, method=Method.paper(4), seed=2)
    theta = fit_users(federation, Risk()).theta
    step = step_of(theta, KMeansPP(4), "mean", seed=2)
    assert_array_equal(result.models, step.models)
    assert same_partition(result.labels, federation.groups)
    assert set(result.uploads.present) == {"theta", "n_samples"}
    assert result.bytes_up == 20 * 8 * (5 + 1)
    assert result.bytes_down == 20 * 8 * (5 + 2)  # and the group's number and size


def test_bare_models_are_clustered_and_the_reason_says_why():
    """What mixed groups cannot look at: K-means++, K by silhouette, plain means."""
    uploads = uploads_of_24()
    step = server_step(uploads.theta)
    assert_array_equal(step.models, step_of(uploads.theta, "silhouette").models)
    assert step.reason.endswith(
        "Groups are of the users' models, because the uploads hold no data terms."
    )
    assert server_step(uploads.theta, Method(3)).n_clusters == 3
    assert server_step(uploads.theta, Method("auto:2")).n_clusters == 2
    assert server_step(uploads.theta, Method("auto:1")).n_clusters == 1
