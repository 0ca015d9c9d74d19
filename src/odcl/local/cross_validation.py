"""How far each user is drawn to its group: by what its own rows say that were held out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.data.federation import Federation
from odcl.data.folds import folds
from odcl.local.fit import Penalty, solve_users
from odcl.local.newton import MANY, MANY_OUTPUTS
from odcl.local.predict import linear_predictors
from odcl.local.trials import FLAT
from odcl.local.user_trials import Drawn, UserRows
from odcl.risk.risk import Risk
from odcl.threads import one_thread

N_FOLDS = 5
# Strengths that cross-validation looks at besides "stay local" (0) and "take the group's" (inf),
# in units of the average curvature of the user's own risk.
GRID = (1e-3, 1e-2, 1e-1, 1.0)
PORTION_BYTES = 1 << 26
# Models that are only scored on the rows held out: log-odds are right to about 1e-7.
ROUGH = 300.0
# Totals of users with many parameters may differ by so much and are equal (see ``user_trials``).
EQUAL = 0.1


def cross_validated(
    federation: Federation,
    risk: Risk,
    center: Floats,
    group: Floats,
    own: Floats,
    seed: int,
    n_jobs: int | None,
) -> tuple[Floats, Floats]:
    """Each user's model from its own rows, and its likeliest lam_i; ``center`` leaves it out.

    Otherwise the rows held out would speak through the group's model, and the choice would lean
    to the group. The model is the mean over all strengths, weighed by their likelihoods on the rows
    held out: few rows do not tell one strength, and the best by chance would be too sure of itself.
    Ties go to the stronger pooling. Every user has at least two rows.
    """
    models, strength = np.empty_like(group), np.empty(federation.n_users)
    many = _suits_trials(federation, risk)
    for who, weigh in ((~many, _fit_by_fit), (many, _side_by_side)):
        if who.any():
            some = np.flatnonzero(who)
            part = federation if who.all() else federation.take(some)
            ends = _Ends(center[some], group[some], own[some])
            trial = _Trial(part, risk, folds(part, N_FOLDS, seed), n_jobs)
            models[some], strength[some] = weigh(trial, ends)
    return models, strength


def _suits_trials(federation: Federation, risk: Risk) -> Bools:
    """Who has classes and so many parameters that its fits are made side by side, (n_users,)?

    Not users whose features are next to nothing beside the intercept: directions that trials leave
    out (``FLAT``) must not matter under the weakest pull.
    """
    n, inputs, q = federation.n_rows, risk.n_inputs(federation.n_features), risk.n_outputs
    many: Bools = (np.minimum(n, inputs) * q > MANY) | (q > MANY_OUTPUTS)
    if not (risk.loss.classification and many.any()):
        return np.zeros(len(n), dtype=bool)
    length = (federation.X**2).sum(axis=1) + risk.intercept
    most = np.maximum.reduceat(length, federation.offsets[:-1])
    return many & (min(GRID) * _average_curvature(federation, risk) > 1e3 * FLAT * most)


@dataclass(frozen=True, eq=False)
class _Ends:
    """What users are drawn to, and what they have."""

    center: Floats  # (n_users, dim), the group's model without the user
    group: Floats  # (n_users, dim), the group's
    own: Floats  # (n_users, dim)


@dataclass(frozen=True, eq=False)
class _Trial:
    """Rows to be held out, fold by fold."""

    federation: Federation
    risk: Risk
    fold: Ints  # (n_rows,)
    n_jobs: int | None

    @property
    def choices(self) -> Floats:
        """(choices, n_users): the group's model, weaker and weaker pulls, the local model."""
        unit = _average_curvature(self.federation, self.risk)
        least, most = np.zeros(len(unit)), np.full(len(unit), np.inf)
        return np.array([most, *(g * unit for g in reversed(GRID)), least])

    def of_center(self, center: Floats) -> Floats:
        """Loss of every row under its user's centre, which knows none of them."""
        return _held_out(self.federation, self.risk, center, np.arange(len(self.fold)))

    def refitted(self, strength: Floats, center: Floats) -> Floats:
        """Losses (choices, n_rows) of the rows held out, for strengths (choices, n_users)."""
        grid = [(c, f) for c in range(len(strength)) for f in range(N_FOLDS)]
        cost = np.zeros((len(strength), len(self.fold)))
        for trials in _portions(grid, self.federation):
            drawn = np.concatenate([strength[c] for c, _ in trials])
            around = np.tile(center, (len(trials), 1))
            self._solve(trials, Penalty(drawn, around, free=False), cost)
        return cost

    def of_own(self) -> Floats:
        """Losses (n_rows,) of the rows held out, each by its user's own model without its fold."""
        cost = np.zeros((1, len(self.fold)))
        for trials in _portions([(0, f) for f in range(N_FOLDS)], self.federation):
            n_fits = len(trials) * self.federation.n_users
            self._solve(trials, Penalty(np.full(n_fits, self.risk.l2)), cost)
        return cost[0]

    def _solve(self, trials: list[tuple[int, int]], penalty: Penalty, cost: Floats) -> None:
        """Fit every user on what is left of its rows, for several (choice, fold) at a time."""
        train = _training(self.federation, self.fold, [f for _, f in trials])
        found = solve_users(train, self.risk, penalty, rough=ROUGH, n_jobs=self.n_jobs)
        for (choice, f), theta in zip(trials, np.split(found.theta, len(trials)), strict=True):
            rows = np.flatnonzero(self.fold == f)
            cost[choice, rows] = _held_out(self.federation, self.risk, theta, rows)


def _fit_by_fit(trial: _Trial, ends: _Ends) -> tuple[Floats, Floats]:
    """Models (n_users, dim) and likeliest strengths (n_users,): every fit from the start."""
    federation, risk, choices = trial.federation, trial.risk, trial.choices
    refitted = trial.refitted(choices[1:-1], ends.center)
    cost = np.array([trial.of_center(ends.center), *refitted, trial.of_own()])
    total = np.add.reduceat(cost, federation.offsets[:-1], axis=1)
    best = _first_of_equals(total, 0.0)
    weight = _weights(total, federation.n_samples if risk.loss.has_data_terms else None)
    models = weight[0][:, None] * ends.group + weight[-1][:, None] * ends.own
    for share, strength in zip(weight[1:-1], choices[1:-1], strict=True):
        penalty = Penalty(strength, ends.center, free=False)
        drawn = solve_users(federation, risk, penalty, n_jobs=trial.n_jobs)
        models += share[:, None] * drawn.theta
    return models, choices[best, np.arange(len(models))]


def _side_by_side(trial: _Trial, ends: _Ends) -> tuple[Floats, Floats]:
    """The same for classes and many parameters: a user's fits start from one another."""
    from joblib import Parallel, delayed

    federation, risk, choices = trial.federation, trial.risk, trial.choices
    y = risk.loss.encode(federation.y)
    weight = np.ones(len(y)) if federation.weight is None else federation.weight
    first = np.add.reduceat(trial.of_center(ends.center), federation.offsets[:-1])
    alone = None
    if risk.l2 == 0:  # there may be no minimiser: the solver of single fits knows what to do
        alone = np.add.reduceat(trial.of_own(), federation.offsets[:-1])
    models, best = np.empty_like(ends.own), np.empty(len(first), dtype=np.intp)

    def weigh(i: int) -> None:
        part = federation.rows(i)
        held_out = trial.fold[part] == np.arange(N_FOLDS)[:, None]
        inputs = risk.design(federation.X[part])
        rows = UserRows(risk, inputs, y[part], weight[part], held_out)
        drawn = Drawn.of(rows, choices[1:-1, i], ends.center[i])
        score = drawn.score(ends.own[i] if alone is None else None)
        total = np.array([first[i], *score, *(() if alone is None else alone[i : i + 1])])
        best[i] = _first_of_equals(total, EQUAL)
        share = _weights(total[:, None], None)[:, 0]
        models[i] = share[0] * ends.group[i] + share[-1] * ends.own[i]
        models[i] += drawn.average(share[1:-1])

    each = Parallel(trial.n_jobs, prefer="threads")
    with one_thread():  # between products of matrices there is much else to do
        each(delayed(weigh)(i) for i in range(federation.n_users))
    return models, choices[best, np.arange(len(models))]


def _first_of_equals(total: Floats, gap: float) -> Ints:
    """The strongest pooling, first axis, that loses no more than the best and a gap: positions."""
    total = np.asarray(np.round(total, 12), dtype=np.float64)
    return np.asarray(np.argmax(total <= total.min(axis=0) + gap, axis=0))


def _weights(total: Floats, n: Floats | None) -> Floats:
    """Shares of the choices, (choices, n_users), by what they lose on the rows held out.

    Losses that are minus a log-likelihood count as they are. Those of numbers have a noise scale,
    which each choice has at its best: with ``n`` rows, minus a log-likelihood of n / 2 log(total).
    """
    if n is not None:
        total = n / 2 * np.log(np.maximum(total, 1e-12 * total.max(axis=0) + 1e-300))
    weight = np.exp(total.min(axis=0) - total)
    return weight / weight.sum(axis=0)


def _portions(
    trials: list[tuple[int, int]], federation: Federation
) -> Iterator[list[tuple[int, int]]]:
    """As many trials at a time as fit into some memory: small federations batch across them."""
    length = max(1, PORTION_BYTES // max(federation.X.nbytes, 1))
    for start in range(0, len(trials), length):
        yield trials[start : start + length]


def _training(federation: Federation, fold: Ints, held_out: list[int]) -> Federation:
    """All users once for each fold held out, with the rows of the other folds."""
    kept = [np.flatnonzero(fold != f) for f in held_out]
    owner = federation.row_user
    counts = [np.bincount(owner[rows], minlength=federation.n_users) for rows in kept]
    rows = np.concatenate(kept)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.intp)
    weight = None if federation.weight is None else federation.weight[rows]
    users = np.tile(federation.users, len(held_out))
    return Federation(federation.X[rows], federation.y[rows], offsets, users, weight)


def _held_out(federation: Federation, risk: Risk, theta: Floats, rows: Ints) -> Floats:
    """Loss of the rows held out, each by its user's model, (len(rows),)."""
    z = linear_predictors(federation.X[rows], theta, federation.row_user[rows], risk)
    y = risk.loss.encode(federation.y)[rows]
    # A stack of single rows: BLAS rounds the product of one row otherwise than that of many.
    value = risk.loss.value(z[:, None], y[:, None])[:, 0]
    return value if federation.weight is None else value * federation.weight[rows]


def _average_curvature(federation: Federation, risk: Risk) -> Floats:
    """About the mean diagonal entry of each user's Hessian, (n_users,): the grid's unit."""
    y = risk.loss.encode(federation.y)
    _, most = risk.loss.curve_bounds(y, np.zeros(len(y)))
    size = most * (federation.X**2).mean(axis=1) if federation.n_features else np.ones(len(y))
    mean = np.add.reduceat(size, federation.offsets[:-1]) / federation.n_rows
    return np.where(mean > 0, mean, 1.0)
