"""Newton steps for many parameters: conjugate gradients, each user's to its own accuracy.

A Hessian of r q parameters has (r q)^2 numbers and costs (r q)^3 operations; its product with a
vector costs two passes over the user's rows. The steps are preconditioned by the Hessian that the
user would have if all its rows and outputs had their average curvature, which is one r x r matrix.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.stacked import PerUser, with_diagonal
from odcl.risk.loss import Loss

MOST = 500  # products per step
# The average curvature may change by so much before the preconditioner is made anew.
OTHER = 2.0


def products(a: Floats, b: Floats) -> Floats:
    """The sum of all products of a user's numbers, (b,), of arrays (b, .)."""
    if hasattr(np, "vecdot"):  # NumPy 2
        return np.asarray(np.vecdot(a, b), dtype=np.float64)
    return np.asarray(np.einsum("ij,ij->i", a, b), dtype=np.float64)


class System(PerUser):
    """Symmetric positive semi-definite matrices, known by their products, and about inverted."""

    @abstractmethod
    def product(self, v: Floats) -> Floats:
        """H v for v (b, .), a row each."""

    @abstractmethod
    def near(self, g: Floats) -> Floats:
        """About H^-1 g: the preconditioner."""

    def solve(self, g: Floats, enough: Floats) -> Floats:
        """About H^-1 g for g (b, .): ``enough`` (b,) of it, preconditioned, is what is left.

        A user who is done stays put, so that it does not matter who else is in the stack.
        """
        found = np.zeros_like(g)
        ids, system, x, left = np.arange(len(g)), self, found.copy(), g.copy()
        way = self.near(left)
        size = products(left, way)
        goal, going = enough**2 * size, size > 0
        for _ in range(MOST):
            some = np.count_nonzero(going)
            if not some:
                break
            if 2 * some <= len(going):  # a copy of the rest costs less than idle products
                found[ids[~going]] = x[~going]
                ids, system, goal = ids[going], system.take(going), goal[going]
                x, left, way, size = x[going], left[going], way[going], size[going]
                going = going[going]
            ahead = system.product(way)
            bent = products(way, ahead)
            going &= bent > 0
            step = np.where(going, size / np.where(going, bent, 1.0), 0.0)[:, None]
            x += step * way
            ahead *= step
            left -= ahead
            near = system.near(left)
            new = products(left, near)
            going &= new > goal
            way *= (going * new / np.where(size > 0, size, 1.0))[:, None]
            way += near
            size = new
        found[ids] = x
        return found


@dataclass(eq=False)
class Hessians(System):
    """Hessians of some users at one point."""

    loss: Loss
    Dt: Floats  # (b, r, n)
    weight: Floats  # (b, n)
    bend: Floats  # (b, n, ...), of the rows' losses, as the loss has it
    pen: Floats  # (b, r)
    inverse: Floats  # (b, r, r), the preconditioner

    def product(self, v: Floats) -> Floats:
        v = v.reshape(*self.pen.shape, self.loss.n_outputs)
        moved = self.loss.bent(self.bend, np.matmul(self.Dt.transpose(0, 2, 1), v))
        moved *= self.weight[..., None]
        ahead = np.matmul(self.Dt, moved) + self.pen[..., None] * v
        return ahead.reshape(len(v), -1)

    def near(self, g: Floats) -> Floats:
        near = np.matmul(self.inverse, g.reshape(*self.pen.shape, self.loss.n_outputs))
        return near.reshape(len(g), -1)


def preconditioner(gram: Floats, average: Floats, pen: Floats) -> Floats:
    """(average D^T W D + pen)^-1, (b, r, r), for the users' average curvatures, (b,)."""
    H = with_diagonal(average[:, None, None] * gram, pen)
    return np.asarray(np.linalg.inv(H), dtype=np.float64)


def outdated(average: Floats, used: Floats) -> Bools:
    """Whose preconditioner was made for quite another curvature, (b,)?"""
    return (average > OTHER * used) | (used > OTHER * average)
