"""The last sweeps over everybody: a pass adds up sums of size K dim^2, and users are seen one chunk
at a time.

Given the mixture, a pass needs of a user only what it adds to

    sum r (K)    sum r W (K dim^2)    sum r w (K dim)    Omega, sum W_jl^2 (dim^2)    rss, rows, ...

so chunks may be anywhere and in any number. A user's own noise is the fixed point of its own step
at every pass: nothing is kept of a user between passes. The centers and T step together, from the
same sums, and the steps are mixed (Anderson's acceleration): EM alone creeps where groups overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add

import numpy as np

from odcl._typing import Floats, Ints
from odcl.mixed.em import MixtureFit, mixed, wider
from odcl.mixed.mixture import (
    CAUTION,
    FLOOR,
    Centers,
    MixtureMoments,
    Noise,
    Product,
    Quadratics,
    Spread,
    are_noisy,
    by_row,
    center_step,
    group_sums,
    misfits,
    moments,
    responsibilities,
    short_of_rows,
)
from odcl.mixed.scoring import Summed, bound_slopes, noise_floor, scoring_step
from odcl.mixed.select import none_admissible, with_tails

STILL = 1e-10  # where numbers come to rest: neither order nor partition of users is to be seen
PASSES = 60  # over all users, at most
MEMORY = 6  # steps that are mixed
FIXED_POINT = 200  # steps at most for a user's own noise variance
CHUNK = 2**19  # numbers of a stack of matrices that stay near the processor


@dataclass(frozen=True, eq=False)
class Parameters:
    """A mixture as its users' E-step needs it: K dim^2 numbers, the same for everybody."""

    weights: Floats  # (K,)
    centers: Floats  # (K, dim)
    covariances: Floats  # (K, dim, dim), of the centers
    spread: Spread
    noise: Noise  # common: s0 is everybody's variance

    @property
    def n_groups(self) -> int:
        return len(self.weights)

    @property
    def stack(self) -> Centers:
        return Centers.of(self.centers, self.covariances)

    def take(self, groups: Ints) -> Parameters:
        """Some of the groups, or all in another order."""
        weights = self.weights[groups]
        return replace(
            self,
            weights=weights / weights.sum(),
            centers=self.centers[groups],
            covariances=self.covariances[groups],
        )


@dataclass(frozen=True, eq=False)
class PassSums:
    """What one pass found; sums over parts of the users add up to those over all."""

    level: float  # sum log sum_k weight_k p(y_i | k), and the noise's prior
    weights: Floats  # (K,), sum r
    M: Floats  # (K, dim, dim), sum r W
    v: Floats  # (K, dim), sum r w
    slopes: Summed
    noise_slope: float  # of the log-likelihood of users' pure error in log s0
    noise_bend: float  # and minus its second derivative

    def __add__(self, other: PassSums) -> PassSums:
        return PassSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def pass_sums(q: Quadratics, at: Parameters) -> PassSums:
    """What the users of ``q`` add to a pass."""
    return reduce(add, (_sums(part, at) for part in in_stacks(q)))


def _sums(q: Quadratics, at: Parameters) -> PassSums:
    r, total, s2, m = e_step(q, at)
    M, v = group_sums(m, r[None])
    slopes = bound_slopes(q, m, at.spread, r, at.stack).summed(q, m, at.spread)
    slope = bend = 0.0
    if q.noisy and not at.noise.common:
        seen = are_noisy(q, at.noise.s0)
        nu, f = at.noise.nu / CAUTION, q.dof[seen]
        share = 1 / (1 + q.pure[seen] / (nu * at.noise.s0))
        slope = float((nu - (nu + f) * share).sum()) / 2
        bend = float(((nu + f) * share * (1 - share)).sum()) / 2
    level = float(total.sum()) + at.noise.log_prior(s2)
    return PassSums(level, r.sum(axis=0), M[0], v[0], slopes, slope, bend)


def e_step(q: Quadratics, at: Parameters) -> tuple[Floats, Floats, Floats, MixtureMoments]:
    """Responsibilities, log densities, noise and moments of every user."""
    s2 = own_noise(q, at, np.matmul)
    m = moments(q, at.spread, s2)
    r, total = responsibilities(misfits(m, at.stack), at.weights)
    return r[0], total[0], s2, m


def shares_of(q: Quadratics, at: Parameters) -> Floats:
    """The probability of each group for every user, (n_users, K)."""
    return np.concatenate([e_step(part, at)[0] for part in in_stacks(q)])


def in_stacks(q: Quadratics) -> Iterator[Quadratics]:
    """The users in stacks of matrices that stay near the processor; at least one, maybe empty."""
    step = max(CHUNK // q.dim**2, 1)
    return (q[i : i + step] for i in range(0, max(len(q), 1), step))


def own_noise(q: Quadratics, at: Parameters, product: Product = by_row) -> Floats:
    """Every user's noise variance; its own is the fixed point of the server's step for it.

    s2 = (nu s0 + rss) / (nu + n - p), with p the parameters that its rows are spent on.
    """
    noise, T, c = at.noise, at.spread.matrix, at.centers
    if noise.common or not q.noisy:
        return np.full(len(q), noise.s0)
    stack, bare = at.stack, Centers.of(c, np.zeros_like(at.covariances))
    s2 = (noise.nu * noise.s0 + q.pure) / (noise.nu + q.dof)
    going = np.flatnonzero(~short_of_rows(q))
    for _ in range(FIXED_POINT if len(going) else 0):
        part, old = (q if len(going) == len(q) else q[going]), s2[going]
        m = moments(part, at.spread, old)
        r = responsibilities(misfits(m, stack, product), at.weights)[0][0]
        z = scores(m, c)
        Q = misfits(m, bare, product)[0] - (m.base - m.e)[:, None]
        rss = old * (r * (Q - ((z @ T) * z).sum(axis=2))).sum(axis=1)
        C = product(r, at.covariances.reshape(len(c), -1)).reshape(m.W.shape)
        spent = (m.W * (T + C)).sum(axis=(1, 2)) - ((m.W @ C @ m.W) * T).sum(axis=(1, 2))
        free = np.maximum(noise.nu + part.rows - spent, noise.nu / 2)
        new = np.maximum((noise.nu * noise.s0 + rss) / free, FLOOR)
        s2[going] = new
        going = going[np.abs(new - old) > 1e-10 * old]  # users who have arrived are left alone
        if len(going) == 0:
            break
    return s2


def scores(m: MixtureMoments, c: Floats) -> Floats:
    """z_ik = w_i - W_i c_k, as (n_users, K, dim)."""
    return m.w[:, None] - (m.W @ c.T).transpose(0, 2, 1)


@dataclass(frozen=True, eq=False)
class Rest:
    """Where the passes came to rest."""

    parameters: Parameters
    centers: Centers  # with what they cost the evidence
    sums: PassSums  # of the last pass
    passes: int
    moved: float  # by the last step, in canonical coordinates

    @property
    def converged(self) -> bool:
        return self.moved <= STILL


def parameters_of(fit: MixtureFit) -> Parameters:
    """A fit of some users, for all of them."""
    noise = replace(fit.noise, s0=float(fit.s2[0])) if fit.noise.common else fit.noise
    return Parameters(fit.weights, fit.centers, fit.covariances, fit.spread, noise)


def come_to_rest(
    total: Callable[[Parameters], PassSums],
    start: Parameters,
    prior: Floats | None,
    like: Quadratics,
) -> Rest:
    """Pass after pass until no number moves; ``total`` gives the sums over all users.

    ``prior`` is B, ``like`` some of the users. A mixed step that lowers the likelihood is taken
    back.
    """
    at, plain, mean = start, start, start.centers.mean(axis=0)
    history: list[tuple[Floats, Floats]] = []
    level, unit, count = -np.inf, np.ones(0), 0
    while count < PASSES:
        sums, count = total(at), count + 1
        # What centers cost is not in it, and weighs next to nothing beside so many users.
        if at is not plain and sums.level < level - 1 - 1e-8 * abs(level):
            at, history = plain, []
            continue
        level = max(level, sums.level)
        plain, centers = _step(at, sums, prior, mean, like)
        mean = centers.mean[0]
        if not len(unit):
            unit = _units(at, sums)
        before, after = _vector(at, unit), _vector(plain, unit)
        moved = float(np.abs(_vector(plain) - _vector(at)).max())
        if moved <= STILL:
            break
        history = [*history[-MEMORY:], (before, after - before)]
        at = plain
        if len(history) > 1:
            at = _from_vector(mixed(history), unit, plain)
    left = sums.slopes.left
    if like.noisy and plain.noise.common:
        plain = replace(plain, noise=replace(plain.noise, dof=max(left, 1.0)))
    return Rest(plain, centers, sums, count, moved)


def _step(
    at: Parameters,
    sums: PassSums,
    base: Floats | None,
    mean: Floats,
    like: Quadratics,
) -> tuple[Parameters, Centers]:
    """Weights, centers, T and the noise after one pass."""
    prior = base
    if base is not None:
        prior = wider(base, replace(at.stack, mean=mean[None])) * base
    centers = center_step(sums.M[None], sums.v[None], prior, anchor=like.anchor)
    noise, joint = at.noise, like.noisy and at.noise.common
    matrix, ratio = scoring_step(at.spread, sums.slopes, joint)
    if joint:
        noise = replace(noise, s0=max(noise.s0 * ratio, noise_floor(bool(like.dof.any()))))
    elif like.noisy and sums.noise_bend > 0:  # Newton's step, in log s0
        step = float(np.clip(sums.noise_slope / sums.noise_bend, -1.0, 1.0))
        noise = replace(noise, s0=max(noise.s0 * np.exp(step), FLOOR))
    spread = replace(at.spread, matrix=matrix)
    weights = sums.weights / sums.slopes.n
    return Parameters(weights, centers.c[0], centers.C[0], spread, noise), centers


# -- mixing steps -----------------------------------------------------------------------------


def _vector(at: Parameters, unit: Floats | None = None) -> Floats:
    """All numbers that move, in a row: centers, shares, T, the noise."""
    T = at.spread.matrix if at.spread.shape == "full" else np.diag(at.spread.matrix)
    logs = np.log(np.maximum(at.weights, 1e-12))
    x = np.concatenate([at.centers.ravel(), logs, T.ravel(), [np.log(at.noise.s0)]])
    return x if unit is None else x * unit


def _units(at: Parameters, sums: PassSums) -> Floats:
    """Units in which all numbers of :func:`_vector` are known about equally well."""
    n = max(sums.slopes.n, 1.0)
    K, dim = at.centers.shape
    known = np.sqrt(np.diagonal(sums.M, axis1=1, axis2=2) / n).ravel()
    H = np.sqrt(np.maximum(np.diag(sums.slopes.H) / n, 0.0))
    T = np.outer(H, H).ravel() if at.spread.shape == "full" else H**2
    return np.concatenate([np.maximum(known, 1e-6), np.full(K, 1 / K), T + 1e-6, [np.sqrt(dim)]])


def _from_vector(x: Floats, unit: Floats, like: Parameters) -> Parameters:
    K, dim = like.centers.shape
    x = x / unit
    centers, logs, T = x[: K * dim].reshape(K, dim), x[K * dim : K * dim + K], x[K * dim + K : -1]
    if like.spread.shape == "full":
        T = T.reshape(dim, dim)
        values, vectors = np.linalg.eigh((T + T.T) / 2)
        T = (vectors * np.maximum(values, 0.0)) @ vectors.T
    else:
        T = np.diag(np.maximum(T, 0.0))
    weights = np.exp(logs - logs.max()) * (like.weights > 0)
    # T must stay among what its shape can be: closed coordinates have no scale of their own.
    T = np.where(like.spread.matrix == 0, 0.0, T)
    noise, log_s0 = like.noise, np.log(like.noise.s0)
    if noise.common and np.isfinite(noise.dof) and noise.s0 > FLOOR:
        noise = replace(noise, s0=float(np.exp(np.clip(x[-1], log_s0 - 1, log_s0 + 1))))
    spread = replace(like.spread, matrix=T)
    return Parameters(weights / weights.sum(), centers, like.covariances, spread, noise)


# -- from the fit of a sample to that of all users ------------------------------------------------


def fit_everybody(
    sample: Quadratics,
    best: MixtureFit,
    total: Callable[[Parameters], PassSums],
    allowed: Callable[[Parameters], bool],
) -> tuple[MixtureFit, int]:
    """The mixture ``best`` of a sample fitted to all users, and the number of passes over them.

    ``total`` sums over all users at every pass. Where groups are not ``allowed`` the smallest goes,
    until they are. Heavy tails are told by the sample, and so is what the fit says of users.
    """
    at, prior, passes = parameters_of(best), best.prior, 0
    while True:
        rest = come_to_rest(total, at, prior, sample)
        at, passes = rest.parameters, passes + rest.passes
        if allowed(at):
            break
        if at.n_groups == 1:
            raise none_admissible(int(rest.sums.slopes.n))
        at = at.take(np.delete(np.arange(at.n_groups), np.argmin(at.weights)))
        prior = prior if at.n_groups > 1 else None
    centers = rest.centers.sharing(sample.fixed)
    fit = replace(
        best,
        weights=at.weights,
        centers=centers.c[0],
        covariances=centers.C[0],
        spread=at.spread,
        noise=at.noise,
        converged=rest.converged,
        scales=np.ones(1),
        shares=np.ones(1),
        tail_gain=0.0,
    )
    at = replace(at, centers=centers.c[0], covariances=centers.C[0])
    fit = replace(fit, s2=own_noise(sample, at), responsibilities=shares_of(sample, at))
    return with_tails(sample, fit), passes
