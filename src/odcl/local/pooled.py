"""Fits that look at the whole table at once: one model for all, the scale of the residuals."""

from __future__ import annotations

import math

import numpy as np

from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.local.exact import Penalty, solve_users
from odcl.local.predict import linear_predictors
from odcl.risk.loss import Loss
from odcl.risk.losses import Huber, Squared


def one_for_all(federation: Federation, loss: Loss, l2: float, fit_intercept: bool) -> Floats:
    """One model on everybody's rows, (dim,)."""
    everybody = _as_one_user(federation)
    y = loss.encode(everybody.y)
    penalty = Penalty(np.array([l2]))
    return solve_users(everybody, y, loss, penalty, fit_intercept=fit_intercept).theta[0]


def _as_one_user(federation: Federation) -> Federation:
    everything = np.array([0, len(federation.y)])
    return Federation(
        federation.X, federation.y, everything, np.zeros(1, dtype=int), federation.weight
    )


def residual_scale(federation: Federation, fit_intercept: bool) -> float:
    """Robust scale of the residuals of the users' own models: the unit of Huber's delta.

    Least squares first, which outliers pull at, then Huber around that scale, until the scale
    stays. A user's residuals are swollen by n_i / (n_i - dim), as it has fitted dim of its rows;
    users who have no more rows than that do not count, unless nobody has: then one model for all
    gives the residuals.
    """
    dim = federation.n_features + fit_intercept
    able = np.flatnonzero(federation.n_samples > dim)
    part = federation
    if len(able) < federation.n_users:
        part = federation.take(able) if len(able) else _as_one_user(federation)
    n = part.n_samples
    swell = np.sqrt(n / np.maximum(n - dim, 0.5))[part.row_user]
    weight = np.ones(len(part.y)) if part.weight is None else part.weight
    # Rows that the models meet to six digits have no noise: any delta above rounding will do.
    size = _median(np.abs(part.y - _median(part.y, weight)), weight) or float(np.ptp(part.y))
    floor = 1e-6 * size or 1.0
    scale = math.inf
    loss: Loss = Squared()
    for _ in range(10):
        penalty = Penalty(np.zeros(part.n_users))
        theta = solve_users(part, part.y, loss, penalty, fit_intercept=fit_intercept).theta
        z = linear_predictors(
            part.X, theta, part.row_user, n_outputs=1, fit_intercept=fit_intercept
        )
        found = max(1.4826 * _median(np.abs(part.y - z[:, 0]) * swell, weight), floor)
        if found > 0.9 * scale:
            break
        scale, loss = found, Huber(1.345 * found)
    return min(scale, found)


def _median(values: Floats, weight: Floats) -> float:
    """Median of values that count ``weight`` times each."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    half = 0.5 * reached[-1]
    low = values[order][np.searchsorted(reached, half, side="left")]
    high = values[order][min(np.searchsorted(reached, half, side="right"), len(values) - 1)]
    return float(0.5 * (low + high))
