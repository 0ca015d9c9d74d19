"""Fit of the mixture of mixed models for given K and shape of T, by ascent of one lower bound.

A sweep is an E-step, the centers, and one step of Fisher scoring for T and the noise. Each block
ascends the same bound F, so F never falls; for one group F is the restricted log-likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import comb, isfinite, log

import numpy as np

from odcl._typing import Floats, Ints
from odcl.mixed.mixture import (
    Centers,
    MixtureMoments,
    Noise,
    Quadratics,
    Spread,
    center_step,
    group_sums,
    misfits,
    moments,
    responsibilities,
    short_of_rows,
)
from odcl.mixed.scoring import Slopes, bound_slopes, noise_floor, scoring_step

SHRINK = 0.4  # a step of T that lowers the bound is tried again, this much shorter
TRIALS = 8
MEMORY = 8  # steps that are mixed, beside the last
# Of the bound: rounding is no fall, and steps cut short by it would end anywhere near the top.
ROUNDING = 1e-12
Point = tuple[Floats, Floats, float]  # T, the noise, and how many times its beginning B is
At = tuple[Spread, Floats, MixtureMoments, Floats]  # T, the noise, the moments and misfits there
SETTLE = 100  # sweeps at most that numbers may still move when the bound rises no more


@dataclass(frozen=True, eq=False)
class Weighed:
    """A number of groups and a shape of T that the search looked at, roughly converged."""

    n_groups: int
    shape: str
    evidence: float  # as :attr:`MixtureFit.evidence`
    labels: Ints  # (n_users,), the likeliest groups; -1 of users who were not in the sample


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """A fitted mixture and what it says of the users it was fitted on."""

    weights: Floats  # (K,)
    centers: Floats  # (K, dim)
    covariances: Floats  # (K, dim, dim), C_k
    spread: Spread
    noise: Noise
    s2: Floats  # (n_users,)
    responsibilities: Floats  # (n_users, K)
    prior: Floats | None  # (dim, dim), B; None for one center
    bound: float
    common: float  # log |information about the centers' common mean|
    levels: Floats  # (n_users,), log sum_k weight_k p(y_i | c_k), at the posterior means
    excess: float  # what Gaussian terms claim above the likelihood's own maximum
    trace: tuple[float, ...]  # the bound, sweep by sweep
    converged: bool
    scales: Floats = field(
        default_factory=lambda: np.ones(1)
    )  # (J,), multiples of T that users may have, see :func:`odcl.mixed.select.with_tails`
    shares: Floats = field(default_factory=lambda: np.ones(1))  # (J,), their probabilities
    tail_gain: float = 0.0  # what they add to the log-likelihood
    told: Floats = field(
        default_factory=lambda: np.zeros(0)
    )  # (dim,), sum of W_jj^2 over users, twice what they tell of T_jj; of a scalar T sum of |W|^2
    held: float = 0.0  # what the prior of bends charges for the common curves
    groups_forbidden: bool = False  # was a better fit not admissible?
    weighed: tuple[Weighed, ...] = ()  # what the search looked at beside it

    @property
    def n_groups(self) -> int:
        return len(self.weights)

    def take(self, groups: Ints) -> MixtureFit:
        """The fit with its groups in another order."""
        return replace(
            self,
            weights=self.weights[groups],
            centers=self.centers[groups],
            covariances=self.covariances[groups],
            responsibilities=self.responsibilities[:, groups],
        )

    @property
    def log_likelihood(self) -> float:
        return float(self.levels.sum())

    @property
    def entropy(self) -> Floats:
        """Of the users' responsibilities, (n_users,)."""
        r = self.responsibilities
        return np.asarray(-(r * np.log(np.where(r > 0, r, 1.0))).sum(axis=1))

    @cached_property
    def evidence(self) -> float:
        """-2 log evidence, up to a constant common to all K and shapes; small is good.

        -2 F + the charge of K - 1 shares, T and B. For one center its flat prior is not charged.
        What Gaussian terms claim above the maximum of their likelihoods is taken back.
        """
        fit = self.bound
        if self.prior is None:
            fit = self.log_likelihood + self.noise.log_prior(self.s2) - self.held
        price = charge(self.spread, self.n_groups, self.prior, len(self.s2))
        if len(self.scales) > 1:
            price += np.log(len(self.s2))
        return float(-2 * (fit - self.excess + self.tail_gain) + price)


def charge(T: Spread, n_groups: int, prior: Floats | None, n_users: int) -> float:
    """What the numbers of a mixture cost its evidence: log of how many numbers tell of each.

    A user tells of each coordinate once: m numbers of an entry of T or B, m dim of a scalar.
    Open coordinates of T, where not all are, have been chosen: 2 log(dim choose open). A curve in
    which users differ is one number.
    """
    may, n_open = T.may & T.lines, int((T.open & T.lines).sum())
    dim = int(may.sum())
    told = n_open - T.unseen  # a full T has no entries in directions that nobody sees
    price = (n_groups - 1) * log(n_users) + _entries(T.shape, told, n_users)
    if T.shape in ("diag", "full"):
        price += 2 * log(comb(dim, n_open))
    if T.bends is not None:
        price += len(np.unique(T.bends.of[T.open & ~T.lines])) * log(n_users)
    if prior is not None:
        prior = prior[may][:, may]
        own = prior.diagonal()
        shape = "scalar" if (own == own[0]).all() else "diag"
        across = np.count_nonzero(prior) > np.count_nonzero(own)
        price += _entries("full" if across else shape, dim, n_users)
    return price


def _entries(shape: str, n_open: int, n_users: int) -> float:
    """The charge for a covariance of ``n_open`` coordinates."""
    if shape == "scalar":
        return log(max(n_users * n_open, 1))
    n_numbers = {"zero": 0, "diag": n_open, "full": n_open * (n_open + 1) // 2}[shape]
    return n_numbers * log(n_users)


@dataclass(frozen=True)
class Stopping:
    """When the sweeps of a fit end: after one that gains little and moves nothing.

    Where numbers are to come to rest (``movement``), sweeps look ahead: alone they creep where T or
    the noise is told by little; after ``SETTLE`` sweeps without gain they end all the same. A fit
    is given up where it would not beat an ``evidence`` though all sweeps to come, or a share of
    them (``hope``), gained as much as the last.
    """

    gain: float = 1e-8  # of the bound, by a sweep
    sweeps: int = 500  # at most
    movement: float = np.inf  # of centers, T and, in its logarithm, the noise
    evidence: float = np.inf
    hope: float = 1.0


def fit_mixture(
    q: Quadratics,
    start: Floats,
    spread: Spread,
    noise: Noise,
    s2: Floats,
    prior: Floats | None = None,
    *,
    m: MixtureMoments | None = None,
    stop: Stopping = Stopping(),  # noqa: B008
) -> MixtureFit:
    """Ascend the bound from the responsibilities ``start`` (n_users, K), T and noise given.

    ``m`` are the moments at these T and noise, where they are known. ``prior`` is B, needed for
    two groups and more; B may grow in proportion, since small groups lie farther out than users on
    average do.
    """
    base, wide = prior, 1.0
    reach = (charge(spread, start.shape[1], prior, len(q)) - stop.evidence) / 2
    m = moments(q, spread, s2) if m is None else m
    r, weights = start[None], start.mean(axis=0)
    centers = center_step(*group_sums(m, r), prior, anchor=q.anchor)
    misfit = misfits(m, centers)
    trace: list[float] = []
    converged, settled, moved = False, 0, np.inf
    seen: list[tuple[Floats, Floats]] = []  # before a sweep, and how far it led

    def bound(misfit: Floats, centers: Centers, s2: Floats) -> float:
        total = float(responsibilities(misfit, weights)[1].sum() - centers.price[0])
        return total + noise.log_prior(s2)

    for sweep in range(stop.sweeps):
        r, total = responsibilities(misfit, weights)
        trace.append(float(total.sum() - centers.price[0]) + noise.log_prior(s2))
        gain = trace[-1] - trace[-2] if sweep else np.inf
        settled += gain < stop.gain
        converged = settled > 0 and (moved <= stop.movement or settled > SETTLE)
        hoped = trace[-1] + gain * (stop.sweeps - sweep) * stop.hope
        if converged or hoped - _excess(q, r[0], misfit[0], s2) < reach:
            break
        weights = r[0].mean(axis=0)
        c, before = centers.c, (spread.matrix, s2, wide)
        if base is not None:
            wide = wider(base, centers)
            prior = wide * base
        centers = center_step(*group_sums(m, r), prior, anchor=q.anchor)
        if spread.shape == "zero" and not q.noisy:
            misfit, moved = misfits(m, centers), float(np.abs(centers.c - c).max())
            continue
        slopes = bound_slopes(q, m, spread, r[0], centers)
        goal = _propose(q, m, spread, s2, noise, slopes)
        if isfinite(stop.movement):
            moved = _moved((c, *before[:2]), (centers.c, *goal))
            here = _packed(*before, noise)
            seen = [*seen[-MEMORY:], (here, _packed(*goal, wide, noise) - here)]
            if len(seen) > 1 and spread.matrix.any() and moved > stop.movement:
                T_a, s2_a, wide_a = _ahead(seen, (*goal, wide))
                s2_a = np.maximum(s2_a, noise_floor(bool(q.dof.any()))) if q.noisy else s2
                ahead, B = replace(spread, matrix=T_a), None if base is None else wide_a * base
                m_a = moments(q, ahead, s2_a)
                c_a = center_step(*group_sums(m_a, r), B, anchor=q.anchor)
                misfit_a = misfits(m_a, c_a)
                level = bound(slopes.misfit[None], centers, s2)
                if bound(misfit_a, c_a, s2_a) >= level - ROUNDING * abs(level):
                    spread, s2, wide, prior = ahead, s2_a, wide_a, B
                    m, centers, misfit = m_a, c_a, misfit_a
                    continue
        at = spread, s2, m, slopes.misfit[None]
        spread, s2, m, misfit = _variance_step(q, at, goal, r[0], centers, noise)
    centers = centers.sharing(q.fixed)
    misfit = misfits(m, replace(centers, C=np.zeros_like(centers.C)))  # at their means
    levels = responsibilities(misfit, weights)[1][0]
    return MixtureFit(
        weights,
        centers.c[0],
        centers.C[0],
        spread,
        noise,
        s2,
        r[0],
        prior,
        trace[-1],
        float(centers.common[0]),
        levels,
        _excess(q, r[0], misfit[0], s2),
        tuple(trace),
        converged,
        told=_told(m, spread),
        held=_held(q, centers.mean[0]),
    )


def _excess(q: Quadratics, r: Floats, misfit: Floats, s2: Floats) -> float:
    """What Gaussian terms claim above the likelihood's own maximum."""
    if q.ceiling is None:
        return 0.0
    return float((r * np.maximum(-0.5 * misfit - (q.ceiling / s2)[:, None], 0.0)).sum())


def _held(q: Quadratics, mean: Floats) -> float:
    """What the prior of bends charges for the centers' common mean."""
    if q.bends is None or q.anchor is None:
        return 0.0
    return 0.5 * float((q.anchor * mean**2)[~q.bends.lines].sum())


def with_noise_freedom(q: Quadratics, fit: MixtureFit) -> MixtureFit:
    """The fit with its common noise, and the degrees of freedom behind it."""
    if not (fit.noise.common and q.noisy):
        return fit
    m, centers = moments(q, fit.spread, fit.s2), Centers.of(fit.centers, fit.covariances)
    left = bound_slopes(q, m, fit.spread, fit.responsibilities, centers).left.sum()
    return replace(fit, noise=replace(fit.noise, s0=float(fit.s2[0]), dof=max(float(left), 1.0)))


def _packed(T: Floats, s2: Floats, wide: float, noise: Noise) -> Floats:
    """A point as one vector, the noise and B in their logarithms."""
    return np.concatenate([T.ravel(), np.log([wide]), np.log(s2[:1] if noise.common else s2)])


def _ahead(seen: list[tuple[Floats, Floats]], after: Point) -> Point:
    """Where sweeps lead to, see :func:`mixed`, the last of them ``after``.

    T counts in units of its largest entry.
    """
    (T_end, s2_end, _), end = after, np.add(*seen[-1])
    size, unit = T_end.size, np.ones_like(end)
    unit[:size] = np.abs(T_end).max()
    x = mixed([(start / unit, step / unit) for start, step in seen]) * unit
    values, vectors = np.linalg.eigh(x[:size].reshape(T_end.shape))
    T = (vectors * np.maximum(values, 0.0)) @ vectors.T
    more = np.exp(end[size:] + np.clip(x[size:] - end[size:], -1.0, 1.0))
    s2 = np.broadcast_to(more[1:], s2_end.shape).copy()
    return np.where(T_end == 0, 0.0, T), s2, max(float(more[0]), 1.0)


def mixed(history: list[tuple[Floats, Floats]]) -> Floats:
    """Anderson's mixing: x + f of the combination of past steps whose f is smallest."""
    x, f = (np.stack(part, axis=1) for part in zip(*history, strict=True))
    dx, df = np.diff(x, axis=1), np.diff(f, axis=1)
    gamma = np.linalg.lstsq(df, f[:, -1], rcond=1e-8)[0]
    return np.asarray(x[:, -1] + f[:, -1] - (dx + df) @ gamma, np.float64)


def _moved(before: tuple[Floats, ...], after: tuple[Floats, ...]) -> float:
    """How far a sweep moved centers, T and, in its logarithm, the noise."""
    *gaps, s2 = zip(before, after, strict=True)
    return max(
        *(float(np.abs(a - b).max()) for a, b in gaps), float(np.abs(np.log(s2[1] / s2[0])).max())
    )


def _told(m: MixtureMoments, spread: Spread) -> Floats:
    """What users tell of a diagonal T, see :attr:`Fit.told`; of one that is scalar, all at once."""
    if spread.shape == "zero":
        return np.zeros(m.w.shape[1])
    if spread.shape == "scalar":
        own = spread.open & spread.lines
        W = m.W if own.all() else m.W[:, own][:, :, own]
        return np.full(m.w.shape[1], np.vdot(W, W))
    return np.asarray((np.diagonal(m.W, axis1=1, axis2=2) ** 2).sum(axis=0))


def wider(base: Floats, centers: Centers) -> float:
    """The beta >= 1 of largest bound for B = beta base: mean of base^-1 E (c_k - c_bar)^2."""
    away = centers.c[0] - centers.mean[0]
    second = (away.T @ away + centers.C[0].sum(axis=0)) / len(away)
    return max(1.0, float(np.linalg.solve(base, second).trace()) / len(base))


def _variance_step(
    q: Quadratics, at: At, goal: tuple[Floats, Floats], r: Floats, centers: Centers, noise: Noise
) -> At:
    """As far from T and the noise towards a goal as the bound does not fall, all else fixed."""
    (spread, s2, _, misfit), (matrix, s2_new) = at, goal

    def level(misfit: Floats, s2: Floats) -> float:
        return float(-0.5 * (r * misfit[0]).sum()) + noise.log_prior(s2)

    before, step = level(misfit, s2), 1.0
    for _ in range(TRIALS):
        T = replace(spread, matrix=spread.matrix + step * (matrix - spread.matrix))
        s2_T = s2 * (s2_new / s2) ** step
        m_T = moments(q, T, s2_T)
        misfit_T = misfits(m_T, centers)
        if level(misfit_T, s2_T) >= before - ROUNDING * abs(before):
            return T, s2_T, m_T, misfit_T
        step *= SHRINK
    return at


def _propose(
    q: Quadratics, m: MixtureMoments, spread: Spread, s2: Floats, noise: Noise, slopes: Slopes
) -> tuple[Floats, Floats]:
    """T and the noise after one full step of Fisher scoring, projected onto what is possible."""
    joint = q.noisy and noise.common
    floor = noise_floor(bool(q.dof.any()))
    matrix, ratio = scoring_step(spread, slopes.summed(q, m, spread), joint)
    if joint:
        return matrix, np.maximum(s2 * ratio, floor)
    if not q.noisy:
        return matrix, s2
    free = np.maximum(noise.nu + slopes.left, noise.nu / 2)
    own = np.maximum((noise.nu * noise.s0 + s2 * slopes.rss) / free, floor)
    return matrix, np.where(short_of_rows(q), s2, own)
