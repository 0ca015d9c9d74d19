"""ConvexClustering as an estimator and inside ODCL; which lambda it chooses, and what it says."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.utils.estimator_checks import parametrize_with_checks

import odcl
from odcl import (
    ConvexClustering,
    Method,
    Risk,
    clusterpath,
    linear_federation,
)
from odcl.clustering.convex.choose_lam import choose_lam
from odcl.clustering.convex.estimator import convex_cluster
from odcl.clustering.convex.fusion import oracle_lambda, recovery_interval
from odcl.clustering.labels import same_partition
from odcl.local.fit import fit_users
from odcl.server.models import average_by_cluster

UNBALANCED = (40, 30, 20, 10)


def local_models(n, *, sizes=None, n_clusters=4, seed=0, n_users=100):
    """Local models of Appendix D.2 and the true groups."""
    federation = linear_federation(n_users, n, n_clusters=n_clusters, sizes=sizes, seed=seed)
    return fit_users(federation, Risk()).theta, federation.groups


def two_groups(sizes=(6, 5), gap=30.0, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return rng.standard_normal((len(groups), dim)) + gap * groups[:, None], groups


@pytest.fixture(autouse=True)
def _rules_may_disagree():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The rules for lambda disagree")
        yield


# The estimator


@parametrize_with_checks([ConvexClustering()])
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


def test_attributes_tell_the_solution_of_eq_12():
    X, groups = two_groups()
    model = ConvexClustering(lam=recovery_interval(X, groups).middle).fit(X)
    assert same_partition(model.labels_, groups)
    assert model.certified_
    assert model.n_clusters_ == 2
    u = model.cluster_centers_[model.labels_]
    apart = np.linalg.norm(u[:, None] - u, axis=2)[np.triu_indices(len(X), 1)]
    by_hand = 0.5 * ((X - u) ** 2).sum() + model.lam_ * apart.sum()
    assert_allclose(model.objective_, by_hand, rtol=1e-12)
    assert 0 < model.gap_ < 1e-10 * model.objective_
    # Two clusters of masses n and m: each mean moves by lam times the other's mass.
    means = np.array([X[groups == k].mean(axis=0) for k in range(2)])
    toward = (means[1] - means[0]) / np.linalg.norm(means[1] - means[0])
    assert_allclose(model.cluster_centers_[0], means[0] + model.lam_ * 5 * toward, rtol=1e-9)


def test_lambda_chosen_and_lambda_given_are_the_same_fit():
    X, _ = local_models(200)
    chosen = ConvexClustering().fit(X)
    given = ConvexClustering(lam=chosen.lam_).fit(X)
    assert_array_equal(chosen.labels_, given.labels_)
    assert_array_equal(chosen.cluster_centers_, given.cluster_centers_)
    assert given.choice_ is None


@pytest.mark.parametrize("lam", [-1.0, np.nan, np.inf, "big", True, None])
def test_a_lambda_that_is_none_is_refused(lam):
    with pytest.raises(ValueError, match="finite number of at least 0"):
        ConvexClustering(lam=lam).fit(np.eye(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_without_distance_are_named(bad):
    X = np.eye(4)
    X[2, 1] = bad
    with pytest.raises(ValueError, match=r"1 of 4 rows hold NaN or inf \(the first is row 3\)"):
        ConvexClustering().fit(X)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="'auto', 'plateau', 'silhouette', 'grid'"):
        ConvexClustering(select="elbow").fit(np.eye(4))


# Weights


@pytest.mark.parametrize("lam", [0.02, 0.1, 0.3])
def test_weights_of_one_are_uniform_weights(lam):
    X = np.random.default_rng(0).standard_normal((18, 2))
    uniform = ConvexClustering(lam=lam).fit(X)
    for weights in (np.ones((18, 18)), sparse.csr_array(np.ones((18, 18)) - np.eye(18))):
        weighted = ConvexClustering(lam=lam, weights=weights).fit(X)
        assert_array_equal(weighted.labels_, uniform.labels_)
        assert_allclose(weighted.objective_, uniform.objective_, rtol=1e-7)
        assert_allclose(weighted.cluster_centers_, uniform.cluster_centers_, atol=1e-3)


def test_nearest_neighbour_weights_find_groups():
    X, groups = two_groups((30, 20), gap=8.0)
    model = ConvexClustering(lam=10.0, weights="knn", n_neighbors=5).fit(X)
    assert same_partition(model.labels_, groups)
    assert model.gap_ <= 1e-6 * model.objective_


def test_weights_need_a_lambda():
    with pytest.raises(ValueError, match="Give lam as a number"):
        ConvexClustering(weights="knn").fit(np.eye(4))


@pytest.mark.parametrize("broken", [-np.ones((4, 4)), np.triu(np.ones((4, 4)))])
def test_negative_or_asymmetric_weights_are_refused(broken):
    with pytest.raises(ValueError, match=r"[Ww]eight"):
        ConvexClustering(lam=0.1, weights=broken).fit(np.eye(4))


# Which lambda


@pytest.mark.parametrize("seed", range(6))
def test_unbalanced_groups_are_found_at_600_rows(seed):
    """Appendix D.2 with sizes 40/30/20/10: right on six of six seeds, where plateaus fail."""
    X, groups = local_models(600, sizes=UNBALANCED, seed=seed)
    assert same_partition(ConvexClustering().fit(X).labels_, groups)


@pytest.mark.parametrize("seed", range(6))
def test_unbalanced_groups_are_found_at_400_rows_if_they_are_a_level(seed):
    X, groups = local_models(400, sizes=UNBALANCED, seed=seed)
    path = clusterpath(X)
    levels = [path.labels(p.start) for p in path.plateaus]
    found = ConvexClustering().fit(X).labels_
    assert same_partition(found, groups) == any(same_partition(level, groups) for level in levels)


def test_four_hundred_rows_hold_the_truth_on_some_seeds_only():
    """The test above is not empty: on some of its seeds the truth is a level, on others not."""
    held = 0
    for seed in range(6):
        X, groups = local_models(400, sizes=UNBALANCED, seed=seed)
        path = clusterpath(X)
        held += any(same_partition(path.labels(p.start), groups) for p in path.plateaus)
    assert 2 <= held <= 5


@pytest.mark.parametrize("select", ["auto", "plateau", "silhouette", "grid"])
@pytest.mark.parametrize("seed", range(3))
def test_every_rule_finds_balanced_groups(select, seed):
    """Appendix D.2, balanced, 200 rows: ten of ten in the design's measurements, for all rules."""
    X, groups = local_models(200, seed=seed)
    assert same_partition(ConvexClustering(select=select).fit(X).labels_, groups)


@pytest.mark.parametrize("select", ["auto", "plateau", "silhouette", "grid"])
def test_a_path_without_levels_means_one_cluster_and_says_so(select):
    # Corners of a simplex: all distances are equal, and all points meet at once.
    model = ConvexClustering(select=select).fit(np.eye(8))
    assert model.n_clusters_ == 1
    assert "no level between 8 clusters and one" in model.choice_.reason


def test_rules_that_disagree_warn_and_name_both():
    X, _ = local_models(600, sizes=UNBALANCED)
    with pytest.warns(UserWarning, match="longest plateau .* 13 clusters, the best silhouette 4"):
        choice = choose_lam(clusterpath(X))
    assert choice.by_rule == {"plateau": 13, "silhouette": 4}


def test_rules_that_agree_do_not_warn():
    X, _ = local_models(400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_lam(clusterpath(X))


def test_the_grid_is_the_papers_vote():
    """Ten lambdas from K = m to K = 1; those that verify Eq. (13) vote if there are any."""
    X, groups = two_groups((12, 8), gap=60.0)
    path = clusterpath(X)
    choice = choose_lam(path, "grid")
    few = many = 0.1
    while path.n_clusters(few) > 1:
        few *= 1.25
    while path.n_clusters(many) < len(X):
        many /= 1.25
    grid = np.linspace(many, few, 10)
    assert np.isclose(grid, choice.lam).any()
    assert "verify Eq. (13)" in choice.reason
    assert choice.lam in recovery_interval(X, groups)
    # ties and votes: the largest of the winning lambdas
    winners = [
        lam
        for lam in grid
        if lam in recovery_interval(X, path.labels(lam)) and path.n_clusters(lam) > 1
    ]
    assert choice.lam == pytest.approx(max(winners))


def test_points_that_are_all_equal_are_one_cluster():
    for select in ("auto", "plateau", "silhouette", "grid"):
        model = ConvexClustering(select=select).fit(np.ones((5, 2)))
        assert model.n_clusters_ == 1
        assert model.certified_
    assert "all points are equal" in ConvexClustering().fit(np.ones((5, 2))).choice_.reason


def test_one_and_two_points():
    assert ConvexClustering().fit(np.ones((1, 3))).n_clusters_ == 1
    pair = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert ConvexClustering().fit(pair).n_clusters_ == 1  # no level in between
    for lam, clusters in ((2.4, 2), (2.5, 1)):  # they meet at 5 / 2
        assert ConvexClustering(lam=lam).fit(pair).n_clusters_ == clusters


def test_many_points_are_chosen_from_the_top_of_the_path():
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], [200, 150, 100])
    X = 6.0 * np.eye(8)[groups] + 0.2 * rng.standard_normal((450, 8))
    model = ConvexClustering().fit(X)
    assert not model.choice_.path.exact
    assert same_partition(model.labels_, groups)
    assert model.certified_


# Eq. (13)


def test_lambdas_of_the_interval_give_the_clusters():
    """Eq. (13) implies recovery, at both ends."""
    X, groups = two_groups((7, 4, 6), gap=60.0)
    interval = recovery_interval(X, groups)
    assert not interval.empty
    for lam in (interval.low, interval.middle, np.nextafter(interval.high, 0)):
        assert lam in interval
        assert same_partition(convex_cluster(X, lam).labels, groups)
    assert interval.high not in interval


def test_the_footnotes_left_end_is_too_small():
    """Points -1, 1, 99, 101: the footnote of Lemma 1 would allow lam = .99, which gives four."""
    X = np.array([[-1.0], [1.0], [99.0], [101.0]])
    interval = recovery_interval(X, [0, 0, 1, 1])
    assert interval.low == 1.0
    footnote = 1.0 / 2  # max distance from the mean / smallest size
    assert footnote < 0.99 < interval.low
    assert convex_cluster(X, 0.99).n_clusters == 4
    assert convex_cluster(X, 1.0).n_clusters == 2


def test_an_empty_interval_says_so():
    X, groups = two_groups(gap=1.0)
    interval = recovery_interval(X, groups)
    assert interval.empty
    with pytest.raises(ValueError, match="No lambda is guaranteed"):
        _ = interval.middle
    assert oracle_lambda(X, groups) == interval.high


def test_the_oracles_lambda_lies_in_the_interval_and_follows_its_seed():
    X, groups = two_groups(gap=60.0)
    draws = [oracle_lambda(X, groups, seed=seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert all(lam in recovery_interval(X, groups) for lam in draws)


def test_labels_and_rows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="one row and one label per user"):
        recovery_interval(np.eye(3), [0, 1])


# In ODCL


@pytest.mark.parametrize(
    "clusterer", ["convex", ConvexClustering(), ConvexClustering(select="grid")]
)
def test_odcl_cc_averages_the_clusters_it_finds(clusterer):
    federation = linear_federation(60, 300, n_clusters=4, seed=2)
    result = odcl.fit(federation, method=Method(clusterer))
    assert same_partition(result.labels, federation.groups)
    averages = average_by_cluster(result.local.theta, result.labels)
    assert_allclose(result.models, averages[result.labels], rtol=1e-12)
    like = odcl.fit(federation, method=Method.paper(4))
    assert_allclose(result.models, like.models, rtol=1e-12)


def test_estimators_take_convex_clustering():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(20), 30)
    X = rng.standard_normal((600, 3))
    slopes = np.where(user[:, None] < 10, 1.0, -1.0)
    y = (X * slopes).sum(axis=1) + 0.1 * rng.standard_normal(600)
    model = odcl.ODCLRegressor(clusterer="convex").fit(X, y, users=user)
    assert model.n_clusters_ == 2


def test_copies_of_points_do_not_change_the_choice():
    X, groups = two_groups((15, 12), gap=12.0)
    once = ConvexClustering(select="silhouette").fit(X)
    twice = ConvexClustering(select="silhouette").fit(np.vstack([X, X]))
    assert same_partition(once.labels_, groups)
    assert_array_equal(twice.labels_[: len(X)], once.labels_)


@pytest.mark.parametrize("select", ["auto", "plateau", "silhouette", "grid"])
@pytest.mark.parametrize(
    "points", [np.eye(3), [[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], [[1.0], [2.0]]]
)
def test_points_in_many_copies_are_the_groups(select, points):
    """Nothing varies inside a group: what differs at all differs for a reason."""
    model = ConvexClustering(select=select).fit(np.repeat(points, 10, axis=0))
    assert_array_equal(model.labels_, np.repeat(np.arange(len(points)), 10))


def test_one_point_in_many_copies_is_no_reason_to_part_the_others():
    """Half of the users sent the same model: it counts once, like any other."""
    X, groups = two_groups((15, 12), gap=12.0)
    X, groups = np.vstack([X, np.repeat(X[:1], 30, axis=0)]), np.append(groups, np.zeros(30))
    assert same_partition(ConvexClustering().fit(X).labels_, groups)


def test_many_points_with_stragglers_are_still_seen_as_groups():
    """In few dimensions groups meet before their last points have joined them."""
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], 140)
    X = 10.0 * np.array([[0, 0], [1, 0], [0, 1]])[groups] + rng.standard_normal((420, 2))
    model = ConvexClustering().fit(X)
    assert not model.choice_.path.exact
    sizes = np.sort(np.bincount(model.labels_))[::-1]
    assert sizes[:3].min() > 130
    for k in np.flatnonzero(np.bincount(model.labels_) > 1):
        assert len(np.unique(groups[model.labels_ == k])) == 1
