"""Which columns act in a curve, and whose curves differ: found for one group, before the search.

With bends beside lines, theta_i ~ N(c, T) as ever, and the bends of curve j have priors

    c_l ~ N(0, R_j / rough_l)    T_ll = t_j / rough_l.

R_j (how far the common curve bends) and t_j (how far users' curves differ from it) are estimated by
the likelihood with everything else integrated out. A curve whose R_j and t_j do not show above
chance is closed: its columns leave the model, and the rest is as if they had never been there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import bdtr, chdtrc

from odcl._typing import Bools, Floats, Ints
from odcl.mixed.candidates import one_group
from odcl.mixed.em import MixtureFit, fit_mixture
from odcl.mixed.layout import Coordinates
from odcl.mixed.marginal import drops, stack_size
from odcl.mixed.mixture import (
    Bends,
    Centers,
    Quadratics,
    Spread,
    moments,
    pure_noise,
)
from odcl.mixed.scoring import (
    Summed,
    bound_slopes,
    diagonal_slopes,
    part_amounts,
    scoring_step,
)
from odcl.mixed.select import ROUGHLY
from odcl.risk.risk import MIDDLE_WIDTH
from odcl.threads import one_thread

CHANCE = 0.05  # that any curve opens where there is none
# Of so many users, own curves are not fitted whose scores chance exceeds with this probability.
SCORED, UNLIKELY = 100, 0.3
EARNS = 2.0  # to be added to twice the log-likelihood by a common curve, once there are curves
# Of the Wald statistic of t, per user: below it rows say next to nothing of their user's curve,
# and many users would find what splines cannot follow in a common one.
WORTH = 0.1
ROUNDS = 2  # of lines given curves, and curves given lines
STEPS = 100
SHRINK = 0.4
LEAST = 1e-7  # variances below this are none: those of the noise are about one
FEW = 300  # users that tell how far users' curves differ
HEAVY = 30.0  # medians of what users of classes and counts tell, above which they are not asked


# The users' terms in coordinates, with their pure error where that is asked for; of losses that are
# not quadratic, those of one width of their prior.
Terms = Callable[[Coordinates, bool, int], Quadratics]


def open_curves(
    terms: Terms, at: Coordinates, widths: Sequence[int]
) -> tuple[Coordinates, list[Quadratics]]:
    """The coordinates with the bends of curves that are open, and the users' terms in them."""
    bends, middle = at.bends, widths[min(MIDDLE_WIDTH, len(widths) - 1)]
    assert bends is not None
    n, curves = len(at.curves), bends.curves
    closed = at.of_curves(np.zeros(n, np.bool_))
    lines = terms(closed, True, middle)
    with one_thread():
        R, t, common = _seen(lines, terms(at, False, middle), bends)
        for width in widths:  # what terms of one prior alone show is their own error
            if width != middle and (R + t).any():
                other = _seen(terms(closed, True, width), terms(at, False, width), bends)
                R, t = (np.where(other[0] + other[1] > 0, size, 0.0) for size in (R, t))
    size, own = np.zeros(n), np.zeros(n, np.bool_)
    size[curves], own[curves] = np.maximum(R, t), t > 0
    if not size.any():
        return closed, [
            lines if width == middle else terms(closed, True, width) for width in widths
        ]
    shared = ~bends.lines & ~own[bends.of]
    found = at.of_curves(size > 0, np.where(shared, common, 0.0))
    prior = found.bends
    assert prior is not None
    inside = ~prior.lines
    precision = prior.rough / np.where(inside, size[prior.of], 1.0)

    def finished(width: int) -> Quadratics:
        q = terms(found, True, width)
        fixed = inside & ~own[prior.of] if q.fixed is None else q.fixed | (inside & ~own[prior.of])
        anchor = np.where(inside, precision, 0.0 if q.anchor is None else q.anchor)
        q = replace(q, anchor=anchor, fixed=fixed, bends=prior)
        if found.common is not None and not own.any() and q.noisy and len(q) >= FEW:
            q = replace(q, beside=_given(lines, q, found.common, np.flatnonzero(~inside)))
        return q

    return found, [finished(width) for width in widths]


def _seen(lines: Quadratics, every: Quadratics, bends: Bends) -> tuple[Floats, Floats, Floats]:
    """As :func:`_variances`, by users who tell of curves."""
    some = _not_heavy(lines)
    return _variances(*((lines, every) if some.all() else (lines[some], every[some])), bends)


def _not_heavy(lines: Quadratics) -> Bools:
    """Users who tell of curves, (n_users,): counts of one user must not settle everybody's.

    A count that stands for a missing value makes its user tell more than all others together.
    """
    told = np.trace(lines.A, axis1=1, axis2=2)
    return np.full(len(lines), True) if lines.noisy else told <= HEAVY * np.median(told[told > 0])


def _variances(lines: Quadratics, every: Quadratics, bends: Bends) -> tuple[Floats, Floats, Floats]:
    """R and t of each curve, zero where it is closed, and the common bends, (dim,)."""
    flat, none = np.flatnonzero(bends.lines), np.zeros(len(bends.curves))
    every = replace(every, bends=bends)
    common, given = np.zeros(every.dim), lines
    fit = one_group(lines, *pure_noise(lines), ("diag",))["diag"]
    few = slice(None, None, -(-len(every) // FEW))
    some = every[few]
    for turn in range(ROUNDS):
        if turn:
            given = _given(lines, every, common, flat)
            stop, everyone = replace(ROUGHLY, sweeps=100), np.ones((len(given), 1))
            fit = fit_mixture(given, everyone, fit.spread, *pure_noise(given), stop=stop)
        T = np.zeros((every.dim, every.dim))
        T[np.ix_(flat, flat)] = fit.spread.matrix
        told = CommonCurves.of(every, T, fit.s2, bends)
        if len(some) >= SCORED:
            limit = UNLIKELY if turn + 1 < ROUNDS else CHANCE / 2
            if not _may_show(told, some, T, fit.s2[few], limit):
                return none, none, common
        R = told.largest()
        common = told.center(R)
    anchor = _anchor(told, R, every)
    some = replace(some, pure=given.pure[few], dof=given.dof[few], anchor=anchor)
    adds = told.adds(R)
    own = _own_curves(some, fit, T, fit.s2[few])
    if not _shows(adds, own.gain):
        return none, none, common
    n = len(some)
    t = np.where(own.wald >= max(np.log(n), WORTH * n), own.t, 0.0)  # log n: as any entry of T
    told = CommonCurves.of(every, T + np.diag(_of_curves(bends, t)), fit.s2, bends)
    R = told.earning(EARNS)
    return R, t, told.center(R)


@dataclass(frozen=True, eq=False)
class OwnCurves:
    """How far users' curves differ."""

    t: Floats  # (n_curves,)
    wald: Floats  # (n_curves,), t over its standard error, squared
    gain: float  # all of them together, in twice the log-likelihood


def _anchor(told: CommonCurves, R: Floats, q: Quadratics) -> Floats:
    """Precision of the center's prior, of its bends and of what the terms say beforehand."""
    return told.precision(R) + (0.0 if q.anchor is None else q.anchor * told.bends.lines)


def _may_show(told: CommonCurves, q: Quadratics, T: Floats, s2: Floats, limit: float) -> bool:
    """May a curve show when all is worked out? By scores, and by common curves roughly fitted."""
    R = told.largest(gain=ROUGHLY.gain)
    anchor, adds = _anchor(told, R, q), told.adds(R)
    c: Floats = np.asarray(np.linalg.lstsq(told.M + np.diag(anchor), told.v, rcond=1e-13)[0])
    promised = _promised(q, c, T, s2)
    return _chance(promised, len(adds)) <= UNLIKELY or _shows(adds, promised, limit)


def _promised(q: Quadratics, c: Floats, T: Floats, s2: Floats) -> float:
    """What users' own curves gain in twice the log-likelihood, by their scores at zero.

    It is about right where there are none, and too small where there are: fits take longer to say.
    The common center ``c`` counts as fitted freely.
    """
    bends, may = q.bends, q.alike.may
    assert bends is not None
    pick = bends.parts(may & ~bends.lines)
    rows = drops(q.A, q.b, T, s2) if T.any() else np.zeros((len(q), 1, q.dim + 1))
    F, f = rows[..., :-1], rows[..., -1]
    z = (q.b - q.A @ c) / s2[:, None] - ((f - F @ c)[:, None] @ F)[:, 0]
    own = np.diagonal(q.A, axis1=1, axis2=2) / s2[:, None] - (F**2).sum(axis=1)
    excess = (z**2).sum(axis=0) + (own**2).sum(axis=0) / np.maximum(own.sum(axis=0), 1e-300)
    slopes, info = (excess - own.sum(axis=0)) @ pick, np.empty(pick.shape[1])
    for j, part in enumerate(pick.T):
        some = np.flatnonzero(part)
        block, across = q.A[:, some[:, None], some] / s2[:, None, None], F[..., some]
        square = ((block - across.transpose(0, 2, 1) @ across) ** 2).sum(axis=0)
        info[j] = part[some] @ square @ part[some]
    up = np.maximum(slopes, 0.0)
    return float((up**2 / np.maximum(2 * info, 1e-300)).sum())


def _own_curves(q: Quadratics, fit: MixtureFit, T: Floats, s2: Floats) -> OwnCurves:
    """The t of best likelihood beside one group's lines; T is that of lines alone."""
    bends, everyone = q.bends, np.ones((len(q), 1))
    assert bends is not None
    may = q.alike.may
    t = np.zeros(len(bends.curves))
    if not (may & ~bends.lines).any():
        return OwnCurves(t, t, 0.0)
    alike = Spread("diag", T, may & bends.lines, 0, q.fixed, bends)
    size = np.diag(T)[bends.lines].mean() or fit.s2.mean() / max(float(q.rows.mean()), 1.0)
    start = np.where(may & ~bends.lines, 0.1 * size / bends.rough, 0.0)
    wide = replace(alike, open=may, matrix=T + np.diag(start))
    stop = replace(ROUGHLY, sweeps=100)
    before, found = (
        fit_mixture(q, everyone, spread, fit.noise, s2, stop=stop) for spread in (alike, wide)
    )
    spread, m = found.spread, moments(q, found.spread, found.s2)
    stack = Centers.of(found.centers, found.covariances)
    sums = bound_slopes(q, m, spread, everyone, stack).summed(q, m, spread)
    _, info = diagonal_slopes(spread, sums, q.noisy)
    n_lines = int((may & bends.lines).sum())
    amounts = np.append(part_amounts(spread), 1.0)
    there = np.flatnonzero(amounts > 0)
    known = np.zeros(len(amounts))
    known[there] = 2 * np.diag(np.linalg.pinv(info[np.ix_(there, there)], hermitian=True))
    open_too = [i for i, j in enumerate(bends.curves) if (may & (bends.of == j)).any()]
    t[open_too] = amounts[n_lines:-1]
    wald = np.zeros(len(t))
    wald[open_too] = amounts[n_lines:-1] ** 2 / np.maximum(known[n_lines:-1], 1e-300)
    return OwnCurves(t, wald, max(2 * (found.bound - before.bound), 0.0))


def _shows(adds: Floats, own: float, limit: float = CHANCE / 2) -> bool:
    """Do common curves, or users' own, show above chance?

    Each common one ``adds`` to twice the log-likelihood, users' own add ``own``. Where there is
    nothing, half of the variances add nothing, and the others are chi-squared. They may show in one
    common curve, in users' curves or in all together, with a probability up to ``limit``.
    """
    n = len(adds)
    alone = n * 0.5 * float(chdtrc(1, float(adds.max()))), _chance(own, n)
    together = _chance(float(adds.sum()) + own, 2 * n)
    return bool(min(*alone, together) <= limit)  # of tests that depend on one another


def _chance(gain: float, n: int) -> float:
    """That n variances which are zero gain as much."""
    counts = np.arange(1, n + 1)
    share = np.diff(bdtr(np.arange(n + 1), n, 0.5))  # that so many of the variances are not zero
    return float((share * chdtrc(counts, gain)).sum())


def _given(lines: Quadratics, every: Quadratics, common: Floats, flat: Ints) -> Quadratics:
    """The terms of lines beside a common curve, and what own lines leave of it."""
    if not common.any():
        return lines
    pull = (every.A @ common[:, None])[..., 0]
    b = lines.b - pull[:, flat]
    uu = lines.uu - 2 * every.b @ common + pull @ common
    values, vectors = lines.eigen
    seen = values > 1e-9 * np.maximum(values[:, -1:], 1e-300)
    along = (vectors.transpose(0, 2, 1) @ b[..., None])[..., 0] ** 2
    left = uu - (np.where(seen, along, 0.0) / np.where(seen, values, 1.0)).sum(axis=1)
    return replace(lines, b=b, uu=uu, pure=np.where(lines.dof > 0, np.maximum(left, 0.0), 0.0))


def _each(bends: Bends, values: Floats) -> Floats:
    """Every curve's value at its bends, (dim,); zero elsewhere."""
    out = np.zeros(len(bends.of))
    for curve, value in zip(bends.curves, values, strict=True):
        out[bends.of == curve] = value
    return out


def _of_curves(bends: Bends, values: Floats) -> Floats:
    """Variances of bends by their curves', (dim,); zero elsewhere."""
    return _each(bends, values) / bends.rough


@dataclass(frozen=True, eq=False)
class CommonCurves:
    """What all users together say of the center, exp(v'c - c'M c / 2), at a given T and noise."""

    M: Floats  # (dim, dim)
    v: Floats  # (dim,)
    bends: Bends

    @staticmethod
    def of(q: Quadratics, T: Floats, s2: Floats, bends: Bends) -> CommonCurves:
        M, v, step = np.tensordot(1 / s2, q.A, 1), (1 / s2) @ q.b, stack_size(len(T))
        for first in range(0, len(q) if T.any() else 0, step):  # nobody's W is kept
            part = slice(first, first + step)
            rows = drops(q.A[part], q.b[part], T, s2[part]).reshape(-1, len(T) + 1)
            gone = rows.T @ rows
            M, v = M - gone[:-1, :-1], v - gone[:-1, -1]
        return CommonCurves(M, v, bends)

    def precision(self, R: Floats) -> Floats:
        """Of the center's prior, (dim,): zero of lines."""
        wide = np.maximum(_each(self.bends, R), LEAST)
        return np.where(self.bends.lines, 0.0, self.bends.rough / wide)

    def center(self, R: Floats) -> Floats:
        """The common bends, (dim,); zero where there are none."""
        c = np.linalg.lstsq(self.M + np.diag(self.precision(R)), self.v, rcond=1e-13)[0]
        return np.where(_each(self.bends, R) > 0, c, 0.0)

    @cached_property
    def bent(self) -> tuple[Floats, Floats, Bends]:
        """What is said of the bends alone, lines integrated out."""
        M, flat, bent = self.M, self.bends.lines, ~self.bends.lines
        through = M[np.ix_(bent, flat)] @ np.linalg.pinv(M[np.ix_(flat, flat)], hermitian=True)
        S = M[np.ix_(bent, bent)] - through @ M[np.ix_(flat, bent)]
        s = self.v[bent] - through @ self.v[flat]
        return S, s, Bends(self.bends.of[bent], self.bends.rough[bent])

    def largest(
        self, opened: Bools | None = None, start: Floats | None = None, gain: float = 1e-7
    ) -> Floats:
        """R of each curve that is ``opened`` (n_curves,)."""
        every = np.ones(len(self.bends.curves), np.bool_)
        return _largest(*self.bent, every if opened is None else opened, start, gain)

    def adds(self, R: Floats) -> Floats:
        """What each curve adds to twice the log-likelihood, the R of others as they are.

        The likelihood without a curve is to that with it as the posterior of its bends is to their
        prior where they are zero.
        """
        S, s, bends = self.bent
        D, adds = _of_curves(bends, R), np.zeros(len(R))
        on = np.flatnonzero(D)
        V = np.linalg.inv(np.diag(1 / D[on]) + S[np.ix_(on, on)])
        mean, of = V @ s[on], bends.of[on]
        for j in np.flatnonzero(R):
            own = of == bends.curves[j]
            block, c = V[np.ix_(own, own)], mean[own]
            wide = np.linalg.slogdet(block / D[on[own]])[1]
            adds[j] = max(float(c @ np.linalg.solve(block, c) + wide), 0.0)
        return adds

    def earning(self, limit: float) -> Floats:
        """R; the curve that adds least is closed as long as it adds less than ``limit``."""
        R = self.largest()
        while (R > 0).any():
            adds = np.where(R > 0, self.adds(R), np.inf)
            if adds.min() >= limit:
                break
            R = self.largest((R > 0) & (adds > adds.min()), R)
        return R


def _largest(
    S: Floats, s: Floats, bends: Bends, opened: Bools, start: Floats | None, gain: float
) -> Floats:
    """The variances of best likelihood for N(0, D) seen through exp(s'c - c'S c / 2).

    Until a step gains no more than ``gain``.
    """
    eye = np.eye(len(s))
    may = opened[np.searchsorted(bends.curves, bends.of)]
    R = np.where(opened, 1 / max(float(np.diag(S).mean()), 1e-300) + 1.0, 0.0)
    if start is not None:
        R = np.where(opened, start, 0.0)

    def look(diagonal: Floats) -> tuple[float, Any, Any]:
        grown = eye + S * diagonal
        W, w = np.linalg.solve(grown, S), np.linalg.solve(grown, s)
        return 0.5 * float((s * diagonal) @ w - np.linalg.slogdet(grown)[1]), W, w

    at = _of_curves(bends, R)
    level, W, w = look(at)
    for _ in range(STEPS if opened.any() else 0):
        sums = Summed(1.0, 1.0, 0.0, 0.0, np.outer(w, w), W, W * W)
        aim = np.diag(scoring_step(Spread("diag", np.diag(at), may, bends=bends), sums, False)[0])
        step, best = 1.0, level
        while step > 1e-3:
            tried = at + step * (aim - at)
            found = look(tried)
            if found[0] >= level:
                at, (level, W, w) = tried, found
                break
            step *= SHRINK
        if level - best < gain:
            break
    first = [np.flatnonzero(bends.of == curve)[0] for curve in bends.curves]
    R = at[first] * bends.rough[first]
    return np.where(R > LEAST, R, 0.0)
