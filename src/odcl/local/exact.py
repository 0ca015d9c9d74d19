"""The exact solver of a stack of users, by the shape of their rows.

More rows than features: normal equations. Most users' columns are far from collinear, and their
equations are solved straight ahead. Users in doubt have their columns centred about the intercept
and are looked at again; the collinear get a singular value decomposition, and the model of minimum
norm in what is left free. No more rows than features: the same in the span of the rows, by their
Gram matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.local.newton import Minimum, Problem, newton
from odcl.local.problem import (
    Job,
    Solution,
    Stack,
    model_of,
    store,
)
from odcl.local.stacked import (
    PerUser,
    cholesky,
    diagonal,
    left_over,
    solver,
    substitute,
    with_diagonal,
)
from odcl.risk.losses import Squared

# The share of its variance that the columns before it must leave to a column. Above the first,
# normal equations are as good as anything; between the two they lose up to half of the digits,
# which a refinement gives back; below the second users get a singular value decomposition.
SOUND, COLLINEAR = 1e-3, 1e-8
# The Gram matrix of the rows is right to 1e-16 of its trace. Its least pivot, and pivot and penalty
# together, must be at least these shares of the trace for the error not to matter.
ROW_PIVOT, ROW_FLOOR = 1e-9, 1e-6


def solve_stack(job: Job, out: Solution) -> None:
    """Route users by the shape of their rows."""
    wide = job.stack.present.sum(axis=1) <= job.stack.X.shape[2] + job.holds_intercept
    for mask, solve in ((wide, _solve_wide), (~wide, _solve_tall)):
        if mask.any():
            solve(job if mask.all() else job.take(mask), out)


# -- more rows than features -----------------------------------------------------------------------


def _solve_tall(job: Job, out: Solution) -> None:
    """Straight ahead where the columns are far from collinear; else with more care."""
    if isinstance(job.loss, Squared):
        doubt = _normal_equations(job, out)
    else:
        problem = job.problem(job.features())
        gram = _products(problem.Dt, job.stack)
        doubt = _left_over(gram.copy(), problem.pen) < SOUND
        problem = replace(problem, gram=gram)
        if not doubt.all():
            sure = ~doubt
            found = newton(problem.take(sure) if doubt.any() else problem)
            sound = job.take(sure) if doubt.any() else job
            store(sound, model_of(sound, found.a), found, out)
    if doubt.any():
        _solve_centred(job.take(doubt), out)


def _normal_equations(job: Job, out: Solution) -> Bools:
    """Closed form of the squared loss: (D^T W D + pen) a = D^T W y.

    Returns which users' equations are in doubt, (b,): these are left out.
    """
    stack, X, target = job.stack, job.features(), job.stack.y
    b, _, p = X.shape
    middle = np.zeros((b, 1))
    if job.free:  # a target far from zero would cost digits
        middle = (stack.weight * target).sum(axis=1, keepdims=True)
        target = target - middle
    H, right = _moments(X, target, stack, job.free)
    pen = np.zeros(right.shape[:2])
    pen[:, :p] = job.strength[:, None]
    H = with_diagonal(H, pen)
    L = cholesky(H)
    doubt = left_over(H, L) < SOUND
    L[doubt] = np.eye(L.shape[1])
    a = substitute(L, right)
    if job.free:
        a[:, p] += middle
    if doubt.any():
        sure = ~doubt
        job, a = job.take(sure), a[sure]
    store(job, model_of(job, a), None, out)
    return doubt


def _moments(X: Floats, target: Floats, stack: Stack, free: bool) -> tuple[Floats, Floats]:
    """D^T W D and D^T W target, (b, r, r) and (b, r, 1); ``free`` adds a column of ones to X."""
    b, _, p = X.shape
    gram = _products(X.transpose(0, 2, 1), stack)
    rows = (stack.weight * target)[:, None, :]
    if not free:
        return gram, np.matmul(rows, X).transpose(0, 2, 1)
    rows = np.concatenate([rows, stack.weight[:, None, :]], axis=1)
    moments, total = np.matmul(rows, X), rows.sum(axis=2)
    H, right = np.empty((b, p + 1, p + 1)), np.empty((b, p + 1, 1))
    H[:, :p, :p], right[:, :p, 0] = gram, moments[:, 0]
    H[:, p, :p] = H[:, :p, p] = moments[:, 1]
    H[:, p, p], right[:, p, 0] = total[:, 1], total[:, 0]
    return H, right


def _solve_centred(job: Job, out: Solution) -> None:
    """Columns centred about a free intercept; collinear users go on to the decomposition."""
    X, mean = _centred(job.stack) if job.free else (job.features(), None)
    problem = job.problem(X)
    near = _left_over(_products(problem.Dt, job.stack), problem.pen) < COLLINEAR
    if near.any():
        _solve_collinear(job.take(near), X[near], None if mean is None else mean[near], out)
    if not near.all():
        sure = ~near
        found, job = _minimise(problem.take(sure)), job.take(sure)
        store(job, model_of(job, found.a, None if mean is None else mean[sure]), found, out)


def _centred(stack: Stack) -> tuple[Floats, Floats]:
    """Columns less their means, (b, n, p), and the means, (b, 1, p)."""
    weight, present = stack.weight[:, None, :], stack.present[..., None]
    mean = np.matmul(weight, stack.X)
    X = (stack.X - mean) * present
    rest = np.matmul(weight, X)  # what rounding left in the mean; more than n ulps it is not
    X -= rest * present
    # What is left of a constant column now is rounding of its entries: it is nothing.
    X *= (np.abs(X).max(axis=1) > 1e-14 * np.abs(stack.X).max(axis=1))[:, None, :]
    return X, mean + rest


def _solve_collinear(job: Job, X: Floats, mean: Floats | None, out: Solution) -> None:
    """Ill-conditioned or rank-deficient rows, by singular value decomposition.

    Without a penalty, columns of unlike size are brought to one before: which of them count must
    not depend on their units. Where some turn out to be free, the model of minimum norm is wanted,
    and that is one of the units: these users are decomposed as they are, unless the sizes are so
    unlike (1e4) that it would cost the digits of the small ones.
    """
    weight = job.stack.weight
    size = np.abs(np.sqrt(weight)[..., None] * X).max(axis=1)
    some = size > 0
    largest = size.max(axis=1, initial=0.0)
    spread = largest / np.where(some, size, np.inf).min(axis=1, initial=np.inf)
    scaled = (job.strength == 0) & (X.shape[1] > X.shape[2]) & (spread > 10.0)
    one = np.ones(size.shape)
    D, back, rank = _basis(X, weight, np.where(scaled[:, None] & some, size, one))
    short = scaled & (spread <= 1e4) & (rank < some.sum(axis=1))
    if short.any():
        D[short], back[short], _ = _basis(X[short], weight[short], one[short])
    found = _minimise(job.problem(D))
    a = np.concatenate(
        [np.matmul(back, found.a[:, : D.shape[2]]), found.a[:, D.shape[2] :]], axis=1
    )
    store(job, model_of(job, a, mean), found, out)


def _basis(X: Floats, weight: Floats, size: Floats) -> tuple[Floats, Floats, Ints]:
    """X = D back^T diag(size)^2 with W-orthogonal D: (b, n, r), (b, p, r), and the rank, (b,).

    W^1/2 X diag(1/size) = U S V^T gives D = W^-1/2 U S, and D a = X theta for theta = back a =
    diag(1/size) V a. Singular values of rounding size are zero.
    """
    root = np.sqrt(weight)[..., None]
    U, S, Vt = np.linalg.svd(root * X / size[:, None, :], full_matrices=False)
    cut = max(X.shape[1:]) * float(np.finfo(np.float64).eps)  # as in NumPy's lstsq
    kept = cut * S[:, :1] < S
    D = U * (kept * S)[:, None, :] / np.where(root > 0, root, np.inf)
    return D, Vt.transpose(0, 2, 1) * kept[:, None, :] / size[..., None], kept.sum(axis=1)


def _products(Dt: Floats, stack: Stack) -> Floats:
    """D^T W D, (b, r, r); with equal weights the rows need not be scaled one by one."""
    D = Dt.transpose(0, 2, 1)
    if stack.even:
        return np.matmul(Dt, D) * stack.weight.max(axis=1)[:, None, None]
    return np.matmul(Dt * stack.weight[:, None, :], D)


def _left_over(gram: Floats, pen: Floats) -> Floats:
    """How far the columns are from collinear, (b,): see ``left_over``. Spoils ``gram``."""
    H = with_diagonal(gram, pen)
    return left_over(H, cholesky(H))


def _minimise(problem: Problem) -> Minimum:
    return _least_squares(problem) if isinstance(problem.loss, Squared) else newton(problem)


def _least_squares(problem: Problem) -> Minimum:
    """Normal equations, refined twice by the residuals of the rows themselves."""
    b, r, _ = problem.Dt.shape
    weight = problem.weight[..., None]
    weighted = problem.Dt * problem.weight[:, None, :]
    gram = np.matmul(weighted, problem.Dt.transpose(0, 2, 1))
    solve = solver(with_diagonal(gram, problem.pen))
    a = np.zeros((b, r, 1))
    for _ in range(3):
        slope = weight * (problem.predictor(a) - problem.y[..., None])
        a = a - solve(np.matmul(problem.Dt, slope) + problem.pen[..., None] * a)
    everyone = np.ones(b, dtype=bool)
    return Minimum(a, everyone, ~everyone)


# -- no more rows than features --------------------------------------------------------------------


def _solve_wide(job: Job, out: Solution) -> None:
    """Solve in the span of the rows: theta = X^T alpha.

    The Gram matrix of the rows, K = L L^T, gives the design L of n columns and the way back,
    alpha = L^-T a. Users whose K is singular, or near to it, are decomposed instead.
    """
    rows = _RowGram.of(job)
    L = cholesky(rows.K)
    sound = rows.sound(L, job)
    if not sound.all():
        hard = job.take(~sound)
        X, mean = _centred(hard.stack) if job.free else (hard.features(), None)
        _solve_collinear(hard, X, mean, out)
        if not sound.any():
            return
        job, rows, L = job.take(sound), rows.take(sound), L[sound]
    n = L.shape[1]
    found = _minimise(job.problem(L * ~rows.spare[:, None, :]))
    alpha = substitute(L, found.a[:, :n], back=True)
    total = np.matmul(job.stack.present[:, None, :].astype(np.float64), alpha)
    if job.free:  # X^T of this is the centred X^T of what it was
        alpha = alpha - job.stack.weight[..., None] * total
    model = np.matmul(alpha.transpose(0, 2, 1), job.stack.X).transpose(0, 2, 1)
    if job.free:
        centre = np.matmul(rows.of_mean[:, None, :], alpha)
        model = np.concatenate([model, found.a[:, n:] - centre], axis=1)
    elif job.holds_intercept:
        model = np.concatenate([model, (job.reach**2)[:, None, None] * total], axis=1)
    store(job, model, found, out)


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
