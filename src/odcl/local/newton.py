"""Damped Newton on a stack of users; each stops on its own.

Up to some hundred parameters steps are found by Cholesky, beyond by conjugate gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.local.stacked import (
    Hessians,
    PerUser,
    outdated,
    preconditioner,
    products,
    solver,
    with_diagonal,
)
from odcl.risk.loss import Loss, weighted_gram

MAX_ITER = 100
# Beyond this log-odds or log-rate a user without a penalty is asked whether it runs off.
FAR = 15.0
# Rows that stand this far (in log-odds) on the right side prove a user's classes separable.
SEPARATE = 1e-6
# A row that moves by less than this share of the fastest, each for its size, stands still: what
# moves it is the end of a convergence that the runaway rows have long left behind.
STILL = 1e-12
# Beyond this many parameters, or outputs, steps are found by conjugate gradients: a row's curvature
# is a matrix of classes by classes, and tables of them outgrow the rows.
MANY, MANY_OUTPUTS = 200, 20
# What a step works on at a time, by conjugate gradients and with the rows' curvatures.
NEAR_BYTES, DENSE_BYTES = 1 << 20, 1 << 22
# The shares of a gradient that a step may leave, far from the minimum and at the least.
LOOSE, CLOSE = 0.3, 1e-4


@dataclass(frozen=True, eq=False)
class Problem(PerUser):
    """Risks of some users in coordinates ``a``, with the predictor ``D a``.

    The design D is held transposed: long rows make all products quicker.
    """

    loss: Loss
    Dt: Floats  # (b, r, n)
    y: Floats  # (b, n)
    weight: Floats  # (b, n); 0 for padded rows, where Dt is 0 too
    pen: Floats  # (b, r), diagonal of the penalty's Hessian
    bare: Bools  # (b,), no penalty at all: there may be no finite minimiser
    free: bool  # is the last coordinate an intercept without a penalty?
    gram: Floats | None = None  # (b, r, r), D^T W D, where it is at hand

    @property
    def many(self) -> bool:
        """Are there too many parameters for a Hessian?"""
        q = self.loss.n_outputs
        return self.pen.shape[1] * q > MANY or q > MANY_OUTPUTS

    def predictor(self, a: Floats) -> Floats:
        return np.matmul(self.Dt.transpose(0, 2, 1), a)


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where a solver stopped."""

    a: Floats  # (b, r, q)
    converged: Bools  # (b,)
    lost: Bools  # (b,), no finite minimiser


def newton(problem: Problem) -> Minimum:
    """Minimise each user's risk by Newton steps with a line search."""
    (b, r, n), q = problem.Dt.shape, problem.loss.n_outputs
    # What stays near the processor from one product to the next.
    near = NEAR_BYTES // (8 * (r * (r + n) + n * q))
    if not problem.many:
        near = b if q == 1 else DENSE_BYTES // (8 * (n * q**2 + (r * q) ** 2))
    if b <= (near := max(1, near)):
        return _newton(problem)
    parts = [_newton(problem.take(slice(i, i + near))) for i in range(0, b, near)]
    each = zip(*((one.a, one.converged, one.lost) for one in parts), strict=True)
    return Minimum(*map(np.concatenate, each))


def _newton(problem: Problem) -> Minimum:
    b, r, _ = problem.Dt.shape
    start = np.zeros((b, r, problem.loss.n_outputs))
    done = Minimum(start, np.zeros(b, dtype=bool), np.zeros(b, dtype=bool))
    if problem.free:
        done.lost[:] = problem.loss.one_sided(problem.y, problem.weight > 0)
    ids = np.flatnonzero(~done.lost)  # positions of the users in the state
    alive = np.ones(len(ids), dtype=bool)
    state = _State.start(problem if len(ids) == b else problem.take(ids))
    for iteration in range(1, MAX_ITER + 1):
        if not alive.any():
            break
        small, lost = state.step(alive, last=iteration == MAX_ITER)
        stop = alive & (small | lost | (iteration == MAX_ITER))
        if stop.any():
            who = ids[stop]
            done.a[who] = state.a[stop]
            done.converged[who], done.lost[who] = small[stop] & ~lost[stop], lost[stop]
            alive &= ~stop
            if 2 * alive.sum() <= len(alive):  # a copy of the rest costs less than idle steps
                ids, state = ids[alive], state.take(alive)
                alive = np.ones(len(ids), dtype=bool)
    return done


@dataclass(eq=False)
class _State(PerUser):
    """Where the users stand: ``a``, ``z``, and the loss, its slope and its curvature there."""

    problem: Problem
    a: Floats  # (b, r, q)
    z: Floats  # (b, n, q)
    value: Floats  # (b,)
    slope: Floats  # (b, n, q), times the rows' weights
    curve: Floats  # (b, n, q, q), likewise; with many parameters the loss's own, without weights
    scale: Floats  # (b,), falls of the risk are large or small against this
    best: Floats  # (b,), the least fall that a step has promised so far
    stale: Ints  # (b,), steps since it last halved
    room: Floats | None  # (b, r, n), to scale the design in
    inverse: Floats | None  # (b, r, r), many parameters: the preconditioner
    average: Floats  # (b,), and the curvature it was made for

    @classmethod
    def start(cls, problem: Problem) -> _State:
        """At zero, with the best free intercept."""
        b, r, _ = problem.Dt.shape
        a = np.zeros((b, r, problem.loss.n_outputs))
        if problem.free:
            a[:, -1] = problem.loss.start(problem.y, problem.weight)
        z = problem.predictor(a)
        value, slope, curve = _evaluate(problem, a, z)
        best, stale = np.full(b, np.inf), np.zeros(b, dtype=np.intp)
        room = None if problem.many else np.empty(problem.Dt.shape)
        inverse = np.empty((b, r, r)) if problem.many else None
        scale = problem.loss.scale(value)
        rest = (scale, best, stale, room, inverse, np.zeros(b))
        return cls(problem, a, z, value, slope, curve, *rest)

    def step(self, alive: Bools, *, last: bool = False) -> tuple[Bools, Bools]:
        """One step for every user. Returns whose step was small, so the last, and who is lost."""
        problem, (b, r, q) = self.problem, self.a.shape
        gradient = np.matmul(problem.Dt, self.slope) + problem.pen[..., None] * self.a
        if problem.many:
            direction = -self._solve_by_products(gradient * alive[:, None, None])
        else:
            solve = solver(with_diagonal(self._hessian(), np.repeat(problem.pen, q, axis=1)))
            direction = -solve(gradient.reshape(b, r * q, 1)).reshape(b, r, q)
        direction *= alive[:, None, None]
        # The predictor is found afresh: sums of steps would keep the rounding of the largest.
        z = problem.predictor(self.a + direction)
        dz = z - self.z
        descent = (gradient * direction).reshape(b, r * q).sum(axis=1)
        resolution = problem.loss.resolution(z, problem.y)
        small = (np.abs(dz) <= resolution).all(axis=(1, 2))
        small |= (descent >= 0) | (-descent <= 1e-24 * self.scale)
        stalled = self._stalled(-descent)
        self._move(direction, z, descent, alive & (descent < 0))
        lost = self._lost(alive & ~small, direction, dz)
        given_up = (stalled | last) & ~small
        if given_up.any():  # so far out and with nothing more to show for it: as good as lost
            lost |= given_up & self.far()
        return small | stalled, lost

    def _hessian(self) -> Floats:
        """Of the rows' losses, (b, r q, r q); at the start, one curvature for all rows may do."""
        problem = self.problem
        if problem.gram is not None and problem.loss.same_at_start:
            self.problem = replace(problem, gram=None)
            return problem.gram * (self.curve[:, 0, :, 0] / problem.weight[:, :1])[..., None]
        return weighted_gram(problem.Dt, self.curve, room=self.room)

    def _solve_by_products(self, g: Floats) -> Floats:
        """About the Hessian's inverse times g, the nearer the less there is to gain."""
        problem = self.problem
        if problem.gram is None:
            scaled = problem.Dt * problem.weight[:, None, :]
            gram = np.matmul(scaled, problem.Dt.transpose(0, 2, 1))
            self.problem = problem = replace(problem, gram=gram)
        assert problem.gram is not None
        assert self.inverse is not None
        average = (problem.weight * problem.loss.average_bend(self.curve)).sum(axis=1)
        old = outdated(average, self.average)
        if old.any():
            parts = problem.gram[old], average[old], problem.pen[old]
            self.inverse[old], self.average = (
                preconditioner(*parts),
                np.where(old, average, self.average),
            )
        system = Hessians(
            problem.loss, problem.Dt, problem.weight, self.curve, problem.pen, self.inverse
        )
        flat = g.reshape(len(g), -1)
        fall = products(flat, system.near(flat))
        enough = np.clip(np.sqrt(fall / np.maximum(self.scale, 1e-300)), CLOSE, LOOSE)
        return system.solve(flat, enough).reshape(g.shape)

    def _stalled(self, fall: Floats) -> Bools:
        """Have steps promised next to nothing for a while, without getting anywhere? (b,)

        So do directions in which only a trace of a penalty acts: rounding is stronger there.
        """
        better = fall < 0.5 * self.best
        self.best = np.where(better, fall, self.best)
        self.stale = np.where(better, 0, self.stale + 1)
        return (fall <= 1e-12 * self.scale) & (self.stale >= 8)

    def _move(self, direction: Floats, z: Floats, descent: Floats, going: Bools) -> None:
        """The full step where the risk falls (Armijo); elsewhere to where its slope vanishes."""
        problem, a = self.problem, self.a + direction
        value, slope, curve = _evaluate(problem, a, z)
        back = np.flatnonzero(going & ~(value <= self.value + 1e-4 * descent))
        if len(back):
            part, way = problem.take(back), direction[back]
            # Not the difference of two predictors: its rounding, times slopes that do not vanish
            # row by row, would drown the slope along the line.
            dz = np.matmul(part.Dt.transpose(0, 2, 1), way)
            line = _LineSearch(part, self.a[back], self.z[back], way, dz)
            # Rounding hides the fall of a tiny step; that the slope is gone shows all the same.
            over = ~(line.slope_at(np.ones(len(back))) <= -0.1 * descent[back])
            if over.any():
                back, line = back[over], line.take(over)
                a[back] = line.minimum()
                z[back] = line.problem.predictor(a[back])
                value[back], slope[back], curve[back] = _evaluate(line.problem, a[back], z[back])
        self.a, self.z, self.value, self.slope, self.curve = a, z, value, slope, curve

    def far(self) -> Bools:
        """Users who could run off for ever and have come a long way, (b,)."""
        if self.problem.loss.recedes(self.z[:0], self.problem.y[:0]) is None:
            return np.zeros(len(self.z), dtype=bool)
        return self.problem.bare & (np.abs(self.z).max(axis=(1, 2)) > FAR)

    def _lost(self, alive: Bools, direction: Floats, dz: Floats) -> Bools:
        """Users without a penalty who stand, or walk, where the risk falls for ever, (b,)."""
        problem = self.problem
        asked = alive & problem.bare
        at = problem.loss.recedes(self.z, problem.y) if asked.any() else None
        if at is None:
            return np.zeros(len(alive), dtype=bool)
        absent = problem.weight == 0
        lost = asked & ((at[0] > SEPARATE) | absent).all(axis=1)
        asked &= ~lost & self.far()
        if asked.any():  # a quick look at all rows, then a close one at the few users who pass
            ahead = problem.loss.recedes(dz, problem.y)
            assert ahead is not None
            rise = np.where(absent, 0.0, -ahead[0]).max(axis=1)
            asked &= rise <= 1e-6 * np.abs(dz).max(axis=(1, 2))
        if asked.any():
            lost[asked] = _falls_for_ever(problem.take(asked), direction[asked])
        return lost


def _evaluate(problem: Problem, a: Floats, z: Floats) -> tuple[Floats, Floats, Floats]:
    """Risk, and the rows' weighted slope and curvature."""
    (b, r, q), weight, many = a.shape, problem.weight, problem.many
    with np.errstate(over="ignore"):  # an overshooting step is worth inf and is cut back
        terms = problem.loss.lean_terms if many else problem.loss.terms
        value, slope, curve = terms(z, problem.y)
        penalty = (problem.pen[..., None] * a**2).reshape(b, r * q).sum(axis=1)
    risk = (weight * value).sum(axis=1) + 0.5 * penalty
    return risk, slope * weight[..., None], curve if many else curve * weight[..., None, None]


@dataclass(frozen=True, eq=False)
class _LineSearch(PerUser):
    """The risks along the users' directions: ``a + t direction``, ``z + t dz``."""

    problem: Problem
    a: Floats
    z: Floats
    direction: Floats
    dz: Floats

    def slope_at(self, t: Floats) -> Floats:
        """Derivative of the risk along the line after a length of ``t``, both (b,)."""
        problem, (b, n, q) = self.problem, self.z.shape
        at = t[:, None, None]
        slope = problem.loss.slope(self.z + at * self.dz, problem.y) * problem.weight[..., None]
        pull = problem.pen[..., None] * (self.a + at * self.direction) * self.direction
        rows = (slope * self.dz).reshape(b, n * q).sum(axis=1)
        return rows + pull.reshape(b, self.a.shape[1] * q).sum(axis=1)

    def minimum(self) -> Floats:
        """The point where a quarter of the slope or less is left, (b, r, q).

        Along a line the slope of a convex risk rises: below zero at 0, above it at 1. Regula falsi
        finds the zero between, kept off the ends, which an overflow may have spoilt.
        """
        low, high = np.zeros(len(self.a)), np.ones(len(self.a))
        at_low, at_high = self.slope_at(low), self.slope_at(high)
        enough = 0.25 * np.abs(at_low)
        t, going = high, np.ones(len(self.a), dtype=bool)
        for _ in range(60):
            gap = at_high - at_low
            share = np.clip(-at_low / np.where(gap > 0, gap, np.inf), 0.1, 0.9)
            t = np.where(going, low + share * (high - low), t)
            slope = self.slope_at(t)
            going &= np.abs(slope) > enough
            if not going.any():
                break
            up = slope > 0
            high, at_high = np.where(up, t, high), np.where(up, slope, at_high)
            low, at_low = np.where(up, low, t), np.where(up, at_low, slope)
        return self.a + t[:, None, None] * self.direction


def _falls_for_ever(problem: Problem, direction: Floats) -> Bools:
    """Does no row's loss rise along the direction, and some row's fall? Up to rounding, (b,)."""
    dz = np.matmul(problem.Dt.transpose(0, 2, 1), direction)
    ways = problem.loss.recedes(dz, problem.y)
    assert ways is not None
    size = np.abs(problem.Dt).max(axis=2)
    size = np.where(size > 0, size, 1.0)
    fastest = (size[..., None] * np.abs(direction)).max(axis=(1, 2))
    of_row = np.matmul((1.0 / size)[:, None, :], np.abs(problem.Dt))[:, 0]
    rounding = fastest[:, None] * (STILL * of_row + 1e-15 * len(size[0]))
    present = problem.weight > 0
    never_up = ((ways[0] >= -rounding) | ~present).all(axis=1)
    return never_up & ((ways[1] > rounding) & present).any(axis=1)
