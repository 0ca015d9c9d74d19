"""The user's last step: from its own rows, its own upload and its download to its model.

    minimise  mean loss_i(theta) + lam_i/2 ||theta - c_(i)||^2

around the model c_(i) that it received. The l2 term is replaced by this one, not added to it. No
communication: still one round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.data.folds import folds
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
ROUGH = 300.0


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
    m = federation.n_users
    fold = folds(federation, N_FOLDS, seed)
    unit = _average_curvature(federation, risk)
    # (choices, n_users): the group's model, weaker and weaker pulls to it, the local model.
    choices = np.array([np.full(m, np.inf), *(g * unit for g in reversed(GRID)), np.zeros(m)])
    cost = np.zeros((len(choices), len(federation.y)))

    def score(choice: int, f: int, theta: Floats) -> None:
        rows = np.flatnonzero(fold == f)
        cost[choice, rows] = _held_out(federation, risk, theta, rows)

    def solve(trials: list[tuple[int, int]], penalty: Penalty) -> None:
        """Fit every user on what is left of its rows, for several (choice, fold) at a time."""
        train = _training(federation, fold, [f for _, f in trials])
        found = solve_users(train, risk, penalty, rough=ROUGH, n_jobs=n_jobs)
        for (choice, f), theta in zip(trials, np.split(found.theta, len(trials)), strict=True):
            score(choice, f, theta)

    for f in range(N_FOLDS):
        score(0, f, center)
    grid = [(c, f) for c in range(1, len(choices) - 1) for f in range(N_FOLDS)]
    for trials in _portions(grid, federation):
        strength = np.concatenate([choices[c] for c, _ in trials])
        solve(trials, Penalty(strength, np.tile(center, (len(trials), 1)), free=False))
    for trials in _portions([(len(choices) - 1, f) for f in range(N_FOLDS)], federation):
        solve(trials, Penalty(np.full(len(trials) * m, risk.l2)))
    total = np.add.reduceat(cost, federation.offsets[:-1], axis=1)
    best = np.argmin(np.round(total, 12), axis=0)  # first of equals: the stronger pooling
    weight = _weights(total, federation.n_samples if risk.loss.has_data_terms else None)
    models = weight[0][:, None] * group + weight[-1][:, None] * own
    for share, strength in zip(weight[1:-1], choices[1:-1], strict=True):
        drawn = solve_users(federation, risk, Penalty(strength, center, free=False), n_jobs=n_jobs)
        models += share[:, None] * drawn.theta
    return models, choices[best, np.arange(m)]


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
