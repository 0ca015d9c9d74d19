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
from numbers import Real
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NearestNeighbors

from odcl._typing import Array, Bools, Floats, Ints
from odcl.clustering.choose_k import check_count
from odcl.clustering.labels import number_by_first_user, sum_by_cluster

# Penalties: of six schedules tried on five kNN problems of 1,000 points in dim 20, this one was
# among the quickest to 1e-6 and to 1e-9; growing to 1e5 took up to twice the CG steps. The number
# of ascent steps is a round figure, enough for a gap of 1e-2 to 1e-4; it is not tuned.
ASCENT_STEPS = 60
PENALTIES = (3.0, 5.0, 1e4)  # first, growth a round, largest: without unit, as z and u have one
NEWTON_STEPS = 15  # at most, a round
CG_STEPS = 500  # at most, a Newton step
FLOOR = 1e-13  # relative gap that rounding lets us see: rounds end there, certified or not,
CERTIFY_ROUNDS = 10  # or after so many rounds beyond tol

# Room that a flow is asked to leave on every edge of a cluster, as parts of the radius: little,
# since in a cluster of many points some are held by a thread.
MARGINS = (0.003, 0.0003)
FLOW_PENALTIES = (3.0, 30.0, 300.0, 3e3, 1e4, 1e4)

# Distances, as parts of the largest along an edge, under which two neighbours may be one point.
LADDER = (0.0, *(10.0**-k for k in range(9, 0, -1)), 1.0)

# One dual array; the solver holds about six of them.
MAX_DUAL_NUMBERS = 2**28


@dataclass(frozen=True, eq=False)
class WeightedResult:
    """Minimiser, clusters and their proof; clusters are numbered by first user.

    ``labels[i] == labels[j]`` if and only if the rows ``u[i]`` and ``u[j]`` are equal in every
    bit, and ``gap`` is that of this very ``u``.
    """

    labels: Ints  # (n_points,), holding 0..n_clusters-1
    centers: Floats  # (n_clusters, dim), the rows of u, each once
    u: Floats  # (n_points, dim)
    objective: float
    gap: float  # objective - gap <= optimum <= objective
    converged: bool  # gap <= tol * objective
    certified: bool  # the clusters are proved to be those of the minimiser, up to rounding
    n_iter: int  # Newton steps
    dual: Floats  # (n_edges, dim), the feasible z of the gap, for a warm start


@dataclass(frozen=True, eq=False)
class _Problem:
    """1/2 sum_i mass_i |a_i - u_i|^2 + sum_e radius_e |u_tail(e) - u_head(e)|."""

    a: Floats  # (n_points, dim)
    mass: Floats  # (n_points,)
    tail: Ints  # (n_edges,)
    head: Ints  # (n_edges,)
    radius: Floats  # (n_edges,)
    diff: Any  # D, sparse (n_edges, n_points)
    diff_t: Any  # its transpose, by rows

    def objective(self, u: Floats) -> float:
        fit = 0.5 * float(self.mass @ ((self.a - u) ** 2).sum(axis=1))
        return fit + float(self.radius @ _lengths(self.diff @ u))

    def gap(self, u: Floats, z: Floats) -> float:
        """The gap of the module's docstring, from terms that are not negative (unit masses)."""
        du = self.diff @ u
        off = u - self.a + self.diff_t @ z
        slack = self.radius * _lengths(du) - np.einsum("ed,ed->e", z, du)
        return 0.5 * float(np.vdot(off, off)) + float(np.maximum(slack, 0.0).sum())

    def components(self, edges: Bools) -> tuple[int, Ints]:
        """Connected components of the points under some of the edges."""
        tail, head = self.tail[edges], self.head[edges]
        shape = (len(self.a), len(self.a))
        graph = sparse.coo_array((np.ones(len(tail)), (tail, head)), shape=shape)
        n_components, labels = connected_components(graph, directed=False)
        return int(n_components), labels.astype(np.intp)


def weighted_convex(
    a: Floats,
    lam: float,
    weights: Any,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    certify: bool = True,
    warm: WeightedResult | None = None,
) -> WeightedResult:
    """Weighted convex clustering of ``a``, (n_points, dim), at one ``lam``.

    ``weights`` is symmetric, (n_points, n_points), dense or sparse: see
    :func:`gaussian_knn_weights`. Points without a path of positive weights between them never
    fuse, however large ``lam`` is. The solver stops at a gap of ``tol`` times the objective; with
    ``certify`` it goes on, at two to seven times the cost, until the clusters are proved or some
    rounds went by in vain (``certified`` says). ``max_iter`` bounds the Newton steps. ``warm`` is
    a result for the same points and weights at another ``lam``.

    **Which points are one cluster.** With u = a - D'z, an edge joins its ends if the last
    projection left it inside its ball (|z_e + sigma (Du)_e| <= r_e: by complementary slackness
    such an edge is fused at the optimum), or if |u_i - u_j| <= theta. For each theta on a ladder
    from 0 to the largest distance along an edge, the components so joined move to their means, and
    the theta whose point has the lowest objective is taken, the larger one in a tie. The
    threshold is thus chosen by the objective; it is no setting. Rows equal in every bit also count
    as one cluster (duplicates at lam = 0).

    **What proves them**: see :func:`_certificate`.

    The interval of Eq. (13) is for weights that are all 1. With other weights forces from outside
    act on some members of a cluster only, and it may split again as ``lam`` grows.
    """
    lam = _check_lam(lam)
    edges = as_weights(weights, len(a))
    shift = a.mean(axis=0)
    points, basis = _in_few_dimensions(a - shift)
    _check_size(edges.nnz, points.shape[1])
    problem = _problem(points, edges.row, edges.col, lam * edges.data)
    if lam == 0 or not np.any(problem.diff @ points):
        own = np.arange(len(a))
        zero = np.zeros((edges.nnz, points.shape[1]))
        found = _Solution(points, zero, problem.objective(points), 0.0, own, certified=True)
        return _result(a, found, own, tol, 0)
    found, n_iter = _solve(problem, _first_dual(problem, warm), tol, max_iter, certify)
    labels = found.labels
    rows = found.u[np.unique(labels, return_index=True)[1]]
    centers = (rows if basis is None else rows @ basis) + shift
    result = _result(centers, found, labels, tol, n_iter)
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


# -- weights ---------------------------------------------------------------------------------------


def gaussian_knn_weights(
    a: Floats, n_neighbors: int = 10, phi: float | str = "auto", *, connect: bool = False
) -> Any:
    """Gaussian weights on the graph of nearest neighbours: a sparse (n_points, n_points) csr_array.

        w_ij = exp(-phi |a_i - a_j|^2)  if i is among the n_neighbors nearest of j, or j of i

    "auto" is phi = 1 / (median of |a_i - a_j|^2 over the edges between different points): the
    middle edge weighs exp(-1), in whatever unit the points are. Edges so long that the exponential
    is 0 are no edges.

    The graph of well separated groups falls into parts, and parts never merge. ``connect`` joins
    them by the shortest edges that do (Boruvka's rounds, n_points^2 distances each), with the
    smallest weight of the graph: their own would be 0 to all purposes.
    """
    check_count("n_neighbors", n_neighbors, "each point is tied to that many nearest others")
    n_points = len(a)
    tail, head = _neighbor_pairs(a - a.mean(axis=0), min(int(n_neighbors), n_points - 1))
    d2 = ((a[tail] - a[head]) ** 2).sum(axis=1)  # subtract first: near points keep their digits
    w = np.exp(-_scale(phi, d2) * d2)
    graph = sparse.coo_array((w, (tail, head)), shape=(n_points, n_points)).tocsr()
    graph.eliminate_zeros()
    if connect and n_points > 1:
        graph = _connected(a, graph)
    return (graph + graph.T).tocsr()


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
    _refuse(w, ~np.isfinite(w.data), "and the objective would not be finite either")
    _refuse(w, w.data < 0, "and a negative weight pushes two points apart without end")
    w = w.tocsr()
    skew = abs(w - w.T).tocoo()
    # exp(-phi d^2) computed twice may differ in the last digits; a real asymmetry is larger.
    bad = np.flatnonzero(skew.data > 1e-10 * (w.max() if w.nnz else 0.0))
    if len(bad):
        i, j = int(skew.row[bad[0]]), int(skew.col[bad[0]])
        raise ValueError(
            f"weights are not symmetric: [{i}, {j}] is {w[i, j]:g} and [{j}, {i}] is {w[j, i]:g} "
            f"({len(bad)} such entries), but the penalty knows one weight a pair. Symmetrise "
            "them, e.g. by (w + w.T) / 2."
        )
    upper = sparse.triu((w + w.T) / 2, k=1, format="csr")
    upper.eliminate_zeros()
    return sparse.coo_array(upper)


def _refuse(w: Any, bad: Bools, why: str) -> None:
    at = np.flatnonzero(bad)
    if len(at):
        i, j, seen = w.row[at[0]], w.col[at[0]], w.data[at[0]]
        raise ValueError(
            f"weights[{i}, {j}] is {seen:g} ({len(at)} such entries), {why}. Weights are finite "
            "numbers from 0 on, 0 for a pair without a tie."
        )


def _scale(phi: float | str, d2: Floats) -> float:
    if phi == "auto":
        apart = d2[d2 > 0]
        return 1.0 / float(np.median(apart)) if len(apart) else 1.0
    if not isinstance(phi, Real) or not 0 <= float(phi) < np.inf:
        raise ValueError(
            f"phi={phi!r} is no decay of exp(-phi |a_i - a_j|^2): a far pair must not outweigh a "
            'near one. Give a number from 0 on (0: all weights 1), or "auto".'
        )
    return float(phi)


def _neighbor_pairs(a: Floats, k: int) -> tuple[Ints, Ints]:
    """Pairs (i, j), i < j, each once, with j among the k nearest of i or i of j.

    All distances, in chunks: 0.5 s for 10,000 points in dim 20, where trees take 2 to 3 s.
    """
    if k < 1:
        return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
    near = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(a).kneighbors()[1].ravel()
    own = np.repeat(np.arange(len(a)), k)
    pairs = np.unique(np.minimum(own, near) * len(a) + np.maximum(own, near))
    return pairs // len(a), pairs % len(a)


def _connected(a: Floats, graph: Any) -> Any:
    """Boruvka: each part but the largest takes its shortest edge out, until one part is left."""
    least = graph.data.min() if graph.nnz else 1.0
    while True:
        n_parts, part = connected_components(graph, directed=False)
        if n_parts == 1:
            return graph
        bridges = set()
        for k in np.argsort(np.bincount(part), kind="stable")[:-1]:
            inside, outside = np.flatnonzero(part == k), np.flatnonzero(part != k)
            batch = max(1, 2**23 // len(outside))  # 64 MB of distances
            best = (np.inf, 0, 0)
            for start in range(0, len(inside), batch):
                rows = inside[start : start + batch]
                d2 = cdist(a[rows], a[outside], "sqeuclidean")
                i, j = np.unravel_index(d2.argmin(), d2.shape)
                best = min(best, (float(d2[i, j]), int(rows[i]), int(outside[j])))
            bridges.add((min(best[1:]), max(best[1:])))
        tail, head = np.array(sorted(bridges)).T
        new = sparse.coo_array((np.full(len(tail), least), (tail, head)), shape=graph.shape)
        graph = (graph + new).tocsr()


# -- the problem on arrays -------------------------------------------------------------------------


def _check_lam(lam: float) -> float:
    if not isinstance(lam, Real) or not 0 <= float(lam) < np.inf:
        raise ValueError(
            f"lam={lam!r} is no strength of the penalty: below 0 the objective has no minimum. "
            "Give a finite number from 0 (every point for itself) on."
        )
    return float(lam)


def _check_size(n_edges: int, dim: int) -> None:
    if n_edges * dim > MAX_DUAL_NUMBERS:
        raise ValueError(
            f"{n_edges} positive weights in dim {dim} ask for arrays of {n_edges * dim:.2g} "
            f"numbers each, {8e-9 * n_edges * dim:.3g} GB, and the solver holds about six. "
            "Keep fewer weights, e.g. gaussian_knn_weights(a, n_neighbors=10)."
        )


def _problem(
    a: Floats, tail: Array, head: Array, radius: Floats, mass: Floats | None = None
) -> _Problem:
    n_edges, n_points = len(tail), len(a)
    ends = np.stack([tail, head], axis=1).ravel()
    signs = np.tile([1.0, -1.0], n_edges)
    diff = sparse.csr_array(
        (signs, ends, np.arange(0, 2 * n_edges + 1, 2)), shape=(n_edges, n_points)
    )
    mass = np.ones(n_points) if mass is None else mass
    return _Problem(a, mass, tail, head, radius, diff, diff.T.tocsr())


def _in_few_dimensions(a: Floats) -> tuple[Floats, Floats | None]:
    """Coordinates in the span of the rows if dim > n_points: exact, as inner products are kept."""
    if a.shape[1] <= len(a):
        return a, None
    q, r = np.linalg.qr(a.T)
    return np.ascontiguousarray(r.T), q.T


def _lengths(x: Floats) -> Floats:
    return np.sqrt(np.einsum("ed,ed->e", x, x))


def _onto_balls(y: Floats, radius: Floats) -> Floats:
    """Shrink the rows of ``y`` in place to lengths of at most ``radius``; how much, (n_edges,)."""
    length = _lengths(y)
    shrink = np.ones(len(y))
    np.divide(radius, length, out=shrink, where=length > radius)
    y *= shrink[:, None]
    return shrink


def _result(
    centers: Floats, found: _Solution, labels: Ints, tol: float, n_iter: int
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
        one, centers, centers[one], found.objective, found.gap, converged, found.certified,
        n_iter, found.z,
    )  # fmt: skip


# -- the method ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Solution:
    """A collapsed point, a feasible dual point and the gap between them."""

    u: Floats
    z: Floats
    objective: float
    gap: float
    labels: Ints
    certified: bool = False
    flow: Floats | None = None  # where the last try for a certificate of these labels ended


def _solve(
    problem: _Problem, z: Floats, tol: float, max_iter: int, certify: bool
) -> tuple[_Solution, int]:
    """Dual ascent, then rounds of the augmented Lagrangian, a collapsed point after each."""
    z, fused = _ascend(problem, z, ASCENT_STEPS)
    u = problem.a - problem.diff_t @ z
    best = _collapse(problem, z, fused)
    penalty, growth, largest = PENALTIES
    n_iter, tried, extra = 0, -1, -1
    while True:
        good = best.gap <= tol * best.objective
        extra += good
        n_clusters = int(best.labels.max()) + 1
        if good and certify and (tried == n_clusters or best.gap <= 1e-3 * tol * best.objective):
            best = _certificate(problem, best)
        tried = n_clusters
        exhausted = extra >= CERTIFY_ROUNDS or best.gap <= FLOOR * best.objective
        done = good and (not certify or best.certified or exhausted)
        if done or n_iter >= max_iter:
            return best, n_iter
        u, z, fused, steps = _newton_round(problem, u, z, penalty, max_iter - n_iter)
        n_iter += steps
        penalty = min(growth * penalty, largest)
        best = _better(problem, _collapse(problem, z, fused), best)


def _better(problem: _Problem, new: _Solution, old: _Solution) -> _Solution:
    """The lower of two points, with the better of their dual points; a flow for its labels."""
    point, other = (new, old) if new.objective <= old.objective else (old, new)
    flow = old.flow if np.array_equal(new.labels, old.labels) else point.flow
    return replace(_tighter(problem, point, other.z), flow=flow)


def _tighter(problem: _Problem, found: _Solution, z: Floats) -> _Solution:
    gap = problem.gap(found.u, z)
    return replace(found, z=z, gap=gap) if gap < found.gap else found


def _first_dual(problem: _Problem, warm: WeightedResult | None) -> Floats:
    shape = (len(problem.radius), problem.a.shape[1])
    if warm is None:
        return np.zeros(shape)
    if warm.dual.shape != shape:
        raise ValueError(
            f"warm holds {warm.dual.shape[0]} weights in dim {warm.dual.shape[1]} and this problem "
            f"{shape[0]} in dim {shape[1]}: it is of other points or weights. Leave warm out."
        )
    z = warm.dual.copy()
    _onto_balls(z, problem.radius)
    return z


def _ascend(problem: _Problem, z: Floats, n_steps: int) -> tuple[Floats, Bools]:
    """Accelerated projected ascent on the dual, restarted when momentum points back.

    The step of edge (i, j) is 1 / (deg_i + deg_j): DD' has that absolute row sum, so the steps
    majorise it, and a hub slows down its own edges only.
    """
    degree = np.bincount(problem.tail, minlength=len(problem.a)) + np.bincount(
        problem.head, minlength=len(problem.a)
    )
    step = 1.0 / (degree[problem.tail] + degree[problem.head])[:, None]
    y, t = z.copy(), 1.0
    shrink = np.ones(len(z))
    for _ in range(n_steps):
        new = problem.diff @ (problem.a - problem.diff_t @ y)
        new *= step
        new += y
        shrink = _onto_balls(new, problem.radius)
        momentum = new - z
        y -= new
        if np.vdot(y, momentum) > 0:
            t = 1.0
        grown = (1 + np.sqrt(1 + 4 * t * t)) / 2
        momentum *= (t - 1) / grown
        momentum += new
        y, z, t = momentum, new, grown
    return z, shrink == 1


def _newton_round(
    problem: _Problem, u: Floats, z: Floats, penalty: float, max_steps: int
) -> tuple[Floats, Floats, Bools, int]:
    """One round of the augmented Lagrangian: minimise over u, by semi-smooth Newton steps,

        1/2 |u - a|^2 + sum_e max over |q| <= r_e of <q, (Du)_e> - |q - z_e|^2 / (2 penalty)

    and take the maximising q, the projection of z + penalty Du, for the new z. The minimum is
    close enough when its gradient moves z + penalty Du less than the round moved z.
    """
    a, n_steps = problem.a, 0

    def value(u: Floats) -> tuple[float, Floats, Floats]:
        du = problem.diff @ u
        q = z + penalty * du
        shrink = _onto_balls(q, problem.radius)
        fit = 0.5 * np.vdot(u - a, u - a) + np.vdot(q, du)
        return float(fit - np.vdot(q - z, q - z) / (2 * penalty)), q, shrink

    now, q, shrink = value(u)
    floor = 1e-15 * np.sqrt(problem.objective(a) + np.vdot(a, a))
    while n_steps < min(NEWTON_STEPS, max_steps):
        grad = u - a + problem.diff_t @ q
        size = np.linalg.norm(grad)
        if size <= max(0.3 * np.linalg.norm(q - z) / penalty, floor):
            break
        outside = np.flatnonzero(shrink < 1)
        axis = q[outside] / problem.radius[outside, None]
        step = _newton_step(problem, problem.mass, penalty * shrink, outside, axis, grad, 0.03)
        slope, t = float(np.vdot(grad, step)), 1.0
        while True:
            trial, q, shrink = value(u + t * step)
            if trial <= now + 1e-4 * t * slope + 1e-14 * abs(now) or t < 1e-6:
                break
            t /= 2
        u, now = u + t * step, trial
        n_steps += 1
    return u, q, shrink == 1, max(n_steps, 1)


def _newton_step(
    problem: _Problem,
    mass: Floats,
    stiffness: Floats,
    turning: Ints,
    axis: Floats,
    grad: Floats,
    rtol: float,
) -> Floats:
    """Solve H x = -grad by conjugate gradients with H's diagonal, to ``rtol`` in that norm.

        H = diag(mass) + D' diag(stiffness_e (I - axis_e axis_e')) D

    where only the edges ``turning`` have an axis, of length 1: (len(turning), dim).
    """
    own = sparse.diags_array(mass)
    laplacian = (problem.diff_t @ sparse.diags_array(stiffness) @ problem.diff + own).tocsr()
    axis = axis * np.sqrt(stiffness[turning])[:, None]
    diff = problem.diff[turning]
    diff_t = diff.T.tocsr()
    diagonal = np.maximum(laplacian.diagonal()[:, None] - abs(diff_t) @ axis**2, mass[:, None])

    def times(x: Floats) -> Floats:
        along = np.einsum("ed,ed->e", diff @ x, axis)
        return laplacian @ x - diff_t @ (along[:, None] * axis)

    return _conjugate_gradients(times, diagonal, -grad, rtol)


def _conjugate_gradients(times: Any, diagonal: Floats, right: Floats, rtol: float) -> Floats:
    """x with times(x) = right; coordinates with a diagonal of 0 stay 0."""
    inverse = np.zeros_like(diagonal)
    np.divide(1.0, diagonal, out=inverse, where=diagonal > 0)
    x, residual = np.zeros_like(right), right.copy()
    scaled = inverse * residual
    direction, size = scaled.copy(), float(np.vdot(residual, scaled))
    goal = rtol**2 * size
    for _ in range(CG_STEPS):
        if size <= goal:
            break
        image = times(direction)
        curvature = float(np.vdot(direction, image))
        if curvature <= 0:  # only rounding is left
            break
        x += (size / curvature) * direction
        residual -= (size / curvature) * image
        scaled = inverse * residual
        last, size = size, float(np.vdot(residual, scaled))
        direction *= size / last
        direction += scaled
    return x


# -- clusters --------------------------------------------------------------------------------------


def _collapse(problem: _Problem, z: Floats, fused: Bools) -> _Solution:
    """The lowest of the points in which near neighbours are one: the rule of weighted_convex."""
    u = problem.a - problem.diff_t @ z
    lengths = _lengths(problem.diff @ u)
    best: tuple[float, Floats, Ints] | None = None
    last = -1
    for theta in np.multiply(LADDER, lengths.max()):
        n_clusters, labels = problem.components(fused | (lengths <= theta))
        if n_clusters == last:  # the ladder is nested: the same number is the same partition
            continue
        last = n_clusters
        point = (sum_by_cluster(u, labels) / np.bincount(labels)[:, None])[labels]
        objective = problem.objective(point)
        if best is None or objective <= best[0]:
            best = objective, point, labels
    assert best is not None
    objective, point, labels = best
    return _Solution(point, z, objective, problem.gap(point, z), labels)


def _certificate(problem: _Problem, found: _Solution) -> _Solution:
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
    apart = _lengths(du)
    ball = delta / np.sqrt(sizes)
    balls = ball[labels[problem.tail]] + ball[labels[problem.head]]
    distinct = bool(np.all(apart[between] > balls[between]))
    if not distinct:
        sharp = replace(found, u=u, objective=problem.objective(u), gap=problem.gap(u, found.z))
        return _better(problem, sharp, found)
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
    sharp = _Solution(u, z, problem.objective(u), problem.gap(u, z), labels, flow=z)
    if proved.all():
        return replace(_tighter(problem, sharp, found.z), certified=True)
    return replace(_better(problem, sharp, found), flow=z)


def _proved(problem: _Problem, u: Floats, z: Floats, blur: Floats, labels: Ints) -> Bools:
    """For each cluster, whether its edges with room for eps_V connect it."""
    lengths = _lengths(z)
    off = _lengths(problem.a - u - problem.diff_t @ z) + blur
    off += abs(problem.diff_t) @ (4 * np.finfo(np.float64).eps * lengths)
    eps = np.bincount(labels, weights=off)[labels]
    within = labels[problem.tail] == labels[problem.head]
    room = within & (problem.radius - lengths >= eps[problem.tail])
    parts = problem.components(room)[1]
    first = np.unique(parts, return_index=True)[1]  # one point a part
    return np.bincount(labels[first]) == 1


def _reduced(problem: _Problem, labels: Ints, sizes: Floats) -> _Problem:
    """The collapsed problem: a mean and a mass for each cluster, weights between them summed."""
    shape = (len(sizes), len(sizes))
    ends = np.sort(np.stack([labels[problem.tail], labels[problem.head]]), axis=0)
    kept = ends[0] != ends[1]
    summed = sparse.coo_array((problem.radius[kept], tuple(ends[:, kept])), shape=shape)
    summed.sum_duplicates()
    means = sum_by_cluster(problem.a, labels) / sizes[:, None]
    return _problem(means, summed.row, summed.col, summed.data, sizes)


def _polish(reduced: _Problem, centers: Floats) -> tuple[Floats, float]:
    """Newton's method where all neighbouring centres differ; the point and its delta."""
    best, smallest = centers, np.inf
    objective = reduced.objective(centers)
    every = np.arange(len(reduced.radius))
    for _ in range(NEWTON_STEPS):
        du = reduced.diff @ centers
        apart = _lengths(du)
        if not np.all(apart > 0):
            break
        axis = du / apart[:, None]
        grad = reduced.mass[:, None] * (centers - reduced.a)
        grad += reduced.diff_t @ (reduced.radius[:, None] * axis)
        delta = float(np.sqrt((_lengths(grad) ** 2 / reduced.mass).sum()))
        if delta >= smallest and delta <= 1e-10 * np.sqrt(objective):
            break  # rounding
        if delta < smallest:
            best, smallest = centers, delta
        if delta <= 1e-15 * np.sqrt(objective):
            break
        step = _newton_step(reduced, reduced.mass, reduced.radius / apart, every, axis, grad, 1e-4)
        t = 1.0
        while t > 1e-6 and reduced.objective(centers + t * step) > objective * (1 + 1e-14):
            t /= 2
        centers = centers + t * step
        objective = reduced.objective(centers)
    return best, smallest


def _flow(problem: _Problem, u: Floats, z: Floats, members: Bools, margin: float) -> Floats:
    """A flow that balances the clusters of ``members``, if it can, with room on all edges.

    Such a flow is the dual point of another problem of our kind: points a - u - (forces from
    outside) on the clusters' own edges, whose minimiser is 0 if the flow exists. Radii less the
    margin leave room on every edge; the small rest of the balance is then sent through the room.
    """
    own = (u[problem.tail] == u[problem.head]).all(axis=1) & members[problem.tail]
    forces = problem.diff_t @ np.where(own[:, None], 0.0, z)
    number = np.cumsum(members) - 1
    tail, head, radius = number[problem.tail[own]], number[problem.head[own]], problem.radius[own]
    rest = _problem((problem.a - u - forces)[members], tail, head, (1 - margin) * radius)
    flow = z[own]
    _onto_balls(flow, rest.radius)
    flow, _ = _ascend(rest, flow, ASCENT_STEPS)
    off = rest.a - rest.diff_t @ flow
    for penalty in FLOW_PENALTIES:
        off, flow, _, _ = _newton_round(rest, off, flow, penalty, NEWTON_STEPS)
        off = rest.a - rest.diff_t @ flow
        if np.abs(off).max() <= 1e-9 * np.abs(rest.a).max():
            break
    cluster = rest.components(np.ones(len(radius), dtype=bool))[1]
    means = sum_by_cluster(off, cluster) / np.bincount(cluster)[:, None]
    off -= means[cluster]  # no flow carries a mean, and CG would run after it for ever
    room = radius - _lengths(flow)
    laplacian = (rest.diff_t @ sparse.diags_array(room) @ rest.diff).tocsr()
    diagonal = np.repeat(laplacian.diagonal()[:, None], off.shape[1], axis=1)
    flow += room[:, None] * (
        rest.diff @ _conjugate_gradients(laplacian.__matmul__, diagonal, off, 1e-12)
    )
    _onto_balls(flow, radius)
    z = z.copy()
    z[own] = flow
    return z
