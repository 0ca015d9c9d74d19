"""Weighted convex clustering (the remark after Lemma 1), for sparse weights and many points.

    minimise over u:  1/2 sum_i |a_i - u_i|^2 + lam * sum_{i<j} w_ij |u_i - u_j|

One edge e = (i, j), i < j, for each positive weight; r_e = lam w_e; (Du)_e = u_i - u_j. The dual is

    maximise over z:  1/2 |a|^2 - 1/2 |a - D'z|^2   subject to  |z_e| <= r_e

and u = a - D'z joins the two optima. For any u and any feasible z the gap

    1/2 |u - (a - D'z)|^2 + sum_e (r_e |(Du)_e| - <z_e, (Du)_e>)

bounds the error of the objective at u, and 1/2 |u - u*|^2 as well (strong convexity).

Method: accelerated projected ascent on the dual (AMA of Chi & Lange 2015, with a step per edge)
gives a rough z; an augmented Lagrangian with semi-smooth Newton steps (SSNAL of Sun, Toh & Yuan
2021) sharpens it. After each round the points that coincide are collapsed, and the collapsed
problem, which keeps its form with masses, says how good they are; last comes a certificate.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NearestNeighbors

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.convex.estimator import ConvexResult, check_lam
from odcl.clustering.convex.weighted_newton import (
    ASCENT_STEPS,
    NEWTON_STEPS,
    CollapsedPoint,
    EdgeProblem,
    ascend,
    better,
    by_diagonal,
    collapse,
    in_few_dimensions,
    lengths,
    newton_round,
    newton_step,
    onto_balls,
    problem_of,
    tighter,
)
from odcl.clustering.labels import check_count, number_by_first_user, sum_by_cluster

# Penalties: of six schedules tried on five kNN problems of 1,000 points in dim 20, this one was
# among the quickest to 1e-6 and to 1e-9; growing to 1e5 took up to twice the CG steps.
PENALTIES = (3.0, 5.0, 1e4)  # first, growth per round, largest: without unit, as z and u have one
FLOOR = 1e-13  # relative gap that rounding lets us see: rounds end there, certified or not,
CERTIFY_ROUNDS = 10  # or after this many rounds beyond tol

# Room that a flow is asked to leave on every edge of a cluster, as parts of the radius: little,
# since in a cluster of many points some are held by a thread.
MARGINS = (0.003, 0.0003)
FLOW_PENALTIES = (3.0, 30.0, 300.0, 3e3, 1e4, 1e4)

# One dual array; the solver holds about six of them.
MAX_DUAL_NUMBERS = 2**28


@dataclass(frozen=True, eq=False)
class WeightedResult(ConvexResult):
    """Minimiser, clusters and their proof, and the dual point of the gap."""

    converged: bool  # gap <= tol * objective
    dual: Floats  # (n_edges, dim), the feasible z of the gap


def weighted_convex(
    a: Floats,
    lam: float,
    weights: Any,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
) -> WeightedResult:
    """Weighted convex clustering of ``a``, (n_points, dim), at one ``lam``.

    ``weights`` is symmetric, (n_points, n_points), dense or sparse: see
    :func:`gaussian_knn_weights`. Points without a path of positive weights between them never
    fuse, however large ``lam`` is. From a gap of ``tol`` times the objective on, the solver goes on
    until the clusters are proved or some rounds brought nothing (``certified`` says). ``max_iter``
    bounds the Newton steps.

    **Which points are one cluster.** With u = a - D'z, an edge joins its ends if the last
    projection left it inside its ball (|z_e + sigma (Du)_e| <= r_e: by complementary slackness
    such an edge is fused at the optimum), or if |u_i - u_j| <= theta. For each theta on a ladder
    from 0 to the largest distance along an edge, the components so joined move to their means, and
    the theta whose point has the lowest objective is taken, the larger one in a tie. The
    threshold is thus chosen by the objective; it is no setting. Rows equal in every bit also count
    as one cluster (duplicates at lam = 0).

    **What proves them**: see :func:`certificate`.

    The interval of Eq. (13) is for weights that are all 1. With other weights forces from outside
    act on some members of a cluster only, and it may split again as ``lam`` grows.
    """
    lam = check_lam(lam)
    edges = as_weights(weights, len(a))
    shift = a.mean(axis=0)
    points, basis = in_few_dimensions(a - shift)
    n_numbers = edges.nnz * points.shape[1]
    if n_numbers > MAX_DUAL_NUMBERS:
        raise ValueError(
            f"{edges.nnz} positive weights in dim {points.shape[1]} ask for arrays of "
            f"{n_numbers:.2g} numbers each, {8e-9 * n_numbers:.3g} GB, and the solver holds about "
            "six. Keep fewer weights, e.g. gaussian_knn_weights(a, n_neighbors=10)."
        )
    problem = problem_of(points, edges.row, edges.col, lam * edges.data)
    if lam == 0 or not np.any(problem.diff @ points):
        own = np.arange(len(a))
        zero = np.zeros((edges.nnz, points.shape[1]))
        found = CollapsedPoint(points, zero, problem.objective(points), 0.0, own, certified=True)
        return _result(a, found, own, lam, tol, 0)
    found, n_iter = _solve(problem, tol, max_iter)
    labels = found.labels
    rows = found.u[np.unique(labels, return_index=True)[1]]
    centers = (rows if basis is None else rows @ basis) + shift
    result = _result(centers, found, labels, lam, tol, n_iter)
    if not result.converged:
        warnings.warn(
            f"Weighted convex clustering stopped after {n_iter} Newton steps with a gap of "
            f"{result.gap:.3g}, {result.gap / result.objective:.1e} of the objective "
            f"(tol={tol:g}): the clusters may not be those of the minimiser. Raise "
            f"max_iter={max_iter}, or tol if this gap will do.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return result


def _result(
    centers: Floats, found: CollapsedPoint, labels: Ints, lam: float, tol: float, n_iter: int
) -> WeightedResult:
    """Clusters whose centres are equal in every bit become one, and are numbered by first user."""
    centers = centers + 0.0  # -0.0 is 0.0
    one = number_by_first_user(
        np.unique(centers, axis=0, return_inverse=True)[1].reshape(-1)[labels]
    )
    first = np.unique(one, return_index=True)[1]
    centers = centers[labels[first]]
    converged = found.gap <= tol * found.objective
    return WeightedResult(
        one, centers, lam, found.objective, found.gap, found.certified, n_iter, converged, found.z
    )


def _solve(problem: EdgeProblem, tol: float, max_iter: int) -> tuple[CollapsedPoint, int]:
    """Dual ascent, then rounds of the augmented Lagrangian, a collapsed point after each."""
    zero = np.zeros((len(problem.radius), problem.a.shape[1]))
    z, fused = ascend(problem, zero, ASCENT_STEPS)
    u = problem.a - problem.diff_t @ z
    best = collapse(problem, z, fused)
    penalty, growth, largest = PENALTIES
    n_iter, tried, extra = 0, -1, -1
    while True:
        good = best.gap <= tol * best.objective
        extra += good
        n_clusters = int(best.labels.max()) + 1
        if good and (tried == n_clusters or best.gap <= 1e-3 * tol * best.objective):
            best = certificate(problem, best)
        tried = n_clusters
        exhausted = extra >= CERTIFY_ROUNDS or best.gap <= FLOOR * best.objective
        done = good and (best.certified or exhausted)
        if done or n_iter >= max_iter:
            return best, n_iter
        u, z, fused, steps = newton_round(problem, u, z, penalty, max_iter - n_iter)
        n_iter += steps
        penalty = min(growth * penalty, largest)
        best = better(problem, collapse(problem, z, fused), best)


def certificate(problem: EdgeProblem, found: CollapsedPoint) -> CollapsedPoint:
    """Sharpen a collapsed point and try to prove its clusters.

    1. Newton's method on the collapsed problem (masses n_k, weights summed) brings its centres c
       within |c_k - c*_k| <= delta / sqrt(n_k) of its minimiser c*, delta the norm of the gradient
       in the masses' inner product (strong convexity). Neighbouring centres farther apart than
       their two radii are certainly different.
    2. Inside a cluster V the forces must balance: with z_e = r_e (c_k - c_l) / |c_k - c_l| on edges
       between clusters, a flow on the edges of V, |z_e| <= r_e, has to carry a_i - c_k - (forces
       from outside). A flow at hand does so but for a residual; this, plus what step 1's error may
       do to the forces, sums to some eps_V. If the edges with room r_e - |z_e| >= eps_V connect V,
       it can be routed along them: an exact flow exists, and V is one point of the minimiser.
       The z at hand comes first, then :func:`_flow` for the clusters that it leaves open.

    Both hold up to rounding of the sums, which is counted into eps_V to first order. A partition
    that passes is that of the minimiser: with the exact flow, c* satisfies all its conditions.
    """
    labels = found.labels
    sizes = np.bincount(labels).astype(np.float64)
    between = labels[problem.tail] != labels[problem.head]
    reduced = _reduced(problem, labels, sizes)
    start = sum_by_cluster(found.u, labels) / sizes[:, None]
    centers, delta = _polish(reduced, start)
    u = centers[labels]
    du = problem.diff @ u
    apart = lengths(du)
    ball = delta / np.sqrt(sizes)
    balls = ball[labels[problem.tail]] + ball[labels[problem.head]]
    distinct = bool(np.all(apart[between] > balls[between]))
    if not distinct:
        sharp = replace(found, u=u, objective=problem.objective(u), gap=problem.gap(u, found.z))
        return better(problem, sharp, found)
    z = (found.z if found.flow is None else found.flow).copy()
    z[between] = du[between] * (problem.radius[between] / apart[between])[:, None]
    turned = np.zeros(len(z))
    np.divide(2 * problem.radius * balls, apart, out=turned, where=between)
    blur = ball[labels] + abs(problem.diff_t) @ turned
    proved = _proved(problem, u, z, blur, labels)
    for margin in MARGINS:
        if proved.all():
            break
        trial = _flow(problem, u, z, ~proved[labels], margin)
        now = _proved(problem, u, trial, blur, labels) & ~proved
        edges = ~between & now[labels[problem.tail]]
        z[edges] = trial[edges]
        proved |= now
    sharp = CollapsedPoint(u, z, problem.objective(u), problem.gap(u, z), labels, flow=z)
    if proved.all():
        return replace(tighter(problem, sharp, found.z), certified=True)
    return replace(better(problem, sharp, found), flow=z)


def _proved(problem: EdgeProblem, u: Floats, z: Floats, blur: Floats, labels: Ints) -> Bools:
    """For each cluster, whether its edges with room for eps_V connect it."""
    used = lengths(z)
    off = lengths(problem.a - u - problem.diff_t @ z) + blur
    off += abs(problem.diff_t) @ (4 * np.finfo(np.float64).eps * used)
    eps = np.bincount(labels, weights=off)[labels]
    within = labels[problem.tail] == labels[problem.head]
    room = within & (problem.radius - used >= eps[problem.tail])
    parts = problem.components(room)[1]
    first = np.unique(parts, return_index=True)[1]  # one point per part
    return np.bincount(labels[first]) == 1


def _reduced(problem: EdgeProblem, labels: Ints, sizes: Floats) -> EdgeProblem:
    """The collapsed problem: a mean and a mass for each cluster, weights between them summed."""
    shape = (len(sizes), len(sizes))
    ends = np.sort(np.stack([labels[problem.tail], labels[problem.head]]), axis=0)
    kept = ends[0] != ends[1]
    summed = sparse.coo_array((problem.radius[kept], tuple(ends[:, kept])), shape=shape)
    summed.sum_duplicates()
    means = sum_by_cluster(problem.a, labels) / sizes[:, None]
    return problem_of(means, summed.row, summed.col, summed.data, sizes)


def _polish(reduced: EdgeProblem, centers: Floats) -> tuple[Floats, float]:
    """Newton's method where all neighbouring centres differ; the point and its delta."""
    best, smallest = centers, np.inf
    objective = reduced.objective(centers)
    every = np.arange(len(reduced.radius))
    for _ in range(NEWTON_STEPS):
        du = reduced.diff @ centers
        apart = lengths(du)
        if not np.all(apart > 0):
            break
        axis = du / apart[:, None]
        grad = reduced.mass[:, None] * (centers - reduced.a)
        grad += reduced.diff_t @ (reduced.radius[:, None] * axis)
        delta = float(np.sqrt((lengths(grad) ** 2 / reduced.mass).sum()))
        if delta >= smallest and delta <= 1e-10 * np.sqrt(objective):
            break  # rounding
        if delta < smallest:
            best, smallest = centers, delta
        if delta <= 1e-15 * np.sqrt(objective):
            break
        step = newton_step(reduced, reduced.mass, reduced.radius / apart, every, axis, grad, 1e-4)
        t = 1.0
        while t > 1e-6 and reduced.objective(centers + t * step) > objective * (1 + 1e-14):
            t /= 2
        centers = centers + t * step
        objective = reduced.objective(centers)
    return best, smallest


def _flow(problem: EdgeProblem, u: Floats, z: Floats, members: Bools, margin: float) -> Floats:
    """A flow that balances the clusters of ``members``, if it can, with room on all edges.

    Such a flow is the dual point of another problem of our kind: points a - u - (forces from
    outside) on the clusters' own edges, whose minimiser is 0 if the flow exists. Radii less the
    margin leave room on every edge; the small rest of the balance is then sent through the room.
    """
    own = (u[problem.tail] == u[problem.head]).all(axis=1) & members[problem.tail]
    forces = problem.diff_t @ np.where(own[:, None], 0.0, z)
    number = np.cumsum(members) - 1
    tail, head, radius = number[problem.tail[own]], number[problem.head[own]], problem.radius[own]
    rest = problem_of((problem.a - u - forces)[members], tail, head, (1 - margin) * radius)
    flow = z[own]
    onto_balls(flow, rest.radius)
    flow, _ = ascend(rest, flow, ASCENT_STEPS)
    off = rest.a - rest.diff_t @ flow
    for penalty in FLOW_PENALTIES:
        off, flow, _, _ = newton_round(rest, off, flow, penalty, NEWTON_STEPS)
        off = rest.a - rest.diff_t @ flow
        if np.abs(off).max() <= 1e-9 * np.abs(rest.a).max():
            break
    cluster = rest.components(np.ones(len(radius), dtype=bool))[1]
    means = sum_by_cluster(off, cluster) / np.bincount(cluster)[:, None]
    off -= means[cluster]  # no flow carries a mean, and CG would run after it for ever
    room = radius - lengths(flow)
    laplacian = (rest.diff_t @ sparse.diags_array(room) @ rest.diff).tocsr()
    diagonal = np.repeat(laplacian.diagonal()[:, None], off.shape[1], axis=1)
    flow += room[:, None] * (rest.diff @ by_diagonal(laplacian.__matmul__, diagonal, off, 1e-12))
    onto_balls(flow, radius)
    z = z.copy()
    z[own] = flow
    return z


def gaussian_knn_weights(a: Floats, n_neighbors: int = 10) -> Any:
    """Gaussian weights on the graph of nearest neighbours: a sparse (n_points, n_points) csr_array.

        w_ij = exp(-|a_i - a_j|^2 / scale)  if i is among the n_neighbors nearest of j, or j of i

    with the median of |a_i - a_j|^2 over the edges between different points as the scale: the
    middle edge weighs exp(-1), whatever the unit of the points. Edges so long that the
    exponential is 0 are left out. The graph of well separated groups falls into parts, and parts
    never merge.
    """
    check_count("n_neighbors", n_neighbors, "each point is tied to that many nearest others")
    if len(a) == 1:
        return sparse.csr_array((1, 1))
    near = NearestNeighbors(n_neighbors=min(int(n_neighbors), len(a) - 1), algorithm="brute")
    # All distances, in chunks: 0.5 s for 10,000 points in dim 20, where trees take 2 to 3 s.
    graph = near.fit(a - a.mean(axis=0)).kneighbors_graph()
    pairs = sparse.triu(graph + graph.T, k=1, format="coo")  # each once
    tail, head = pairs.row, pairs.col
    d2 = ((a[tail] - a[head]) ** 2).sum(axis=1)  # subtract first: near points keep their digits
    w = np.exp(-d2 / (np.median(d2[d2 > 0]) if d2.any() else 1.0))
    graph = sparse.coo_array((w, (tail, head)), shape=graph.shape).tocsr()
    graph.eliminate_zeros()
    return graph + graph.T


def as_weights(weights: Any, n_points: int) -> Any:
    """The edges of a weight matrix, each once: a coo_array with row < col and positive entries.

    ``weights`` is (n_points, n_points), a dense array or any SciPy sparse matrix, symmetric,
    finite and not negative; the diagonal is ignored. Shape comes first, before anything is copied.
    """
    if not sparse.issparse(weights):
        weights = np.asarray(weights)
    if weights.shape != (n_points, n_points):
        raise ValueError(
            f"weights has shape {weights.shape}, but there are {n_points} points and each pair has "
            f"one weight. Give a matrix of shape ({n_points}, {n_points}), e.g. "
            "gaussian_knn_weights(a)."
        )
    w = sparse.csr_array(weights, dtype=np.float64).tocoo()
    off = w.row != w.col
    w = sparse.coo_array((w.data[off], (w.row[off], w.col[off])), shape=w.shape)
    w.sum_duplicates()
    for bad, why in (
        (~np.isfinite(w.data), "the objective would not be finite either"),
        (w.data < 0, "a negative weight pushes two points apart without end"),
    ):
        if bad.any():
            at = int(bad.argmax())
            raise ValueError(
                f"weights[{w.row[at]}, {w.col[at]}] is {w.data[at]:g} ({bad.sum()} such entries), "
                f"and {why}. Weights are finite numbers from 0 on, 0 for a pair without a tie."
            )
    w = w.tocsr()
    skew = abs(w - w.T).tocoo()
    # exp(-phi d^2) computed twice may differ in the last digits; a real asymmetry is larger.
    bad = np.flatnonzero(skew.data > 1e-10 * (w.max() if w.nnz else 0.0))
    if len(bad):
        i, j = int(skew.row[bad[0]]), int(skew.col[bad[0]])
        raise ValueError(
            f"weights are not symmetric: [{i}, {j}] is {w[i, j]:g} and [{j}, {i}] is {w[j, i]:g} "
            f"({len(bad)} such entries), but the penalty has one weight per pair. Symmetrise "
            "them, e.g. by (w + w.T) / 2."
        )
    upper = sparse.triu((w + w.T) / 2, k=1, format="csr")
    upper.eliminate_zeros()
    return sparse.coo_array(upper)
