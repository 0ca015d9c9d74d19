"""Many fits of one user's rows side by side: other penalties, other rows left out.

Each trial is

    minimise  sum_j weight_j loss(offset_j + x_j theta, y_j) + pen/2 ||theta||^2

with weights and a penalty of its own, on one design; the intercept, the last of theta, may have
another penalty than the rest. In coordinates in which the design's columns are orthogonal, the
Hessian at an average curvature is diagonal for every penalty: it costs nothing to precondition
conjugate gradients by it, and a product with all trials' Hessians is two products of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.conjugate import System, products
from odcl.local.newton import CLOSE, LOOSE, MAX_ITER
from odcl.local.stacked import PerUser
from odcl.risk.columns import Columns

# Directions in which the rows vary by less than this share of the most, squared, are left out
# where there are no more rows than features: a penalty holds them at the centre.
FLAT = 1e-12


@dataclass(frozen=True, eq=False)
class Design:
    """Rows in orthogonal coordinates: theta = basis a, X theta = D a and D^T W D = diag(size)."""

    D: Floats  # (n, r)
    Dt: Floats  # (r, n)
    size: Floats  # (r,)
    basis: Floats  # (inputs, r), orthonormal columns that span the rows of X

    @classmethod
    def of(cls, X: Floats, weight: Floats) -> Design:
        """Of all the columns of X (n, inputs), for rows' weights that sum to 1, (n,)."""
        n, inputs = X.shape
        if n > inputs:
            size, basis = np.linalg.eigh((X * weight[:, None]).T @ X)
        else:
            rows = X * np.sqrt(weight)[:, None]
            size, U = np.linalg.eigh(rows @ rows.T)
            kept = size > FLAT * max(size[-1], 1e-290)
            size, U = size[kept], U[:, kept]
            basis = rows.T @ U / np.sqrt(size)
        D = X @ basis
        return cls(D, np.ascontiguousarray(D.T), np.maximum(size, 0.0), basis)

    def relief(self, pen: Floats, intercept: Floats) -> Floats:
        """What a penalty ``pen`` on all of theta has too much, (t,), if the intercept's is less.

        The penalty is pen ||a||^2 - relief (last a)^2 over two, where ``last`` is the last row of
        the basis. The intercept may leave the span of the rows of X, which ``basis`` does not: of
        all theta with the same X theta, that of the least penalty is meant.
        """
        outside = 1.0 - (self.basis[-1] ** 2).sum()
        less = pen - intercept
        return less * pen / np.maximum(pen - less * outside, 1e-290)


@dataclass(eq=False)
class Trials(PerUser):
    """Fits to be made, t of them. Those of one user never depend on another's."""

    design: Design
    columns: Columns
    weight: Floats  # (t, n), sums to 1 each
    pen: Floats  # (t,)
    relief: Floats  # (t,), see ``Design.relief``
    offset: Floats  # (t, c, n)
    # A step is the last that moves no predictor by more than ``near`` and leaves an error of no
    # more than ``left``. An error of 1 costs half a unit of the n rows' total loss.
    near: Floats  # (t,)
    left: Floats  # (t,)

    def minimise(self, start: Floats) -> Floats:
        """The minimisers, (t, c, r), by Newton steps that are cut until the risk falls."""
        found = start.copy()
        ids, state = np.arange(len(found)), _State.at(self, start)
        for _ in range(MAX_ITER):
            step = state.step()
            done = step.last
            found[ids[done]] = step.a[done]
            if done.all():
                return found
            ids, state = ids[~done], state.moved(step)
        found[ids] = state.a
        return found

    def predictor(self, a: Floats) -> Floats:
        """(t, c, n)"""
        return self.offset + _times(a, self.design.Dt)

    def penalised(self, a: Floats) -> Floats:
        """Gradient of the penalty, (t, c, r)."""
        pull = _penalised(self.pen, self.relief, self.design.basis[-1], _flat(a))
        return pull.reshape(a.shape)


@dataclass(eq=False)
class _Step(PerUser):
    """A Newton step of every trial."""

    direction: Floats  # (t, c, r)
    a: Floats  # (t, c, r), where it leads
    z: Floats  # (t, c, n), and the predictor there
    descent: Floats  # (t,), slope of the risk along it
    last: Bools  # (t,), is it so small that it is the last?


@dataclass(eq=False)
class _State:
    """Trials, and what is known where they stand."""

    trials: Trials
    a: Floats  # (t, c, r)
    z: Floats  # (t, c, n)
    risk: Floats  # (t,)
    pull: Floats  # (t, c, r), of the penalty
    slope: Floats  # (t, c, n), times the rows' weights
    bend: Floats  # (t, c, n)

    @classmethod
    def at(cls, trials: Trials, a: Floats, z: Floats | None = None) -> _State:
        z = trials.predictor(a) if z is None else z
        pull = trials.penalised(a)
        value, slope, bend = trials.columns.terms(z)
        risk = (trials.weight * value).sum(axis=1) + 0.5 * products(_flat(pull), _flat(a))
        slope *= trials.weight[:, None, :]
        return cls(trials, a, z, risk, pull, slope, bend)

    def step(self) -> _Step:
        """Towards the minimum: the smaller the gradient, the more exactly."""
        trials = self.trials
        gradient = _times(self.slope, trials.design.D) + self.pull
        system = self._system()
        flat = _flat(gradient)
        fall = np.maximum(products(flat, system.near(flat)), 1e-300)
        size = np.sqrt(len(trials.design.D) * fall)
        enough = np.sqrt(fall / np.maximum(self.risk, 1e-300))
        enough = np.clip(np.maximum(enough, trials.left / size), CLOSE, LOOSE)
        way = system.solve(flat, enough)
        direction, descent = -way.reshape(gradient.shape), -products(flat, way)
        a = self.a + direction
        z = trials.predictor(a)
        last = np.abs(z - self.z).max(axis=(1, 2)) <= trials.near
        last &= (enough * size <= 1.5 * trials.left) | (enough == CLOSE)
        last |= -descent <= 1e-15 * self.risk  # less than the risk can show
        return _Step(direction, a, z, descent, last)

    def moved(self, step: _Step) -> _State:
        """Trials that go on, after the step or the first of its half, quarter and so on that lowers
        the risk."""
        trials, a, risk = self.trials, self.a, self.risk
        if step.last.any():
            on = ~step.last
            trials, a, risk, step = trials.take(on), a[on], risk[on], step.take(on)
        new = _State.at(trials, step.a, step.z)
        length = np.ones(len(risk))
        for _ in range(30):
            over = ~(new.risk <= risk + 1e-4 * length * step.descent)
            if not over.any():
                break
            length = np.where(over, 0.5 * length, length)
            new = _State.at(trials, a + length[:, None, None] * step.direction)
        return new

    def _system(self) -> _Hessians:
        trials = self.trials
        average = (trials.weight * trials.columns.average_bend(self.bend)).sum(axis=1)
        own = average[:, None] * trials.design.size + trials.pen[:, None]
        inverse = 1.0 / np.where(own > 1e-290, own, 1.0)
        weighted = self.bend * trials.weight[:, None, :]
        each = np.tile(inverse, (1, self.a.shape[1]))  # the same for all columns
        fixed = (trials.design, trials.columns)
        return _Hessians(*fixed, self.bend, weighted, trials.pen, trials.relief, each)


@dataclass(eq=False)
class _Hessians(System):
    """Of the trials, each at its point."""

    design: Design
    columns: Columns
    bend: Floats  # (t, c, n)
    weighted: Floats  # (t, c, n)
    pen: Floats  # (t,)
    relief: Floats  # (t,)
    inverse: Floats  # (t, c r)

    def product(self, v: Floats) -> Floats:
        t, c, n = self.bend.shape
        z = v.reshape(t * c, -1) @ self.design.Dt
        moved = self.columns.bent(self.bend, self.weighted, z.reshape(t, c, n))
        ahead = (moved.reshape(t * c, n) @ self.design.D).reshape(v.shape)
        ahead += _penalised(self.pen, self.relief, self.design.basis[-1], v)
        return ahead

    def near(self, g: Floats) -> Floats:
        return self.inverse * g


def _penalised(pen: Floats, relief: Floats, last: Floats, v: Floats) -> Floats:
    """(pen - relief last last^T) v for each trial and column, (t, c r); most have no relief."""
    pull = pen[:, None] * v
    if relief.any():
        free = relief > 0
        part = v[free].reshape(np.count_nonzero(free), -1, len(last))
        along = (part @ last) * relief[free, None]
        pull[free] -= _flat(along[..., None] * last)
    return pull


def _flat(v: Floats) -> Floats:
    """A row per trial."""
    return v.reshape(len(v), -1)


def _times(v: Floats, M: Floats) -> Floats:
    """v M for v (t, c, k) and M (k, l), as one product."""
    t, c, k = v.shape
    return (v.reshape(t * c, k) @ M).reshape(t, c, -1)
