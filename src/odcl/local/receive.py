"""After the download: each user solves its own problem once more, around the model it received.

    minimise  mean loss_i(theta) + lam_i/2 ||theta - c_(i)||^2

The l2 term is replaced by this one, not added to it. No communication: still one round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation, user_rng
from odcl.local.exact import Penalty, solve_users
from odcl.local.fit import LocalModels
from odcl.risk.loss import Loss

if TYPE_CHECKING:
    from odcl.server.step import ServerStep

N_FOLDS = 5
# Strengths that cross-validation looks at besides "stay local" (0) and "take the group's" (inf),
# in units of the average curvature of the users' risks.
GRID = (1e-3, 1e-2, 1e-1, 1.0)
PORTION_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class Refit:
    """The users' final models and how far each was drawn to its group's."""

    models: Floats  # (n_users, dim)
    strength: Floats  # (n_users,), lam_i: 0 is the local model, infinity the group's
    how: str  # in words


def refit_users(
    federation: Federation,
    loss: Loss,
    local: LocalModels,
    step: ServerStep,
    refit: str | float | None,
    *,
    fit_intercept: bool,
    seed: int = 0,
    n_jobs: int | None = None,
) -> Refit:
    """Refit every user around ``step.models``.

    ``refit`` is None (the paper: take the group's model), ``"evidence"`` (lam_i = phi_i / (n_i
    tau^2), the posterior mode when users of a group differ by tau^2), ``"cv"`` (lam_i from the
    user's own rows by cross-validation), or a number for all.
    """
    m = federation.n_users
    if refit is None:
        return Refit(step.models, np.full(m, np.inf), "none")
    sizes = np.bincount(step.labels, minlength=step.n_clusters)[step.labels]
    alone = sizes == 1

    def around(center: Floats, strength: Floats, who: Ints) -> Floats:
        part = federation if len(who) == m else federation.take(who)
        penalty = Penalty(strength[who], center[who], free=False)
        y = loss.encode(part.y)
        return solve_users(part, y, loss, penalty, fit_intercept=fit_intercept, n_jobs=n_jobs).theta

    if refit == "cv" or (refit == "evidence" and step.tau2 is None):
        center, how = _others(step), "strength by cross-validation on each user's own rows"
        strength = np.full(m, np.inf)  # a user with one row takes the group's model
        able = np.flatnonzero(~alone & (federation.n_rows > 1))
        if len(able):
            l2 = float(local.l2.max(initial=0.0))
            strength[able] = _cross_validated(
                federation.take(able), loss, center[able], l2, fit_intercept, seed, n_jobs
            )
        if refit == "evidence":
            how += " (tau^2 is not known)"
    elif refit == "evidence":
        strength, center = _from_evidence(local, step), step.models
        how = f"strength from the evidence, tau^2 = {step.tau2:.3g}"
    elif isinstance(refit, int | float) and not isinstance(refit, bool) and refit >= 0:
        strength, center, how = np.full(m, float(refit)), step.models, f"strength {refit:g}"
    else:
        raise ValueError(f"refit={refit!r} is not one of None, 'evidence', 'cv', a number >= 0.")
    strength = np.where(alone, 0.0, strength)
    models = np.where((strength == 0)[:, None], local.theta, step.models)
    between = np.flatnonzero((strength > 0) & np.isfinite(strength))
    if len(between):
        models[between] = around(center, strength, between)
    return Refit(models, strength, how)


def _others(step: ServerStep) -> Floats:
    return step.models if step.others is None else step.others


def _from_evidence(local: LocalModels, step: ServerStep) -> Floats:
    """lam_i = phi_i / (n_i tau^2); tau = 0 is the group's model itself."""
    phi = np.ones(len(local.theta)) if step.dispersion is None else step.dispersion
    tau2 = float(step.tau2 or 0.0)
    with np.errstate(divide="ignore"):
        return np.where(tau2 > 0, phi / (local.n_samples * np.float64(tau2)), np.inf)


def _cross_validated(
    federation: Federation,
    loss: Loss,
    center: Floats,
    l2: float,
    fit_intercept: bool,
    seed: int,
    n_jobs: int | None,
) -> Floats:
    """Each user's lam_i from its own rows; the centre leaves the user's contribution out.

    Otherwise the rows held out would speak through the group's model, and the choice would lean
    to the group. Ties go to the stronger pooling. Every user has at least two rows.
    """
    m = federation.n_users
    fold = _folds(federation, seed)
    unit = _average_curvature(federation, loss)
    choices = np.array([np.inf, *(g * unit for g in reversed(GRID)), 0.0])
    cost = np.zeros((len(choices), len(federation.y)))

    def score(choice: int, f: int, theta: Floats) -> None:
        rows = np.flatnonzero(fold == f)
        cost[choice, rows] = _held_out(federation, loss, theta, rows, fit_intercept)

    def solve(trials: list[tuple[int, int]], penalty: Penalty) -> None:
        """Fit every user on what is left of its rows, for several (choice, fold) at a time."""
        train = _training(federation, fold, [f for _, f in trials])
        y = loss.encode(train.y)
        found = solve_users(train, y, loss, penalty, fit_intercept=fit_intercept, n_jobs=n_jobs)
        for (choice, f), theta in zip(trials, np.split(found.theta, len(trials)), strict=True):
            score(choice, f, theta)

    for f in range(N_FOLDS):
        score(0, f, center)
    grid = [(c, f) for c in range(1, len(choices) - 1) for f in range(N_FOLDS)]
    for trials in _portions(grid, federation):
        strength = np.repeat([choices[c] for c, _ in trials], m)
        solve(trials, Penalty(strength, np.tile(center, (len(trials), 1)), free=False))
    for trials in _portions([(len(choices) - 1, f) for f in range(N_FOLDS)], federation):
        solve(trials, Penalty(np.full(len(trials) * m, l2)))
    total = np.add.reduceat(cost, federation.offsets[:-1], axis=1)
    best = np.argmin(np.round(total, 12), axis=0)  # first of equals: the stronger pooling
    return choices[best]


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


def _held_out(
    federation: Federation, loss: Loss, theta: Floats, rows: Ints, fit_intercept: bool
) -> Floats:
    """Loss of the rows held out, each by its user's model, (len(rows),)."""
    x = federation.X[rows]
    if fit_intercept:
        x = np.column_stack([x, np.ones(len(rows))])
    model = theta[federation.row_user[rows]].reshape(len(rows), x.shape[1], loss.n_outputs)
    value = loss.value(np.matmul(x[:, None, :], model)[:, 0], loss.encode(federation.y)[rows])
    return value if federation.weight is None else value * federation.weight[rows]


def _folds(federation: Federation, seed: int) -> Ints:
    """Fold of each row: a user's rows dealt out in an order drawn from its own stream."""
    fold: Ints = np.empty(len(federation.y), dtype=np.intp)
    for i, user in enumerate(federation.users):
        rows = federation.rows(i)
        n = rows.stop - rows.start
        fold[rows] = user_rng(seed, user).permutation(np.arange(n) % N_FOLDS)
    return fold


def _average_curvature(federation: Federation, loss: Loss) -> float:
    """About the mean diagonal entry of the users' Hessians, from some rows: the grid's unit."""
    rows = np.unique(np.linspace(0, len(federation.y) - 1, 5000).astype(np.intp))
    x, y = federation.X[rows], loss.encode(federation.y)[rows]
    _, most = loss.curve_bounds(y, np.zeros(len(x)))
    unit = float(np.mean(most[:, None] * x**2)) if x.size else 1.0
    return unit if unit > 0 else 1.0
