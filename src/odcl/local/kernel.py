"""Rows that depend on each other, or nearly so, under a penalty: Newton on their Gram matrix.

Such are images less their user's mean, and groups of images pooled by the Cluster Oracle (Eq. (3)):
2,000 rows of 3,072 pixels. Singular vectors of so large a matrix cost more than the whole solve.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.newton import MAX_ITER, Minimum
from odcl.local.problem import Job, Solution, finish
from odcl.local.systems import cholesky, substitute, with_diagonal

# Singular vectors pay for narrow users: from so many rows on, or so many features a row, they cost
# three times a solve here and more.
MANY_ROWS, MANY_FEATURES = 500, 8
# The systems' condition is at most this: their solutions have three digits at least, which is
# plenty for a Newton step.
WORST = 1e12
ENOUGH = 1e-10  # of the gradient at zero may be left where steps have come to nothing


def suits(job: Job, K: Floats) -> Bools:
    """Whose models are found here, (b,): large, one output, a penalty and nothing else."""
    present = job.stack.present
    rows = present.sum(axis=1)
    plain = job.intercept is None and job.center is None and job.loss.n_outputs == 1
    large = (rows >= MANY_ROWS) | (job.stack.X.shape[2] >= MANY_FEATURES * rows)
    trace = np.trace(K, axis1=1, axis2=2) * job.stack.weight.max(axis=1)
    return plain & large & (job.strength > 0) & (trace < WORST * job.strength)


def solve_kernel(job: Job, K: Floats, out: Solution) -> Bools:
    """Newton steps for users one by one. Who converged? (b,)

        (strength I + X^T W X)^-1 g = (g - X^T W^1/2 B^-1 W^1/2 X g / strength) / strength
        B = I + W^1/2 K W^1/2 / strength

    K = X X^T, (b, n, n), only directs the steps: gradients are those of X, so that neither K's
    rounding nor its singular directions come into the answer.
    """
    done = np.zeros(len(K), dtype=bool)
    for u in range(len(K)):
        one = job.take(np.array([u]))
        found = _newton(one, K[u : u + 1])
        if found.converged[0]:
            finish(one, found, found.a, out)
            done[u] = True
    return done


def _newton(job: Job, K: Floats) -> Minimum:
    """Damped Newton for one user, from zero; the coordinates are the model's, (1, p, 1)."""
    X, Xt, y = job.stack.X, job.stack.X.transpose(0, 2, 1), job.stack.y
    weight, s = job.stack.weight[..., None], float(job.strength[0])

    def risk(theta: Floats, z: Floats) -> float:
        return float((weight[..., 0] * job.loss.value(z, y)).sum() + 0.5 * s * (theta**2).sum())

    theta, z = np.zeros((1, X.shape[2], 1)), np.zeros((1, X.shape[1], 1))
    first, converged, iteration = 0.0, False, 0
    for iteration in range(1, MAX_ITER + 1):
        _, slope, curve = job.loss.terms(z, y)
        gradient = np.matmul(Xt, slope * weight) + s * theta
        size = float((gradient**2).sum())
        first = size if iteration == 1 else first
        root = np.sqrt(curve[..., 0] * weight)
        B = with_diagonal(root * K * (root.transpose(0, 2, 1) / s), np.ones(root.shape[:2]))
        L = cholesky(B)
        if not L[0, 0, 0]:
            break
        inner = root * substitute(L, root * np.matmul(X, gradient))
        step = -(gradient - np.matmul(Xt, inner) / s) / s
        ahead = np.matmul(X, theta + step)
        converged = bool((np.abs(ahead - z) <= job.loss.resolution(ahead, y)).all())
        length = 1.0
        if not converged:
            descent = float((gradient * step).sum())
            length = _length(risk, theta, z, step, ahead - z, descent)
        if length == 0.0:
            converged = size <= ENOUGH**2 * first
            break
        theta = theta + length * step
        z = ahead if length == 1.0 else np.matmul(X, theta)
        if converged:
            break
    flags = np.array([converged])
    return Minimum(theta, z, flags, np.array([iteration]), ~flags)


def _length(
    risk: Callable[[Floats, Floats], float],
    theta: Floats,
    z: Floats,
    step: Floats,
    dz: Floats,
    descent: float,
) -> float:
    """Share of a step after which the risk has fallen enough (Armijo); 0: none has."""
    now, length = risk(theta, z), 1.0
    while descent < 0 and length > 1e-6:
        if risk(theta + length * step, z + length * dz) <= now + 1e-4 * length * descent:
            return length
        length *= 0.5
    return 0.0
