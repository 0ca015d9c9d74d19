"""Weighted convex clustering: the remark after Lemma 1, against CVXPY and its own certificates."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.spatial.distance import cdist, pdist
from scipy.stats import ortho_group
from sklearn.exceptions import ConvergenceWarning

from odcl.clustering.convex.weighted import (
    as_weights,
    certificate,
    gaussian_knn_weights,
    weighted_convex,
)
from odcl.clustering.convex.weighted_newton import CollapsedPoint, problem_of
from odcl.clustering.labels import number_by_first_user, same_partition
from tests.helpers import blobs, convex_by_cvxpy, convex_objective


def points(n_points=24, dim=2, **how):
    return blobs(n_points, dim, **{"apart": 3.0} | how)


def random_weights(n_points, rng, density=0.25):
    w = np.triu(rng.uniform(size=(n_points, n_points)), k=1)
    w *= rng.uniform(size=w.shape) < 2 * density
    return sparse.csr_array(w + w.T)


def ring(n_points):
    """Each point tied to the next one, weight 1."""
    w = np.roll(np.eye(n_points), 1, axis=1)
    return w + w.T if n_points > 2 else np.array([[0.0, 1.0], [1.0, 0.0]])


def partition(u, w):
    """Points joined by edges along which ``u`` is constant to 1e-6; None where that is unclear.

    CLARABEL's rows are good to about 1e-7: lengths in between belong to no side.
    """
    edges = as_weights(w, len(u))
    length = np.linalg.norm(u[edges.row] - u[edges.col], axis=1)
    if np.any((length > 1e-6) & (length < 1e-3)):
        return None
    one = length <= 1e-6
    graph = sparse.coo_array((np.ones(one.sum()), (edges.row[one], edges.col[one])), w.shape)
    return number_by_first_user(sparse.csgraph.connected_components(graph, directed=False)[1])


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("kind", ["knn", "random"])
def test_cvxpy_finds_the_same_minimum_and_clusters(dim, kind):
    unclear = 0
    for seed, lam in enumerate([0.05, 0.3, 1.0, 3.0]):
        a = points(dim=dim, seed=seed)
        rng = np.random.default_rng(seed)
        w = gaussian_knn_weights(a, 4) if kind == "knn" else random_weights(len(a), rng)
        result = weighted_convex(a, lam, w)
        truth = convex_by_cvxpy(a, lam, w)
        optimum = convex_objective(a, truth, lam, w)
        assert_allclose(result.objective, convex_objective(a, result.u, lam, w), rtol=1e-12)
        assert result.objective <= optimum * (1 + 1e-9)  # CLARABEL's own point is no lower
        assert_allclose(result.objective, optimum, rtol=1e-6)
        assert result.certified
        # Half the squared distance to the minimiser is at most the gap; CLARABEL adds its own.
        assert np.linalg.norm(result.u - truth) <= np.sqrt(2 * result.gap) + 1e-4
        clusters = partition(truth, w)
        unclear += clusters is None
        assert clusters is None or same_partition(result.labels, clusters)
    assert unclear <= 1


@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-6, 1e-10])
def test_the_gap_bounds_the_error_and_obeys_tol(tol):
    """A gap that understates the error, or that tol does not rule, fails here."""
    a = points(60, 5)
    w = gaussian_knn_weights(a, 5)
    for lam in (0.3, 1.0, 2.0):
        best = weighted_convex(a, lam, w, tol=1e-12)
        rough = weighted_convex(a, lam, w, tol=tol)
        assert rough.converged
        assert rough.gap <= tol * rough.objective
        assert rough.objective - rough.gap <= best.objective * (1 + 1e-14)
        assert best.objective * (1 - 1e-14) <= rough.objective
        assert np.linalg.norm(rough.u - best.u) ** 2 <= 2 * (rough.gap + best.gap) + 1e-20


def test_the_dual_point_is_feasible_and_gives_the_gap():
    a = points(40, 3)
    w = gaussian_knn_weights(a, 5)
    lam = 1.0
    result = weighted_convex(a, lam, w, tol=1e-4)
    edges = as_weights(w, len(a))
    z = result.dual
    assert np.all(np.linalg.norm(z, axis=1) <= lam * edges.data * (1 + 1e-14))
    pull = np.zeros_like(a)
    np.add.at(pull, edges.row, z)
    np.subtract.at(pull, edges.col, z)
    centred = a - a.mean(axis=0)
    dual_value = 0.5 * (centred**2).sum() - 0.5 * ((centred - pull) ** 2).sum()
    assert_allclose(result.objective - result.gap, dual_value, rtol=1e-12)


@pytest.mark.parametrize("lam", [0.3, 0.8, 1.6, 3.0])
def test_a_move_of_the_points_moves_the_result_along(lam):
    """Shift, rotation, order and unit (lam has the unit of the points) change nothing else."""
    rng = np.random.default_rng(1)
    a = points(60, 4)
    w = gaussian_knn_weights(a, 5)
    here = weighted_convex(a, lam, w)
    assert here.certified
    order, turn = rng.permutation(len(a)), ortho_group.rvs(4, random_state=rng)
    same, back = np.arange(len(a)), np.argsort(order)
    for there, users, undo in [
        (weighted_convex(a + 1e3, lam, w), same, lambda u: u - 1e3),
        (weighted_convex(a @ turn, lam, w), same, lambda u: u @ turn.T),
        (weighted_convex(a[order], lam, w[order][:, order]), back, lambda u: u),
        (weighted_convex(1e-3 * a, 1e-3 * lam, w), same, lambda u: 1e3 * u),
        (weighted_convex(a, 1e3 * lam, 1e-3 * w), same, lambda u: u),
    ]:
        assert there.certified
        assert same_partition(there.labels[users], here.labels)
        assert_allclose(undo(there.u)[users], here.u, atol=1e-6)


def test_gaussian_weights_have_no_unit():
    a = points(50, 3)
    w, scaled = gaussian_knn_weights(a), gaussian_knn_weights(1e-4 * a + 7)
    assert_allclose(w.toarray(), scaled.toarray(), rtol=1e-9)
    assert_allclose(np.median(w.data), np.exp(-1), rtol=0.02)


@pytest.mark.parametrize("dim", [1, 3])
def test_unit_weights_recover_separated_groups_as_eq_13_says(dim):
    rng = np.random.default_rng(dim)
    truth = np.arange(20) % 2
    a = rng.uniform(-1, 1, size=(20, dim)) + 40.0 * truth[:, None]
    low = max(pdist(a[truth == k]).max() / 10 for k in (0, 1))
    high = np.linalg.norm(a[truth == 0].mean(axis=0) - a[truth == 1].mean(axis=0)) / (40 - 20)
    assert low < high
    for lam in np.linspace(low, high, 4, endpoint=False):
        result = weighted_convex(a, lam, np.ones((20, 20)))
        assert result.certified
        assert_array_equal(result.labels, truth)
        # Two groups of 10, each pulled by 10 lam: lam * (the other's size) along the line.
        means = np.stack([a[truth == k].mean(axis=0) for k in (0, 1)])
        along = (means[1] - means[0]) / np.linalg.norm(means[1] - means[0])
        assert_allclose(result.centers, means + 10 * lam * np.stack([along, -along]), rtol=1e-9)


def test_two_points_meet_at_the_closed_form():
    """u = mean +- max(0, |a_0 - a_1| / 2 - lam w) along the line: fused from lam w = 2.5 on."""
    a, w = np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[9.0, 0.5], [0.5, 9.0]])
    for lam in (0.0, 1.0, 4.0, 4.999, 5.001, 6.0, 1e6):
        result = weighted_convex(a, lam, w)
        half = max(0.0, 2.5 - 0.5 * lam)
        expected = np.array([1.5, 2.0]) + half * np.array([[-0.6, -0.8], [0.6, 0.8]])
        assert_allclose(result.u, expected, atol=1e-12)
        assert_array_equal(result.labels, [0, 1] if half else [0, 0])
        assert result.certified


def test_a_huge_lam_brings_each_part_of_the_graph_to_its_mean():
    a = points(30, 3)
    w = np.zeros((30, 30))
    w[:10, :10], w[10:29, 10:29] = ring(10), 1e-3 * ring(19)  # and point 29 for itself
    for lam in (1e6, 1e9):
        result = weighted_convex(a, lam, w)
        assert result.certified
        assert_array_equal(result.labels, [0] * 10 + [1] * 19 + [2])
        parts = [a[:10], a[10:29], a[29:]]
        assert_allclose(result.centers, [p.mean(axis=0) for p in parts], atol=1e-12)
        assert_array_equal(result.u[29], result.centers[2])


def test_without_a_penalty_the_clusters_are_the_different_points():
    a = points(12, 2)
    a[[5, 7]] = a[2]
    for lam, w in [(0.0, ring(12)), (1.0, np.zeros((12, 12))), (1.0, sparse.csr_array((12, 12)))]:
        result = weighted_convex(a, lam, w)
        assert_array_equal(result.u, a)
        assert_array_equal(result.labels, [0, 1, 2, 3, 4, 2, 5, 2, 6, 7, 8, 9])
        assert result.certified
        assert (result.objective, result.gap, result.n_iter) == (0.0, 0.0, 0)


@pytest.mark.parametrize("n_points", [1, 2, 7])
def test_equal_points_are_one_cluster(n_points):
    a = np.full((n_points, 3), 0.1)
    w = gaussian_knn_weights(a)
    result = weighted_convex(a, 1.0, w)
    assert_array_equal(result.labels, np.zeros(n_points))
    assert_allclose(result.u, a, rtol=1e-15)
    assert result.certified
    assert result.converged


def test_duplicates_are_tied_and_stay_together():
    a = np.repeat(points(15, 2), 4, axis=0)
    w = gaussian_knn_weights(a, 5)
    for lam in (0.1, 1.0):
        result = weighted_convex(a, lam, w)
        assert result.certified
        assert_array_equal(result.labels.reshape(15, 4), result.labels[::4, None].repeat(4, axis=1))
    assert len(result.centers) < 15


def test_labels_say_which_rows_are_equal_in_every_bit():
    a = points(80, 3)
    w = gaussian_knn_weights(a, 6)
    for lam in (0.5, 1.0, 2.0):
        result = weighted_convex(a, lam, w)
        assert_array_equal(result.centers[result.labels], result.u)
        assert len(np.unique(result.u, axis=0)) == len(result.centers)
        assert_array_equal(number_by_first_user(result.labels), result.labels)


def test_many_dimensions_cost_nothing_and_change_nothing():
    """The objective knows inner products only: 2,000 dimensions for 30 points are 30."""
    a = points(30, 4)
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(2000, 4)))[0].T
    w = gaussian_knn_weights(a, 5)
    low, high = weighted_convex(a, 1.0, w), weighted_convex(a @ basis, 1.0, w)
    assert high.dual.shape[1] <= 30
    assert_array_equal(high.labels, low.labels)
    assert_allclose(high.u, low.u @ basis, atol=1e-7)


def test_a_result_that_is_not_good_enough_says_so():
    a = points(200, 5)
    w = gaussian_knn_weights(a)
    with pytest.warns(ConvergenceWarning, match=r"gap of .*Raise max_iter=1, or tol"):
        result = weighted_convex(a, 1.5, w, tol=1e-15, max_iter=1)
    assert not result.converged
    assert result.objective - result.gap <= weighted_convex(a, 1.5, w).objective


def test_a_thousand_points_are_proved():
    """Between all points apart and few clusters: the labels are proved all the same."""
    a = points(1000, 20, apart=1.0)
    result = weighted_convex(a, 2.5, gaussian_knn_weights(a))
    assert result.certified
    assert 1 < len(result.centers) < 1000


@pytest.mark.parametrize("wrong", ["merged", "split"])
def test_wrong_clusters_are_never_proved(wrong):
    """Given the minimiser's own dual point, one merge too many or too few gets no certificate."""
    a = points(60, 3)
    w = gaussian_knn_weights(a, 5)
    right = weighted_convex(a, 1.0, w, tol=1e-12)
    assert right.certified
    edges = as_weights(w, 60)
    ends = np.stack([right.labels[edges.row], right.labels[edges.col]])
    centred = a - a.mean(axis=0)
    problem = problem_of(centred, edges.row, edges.col, edges.data)
    pairs = np.unique(np.sort(ends[:, ends[0] != ends[1]], axis=0), axis=1).T
    shared = np.flatnonzero(np.bincount(right.labels) > 1)
    assert len(pairs) > 5
    assert len(shared) > 2
    for which in range(5 if wrong == "merged" else len(shared)):
        labels = right.labels.copy()
        if wrong == "merged":
            labels[labels == pairs[which][1]] = pairs[which][0]
        else:
            labels[np.flatnonzero(labels == shared[which])[0]] = 60
        labels = number_by_first_user(labels)
        means = np.stack([right.u[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
        u = means[labels] - a.mean(axis=0)
        found = CollapsedPoint(
            u, right.dual, problem.objective(u), problem.gap(u, right.dual), labels
        )
        assert not certificate(problem, found).certified


def test_on_the_threshold_itself_nothing_is_proved():
    """Two points meet at lam w = |a_0 - a_1| / 2: there the next digit of lam decides."""
    a, w = np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.5], [0.5, 0.0]])
    result = weighted_convex(a, 5.0, w)
    assert not result.certified
    assert result.converged
    assert_allclose(result.u, [[1.5, 2.0]] * 2, atol=1e-7)


def test_neighbours_are_tied_both_ways_and_all_pairs_if_k_is_large():
    a = points(20, 2)
    near = np.argsort(cdist(a, a), axis=1)[:, 1:4]
    tied = np.zeros((20, 20), dtype=bool)
    tied[np.arange(20)[:, None], near] = True
    tied |= tied.T
    d2 = cdist(a, a) ** 2
    weights = np.where(tied, np.exp(-d2 / np.median(d2[tied])), 0)
    assert_allclose(gaussian_knn_weights(a, 3).toarray(), weights, rtol=1e-12)
    assert gaussian_knn_weights(a, 500).nnz == 20 * 19
    assert gaussian_knn_weights(a[:1]).shape == (1, 1)


def broken(i, j, value):
    w = ring(6)
    w[i, j] = value
    return w


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (np.ones((6, 5)), r"shape \(6, 5\), but there are 6 points"),
        (np.ones(6), r"shape \(6,\)"),
        (broken(0, 1, np.nan), r"weights\[0, 1\] is nan \(1 such entries\)"),
        (broken(2, 3, np.inf), r"weights\[2, 3\] is inf"),
        (broken(4, 1, -2.0), r"weights\[4, 1\] is -2 .* negative weight pushes"),
        (broken(1, 2, 0.5), r"\[1, 2\] is 0.5 and \[2, 1\] is 1 .*Symmetrise"),
        (sparse.csr_array(broken(5, 1, 0.25)), r"\[1, 5\] is 0 and \[5, 1\] is 0.25"),
    ],
)
def test_bad_weights_are_named(w, message):
    with pytest.raises(ValueError, match=message):
        weighted_convex(points(6), 1.0, w)


def test_weights_in_any_form_are_the_same_edges():
    w = ring(6) + 5 * np.eye(6)  # the diagonal ties nobody
    forms = [
        w,
        w.tolist(),
        *(sparse.coo_array(w).asformat(f) for f in ("csr", "csc", "lil", "dok")),
    ]
    for form in [*forms, sparse.csr_matrix(w), w.astype(np.float32), w.astype(int)]:
        edges = as_weights(form, 6)
        assert_array_equal(edges.toarray(), np.triu(ring(6)))
        assert np.all(edges.row < edges.col)


@pytest.mark.parametrize("lam", [-1.0, np.nan, np.inf, "auto"])
def test_a_lam_without_a_minimum_is_refused(lam):
    with pytest.raises(ValueError, match=r"lam=.* must be a finite number"):
        weighted_convex(points(6), lam, ring(6))


def test_a_graph_too_large_for_memory_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr("odcl.clustering.convex.weighted.MAX_DUAL_NUMBERS", 29)
    with pytest.raises(ValueError, match=r"15 positive weights in dim 2 .*Keep fewer weights"):
        weighted_convex(points(6), 1.0, np.ones((6, 6)))
