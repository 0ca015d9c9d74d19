"""Weighted convex clustering on arrays: the problem, dual ascent, rounds of Newton steps.

The symbols are those of :mod:`odcl.clustering.convex.weighted`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from odcl._typing import Array, Bools, Floats, Ints
from odcl.clustering.convex.newton import conjugate_gradients
from odcl.clustering.labels import sum_by_cluster

# Distances, as parts of the largest along an edge, under which two neighbours may be one point.
LADDER = (0.0, *(10.0**-k for k in range(9, 0, -1)), 1.0)
# A round figure, enough for a gap of 1e-2 to 1e-4; it is not tuned.
ASCENT_STEPS = 60
NEWTON_STEPS = 15  # at most, per round
CG_STEPS = 500  # at most, per Newton step


@dataclass(frozen=True, eq=False)
class EdgeProblem:
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
        return fit + float(self.radius @ lengths(self.diff @ u))

    def gap(self, u: Floats, z: Floats) -> float:
        """The gap of the module's docstring, from terms that are not negative (unit masses)."""
        du = self.diff @ u
        off = u - self.a + self.diff_t @ z
        slack = self.radius * lengths(du) - np.einsum("ed,ed->e", z, du)
        return 0.5 * float(np.vdot(off, off)) + float(np.maximum(slack, 0.0).sum())

    def components(self, edges: Bools) -> tuple[int, Ints]:
        """Connected components of the points under some of the edges."""
        tail, head = self.tail[edges], self.head[edges]
        shape = (len(self.a), len(self.a))
        graph = sparse.coo_array((np.ones(len(tail)), (tail, head)), shape=shape)
        n_components, labels = connected_components(graph, directed=False)
        return int(n_components), labels.astype(np.intp)


@dataclass(frozen=True, eq=False)
class CollapsedPoint:
    """A collapsed point, a feasible dual point and the gap between them."""

    u: Floats
    z: Floats
    objective: float
    gap: float
    labels: Ints
    certified: bool = False
    flow: Floats | None = None  # where the last try for a certificate of these labels ended


def problem_of(
    a: Floats, tail: Array, head: Array, radius: Floats, mass: Floats | None = None
) -> EdgeProblem:
    n_edges, n_points = len(tail), len(a)
    ends = np.stack([tail, head], axis=1).ravel()
    signs = np.tile([1.0, -1.0], n_edges)
    diff = sparse.csr_array(
        (signs, ends, np.arange(0, 2 * n_edges + 1, 2)), shape=(n_edges, n_points)
    )
    mass = np.ones(n_points) if mass is None else mass
    return EdgeProblem(a, mass, tail, head, radius, diff, diff.T.tocsr())


def in_few_dimensions(a: Floats) -> tuple[Floats, Floats | None]:
    """Coordinates in the span of the rows if dim > n_points: exact, as inner products are kept."""
    if a.shape[1] <= len(a):
        return a, None
    q, r = np.linalg.qr(a.T)
    return np.ascontiguousarray(r.T), q.T


def lengths(x: Floats) -> Floats:
    return np.sqrt(np.einsum("ed,ed->e", x, x))


def onto_balls(y: Floats, radius: Floats) -> Floats:
    """Shrink the rows of ``y`` in place to lengths of at most ``radius``; how much, (n_edges,)."""
    length = lengths(y)
    shrink = np.ones(len(y))
    np.divide(radius, length, out=shrink, where=length > radius)
    y *= shrink[:, None]
    return shrink


def ascend(problem: EdgeProblem, z: Floats, n_steps: int) -> tuple[Floats, Bools]:
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
        shrink = onto_balls(new, problem.radius)
        momentum = new - z
        y -= new
        if np.vdot(y, momentum) > 0:
            t = 1.0
        grown = (1 + np.sqrt(1 + 4 * t * t)) / 2
        momentum *= (t - 1) / grown
        momentum += new
        y, z, t = momentum, new, grown
    return z, shrink == 1


def newton_round(
    problem: EdgeProblem, u: Floats, z: Floats, penalty: float, max_steps: int
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
        shrink = onto_balls(q, problem.radius)
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
        step = newton_step(problem, problem.mass, penalty * shrink, outside, axis, grad, 0.03)
        slope, t = float(np.vdot(grad, step)), 1.0
        while True:
            trial, q, shrink = value(u + t * step)
            if trial <= now + 1e-4 * t * slope + 1e-14 * abs(now) or t < 1e-6:
                break
            t /= 2
        u, now = u + t * step, trial
        n_steps += 1
    return u, q, shrink == 1, max(n_steps, 1)


def newton_step(
    problem: EdgeProblem,
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

    return by_diagonal(times, diagonal, -grad, rtol)


def by_diagonal(
    times: Callable[[Floats], Floats], diagonal: Floats, right: Floats, rtol: float
) -> Floats:
    """Conjugate gradients; coordinates with a diagonal of 0 stay 0."""
    inverse = np.zeros_like(diagonal)
    np.divide(1.0, diagonal, out=inverse, where=diagonal > 0)
    return conjugate_gradients(times, lambda x: inverse * x, right, rtol, CG_STEPS)


def collapse(problem: EdgeProblem, z: Floats, fused: Bools) -> CollapsedPoint:
    """The lowest of the points in which near neighbours are one: the rule of weighted_convex."""
    u = problem.a - problem.diff_t @ z
    edge = lengths(problem.diff @ u)
    best: tuple[float, Floats, Ints] | None = None
    last = -1
    for theta in np.multiply(LADDER, edge.max()):
        n_clusters, labels = problem.components(fused | (edge <= theta))
        if n_clusters == last:  # the ladder is nested: the same number is the same partition
            continue
        last = n_clusters
        point = (sum_by_cluster(u, labels) / np.bincount(labels)[:, None])[labels]
        objective = problem.objective(point)
        if best is None or objective <= best[0]:
            best = objective, point, labels
    assert best is not None
    objective, point, labels = best
    return CollapsedPoint(point, z, objective, problem.gap(point, z), labels)


def better(problem: EdgeProblem, new: CollapsedPoint, old: CollapsedPoint) -> CollapsedPoint:
    """The lower of two points, with the better of their dual points; a flow for its labels."""
    point, other = (new, old) if new.objective <= old.objective else (old, new)
    flow = old.flow if np.array_equal(new.labels, old.labels) else point.flow
    return replace(tighter(problem, point, other.z), flow=flow)


def tighter(problem: EdgeProblem, found: CollapsedPoint, z: Floats) -> CollapsedPoint:
    gap = problem.gap(found.u, z)
    return replace(found, z=z, gap=gap) if gap < found.gap else found
