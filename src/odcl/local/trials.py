"""One user's fits side by side: its strength by rows held out, with classes and many parameters.

Each trial is

    minimise  sum_j weight_j loss(offset_j + x_j theta, y_j) + pen/2 ||theta||^2

with weights and a penalty of its own, on one design; the intercept, the last of theta, may have
another penalty than the rest. In coordinates in which the design's columns are orthogonal, the
Hessian at an average curvature is diagonal for every penalty: it costs nothing to precondition
conjugate gradients by it, and a product with all trials' Hessians is two products of matrices.
Rows come last in all arrays, (trials, columns, n): sums over classes run along the rows.

Fits without a fold start from the fit on all rows, and are as exact as a score needs; the fits on
all rows are finished afterwards, as exactly as their share of the average needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.fit import PRIOR
from odcl.local.newton import CLOSE, LOOSE, MAX_ITER
from odcl.local.stacked import PerUser, System, products
from odcl.risk.loss import Loss
from odcl.risk.losses import Multinomial, softmax_terms
from odcl.risk.risk import Risk

# Directions in which the rows vary by less than this share of the most, squared, are left out
# where there are no more rows than features: a penalty holds them at the centre.
FLAT = 1e-12
# ``near`` and ``left`` of UserFits. Scores: a strength's weight is right to about .02.
SCORED = (0.3, 0.01)
# A model of share 1: coefficients of standardised columns are right to 1e-6; models of less share
# are as exact as the average needs.
AVERAGED = (1e-4, 1e-6)
NO_SHARE = 1e-6  # a model with no more share than this is not refined
# Bytes of one array worked on at a time, so that it stays in the cache.
AT_HAND = 1 << 20


# -- one user's strengths --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class UserRows:
    """A user's rows, and which of them each fold holds out."""

    risk: Risk
    inputs: Floats  # (n, n_inputs), with the intercept's column
    y: Floats  # (n,), encoded
    weight: Floats  # (n,), how often each counts
    held_out: Bools  # (folds, n)

    @property
    def everything(self) -> Floats:
        """Weights of all rows, which sum to 1, (n,)."""
        return self.weight / max(self.weight.sum(), 1e-300)

    @property
    def kept(self) -> Floats:
        """Weights of the rows that folds keep, (folds, n); each fold's sum to 1."""
        left = self.weight * ~self.held_out
        return left / np.maximum(left.sum(axis=1, keepdims=True), 1e-300)

    def own_penalties(self) -> tuple[Floats, Floats]:
        """Strengths on the coefficients and on the intercept of the folds' own fits, (folds,) each.

        A fold that leaves out all rows of a class has no finite intercept for it and gets a small
        prior, as ``solve_users`` gives it.
        """
        risk, kept = self.risk, self.kept
        pen = np.full(len(kept), risk.l2)
        if not risk.intercept:
            return pen, pen
        lost = risk.loss.one_sided(np.tile(self.y, (len(kept), 1)), kept > 0)
        n_samples = (self.weight * ~self.held_out).sum(axis=1)
        prior = np.where(lost, PRIOR / np.maximum(n_samples, 1e-300), 0.0)
        return pen + prior, prior


@dataclass(frozen=True, eq=False)
class StrengthFits:
    """A user's fits on all rows, drawn to one centre with several strengths; so far roughly."""

    rows: UserRows
    design: OrthogonalDesign
    columns: LossColumns
    strengths: Floats  # (g,)
    center: Floats  # (dim,)
    offset: Floats  # (c, n), the predictor at the centre
    found: Floats  # (g, c, r)

    @classmethod
    def of(cls, rows: UserRows, strengths: Floats, center: Floats) -> StrengthFits:
        design = OrthogonalDesign.of(rows.inputs, rows.everything)
        columns = columns_of(rows.risk.loss, rows.y)
        around = columns.spread(center.reshape(-1, rows.risk.n_outputs))
        start = np.zeros((len(strengths), len(around), len(design.size)))
        rough = cls(rows, design, columns, strengths, center, around @ rows.inputs.T, start)
        return replace(rough, found=rough._refined(np.ones(len(strengths), dtype=bool), SCORED))

    def score(self, own: Floats | None) -> Floats:
        """Losses of the rows held out, each by the fit without its fold, (g,).

        With the user's ``own`` model (dim,), where its fits without a fold start, one more: of
        these, which are drawn to zero by the risk's l2 and have a free intercept.
        """
        kept, g = self.rows.kept, len(self.strengths)
        folds = len(kept)
        pen = np.repeat(self.strengths, folds)
        relief = np.zeros(len(pen))
        start, offset = [self.found], [np.broadcast_to(self.offset, (g, *self.offset.shape))]
        if own is not None:
            free, intercept = self.rows.own_penalties()
            pen = np.concatenate([pen, free])
            relief = np.concatenate([relief, self.design.relief(free, intercept)])
            columns = self.columns.spread(own.reshape(-1, self.rows.risk.n_outputs))
            start.append((columns @ self.design.basis)[None])
            offset.append(np.zeros((1, *self.offset.shape)))
        begin, offsets = (np.repeat(np.concatenate(a), folds, axis=0) for a in (start, offset))
        trials = self._trials(np.tile(kept, (len(pen) // folds, 1)), pen, relief, offsets, SCORED)
        value = self.columns.terms(trials.predictor(_in_portions(trials, begin)))[0]
        cost = value.reshape(-1, *kept.shape) * (self.rows.weight * self.rows.held_out)
        total: Floats = cost.sum(axis=(1, 2))
        return total

    def average(self, share: Floats) -> Floats:
        """The models' sum, each times its share (g,): (dim,)."""
        found, some = self.found.copy(), share > NO_SHARE
        if some.any():
            loose = 1.0 / np.sqrt(share[some])
            near, left = (np.minimum(a * loose, b) for a, b in zip(AVERAGED, SCORED, strict=True))
            found[some] = self._refined(some, (near, left))
        mean = np.tensordot(share, found, axes=1) @ self.design.basis.T
        return share.sum() * self.center + self.columns.gather(mean[None])[0].ravel()

    def _refined(self, some: Bools, accuracy: tuple[Floats | float, Floats | float]) -> Floats:
        """Some of the fits on all rows, as exact as asked for."""
        pen = self.strengths[some]
        weight = np.tile(self.rows.everything, (len(pen), 1))
        offset = np.broadcast_to(self.offset, (len(pen), *self.offset.shape))
        trials = self._trials(weight, pen, np.zeros(len(pen)), offset, accuracy)
        return _in_portions(trials, self.found[some])

    def _trials(
        self,
        weight: Floats,
        pen: Floats,
        relief: Floats,
        offset: Floats,
        accuracy: tuple[Floats | float, Floats | float],
    ) -> UserFits:
        near, left = (np.broadcast_to(number, len(pen)) for number in accuracy)
        return UserFits(self.design, self.columns, weight, pen, relief, offset, near, left)


def _in_portions(trials: UserFits, start: Floats) -> Floats:
    """``minimise`` of some trials at a time: how many depends on the user's rows alone."""
    length = max(1, AT_HAND // (8 * max(start[0].size, trials.offset[0].size)))
    parts = (slice(i, i + length) for i in range(0, len(start), length))
    return np.concatenate([trials.take(part).minimise(start[part]) for part in parts])


# -- fits side by side -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OrthogonalDesign:
    """Rows in orthogonal coordinates: theta = basis a, X theta = D a and D^T W D = diag(size)."""

    D: Floats  # (n, r)
    Dt: Floats  # (r, n)
    size: Floats  # (r,)
    basis: Floats  # (inputs, r), orthonormal columns that span the rows of X

    @classmethod
    def of(cls, X: Floats, weight: Floats) -> OrthogonalDesign:
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
class UserFits(PerUser):
    """Fits to be made, t of them. Those of one user never depend on another's."""

    design: OrthogonalDesign
    columns: LossColumns
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
        ids, state = np.arange(len(found)), _FitState.at(self, start)
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
class _FitState:
    """Trials, and what is known where they stand."""

    trials: UserFits
    a: Floats  # (t, c, r)
    z: Floats  # (t, c, n)
    risk: Floats  # (t,)
    pull: Floats  # (t, c, r), of the penalty
    slope: Floats  # (t, c, n), times the rows' weights
    bend: Floats  # (t, c, n)

    @classmethod
    def at(cls, trials: UserFits, a: Floats, z: Floats | None = None) -> _FitState:
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

    def moved(self, step: _Step) -> _FitState:
        """Trials that go on, after the step or the first of its half, quarter and so on that lowers
        the risk."""
        trials, a, risk = self.trials, self.a, self.risk
        if step.last.any():
            on = ~step.last
            trials, a, risk, step = trials.take(on), a[on], risk[on], step.take(on)
        new = _FitState.at(trials, step.a, step.z)
        length = np.ones(len(risk))
        for _ in range(30):
            over = ~(new.risk <= risk + 1e-4 * length * step.descent)
            if not over.any():
                break
            length = np.where(over, 0.5 * length, length)
            new = _FitState.at(trials, a + length[:, None, None] * step.direction)
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

    design: OrthogonalDesign
    columns: LossColumns
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


# -- losses by columns -----------------------------------------------------------------------------


def columns_of(loss: Loss, y: Floats) -> LossColumns:
    """For targets ``y`` (n,), encoded."""
    return ClassColumns(loss, y) if isinstance(loss, Multinomial) else LossColumns(loss, y)


class LossColumns:
    """The losses of one user's rows as functions of z, (models, columns, n): one output."""

    def __init__(self, loss: Loss, y: Floats) -> None:
        self.loss, self.y = loss, y

    def terms(self, z: Floats) -> tuple[Floats, Floats, Floats]:
        """Value (models, n), slope and curvature as ``bent`` takes it, (models, columns, n)."""
        value, slope, curve = self.loss.terms(z[:, 0, :, None], self.y)
        return value, slope[:, None, :, 0], curve[:, None, :, 0, 0]

    def average_bend(self, bend: Floats) -> Floats:
        """The mean of each row's eigenvalues of the curvature, (models, n)."""
        return bend[:, 0]

    def bent(self, bend: Floats, weighted: Floats, v: Floats) -> Floats:
        """Each row's curvature times v, times its weight; ``weighted`` is bend times the weight."""
        return weighted * v

    def spread(self, theta: Floats) -> Floats:
        """Coefficients (inputs, n_outputs) as columns, (columns, inputs)."""
        return theta.T

    def gather(self, columns: Floats) -> Floats:
        """The way back: (models, columns, inputs) to (models, inputs, n_outputs)."""
        return columns.transpose(0, 2, 1)


class ClassColumns(LossColumns):
    """A column per class, whose differences alone count; coefficients sum to zero over classes."""

    loss: Multinomial

    def __init__(self, loss: Multinomial, y: Floats) -> None:
        super().__init__(loss, y)
        self.own = (y == np.arange(loss.n_classes)[:, None]).astype(np.float64)

    def terms(self, z: Floats) -> tuple[Floats, Floats, Floats]:
        value, slope, p = softmax_terms(z.copy(), self.own, axis=-2)
        return value[:, 0], slope, p

    def average_bend(self, bend: Floats) -> Floats:
        total: Floats = (bend * (1.0 - bend)).sum(axis=-2)
        return total / self.loss.n_outputs

    def bent(self, bend: Floats, weighted: Floats, v: Floats) -> Floats:
        moved = v - np.einsum("tcn,tcn->tn", bend, v)[:, None]
        moved *= weighted
        return moved

    def spread(self, theta: Floats) -> Floats:
        return self.loss.basis @ theta.T

    def gather(self, columns: Floats) -> Floats:
        return np.matmul(columns.transpose(0, 2, 1), self.loss.basis)
