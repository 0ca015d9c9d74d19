"""Stacks of small symmetric systems, brought to unit diagonal so that units do not matter.

LAPACK treats the matrices of a stack one by one: a user's numbers do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from scipy.linalg.lapack import dpotrs, dtrtrs

from odcl._typing import Floats


def diagonal(A: Floats) -> Floats:
    """Diagonals of a stack of contiguous matrices, (b, r), to read and to write."""
    b, r, _ = A.shape
    return A.reshape(b, r * r)[:, :: r + 1]


def unit_diagonal(H: Floats, pen: Floats) -> tuple[Floats, Floats]:
    """H + diag(pen) scaled to unit diagonal, and the scale, (b, r, 1); empty columns stay empty."""
    unit = H.copy()
    own = diagonal(unit)
    own += pen
    scale = (1.0 / np.sqrt(np.where(own > 1e-290, own, 1.0)))[..., None]
    unit *= scale
    unit *= scale.transpose(0, 2, 1)
    own[:] = 1.0
    return unit, scale


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


def unit_solver(H: Floats, pen: Floats) -> Callable[[Floats], Floats]:
    """g -> (H + diag(pen))^-1 g for a stack of positive semi-definite H; g is (b, r, q).

    Where a matrix is singular, so much of the identity is added as makes a factorisation possible;
    what this changes, a refinement or the next Newton step corrects.
    """
    unit, scale = unit_diagonal(H, pen)
    L = cholesky(unit)
    for trace in (1e-13, 1e-11, 1e-9, 1e-6):
        failed = L[:, 0, 0] == 0
        if not failed.any():
            break
        L[failed] = cholesky(unit[failed] + trace * np.eye(unit.shape[1]))

    def solve(g: Floats) -> Floats:
        return scale * substitute(L, scale * g)

    return solve


def substitute(L: Floats, g: Floats) -> Floats:
    """(L L^T)^-1 g for a stack of lower factors: g and the answer are (b, r, q)."""
    x = g.transpose(0, 2, 1).copy()
    for upper, right in zip(L.transpose(0, 2, 1), x.transpose(0, 2, 1), strict=True):
        dpotrs(upper, right, overwrite_b=1)  # Fortran's order: a view of each, solved in place
    return x.transpose(0, 2, 1)


def substitute_back(L: Floats, g: Floats) -> Floats:
    """L^-T g for a stack of lower factors: g and the answer are (b, r, q)."""
    x = g.transpose(0, 2, 1).copy()
    for upper, right in zip(L.transpose(0, 2, 1), x.transpose(0, 2, 1), strict=True):
        dtrtrs(upper, right, overwrite_b=1)
    return x.transpose(0, 2, 1)
