"""Heavy tails: a few users lie much farther from their center than the others.

With probability p_j a user's spread is lambda_j T, for lambda on a short grid around one. The
probabilities are fitted after everything else; they are kept where the evidence says so, and then
users far out are shrunk less, users near by more, and no group is needed to explain either.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from odcl._typing import Floats
from odcl.mixed.em import Fit
from odcl.mixed.mixture import Centers, Quadratics, misfits, moments

SCALES = np.array([0.25, 1.0, 4.0, 16.0])
STEPS = 300
GAP = 1e-2  # in the log-likelihood


def with_tails(q: Quadratics, fit: Fit) -> Fit:
    """The fit with scales of T and their probabilities, if they earn log m; else as it was."""
    if not fit.spread.matrix.any():
        return fit
    stack = Centers.of(fit.centers, fit.covariances)
    levels = np.empty((len(q), len(SCALES)))
    for j, scale in enumerate(SCALES):
        m = moments(q, replace(fit.spread, matrix=scale * fit.spread.matrix), fit.s2)
        with np.errstate(divide="ignore"):
            logits = np.log(fit.weights) - 0.5 * misfits(m, stack)[0]
        levels[:, j] = np.logaddexp.reduce(logits, axis=1)
    floor = float(levels[:, SCALES == 1.0].sum()) + 0.5 * np.log(len(q))
    shares, level = _shares(levels, floor)
    if level <= floor:
        return fit
    gain = level - floor + 0.5 * np.log(len(q))
    return replace(fit, scales=SCALES, shares=shares, tail_gain=gain)


def _shares(levels: Floats, floor: float) -> tuple[Floats, float]:
    """The probabilities of largest likelihood, by EM for mixture proportions, and that level.

    The level is concave: it lies below its maximum by at most m (max_j slope_j - 1). The loop ends
    when that is next to nothing, or when the maximum is known to be no higher than ``floor``.
    """
    top = levels.max(axis=1, keepdims=True)
    density = np.exp(levels - top)
    shares = np.full(levels.shape[1], 1 / levels.shape[1])
    for _ in range(STEPS):
        mixed = density @ shares
        level = float((top[:, 0] + np.log(mixed)).sum())
        slopes = (density / mixed[:, None]).mean(axis=0)
        gap = len(levels) * (slopes.max() - 1)
        if gap <= GAP or level + gap <= floor:
            break
        shares = shares * slopes
    return shares, level
