"""The last step of a wide user: its group, and how far its own rows take it away from it.

What a user starts from are its groups' scores, with its class shares in them.
Candidates lean on these scores, or on nothing, with penalised intercepts and slopes of their own.
Their weights are prior times likelihood of the user's own rows held out, scored by groups from
users outside its fold; the model is their average in scores, a linear model again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import log_softmax

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import Federation, content_order
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk
from odcl.wide.moments import WideGroups, in_layout
from odcl.wide.slopes import Fits, RowSpan, filled_up, fit_slopes

ROW_FOLDS = 5
FEWEST_ROWS = 4  # below, a user has its groups' scores and its class shares
DOUBT = 1e-3  # a user's own rows can overrule the server's probabilities beyond -log of it
SCALES = (1.0, 0.5, 2.0)  # by which groups' scores are taken: rows of a user may be noisier
# Standard deviations of intercepts and of slopes in features / (unit sqrt(d)):
LEANING = ((1.0, 0.0), (1.0, 3.0), (1.0, 10.0), (1.0, 30.0), (1.0, 100.0))  # on groups' scores
ALONE = ((2.0, 3.0), (2.0, 10.0), (2.0, 30.0), (2.0, 100.0))
LEANS_ON = np.repeat([0, 1], [len(LEANING), len(ALONE)])
AT_FIRST, ON_TRIAL, WIDER = (0, 1, 2), (5, 6), (3, 4, 7, 8)  # positions among both, see _Trial
# Prior of the groups' scores as they are, where users of a group are alike and where they differ,
# and of all that stand alone; the rest is of other scales and of what leans on the groups.
AS_THEY_ARE = {True: 0.98, False: 0.6}
ON_ITS_OWN = {True: 0.001, False: 0.01}
OTHER_SCALES = 0.1  # of the rest, each
# Narrow ones first:
NARROW_FIRST = np.array([4.0, 4.0, 2.0, 0.7, 0.2]) / 10.9
FEW = 20.0  # rows: what few rows held out say of candidates is noisy, and counts n / (n + FEW)
NOT_BELIEVED = 2.0  # standard errors of what is gained, where users of a group are alike
SCORED, FINAL = 1e-2, 1e-3  # how far fits are above their minimum, in nats
AT_ONCE = 1 << 17  # numbers of an array that users share while they are fitted
NO_SHARE = 1e-2  # candidates with less are left out
NEVER = -1e9  # score of a class that cannot be


@dataclass(frozen=True, eq=False)
class WideStep:
    """The users' final models."""

    models: Floats  # (n_users, dim)
    shares: Floats  # (n_users, K), probabilities of the groups
    noise: Floats | None = None  # (n_users,), of numbers: squared error of a new row

    @property
    def group(self) -> Ints:
        """The likeliest, (n_users,)."""
        return self.shares.argmax(axis=1)

    @property
    def sure(self) -> Floats:
        """Its probability, (n_users,)."""
        return np.asarray(self.shares.max(axis=1))


def wide_last_step(
    federation: Federation,
    risk: Risk,
    groups: WideGroups,
    prior: Floats,
    fold: Ints | None = None,
) -> WideStep:
    """Every user's last step; ``prior`` (n_users, K) are its probabilities of groups.

    Users who took part are scored by groups without their ``fold`` (n_users,): their own rows speak
    through the groups of everybody.
    """
    m, d = federation.n_users, federation.n_features
    without = np.zeros(m, dtype=np.intp) if fold is None else 1 + fold
    classes = class_numbers(federation, risk)
    rows_of = _Rows.by_user(federation, risk, classes, classes)
    models, shares = np.empty((m, risk.dim(d))), np.empty((m, len(groups.weights)))
    for users in _side_by_side(federation.n_rows, groups.shares.shape[1]):
        starts = [_Start.of(rows_of(i), groups, int(without[i]), prior[i]) for i in users]
        for i, start, found in zip(users, starts, _scores(starts, groups), strict=True):
            models[i], shares[i] = in_layout(risk, found), start.share
    return WideStep(models, shares)


def _side_by_side(n_rows: Ints, n_classes: int) -> Iterator[list[int]]:
    """Users of about the same number of rows, as many as stay near the processor together."""
    rows = filled_up(n_rows)
    for size in np.unique(rows):
        users = np.flatnonzero(rows == size)
        length = max(1, AT_ONCE // int(size * n_classes * ROW_FOLDS * len(AT_FIRST)))
        for first in range(0, len(users), length):
            yield users[first : first + length].tolist()


def _scores(starts: list[_Start], groups: WideGroups) -> list[Floats]:
    """Scores of some users, (d + 1, C)."""
    scores = [np.tensordot(start.share, groups.scores[0], axes=1) for start in starts]
    for one, start in zip(scores, starts, strict=True):
        one[-1] = one[-1] * start.rows.risk.intercept + start.prior[-1]
    able = [i for i, start in enumerate(starts) if start.rows.tell]
    trials = [_Trial(_Candidates.of(groups, starts[i]), groups.alike) for i in able]
    while going := [trial for trial in trials if len(trial.some)]:
        fits = fit_slopes([trial.fits() for trial in going], SCORED, np.float32)
        for trial, b in zip(going, fits, strict=True):
            trial.learn(b)
    mixes = [trial.mix for trial in trials]
    jobs = [t.final(mix.fits, scores[i]) for i, t, mix in zip(able, trials, mixes, strict=True)]
    fits = fit_slopes(jobs, FINAL) if jobs else []
    for i, trial, mix, b in zip(able, trials, mixes, fits, strict=True):
        own = trial.of.span.coefficients(np.tensordot(mix.fits[mix.fits > 0], b, axes=1))
        own[-1] += (1 - mix.leaning) * starts[i].prior[-1]
        scores[i] = mix.leaning * scores[i] + own
    return scores


def class_numbers(federation: Federation, risk: Risk) -> Ints:
    """Class of each row, 0..C-1, (n_rows,)."""
    y = risk.loss.encode(federation.y)
    return (y if isinstance(risk.loss, Multinomial) else y > 0).astype(np.intp)


def stratified_folds(federation: Federation, classes: Ints) -> tuple[Ints, Ints]:
    """An order of all rows, user by user, that their own does not matter to, and folds in it.

    A user's rows are dealt out class by class; fewer rows than folds are held out one by one.
    """
    mixed = np.cos(np.arange(1.0, federation.n_features + 1))
    # A number for each row's contents; einsum adds up every row in the same way, BLAS does not.
    key = np.einsum("ij,j->i", federation.X, mixed)
    order = content_order(federation.with_X(key[:, None]))
    order = order[np.lexsort((classes[order], federation.row_user[order]))]
    first = np.repeat(federation.offsets[:-1], federation.n_rows)
    return order, (np.arange(len(order)) - first) % ROW_FOLDS


@dataclass(frozen=True, eq=False)
class UserRows:
    """One user's rows."""

    X: Floats  # (n, d)
    y: Any  # (n,), classes or numbers
    weight: Floats  # (n,)
    fold: Ints  # (n,)
    risk: Risk

    @classmethod
    def by_user(
        cls, federation: Federation, risk: Risk, y: Any, classes: Ints
    ) -> Callable[[int], Any]:
        """The rows of each user, with targets ``y`` (n_rows,), dealt out by ``classes``."""
        weight = np.ones(len(y)) if federation.weight is None else federation.weight
        order, fold = stratified_folds(federation, classes)

        def rows(i: int) -> UserRows:
            own = federation.rows(i)
            part = order[own]
            return cls(federation.X[part], y[part], weight[part], fold[own], risk)

        return rows

    @property
    def kept(self) -> Floats:
        """Weights of the rows that each fold learns from, and of all rows, (F + 1, n)."""
        return self.weight * (self.fold != np.arange(ROW_FOLDS + 1)[:, None])


class _Rows(UserRows):
    """A user's rows and their classes."""

    @property
    def tell(self) -> bool:
        """Can they say how the user differs from its group?"""
        return len(self.y) >= FEWEST_ROWS and not (self.y == self.y[0]).all()

    def losses(self, scores: Array) -> Floats:
        """Loss of every row by scores (..., n, C) of the fit without its fold.

        Among the classes that the user has: its rows cannot say that it will never see another.
        """
        seen, own = np.unique(self.y, return_inverse=True)
        return -log_softmax(scores[..., seen], axis=-1)[..., np.arange(len(own)), own]


@dataclass(frozen=True, eq=False)
class _Start:
    """Scores that a user starts from, without each fold of its rows and (last) with all of them."""

    rows: _Rows
    share: Floats  # (K,), probabilities of the groups, by all rows
    scores: Floats  # (F + 1, n, C)
    prior: Floats  # (F + 1, C), log class shares

    @classmethod
    def of(cls, rows: _Rows, groups: WideGroups, index: int, prior: Floats) -> _Start:
        K, C = groups.shares.shape
        kept, n = rows.kept, np.arange(len(rows.y))
        slopes, intercepts = groups.scores[index, :, :-1], groups.scores[index, :, -1:]
        scores = np.matmul(rows.X, slopes)  # (K, n, C)
        log_shares = np.zeros((len(kept), K, C))
        if rows.risk.intercept:
            scores = scores + intercepts
            log_shares = _log_shares(rows, kept, groups)
        held_out = scores[:, n] + log_shares[rows.fold].swapaxes(0, 1)
        likelihood = log_softmax(held_out, axis=-1)[:, n, rows.y]  # (K, n)
        share = np.log(prior + DOUBT) + kept @ likelihood.T
        share = np.exp(log_softmax(share, axis=-1))  # (F + 1, K)
        each = np.einsum("fk,knc->fnc", share, scores)
        shares = np.einsum("fk,fkc->fc", share, log_shares)
        return cls(rows, share[-1], each + shares[:, None], shares)


def _log_shares(rows: _Rows, kept: Floats, groups: WideGroups) -> Floats:
    """log (n_c + alpha pi_kc) / (n + alpha), (F + 1, K, C), by the rows kept."""
    counts = kept @ (rows.y[:, None] == np.arange(groups.shares.shape[1]))
    alpha = groups.concentration
    above = counts[:, None] + alpha * groups.shares
    return np.log(np.maximum(above, 1e-300)) - np.log(counts.sum(axis=1) + alpha)[:, None, None]


@dataclass(frozen=True, eq=False)
class _Candidates:
    """The user's fits that lean on the groups' scores, and those that lean on nothing."""

    rows: _Rows
    span: RowSpan
    variance: Floats  # (candidates, r + 1)
    offset: Floats  # (2, F + 1, C, n), what they lean on: groups' scores or class shares
    by_chance: bool  # users have classes as often as their group, and lack some by chance

    @cached_property
    def held_out(self) -> Floats:
        """What each row starts from without its fold, (2, n, C)."""
        fold = self.rows.fold
        return self.offset[:, fold, :, np.arange(len(fold))].swapaxes(0, 1)

    @classmethod
    def of(cls, groups: WideGroups, start: _Start) -> _Candidates:
        rows, intercept = start.rows, start.rows.risk.intercept
        spreads = np.array([*LEANING, *ALONE])
        spreads[:, 0] *= intercept
        scale = groups.unit * np.sqrt(len(groups.unit))
        span = RowSpan.of(rows.X, rows.weight, scale, intercept)
        leaning = start.scores.swapaxes(1, 2)
        alone = np.broadcast_to(start.prior[:, :, None], leaning.shape)
        by_chance = groups.concentration > rows.weight.sum()
        offset = np.stack([leaning, alone])
        return cls(rows, span, span.variances(*spreads.T), offset, by_chance)

    def fits(self, some: Ints, offset: Floats, weight: Floats, start: Floats) -> Fits:
        """Some candidates to be fitted, (some, folds, ...) each, weights (folds, n).

        Rows say nothing about a class that they lack by chance: its scores stay as they are.
        """
        c, f, C, n = offset.shape
        own = (self.rows.y == np.arange(C)[:, None]).astype(np.float64)
        if self.by_chance:
            offset = np.where((weight @ own.T > 0)[..., None], offset, NEVER)
        return Fits(
            self.span,
            own,
            np.tile(weight, (c, 1)),
            offset.reshape(c * f, C, n),
            np.repeat(self.variance[some], f, axis=0),
            start.reshape(c * f, C, len(self.span.size)),
        )


class _Trial:
    """A user's candidates, scored by the rows held out.

    Wider slopes are tried for as long as widening helps, and start from the narrower ones. Who
    gains nothing by slopes of its own has no reason to stand alone either. What is not tried has
    infinite losses.
    """

    def __init__(self, candidates: _Candidates, alike: bool):
        self.of, self.alike = candidates, alike
        count, (_, _, C, n) = len(candidates.variance), candidates.offset.shape
        scores, prior = candidates.held_out
        groups = np.stack([prior + scale * (scores - prior) for scale in SCALES])
        self.groups = candidates.rows.losses(groups)  # (scales, n)
        self.losses = np.full((count, n), np.inf)
        self.found = np.zeros((count, ROW_FOLDS, C, len(candidates.span.size)))
        self.some = np.array(AT_FIRST)  # what is tried next

    @property
    def tried(self) -> Bools:
        return self.losses[:, 0] < np.inf

    def fits(self) -> Fits:
        some, folds = self.some, slice(ROW_FOLDS)
        start = self.found[some - 1] * self.tried[some - 1, None, None, None]
        offset = self.of.offset[LEANS_ON[some], folds]
        return self.of.fits(some, offset, self.of.rows.kept[folds], start)

    def learn(self, b: Array) -> None:
        """Take in the fits asked for, (some F, C, r + 1)."""
        some, rows, Z = self.some, self.of.rows, self.of.span.Z
        self.found[some] = b = b.reshape(len(some), *self.found.shape[1:])
        scores = self.of.held_out[LEANS_ON[some]]
        for fold in range(ROW_FOLDS):
            out = slice(fold, None, ROW_FOLDS)  # rows are dealt out in turn
            scores[:, out] += np.matmul(Z[out].astype(b.dtype), b[:, fold].swapaxes(1, 2))
        self.losses[some] = rows.losses(scores)
        loss = self.losses @ rows.weight
        wider = [j for j in WIDER if loss[j - 1] < loss[j - 2] < np.inf]
        wider += ON_TRIAL if min(loss[1], loss[2]) < loss[0] else ()
        self.some = np.array([j for j in wider if not self.tried[j]], dtype=np.intp)

    @property
    def mix(self) -> _Mix:
        """Shares by what is gained over the groups' scores as they are.

        A gain is a sum of noisy numbers, and among many users who are alike some gain by chance:
        there the best has to gain by more than its standard errors.
        """
        losses, weight = np.concatenate([self.groups, self.losses]), self.of.rows.weight
        total, n = (losses[0] - losses) @ weight, weight.sum()
        if self.alike:
            best = int(total.argmax())
            error = np.sqrt((losses[0] - losses[best]) ** 2 @ weight)
            total[0] = min(NOT_BELIEVED * error, total[best])
        return _mixed(total * n / (n + FEW), self.alike)

    def final(self, share: Floats, scores: Floats) -> Fits:
        """Candidates with a share, to be fitted to all rows.

        They lean on the ``scores`` (d + 1, C) that they will be added to: where these are of
        everybody, the user's rows are in them already and leave less to learn.
        """
        some, rows = np.flatnonzero(share), self.of.rows
        offset = self.of.offset[LEANS_ON[some], ROW_FOLDS:]
        offset[some < len(LEANING), 0] = (rows.X @ scores[:-1] + scores[-1]).T
        return self.of.fits(some, offset, rows.kept[ROW_FOLDS:], self.found[some].mean(axis=1))


@dataclass(frozen=True, eq=False)
class _Mix:
    """Shares of a user's candidates, which sum to 1."""

    groups: Floats  # (scales,), the groups' scores
    fits: Floats  # (candidates,)

    @property
    def leaning(self) -> float:
        """By what the groups' scores are multiplied, all in all."""
        return float(self.groups @ SCALES + self.fits[: len(LEANING)].sum())


def _mixed(gain: Floats, alike: bool) -> _Mix:
    """Shares by the prior and by nats gained on rows held out: the groups' scores come first."""
    group, alone, scales = AS_THEY_ARE[alike], ON_ITS_OWN[alike], len(SCALES)
    others = np.full(scales - 1, OTHER_SCALES)
    leaning = (1 - others.sum()) * NARROW_FIRST
    rest = (1 - group - alone) * np.concatenate([others, leaning])
    prior = [group, *rest, *[alone / len(ALONE)] * len(ALONE)]
    share = np.exp(log_softmax(np.log(prior) + gain, axis=-1))
    share = np.where(share < NO_SHARE, 0.0, share) / share[share >= NO_SHARE].sum()
    return _Mix(share[:scales], share[scales:])
