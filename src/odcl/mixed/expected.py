"""Log-likelihoods of rows averaged over Gaussian logits, with slope and curvature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, ndtr

from odcl._typing import Floats

# The logistic function is a mixture of normal distribution functions to 2e-9 (Monahan and
# Stefanski 1992), so that its averages over Gaussians are closed forms.
SHARES, RATES = np.array(
    [
        (0.003246343272134, 1.365340806296348),
        (0.051517477033972, 1.059523971016916),
        (0.195077912673858, 0.830791313765644),
        (0.315569823632818, 0.650732166639391),
        (0.274149576158423, 0.508135425366489),
        (0.131076880695470, 0.396313345166341),
        (0.027912418727972, 0.308904252267995),
        (0.001449567805354, 0.238212616409306),
    ]
).T.copy()


@dataclass(frozen=True, eq=False)
class Expected:
    """Expectations of rows' log-likelihoods over Gaussian logits N(m, S)."""

    value: Floats  # (..., rows)
    slope: Floats  # (..., rows, D)
    curvature: Floats  # (..., rows, D, D)


def expected(loss: str, y: Floats, m: Floats, S: Floats) -> Expected:
    """E log p(y | z), its gradient and its curvature for z ~ N(m, S), m (..., rows, D).

    logistic (y 0 or 1) and poisson: closed forms; multinomial (y 0..D, the last class the
    reference): the cubature rule with 2 D points that is exact for cubics.
    """
    if loss == "poisson":
        # A rate a million times the count is wrong enough: more would drown the prior in rounding.
        rate = np.exp(np.minimum(m[..., 0] + S[..., 0, 0] / 2, np.log1p(y) + 14.0))
        value = y * m[..., 0] - rate - gammaln(y + 1)
        return Expected(value, (y - rate)[..., None], rate[..., None, None])
    if loss == "logistic":
        size = np.sqrt(1 / RATES**2 + S[..., 0])
        z = m / size
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        p = ndtr(z) @ SHARES
        value = (y - p) * m[..., 0] - (size * density) @ SHARES
        return Expected(value, (y - p)[..., None], ((density / size) @ SHARES)[..., None, None])
    D = m.shape[-1]
    root = np.linalg.cholesky(S + 1e-12 * np.eye(D)) * np.sqrt(D)
    points = np.concatenate([root, -root], axis=-1) + m[..., None]  # (..., rows, D, 2 D)
    top = np.maximum(points.max(axis=-2, keepdims=True), 0.0)
    total = np.exp(points - top).sum(axis=-2, keepdims=True) + np.exp(-top)
    p = np.exp(points - top) / total
    hit = (y[..., None] == np.arange(D)).astype(np.float64)
    value = (hit * m).sum(axis=-1) - (top + np.log(total))[..., 0, :].mean(axis=-1)
    mean = p.mean(axis=-1)
    bend = mean[..., None] * np.eye(D) - p @ np.swapaxes(p, -1, -2) / (2 * D)
    return Expected(value, hit - mean, bend)


def predicted(loss: str, m: Floats, S: Floats) -> Floats:
    """E of the target over N(m, S): a rate, a probability, or the probabilities of all classes."""
    if loss == "poisson":
        return np.exp(m[..., 0] + S[..., 0, 0] / 2)
    hits = np.zeros(m.shape[:-1])
    if loss == "logistic":
        return -expected(loss, hits, m, S).slope[..., 0]
    first = -expected(loss, hits - 1.0, m, S).slope
    rest = np.maximum(1 - first.sum(axis=-1, keepdims=True), 0.0)
    return np.concatenate([first, rest], axis=-1)
