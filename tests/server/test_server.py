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
from odcl.data.federation import Federation
from odcl.data.synthetic import linear_federation
from odcl.engines.in_process import fit
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.local.receive import receive
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.server.combine import combine_clusters
from odcl.server.models import dissolve_small
from odcl.server.step import server_step
from tests.helpers import equal_users

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


def step_of(uploads, clusterer, combine="mean", *, refit=None, seed=0):
    return server_step(uploads, Method(clusterer, combine, refit), seed=seed)


def fields_by_kind(step):
    """The fields of a step that hold one row per user, and the others."""
    names = [f.name for f in fields(step)]
    per_user = ["users", "labels", "models", "probabilities", "dispersion", "others"]
    return per_user, [n for n in names if n not in (*per_user, "weighed")]


@pytest.mark.parametrize("clusterer", CLUSTERERS, ids=str)
@unhurried
@given(
    ids=st.sampled_from(IDS),
    combine=st.sampled_from(["mean", "samples", "precision"]),
    order=st.permutations(range(24)),
)
def test_shuffling_the_uploads_changes_no_bit(clusterer, ids, combine, order):
    order = np.array(order)
    uploads = uploads_of_24(ids)
    step = step_of(uploads, clusterer, combine, seed=5, refit="cv")
    shuffled = step_of(uploads.take(order), clusterer, combine, seed=5, refit="cv")
    per_user, at_once = fields_by_kind(step)
    assert step.others is not None
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


@pytest.mark.parametrize("combine", ["mean", "samples", "precision"])
def test_each_user_is_sent_its_clusters_model(combine):
    """Algorithm 1, steps 2(iii) and 2(iv)."""
    uploads = uploads_of_24()
    step = step_of(uploads, KMeansPP(4), combine)
    assert_array_equal(step.models, step.centers[step.labels])
    expected = combine_clusters(uploads, step.labels, combine)
    assert_array_equal(step.centers, expected.centers)
    assert step.combined == expected.how
    assert step.n_clusters == 4
    assert_array_equal(step.downloads.n_bytes, 8 * (3 + 2))  # and the group's number and size
    assert step.others is None


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
        curvature = uploads.curvature.copy()
        curvature[9, 0, 2] = bad
        with pytest.raises(ValueError, match=r"1 of 24 uploads have a curvature.*u09"):
            step_of(replace(uploads, curvature=curvature), 4)
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
        ("kmeans", "mean", "not one of 'auto', 'mixture', 'convex', 'elbow', 'silhouette'"),
        (object(), "mean", "has no fit"),
        (2, "median", "not one of 'mean', 'samples', 'precision'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(clusterer, combine, says):
    with pytest.raises(ValueError, match=says):
        step_of(uploads_of_24(), clusterer, combine)


def test_users_without_a_finite_model_cannot_seed_a_group():
    """Ten separable users with models of all sizes beside twenty who agree: one group."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 60, 2))
    y = np.where(rng.random((30, 60)) < 1 / (1 + np.exp(-X.sum(axis=2))), 1.0, -1.0)
    for i in range(10):
        y[i] = np.sign(X[i] @ rng.normal(size=2))
    federation = Federation.from_arrays(X.reshape(-1, 2), y.ravel(), np.repeat(np.arange(30), 60))
    local = fit_users(federation, Risk("logistic"))
    assert_array_equal(local.prior, np.arange(30) < 10)
    assert_array_equal(local.uploads.knows_noise, np.arange(30) >= 10)
    step = step_of(local.uploads, "auto", "precision")
    assert step.n_clusters == 1
    assert np.isfinite(step.models).all()


@pytest.mark.parametrize("rule", ["auto", "silhouette", "elbow", "convex"])
@pytest.mark.parametrize("m", [1, 2])
def test_one_or_two_users_are_one_group_for_rules_that_need_more(rule, m):
    theta = np.array([[0.0, 1.0], [0.1, 1.0]])[:m]
    step = step_of(theta, rule)
    assert step.n_clusters == 1
    assert_allclose(step.models, np.tile(theta.mean(axis=0), (m, 1)))
    if isinstance(Method(rule).clusterer.n_clusters, str):
        said = f"1 group: {m} user(s) in all."
        assert (step.reason == said) == (m == 1 or rule != "auto")


def test_where_nobody_can_tell_its_noise_everybody_seeds_groups():
    """One variance for all, fitted to the models, and no tau^2."""
    uploads = uploads_of_24()
    for silent in (
        replace(uploads, dispersion=np.full(24, np.inf)),
        replace(uploads, curvature=None, dispersion=np.full(24, np.inf)),
    ):
        step = step_of(silent, "auto", refit="evidence")
        assert same_partition(step.labels, step_of(uploads, KMeansPP(4)).labels)
        assert (step.rule, step.tau2) == ("shared-variance", None)


def test_users_of_a_dissolved_group_join_the_nearest_of_those_left():
    theta = np.array([[0.0], [0.2], [9.0], [9.4], [9.2], [3.0], [6.1]])
    labels = np.array([0, 0, 1, 1, 1, 2, 3])
    uploads = Uploads.of(theta)
    assert_array_equal(dissolve_small(uploads, labels, 2), [0, 0, 1, 1, 1, 0, 1])
    assert dissolve_small(uploads, labels, 1) is labels
    assert_array_equal(dissolve_small(uploads, labels, 3), np.zeros(7))  # one group is left
    assert_array_equal(dissolve_small(uploads, labels, 4), np.zeros(7))  # none is


@pytest.mark.parametrize("tau", [0.0, 0.6])
def test_the_reason_knows_the_tau2_of_the_last_step(tau):
    federation = linear_federation(40, 60, n_clusters=4, dim=3, n_active=3, tau=tau, seed=0)
    step = step_of(fit_users(federation, Risk()).uploads, "mixture", "precision")
    assert step.reason.startswith(f"{step.n_clusters} groups found by the mixture with known noise")
    assert ("only by noise" in step.reason) == (step.tau2 == 0) == (tau == 0)


# -- after the download ------------------------------------------------------------------------


def local_and_step(federation, clusterer=1, risk=Risk()):
    local = fit_users(federation, risk)
    return local, step_of(local.uploads, clusterer, "precision", refit="cv")


def received(federation, local, step, refit, *, seed=0, **changes):
    """What users make of the downloads of a step, with another last step than it had."""
    uploads, downloads = local.uploads, replace(step, refit=refit, **changes).downloads
    return receive(federation, uploads.risk, uploads, downloads, seed=seed)


@pytest.mark.parametrize("intercept", [False, True])
def test_evidence_leads_from_the_groups_model_to_the_local_one(intercept):
    """tau^2 = 0: users of a group are the same. tau^2 huge: they have nothing in common."""
    federation = linear_federation(20, 40, n_clusters=4, dim=3, n_active=3, seed=2)
    local, step = local_and_step(federation, 4, Risk(intercept=intercept))
    same = received(federation, local, step, "evidence", tau2=0.0)
    assert_array_equal(same.models, step.models)
    assert np.isinf(same.strength).all()
    apart = received(federation, local, step, "evidence", tau2=1e12)
    assert_allclose(apart.models, local.theta, rtol=1e-7, atol=1e-9)
    between = received(federation, local, step, "evidence", tau2=0.1)
    phi = step.dispersion
    assert_allclose(between.strength, phi / (federation.n_samples * 0.1), rtol=1e-12)
    gap = [np.linalg.norm(m.models - step.models) for m in (same, between, apart)]
    assert gap == sorted(gap)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_number_is_the_strength_of_the_pull_for_all(intercept):
    """For squared loss: (X^T X / n + lam I) theta = X^T y / n + lam c, the intercept included."""
    federation = linear_federation(12, 25, n_clusters=4, dim=3, n_active=3, seed=3)
    local, step = local_and_step(federation, 4, Risk(l2=0.3, intercept=intercept))
    step = replace(step, others=None)
    found = received(federation, local, step, 0.7)
    for i, (_, X, y) in enumerate(federation):
        D = np.column_stack([X, np.ones(len(y))])[:, : 3 + intercept]
        left = D.T @ D / len(y) + 0.7 * np.eye(D.shape[1])
        right = D.T @ y / len(y) + 0.7 * step.models[i]
        assert_allclose(found.models[i], np.linalg.solve(left, right), rtol=1e-9)
    assert_array_equal(found.strength, 0.7)
    for refit, models in ((0, local.theta), (np.inf, step.models), (None, step.models)):
        assert_array_equal(received(federation, local, step, refit).models, models)
    with pytest.raises(ValueError, match="not one of None, 'evidence', 'cv' and a finite number"):
        Method(refit=-1.0)


def test_cross_validation_takes_the_group_where_users_are_the_same():
    """Twelve rows, eight parameters, forty users of one model: better all together than alone."""
    federation = linear_federation(40, 12, n_clusters=1, dim=8, n_active=8, seed=4)
    local, step = local_and_step(federation)
    found = received(federation, local, step, "cv", seed=1)
    error, alone = (
        np.sum((models - federation.optima) ** 2) for models in (found.models, local.theta)
    )
    assert np.isinf(found.strength).mean() > 0.5
    assert error < 0.2 * alone


def test_cross_validation_stays_local_where_groups_are_useless():
    """Ten groups taken for one, and rows enough for everybody."""
    federation = linear_federation(20, 400, n_clusters=10, dim=3, n_active=3, seed=5)
    local, step = local_and_step(federation)
    found = received(federation, local, step, "cv", seed=1)
    kept = found.strength == 0
    assert kept.mean() > 0.6
    assert_allclose(found.models, local.theta, atol=0.02)  # weak pulls move them by a trifle


def strengths_by_cross_validation(federation, center, ids, seed=3):
    """What each user chooses on its way to ``center``, under these ids."""
    federation = replace(federation, users=ids)
    local, step = local_and_step(federation)
    found = received(federation, local, step, "cv", seed=seed, models=center, others=center)
    return found.strength


def test_the_folds_of_cross_validation_follow_from_seed_and_id_and_not_from_the_batch():
    """Each user keeps its rows and its center throughout: only its folds could change its choice.

    All have the same whole numbers as features, so strengths are counted in one unit.
    """
    rng = np.random.default_rng(6)
    m, n, dim = 30, 12, 4
    X = np.tile(rng.integers(-3, 4, size=(n, dim)).astype(float), (m, 1))
    center = rng.normal(size=(m, dim))
    y = (X * np.repeat(center + 0.5, n, axis=0)).sum(axis=1) + 3 * rng.normal(size=m * n)
    federation, ids = equal_users(X, y, m), np.arange(m)
    found = strengths_by_cross_validation(federation, center, ids)
    for company in (rng.permutation(m), ids[::-1], ids[:20], ids[7:9]):
        part = federation.take(company)
        again = strengths_by_cross_validation(part, center[company], ids[company])
        assert_array_equal(again, found[company])
    assert (strengths_by_cross_validation(federation, center, ids + m) != found).any()
    assert (strengths_by_cross_validation(federation, center, ids, seed=4) != found).any()


@pytest.mark.parametrize("refit", ["evidence", "cv", 5.0])
def test_a_user_alone_in_its_cluster_keeps_its_own_model(refit):
    federation = linear_federation(4, 50, n_clusters=4, dim=3, n_active=3, seed=7)
    local, step = local_and_step(federation, 4)
    found = received(federation, local, step, refit, tau2=0.0)
    assert_array_equal(found.models, local.theta)
    assert_array_equal(found.strength, 0.0)


def test_the_papers_settings_give_the_papers_method():
    """Algorithm 1: K-means on the local models, the plain mean of each cluster, nothing after."""
    federation = linear_federation(20, 100, n_clusters=4, dim=5, seed=8)
    result = fit(federation, method=Method.paper(4), seed=2)
    theta = fit_users(federation, Risk()).theta
    step = step_of(theta, KMeansPP(4), "mean", seed=2)
    assert_array_equal(result.models, step.models)
    assert same_partition(result.labels, federation.groups)
    assert result.uploads.curvature is None  # nothing on the server reads it, so it is not sent
    assert result.bytes_up == 20 * 8 * (5 + 1)
    assert result.bytes_down == 20 * 8 * (5 + 2)  # and the group's number and size
