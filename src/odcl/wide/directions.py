"""Directions in which users differ: mu_i = m + U beta_i, beta_i in a few coordinates.

U is found by probabilistic principal components of the users' whitened class means, with counts
and holes. Users outside the fold it was found on then have an ordinary Gaussian term in beta.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from odcl._typing import Bools, Floats
from odcl.mixed.mixture import Quadratics
from odcl.risk.loss import symmetric
from odcl.wide.moments import ClassMoments, OutOfFold

MOST = 12  # directions that are looked for
SWEEPS = 15
RIDGE = 1.0  # of the whitening, in average variances
PRIOR_DOF = 10.0  # of a class's noise along directions, at that of all classes
USER_DOF = 10.0  # of a user's, in draws
FOLDS_DOF = 50.0  # of a fold's, at that of all folds
WEAK = 1 / 20  # of the strongest direction's gain: below, fold artefacts pass for directions
ENOUGH = 3.0  # nats beside the charge of one variance


@dataclass(frozen=True, eq=False)
class Directions:
    """Linear functions of class means: what they say of beta."""

    root: Floats  # (p, p), lower: whitening is its inverse
    axes: Floats  # (C, p, q), U in whitened coordinates
    slopes: Floats  # (C, p, q), U in those of the class means
    level: Floats  # (C, q), where the average user lies
    metric: Floats  # (C, q, q), U_c'U_c
    rows: Floats  # (C,), rows that the average user was read off
    middle: Floats  # (C, p), the average user, whitened


def find_directions(data: ClassMoments, most: int = MOST) -> Directions:
    """Whitening, and the directions in which these users differ most."""
    p, C = data.means.shape[2], data.n_classes
    unit = data.variance
    scatter = data.draws.T @ data.draws / max(len(data.draws), 1)
    scatter.flat[:: p + 1] += RIDGE * (unit if unit > 0 else 1.0)
    root: Floats = np.asarray(np.linalg.cholesky(scatter), np.float64)
    flat = solve_triangular(root, data.means.reshape(-1, p).T, lower=True).T
    z, n = flat.reshape(-1, C, p), data.counts
    middle = np.einsum("ic,icp->cp", n, z) / np.maximum(n.sum(axis=0), 1e-300)[:, None]
    away = np.sqrt(n)[..., None] * (z - middle)
    middle, axes = _components(z, n, middle, _main_axes(away, min(most, len(n) - 1)))
    axes = _by_size(axes, z, n, middle)
    q = axes.shape[2]
    slopes = (
        solve_triangular(root, axes.transpose(1, 0, 2).reshape(p, C * q), lower=True, trans="T")
        .reshape(p, C, q)
        .transpose(1, 0, 2)
    )
    level = np.einsum("cpq,cp->cq", axes, middle)
    metric = axes.transpose(0, 2, 1) @ axes
    return Directions(root, axes, slopes, level, metric, n.sum(axis=0), middle)


def _main_axes(away: Floats, q: int) -> Floats:
    """The first principal axes of users' class means, (C, p, q)."""
    m, C, p = away.shape
    flat = away.reshape(m, C * p)
    values, vectors = np.linalg.eigh(flat @ flat.T)
    values, vectors = values[::-1][:q], vectors[:, ::-1][:, :q]
    kept = values > 1e-10 * max(values[0], 1e-300) if q else values > 0
    axes = flat.T @ (vectors[:, kept] / np.sqrt(values[kept]))
    return axes.reshape(C, p, -1)


def _components(z: Floats, n: Floats, middle: Floats, axes: Floats) -> tuple[Floats, Floats]:
    """EM of z_ic = m_c + U_c beta_i + N(0, I / n_ic), beta_i ~ N(0, I)."""
    (m, C, p), q, total = z.shape, axes.shape[2], n[..., None] * z
    for _ in range(SWEEPS):
        mean, second = _betas(total, n, middle, axes)
        one = np.concatenate([mean, np.ones((len(mean), 1))], axis=1)
        outer = np.concatenate([second, mean[:, :, None]], axis=2)
        outer = np.concatenate([outer, one[:, None, :]], axis=1)
        left = np.einsum("ic,iab->cab", n, outer) + 1e-9 * np.eye(q + 1)
        right = (one.T @ total.reshape(m, C * p)).reshape(q + 1, C, p).swapaxes(0, 1)
        found = np.linalg.solve(left, right)
        axes, middle = found[:, :q].transpose(0, 2, 1), found[:, q]
    return middle, axes


def _betas(total: Floats, n: Floats, middle: Floats, axes: Floats) -> tuple[Floats, Floats]:
    """Posterior means of beta, (m, q), and second moments, (m, q, q)."""
    q = axes.shape[2]
    metric = axes.transpose(0, 2, 1) @ axes
    inverse = np.linalg.inv(np.eye(q) + np.einsum("ic,cab->iab", n, metric))
    slope = np.tensordot(total, axes, axes=2)
    slope -= n @ np.einsum("cpq,cp->cq", axes, middle)
    mean = (inverse @ slope[..., None])[..., 0]
    return mean, inverse + mean[:, :, None] * mean[:, None]


def _by_size(axes: Floats, z: Floats, n: Floats, middle: Floats) -> Floats:
    """The same span: orthonormal in the metric of average counts, largest differences first."""
    C, p, q = axes.shape
    scaled = (np.sqrt(n.mean(axis=0))[:, None, None] * axes).reshape(C * p, q)
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    kept = values > 1e-12 * max(values[-1], 1e-300) if q else values > 0
    turned = axes @ (vectors[:, kept] / np.sqrt(values[kept]))[:, ::-1]
    mean = _betas(n[..., None] * z, n, middle, axes)[0]
    # U beta = turned (turned^-1 U) beta: the variance of users along each.
    turn = np.sqrt(values[kept])[::-1, None] * vectors[:, kept][:, ::-1].T
    along = (mean - mean.mean(axis=0)) @ turn.T
    order = np.linalg.eigh(along.T @ along)[1]
    return turned @ order[:, ::-1]


# -- users as what was learned without them sees them ---------------------------------------------


@dataclass(frozen=True, eq=False)
class DirectionTerms:
    """Users' terms in beta: b0 ~ N(J0 beta, V), V from draws along the directions."""

    n: Floats  # (m, C), rows
    b0: Floats  # (m, q)
    J0: Floats  # (m, q, q)
    lent: Floats  # (m, C), rows that the noise of the average user amounts to
    own: Floats  # (m, C, q), squares of a user's draws along the directions
    drawn: Floats  # (m, C), its draws
    scatter: Floats  # (C, q, q), of draws
    dof: Floats  # (C,)
    metric: Floats  # (C, q, q), what the scatter of one draw would be if whitening were perfect

    def noise(self, ratio: Floats) -> Floats:
        """V, (m, q, q): measured along the directions, leaning on :func:`noise_ratio`."""
        root, q = np.sqrt(ratio), ratio.shape[1]
        W = root[:, :, None] * self.metric[:, :q, :q] * root[:, None]
        W = self.scatter[:, :q, :q] + FOLDS_DOF * W
        W = W / (self.dof + FOLDS_DOF)[:, None, None]
        weight = self._sizes(ratio)[:, None] * self.n + self.lent
        return np.einsum("ic,cab->iab", weight, W)

    def _sizes(self, ratio: Floats) -> Floats:
        """How noisy each user is beside others, (m,)."""
        q = ratio.shape[1]
        due = ratio * np.diagonal(self.metric, axis1=1, axis2=2)[:, :q]
        there, lent = due > 0, USER_DOF * max(q, 1)
        seen = (self.own[..., :q] / np.where(there, due, np.inf)).sum(axis=(1, 2))
        return (seen + lent) / (self.drawn @ there.sum(axis=1) + lent)


def look_at(found: Directions, data: ClassMoments, _: Bools) -> DirectionTerms:
    """The terms of users who took no part in finding the directions."""
    n, C = data.counts, data.n_classes
    along = np.matmul(data.means.swapaxes(0, 1), found.slopes).swapaxes(0, 1) - found.level
    scatter, own = np.empty_like(found.metric), np.zeros_like(along)
    drawn = np.zeros_like(n)
    np.add.at(drawn, (data.owner, data.of_class), 1.0)
    for c in range(C):
        some = data.of_class == c
        draws = data.draws[some] @ found.slopes[c]
        scatter[c] = draws.T @ draws
        np.add.at(own[:, c], data.owner[some], draws**2)
    # The average user is uncertain too.
    lent = n**2 / np.maximum(found.rows, 1.0)
    return DirectionTerms(
        n,
        np.einsum("ic,icq->iq", n, along),
        np.einsum("ic,cab->iab", n, found.metric),
        lent,
        own,
        drawn,
        scatter,
        np.bincount(data.of_class, minlength=C).astype(np.float64),
        found.metric,
    )


def noise_ratio(terms: OutOfFold[DirectionTerms]) -> Floats:
    """The variance of held-out draws along directions, in units of what was expected, (C, q).

    A fold has few draws: folds lean on what all of them have together, and classes on each other.
    """
    q = min(part.b0.shape[1] for part in terms.parts)
    seen, due = np.zeros((2, len(terms.parts[0].dof), q))
    for part in terms.parts:
        seen += np.diagonal(part.scatter, axis1=1, axis2=2)[:, :q]
        due += part.dof[:, None] * np.diagonal(part.metric, axis1=1, axis2=2)[:, :q]
    if not due.any():
        return np.ones_like(due)
    every = seen.sum(axis=0) / np.maximum(due.sum(axis=0), 1e-300)
    lent = PRIOR_DOF * due.sum(axis=0) / sum(part.dof.sum() for part in terms.parts)
    return (seen + lent * every) / np.maximum(due + lent, 1e-300)


def how_many(terms: OutOfFold[DirectionTerms]) -> int:
    """How many directions held-out users do differ in.

    Folds order their directions by themselves: one weak direction may stand between strong ones,
    and a strong one behind several weak ones is chance.
    """
    q, ratio = min(part.b0.shape[1] for part in terms.parts), noise_ratio(terms)
    at = np.arange(q)
    each = [(p.b0[:, :q], p.J0[:, at, at], p.noise(ratio)[:, at, at]) for p in terms.parts]
    b0, J0, V = (np.concatenate(some) for some in zip(*each, strict=True))
    gains = np.array([_spread_gain(b0[:, j], J0[:, j], V[:, j]) for j in at])
    bar = max(np.log(len(b0)) / 2 + ENOUGH, WEAK * gains.max(initial=0.0))
    weak = [*(gains <= bar), True, True]
    return next(j for j in range(q + 1) if weak[j] and weak[j + 1])


def _spread_gain(b0: Floats, J0: Floats, V: Floats) -> float:
    """max over t of the log density of b0 ~ N(0, V + t J0^2), less that at t = 0."""
    seen = (J0 > 0) & (V > 0)
    if not seen.any():
        return 0.0
    square, signal, noise = b0[seen] ** 2, J0[seen] ** 2, V[seen]
    grid = np.median(noise / signal) * 10.0 ** np.linspace(-3, 5, 65)
    total = noise + grid[:, None] * signal
    level = -0.5 * (np.log(total / noise) + square / total - square / noise).sum(axis=1)
    return max(float(level.max()), 0.0)


def common_terms(
    terms: OutOfFold[DirectionTerms], learned: list[Directions], every: Directions, q: int
) -> Quadratics:
    """Held-out users' terms in the first directions of everybody, each fold's turned to these.

    A fold's directions see a vector x as U'L^-1 x; in the whitening of everybody that is
    (L_all' L^-T U)' applied to whitened x. Their origin, too, becomes that of everybody: a fold's
    own moves with the groups of those whom it leaves out.
    """
    m, ratio = len(terms.folds.of), noise_ratio(terms)
    A, b = np.zeros((m, q, q)), np.zeros((m, q))
    goal, origin = every.axes[:, :, :q], every.middle @ every.root.T
    for some, own, part in zip(terms.folds.members, learned, terms.parts, strict=True):
        slopes = own.slopes[:, :, :q]
        level = np.einsum("cp,cpq->cq", origin, slopes) - own.level[:, :q]
        u, _, vt = np.linalg.svd(
            np.einsum("c,cpa,cpb->ab", every.rows, every.root.T @ slopes, goal)
        )
        # Directions have length one by the average counts of those who found them.
        size, axes = np.linalg.eigh(np.einsum("c,cab->ab", every.rows / m, own.metric[:, :q, :q]))
        turn = (axes / np.sqrt(size)) @ axes.T @ u @ vt
        a, s = _gaussian(part, ratio, q, level)
        A[some], b[some] = turn.T @ a @ turn, s @ turn
    return as_quadratics(A, b)


def placed_terms(found: Directions, data: ClassMoments, ratio: Floats, q: int) -> Quadratics:
    """Terms of users who were not there when anything was chosen, in the first directions."""
    part = look_at(found, data, np.ones(len(data.users), np.bool_))
    part = replace(part, scatter=np.zeros_like(part.scatter), dof=np.zeros_like(part.dof))
    return as_quadratics(*_gaussian(part, ratio, q, np.zeros((data.n_classes, q))))


def as_quadratics(A: Floats, b: Floats) -> Quadratics:
    none = np.zeros(len(b))
    return Quadratics(A, b, none, np.ones(len(b)), none, none, noisy=False)


def _gaussian(part: DirectionTerms, ratio: Floats, q: int, level: Floats) -> tuple[Floats, Floats]:
    """(A, b) of the first directions, exp(b'beta - beta'A beta / 2).

    ``level`` (C, q) is how far the common origin lies from that of these directions.
    """
    b0 = part.b0[:, :q] - part.n @ level
    J0, V = part.J0[:, :q, :q], part.noise(ratio)[:, :q, :q]
    size = np.trace(V, axis1=1, axis2=2)[:, None, None] / q
    half = np.linalg.solve(V + (1e-9 * size + 1e-300) * np.eye(q), J0)
    return symmetric(J0 @ half), (half.transpose(0, 2, 1) @ b0[..., None])[..., 0]
