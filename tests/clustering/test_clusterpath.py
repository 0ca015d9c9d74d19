"""The clusterpath as a tree: its merges, its levels, and what must be true of any part of it."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.cluster.hierarchy import dendrogram, fcluster, is_monotonic, is_valid_linkage
from scipy.spatial.distance import pdist
from scipy.stats import ortho_group
from threadpoolctl import threadpool_info, threadpool_limits

from odcl.clustering.convex import clusterpath as path_module
from odcl.clustering.convex.clusterpath import clusterpath
from odcl.clustering.convex.estimator import convex_cluster
from odcl.clustering.convex.fusion import recovery_interval
from odcl.clustering.labels import number_by_first_user, same_partition
from tests.helpers import any_points, blobs, is_finer

few = settings(max_examples=20, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def nested(seed=0):
    """Three groups of three groups each, 90 points in the plane."""
    rng = np.random.default_rng(seed)
    outer, inner = np.repeat(np.arange(3), 30), np.repeat(np.arange(9), 10)
    corners = np.array([[0.0, 0.0], [60.0, 0.0], [0.0, 90.0]])
    turns = np.array([[0.0, 4.0], [5.0, 0.0], [-4.0, -3.0]])
    a = corners[outer] + turns[inner % 3] + 0.2 * rng.normal(size=(90, 2))
    return a, outer, inner


@cache
def nested_path():
    return clusterpath(nested()[0], exact=True)


def members(path, node):
    """The points under a node of the tree."""
    if node < path.n_points:
        return [node]
    return [i for c in path.merges[node - path.n_points].children for i in members(path, c)]


def outside_brackets(path, lams, margin=0.0):
    """Those lambdas at which the path says which merges have happened."""
    low = np.array([m.low for m in path.merges]) * (1 - margin)
    high = np.array([m.high for m in path.merges]) * (1 + margin)
    return [lam for lam in lams if not ((low <= lam) & (lam < high)).any()]


def around(path, offset):
    """Lambdas on both sides of every merge, no closer than half of ``offset`` to any other."""
    merges = [m for m in path.merges if m.high > 0]
    both = [m.low * (1 - offset) for m in merges] + [m.high * (1 + offset) for m in merges]
    return outside_brackets(path, both, offset / 2)


# The path is the solution at every lambda


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_the_path_is_the_solution_on_both_sides_of_every_merge(dim):
    a = blobs(dim=dim, seed=dim)
    path = clusterpath(a)
    assert path.exact
    for lam in around(path, 1e-2):
        result = convex_cluster(a, lam)
        assert result.certified
        assert_array_equal(path.labels(lam), result.labels)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:Convex clustering at:sklearn.exceptions.ConvergenceWarning")
def test_the_path_is_the_solution_very_close_to_a_merge(dim):
    """Where the solver proves no difference of clusters it may only be finer, never wrong."""
    a = blobs(dim=dim, seed=dim)
    path = clusterpath(a, tol=1e-6)
    lams = around(path, 1e-5)
    results = [convex_cluster(a, lam) for lam in lams]
    assert sum(r.certified for r in results) > 0.8 * len(results)
    for lam, result in zip(lams, results, strict=True):
        if result.certified:
            assert_array_equal(path.labels(lam), result.labels)
        assert is_finer(result.labels, path.labels(lam))


@given(seed=seeds, share=st.floats(0.02, 1.1))
@few
def test_the_path_is_the_solution_at_any_lambda(seed, share):
    a = any_points(seed, odd="copies")
    path = clusterpath(a)
    for lam in outside_brackets(path, [share * pdist(a).max() / len(a)]):
        assert_array_equal(path.labels(lam), convex_cluster(a, lam).labels)
        assert path.n_clusters(lam) == convex_cluster(a, lam).n_clusters


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
def test_brackets_are_as_narrow_as_asked_and_hold_the_same_events(tol):
    a = blobs(dim=3, seed=1)
    path, narrow = clusterpath(a, tol=tol), clusterpath(a, tol=1e-7)
    for merge, other in zip(path.merges, narrow.merges, strict=True):
        assert merge.low <= merge.high <= merge.low + tol * merge.high
        assert merge.children == other.children
        assert merge.low <= other.high
        assert other.low <= merge.high
        if len(merge.children) == 2:
            assert merge.low == merge.high


@given(seed=seeds)
@few
def test_levels_are_nested_and_each_is_cut_where_it_says(seed):
    path = clusterpath(any_points(seed, odd="copies"))
    levels = path.plateaus
    assert levels[-1].n_clusters == 1
    assert levels[-1].end == np.inf
    labels = [path.labels(n_clusters=level.n_clusters) for level in levels]
    assert all(is_finer(fine, coarse) for fine, coarse in pairwise(labels))
    for level, cut in zip(levels, labels, strict=True):
        assert cut.max() + 1 == level.n_clusters
        assert_array_equal(cut, number_by_first_user(cut))
        assert_array_equal(cut, path.labels(level.start))
        assert path.level(level.n_clusters) == level
    for level, above in pairwise(levels):
        assert level.end == above.start
        assert level.n_clusters > above.n_clusters
        assert_array_equal(path.labels(np.nextafter(level.end, 0)), path.labels(level.start))


@given(seed=seeds)
@few
def test_merges_form_a_tree_from_below(seed):
    path = clusterpath(any_points(seed, odd="copies"))
    n = path.n_points
    assert [m.node for m in path.merges] == list(range(n, n + len(path.merges)))
    children = [c for m in path.merges for c in m.children]
    assert sorted(children) == list(range(n + len(path.merges) - 1))  # all but the root, once
    assert all(c < m.node for m in path.merges for c in m.children)
    assert all(first.high <= second.high for first, second in pairwise(path.merges))
    assert sorted(members(path, path.merges[-1].node)) == list(range(n))


# Facts


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_path_of_a_subtree_alone_is_the_subtree(dim):
    """Fact 1: inside a cluster nothing is changed by what lies outside."""
    a = blobs(n_points=40, dim=dim, seed=dim + 3, apart=6.0)
    path = clusterpath(a)
    size = {m.node: len(members(path, m.node)) for m in path.merges[:-1]}
    tops = sorted(size, key=size.get)[-3:]
    assert size[tops[-1]] > 4
    for node in tops:
        inside = np.sort(members(path, node))
        alone = clusterpath(a[inside])
        under = [m for m in path.merges if set(members(path, m.node)) <= set(inside)]
        assert len(alone.merges) == len(under)
        assert_allclose([m.high for m in alone.merges], [m.high for m in under], rtol=2e-4)
        for merge in under:
            lam = merge.high * (1 + 1e-3)
            if outside_brackets(path, [lam]):
                assert same_partition(alone.labels(lam), path.labels(lam)[inside])


@given(seed=seeds)
@few
def test_the_last_merge_lies_between_the_bounds_of_the_whole(seed):
    """Facts 2 and 3: |a - abar|^2 / sum |a_i - a_j| and max |a_i - abar| / (m - 1) from below,
    diam / m from above."""
    a = any_points(seed, odd="copies")
    off = a - a.mean(axis=0)
    last = clusterpath(a).merges[-1]
    along = (off**2).sum() / pdist(a).sum()
    assert last.high >= max(along, np.linalg.norm(off, axis=1).max() / (len(a) - 1)) * (1 - 1e-12)
    assert last.low <= pdist(a).max() / len(a) * (1 + 1e-12)


@given(seed=seeds)
@few
def test_two_nodes_meet_at_distance_over_mass(seed):
    """Fact 2, at every merge of two nodes of the tree: |mean - mean| / (number of points)."""
    a = any_points(seed, odd="copies")
    path = clusterpath(a)
    for merge in path.merges:
        if len(merge.children) == 2 and merge.high > 0:
            one, other = (members(path, c) for c in merge.children)
            apart = np.linalg.norm(a[one].mean(axis=0) - a[other].mean(axis=0))
            assert_allclose(merge.high, apart / len(one + other), rtol=1e-10)


def test_points_on_a_line_by_hand():
    """-1, 1, 99, 101: both pairs meet at 1, and the pairs at 100 / 4."""
    path = clusterpath([[-1.0], [1.0], [99.0], [101.0]])
    assert_allclose([m.high for m in path.merges], [1, 1, 25], rtol=1e-14)
    assert [p.n_clusters for p in path.plateaus] == [4, 2, 1]
    assert path.n_clusters(0.99) == 4
    assert_array_equal(path.labels(n_clusters=2), [0, 0, 1, 1])


def test_many_nodes_can_merge_at_once():
    """Fact 5. Corners of a regular simplex of m points, 1 apart: all at 1 / m."""
    path = clusterpath(np.eye(9) / np.sqrt(2))
    (merge,) = path.merges
    assert merge.children == tuple(range(9))
    assert_allclose([merge.low, merge.high], 1 / 9, rtol=1e-4)
    assert [p.n_clusters for p in path.plateaus] == [9, 1]


@pytest.mark.parametrize("n_points", [3, 6, 11])
def test_a_polygon_beside_another_fuses_at_its_own_threshold(n_points):
    """By symmetry u shrinks evenly until lam* = 1 / |sum of the unit vectors to one corner|."""
    turn = 2 * np.pi * np.arange(n_points) / n_points
    a = np.c_[np.cos(turn), np.sin(turn)]
    off = a[0] - a[1:]
    meet = 1 / np.linalg.norm((off / np.linalg.norm(off, axis=1)[:, None]).sum(axis=0))
    path = clusterpath(np.vstack([a, 3 * a + 1000]))
    first, second, last = path.merges
    assert first.low <= meet * (1 + 1e-12)
    assert meet <= first.high * (1 + 1e-12)
    assert second.low <= 3 * meet * (1 + 1e-12)
    assert 3 * meet <= second.high * (1 + 1e-12)
    assert len(first.children) == len(second.children) == n_points
    # Then two groups are left, whose means are 1000 sqrt(2) apart.
    assert_allclose(last.high, 1000 * np.sqrt(2) / (2 * n_points), rtol=1e-12)


def test_the_interval_of_eq_13_lies_in_a_level():
    a, outer, _ = nested()
    interval = recovery_interval(a, outer)
    assert not interval.empty
    level = nested_path().level(3)
    assert level.start <= interval.low * (1 + 1e-12)
    assert interval.high <= level.end * (1 + 1e-12)


def test_groups_of_groups_are_levels_of_the_path():
    _, outer, inner = nested()
    path = nested_path()
    assert same_partition(path.labels(n_clusters=3), outer)
    assert same_partition(path.labels(n_clusters=9), inner)


# Invariances


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize(("shift", "scale"), [(0, 1e-8), (0, 1e8), (1e5, 1), (-3, 1e-3)])
def test_the_path_follows_shift_and_scale(dim, shift, scale):
    a = blobs(dim=dim, seed=4)
    before, after = clusterpath(a), clusterpath(scale * a + shift)
    assert len(before.merges) == len(after.merges)
    for merge, moved in zip(before.merges, after.merges, strict=True):
        assert_allclose(moved.high, scale * merge.high, rtol=2e-4)
        assert sorted(members(before, merge.node)) == sorted(members(after, moved.node))


def test_the_path_follows_rotation_and_permutation():
    a = blobs(dim=3, seed=6)
    order = np.random.default_rng(0).permutation(len(a))
    Q = ortho_group.rvs(3, random_state=0)
    before, after = clusterpath(a), clusterpath(a[order] @ Q)
    assert_allclose([m.high for m in after.merges], [m.high for m in before.merges], rtol=2e-4)
    for merge, moved in zip(before.merges, after.merges, strict=True):
        assert sorted(members(before, merge.node)) == sorted(order[members(after, moved.node)])


@pytest.mark.parametrize("noise", [1e-6, 1e-10, 1e-13])
def test_points_that_nearly_coincide_merge_first_and_then_act_as_one(noise):
    """Users with the same data, their solvers stopped a little apart."""
    rng = np.random.default_rng(2)
    base = rng.normal(size=(8, 3))
    copies = np.repeat(base, 5, axis=0)
    near, same = clusterpath(copies + noise * rng.normal(size=copies.shape)), clusterpath(copies)
    tops = [[m.high for m in path.merges if m.high > 1e-4] for path in (near, same)]
    assert_allclose(*tops, rtol=2e-4)
    for lam in around(same, 1e-3):
        assert_array_equal(near.labels(lam), same.labels(lam))
    # Three and more dimensions of noise in one node: its bracket is as narrow as any.
    assert all(m.high - m.low <= 1e-4 * m.high for m in near.merges)


# SciPy's view


@pytest.mark.parametrize("exact", [True, False])
def test_scipy_accepts_the_linkage(exact):
    a = np.vstack([nested()[0], nested()[0][:5]])  # with five copies
    path = clusterpath(a, exact=exact)
    assert path.linkage.shape == (len(a) - 1, 4)
    assert is_valid_linkage(path.linkage)
    assert is_monotonic(path.linkage)
    assert len(dendrogram(path.linkage, no_plot=True)["leaves"]) == len(a)
    for level in path.plateaus[:-1]:
        cut = fcluster(path.linkage, 0.5 * (level.start + level.end), "distance")
        assert same_partition(cut, path.labels(n_clusters=level.n_clusters))


# The lazy path


@pytest.mark.parametrize("max_clusters", [1, 5, 50])
@pytest.mark.parametrize("kind", ["nested", "wide", "one group"])
def test_the_lazy_path_is_the_exact_one_from_where_it_opens(kind, max_clusters):
    a = {
        "nested": nested()[0],
        "wide": blobs(n_points=60, dim=20, seed=2, apart=8.0, n_groups=4),
        "one group": np.random.default_rng(0).normal(size=(50, 2)),
    }[kind]
    exact = nested_path() if kind == "nested" else clusterpath(a, exact=True)
    lazy = clusterpath(a, exact=False, max_clusters=max_clusters)
    lams = [lazy.opened_from, *around(exact, 1e-3), *around(lazy, 1e-3)]
    for lam in outside_brackets(exact, lams):
        if lam >= lazy.opened_from:
            assert_array_equal(lazy.labels(lam), exact.labels(lam))
    for level in lazy.plateaus:
        assert_array_equal(
            lazy.labels(n_clusters=level.n_clusters), exact.labels(n_clusters=level.n_clusters)
        )


def test_the_lazy_path_finds_clear_groups_and_solves_below_where_it_opens():
    a, outer, _ = nested()
    lazy = clusterpath(a, exact=False)
    assert same_partition(lazy.labels(n_clusters=3), outer)
    lam = 0.6 * lazy.opened_from
    assert_array_equal(lazy.labels(lam), convex_cluster(a, lam).labels)
    closed = [m for m in lazy.merges if m.high <= lazy.opened_from]
    assert closed
    for merge in closed:  # certainly apart below low, certainly one from high on
        inside = a[members(lazy, merge.node)]
        assert convex_cluster(inside, merge.high * (1 + 1e-12)).n_clusters == 1
        assert convex_cluster(inside, merge.low * (1 - 1e-9)).n_clusters > 1


# Edges


@pytest.mark.parametrize("exact", [True, False])
def test_one_point_two_points_and_equal_points(exact):
    a = np.array([[0.0, 0.0], [3.0, 4.0]])
    one, two = clusterpath(a[:1], exact=exact), clusterpath(a, exact=exact)
    equal = clusterpath(a[[1, 1, 1]], exact=exact)
    assert one.merges == ()
    assert one.linkage.shape == (0, 4)
    assert_array_equal(one.labels(7.0), [0])
    assert_allclose(two.merges[0].high, 2.5)
    assert_array_equal(two.labels(2.4), [0, 1])
    assert_array_equal(two.labels(2.5), [0, 0])
    assert [m.high for m in equal.merges] == [0.0]
    assert_array_equal(equal.labels(0.0), [0, 0, 0])
    for path in (one, equal):
        assert [p.n_clusters for p in path.plateaus] == [1]
        assert_array_equal(path.labels(n_clusters=1), np.zeros(path.n_points))


def test_copies_merge_at_lambda_zero():
    a = np.array([[0.0, 1.0], [5.0, 5.0], [0.0, 1.0], [9.0, 2.0], [-0.0, 1.0]])
    path = clusterpath(a)
    assert path.merges[0].children == (0, 2, 4)
    assert (path.merges[0].low, path.merges[0].high) == (0.0, 0.0)
    assert_array_equal(path.labels(0.0), [0, 1, 0, 2, 0])


def test_a_level_that_does_not_exist_is_an_error_that_names_the_nearest():
    path = nested_path()
    have = [p.n_clusters for p in path.plateaus]
    missing = next(k for k in range(2, 90) if k not in have)
    near = max(k for k in have if k < missing), min(k for k in have if k > missing)
    with pytest.raises(ValueError, match=f"No level of the path has {missing} clusters") as error:
        path.labels(n_clusters=missing)
    assert f"the nearest has {near[0]} or {near[1]}." in str(error.value)
    with pytest.raises(ValueError, match="has 0 clusters; the nearest has 1"):
        path.labels(n_clusters=0)
    with pytest.raises(ValueError, match="equal points are one"):
        clusterpath([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]).labels(n_clusters=3)
    with pytest.raises(ValueError, match="exact=True"):
        clusterpath(nested()[0], exact=False).level(80)


def test_a_level_is_named_one_way():
    path = clusterpath(blobs())
    with pytest.raises(ValueError, match="either lam or n_clusters"):
        path.labels()
    with pytest.raises(ValueError, match="either lam or n_clusters"):
        path.labels(0.1, n_clusters=2)
    for lam in (-0.1, np.nan, np.inf):
        with pytest.raises(ValueError, match="finite number of at least 0"):
            path.labels(lam)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_points_without_distances_are_refused(bad):
    a = blobs()
    a[2, 0] = bad
    with pytest.raises(ValueError, match="first is row 3"):
        clusterpath(a)


@pytest.mark.parametrize("a", [np.empty((0, 2)), np.empty((3, 0)), np.zeros((2, 2, 2))])
def test_points_of_another_shape_are_refused(a):
    with pytest.raises(ValueError, match="one row per point"):
        clusterpath(a)


@pytest.mark.parametrize("wrong", [{"tol": 0.0}, {"tol": 1.0}, {"tol": -1e-3}, {"max_clusters": 0}])
def test_settings_without_a_meaning_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        clusterpath(blobs(), **wrong)


def test_the_path_says_what_it_is():
    assert "30 points" in repr(clusterpath(blobs()))
    assert "exact" in repr(clusterpath(blobs()))
    assert "opened from lam" in repr(clusterpath(nested()[0], exact=False))


def test_brackets_are_no_wider_than_asked_for():
    path = clusterpath(blobs(), tol=1e-3)
    assert max(1 - merge.low / merge.high for merge in path.merges) <= 1e-3


def test_small_products_stay_on_one_thread(monkeypatch):
    """More threads wait for each other: 43 s in place of 2 for 178 points, on two cores."""

    def threads():
        return max(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas")

    seen = []
    with threadpool_limits(2, user_api="blas"):
        if threads() == 1:
            pytest.skip("this BLAS has one thread")
        solve = path_module.solve
        monkeypatch.setattr(
            path_module, "solve", lambda *a, **how: seen.append(threads()) or solve(*a, **how)
        )
        clusterpath(blobs())
        assert threads() == 2  # given back
    assert set(seen) == {1}
