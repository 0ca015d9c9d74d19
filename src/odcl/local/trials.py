"""Many fits of one user's rows side by side: other penalties, other rows left out.

Each trial is

    minimise  sum_j weight_j loss(offset_j + x_j a, y_j) + 1/2 sum_k pen_k a_k^2

with weights and penalties of its own, on one design. In coordinates in which the design's columns
are orthogonal, the Hessian at an average curvature is diagonal for every penalty: it costs nothing
to precondition conjugate gradients by it, and a product with all trials' Hessians is two products
of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.conjugate import System, per_user
from odcl.local.newton import LOOSE, MAX_ITER
from odcl.local.stacked import PerUser
from odcl.risk.columns import Columns

# Directions in which the rows vary by less than this share of the most, squared, are left out
# where there are no more rows than features: a penalty holds them at the centre.
FLAT = 1e-12


@dataclass(frozen=True, eq=False)
class Design:
    """Rows in orthogonal coordinates: D^T W D = diag(size)."""

    D: Floats  # (n, r)
    Dt: Floats  # (r, n)
    size: Floats  # (r,)
    back: Floats  # (inputs, r), from coordinates to coefficients
    forth: Floats  # (r, inputs), and from coefficients in the rows' span to coordinates

    @classmethod
    def of(cls, X: Floats, weight: Floats) -> Design:
        """Of all the columns of X (n, inputs), for rows' weights that sum to 1, (n,)."""
        n, inputs = X.shape
        if n > inputs:
            size, V = np.linalg.eigh((X * weight[:, None]).T @ X)
        else:
            rows = X * np.sqrt(weight)[:, None]
            size, U = np.linalg.eigh(rows @ rows.T)
            kept = size > FLAT * max(size[-1], 1e-290)
            size, U = size[kept], U[:, kept]
            V = rows.T @ U / np.sqrt(size)
        D = X @ V
        return cls(D, np.ascontiguousarray(D.T), np.maximum(size, 0.0), V, V.T)

    @classmethod
    def with_intercept(cls, X: Floats, weight: Floats) -> Design:
        """Columns about their means, and an intercept of its own, the last coordinate."""
        mean = weight @ X
        apart = cls.of(X - mean, weight)
        r, p = apart.forth.shape
        D = np.column_stack([apart.D, np.ones(len(X))])
        back, forth = np.zeros((p + 1, r + 1)), np.zeros((r + 1, p + 1))
        back[:p, :r], back[p, :r], back[p, r] = apart.back, -mean @ apart.back, 1.0
        forth[:r, :p], forth[r, :p], forth[r, p] = apart.forth, mean, 1.0
        return cls(D, np.ascontiguousarray(D.T), np.append(apart.size, 1.0), back, forth)


@dataclass(eq=False)
class Trials(PerUser):
    """Fits under way, t of them. Those of one user never depend on another's."""

    design: Design
    columns: Columns
    weight: Floats  # (t, n), sums to 1 each
    pen: Floats  # (t, r)
    offset: Floats  # (t, c, n)
    # A step that moves no predictor by more than ``near`` is the last, and no step is asked to
    # leave less of the gradient than ``share``: what is left to go is about their product.
    near: Floats  # (t,)
    share: Floats  # (t,)

    def minimise(self, start: Floats) -> Floats:
        """The minimisers, (t, c, r), by Newton steps that are cut until the risk falls."""
        found = start.copy()
        ids, state = np.arange(len(found)), _State.at(self, start)
        for _ in range(MAX_ITER):
            state, small = state.step()
            if small.any():
                found[ids[small]] = state.a[small]
                ids, state = ids[~small], state.take(~small)
                if not len(ids):
                    break
        found[ids] = state.a
        return found

    def predictor(self, a: Floats) -> Floats:
        """(t, c, n)"""
        return self.offset + _times(a, self.design.Dt)


@dataclass(eq=False)
class _State(PerUser):
    """Trials, and what is known where they stand."""

    trials: Trials
    a: Floats  # (t, c, r)
    z: Floats  # (t, c, n)
    risk: Floats  # (t,)
    slope: Floats  # (t, c, n), times the rows' weights
    bend: Floats  # (t, c, n)

    @classmethod
    def at(cls, trials: Trials, a: Floats) -> _State:
        z = trials.predictor(a)
        value, slope, bend = trials.columns.terms(z)
        penalty = per_user(trials.pen[:, None, :] * a**2)
        risk = (trials.weight * value).sum(axis=1) + 0.5 * penalty
        return cls(trials, a, z, risk, slope * trials.weight[:, None, :], bend)

    def step(self) -> tuple[_State, Bools]:
        """Where a step leads, and whose was so small that it is the last, (t,)."""
        trials = self.trials
        gradient = _times(self.slope, trials.design.D) + trials.pen[:, None, :] * self.a
        system = self._system()
        fall = per_user(gradient * system.near(gradient))
        enough = np.sqrt(fall / np.maximum(self.risk, 1e-300))
        direction = -system.solve(gradient, np.clip(enough, trials.share, LOOSE))
        descent = per_user(gradient * direction)
        new = _State.at(trials, self.a + direction)
        move = np.abs(new.z - self.z).max(axis=(1, 2))
        small = (move <= trials.near) | (descent >= 0) | (-descent <= 1e-24 * self.risk)
        length = np.ones(len(move))
        for _ in range(30):
            over = ~small & ~(new.risk <= self.risk + 1e-4 * length * descent)
            if not over.any():
                break
            length = np.where(over, 0.5 * length, length)
            new = _State.at(trials, self.a + length[:, None, None] * direction)
        return new, small

    def _system(self) -> _Hessians:
        trials = self.trials
        average = (trials.weight * trials.columns.average_bend(self.bend)).sum(axis=1)
        own = average[:, None] * trials.design.size + trials.pen
        inverse = 1.0 / np.where(own > 1e-290, own, 1.0)
        weighted = self.bend * trials.weight[:, None, :]
        rest = (weighted, trials.pen[:, None, :], inverse[:, None, :])
        return _Hessians(trials.design, trials.columns, self.bend, *rest)


@dataclass(eq=False)
class _Hessians(System):
    """Of the trials, each at its point."""

    design: Design
    columns: Columns
    bend: Floats  # (t, c, n)
    weighted: Floats  # (t, c, n)
    pen: Floats  # (t, 1, r)
    inverse: Floats  # (t, 1, r)

    def product(self, v: Floats) -> Floats:
        moved = self.columns.bent(self.bend, self.weighted, _times(v, self.design.Dt))
        ahead = _times(moved, self.design.D)
        ahead += self.pen * v
        return ahead

    def near(self, g: Floats) -> Floats:
        return self.inverse * g


def _times(v: Floats, M: Floats) -> Floats:
    """v M for v (t, c, k) and M (k, l), as one product."""
    t, c, k = v.shape
    return (v.reshape(t * c, k) @ M).reshape(t, c, -1)
