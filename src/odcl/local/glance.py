"""A glance at rows for bends, before any are worked out: scores of bends beside users' own lines.

What a user's own line leaves of its targets is summed over bins of a column, within which bends
hardly vary. Sums times bends are the scores of curves, common ones and users' own. Where these are
no larger than by chance, lines are all there is to look for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import chdtrc

from odcl._typing import Floats, Ints
from odcl.data.curves import along, numbered, roughness, with_bends
from odcl.data.federation import Federation
from odcl.local.fit import solve_users
from odcl.local.predict import linear_predictors
from odcl.risk.risk import Curve, Risk

CHANCE = 0.05  # that a bend seems to show where there is none
BINS, REACH = 64, 3.0  # of a column, and how many units they reach on both sides of its middle
SPARE = 0.5  # of rows, and of a bend, that users' own lines must leave, or they tell too little
TRACE = 1e-12  # of a mean square, added to it: a column may be constant within a user


def may_bend(rows: Federation, curves: Sequence[Curve], enough: float) -> bool:
    """May any column act in a curve? Also yes where fewer rows than ``enough`` are left by lines.

    For squared loss and rows that count once. Of 20 columns and n rows left, a common curve that
    explains 10 / n of the noise's variance is missed every other time, one of 25 / n hardly ever.
    """
    n, owner, lines = rows.n_rows, rows.row_user, Risk("squared", intercept=True)
    models = solve_users(rows, lines).theta
    left = rows.y - linear_predictors(rows.X, models, owner, lines)[:, 0]
    squares, size = (np.add.reduceat(x**2, rows.offsets[:-1]) for x in (left, rows.y))
    spare = n - rows.n_features - 1
    tell = (spare >= np.maximum(SPARE * n, 1)) & (squares > TRACE * size)
    if spare @ tell < enough:
        return True
    left *= np.sqrt(np.where(tell, spare, 0) / np.where(tell, squares, 1.0))[owner]
    share, seen = tell * spare / np.maximum(n - 2, 1), tell[owner]
    told = left[seen], owner[seen], share
    scores = np.array([_chances(rows.X[seen, one.of], *told, one) for one in curves])
    k = len(curves)
    chances = k * scores[:, 1].min(), k * scores[:, 2].min(), chdtrc(k, scores[:, 0].sum())
    return bool(len(chances) * min(chances) <= CHANCE)


def _chances(
    x: Floats, left: Floats, owner: Ints, share: Floats, curve: Curve
) -> tuple[float, float, float]:
    """The squared score of a column's smoothest bend, and the chances of a common curve's, and own.

    Chances are those of scores as large where the column acts in a line; none where too much of
    how it varies lies between users. A user's own level and slope take their part of what its rows
    tell, and other columns leave a ``share`` of the rest.
    """
    shape = len(share), BINS
    bins = (along(x, curve) + REACH) * (BINS / (2 * REACH))
    bins = np.clip(bins, 0, BINS - 1).astype(np.intp)
    cells = owner * BINS + bins
    count = np.bincount(cells, minlength=shape[0] * BINS).reshape(shape)
    sums = np.bincount(cells, left, minlength=shape[0] * BINS).reshape(shape)
    middle = np.bincount(bins, x, minlength=BINS) / np.maximum(count.sum(axis=0), 1)
    bends = with_bends(middle[:, None], numbered([replace(curve, of=0)], 1))[:, 1:]
    columns = np.column_stack([np.ones(BINS), (middle - curve.center) / curve.unit, bends])
    products = columns[:, :, None] * columns[:, None]
    grams = np.tensordot(count.astype(np.float64), products, 1)
    every = np.linalg.pinv(grams.sum(axis=0)[:3, :3])[2, 2]  # of the smoothest, beside one line
    line, across, told = grams[:, :2, :2], grams[:, :2, 2:], grams[:, 2:, 2:]
    line += TRACE * (1 + np.trace(line, axis1=1, axis2=2))[:, None, None] * np.eye(2)
    told -= across.transpose(0, 2, 1) @ np.linalg.solve(line, across)
    if told[:, 0, 0].sum() * every < SPARE:  # the rest is between users
        return 0.0, 0.0, 0.0
    told *= share[:, None, None]
    scores, smooth = sums @ bends, 1 / roughness(curve)
    root = np.linalg.cholesky(told.sum(axis=0) + TRACE * len(x) * np.eye(len(smooth)))
    common = np.cumsum(np.linalg.solve(root, scores.sum(axis=0)) ** 2)
    chance = chdtrc(np.arange(1, 1 + len(common)), common).min()
    # Users' own squares, the smoothest first, as chi-squared with their mean and variance.
    mean = np.diagonal(told, axis1=1, axis2=2).sum(axis=0) @ smooth
    unit = max(smooth @ (told**2).sum(axis=0) @ smooth / max(mean, 1e-300), 1e-300)
    own = chdtrc(mean / unit, (scores**2).sum(axis=0) @ smooth / unit)
    return float(common[0]), float(chance), float(own)
