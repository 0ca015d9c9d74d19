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
from odcl.mixed.mixture import Centers, Moments, Quadratics, misfits, moments

SCALES = np.array([0.25, 1.0, 4.0, 16.0])
STEPS = 300
GAP = 1e-2  # in the log-likelihood


def with_tails(q: Quadratics, fit: Fit, beat: float = np.inf) -> Fit:
    """The fit with scales of T and their probabilities, if they earn log m; else as it was.

    As it was, too, where no tails whatever could ``beat`` an evidence.
    """
    if not fit.spread.matrix.any():
        return fit
    m = moments(q, fit.spread, fit.s2)
    plain, floor = _levels(m, fit), 0.5 * np.log(len(q))
    if fit.evidence - 2 * (_most_gain(q, m, fit, plain) - floor) >= beat:
        return fit
    levels = np.empty((len(q), len(SCALES)))
    for j, scale in enumerate(SCALES):
        if scale != 1.0:
            m = moments(q, replace(fit.spread, matrix=scale * fit.spread.matrix), fit.s2)
        levels[:, j] = plain if scale == 1.0 else _levels(m, fit)
    floor += float(plain.sum())
    shares, level = _shares(levels, floor)
    if level <= floor:
        return fit
    gain = level - floor + 0.5 * np.log(len(q))
    return replace(fit, scales=SCALES, shares=shares, tail_gain=gain)


def _levels(m: Moments, fit: Fit) -> Floats:
    """The log densities of all users under a fit at these moments, (n_users,)."""
    stack = Centers.of(fit.centers, fit.covariances)
    with np.errstate(divide="ignore"):
        logits = np.log(fit.weights) - 0.5 * misfits(m, stack)[0]
    return np.asarray(np.logaddexp.reduce(logits, axis=1))


def _most_gain(q: Quadratics, m: Moments, fit: Fit, plain: Floats) -> float:
    """What no tails can gain more than, user by user.

    A wider T raises log|I + At T|, and no user fits better than its own least squares; a narrower
    one fits worse, and log|I + At T| falls by no more than the log of its scale per direction.
    """
    if not q.noisy:  # how well a Gaussian term fits at best is not known
        return np.inf
    seen = np.minimum(np.count_nonzero(np.diag(fit.spread.matrix)), q.rows)
    narrow = 0.5 * seen * np.log(1 / SCALES.min())
    wide = -0.5 * (m.base - m.e + q.pure / fit.s2) - plain
    return float(np.maximum(narrow, wide).sum())


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
