"""One user's strengths on rows held out: its fits with classes and many parameters, side by side.

Fits without a fold start from the fit on all rows, and are as exact as a score needs; the fits on
all rows are finished afterwards, as exactly as their share of the average needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.fit import PRIOR
from odcl.local.trials import Design, Trials
from odcl.risk.columns import Columns, columns_of
from odcl.risk.risk import Risk

# ``near`` and ``left`` of Trials. Scores: a strength's weight is right to some .02.
SCORED = (0.3, 0.01)
# Models of share 1: coefficients of standardised columns are right to 1e-6; of less, as the average
# needs.
AVERAGED = (1e-4, 1e-6)
NO_SHARE = 1e-6  # a model of so little share is taken as it is
# So much of one array is worked on at a time: the processor has it at hand.
AT_HAND = 1 << 20


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
class Drawn:
    """A user's fits on all rows, drawn to one centre with several strengths; so far roughly."""

    rows: UserRows
    design: Design
    columns: Columns
    strengths: Floats  # (g,)
    center: Floats  # (dim,)
    offset: Floats  # (c, n), the predictor at the centre
    found: Floats  # (g, c, r)

    @classmethod
    def of(cls, rows: UserRows, strengths: Floats, center: Floats) -> Drawn:
        design = Design.of(rows.inputs, rows.everything)
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
    ) -> Trials:
        near, left = (np.broadcast_to(number, len(pen)) for number in accuracy)
        return Trials(self.design, self.columns, weight, pen, relief, offset, near, left)


def _in_portions(trials: Trials, start: Floats) -> Floats:
    """``minimise`` of some trials at a time: how many depends on the user's rows alone."""
    length = max(1, AT_HAND // (8 * max(start[0].size, trials.offset[0].size)))
    parts = (slice(i, i + length) for i in range(0, len(start), length))
    return np.concatenate([trials.take(part).minimise(start[part]) for part in parts])
