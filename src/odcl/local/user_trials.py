"""One user's strengths on rows held out: its fits with classes and many parameters, side by side.

Fits without a fold start from the fit on all rows, and are as exact as a score needs; the fits on
all rows are finished afterwards, as exactly as their share of the average needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.local.fit import PRIOR
from odcl.local.trials import Design, Trials
from odcl.risk.columns import Columns, columns_of
from odcl.risk.risk import Risk

# (near, share) of ``Trials``. Scores: log-odds are right to some .03, a user's total to some .05.
SCORED = (0.3, 0.1)
# Models of share 1: log-odds are right to about 1e-7; of less, as the average needs.
AVERAGED = (1e-4, 1e-3)
NO_SHARE = 1e-6  # a model of so little share is taken as it is
# So much of one array is worked on at a time: the processor has it at hand.
AT_HAND = 1 << 18


@dataclass(frozen=True, eq=False)
class UserRows:
    """A user's rows, which of them each fold holds out, and the weights of those that it keeps."""

    risk: Risk
    X: Floats  # (n, n_features)
    y: Floats  # (n,)
    weight: Floats  # (n,)
    held_out: Bools  # (folds, n)
    columns: Columns

    @classmethod
    def of(cls, risk: Risk, X: Floats, y: Floats, weight: Floats, held_out: Bools) -> UserRows:
        return cls(risk, X, y, weight, held_out, columns_of(risk.loss, y))

    @property
    def everything(self) -> Floats:
        """Weights of all rows, which sum to 1, (n,)."""
        return self.weight / max(self.weight.sum(), 1e-300)

    @property
    def kept(self) -> Floats:
        """Weights of the rows that folds keep, (folds, n); each fold's sum to 1."""
        left = self.weight * ~self.held_out
        return left / np.maximum(left.sum(axis=1, keepdims=True), 1e-300)

    def drawn(self, strengths: Floats, center: Floats) -> Drawn:
        """Fits on all rows, roughly, drawn to the centre (dim,) with these strengths (g,)."""
        around = self._columns(center)
        inputs = self.risk.design(self.X)
        design = Design.of(inputs, self.everything)
        offset = around @ inputs.T
        start = np.zeros((len(strengths), len(around), len(design.size)))
        weight = np.tile(self.everything, (len(strengths), 1))
        pen = np.repeat(strengths[:, None], len(design.size), axis=1)
        found = self._fit(design, weight, pen, offset, start)
        return Drawn(self, design, pen, center, offset, found)

    def score_own(self, own: Floats) -> float:
        """Loss of the rows held out by the user's own fits, which start at its model (dim,).

        A fold that leaves out all rows of a class has no finite intercept for it and gets a small
        prior, as ``solve_users`` gives it; here on the intercept about the mean of the rows.
        """
        risk, kept = self.risk, self.kept
        if not risk.intercept:
            design = Design.of(self.X, self.everything)
            pen = np.full((len(kept), len(design.size)), risk.l2)
        else:
            design = Design.with_intercept(self.X, self.everything)
            pen = np.full((len(kept), len(design.size)), risk.l2)
            pen[:, -1] = 0.0
            lost = risk.loss.one_sided(np.tile(self.y, (len(kept), 1)), kept > 0)
            n_samples = (self.weight * ~self.held_out).sum(axis=1, keepdims=True)
            pen += np.where(lost[:, None], PRIOR / np.maximum(n_samples, 1e-300), 0.0)
        start = self._columns(own) @ design.forth.T
        start = np.repeat(start[None], len(kept), axis=0)
        offset = np.zeros((start.shape[1], len(self.y)))
        found = self._fit(design, kept, pen, offset, start)
        return float(self._score(design, found, offset).sum())

    def _columns(self, theta: Floats) -> Floats:
        return self.columns.spread(theta.reshape(-1, self.risk.n_outputs))

    def _fit(
        self,
        design: Design,
        weight: Floats,
        pen: Floats,
        offset: Floats,
        start: Floats,
        accuracy: tuple[Floats | float, Floats | float] = SCORED,
    ) -> Floats:
        """Trials some at a time: weight (t, n), pen (t, r), offset (c, n), start (t, c, r)."""
        length = max(1, AT_HAND // (8 * offset.size))
        near, share = (np.broadcast_to(number, len(pen)) for number in accuracy)
        found = np.empty_like(start)
        for i in range(0, len(pen), length):
            some = slice(i, i + length)
            offsets = np.broadcast_to(offset, (len(pen[some]), *offset.shape))
            rest = (weight[some], pen[some], offsets, near[some], share[some])
            found[some] = Trials(design, self.columns, *rest).minimise(start[some])
        return found

    def _score(self, design: Design, found: Floats, offset: Floats) -> Floats:
        """Losses of the rows held out, (t,), for trials (t, c, r) that go through the folds."""
        t, c, r = found.shape
        z = offset + (found.reshape(t * c, r) @ design.Dt).reshape(t, *offset.shape)
        value = self.columns.terms(z)[0].reshape(-1, *self.held_out.shape)
        total: Floats = (value * (self.weight * self.held_out)).sum(axis=2)
        return total.ravel()


@dataclass(frozen=True, eq=False)
class Drawn:
    """A user's fits on all rows, drawn to one centre with several strengths; so far roughly."""

    rows: UserRows
    design: Design
    pen: Floats  # (g, r)
    center: Floats  # (dim,)
    offset: Floats  # (c, n), the predictor at the centre
    found: Floats  # (g, c, r)

    def score(self) -> Floats:
        """Losses of the rows held out, each by the fit without its fold, (g,)."""
        g, kept = len(self.pen), self.rows.kept
        fits = (np.tile(kept, (g, 1)), *(np.repeat(a, len(kept), 0) for a in (self.pen,)))
        start = np.repeat(self.found, len(kept), axis=0)
        found = self.rows._fit(self.design, *fits, self.offset, start)
        score = self.rows._score(self.design, found, self.offset)
        return score.reshape(g, -1).sum(axis=1)

    def average(self, share: Floats) -> Floats:
        """The models' sum, each times its share (g,): (dim,)."""
        found, some = self.found.copy(), share > NO_SHARE
        if some.any():
            loose = 1.0 / np.sqrt(share[some])
            accuracy = tuple(
                np.minimum(one * loose, most) for one, most in zip(AVERAGED, SCORED, strict=True)
            )
            weight = np.tile(self.rows.everything, (int(some.sum()), 1))
            rest = (weight, self.pen[some], self.offset, found[some])
            found[some] = self.rows._fit(self.design, *rest, accuracy)
        mean = np.tensordot(share, found, axes=1) @ self.design.back.T
        return share.sum() * self.center + self.rows.columns.gather(mean[None])[0].ravel()
