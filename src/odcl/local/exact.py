"""Exact local models (Algorithm 1, step 1), solved for all users at once.

Each user's problem is brought to a full-rank design first, then solved: in closed form for the
squared loss, by damped Newton otherwise. See ``stacks.py`` for why batching changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import Federation
from odcl.local.losses import Loss, Squared, weighted_gram
from odcl.local.stacks import Stack, stacks

MAX_ITER = 100
# A Newton step that moves no predictor by more than this (in the loss's own unit) is the last:
# convergence is quadratic, so what is left is of the size of its square.
STEP_TOL = 1e-8
# Log-odds beyond this are infinite for float64's purposes: the risk has no finite minimiser.
FAR = 40.0
# Under this share of its variance left by the columns before it, a column makes the normal
# equations lose half of the digits or more: such users get a singular value decomposition.
COLLINEAR = 1e-8
# Users without a finite minimiser: a normal prior with standard deviation 10 on every coefficient,
# the intercept included. PRIOR is its precision; it is divided by the user's sample size.
PRIOR = 1e-2


@dataclass(frozen=True, eq=False)
class Solution:
    """Minimisers of the users' risks, one row a user."""

    theta: Floats  # (n_users, dim)
    converged: Bools  # (n_users,)
    gradient_norm: Floats  # (n_users,), of the risk at theta
    n_iter: Ints  # (n_users,)
    prior: Bools  # (n_users,), no finite minimiser: solved with a small prior (see PRIOR)


@dataclass(frozen=True)
class Penalty:
    """strength/2 ||theta - center||^2 a user; ``free`` leaves the intercept out of it."""

    strength: Floats  # (n_users,)
    center: Floats | None = None  # (n_users, dim); None: zero
    free: bool = True


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
    no counts with a free intercept) is solved with a small prior instead and marked ``prior``;
    ``strict=True`` makes it an error.
    """
    m, dim = federation.n_users, loss.dim(federation.n_features, fit_intercept)
    out = Solution(
        np.zeros((m, dim)),
        np.zeros(m, dtype=bool),
        np.zeros(m),
        np.zeros(m, dtype=np.intp),
        np.zeros(m, dtype=bool),
    )

    def solve(stack: Stack) -> None:
        _solve_stack(stack, loss, penalty, fit_intercept, out)
        if progress is not None:
            progress(len(stack.users))

    _each(solve, stacks(federation, y), n_jobs)
    if out.prior.any():
        if strict:
            raise ValueError(_no_minimiser(federation.users, out.prior, loss, fit_intercept))
        fallback = Penalty(PRIOR / federation.n_samples, penalty.center, free=False)
        lost = np.flatnonzero(out.prior)
        _each(
            lambda stack: _solve_stack(stack, loss, fallback, fit_intercept, out),
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


def _no_minimiser(users: Array, lost: Bools, loss: Loss, fit_intercept: bool) -> str:
    some = ", ".join(map(repr, users[lost][:3].tolist()))
    return (
        f"{int(lost.sum())} of {len(users)} users (such as {some}) have no finite {loss.name} "
        "model: their classes are separable, or they hold one class or no counts. Set l2 > 0"
        + (" and fit_intercept=False" if fit_intercept else "")
        + ", or strict=False, which gives these users a small prior."
    )


@dataclass(frozen=True, eq=False)
class _Problem:
    """Risks of a stack of users in coordinates where the design has full rank.

    The predictor is ``offset + D a``. With ``free`` the last column of D is the intercept's, and
    the others are centred, which makes it orthogonal to them. ``back`` leads from ``a`` to the
    coefficients: a chain of stacked matrices, empty where ``a`` is the coefficients themselves.
    """

    stack: Stack
    loss: Loss
    D: Floats  # (b, n, r)
    strength: Floats  # (b,)
    offset: Floats  # (b, n, q)
    center: Floats  # (b, n_inputs, q)
    mean: Floats | None  # (b, p), what centring took off; None: no free intercept
    back: tuple[Floats, ...] = ()

    @property
    def free(self) -> bool:
        return self.mean is not None

    @property
    def features(self) -> Floats:
        return self.D[:, :, :-1] if self.free else self.D

    def take(self, pick: Bools) -> _Problem:
        return _Problem(
            self.stack.take(pick),
            self.loss,
            self.D[pick],
            self.strength[pick],
            self.offset[pick],
            self.center[pick],
            None if self.mean is None else self.mean[pick],
            tuple(b[pick] for b in self.back),
        )

    def reduced(self, D: Floats, back: tuple[Floats, ...]) -> _Problem:
        """The same risks on another design of the features; the intercept's column stays."""
        D = np.concatenate([D, self.D[:, :, -1:]], axis=2) if self.free else D
        return replace(self, D=D, back=back)

    def penalty(self) -> Floats:
        """Diagonal of the penalty's Hessian, (b, r): a free intercept has none."""
        pen = np.repeat(self.strength[:, None], self.D.shape[2], axis=1)
        if self.free:
            pen[:, -1] = 0.0
        return pen


def _problem(stack: Stack, loss: Loss, penalty: Penalty, fit_intercept: bool) -> _Problem:
    b, n, p = stack.X.shape
    q, inputs = loss.n_outputs, p + fit_intercept
    D, mean = stack.X, None
    free = fit_intercept and penalty.free
    if free:
        mean = np.matmul(stack.weight[:, None, :], D)[:, 0]
        D = (D - mean[:, None, :]) * stack.present[..., None]
        # What centring leaves of a constant column is rounding: it is nothing.
        size = np.abs(stack.X).max(axis=1)
        D *= (np.abs(D).max(axis=1) > 1e-14 * size)[:, None, :]
    if fit_intercept:
        D = np.concatenate([D, stack.present[..., None].astype(np.float64)], axis=2)
    center, offset = np.zeros((b, inputs, q)), np.zeros((b, n, q))
    if penalty.center is not None:
        center = penalty.center[stack.users].reshape(b, inputs, q)
        offset = np.matmul(D, center)
    return _Problem(stack, loss, D, penalty.strength[stack.users], offset, center, mean)


def _solve_stack(
    stack: Stack, loss: Loss, penalty: Penalty, fit_intercept: bool, out: Solution
) -> None:
    """Route users by the shape of their rows: wide, tall, or collinear."""
    problem = _problem(stack, loss, penalty, fit_intercept)
    wide = stack.present.sum(axis=1) <= problem.features.shape[2]
    if wide.any():
        _solve_wide(problem if wide.all() else problem.take(wide), out)
    if not wide.all():
        _solve_tall(problem.take(~wide) if wide.any() else problem, out)


def _solve_tall(problem: _Problem, out: Solution) -> None:
    """More rows than features: the normal equations, unless the columns are collinear."""
    squared = isinstance(problem.loss, Squared)
    mended = problem.strength > 1e-10 * np.abs(problem.D).max(axis=(1, 2)) ** 2
    if mended.all() and not squared:
        _finish(problem, _newton(problem), out)
        return
    gram = _gram(problem)
    diagonal = np.diagonal(gram, axis1=1, axis2=2)
    # On the unit-diagonal matrix plus a trace of identity a Cholesky factorisation cannot fail;
    # its diagonal tells how much of each column the columns before it leave unexplained.
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    unit = gram * scale[:, :, None] * scale[:, None, :]
    unit[:, range(unit.shape[1]), range(unit.shape[1])] = 1.0 + 1e-12
    left = np.diagonal(np.linalg.cholesky(unit), axis1=1, axis2=2).min(axis=1) ** 2
    bad = (left < COLLINEAR) & ~mended
    if bad.any():
        _solve_collinear(problem.take(bad), out)
        if bad.all():
            return
        problem, gram, left = problem.take(~bad), gram[~bad], left[~bad]
    found = _least_squares(problem, gram, refine=left < 1e-3) if squared else _newton(problem)
    _finish(problem, found, out)


def _solve_wide(problem: _Problem, out: Solution) -> None:
    """No more rows than features: solve in the span of the rows, theta - center = X^T a.

    The Gram matrix of the rows, K = U S^2 U^T, gives the design U S of n columns and the way back
    X^T U S^-1. Forming K squares the condition number, so without a penalty that hides it, users
    whose small eigenvalues are in doubt go to the singular value decomposition.
    """
    X = problem.features
    squares, U = np.linalg.eigh(np.matmul(X, X.transpose(0, 2, 1)))
    top = np.maximum(squares[:, -1:], 1e-300)
    # Padded rows, and rows centred to sum to zero, give as many eigenvalues of zero.
    zeros = (~problem.stack.present).sum(axis=1) + problem.free
    dead = (np.arange(squares.shape[1]) < zeros[:, None]) | (squares <= 0)
    doubt = ((squares < 1e-9 * top) & ~dead).any(axis=1) & (problem.strength <= 1e-10 * top[:, 0])
    if doubt.any():
        _solve_collinear(problem.take(doubt), out)
        if doubt.all():
            return
        keep = ~doubt
        problem, X, squares = problem.take(keep), X[keep], squares[keep]
        U, dead = U[keep], dead[keep]
    S = np.sqrt(np.where(dead, 0.0, squares))
    inverse = np.where(dead, 0.0, 1.0 / np.where(dead, 1.0, S))
    reduced = problem.reduced(
        U * S[:, None, :], back=(X.transpose(0, 2, 1), U * inverse[:, None, :])
    )
    _finish(reduced, _minimise(reduced), out)


def _solve_collinear(problem: _Problem, out: Solution) -> None:
    """Ill-conditioned or rank-deficient rows: X = U S V^T, minimum norm in what is left free."""
    X = problem.features
    U, S, Vt = np.linalg.svd(X, full_matrices=False)
    S = np.where(max(X.shape[1:]) * np.finfo(np.float64).eps * S[:, :1] < S, S, 0.0)
    back = Vt.transpose(0, 2, 1) * (S > 0)[:, None, :]
    reduced = problem.reduced(U * S[:, None, :], back=(back,))
    _finish(reduced, _minimise(reduced), out)


@dataclass(frozen=True, eq=False)
class _Minimum:
    a: Floats  # (b, r, q)
    gradient: Floats  # (b, r, q)
    converged: Bools
    n_iter: Ints
    lost: Bools  # no finite minimiser


def _minimise(problem: _Problem) -> _Minimum:
    if isinstance(problem.loss, Squared):
        return _least_squares(problem, _gram(problem), refine=np.ones(len(problem.D), dtype=bool))
    return _newton(problem)


def _gram(problem: _Problem) -> Floats:
    """D^T W D, (b, r, r); with equal weights the rows need not be scaled one by one."""
    D, stack = problem.D, problem.stack
    if stack.even:
        return np.matmul(D.transpose(0, 2, 1), D) * stack.weight.max(axis=1)[:, None, None]
    return np.matmul(D.transpose(0, 2, 1), D * stack.weight[..., None])


def _least_squares(problem: _Problem, gram: Floats, *, refine: Bools) -> _Minimum:
    """Closed form: (D^T W D + pen) a = D^T W (y - offset); one refinement where it may matter."""
    D, weight, pen = problem.D, problem.stack.weight[:, None, :], problem.penalty()[..., None]
    solve = _solver(gram, pen[..., 0])
    target = (problem.stack.y - problem.offset[..., 0])[:, None, :]

    def gradient_at(a: Floats) -> Floats:
        residual = (target - np.matmul(D, a).transpose(0, 2, 1)) * weight
        return pen * a - np.matmul(residual, D).transpose(0, 2, 1)

    a = solve(np.matmul(target * weight, D).transpose(0, 2, 1))
    gradient = gradient_at(a)
    if refine.any():
        a = np.where(refine[:, None, None], a - solve(gradient), a)
        gradient = np.where(refine[:, None, None], gradient_at(a), gradient)
    everyone = np.ones(len(a), dtype=bool)
    return _Minimum(a, gradient, everyone, np.ones(len(a), dtype=np.intp), ~everyone)


def _solver(H: Floats, pen: Floats) -> Callable[[Floats], Floats]:
    """g -> (H + pen)^-1 g on the unit-diagonal matrix; empty columns keep their zeros."""
    r = H.shape[1]
    H = H.copy()
    H[:, range(r), range(r)] += pen
    diagonal = H[:, range(r), range(r)]
    scale = (1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)))[..., None]
    unit = H * scale * scale.transpose(0, 2, 1)
    # The trace of identity is far below what a refinement or the next Newton step corrects.
    unit[:, range(r), range(r)] = 1.0 + 1e-13

    def solve(g: Floats) -> Floats:
        return scale * np.linalg.solve(unit, scale * g)

    return solve


def _newton(problem: _Problem) -> _Minimum:
    """Damped Newton on a stack; each user stops on its own, so no user waits in vain."""
    b, _, r = problem.D.shape
    q = problem.loss.n_outputs
    done = _Minimum(
        np.zeros((b, r, q)),
        np.zeros((b, r, q)),
        np.zeros(b, dtype=bool),
        np.zeros(b, dtype=np.intp),
        np.zeros(b, dtype=bool),
    )
    if problem.free:
        done.lost[:] = problem.loss.one_sided(problem.stack.y, problem.stack.present)
    ids = np.flatnonzero(~done.lost)  # positions of those still at work
    if len(ids) < b:
        problem = problem.take(~done.lost)
    state = _State.start(problem)
    for iteration in range(1, MAX_ITER + 1):
        if len(ids) == 0:
            break
        small = state.step()
        lost = state.escaped() & ~small
        stop = small | lost | (iteration == MAX_ITER)
        if stop.any():
            done.a[ids[stop]] = state.a[stop]
            done.gradient[ids[stop]] = state.gradient()[stop]
            done.n_iter[ids[stop]] = iteration
            done.converged[ids[stop]] = small[stop]
            done.lost[ids[stop]] = lost[stop]
            ids = ids[~stop]
            state = state.take(~stop)
    return done


@dataclass(eq=False)
class _State:
    """Where Newton's method stands: coordinates ``a`` and predictors ``z = offset + D a``."""

    problem: _Problem
    pen: Floats  # (b, r)
    a: Floats  # (b, r, q)
    z: Floats  # (b, n, q)
    value: Floats  # (b,)

    @classmethod
    def start(cls, problem: _Problem) -> _State:
        stack, loss = problem.stack, problem.loss
        a = np.zeros((len(stack.users), problem.D.shape[2], loss.n_outputs))
        if problem.free:
            a[:, -1] = loss.start((stack.weight * stack.y).sum(axis=1))
        z = problem.offset + np.matmul(problem.D, a)
        state = cls(problem, problem.penalty(), a, z, np.zeros(len(a)))
        state.value = state.risk(a, z)
        return state

    def take(self, pick: Bools) -> _State:
        return _State(
            self.problem.take(pick), self.pen[pick], self.a[pick], self.z[pick], self.value[pick]
        )

    def risk(self, a: Floats, z: Floats) -> Floats:
        stack = self.problem.stack
        rows = (stack.weight * self.problem.loss.value(z, stack.y)).sum(axis=1)
        return rows + 0.5 * (self.pen[..., None] * a**2).sum(axis=(1, 2))

    def gradient(self) -> Floats:
        stack = self.problem.stack
        slope = self.problem.loss.slope(self.z, stack.y) * stack.weight[..., None]
        return np.matmul(self.problem.D.transpose(0, 2, 1), slope) + self.pen[..., None] * self.a

    def step(self) -> Bools:
        """One step for everybody; True for those whose step was so small that it is the last."""
        stack, loss = self.problem.stack, self.problem.loss
        b, r, q = self.a.shape
        curve = loss.newton_curve(self.z, stack.y) * stack.weight[..., None, None]
        gradient = self.gradient()
        H = weighted_gram(self.problem.D, curve)
        direction = -_solver(H, np.repeat(self.pen, q, axis=1))(gradient.reshape(b, r * q, 1))
        direction = direction.reshape(b, r, q)
        dz = np.matmul(self.problem.D, direction)
        slope = (gradient * direction).sum(axis=(1, 2))
        self._line_search(direction, dz, slope)
        moved = np.abs(dz).max(axis=(1, 2))
        size = np.maximum(np.abs(self.z).max(axis=(1, 2)), loss.unit(stack.y))
        return (moved <= STEP_TOL * size) | ~(slope < 0)

    def _line_search(self, direction: Floats, dz: Floats, slope: Floats) -> None:
        """Move; halve the step of each user until its risk falls (Armijo), up to rounding."""
        length = np.ones((len(slope), 1, 1))
        slack = 1e-14 * np.abs(self.value)
        for _ in range(60):
            a, z = self.a + length * direction, self.z + length * dz
            value = self.risk(a, z)
            short = ~(value <= self.value + 1e-4 * length[:, 0, 0] * slope + slack)
            if not short.any():
                break
            length[short] *= 0.5
        self.a, self.z, self.value = a, z, value

    def escaped(self) -> Bools:
        """Without a penalty: the predictors separate the classes, or have run off."""
        stack = self.problem.stack
        far = np.abs(self.z).max(axis=(1, 2)) > FAR * self.problem.loss.unit(stack.y)
        free = self.problem.strength == 0
        return free & (self.problem.loss.separates(self.z, stack.y, stack.present) | far)


def _finish(problem: _Problem, found: _Minimum, out: Solution) -> None:
    """From reduced coordinates to models, and the norm of the risk's gradient there."""
    users = problem.stack.users
    coef = found.a[:, :-1] if problem.free else found.a
    for matrix in reversed(problem.back):
        coef = np.matmul(matrix, coef)
    gradient = found.gradient
    norm = np.sqrt((gradient**2).sum(axis=(1, 2)))
    if problem.mean is not None:
        intercept = found.a[:, -1:] - np.matmul(problem.mean[:, None, :], coef)
        coef = np.concatenate([coef, intercept], axis=1)
        # Undoing the centring adds mean * (intercept's gradient) to the coefficients' part.
        tail = np.sqrt((gradient[:, -1] ** 2).sum(axis=1))
        norm = norm + np.linalg.norm(problem.mean, axis=1) * tail
    out.theta[users] = (problem.center + coef).reshape(len(users), -1)
    out.converged[users] = found.converged
    out.gradient_norm[users] = norm
    out.n_iter[users] = found.n_iter
    out.prior[users] = found.lost
