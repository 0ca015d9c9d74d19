"""Fits that look at the whole table at once: one model for all, the scale of the residuals."""

from __future__ import annotations

import math

import numpy as np

from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.local.exact import solve_users
from odcl.local.predict import linear_predictors
from odcl.risk.loss import Loss
from odcl.risk.losses import Huber, Squared
from odcl.risk.risk import Risk


def one_for_all(federation: Federation, risk: Risk) -> Floats:
    """One model on everybody's rows, (dim,)."""
    return solve_users(_as_one_user(federation), risk).theta[0]


def _as_one_user(federation: Federation) -> Federation:
    everything = np.array([0, len(federation.y)])
    return Federation(
        federation.X, federation.y, everything, np.zeros(1, dtype=int), federation.weight
    )


def residual_scale(federation: Federation, intercept: bool) -> float:
    """Robust scale of the residuals of the users' own models: the unit of Huber's delta.

    Least squares first, which outliers pull at, then Huber around that scale, until the scale
    stays. A user's residuals are swollen by n_i / (n_i - dim), as it has fitted dim of its rows;
    users who have no more rows than that do not count, unless nobody has: then one model for all
    gives the residuals.
    """
    dim = federation.n_features + intercept
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
        risk = Risk(loss, intercept=intercept)
        z = linear_predictors(part.X, solve_users(part, risk).theta, part.row_user, risk)
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
