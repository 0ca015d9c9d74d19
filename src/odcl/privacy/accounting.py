"""What a guarantee allows: from (epsilon, delta) to the noise of each look at the rows.

A look with noise of standard deviation sd at a statistic that one row moves by s is a Gaussian
mechanism with mu = s / sd. Looks may depend on those before them, and together they have mu^2 =
the sum of their mu^2, exactly (Dong, Roth and Su, Gaussian differential privacy, 2022).
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

GRID_MARGIN = 1e-3  # of delta: what noise on a grid may differ from the Gaussian law by, and more


def delta_of(epsilon: float, mu: float) -> float:
    """The delta that a Gaussian mechanism has at ``epsilon``.

    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang, 2018).
    """
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(min(second - first, 0.0)))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-private, with a margin for noise on a grid."""
    allowed = math.log(delta * (1 - GRID_MARGIN))

    def excess(log_mu: float) -> float:
        return math.log(max(delta_of(epsilon, math.exp(log_mu)), 1e-300)) - allowed

    return math.exp(brentq(excess, math.log(1e-6), math.log(1e3), xtol=1e-13))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon at which looks of ``mu`` together are (epsilon, delta)-private."""
    if delta_of(1e-9, mu) <= delta:
        return 0.0
    excess = lambda epsilon: math.log(max(delta_of(epsilon, mu), 1e-300) / delta)  # noqa: E731
    return float(brentq(excess, 1e-9, 10 * mu * (mu + 8), xtol=1e-9))
