"""K-means++ (Algorithm 3), spectral K-means (Algorithm 2) and gradient clustering."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist, pdist
from scipy.stats import ortho_group
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from odcl.clustering.kmeans.gradient import GradientClustering, gradient_clustering
from odcl.clustering.kmeans.kmeanspp import KMeansPP, d2_seeds, kmeans_pp
from odcl.clustering.kmeans.spectral import (
    SpectralKMeans,
    core_means,
    spectral_kmeans,
    top_right_singular_vectors,
)
from odcl.clustering.labels import nearest_center, number_by_first_user, same_partition

FAMILY = [
    KMeansPP(random_state=0),
    SpectralKMeans(random_state=0),
    SpectralKMeans(part_one_only=True, random_state=0),
    GradientClustering(random_state=0),
]
TO_FIXED_POINT = [c for c in FAMILY if not getattr(c, "part_one_only", False)]
BALANCED, UNEVEN = (25, 25, 25, 25), (140, 40, 14, 6)


def name_of(clusterer):
    return type(clusterer).__name__ + "-I" * getattr(clusterer, "part_one_only", False)


def alpha_of(clusterer, sizes):
    """Lemma 2's alpha, c = 100, for spectral K-means and for uneven sizes; just above 4 else."""
    if isinstance(clusterer, SpectralKMeans) or sizes is UNEVEN:
        return 2 + 2 * 100 * np.sqrt(sum(sizes) / min(sizes))
    return 4.01


def separable_models(alpha, sizes, dim, rng):
    """Points separable by Eq. (4) with this alpha and hardly more, in random order."""
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    means = rng.normal(size=(len(sizes), dim))
    offsets = rng.normal(size=(len(truth), dim))
    for k in range(len(sizes)):
        offsets[truth == k] -= offsets[truth == k].mean(axis=0)
    radius = np.linalg.norm(offsets, axis=1).max()
    return means[truth] + offsets * pdist(means).min() / (1.001 * alpha * radius), truth


every_clusterer = pytest.mark.parametrize("clusterer", FAMILY, ids=name_of)


@parametrize_with_checks([KMeansPP(), SpectralKMeans(), GradientClustering()])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@every_clusterer
@pytest.mark.parametrize("sizes", [BALANCED, UNEVEN], ids=["balanced", "uneven"])
@pytest.mark.parametrize("dim", [2, 20])
@pytest.mark.parametrize("seed", range(3))
def test_separable_models_give_back_the_true_clusters(clusterer, sizes, dim, seed):
    """Lemma 2: on models separable by Eq. (4) with its own alpha, a method is exact.

    So it is after a shift, a change of scale, a rotation, and with users in another order.
    """
    rng = np.random.default_rng(seed)
    theta, truth = separable_models(alpha_of(clusterer, sizes), sizes, dim, rng)
    clusterer = clone(clusterer).set_params(n_clusters=len(sizes))
    order = rng.permutation(len(theta))
    for moved, expected in [
        (theta, truth),
        (theta + 1e3, truth),
        (theta * 1e-3, truth),
        (theta @ ortho_group.rvs(dim, random_state=seed), truth),
        (theta[order], truth[order]),
    ]:
        assert same_partition(clusterer.fit_predict(moved), expected)
        assert_array_equal(nearest_center(moved, clusterer.cluster_centers_), clusterer.labels_)


@pytest.mark.parametrize("part_one_only", [False, True])
def test_spectral_kmeans_does_not_depend_on_the_origin(part_one_only):
    """Without any separation: a shift by powers of two is exact, so labels stay as they were."""
    rng = np.random.default_rng(0)
    a = rng.integers(-1000, 1000, size=(200, 8)) / 128  # and the shifted entries are exact too
    here = spectral_kmeans(a, 5, part_one_only=part_one_only, seed=0)
    there = spectral_kmeans(a + 4096, 5, part_one_only=part_one_only, seed=0)
    assert same_partition(here.labels, there.labels)
    assert_allclose(there.centers, here.centers + 4096, rtol=1e-13)


@pytest.mark.parametrize("clusterer", TO_FIXED_POINT, ids=name_of)
@pytest.mark.parametrize("seed", range(5))
def test_the_answer_is_a_fixed_point_of_lloyds_loop(clusterer, seed):
    """On unstructured data: centres are the means, and every point is nearest to its own."""
    a = np.random.default_rng(seed).normal(size=(400, 3)) + 10
    clusterer = clone(clusterer).set_params(n_clusters=7).fit(a)
    assert_array_equal(nearest_center(a, clusterer.cluster_centers_), clusterer.labels_)
    assert np.bincount(clusterer.labels_).min() > 0
    for k, center in enumerate(clusterer.cluster_centers_):
        assert_allclose(center, a[clusterer.labels_ == k].mean(axis=0), rtol=1e-13)
    cost = cdist(a, clusterer.cluster_centers_, "sqeuclidean").min(axis=1).sum()
    assert_allclose(clusterer.inertia_, cost, rtol=1e-12)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_kmeans_pp_is_never_above_scikit_learn_from_the_same_seeds(seed, greedy):
    """Lloyd's loop only lowers the cost, and ours goes on where a tolerance stops the other.

    Greedy seeds are scikit-learn's own: there the bound is on KMeans(n_clusters, n_init=10).
    """
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(rng.integers(20, 400), rng.integers(1, 8)))
    n_clusters = int(rng.integers(2, 10))
    init = "k-means++" if greedy else d2_seeds
    other = KMeans(n_clusters, init=init, n_init=10, random_state=seed).fit(a)
    # A thousand roundings: both add the same squares in another order.
    assert kmeans_pp(a, n_clusters, greedy=greedy, seed=seed).cost <= other.inertia_ * (1 + 1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_best_of_ten_is_within_the_approximation_that_algorithm_2_asks_for(seed):
    """Footnote of Algorithm 2: a 10-approximation costs at most 11 times the optimum."""
    a = np.random.default_rng(seed).standard_cauchy(size=(8, 2))
    optimum = min(
        sum(((a[labels == k] - a[labels == k].mean(axis=0)) ** 2).sum() for k in set(labels))
        for labels in map(np.array, product((0,), *[range(3)] * 7))
    )
    assert optimum * (1 - 1e-12) <= kmeans_pp(a, 3, seed=seed).cost <= 11 * optimum


@pytest.mark.parametrize("step_size", [0.3, 1.0, "auto"])
def test_gradient_clustering_ends_in_the_cluster_means_for_every_step(step_size):
    a = np.random.default_rng(1).normal(size=(150, 2))
    result = gradient_clustering(a, 4, step_size=step_size, n_init=2, max_iter=5000, seed=0)
    assert result.converged
    assert_array_equal(nearest_center(a, result.centers), result.labels)


def test_gradient_clustering_that_runs_out_of_steps_says_so():
    a = np.random.default_rng(0).normal(size=(100, 2))
    with pytest.warns(ConvergenceWarning, match="max_iter=3"):
        result = gradient_clustering(a, 5, max_iter=3, seed=0)
    assert not result.converged


@pytest.mark.parametrize(("c", "size"), [(20, 4_000), (100, 100_000)])
def test_part_one_alone_misplaces_at_most_the_fraction_of_theorem_3(c, size):
    """Theorem 3, 1) and 2), on centre-separated data with one user at the other cluster's mean.

    That user is misplaced, so the data are not separable by Eq. (4) for any alpha > 1.
    """
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], size)
    off = rng.normal(size=(2 * size, 4)) * 0.2 / np.sqrt(size)
    for k in (0, 1):
        off[truth == k] -= off[truth == k].mean(axis=0)
    off[0, 0] += 1.0
    off[truth == 0] -= off[truth == 0].mean(axis=0)
    a = off + np.array([[0.0, 0, 0, 0], [1.0, 0, 0, 0]])[truth]
    delta = min(np.sqrt(2) * np.linalg.norm(off, 2), np.linalg.norm(off)) / np.sqrt(size)
    assert c * 2 * delta <= 1  # Definition 3 with means one apart

    labels = SpectralKMeans(2, part_one_only=True, random_state=0).fit_predict(a)
    agree = max((labels == truth).mean(), (labels != truth).mean())
    assert 0 < np.round((1 - agree) * len(a)) <= 128 / c**2 * size


def test_core_sets_are_of_projected_points_and_their_means_of_original_ones():
    """Algorithm 2, Part II; a cluster without core points keeps its mean of Part I."""
    rng = np.random.default_rng(0)
    a = np.repeat([[-4.0, 0, 0], [4.0, 0, 0], [5.0, 0, 0]], 50, axis=0) + rng.normal(size=(150, 3))
    centred = a - a.mean(axis=0)
    projected = centred @ top_right_singular_vectors(centred, 3)[:1].T
    part_one = kmeans_pp(projected, 3, seed=0)
    expected = []
    for k in range(3):
        d = np.abs(projected - part_one.centers.T)
        core = (3 * d[:, [k]] <= np.delete(d, k, axis=1)).all(axis=1)
        expected.append(a[core if core.any() else part_one.labels == k].mean(axis=0))
    assert_allclose(core_means(a, projected, part_one), expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_projection_is_onto_the_top_singular_space(shape):
    a = np.random.default_rng(0).normal(size=shape)
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    v = top_right_singular_vectors(a, 3)
    assert_allclose(a @ v.T @ v, u[:, :3] * s[:3] @ vt[:3], atol=1e-12)


@every_clusterer
@pytest.mark.parametrize("rule", ["elbow", "silhouette"])
@pytest.mark.parametrize("n_clusters", [2, 5])
def test_rules_find_the_number_of_clear_clusters(clusterer, rule, n_clusters):
    """And the answer is the one for that number: every K starts from the same seed."""
    rng = np.random.default_rng(n_clusters)
    theta, truth = separable_models(8, (30,) * n_clusters, 10, rng)
    chosen = clone(clusterer).set_params(n_clusters=rule, max_clusters=8, n_init=5).fit(theta)
    assert same_partition(chosen.labels_, truth)
    assert chosen.n_clusters_ == chosen.choice_.n_clusters == n_clusters
    assert f"chose K = {n_clusters}" in chosen.choice_.reason
    given = clone(chosen).set_params(n_clusters=n_clusters).fit(theta)
    assert_array_equal(given.labels_, chosen.labels_)
    assert given.choice_ is None


def test_elbow_sees_one_cluster_and_silhouette_does_not():
    a = np.random.default_rng(0).normal(size=(200, 20))
    assert KMeansPP("elbow", random_state=0).fit(a).n_clusters_ == 1
    assert KMeansPP("silhouette", max_clusters=4, random_state=0).fit(a).n_clusters_ >= 2


@pytest.mark.parametrize(("n_clusters", "seen"), [(11, 11), (12, 1)])
def test_elbow_takes_more_than_eleven_equidistant_clusters_for_one(n_clusters, seen):
    """The cost falls in equal parts of 1 / (n_clusters - 1): the docstring's warning is exact."""
    noise = np.random.default_rng(0).normal(size=(10 * n_clusters, n_clusters)) * 1e-3
    a = np.repeat(np.eye(n_clusters), 10, axis=0) + noise
    assert KMeansPP("elbow", n_init=20, random_state=0).fit(a).n_clusters_ == seen


def tight_blobs(n_points, n_clusters, dim, seed):
    rng = np.random.default_rng(seed)
    truth = np.arange(n_points) % n_clusters
    return 100 * rng.normal(size=(n_clusters, dim))[truth] + rng.normal(size=(n_points, dim)), truth


@every_clusterer
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(("n_points", "n_clusters"), [(60, 3), (45, 3), (60, 1), (20, 1)])
def test_elbow_counts_tight_clusters_in_few_dimensions(clusterer, dim, n_points, n_clusters):
    """There the cost of points without clusters falls by more than 10 % up to K = 20."""
    a, truth = tight_blobs(n_points, n_clusters, dim, seed=0)
    chosen = clone(clusterer).set_params(n_clusters="elbow", n_init=5, max_clusters=20).fit(a)
    assert same_partition(chosen.labels_, truth)


def test_elbow_does_not_make_a_cluster_of_every_point():
    a = np.random.default_rng(0).normal(size=(7, 2))
    assert KMeansPP("elbow", random_state=0).fit(a).n_clusters_ <= 3


def test_elbow_that_reaches_max_clusters_says_so():
    a, _ = tight_blobs(100, 8, 2, seed=0)
    with pytest.warns(ConvergenceWarning, match="max_clusters=3"):
        chosen = KMeansPP("elbow", max_clusters=3, random_state=0).fit(a)
    assert chosen.n_clusters_ == 3


def test_silhouette_of_many_users_looks_at_some_of_them():
    theta, truth = separable_models(30, (3000, 1000, 100), 3, np.random.default_rng(0))
    chosen = KMeansPP("silhouette", max_clusters=5, n_init=3, random_state=0).fit(theta)
    assert same_partition(chosen.labels_, truth)


@every_clusterer
@pytest.mark.parametrize("n_clusters", [1, "elbow", "silhouette"])
def test_one_user_is_one_cluster(clusterer, n_clusters):
    clusterer = clone(clusterer).set_params(n_clusters=n_clusters).fit([[3.0, 4.0]])
    assert_array_equal(clusterer.labels_, [0])
    assert_array_equal(clusterer.cluster_centers_, [[3.0, 4.0]])


@every_clusterer
def test_fewer_different_points_than_clusters_are_a_cluster_each(clusterer):
    """0.1 ten times has a mean that is not 0.1: equal users must stay together all the same."""
    a = np.repeat([[0.1, 0.7], [1 / 3, -0.2], [1e-9, 0.3]], 10, axis=0)[::-1]
    clusterer = clone(clusterer).set_params(n_clusters=5)
    with pytest.warns(ConvergenceWarning, match="only 3 of the 30 points"):
        clusterer.fit(a)
    assert_array_equal(clusterer.labels_, np.repeat([0, 1, 2], 10))
    assert_array_equal(clusterer.cluster_centers_, a[::10])
    assert (clusterer.n_clusters_, clusterer.inertia_) == (3, 0.0)


@every_clusterer
@pytest.mark.parametrize("rule", ["elbow", "silhouette"])
def test_rules_stop_at_the_number_of_different_points(clusterer, rule):
    a = np.repeat([[0.0, 0], [1, 0], [0, 1.5]], 7, axis=0)
    chosen = clone(clusterer).set_params(n_clusters=rule).fit(a)
    assert same_partition(chosen.labels_, np.repeat([0, 1, 2], 7))
    assert max(chosen.choice_.scores) == 3
    equal = clone(clusterer).set_params(n_clusters=rule).fit(np.ones((6, 2)))
    assert_array_equal(equal.labels_, np.zeros(6))


@every_clusterer
def test_many_duplicates_among_enough_points_leave_no_cluster_empty(clusterer):
    rng = np.random.default_rng(0)
    a = np.concatenate([np.full((200, 2), 0.1), rng.normal(size=(9, 2))])
    clusterer = clone(clusterer).set_params(n_clusters=6).fit(a)
    assert_array_equal(np.unique(clusterer.labels_), np.arange(6))
    assert np.ptp(clusterer.labels_[:200]) == 0


@every_clusterer
def test_clusters_are_numbered_by_their_first_user_and_runs_repeat(clusterer):
    a = np.random.default_rng(0).normal(size=(60, 2))
    clusterer = clone(clusterer).set_params(n_clusters=6)
    labels = clusterer.fit_predict(a)
    assert_array_equal(labels, number_by_first_user(labels))
    assert_array_equal(clusterer.fit_predict(a), labels)
    drawn = [
        clone(clusterer).set_params(random_state=np.random.RandomState(5)).fit_predict(a)
        for _ in range(2)
    ]
    assert_array_equal(*drawn)


def test_lowest_label_wins_a_tie():
    assert_array_equal(nearest_center(np.array([[0.0], [0.1]]), np.array([[-1.0], [1.0]])), [0, 1])


def test_same_partition_is_equality_up_to_renaming():
    labels = np.random.default_rng(0).integers(0, 5, size=50)
    renamed = np.array([7, -1, 3, 0, 9])[labels]
    assert same_partition(labels, renamed)
    assert_array_equal(number_by_first_user(renamed), number_by_first_user(labels))
    assert not same_partition(labels, np.where(labels == 4, 3, labels))
    assert not same_partition([0, 0, 1], [0, 0, 1, 1])


@every_clusterer
@pytest.mark.parametrize(
    ("params", "X", "message"),
    [
        ({"n_clusters": 4}, np.eye(3), "fewer users than clusters"),
        ({"n_clusters": 0}, np.eye(3), "n_clusters=0"),
        ({"n_clusters": 2.0}, np.eye(3), "n_clusters=2.0"),
        ({"n_clusters": True}, np.eye(3), "n_clusters=True"),
        ({"n_clusters": "knee"}, np.eye(3), "'elbow' or 'silhouette'"),
        ({"n_clusters": 2, "n_init": 0}, np.eye(3), "n_init=0"),
        ({"n_clusters": "silhouette", "max_clusters": 1}, np.eye(3), "max_clusters=1"),
        ({"n_clusters": 2}, [[0.0], [np.nan], [np.inf]], "2 of 3 rows hold NaN or inf"),
    ],
)
def test_errors_name_what_was_seen(clusterer, params, X, message):
    with pytest.raises(ValueError, match=message):
        clone(clusterer).set_params(**params).fit(X)


@pytest.mark.parametrize("step_size", [0, -1, 1.5, "fast"])
def test_a_step_that_need_not_converge_is_refused(step_size):
    with pytest.raises(ValueError, match="step_size="):
        GradientClustering(2, step_size=step_size).fit(np.eye(3))
