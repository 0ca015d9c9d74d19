"""The user's last step: from its own rows, its own upload and its download to its model.

    minimise  mean loss_i(theta) + lam_i/2 ||theta - c_(i)||^2

around the model c_(i) that it received. The l2 term is replaced by this one, not added to it. No
communication: still one round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.data.federation import Federation, folds
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.fit import Penalty, solve_users
from odcl.local.predict import linear_predictors
from odcl.risk.risk import Risk
from odcl.threads import one_thread

N_FOLDS = 5
# Strengths that cross-validation looks at besides "stay local" (0) and "take the group's" (inf),
# in units of the average curvature of the user's own risk.
GRID = (1e-3, 1e-2, 1e-1, 1.0)
PORTION_BYTES = 1 << 26
# Models that are only scored on the rows held out: log-odds are right to about 1e-7.
SCORED_TOL = 300.0
# Totals of users with many parameters that differ by no more than this are ties (see ``trials``).
EQUAL = 0.1


@dataclass(frozen=True, eq=False)
class Received:
    """The users' final models and how far each was drawn to its group's."""

    models: Floats  # (n_users, dim)
    strength: Floats  # (n_users,), lam_i: 0 is the local model, infinity the group's
    how: str  # in words
    covariance: Floats | None = None  # (n_users, dim, dim), of the models, where it is known
    noise: Floats | None = None  # (n_users,), variance of the target around the model
    dof: Floats | None = None  # (n_users,), degrees of freedom behind it
    # Where a user's own rows say more of its group than what it sent did:
    group: Ints | None = None  # (n_users,), the likeliest
    sure: Floats | None = None  # (n_users,), its probability


def receive(
    federation: Federation,
    risk: Risk,
    uploads: Uploads,
    downloads: Downloads,
    *,
    seed: int = 0,
    n_jobs: int | None = None,
) -> Received:
    """Every user's last step. A user's model depends on its own rows and messages alone.

    ``downloads.refit`` is None (the paper: take the group's model), ``"evidence"`` (lam_i = phi_i /
    (n_i tau^2), the posterior mode when users of a group differ by tau^2; cross-validation where
    tau^2 is not known), ``"cv"`` (lam_i from the user's own rows), or a number for all.
    """
    with one_thread(federation.n_features):
        if downloads.mixture is not None:
            from odcl.local.terms import last_step

            return last_step(federation, risk, downloads.mixture, uploads)
        return _refit(federation, risk, uploads, downloads, seed, n_jobs)


def _refit(
    federation: Federation,
    risk: Risk,
    uploads: Uploads,
    downloads: Downloads,
    seed: int,
    n_jobs: int | None,
) -> Received:
    """Own models drawn to the groups', as ``downloads.refit`` says."""
    m, refit = len(downloads), downloads.refit
    if refit is None:
        return Received(downloads.model, np.full(m, np.inf), "none")
    alone = downloads.group_size == 1
    around = downloads.model
    if refit == "cv" or (refit == "evidence" and downloads.tau2 is None):
        around = downloads.model if downloads.others is None else downloads.others
        models, strength = downloads.model.copy(), np.full(m, np.inf)
        models[alone], strength[alone] = uploads.models[alone], 0.0
        able = np.flatnonzero(~alone & (federation.n_rows > 1))  # one row: the group's model
        if len(able):
            part = federation.take(able)
            ends = downloads.model[able], uploads.models[able]
            found = _cross_validated(part, risk, around[able], *ends, seed, n_jobs)
            models[able], strength[able] = found
        how = "strengths weighed by cross-validation on each user's own rows"
        how += " (tau^2 is not known)" * (refit == "evidence")
        return Received(models, strength, how)
    if refit == "evidence":
        strength = _from_evidence(uploads, downloads)
        how = f"strength from the evidence, tau^2 = {downloads.tau2:.3g}"
    else:
        strength, how = np.full(m, float(refit)), f"strength {refit:g}"
    strength = np.where(alone, 0.0, strength)
    models = np.where((strength == 0)[:, None], uploads.models, downloads.model)
    between = np.flatnonzero((strength > 0) & np.isfinite(strength))
    if len(between):
        part = federation if len(between) == m else federation.take(between)
        penalty = Penalty(strength[between], around[between], free=False)
        models[between] = solve_users(part, risk, penalty, n_jobs=n_jobs).theta
    return Received(models, strength, how)


def _from_evidence(uploads: Uploads, downloads: Downloads) -> Floats:
    """lam_i = phi_i / (n_i tau^2); tau = 0 is the group's model itself."""
    phi = downloads.dispersion
    phi = np.ones(len(downloads)) if phi is None else phi
    tau2 = np.float64(downloads.tau2 or 0.0)
    with np.errstate(divide="ignore"):
        return np.where(tau2 > 0, phi / (uploads.n_samples * tau2), np.inf)


# -- how far each user is drawn to its group, by its own rows held out -----------------------------


def _cross_validated(
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
            ends = _Anchors(center[some], group[some], own[some])
            trial = _Trial(part, risk, folds(part, N_FOLDS, seed), n_jobs)
            models[some], strength[some] = weigh(trial, ends)
    return models, strength


def _suits_trials(federation: Federation, risk: Risk) -> Bools:
    """Users with classes and many parameters, whose fits are made side by side, (n_users,).

    Not users whose features are next to nothing beside the intercept: directions that trials leave
    out (``FLAT``) must not matter under the weakest pull.
    """
    from odcl.local.newton import MANY, MANY_OUTPUTS
    from odcl.local.trials import FLAT

    n, inputs, q = federation.n_rows, risk.n_inputs(federation.n_features), risk.n_outputs
    many: Bools = (np.minimum(n, inputs) * q > MANY) | (q > MANY_OUTPUTS)
    if not (risk.loss.classification and many.any()):
        return np.zeros(len(n), dtype=bool)
    length = (federation.X**2).sum(axis=1) + risk.intercept
    most = np.maximum.reduceat(length, federation.offsets[:-1])
    return many & (min(GRID) * _average_curvature(federation, risk) > 1e3 * FLAT * most)


@dataclass(frozen=True, eq=False)
class _Anchors:
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
        found = solve_users(train, self.risk, penalty, tol_factor=SCORED_TOL, n_jobs=self.n_jobs)
        for (choice, f), theta in zip(trials, np.split(found.theta, len(trials)), strict=True):
            rows = np.flatnonzero(self.fold == f)
            cost[choice, rows] = _held_out(self.federation, self.risk, theta, rows)


def _fit_by_fit(trial: _Trial, ends: _Anchors) -> tuple[Floats, Floats]:
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


def _side_by_side(trial: _Trial, ends: _Anchors) -> tuple[Floats, Floats]:
    """As ``_fit_by_fit``, for classes and many parameters: a user's fits start from one another."""
    from joblib import Parallel, delayed

    from odcl.local.trials import StrengthFits, UserRows

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
        drawn = StrengthFits.of(rows, choices[1:-1, i], ends.center[i])
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
