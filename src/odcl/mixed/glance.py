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
from odcl.mixed.terms import by_size, stacked_rows, subtract_rows
from odcl.risk.risk import Curve

CHANCE = 0.05  # that a bend seems to show where there is none
BINS, REACH = 64, 3.0  # of a column, and how many units they reach on both sides of its middle
SPARE = 0.5  # of rows, and of a bend, that users' own lines must leave, or they tell too little
TRACE = 1e-12  # of a mean square, added to it: a column may be constant within a user


def may_bend(rows: Federation, curves: Sequence[Curve], enough: float) -> bool:
    """May any column act in a curve? Also yes where fewer rows than ``enough`` are left by lines.

    For squared loss and rows that count once. Of 20 columns and n rows left, a common curve that
    explains 10 / n of the noise's variance is missed every other time, one of 25 / n hardly ever.
    """
    left, share = _beside_lines(rows)
    if rows.n_rows @ share < enough:
        return True
    seen = (share > 0)[rows.row_user]
    told = left[seen], rows.row_user[seen], share
    scores = np.array([_chances(rows.X[seen, one.of], *told, one) for one in curves])
    n, smoothest = len(scores), scores[:, 0].sum()
    chances = n * scores[:, 1].min(), n * scores[:, 2].min(), chdtrc(n, smoothest)
    return bool(len(chances) * min(chances) <= CHANCE)


def _beside_lines(rows: Federation) -> tuple[Floats, Floats]:
    """What users' own lines leave of their targets over its noise, (n_rows,), and how much they do.

    Beside a level and one column, lines leave this share of a user's rows, (n_users,); zero where
    it is too little, or there is no noise.
    """
    left, share = np.zeros(len(rows.X)), np.zeros(rows.n_users)
    for who, index in by_size(rows.row_user, rows.n_users):
        size = index.shape[1]
        spare = size - rows.n_features - 1
        if spare < max(SPARE * size, 1):
            continue
        x, y = np.array(stacked_rows(rows.X, index)), np.asarray(rows.y[index], np.float64)
        subtract_rows(x, x.mean(axis=1))
        y = (y - y.mean(axis=1, keepdims=True))[..., None]
        turned = x.transpose(0, 2, 1)
        gram = turned @ x
        own = np.einsum("njj->nj", gram)  # a view
        own[:] = own * (1 + TRACE) + 1e-300
        u = (y - x @ np.linalg.solve(gram, turned @ y))[..., 0]
        square = (u**2).sum(axis=1)
        noisy = square > TRACE * (y**2).sum(axis=(1, 2))
        left[index] = u * np.sqrt(spare / np.where(noisy, square, np.inf))[:, None]
        share[who] = noisy * spare / (size - 2)
    return left, share


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
