"""Stacks of users: a slice per user of every array, positive definite systems user by user."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import numpy as np
from scipy.linalg.lapack import dpotrs, dtrtrs

from odcl._typing import Bools, Floats, Ints


class PerUser:
    """A dataclass whose arrays have one entry per user along their first axis."""

    def take(self, pick: Ints | Bools | slice) -> Self:
        """The same for some of the users."""

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

    Where a matrix is singular, so much of its diagonal is added as makes a factorisation possible;
    what this changes, a refinement or the next Newton step corrects.
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
