"""Exact local models (Algorithm 1, step 1), solved for all users at once.

Each user's problem is brought to coordinates in which it is well posed, then solved: in closed form
for the squared loss, by damped Newton otherwise. See ``stacks.py`` for why batching changes no bit.

    more rows than features     normal equations; far from collinear, as most users are
      ... in doubt              columns centred about the intercept, then again
      ... collinear             singular value decomposition, minimum norm in what is left free
    no more rows than features  the span of the rows: their Gram matrix factorised
      ... in doubt              singular value decomposition
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import Federation
from odcl.local.losses import Loss, Squared
from odcl.local.newton import Minimum, Problem, newton
from odcl.local.stacks import Stack, stacks
from odcl.local.systems import (
    cholesky,
    diagonal,
    substitute,
    substitute_back,
    unit_diagonal,
    unit_solver,
)

# The share of its variance that the columns before it must leave to a column. Above the first,
# normal equations are as good as anything; between the two they lose up to half of the digits,
# which a refinement gives back; below the second users get a singular value decomposition.
SOUND, COLLINEAR = 1e-3, 1e-8
# The Gram matrix of the rows is right to 1e-16 of its trace. So much of the trace must its least
# pivot be, and pivot and penalty together, for the error not to matter.
ROW_PIVOT, ROW_FLOOR = 1e-9, 1e-6
# Users without a finite minimiser: a normal prior with standard deviation 10 on every coefficient,
# the intercept included, on top of the penalty. PRIOR is its precision; it is divided by the
# user's sample size.
PRIOR = 1e-2


@dataclass(frozen=True, eq=False)
class Solution:
    """Minimisers of the users' risks, one row a user."""

    theta: Floats  # (n_users, dim)
    converged: Bools  # (n_users,)
    gradient_norm: Floats  # (n_users,), of the risk at theta
    n_iter: Ints  # (n_users,)
    prior: Bools  # (n_users,), no finite minimiser: solved with a small prior (see PRIOR)


@dataclass(frozen=True, eq=False)
class Penalty:
    """strength/2 ||theta - center||^2 a user; ``free`` leaves the intercept out of it.

    With ``intercept`` the intercept has a strength of its own.
    """

    strength: Floats  # (n_users,)
    center: Floats | None = None  # (n_users, dim); None: zero
    free: bool = True
    intercept: Floats | None = None  # (n_users,); None: as the others, unless free


def solve_users(
    federation: Federation,
    y: Floats,
    loss: Loss,
    penalty: Penalty,
    *,
    fit_intercept: bool = False,
    strict: bool = False,
    n_jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Solution:
    """Minimise every user's risk: mean loss + penalty.

    A user whose risk has no finite minimiser (separable classes without a penalty, one class or
    no counts with a free intercept) is solved with a small prior on top of the penalty and marked
    ``prior``; ``strict=True`` makes it an error.
    """
    m, dim = federation.n_users, loss.dim(federation.n_features, fit_intercept)
    out = Solution(
        np.zeros((m, dim)),
        np.ones(m, dtype=bool),
        np.zeros(m),
        np.zeros(m, dtype=np.intp),
        np.zeros(m, dtype=bool),
    )
    if dim == 0:  # no feature, no intercept: the empty model is the minimiser
        return out

    def solve(stack: Stack) -> None:
        _solve_stack(_job(stack, loss, penalty, fit_intercept), out)
        if progress is not None:
            progress(len(stack.users))

    _each(solve, stacks(federation, y), n_jobs)
    lost = np.flatnonzero(out.prior)
    if len(lost):
        if strict:
            raise ValueError(_no_minimiser(federation.users, lost, loss, fit_intercept))
        prior = PRIOR / federation.n_samples
        fallback = Penalty(penalty.strength + prior, penalty.center, free=False, intercept=prior)
        _each(
            lambda stack: _solve_stack(_job(stack, loss, fallback, fit_intercept), out),
            stacks(federation, y, lost),
            n_jobs,
        )
        out.prior[lost] = True
    return out


def _each(work: Callable[[Stack], None], items: Iterable[Stack], n_jobs: int | None) -> None:
    """Do the work on every stack; with jobs, in threads (NumPy and LAPACK let go of the lock)."""
    if n_jobs in (None, 1):
        for item in items:
            work(item)
        return
    from joblib import Parallel, delayed

    Parallel(n_jobs=n_jobs, prefer="threads")(delayed(work)(item) for item in items)


def _no_minimiser(users: Array, lost: Ints, loss: Loss, fit_intercept: bool) -> str:
    some = ", ".join(map(repr, users[lost][:3].tolist()))
    return (
        f"{len(lost)} of {len(users)} users (such as {some}) have no finite {loss.name} "
        "model: their classes are separable, or they hold one class or no counts. Set l2 > 0"
        + (" and fit_intercept=False" if fit_intercept else "")
        + ", or strict=False, which gives these users a small prior."
    )


@dataclass(frozen=True, eq=False)
class _Job:
    """A stack of users and what is asked of them."""

    stack: Stack
    loss: Loss
    strength: Floats  # (b,)
    center: Floats | None  # (b, n_inputs, q)
    intercept: Floats | None  # (b,), the intercept's strength; None: no intercept
    free: bool  # is there an intercept without a penalty?

    def take(self, pick: Bools | Ints) -> _Job:
        return _Job(
            self.stack.take(pick),
            self.loss,
            self.strength[pick],
            None if self.center is None else self.center[pick],
            None if self.intercept is None else self.intercept[pick],
            self.free,
        )

    @property
    def holds_intercept(self) -> bool:
        """Is there an intercept under the penalty, that is, one column more?"""
        return self.intercept is not None and not self.free

    @property
    def offset(self) -> Floats | None:
        """Predictor at the penalty's centre, (b, n, q)."""
        if self.center is None:
            return None
        if self.intercept is None:
            return np.matmul(self.stack.X, self.center)
        ones = self.stack.present[..., None]
        return np.matmul(self.stack.X, self.center[:, :-1]) + ones * self.center[:, -1:]

    @property
    def reach(self) -> Floats:
        """Entry of a penalised intercept's column, (b,).

        The coefficient of that column then has the strength of all others.
        """
        assert self.intercept is not None
        own = np.where(self.intercept > 0, self.intercept, 1.0)
        return np.where(self.intercept > 0, np.sqrt(self.strength / own), 1.0)

    def problem(self, D: Floats) -> Problem:
        """These users' risks on the design D (b, n, r); a free intercept's column is added."""
        b, n, r = D.shape
        Dt = np.empty((b, r + self.free, n))
        Dt[:, :r] = D.transpose(0, 2, 1)
        penalty = np.zeros((b, r + self.free))
        penalty[:, :r] = self.strength[:, None]
        if self.free:
            Dt[:, -1] = self.stack.present
        return Problem(
            self.loss,
            Dt,
            self.stack.y,
            self.stack.weight,
            penalty,
            self.offset,
            self.strength == 0,
            self.free,
        )

    def features(self) -> Floats:
        """X, with a penalised intercept's column if there is one."""
        if not self.holds_intercept:
            return self.stack.X
        column = self.stack.present * self.reach[:, None]
        return np.concatenate([self.stack.X, column[..., None]], axis=2)


def _job(stack: Stack, loss: Loss, penalty: Penalty, fit_intercept: bool) -> _Job:
    b, _, p = stack.X.shape
    strength = penalty.strength[stack.users]
    center = intercept = None
    if penalty.center is not None:
        center = penalty.center[stack.users].reshape(b, p + fit_intercept, loss.n_outputs)
    if fit_intercept:
        own = penalty.intercept
        intercept = strength if own is None else own[stack.users]
        intercept = np.zeros(b) if penalty.free else intercept
    return _Job(stack, loss, strength, center, intercept, fit_intercept and penalty.free)


def _solve_stack(job: _Job, out: Solution) -> None:
    """Route users by the shape of their rows."""
    wide = job.stack.present.sum(axis=1) <= job.stack.X.shape[2] + job.holds_intercept
    for mask, solve in ((wide, _solve_wide), (~wide, _solve_tall)):
        if mask.any():
            solve(job if mask.all() else job.take(mask), out)


# -- more rows than features -------------------------------------------------------------------


def _solve_tall(job: _Job, out: Solution) -> None:
    """Straight ahead where the columns are far from collinear; else with more care."""
    if isinstance(job.loss, Squared):
        doubt = _normal_equations(job, out)
    else:
        problem = job.problem(job.features())
        doubt = _left_over(_products(problem.Dt, job.stack), problem.pen) < SOUND
        if not doubt.all():
            sure = ~doubt
            found = newton(problem.take(sure) if doubt.any() else problem)
            sound = job.take(sure) if doubt.any() else job
            _finish(sound, found, _model(sound, found.a), out)
    if doubt.any():
        _solve_centred(job.take(doubt), out)


def _normal_equations(job: _Job, out: Solution) -> Bools:
    """Closed form of the squared loss: (D^T W D + pen) a = D^T W (y - offset).

    Users whose equations are in doubt are left to others: which, (b,)?
    """
    stack, X, offset = job.stack, job.features(), job.offset
    b, _, p = X.shape
    r = p + job.free
    target = stack.y if offset is None else stack.y - offset[..., 0]
    rows = np.stack([stack.weight * target, stack.weight], axis=1)[:, : 1 + job.free]
    moments = np.matmul(rows, X)  # of the target, and of the intercept's ones
    gram, right, pen = np.empty((b, r, r)), np.empty((b, r, 1)), np.zeros((b, r))
    gram[:, :p, :p] = _products(X.transpose(0, 2, 1), stack)
    right[:, :p, 0] = moments[:, 0]
    pen[:, :p] = job.strength[:, None]
    if job.free:
        gram[:, p, :p] = gram[:, :p, p] = moments[:, 1]
        gram[:, p, p], right[:, p, 0] = rows[:, 1].sum(axis=1), rows[:, 0].sum(axis=1)
    unit, scale = unit_diagonal(gram, pen)
    L = cholesky(unit)
    doubt = _least_pivot(L) < SOUND
    a = scale * substitute(L, scale * right)
    gradient = np.matmul(gram, a) + pen[..., None] * a - right
    sure = ~doubt
    if doubt.any():
        job, a, gradient = job.take(sure), a[sure], gradient[sure]
    _store(job, _model(job, a), gradient, None, out)
    return doubt


def _solve_centred(job: _Job, out: Solution) -> None:
    """Columns centred about a free intercept; collinear users go on to the decomposition."""
    X, mean = _centred(job.stack) if job.free else (job.features(), None)
    problem = job.problem(X)
    near = _left_over(_products(problem.Dt, job.stack), problem.pen) < COLLINEAR
    if near.any():
        _solve_collinear(job.take(near), X[near], None if mean is None else mean[near], out)
    if not near.all():
        sure = ~near
        found, job = _minimise(problem.take(sure)), job.take(sure)
        _finish(job, found, _model(job, found.a, None if mean is None else mean[sure]), out)


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


def _solve_collinear(job: _Job, X: Floats, mean: Floats | None, out: Solution) -> None:
    """Ill-conditioned or rank-deficient rows, by singular value decomposition.

    Without a penalty the columns are brought to one size before: which of them count must not
    depend on their units. Where some turn out to be free, the model of minimum norm is wanted, and
    that is one of the units: these users are decomposed as they are, unless the sizes are so
    unlike (1e4) that it would cost the digits of the small ones.
    """
    weight = job.stack.weight
    size = np.abs(np.sqrt(weight)[..., None] * X).max(axis=1)
    some = size > 0
    size = np.where(some, size, 1.0)
    scaled = (job.strength == 0) & (X.shape[1] > X.shape[2])
    D, back, rank = _basis(X, weight, np.where(scaled[:, None], size, 1.0))
    least = np.where(some, size, np.inf).min(axis=1, initial=np.inf)
    alike = np.where(some, size, 0.0).max(axis=1, initial=0.0) <= 1e4 * least
    short = scaled & alike & (rank < some.sum(axis=1))
    if short.any():
        D[short], back[short], _ = _basis(X[short], weight[short], np.ones(size[short].shape))
    found = _minimise(job.problem(D))
    a = np.concatenate(
        [np.matmul(back, found.a[:, : D.shape[2]]), found.a[:, D.shape[2] :]], axis=1
    )
    model = _model(job, a, mean)
    # Large coefficients that cancel have rounding of their own: the gradient is that of the model.
    _finish(job, replace(found, z=_predictor(job, model)), model, out)


def _basis(X: Floats, weight: Floats, size: Floats) -> tuple[Floats, Floats, Ints]:
    """X = D back^T diag(size)^2 with W-orthogonal D: (b, n, r), (b, p, r), and the rank, (b,).

    W^1/2 X diag(1/size) = U S V^T gives D = W^-1/2 U S, and D a = X theta for theta = back a =
    diag(1/size) V a. Singular values of rounding size are zero.
    """
    root = np.sqrt(weight)[..., None]
    U, S, Vt = np.linalg.svd(root * X / size[:, None, :], full_matrices=False)
    kept = _cut(X) * S[:, :1] < S
    D = U * (kept * S)[:, None, :] / np.where(root > 0, root, np.inf)
    return D, Vt.transpose(0, 2, 1) * kept[:, None, :] / size[..., None], kept.sum(axis=1)


def _cut(X: Floats) -> float:
    """The share of the largest singular value below which one is rounding, as in NumPy's lstsq."""
    return max(X.shape[1:]) * float(np.finfo(np.float64).eps)


# -- no more rows than features ----------------------------------------------------------------


def _solve_wide(job: _Job, out: Solution) -> None:
    """Solve in the span of the rows: theta - center = X^T alpha.

    The Gram matrix of the rows, K = L L^T, gives the design L of n columns and the way back,
    alpha = L^-T a. Users whose K is singular, or too near to it for the penalty to hide, are decomposed.
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
    n, q = L.shape[1], job.loss.n_outputs
    found = _minimise(job.problem(L * ~rows.spare[:, None, :]))
    alpha = substitute_back(L, found.a[:, :n])
    total = np.matmul(job.stack.present[:, None, :].astype(np.float64), alpha)
    if job.free:  # X^T of this is the centred X^T of what it was
        alpha = alpha - job.stack.weight[..., None] * total
    slope = _weighted_slope(job, found)
    # The one pass over X: the model, and the pull of the rows on it for the gradient.
    both = np.matmul(np.concatenate([alpha, slope], axis=2).transpose(0, 2, 1), job.stack.X)
    model = both[:, :q].transpose(0, 2, 1)
    if job.free:
        centre = np.matmul(rows.of_mean[:, None, :], alpha)
        model = np.concatenate([model, found.a[:, n:] - centre], axis=1)
    elif job.holds_intercept:
        model = np.concatenate([model, (job.reach**2)[:, None, None] * total], axis=1)
    _finish(job, found, model, out, pull=both[:, q:].transpose(0, 2, 1), slope=slope)


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
    def of(cls, job: _Job) -> _RowGram:
        X, present, weight = job.stack.X, job.stack.present, job.stack.weight
        b, n, _ = X.shape
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

    def sound(self, L: Floats, job: _Job) -> Bools:
        """Are K's error and the spread of the rows' weights harmless? (b,)"""
        pivots = diagonal(L)
        least = np.where(self.spare, np.inf, pivots).min(axis=1) ** 2
        most = job.stack.weight.max(axis=1)
        rarest = np.where(job.stack.present, job.stack.weight, np.inf).min(axis=1)
        known = (least > ROW_PIVOT * self.trace) & (pivots > 0).all(axis=1)
        known &= least + job.strength / most > ROW_FLOOR * self.trace
        return known & (least * rarest + job.strength > 1e-9 * most * self.trace)


# -- both --------------------------------------------------------------------------------------


def _products(Dt: Floats, stack: Stack) -> Floats:
    """D^T W D, (b, r, r); with equal weights the rows need not be scaled one by one."""
    D = Dt.transpose(0, 2, 1)
    if stack.even:
        return np.matmul(Dt, D) * stack.weight.max(axis=1)[:, None, None]
    return np.matmul(Dt * stack.weight[:, None, :], D)


def _left_over(gram: Floats, pen: Floats) -> Floats:
    """The least share of a column's variance that the columns before it leave, (b,).

    Read off the Cholesky factor of the matrix at unit diagonal; 0 where there is none.
    """
    unit, _ = unit_diagonal(gram, pen)
    return _least_pivot(cholesky(unit))


def _least_pivot(L: Floats) -> Floats:
    return diagonal(L).min(axis=1) ** 2


def _minimise(problem: Problem) -> Minimum:
    return _least_squares(problem) if isinstance(problem.loss, Squared) else newton(problem)


def _least_squares(problem: Problem) -> Minimum:
    """Normal equations, refined twice by the residuals of the rows themselves."""
    b, r, _ = problem.Dt.shape
    weight = problem.weight[..., None]
    solve = unit_solver(
        np.matmul(problem.Dt * weight.transpose(0, 2, 1), problem.Dt.transpose(0, 2, 1)),
        problem.pen,
    )
    a = np.zeros((b, r, 1))
    for _ in range(3):
        slope = weight * (problem.predictor(a) - problem.y[..., None])
        a = a - solve(np.matmul(problem.Dt, slope) + problem.pen[..., None] * a)
    everyone = np.ones(b, dtype=bool)
    return Minimum(a, problem.predictor(a), everyone, np.ones(b, dtype=np.intp), ~everyone)


def _model(job: _Job, a: Floats, mean: Floats | None = None) -> Floats:
    """Coordinates of X's columns and of the intercept's as a model, (b, n_inputs, q)."""
    if job.intercept is None:
        return a
    coef, intercept = a[:, :-1], a[:, -1:]
    if not job.free:
        intercept = intercept * job.reach[:, None, None]
    if mean is not None:
        intercept = intercept - np.matmul(mean, coef)
    return np.concatenate([coef, intercept], axis=1)


def _predictor(job: _Job, model: Floats) -> Floats:
    """Predictor at the centre plus the model, (b, n, q)."""
    p, offset = job.stack.X.shape[2], job.offset
    z = np.matmul(job.stack.X, model[:, :p])
    if job.intercept is not None:
        z += job.stack.present[..., None] * model[:, p:]
    return z if offset is None else z + offset


def _weighted_slope(job: _Job, found: Minimum) -> Floats:
    return job.loss.slope(found.z, job.stack.y) * job.stack.weight[..., None]


def _finish(
    job: _Job,
    found: Minimum,
    model: Floats,
    out: Solution,
    *,
    pull: Floats | None = None,
    slope: Floats | None = None,
) -> None:
    """The gradient of the risk at the models, and both into the solution.

    ``slope`` (b, n, q) is that of the rows, weighted, and ``pull`` (b, p, q) X^T times it.
    """
    slope = _weighted_slope(job, found) if slope is None else slope
    pull = np.matmul(job.stack.X.transpose(0, 2, 1), slope) if pull is None else pull
    p = pull.shape[1]
    gradient = np.empty(model.shape)
    gradient[:, :p] = pull + job.strength[:, None, None] * model[:, :p]
    if job.intercept is not None:
        ones = job.stack.present[:, None, :].astype(np.float64)
        gradient[:, p:] = np.matmul(ones, slope) + job.intercept[:, None, None] * model[:, p:]
    _store(job, model, gradient, found, out)


def _store(
    job: _Job, model: Floats, gradient: Floats, found: Minimum | None, out: Solution
) -> None:
    users = job.stack.users
    theta = model if job.center is None else job.center + model
    out.theta[users] = theta.reshape(len(users), out.theta.shape[1])
    out.gradient_norm[users] = np.sqrt((gradient**2).sum(axis=(1, 2)))
    out.converged[users] = True if found is None else found.converged
    out.n_iter[users] = 1 if found is None else found.n_iter
    out.prior[users] = False if found is None else found.lost
