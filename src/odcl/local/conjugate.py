"""Newton steps for many parameters: conjugate gradients, each user's to its own accuracy.

A Hessian of r q parameters has (r q)^2 numbers and costs (r q)^3 operations; its product with a
vector costs two passes over the user's rows. The steps are preconditioned by the Hessian that the
user would have if all its rows and outputs had their average curvature, which is one r x r matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.stacked import PerUser, with_diagonal
from odcl.risk.loss import Loss

MOST = 500  # products per step
# The average curvature may change by so much before the preconditioner is made anew.
OTHER = 2.0


def per_user(a: Floats) -> Floats:
    """The sum of all of a user's numbers, (b,)."""
    return a.reshape(len(a), -1).sum(axis=1)


@dataclass(eq=False)
class System(PerUser):
    """Hessians of some users at one point, known by their products."""

    loss: Loss
    Dt: Floats  # (b, r, n)
    weight: Floats  # (b, n)
    bend: Floats  # (b, n, ...), of the rows' losses, as the loss has it
    pen: Floats  # (b, r)
    inverse: Floats  # (b, r, r), the preconditioner

    def product(self, v: Floats) -> Floats:
        """H v for v (b, r, q)."""
        moved = self.loss.bent(self.bend, np.matmul(self.Dt.transpose(0, 2, 1), v))
        moved *= self.weight[..., None]
        return np.matmul(self.Dt, moved) + self.pen[..., None] * v

    def solve(self, g: Floats, enough: Floats) -> Floats:
        """About H^-1 g, (b, r, q): what is left of g is ``enough`` (b,) of it, preconditioned.

        A user who is done stays put, so that it does not matter who else is in the stack.
        """
        found = np.zeros_like(g)
        ids, system, x, left = np.arange(len(g)), self, found.copy(), g.copy()
        near = np.matmul(self.inverse, left)
        way, size = near, per_user(left * near)
        goal = enough**2 * size
        going = size > 0
        for _ in range(MOST):
            if not going.any():
                break
            if 2 * going.sum() <= len(going):  # a copy of the rest costs less than idle products
                found[ids[~going]] = x[~going]
                ids, system, goal = ids[going], system.take(going), goal[going]
                x, left, way, size = x[going], left[going], way[going], size[going]
                going = going[going]
            ahead = system.product(way)
            bent = per_user(way * ahead)
            going &= bent > 0
            step = np.where(going, size / np.where(going, bent, 1.0), 0.0)[:, None, None]
            x += step * way
            left -= step * ahead
            near = np.matmul(system.inverse, left)
            new = per_user(left * near)
            going &= new > goal
            way = (
                near
                + np.where(going, new / np.where(size > 0, size, 1.0), 0.0)[:, None, None] * way
            )
            size = new
        found[ids] = x
        return found


def preconditioner(gram: Floats, average: Floats, pen: Floats) -> Floats:
    """(average D^T W D + pen)^-1, (b, r, r), for the users' average curvatures, (b,)."""
    H = with_diagonal(average[:, None, None] * gram, pen)
    return np.asarray(np.linalg.inv(H), dtype=np.float64)


def outdated(average: Floats, used: Floats) -> Bools:
    """Whose preconditioner was made for quite another curvature, (b,)?"""
    return (average > OTHER * used) | (used > OTHER * average)
