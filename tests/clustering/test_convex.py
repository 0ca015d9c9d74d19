"""Convex clustering at one lambda (Eq. 12): against CVXPY, by its own facts, at its edges."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist, pdist
from scipy.stats import ortho_group
from sklearn.exceptions import ConvergenceWarning

from odcl.clustering.convex.clusterpath import clusterpath
from odcl.clustering.convex.estimator import ConvexClustering, convex_cluster
from odcl.clustering.convex.fusion import recovery_interval
from odcl.clustering.labels import number_by_first_user, same_partition
from tests.helpers import any_points, blobs, convex_by_cvxpy, convex_objective, is_finer

few = settings(max_examples=25, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
shares = st.floats(0.05, 1.2)


def polygon(n_points, radius=1.0, center=(0.0, 0.0)):
    turn = 2 * np.pi * np.arange(n_points) / n_points + 0.3
    return radius * np.c_[np.cos(turn), np.sin(turn)] + np.array(center)


def symmetric_threshold(a):
    """lam* of points that all look alike: u shrinks evenly, and lam* = |a_0| / |f_0|."""
    off = a[0] - a[1:]
    a0 = a[0] - a.mean(axis=0)
    return np.linalg.norm(a0) / np.linalg.norm((off / np.linalg.norm(off, axis=1)[:, None]).sum(0))


def diameter(a):
    return pdist(a).max()


def assert_stationary(a, result):
    """Distinct rows of u balance: u_k - mean_k + lam sum_l n_l (u_k - u_l) / |u_k - u_l| = 0."""
    sizes = np.bincount(result.labels)
    u = result.centers
    means = np.array([a[result.labels == k].mean(axis=0) for k in range(len(u))])
    off = u[:, None] - u
    r = np.linalg.norm(off, axis=2)
    np.fill_diagonal(r, np.inf)
    pull = ((sizes / r)[:, :, None] * off).sum(axis=1)
    # A row of u is known to some ulps of the points; its unit vectors to that over the distance.
    ulps = 1e-14 * np.abs(a).max() * (1 + result.lam * len(a) / r.min())
    assert np.abs(u - means + result.lam * pull).max() <= ulps


# Against another solver


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_clusters_and_objective_are_those_of_cvxpy_on_both_sides_of_events(dim):
    """Below and above the first, a middle and the last merge of the path."""
    a = blobs(dim=dim, seed=dim)
    merges = clusterpath(a).merges
    for merge in {merges[0], merges[len(merges) // 2], merges[-1]}:
        for lam in (merge.low * (1 - 3e-3), merge.high * (1 + 3e-3)):
            result = convex_cluster(a, lam)
            reference = convex_by_cvxpy(a, lam)
            assert result.certified
            same = result.labels[:, None] == result.labels
            apart = cdist(reference, reference)
            assert apart[same].max() < 0.1 * apart[~same].min(initial=np.inf)
            assert_allclose(result.u, reference, atol=1e-5)
            # CVXPY stops short of the minimum; we may be below it, by what it lacks.
            assert result.objective <= convex_objective(a, reference, lam) * (1 + 1e-10)
            assert_allclose(result.objective, convex_objective(a, reference, lam), rtol=1e-8)
            assert_allclose(result.objective, convex_objective(a, result.u, lam), rtol=1e-12)


@given(seed=seeds, share=shares)
@few
def test_certified_clusters_are_stationary_and_their_gap_is_tiny(seed, share):
    a = any_points(seed, odd="grid")
    result = convex_cluster(a, share * diameter(a) / len(a))
    assert result.certified
    assert 0 <= result.gap <= 1e-10 * result.objective
    assert_allclose(result.objective, convex_objective(a, result.u, result.lam), rtol=1e-12)
    assert_allclose(result.u.mean(axis=0), a.mean(axis=0), atol=1e-12 * np.abs(a).max())
    assert_array_equal(result.labels, number_by_first_user(result.labels))
    if result.n_clusters > 1:
        assert_stationary(a, result)


# Facts about the minimiser


@given(seed=seeds, share=shares)
@few
def test_a_cluster_is_held_together_by_its_own_points(seed, share):
    """Fact 1: the points of a cluster alone are one cluster at the same lambda."""
    a = any_points(seed, odd="grid")
    lam = share * diameter(a) / len(a)
    labels = convex_cluster(a, lam).labels
    for k in range(labels.max() + 1):
        assert convex_cluster(a[labels == k], lam).n_clusters == 1


@given(seed=seeds, share=shares)
@few
def test_what_is_fused_alone_is_fused_among_others(seed, share):
    """Fact 1, the other way: any part is clustered no finer among others than alone."""
    a = any_points(seed, odd="grid")
    lam = share * diameter(a) / len(a)
    part = np.random.default_rng(seed).choice(len(a), size=(len(a) + 2) // 2, replace=False)
    alone = convex_cluster(a[part], lam).labels
    assert is_finer(alone, convex_cluster(a, lam).labels[part])


def test_part_of_a_cluster_can_be_held_together_by_the_others():
    """{0, 1} and eight points at .5: the two are apart alone, and fused with the eight between."""
    a = np.array([[0.0], [1.0]] + 8 * [[0.5]])
    lam = 0.2  # alone they meet at 1/2
    assert convex_cluster(a[:2], lam).n_clusters == 2
    assert convex_cluster(a, lam).n_clusters == 1
    in_the_plane = np.c_[a, 2 * a] / np.sqrt(5)
    assert convex_cluster(in_the_plane, lam).n_clusters == 1


@given(seed=seeds, n=st.integers(1, 6), m=st.integers(1, 6), dim=st.integers(1, 4))
@few
def test_two_groups_meet_at_distance_over_mass(seed, n, m, dim):
    """Fact 2: n equal points and m equal points fuse at |a - b| / (n + m), and not before."""
    a, b = np.random.default_rng(seed).normal(size=(2, dim))
    points = np.repeat([a, b], [n, m], axis=0)
    meet = np.linalg.norm(a - b) / (n + m)
    assert convex_cluster(points, meet * (1 - 1e-9)).n_clusters == 2
    assert convex_cluster(points, meet * (1 + 1e-9)).n_clusters == 1


def test_lambda_exactly_at_the_threshold_of_a_pair_fuses_it():
    a = np.array([[0.0, 0.0], [3.0, 4.0], [40.0, 0.0], [40.0, 2.0]])  # thresholds 5/2 and 1
    assert_array_equal(convex_cluster(a, 1.0).labels, [0, 1, 2, 2])
    assert_array_equal(convex_cluster(a, 2.5).labels, [0, 0, 1, 1])


@given(seed=seeds, share=st.floats(0.05, 0.999))
@few
def test_any_solution_brackets_the_threshold_of_the_whole(seed, share):
    """Fact 2: lam + |u - ubar|^2 / sum |u_i - u_j| <= lam* <= lam + diam(u) / m."""
    a = any_points(seed, odd="grid")
    last = clusterpath(a).merges[-1]
    result = convex_cluster(a, share * last.low)
    u = result.u
    low = result.lam + ((u - u.mean(axis=0)) ** 2).sum() / pdist(u).sum()
    high = result.lam + diameter(u) / len(a)
    assert low <= last.high * (1 + 1e-9)
    assert high >= last.low * (1 - 1e-9)


@given(seed=seeds)
@few
def test_diameter_and_farthest_point_bound_the_last_fusion(seed):
    """Fact 3(b): one cluster from diam / m on; fact 2: not before max |a_i - abar| / (m - 1)."""
    a = any_points(seed, odd="grid")
    m = len(a)
    farthest = np.linalg.norm(a - a.mean(axis=0), axis=1).max() / (m - 1)
    assert convex_cluster(a, diameter(a) / m * (1 + 1e-12)).n_clusters == 1
    assert convex_cluster(a, farthest * (1 - 1e-9)).n_clusters > 1


@given(seed=seeds)
@few
def test_clusters_never_split_as_lambda_grows(seed):
    a = any_points(seed, odd="grid")
    grid = np.linspace(0, 1.1, 8)[1:] * diameter(a) / len(a)
    labels = [convex_cluster(a, lam).labels for lam in grid]
    assert all(is_finer(fine, coarse) for fine, coarse in pairwise(labels))


@given(seed=seeds, sizes=st.lists(st.integers(1, 9), min_size=2, max_size=4), share=st.floats(0, 1))
@few
def test_eq_13_implies_recovery(seed, sizes, share):
    """Lemma 1: from the left end of the interval to just below the right one."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    a = rng.normal(size=(len(groups), 2)) + 1000.0 * np.eye(4)[groups, :2] * (1 + groups)[:, None]
    a[:, 0] += 2000.0 * groups
    interval = recovery_interval(a, groups)
    assert not interval.empty
    for lam in (interval.low, interval.low + share * (interval.high - interval.low) * (1 - 1e-9)):
        result = convex_cluster(a, max(lam, 1e-12))
        assert result.certified
        assert same_partition(result.labels, groups)


def test_radius_over_size_is_not_enough_for_recovery():
    """The footnote of Lemma 1 would allow lam >= 1/2 here; the pairs only meet at 1."""
    a = np.array([[-1.0], [1.0], [99.0], [101.0]])
    groups = [0, 0, 1, 1]
    assert convex_cluster(a, 0.99).n_clusters == 4
    assert recovery_interval(a, groups).low == 1.0
    assert_array_equal(convex_cluster(a, 1.0).labels, groups)


@pytest.mark.parametrize("n_points", [3, 4, 5, 8, 30])
@pytest.mark.parametrize("offset", [1e-3, 1e-7])
def test_points_of_a_regular_polygon_meet_all_at_once(n_points, offset):
    a = polygon(n_points)
    meet = symmetric_threshold(a)
    below, above = convex_cluster(a, meet * (1 - offset)), convex_cluster(a, meet * (1 + offset))
    assert below.certified
    assert (below.n_clusters, above.n_clusters) == (n_points, 1)
    assert_allclose(below.u, offset * a, atol=1e-12)


@pytest.mark.parametrize(
    "a",
    [np.eye(8), np.vstack([np.eye(5), -np.eye(5)]), cdist(np.eye(2), np.eye(2))[[0, 1]]],
    ids=["simplex", "cross", "pair"],
)
def test_points_of_a_symmetric_body_meet_all_at_once(a):
    meet = symmetric_threshold(a)
    assert convex_cluster(a, meet * (1 - 1e-6)).n_clusters == len(a)
    assert convex_cluster(a, meet * (1 + 1e-6)).n_clusters == 1


def test_a_far_group_does_not_change_when_a_near_one_fuses():
    """Fact 1: the threshold of a polygon is its own, whatever lies far away."""
    a = np.vstack([polygon(8), polygon(5, radius=30.0, center=(1e4, 3e3))])
    meet = symmetric_threshold(a[:8])
    below, above = convex_cluster(a, meet * (1 - 1e-3)), convex_cluster(a, meet * (1 + 1e-3))
    assert below.certified
    assert above.certified
    assert (below.n_clusters, above.n_clusters) == (13, 6)


# Invariances


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize(("shift", "scale"), [(0, 1e-8), (0, 1e8), (1e6, 1), (-1e3, 1e-3)])
def test_the_solution_follows_shift_and_scale(dim, shift, scale):
    """u moves along, lam scales along. A shift costs its digits: 1e6 leaves ten of sixteen."""
    a = blobs(dim=dim, seed=7)
    for share in (0.3, 0.6, 0.9):
        lam = share * diameter(a) / len(a)
        before, after = convex_cluster(a, lam), convex_cluster(scale * a + shift, scale * lam)
        assert after.certified
        assert_array_equal(before.labels, after.labels)
        lost = 1e-13 * max(1, abs(shift / scale)) * np.abs(a).max()
        assert_allclose((after.u - shift) / scale, before.u, atol=100 * lost)


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_the_solution_follows_rotation_and_permutation(dim):
    rng = np.random.default_rng(dim)
    a = blobs(dim=dim, seed=dim + 20)
    Q = ortho_group.rvs(dim, random_state=dim)
    order = rng.permutation(len(a))
    for share in (0.3, 0.6, 0.9):
        lam = share * diameter(a) / len(a)
        before, after = convex_cluster(a, lam), convex_cluster(a[order] @ Q, lam)
        assert same_partition(after.labels, before.labels[order])
        assert_allclose(after.u, before.u[order] @ Q, atol=1e-10)
        assert_allclose(after.objective, before.objective, rtol=1e-13)


@pytest.mark.parametrize("dim", [20, 500])
def test_wide_data_are_solved_in_their_span(dim):
    """Fact 6: only inner products count; 20 points in 500 dimensions fit into 20."""
    a = blobs(n_points=20, dim=dim, seed=3)
    basis, inside = np.linalg.qr(a.T)
    for share in (0.4, 0.8, 0.95):
        lam = share * diameter(a) / len(a)
        wide, narrow = convex_cluster(a, lam), convex_cluster(np.ascontiguousarray(inside.T), lam)
        assert wide.certified
        assert_array_equal(wide.labels, narrow.labels)
        assert_allclose(wide.u, narrow.u @ basis.T, atol=1e-10)


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_equal_points_are_one_point_with_mass(dim):
    """Copies share their row of u at every lambda; twice all points is lam doubled."""
    a = blobs(n_points=12, dim=dim, seed=5)
    for share in (0.3, 0.7):
        lam = share * diameter(a) / len(a)
        once, twice = convex_cluster(a, lam), convex_cluster(np.repeat(a, 2, axis=0), lam / 2)
        assert_array_equal(np.repeat(once.labels, 2), twice.labels)
        assert_allclose(twice.centers, once.centers, atol=1e-12)


def test_points_on_a_line_are_solved_on_it():
    rng = np.random.default_rng(0)
    t = rng.normal(size=30)
    direction = np.array([1.0, -2.0, 2.0]) / 3
    a = 5 + np.outer(t, direction)
    for share in (0.2, 0.5, 0.8):
        lam = share * np.ptp(t) / len(t)
        line, space = convex_cluster(t[:, None], lam), convex_cluster(a, lam)
        assert_array_equal(line.labels, space.labels)
        assert_allclose(space.u, 5 + line.u * direction, atol=1e-12)
        # Nearly on a line there is no short cut, and nearly the same answer.
        near = convex_cluster(a + 1e-9 * rng.normal(size=a.shape), lam)
        assert near.certified
        assert_array_equal(line.labels, near.labels)
        assert_allclose(near.u, space.u, atol=1e-7)


# Edges


def hard_data():
    rng = np.random.default_rng(0)
    outlier = rng.normal(size=(30, 2))
    outlier[7] += 1e6
    grid = np.stack(np.meshgrid(*2 * [np.arange(6.0)]), axis=-1).reshape(-1, 2)
    far = np.array([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    return {
        "outlier": outlier,
        "single point and group": np.vstack([0.1 * rng.normal(size=(40, 3)), far[:1]]),
        "heavy tails": rng.standard_cauchy(size=(40, 3)),
        "integers": rng.integers(0, 5, size=(40, 2)).astype(float),
        "grid": grid,
        "grid of grids": np.vstack([grid, grid + 100, grid[::-1] * 2 - 300]),
        "cube": np.stack(np.meshgrid(*4 * [[0.0, 1.0]]), axis=-1).reshape(-1, 4),
        "circle": polygon(40) + 1e-6 * rng.normal(size=(40, 2)),
        "near copies": np.repeat(rng.normal(size=(8, 3)), 5, 0) + 1e-9 * rng.normal(size=(40, 3)),
        "unequal": np.vstack(
            [0.1 * rng.normal(size=(60, 3)), far[0] + rng.normal(size=(6, 3)), far[1:]]
        ),
    }


@pytest.mark.parametrize("name", hard_data())
def test_hard_data_are_certified_and_stationary(name):
    """In the middle of the longest levels of their paths."""
    a = hard_data()[name]
    levels = sorted(clusterpath(a).plateaus[:-1], key=lambda p: p.start / p.end)
    for level in levels[:3]:
        lam = 0.5 * (level.start + level.end)
        result = convex_cluster(a, lam)
        assert result.certified
        assert result.n_clusters == level.n_clusters
        assert_stationary(a, result)
        for k in range(result.n_clusters):
            assert convex_cluster(a[result.labels == k], lam).n_clusters == 1


@pytest.mark.parametrize("dim", [1, 3])
def test_one_point_and_equal_points_are_one_cluster(dim):
    a = np.random.default_rng(0).normal(size=(1, dim))
    for points in (a, np.repeat(a, 5, axis=0)):
        for lam in (0.0, 1.0):
            result = convex_cluster(points, lam)
            assert result.certified
            assert result.n_clusters == 1
            assert_allclose(result.u, points, rtol=1e-15)
            assert result.objective <= 1e-28


def test_lambda_zero_leaves_every_point_alone():
    a = blobs()
    result = convex_cluster(a, 0.0)
    assert result.certified
    assert_array_equal(result.labels, np.arange(len(a)))
    assert_allclose(result.u, a, atol=1e-14)


def test_two_points_approach_linearly():
    a = np.array([[0.0, 0.0], [6.0, 8.0]])  # they meet at 5, each having gone lam along
    result = convex_cluster(a, 2.0)
    assert_allclose(result.u, [[1.2, 1.6], [4.8, 6.4]], rtol=1e-14)


@pytest.mark.parametrize("lam", [-1e-9, np.nan, np.inf, "auto", None, True])
def test_a_lambda_without_a_meaning_is_refused(lam):
    with pytest.raises(ValueError, match="finite number of at least 0"):
        convex_cluster(blobs(), lam)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_points_without_distances_are_refused(bad):
    a = blobs()
    a[4, 1] = bad
    with pytest.raises(ValueError, match="first is row 5"):
        ConvexClustering(lam=0.1).fit(a)
    with pytest.raises(ValueError, match="first is row 5"):
        clusterpath(a)
    with pytest.raises(ValueError, match="first is row 5"):
        recovery_interval(a, np.arange(len(a)) % 3)


@pytest.mark.parametrize(("n_points", "dim", "share"), [(30, 2, 0.5), (30, 5, 0.7), (120, 3, 0.4)])
def test_out_of_steps_it_warns_and_the_gap_still_bounds_the_error(n_points, dim, share):
    a = blobs(n_points=n_points, dim=dim, seed=1)
    lam = share * diameter(a) / len(a)
    exact = convex_cluster(a, lam)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        early = convex_cluster(a, lam, max_iter=1)
    assert exact.certified
    assert not early.certified
    missing = early.objective - exact.objective
    assert missing > 1e-9 * exact.objective  # it did stop early
    assert missing <= early.gap
    assert is_finer(early.labels, exact.labels)  # what it did fuse is proven


# What once went wrong


@pytest.mark.parametrize("far", [1e8, 1e10, 1e14, 1e16])
def test_a_far_point_leaves_the_others_as_they_are_or_is_said_to_hide_them(far):
    """At 1e14 the group's second dimension drowns in rounding: never certified and wrong."""
    group = np.random.default_rng(0).normal(size=(5, 2))
    merges = clusterpath(group).merges
    lam = 0.5 * (merges[0].high + merges[1].low)
    alone = convex_cluster(group, lam).labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = convex_cluster(np.vstack([group, [[far, 0.0]]]), lam)
    assert result.certified == (far < 1e12)
    if result.certified:
        assert_array_equal(result.labels[:5], alone)


@pytest.mark.parametrize("scale", [1e-200, 1e-120, 1e-30, 1e30, 1e140])
def test_extreme_scales_change_nothing(scale):
    a = np.random.default_rng(0).normal(size=(20, 3))
    plain, scaled = convex_cluster(a, 0.08), convex_cluster(scale * a, scale * 0.08)
    assert scaled.certified
    assert_array_equal(scaled.labels, plain.labels)
    assert_allclose(scaled.centers / scale, plain.centers, rtol=1e-9)


def test_numbers_whose_squares_overflow_are_refused():
    with pytest.raises(ValueError, match="Divide them"):
        convex_cluster(1e160 * np.eye(3), 1.0)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("close", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("distance", [1e4, 1e6])
def test_a_small_polygon_far_away_is_settled_on_its_own(distance, close, side):
    """On both sides of its threshold: rows far from the origin have few digits left to differ."""
    small = polygon(8)
    threshold = symmetric_threshold(small)
    both = np.vstack([small, polygon(8, 50.0, (distance, distance / 3))])
    result = convex_cluster(both, threshold * (1 + side * close))
    assert result.certified
    assert result.n_clusters == (9 if side > 0 else 16)


@pytest.mark.parametrize("bad", [[1.0, 2.0], np.empty((0, 2)), np.empty((3, 0)), 3.0])
def test_points_that_are_no_rows_are_refused(bad):
    for solve in (lambda x: convex_cluster(x, 0.1), clusterpath):
        with pytest.raises(ValueError, match="one row per point"):
            solve(bad)


def test_nan_rows_are_named_by_the_function_too():
    with pytest.raises(ValueError, match="first is row 2"):
        convex_cluster([[0.0, 1.0], [np.nan, 1.0]], 0.1)


def test_clusters_on_a_line_differ_by_more_than_rounding():
    a = np.random.default_rng(0).normal(size=(40, 1))
    for merge in clusterpath(a).merges:
        centers = np.sort(convex_cluster(a, merge.high).centers[:, 0])
        assert (np.diff(centers) > 1e-14).all()


def test_the_warning_tells_the_gap_of_the_result():
    a = np.random.default_rng(1).normal(size=(30, 2))
    with pytest.warns(ConvergenceWarning) as said:
        result = convex_cluster(a, 0.06, max_iter=1)
    assert f"{result.gap:.2g}" in str(said[0].message)


def test_more_points_than_fit_in_memory_are_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr("odcl.clustering.convex.solve.MOST_GROUPS", 20)
    a = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(ValueError, match=r"30 points remain .* weights='knn'"):
        convex_cluster(a, 0.01)
    assert convex_cluster(a, 10.0).n_clusters == 1  # a quick certificate decides
