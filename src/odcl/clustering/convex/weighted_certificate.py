"""The proof that the clusters of a weighted problem are those of its minimiser."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.convex.weighted_newton import (
    ASCENT_STEPS,
    NEWTON_STEPS,
    Problem,
    Solution,
    ascend,
    better,
    conjugate_gradients,
    lengths,
    newton_round,
    newton_step,
    onto_balls,
    problem_of,
    tighter,
)
from odcl.clustering.labels import sum_by_cluster

# Room that a flow is asked to leave on every edge of a cluster, as parts of the radius: little,
# since in a cluster of many points some are held by a thread.
MARGINS = (0.003, 0.0003)
FLOW_PENALTIES = (3.0, 30.0, 300.0, 3e3, 1e4, 1e4)


def certificate(problem: Problem, found: Solution) -> Solution:
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
    sharp = Solution(u, z, problem.objective(u), problem.gap(u, z), labels, flow=z)
    if proved.all():
        return replace(tighter(problem, sharp, found.z), certified=True)
    return replace(better(problem, sharp, found), flow=z)


def _proved(problem: Problem, u: Floats, z: Floats, blur: Floats, labels: Ints) -> Bools:
    """For each cluster, whether its edges with room for eps_V connect it."""
    used = lengths(z)
    off = lengths(problem.a - u - problem.diff_t @ z) + blur
    off += abs(problem.diff_t) @ (4 * np.finfo(np.float64).eps * used)
    eps = np.bincount(labels, weights=off)[labels]
    within = labels[problem.tail] == labels[problem.head]
    room = within & (problem.radius - used >= eps[problem.tail])
    parts = problem.components(room)[1]
    first = np.unique(parts, return_index=True)[1]  # one point a part
    return np.bincount(labels[first]) == 1


def _reduced(problem: Problem, labels: Ints, sizes: Floats) -> Problem:
    """The collapsed problem: a mean and a mass for each cluster, weights between them summed."""
    shape = (len(sizes), len(sizes))
    ends = np.sort(np.stack([labels[problem.tail], labels[problem.head]]), axis=0)
    kept = ends[0] != ends[1]
    summed = sparse.coo_array((problem.radius[kept], tuple(ends[:, kept])), shape=shape)
    summed.sum_duplicates()
    means = sum_by_cluster(problem.a, labels) / sizes[:, None]
    return problem_of(means, summed.row, summed.col, summed.data, sizes)


def _polish(reduced: Problem, centers: Floats) -> tuple[Floats, float]:
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


def _flow(problem: Problem, u: Floats, z: Floats, members: Bools, margin: float) -> Floats:
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
    flow += room[:, None] * (
        rest.diff @ conjugate_gradients(laplacian.__matmul__, diagonal, off, 1e-12)
    )
    onto_balls(flow, radius)
    z = z.copy()
    z[own] = flow
    return z
