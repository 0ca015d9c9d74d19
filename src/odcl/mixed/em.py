"""Fit of the mixture of mixed models for given K and shape of T, by ascent of one lower bound.

A sweep is an E-step, the centers, and one step of Fisher scoring for T and the noise. Each block
ascends the same bound F, so F never falls; for one group F is the restricted log-likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from scipy.optimize import nnls
from scipy.special import gammaln

from odcl._typing import Floats, Ints
from odcl.mixed.mixture import (
    Centers,
    Moments,
    Quadratics,
    Spread,
    center_step,
    group_sums,
    misfits,
    moments,
    responsibilities,
)
from odcl.mixed.noise import BLIND_FLOOR, FLOOR, Noise

SHRINK = 0.4  # a step of T that lowers the bound is tried again, this much shorter
TRIALS = 8
SETTLE = 100  # sweeps at most that numbers may still move when the bound rises no more


@dataclass(frozen=True, eq=False)
class Weighed:
    """A number of groups and a shape of T that the search looked at, roughly converged."""

    n_groups: int
    shape: str
    evidence: float  # as :attr:`Fit.evidence`
    labels: Ints  # (n_users,), the likeliest groups; -1 of users who were not in the sample


@dataclass(frozen=True, eq=False)
class Fit:
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
    log_likelihood: float  # sum_i log sum_k weight_k p(y_i | c_k), at the posterior means
    excess: float  # what sites claim above the likelihood's own maximum
    trace: tuple[float, ...]  # the bound, sweep by sweep
    converged: bool
    scales: Floats = field(
        default_factory=lambda: np.ones(1)
    )  # (J,), multiples of T that users may have, see ``tails``
    shares: Floats = field(default_factory=lambda: np.ones(1))  # (J,), their probabilities
    tail_gain: float = 0.0  # what they add to the log-likelihood
    curbed: bool = False  # was a better fit not admissible?
    weighed: tuple[Weighed, ...] = ()  # what the search looked at beside it

    @property
    def n_groups(self) -> int:
        return len(self.weights)

    @property
    def entropy(self) -> float:
        """Sum over users of the entropy of their responsibilities."""
        r = self.responsibilities
        return float(-(r * np.log(np.where(r > 0, r, 1.0))).sum())

    @cached_property
    def evidence(self) -> float:
        """-2 log evidence, up to a constant common to all K and shapes; small is good.

        -2 F + the charge of K - 1 shares, T and B. For one center its flat prior is not charged.
        What sites claim above the maximum of their likelihoods is taken back.
        """
        fit = self.bound
        if self.prior is None:
            fit = self.log_likelihood + self.noise.log_prior(self.s2)
        price = charge(self.spread, self.n_groups, self.prior, len(self.s2))
        if len(self.scales) > 1:
            price += np.log(len(self.s2))
        return float(-2 * (fit - self.excess + self.tail_gain) + price)


def charge(T: Spread, n_groups: int, prior: Floats | None, n_users: int) -> float:
    """What the numbers of a mixture cost its evidence: log of how many numbers tell of each.

    A user tells of each coordinate once: m numbers of an entry of T or B, m dim of a scalar.
    Open coordinates of T, where not all are, have been chosen: 2 log(dim choose open).
    """
    dim, n_open = len(T.open), int(T.open.sum())
    told = n_open - T.unseen  # a full T has no entries in directions that nobody sees
    price = (n_groups - 1) * np.log(n_users) + _entries(T.shape, told, n_users)
    if T.shape in ("diag", "full"):
        price += 2 * (gammaln(dim + 1) - gammaln(n_open + 1) - gammaln(dim - n_open + 1))
    if prior is not None:
        own = np.diag(prior)
        shape = "scalar" if np.ptp(own) == 0 else "diag"
        price += _entries("full" if (prior != np.diag(own)).any() else shape, dim, n_users)
    return float(price)


def _entries(shape: str, n_open: int, n_users: int) -> float:
    """The charge for a covariance of ``n_open`` coordinates."""
    if shape == "scalar":
        return np.log(n_users * n_open)
    n_numbers = {"zero": 0, "diag": n_open, "full": n_open * (n_open + 1) // 2}[shape]
    return n_numbers * np.log(n_users)


def fit_mixture(
    q: Quadratics,
    start: Floats,
    spread: Spread,
    noise: Noise,
    s2: Floats,
    prior: Floats | None = None,
    *,
    reml: bool = True,
    tol: float = 1e-8,
    max_sweeps: int = 500,
    beat: float = np.inf,
    still: float = np.inf,
) -> Fit:
    """Ascend the bound from the responsibilities ``start`` (n_users, K), T and noise given.

    ``prior`` is B, needed for two groups and more; B may grow in proportion, since
    small groups lie farther out than users on average do. ``reml=False`` takes the centers as
    known (maximum likelihood). Ends when a sweep gains less than ``tol`` and (but for ``SETTLE``
    sweeps) moves no number by more than ``still``, or when the evidence ``beat`` would not be
    beaten though all sweeps to come gained as much as the last.
    """
    base, reach = prior, (charge(spread, start.shape[1], prior, len(q)) - beat) / 2
    m = moments(q, spread, s2)
    r, weights = start[None], start.mean(axis=0)
    centers = center_step(*group_sums(m, r), prior, anchor=q.anchor, reml=reml)
    misfit = misfits(m, centers)
    trace: list[float] = []
    converged, settled, moved = False, 0, np.inf
    for sweep in range(max_sweeps):
        r, total = responsibilities(misfit, weights)
        trace.append(float(total.sum() - centers.price[0]) + noise.log_prior(s2))
        gain = trace[-1] - trace[-2] if sweep else np.inf
        settled += gain < tol
        converged = settled > 0 and (moved <= still or settled > SETTLE)
        if converged or trace[-1] + gain * (max_sweeps - sweep) < reach:
            break
        weights = r[0].mean(axis=0)
        if base is not None:
            prior = wider_prior(base, centers)
        before = centers.c, spread.matrix, np.log(s2)
        centers = center_step(*group_sums(m, r), prior, anchor=q.anchor, reml=reml)
        spread, s2, m, misfit = _variance_step(q, m, spread, s2, r[0], centers, noise)
        after = centers.c, spread.matrix, np.log(s2)
        moved = max(float(np.abs(a - b).max()) for a, b in zip(before, after, strict=True))
    at_means = replace(centers, C=np.zeros_like(centers.C))
    misfit = misfits(m, at_means)
    log_likelihood = float(responsibilities(misfit, weights)[1].sum())
    excess = 0.0
    if q.ceiling is not None:
        excess = float((r * np.maximum(-0.5 * misfit - q.ceiling[:, None], 0.0)).sum())
    if noise.common and q.noisy:
        left = bound_slopes(q, m, spread, r[0], centers).left.sum()
        noise = replace(noise, s0=float(s2[0]), dof=max(float(left), 1.0))
    return Fit(
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
        log_likelihood,
        excess,
        tuple(trace),
        converged,
    )


def wider_prior(base: Floats, centers: Centers) -> Floats:
    """B = beta base with the beta >= 1 of largest bound: mean of base^-1 E (c_k - c_bar)^2."""
    away = centers.c[0] - centers.mean[0]
    second = (away.T @ away + centers.C[0].sum(axis=0)) / len(away)
    return base * max(1.0, float(np.trace(np.linalg.solve(base, second))) / len(base))


def _variance_step(
    q: Quadratics,
    m: Moments,
    spread: Spread,
    s2: Floats,
    r: Floats,
    centers: Centers,
    noise: Noise,
) -> tuple[Spread, Floats, Moments, Floats]:
    """One step of T and the noise that does not lower the bound, all else fixed; and misfits."""
    misfit = misfits(m, centers)
    if spread.shape == "zero" and not q.noisy:
        return spread, s2, m, misfit
    slopes = bound_slopes(q, m, spread, r, centers)
    matrix, s2_new = _propose(q, m, spread, s2, noise, slopes)

    def level(misfit: Floats, s2: Floats) -> float:
        return float(-0.5 * (r * misfit[0]).sum()) + noise.log_prior(s2)

    before, step = level(misfit, s2), 1.0
    for _ in range(TRIALS):
        T = replace(spread, matrix=spread.matrix + step * (matrix - spread.matrix))
        s2_T = s2 * (s2_new / s2) ** step
        m_T = moments(q, T, s2_T)
        misfit_T = misfits(m_T, centers)
        # Rounding is no fall: steps cut short by it would end anywhere near the top.
        if level(misfit_T, s2_T) >= before - 1e-11 * abs(before):
            return T, s2_T, m_T, misfit_T
        step *= SHRINK
    return spread, s2, m, misfit


@dataclass(frozen=True, eq=False)
class Slopes:
    """Derivatives of the bound: in T, (Omega - H) / 2; in log s2_i, (rss_i - left_i) / 2."""

    omega: Floats  # (dim, dim), sum r z z' + sum W C W
    H: Floats  # (dim, dim), sum W
    rss: Floats  # (n_users,), expected residual sum of squares over s2
    left: Floats  # (n_users,), rows minus the parameters they are spent on

    def summed(self, q: Quadratics, m: Moments, spread: Spread) -> Summed:
        """What a step of T and of the common noise needs of all users together."""
        square = np.zeros_like(self.H) if spread.shape == "zero" else (m.W**2).sum(axis=0)
        numbers = float(q.rows.sum()), float(self.rss.sum()), float(self.left.sum())
        return Summed(float(len(q)), *numbers, self.omega, self.H, square)


@dataclass(frozen=True, eq=False)
class Summed:
    """The slopes over all users; sums of parts of the users add up to it."""

    n: float  # users
    rows: float
    rss: float
    left: float
    omega: Floats  # (dim, dim)
    H: Floats  # (dim, dim)
    square: Floats  # (dim, dim), sum W_jl^2

    def __add__(self, other: Summed) -> Summed:
        return Summed(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def bound_slopes(q: Quadratics, m: Moments, spread: Spread, r: Floats, centers: Centers) -> Slopes:
    """With z_ik = w - W c_k and C_i = sum_k r_ik C_k, in the open coordinates of T,

    Omega = sum r z z' + sum W C_i W,  H = sum W,  rss_i = sum_k r (Q_ik - z'T z),
    left_i = n - tr W T - tr (W - W T W) C_i.
    """
    n, dim = m.w.shape
    c, C = centers.c[0], centers.C[0].reshape(-1, dim * dim)
    flat, K = m.W.reshape(n, -1), len(centers.c[0])
    inner = flat @ np.concatenate([(c[:, :, None] * c[:, None]).reshape(K, -1), C]).T
    rss = m.e + (r * (inner[:, :K] - 2 * m.w @ c.T)).sum(axis=1)
    left = q.rows - (r * inner[:, K:]).sum(axis=1)
    o = np.flatnonzero(spread.open)
    omega, H = np.zeros((dim, dim)), np.zeros((dim, dim))
    if len(o) == 0:
        return Slopes(omega, H, rss, left)
    whole = len(o) == dim
    T, W_o = spread.matrix[np.ix_(o, o)], m.W if whole else m.W[:, o]
    W_oo = (W_o if whole else W_o[..., o]).reshape(n, -1)
    z = m.w[:, o, None] - (W_o.reshape(-1, dim) @ c.T).reshape(n, len(o), K)
    z = (z * np.sqrt(r)[:, None]).transpose(0, 2, 1).reshape(n * K, -1)
    rss = rss - ((z @ T) * z).reshape(n, -1).sum(axis=1)
    if spread.shape == "scalar":  # only the trace of Omega counts: one product in place of two
        through = (r * ((m.W @ m.W).reshape(n, -1) @ C.T)).sum(axis=1)
        left = left + T[0, 0] * through
        WCW = np.eye(dim) * (through.sum() / dim)
    else:
        each = (W_o @ (r @ C).reshape(n, dim, dim) @ W_o.transpose(0, 2, 1)).reshape(n, -1)
        left = left + each @ T.ravel()
        WCW = each.sum(axis=0).reshape(len(o), -1)
    omega[np.ix_(o, o)] = z.T @ z + WCW
    H[np.ix_(o, o)] = W_oo.sum(axis=0).reshape(len(o), -1)
    return Slopes(omega, H, rss, left - W_oo @ T.ravel())


def _propose(
    q: Quadratics, m: Moments, spread: Spread, s2: Floats, noise: Noise, slopes: Slopes
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
    return matrix, np.maximum((noise.nu * noise.s0 + s2 * slopes.rss) / free, floor)


def noise_floor(pure: bool) -> float:
    """The least variance of the noise; ``pure``: does anybody have rows to spare?"""
    return FLOOR if pure else BLIND_FLOOR


def scoring_step(spread: Spread, total: Summed, joint: bool) -> tuple[Floats, float]:
    """T after one step of Fisher scoring, and, ``joint``, the factor of the common noise."""
    ratio = total.rss / total.left if joint else 1.0
    if spread.shape == "zero":
        matrix = spread.matrix
    elif spread.shape == "full":
        matrix = _full_step(spread, total)
    else:
        values, ratio = _diagonal_step(spread, total, joint)
        matrix = np.diag(values)
    return matrix, float(np.clip(ratio, 0.1, 10))


def _diagonal_step(spread: Spread, total: Summed, joint: bool) -> tuple[Floats, float]:
    """Scoring for a scalar or diagonal T jointly with the common noise, subject to T >= 0.

    The information of (t, log s2) is half of sum W_jl^2, sum (W - W T W)_jj and
    sum (n - 2 tr W T + tr W T W T); the quadratic model of the bound is maximized over T >= 0
    by nonnegative least squares, so that closed coordinates open again by themselves.
    """
    t, slope, square = np.diag(spread.matrix), np.diag(total.omega - total.H), total.square
    through = np.diag(total.H) - square @ t
    noise_info = total.rows - 2 * np.diag(total.H) @ t + t @ square @ t
    scalar = spread.shape == "scalar"
    pick = np.ones((len(t), 1)) if scalar else np.eye(len(t))[:, spread.open]
    at = np.append(t[:1] if scalar else t[spread.open], 1.0)
    info = np.zeros((len(at), len(at)))
    info[:-1, :-1] = pick.T @ square @ pick
    if joint:
        info[:-1, -1] = info[-1, :-1] = pick.T @ through
    info[-1, -1] = noise_info if joint else 1.0
    g = np.append(pick.T @ slope, total.rss - total.left if joint else 0.0)
    unit = 1 / np.sqrt(np.maximum(np.diag(info), 1e-300))
    # Where nobody has rows to spare, T and the noise are told apart by next to nothing.
    values, vectors = np.linalg.eigh(info * np.outer(unit, unit))
    size = np.sqrt(np.maximum(values, 1e-10))
    root = size[:, None] * vectors.T
    goal = root @ (at / unit) + (vectors.T @ (g * unit)) / size
    new = nnls(root, goal)[0] * unit
    return pick @ new[:-1], float(new[-1])


def _full_step(spread: Spread, total: Summed) -> Floats:
    """T + a H^-1 (Omega - H) H^-1 with means, negative eigenvalues clipped in the metric of H.

    Clipping in other coordinates than H^1/2 T H^1/2 stalls on the boundary.
    """
    n, keep = total.n, np.ix_(spread.open, spread.open)
    H, omega = total.H[keep] / n, total.omega[keep] / n
    values, vectors = np.linalg.eigh(H)
    seen = values > 1e-10 * max(values[-1], 1e-300)
    half = vectors[:, seen] * np.sqrt(values[seen])
    back = vectors[:, seen] / np.sqrt(values[seen])
    length = min(1.0, float((H**2).sum() / (total.square[keep].sum() / n)))
    white = half.T @ spread.matrix[keep] @ half
    white = white + length * (back.T @ omega @ back - np.eye(seen.sum()))
    values, vectors = np.linalg.eigh((white + white.T) / 2)
    root = back @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    T = np.zeros_like(spread.matrix)
    T[keep] = root @ root.T
    return T
