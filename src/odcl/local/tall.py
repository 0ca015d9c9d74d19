"""Users with more rows than features: normal equations, and what stands in for them.

Most users' columns are far from collinear, and their equations are solved straight ahead. Users
in doubt have their columns centred about the intercept and are looked at again; the collinear get
a singular value decomposition, and the model of minimum norm in what is left free.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.local.newton import Minimum, Problem, newton
from odcl.local.problem import Job, Solution, Stack, finish, model_of, predictor_of, store
from odcl.local.stacked import cholesky, left_over, solver, substitute, with_diagonal
from odcl.risk.losses import Squared

# The share of its variance that the columns before it must leave to a column. Above the first,
# normal equations are as good as anything; between the two they lose up to half of the digits,
# which a refinement gives back; below the second users get a singular value decomposition.
SOUND, COLLINEAR = 1e-3, 1e-8


def solve_tall(job: Job, out: Solution) -> None:
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
            finish(sound, found, model_of(sound, found.a), out)
    if doubt.any():
        _solve_centred(job.take(doubt), out)


def _normal_equations(job: Job, out: Solution) -> Bools:
    """Closed form of the squared loss: (D^T W D + pen) a = D^T W (y - offset).

    Users whose equations are in doubt are left to others: which, (b,)?
    """
    stack, X, offset = job.stack, job.features(), job.offset
    b, _, p = X.shape
    target = stack.y if offset is None else stack.y - offset[..., 0]
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
    gradient = np.matmul(H, a) - right
    if job.free:
        a[:, p] += middle
    if doubt.any():
        sure = ~doubt
        job, a, gradient = job.take(sure), a[sure], gradient[sure]
    store(job, model_of(job, a), gradient, None, out)
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
    X, mean = centred(job.stack) if job.free else (job.features(), None)
    problem = job.problem(X)
    near = _left_over(_products(problem.Dt, job.stack), problem.pen) < COLLINEAR
    if near.any():
        solve_collinear(job.take(near), X[near], None if mean is None else mean[near], out)
    if not near.all():
        sure = ~near
        found, job = minimise(problem.take(sure)), job.take(sure)
        finish(job, found, model_of(job, found.a, None if mean is None else mean[sure]), out)


def centred(stack: Stack) -> tuple[Floats, Floats]:
    """Columns less their means, (b, n, p), and the means, (b, 1, p)."""
    weight, present = stack.weight[:, None, :], stack.present[..., None]
    mean = np.matmul(weight, stack.X)
    X = (stack.X - mean) * present
    rest = np.matmul(weight, X)  # what rounding left in the mean; more than n ulps it is not
    X -= rest * present
    # What is left of a constant column now is rounding of its entries: it is nothing.
    X *= (np.abs(X).max(axis=1) > 1e-14 * np.abs(stack.X).max(axis=1))[:, None, :]
    return X, mean + rest


def solve_collinear(job: Job, X: Floats, mean: Floats | None, out: Solution) -> None:
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
    found = minimise(job.problem(D))
    a = np.concatenate(
        [np.matmul(back, found.a[:, : D.shape[2]]), found.a[:, D.shape[2] :]], axis=1
    )
    model = model_of(job, a, mean)
    # Large coefficients that cancel have rounding of their own: the gradient is that of the model.
    finish(job, replace(found, z=predictor_of(job, model)), model, out)


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


def minimise(problem: Problem) -> Minimum:
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
    return Minimum(a, problem.predictor(a), everyone, np.ones(b, dtype=np.intp), ~everyone)
