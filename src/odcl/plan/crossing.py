"""From shares at a few n to the smallest n for a probability, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import isotonic_regression

from odcl._typing import Floats

NEAR = 2.0  # points within this factor of the crossing are fitted
FINE = 241  # values of n that are weighed against each other
# How fast failures fall, as a power of n: 6 to 13 in what we simulated. The prior says so weakly;
# a curve with few runs is expected to be about as steep as one with many, rather flatter.
POWERS, USUAL, DOUBT = np.geomspace(2.0, 80.0, 41), 9.0, 0.8
FLATTER, ALIKE = 0.75, 0.5
SHOWN = 3.0  # failures that so many runs would have had at the target


@dataclass(frozen=True, eq=False)
class Crossing:
    """The n for a probability, and the curve around it."""

    n: int
    low: int  # 95 % interval
    high: int
    target: float
    log_n: Floats | None = None  # (FINE,), where there is a curve: candidates
    weight: Floats | None = None  # (FINE, len(POWERS)), their posterior

    @property
    def power(self) -> float:
        """How fast failures fall with n; what is usual where the curve does not tell."""
        if self.weight is None:
            return USUAL
        return float(np.exp(self.weight.sum(axis=0) @ np.log(POWERS)))

    def chance(self, n: float) -> float | None:
        """Probability at n on the smooth curve; None: nothing is known so far below."""
        if self.log_n is None or self.weight is None:
            return 1.0 if n >= self.n else None
        return _chance(math.log(n), self.log_n, self.weight, self.target)

    def covers(self, n: float) -> bool:
        """Is n near enough to the crossing that the curve was fitted there?"""
        return self.log_n is not None and self.log_n[0] <= math.log(n) <= self.log_n[-1]


def crossing(
    n: Sequence[float],
    share: Sequence[float],
    weight: Sequence[float],
    target: float,
    *,
    like: Crossing | None = None,
) -> Crossing | None:
    """Smallest n with a probability of ``target``; None where no n that was looked at has it.

        probability(n) = exp(-f (n / n_target)^-b),    f = -log(target)

    the law if users fail independently at a rate that falls as a power of n. All n_target and b
    on a grid are weighed by the likelihood of the points near the crossing (``weight`` is the
    number of federations behind each share). The answer is where their mean curve reaches the
    target, and its interval holds 95 % of the n_target.
    Failures are expected to fall nearly as fast as on the curve ``like``.
    """
    order = np.argsort(n, kind="stable")
    at, p, w = (np.asarray(x, dtype=np.float64)[order] for x in (n, share, weight))
    # One point off by chance must not move the crossing: shares are first put in order. The last
    # of them may fall short of the target by chance as well.
    rising = np.asarray(isotonic_regression(p, sample_weight=w))
    top = float(rising[-1])
    short = 2 * math.sqrt(target * (1 - target) / float(w[rising == top].sum()))
    if top < target - short:
        return None
    reached = int(np.argmax(rising >= min(target, top) - 1e-9))
    first, below = float(at[reached]), float(at[max(reached - 1, 0)])
    # Few runs without a failure do not show a chance of the target: then the prior speaks too.
    if reached == 0 and top >= target and w[0] * (1 - target) >= SHOWN:
        return Crossing(math.ceil(first), math.ceil(first), math.ceil(first), target)
    near = (at >= below / NEAR) & (at <= NEAR * first)
    log_n = np.linspace(math.log(below / NEAR), math.log(first * NEAR), FINE)
    usual, doubt = (USUAL, DOUBT) if like is None else (FLATTER * like.power, ALIKE)
    log_weight = np.tile(-0.5 * (np.log(POWERS / usual) / doubt) ** 2, (FINE, 1))
    for x, hit, count in zip(np.log(at[near]), p[near], w[near], strict=True):
        fail = _failures(x - log_n, target)
        log_weight += count * ((1 - hit) * np.log(-np.expm1(-fail)) - hit * fail)
    joint = np.exp(log_weight - log_weight.max())
    joint /= joint.sum()
    each = joint.sum(axis=1)
    low, high = np.interp([0.025, 0.975], np.cumsum(each), log_n)
    some = log_n[::5]
    curve = [_chance(x, log_n, joint, target) for x in some]
    middle = math.ceil(math.exp(float(np.interp(target, curve, some))) - 1e-9)
    ends = max(math.floor(math.exp(low)), math.ceil(at[0])), math.ceil(math.exp(high))
    return Crossing(middle, min(ends[0], middle), max(ends[1], middle), target, log_n, joint)


def _chance(x: float, log_n: Floats, weight: Floats, target: float) -> float:
    """The mean curve at log n = x."""
    return float((weight * np.exp(-_failures(x - log_n, target))).sum())


def _failures(log_ratio: Floats | float, target: float) -> Floats:
    """f (n / n_target)^-b for all b, (..., len(POWERS))."""
    exponent = np.clip(-np.asarray(log_ratio)[..., None] * POWERS, -60.0, 8.0)
    return np.asarray(-math.log(target) * np.exp(exponent))
