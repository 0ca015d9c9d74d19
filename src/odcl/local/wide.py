"""Users with no more rows than features: solved in the span of their rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.kernel import solve_kernel, suits
from odcl.local.problem import Job, Solution, finish, weighted_slope
from odcl.local.systems import cholesky, diagonal, substitute_back
from odcl.local.tall import centred, minimise, solve_collinear

# The Gram matrix of the rows is right to 1e-16 of its trace. So much of the trace must its least
# pivot be, and pivot and penalty together, for the error not to matter.
ROW_PIVOT, ROW_FLOOR = 1e-9, 1e-6


def solve_wide(job: Job, out: Solution) -> None:
    """Solve in the span of the rows: theta - center = X^T alpha.

    The Gram matrix of the rows, K = L L^T, gives the design L of n columns and the way back,
    alpha = L^-T a. Users whose K is singular, or near to it, are decomposed instead.
    """
    rows = _RowGram.of(job)
    L = cholesky(rows.K)
    sound = rows.sound(L, job)
    if not sound.all():
        _solve_hard(job.take(~sound), rows.K[~sound], out)
        if not sound.any():
            return
        job, rows, L = job.take(sound), rows.take(sound), L[sound]
    n, q = L.shape[1], job.loss.n_outputs
    found = minimise(job.problem(L * ~rows.spare[:, None, :]))
    alpha = substitute_back(L, found.a[:, :n])
    total = np.matmul(job.stack.present[:, None, :].astype(np.float64), alpha)
    if job.free:  # X^T of this is the centred X^T of what it was
        alpha = alpha - job.stack.weight[..., None] * total
    slope = weighted_slope(job, found)
    # The one pass over X: the model, and the pull of the rows on it for the gradient.
    both = np.matmul(np.concatenate([alpha, slope], axis=2).transpose(0, 2, 1), job.stack.X)
    model = both[:, :q].transpose(0, 2, 1)
    if job.free:
        centre = np.matmul(rows.of_mean[:, None, :], alpha)
        model = np.concatenate([model, found.a[:, n:] - centre], axis=1)
    elif job.holds_intercept:
        model = np.concatenate([model, (job.reach**2)[:, None, None] * total], axis=1)
    finish(job, found, model, out, pull=both[:, q:].transpose(0, 2, 1), slope=slope)


def _solve_hard(job: Job, K: Floats, out: Solution) -> None:
    """Users whose Gram matrix is singular, or near to it."""
    left = np.ones(len(K), dtype=bool)
    many = suits(job, K)
    if many.any():
        left[many] = ~solve_kernel(job.take(many), K[many], out)
    if left.any():
        hard = job.take(left)
        X, mean = centred(hard.stack) if job.free else (hard.features(), None)
        solve_collinear(hard, X, mean, out)


@dataclass(frozen=True, eq=False)
class _RowGram:
    """Gram matrices of the users' rows, ready to be factorised.

    A free intercept centres the rows, so that the last depends on the others. It and padded rows
    are ``spare``: they get a diagonal entry, and their columns of the factor are left out.
    """

    K: Floats  # (b, n, n)
    trace: Floats  # (b,), before centring: K is right to 1e-16 of it
    of_mean: Floats  # (b, n), the rows' products with their mean
    spare: Bools  # (b, n)

    @classmethod
    def of(cls, job: Job) -> _RowGram:
        X, present, weight = job.stack.X, job.stack.present, job.stack.weight
        b = len(X)
        K = np.matmul(X, X.transpose(0, 2, 1))
        both = present[:, :, None] & present[:, None, :]
        if job.holds_intercept:
            K += both * (job.reach**2)[:, None, None]
        trace = np.trace(K, axis1=1, axis2=2)
        of_mean, spare = np.matmul(K, weight[..., None])[..., 0], ~present
        if job.free:
            squared_mean = np.matmul(of_mean[:, None, :], weight[..., None])
            K = (K - of_mean[:, :, None] - of_mean[:, None, :] + squared_mean) * both
            spare[np.arange(b), present.sum(axis=1) - 1] = True
        own = diagonal(K)
        own += spare * np.where(trace > 0, trace, 1.0)[:, None]
        return cls(K, trace, of_mean, spare)

    def take(self, pick: Bools) -> _RowGram:
        return _RowGram(self.K[pick], self.trace[pick], self.of_mean[pick], self.spare[pick])

    def sound(self, L: Floats, job: Job) -> Bools:
        """Are K's error and the spread of the rows' weights harmless? (b,)"""
        pivots = diagonal(L)
        least = np.where(self.spare, np.inf, pivots).min(axis=1) ** 2
        most = job.stack.weight.max(axis=1)
        rarest = np.where(job.stack.present, job.stack.weight, np.inf).min(axis=1)
        known = (least > ROW_PIVOT * self.trace) & (pivots > 0).all(axis=1)
        known &= least + job.strength / most > ROW_FLOOR * self.trace
        return known & (least * rarest + job.strength > 1e-9 * most * self.trace)
