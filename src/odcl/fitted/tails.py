"""How targets scatter around predictions: the law of residuals that were left out, over all users.

A row's residual without the row itself, z = (y - x'theta) / sqrt(s2 (1 - h)) with h = x'V x / s2,
should be Student's t with the degrees of freedom behind s2. What rows say beyond that, heavier
tails or errors that go together, is one law for all: z as a normal score is ``scale`` times
Student's t with ``nu`` degrees of freedom. Each of the two numbers must earn log n.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isinf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import chdtr, gammaln, ndtr, ndtri, stdtr, stdtrit

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.local.predict import linear_predictors, predictor_covariances
from odcl.local.receive import Received
from odcl.mixed.mixture import CAUTION, SHORT, Noise
from odcl.mixed.posterior import UNLIKELY
from odcl.risk.risk import Risk
from odcl.wide.moments import GroupModels, mixed_only

if TYPE_CHECKING:
    from odcl.server.robust import Outlier

MOST = 10_000  # rows that are asked
FEWEST = 30  # rows that tell of a law
TOLD = 0.95  # h above which a row is all that tells of its own prediction
GRID = 2.0 ** np.arange(6, 0, -1)  # nu = 64, 32, ..., 2
STEPS = 100
LEAST = 1e-300  # a chance below it is no number
CERTAIN = 1e6  # degrees of freedom that are as good as infinitely many


class Tails(NamedTuple):
    """The law of targets around predictions, as a change of the law that the fit assumes."""

    scale: float = 1.0
    nu: float = inf

    @property
    def text(self) -> str:
        """What it says, in words; nothing where targets scatter as the fit assumes."""
        law = "" if isinf(self.nu) else f", like Student's t with {self.nu:g} degrees of freedom"
        about = f"Rows scatter {self.scale:.2f} times as much around predictions made without them"
        about += f" as the fit assumes{law}: intervals of predictions do, too."
        return "" if self == Tails() else about

    def half_width(self, dof: Floats, coverage: float) -> Floats:
        """Half the width of intervals in standard errors, (n,)."""
        dof, share = np.minimum(dof, CERTAIN), 0.5 + coverage / 2
        if self == Tails():
            return np.asarray(stdtrit(dof, share))
        score = ndtri(share) if isinf(self.nu) else stdtrit(self.nu, share)
        return np.asarray(-stdtrit(dof, max(float(ndtr(-self.scale * score)), LEAST)))


def tails_of(
    rows: Federation,
    risk: Risk,
    received: Received,
    groups: GroupModels | None,
    outliers: Sequence[Outlier] = (),
) -> Tails:
    """The law of the residuals of these rows, but for users who were set aside."""
    mixture = mixed_only(groups)
    if mixture is None or received.covariance is None or risk.loss.name != "squared":
        return Tails()
    n = len(rows.y)
    asked = np.random.default_rng(0).choice(n, min(n, MOST), replace=False)
    if aside := {one.user for one in outliers if one.set_aside}:
        takes_part = np.array([user not in aside for user in rows.users.tolist()])
        asked = asked[takes_part[rows.row_user[asked]]]
    scores = np.sort(_scores(rows, risk, received, mixture.noise, asked))
    return _likeliest(scores) if len(scores) >= FEWEST else Tails()


def _scores(rows: Federation, risk: Risk, received: Received, noise: Noise, asked: Ints) -> Floats:
    """How far off each row's target is without the row itself, as a normal score, from zero on.

    A user's own noise is without the row, too: up to SHORT rows it is told by pure error alone, of
    which a row has its share. Rows that nothing else tells of are left out, and users who are
    fitted all but exactly (closed shops).
    """
    assert received.covariance is not None
    assert received.noise is not None
    assert received.dof is not None
    X, at = rows.X[asked], rows.row_user[asked]
    weight = 1.0 if rows.weight is None else rows.weight[asked]
    e = rows.y[asked] - linear_predictors(X, received.models, at, risk)[:, 0]
    s2, dof = received.noise[at], np.minimum(received.dof[at], CERTAIN)
    own = predictor_covariances(X, received.covariance, at, risk)[:, 0, 0]
    rest = s2 - weight * own  # of weight two are two rows, which are left out together
    told = rest > (1 - TOLD) * s2
    z = (np.abs(e) * np.sqrt(s2))[told] / np.sqrt((rest * (rest + own))[told])
    if not noise.common:
        n, spare = rows.n_samples[at][told], dof[told] - noise.nu / CAUTION
        share, free = np.where(n <= SHORT, spare / n, 1.0), noise.nu + spare
        z *= np.sqrt((free - share) / np.maximum(free - share * z**2, share / 2 + 1e-9))
    each = np.bincount(at[told], z**2, rows.n_users)
    count = np.maximum(np.bincount(at[told], minlength=rows.n_users), 1)
    noisy = (chdtr(count, each) > UNLIKELY)[at[told]]
    return np.asarray(-ndtri(np.maximum(stdtr(dof[told], -z)[noisy], LEAST)))


def _likeliest(scores: Floats) -> Tails:
    """The law of best likelihood; each of its numbers must earn log n."""
    square, price = scores**2, np.log(len(scores))
    found, best = Tails(), _level(square, 1.0, inf)
    scale = float(np.sqrt(square.mean()))
    for nu in (inf, *GRID.tolist()):
        for _ in range(0 if isinf(nu) else STEPS):  # EM, from the scale that was likeliest before
            before = scale
            scale = float(np.sqrt(((nu + 1) * square / (nu + square / scale**2)).mean()))
            if abs(scale - before) < 1e-6 * before:
                break
        level = _level(square, scale, nu) - (price if isinf(nu) else 2 * price)
        if level > best:
            found, best = Tails(scale, nu), level
    return found


def _level(square: Floats, scale: float, nu: float) -> float:
    """Twice the log-likelihood, up to a constant."""
    n = len(square)
    if isinf(nu):
        return float(-2 * n * np.log(scale) - square.sum() / scale**2)
    unit = gammaln((nu + 1) / 2) - gammaln(nu / 2) - np.log(nu / 2) / 2 - np.log(scale)
    return float(2 * n * unit - (nu + 1) * np.log1p(square / (nu * scale**2)).sum())
