"""The users' noise: one variance for all, or one each around a common value.

The prior, s2_i ~ scaled inverse chi-squared (nu, s0), is read off pure error alone: the residuals
of the users' own least squares. Residuals of the model would not do: a user far from its center
looks noisy, is shrunk more, and looks noisier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf

import numpy as np
from scipy.special import gammaln

from odcl._typing import Bools, Floats
from odcl.mixed.mixture import Quadratics

GRID = 2.0 ** np.arange(7)  # nu = 1, 2, ..., 64
# A variance that is plugged in wants more caution than one that is integrated over: nu counts twice
# (errors fall on every table and simulation with unequal noise; four times is too much).
CAUTION = 2.0
FLOOR = 1e-10  # of the pooled residual variance, which is one in canonical coordinates
# Of the usual variance: below it a user (a closed shop: all sales are zero) is fitted exactly.
# It says nothing of others' noise, and a prior that believed it would put everybody's near zero.
NOTHING = 1e-6
SHORT = 5  # rows up to which a user far from its center must not pass for a noisy one
BLIND_FLOOR = 1e-4  # where nobody has a row to spare: differences alone could explain everything


@dataclass(frozen=True)
class Noise:
    """Prior of the users' noise variances; ``nu`` infinite means that all are equal."""

    nu: float
    s0: float
    dof: float  # degrees of freedom behind s0

    @property
    def common(self) -> bool:
        return isinf(self.nu)

    def log_prior(self, s2: Floats) -> float:
        """sum_i log p(log s2_i), up to a constant; zero for common noise."""
        if self.common:
            return 0.0
        return float(-0.5 * self.nu * (np.log(s2 / self.s0) + self.s0 / s2).sum())


def short_of_rows(q: Quadratics) -> Bools:
    """Users whose noise is told by pure error alone, (n_users,): by no distance from a center."""
    return np.asarray(q.rows <= SHORT)


def are_noisy(q: Quadratics, usual: float) -> Bools:
    """Whose residuals tell of noise, (n_users,)? ``usual`` is about the variance of others."""
    return np.asarray((q.dof > 0) & (q.pure > NOTHING * usual * q.dof))


def pure_noise(q: Quadratics) -> tuple[Noise, Floats]:
    """The noise prior, and every user's variance to start from; see :func:`_largest`.

    Where noise is not known to be equal and the median user has five rows or fewer, with one to
    spare at most, pure error is what a level of its own leaves beside everybody's slopes: its own
    slopes would leave next to nothing.
    """
    noise, s2 = _largest(q)
    spare = np.median(q.dof)
    told = spare > 1 or (noise.common and spare > 0)
    if told or not (q.level and q.noisy) or np.median(q.rows) > SHORT:
        return noise, s2
    left = np.maximum(q.uu - q.b[:, 0] ** 2 / np.maximum(q.rows, 1e-300), 0.0)
    return _largest(replace(q, pure=left, dof=np.maximum(q.rows - 1, 0.0)))


def _largest(q: Quadratics) -> tuple[Noise, Floats]:
    """The noise prior of largest likelihood over nu, and every user's variance to start from.

    Given s2_i the pure error is s2_i chi-squared(f_i), so that, up to a constant,

        log p = nu/2 log(nu s0) - (nu + f)/2 log(nu s0 + pure) + log G((nu + f)/2) - log G(nu/2).

    A finite nu must earn log n_users: one number more. Users who are fitted exactly do not count.
    """
    n = len(q)
    if not q.noisy:
        return Noise(np.inf, q.dispersion, np.inf), np.full(n, q.dispersion)
    all_dof = float(q.dof.sum())
    if q.pure.sum() <= FLOOR * all_dof:
        start = FLOOR if all_dof > 0 else 0.5
        return Noise(np.inf, start, all_dof), np.full(n, start)
    each = q.pure[q.dof > 0] / q.dof[q.dof > 0]
    # By the median user who is not fitted exactly: one mistyped target is not what is usual.
    seen = are_noisy(q, float(np.median(each[each > FLOOR])) if (each > FLOOR).any() else 0.0)
    f, pure = q.dof[seen], q.pure[seen]
    common = pure.sum() / f.sum()
    nu = GRID[:, None]
    s0 = np.full((len(GRID), 1), common)
    for _ in range(100):  # EM for s0: the mean of E[1 / s2_i] is 1 / s0
        new = 1 / np.mean((nu + f) / (nu * s0 + pure), axis=1, keepdims=True)
        done = np.all(np.abs(new - s0) <= 1e-12 * s0)
        s0 = np.maximum(new, FLOOR)
        if done:
            break
    fits = nu / 2 * np.log(nu * s0) - (nu + f) / 2 * np.log(nu * s0 + pure)
    fits = (fits + gammaln((nu + f) / 2) - gammaln(nu / 2)).sum(axis=1)
    base = float((-f / 2 * np.log(2 * common)).sum() - pure.sum() / (2 * common))
    best = int(np.argmax(fits))
    if 2 * (fits[best] - base) <= np.log(n):
        return Noise(np.inf, common, float(f.sum())), np.full(n, common)
    nu_, s0_ = CAUTION * float(GRID[best]), float(s0[best, 0])
    return Noise(nu_, s0_, float(f.sum())), (nu_ * s0_ + q.pure) / (nu_ + q.dof)
