"""Linear systems of stacks of users, user by user: Cholesky, and conjugate gradients beyond it.

A Hessian of r q parameters has (r q)^2 numbers and costs (r q)^3 operations; its product with a
vector costs two passes over the user's rows. With many parameters Newton steps are therefore found
by conjugate gradients, preconditioned by the Hessian that the user would have if all its rows and
outputs had their average curvature, which is one r x r matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.linalg.lapack import dpotrs, dtrtrs

from odcl._typing import Bools, Floats, Ints
from odcl.risk.loss import Loss

MOST = 500  # products per step of conjugate gradients
# The preconditioner is made anew once the average curvature has changed by this factor.
OTHER = 2.0


class PerUser:
    """A dataclass whose arrays have one entry per user along their first axis."""

    def take(self, pick: Ints | Bools | slice) -> Self:
        """Some of the users."""

        def some(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[pick]
            return value.take(pick) if isinstance(value, PerUser) else value

        return type(self)(**{name: some(value) for name, value in vars(self).items()})


def diagonal(A: Floats) -> Floats:
    """Diagonals of a stack of contiguous matrices, (b, r), to read and to write."""
    b, r, _ = A.shape
    return A.reshape(b, r * r)[:, :: r + 1]


def with_diagonal(H: Floats, pen: Floats) -> Floats:
    """H + diag(pen), in place; the coordinates of empty columns keep to themselves."""
    own = diagonal(H)
    own += pen
    own[own < 1e-290] = 1.0
    return H


def cholesky(A: Floats) -> Floats:
    """Lower factors of a stack; zeros for a matrix that is not positive definite."""
    try:
        return np.asarray(np.linalg.cholesky(A), dtype=np.float64)
    except np.linalg.LinAlgError:
        L = np.zeros_like(A)
        for i in range(len(A)):
            with suppress(np.linalg.LinAlgError):
                L[i] = np.linalg.cholesky(A[i])
        return L


def left_over(H: Floats, L: Floats) -> Floats:
    """The least share of a column's size that the columns before it leave, (b,).

    Read off the factor of H; 0 where there is none.
    """
    return (diagonal(L) ** 2 / diagonal(H)).min(axis=1)


def solver(H: Floats) -> Callable[[Floats], Floats]:
    """g -> H^-1 g for a stack of positive semi-definite H, (b, r, r); g is (b, r, q).

    Where a matrix is singular, its diagonal is raised until it can be factorised; a refinement or
    the next Newton step corrects what this changes.
    """
    L = cholesky(H)
    for trace in (1e-13, 1e-11, 1e-9, 1e-6):
        failed = L[:, 0, 0] == 0
        if not failed.any():
            break
        more = H[failed]
        own = diagonal(more)
        own *= 1.0 + trace
        L[failed] = cholesky(more)
    return lambda g: substitute(L, g)


def substitute(L: Floats, g: Floats, *, back: bool = False) -> Floats:
    """(L L^T)^-1 g, or L^-T g if only ``back``, for a stack of lower factors; g is (b, r, q)."""
    solve = dtrtrs if back else dpotrs
    x = g.transpose(0, 2, 1).copy()
    for upper, right in zip(L.transpose(0, 2, 1), x.transpose(0, 2, 1), strict=True):
        solve(upper, right, overwrite_b=1)  # Fortran's order: a view of each, solved in place
    return x.transpose(0, 2, 1)


# -- many parameters -------------------------------------------------------------------------------


def products(a: Floats, b: Floats) -> Floats:
    """The sum of all products of a user's numbers, (b,), of arrays (b, .)."""
    return np.asarray(np.vecdot(a, b), dtype=np.float64)


@dataclass(eq=False)
class Hessians(PerUser):
    """Hessians of some users at one point, known by their products, and about inverted."""

    loss: Loss
    Dt: Floats  # (b, r, n)
    weight: Floats  # (b, n)
    bend: Floats  # (b, n, ...), of the rows' losses, as the loss has it
    pen: Floats  # (b, r)
    inverse: Floats  # (b, r, r), the preconditioner

    def product(self, v: Floats) -> Floats:
        """H v for v (b, .), a row each."""
        v = v.reshape(*self.pen.shape, self.loss.n_outputs)
        moved = self.loss.bent(self.bend, np.matmul(self.Dt.transpose(0, 2, 1), v))
        moved *= self.weight[..., None]
        ahead = np.matmul(self.Dt, moved) + self.pen[..., None] * v
        return ahead.reshape(len(v), -1)

    def near(self, g: Floats) -> Floats:
        """About H^-1 g: the preconditioner."""
        near = np.matmul(self.inverse, g.reshape(*self.pen.shape, self.loss.n_outputs))
        return near.reshape(len(g), -1)

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


def preconditioner(gram: Floats, average: Floats, pen: Floats) -> Floats:
    """(average D^T W D + pen)^-1, (b, r, r), for the users' average curvatures, (b,)."""
    H = with_diagonal(average[:, None, None] * gram, pen)
    return np.asarray(np.linalg.inv(H), dtype=np.float64)


def outdated(average: Floats, used: Floats) -> Bools:
    """Users whose preconditioner was made for quite another curvature, (b,)."""
    return (average > OTHER * used) | (used > OTHER * average)
