"""Users with no more rows than features: solved in the span of their rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.newton import newton
from odcl.local.problem import Job, Solution, finish, weighted_slope
from odcl.local.stacked import PerUser, cholesky, diagonal, substitute
from odcl.local.tall import centred, minimise, solve_collinear

# The Gram matrix of the rows is right to 1e-16 of its trace. So much of the trace must its least
# pivot be, and pivot and penalty together, for the error not to matter.
ROW_PIVOT, ROW_FLOOR = 1e-9, 1e-6
# Singular vectors pay for narrow users: from so many rows on, or so many features per row, they
# cost three times a solve by the Gram matrix and more.
MANY_ROWS, MANY_FEATURES = 500, 8
# The condition of the systems with the Gram matrix is at most this: their solutions have three
# digits at least, which is plenty for a Newton step.
WORST = 1e12


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
    alpha = substitute(L, found.a[:, :n], back=True)
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
    """Users whose Gram matrix is singular, or near to it.

    Such are images less their user's mean, and groups of images pooled by the Cluster Oracle
    (Eq. (3)): 2,000 rows of 3,072 pixels, whose singular vectors cost more than the whole solve.
    Under a penalty K directs Newton steps for these, and only directs them: gradients are those of
    X, so that neither K's rounding nor its singular directions come into the answer.
    """
    many = _suits_kernel(job, K)
    left = ~many
    if many.any():
        large = job.take(many)
        found = newton(replace(large.problem(large.stack.X), kernel=K[many]))
        finish(large, found, found.a, out)
        left[many] = ~found.converged
    if left.any():
        hard = job.take(left)
        X, mean = centred(hard.stack) if job.free else (hard.features(), None)
        solve_collinear(hard, X, mean, out)


def _suits_kernel(job: Job, K: Floats) -> Bools:
    """Whose steps K may direct, (b,): large users with one output, a penalty and nothing else."""
    rows = job.stack.present.sum(axis=1)
    plain = job.intercept is None and job.center is None and job.loss.n_outputs == 1
    large = (rows >= MANY_ROWS) | (job.stack.X.shape[2] >= MANY_FEATURES * rows)
    trace = np.trace(K, axis1=1, axis2=2) * job.stack.weight.max(axis=1)
    return plain & large & (job.strength > 0) & (trace < WORST * job.strength)


@dataclass(frozen=True, eq=False)
class _RowGram(PerUser):
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

    def sound(self, L: Floats, job: Job) -> Bools:
        """Are K's error and the spread of the rows' weights harmless? (b,)"""
        pivots = diagonal(L)
        least = np.where(self.spare, np.inf, pivots).min(axis=1) ** 2
        most = job.stack.weight.max(axis=1)
        rarest = np.where(job.stack.present, job.stack.weight, np.inf).min(axis=1)
        known = (least > ROW_PIVOT * self.trace) & (pivots > 0).all(axis=1)
        known &= least + job.strength / most > ROW_FLOOR * self.trace
        return known & (least * rarest + job.strength > 1e-9 * most * self.trace)
