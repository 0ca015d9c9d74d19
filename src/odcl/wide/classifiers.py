"""Each group's linear classifier from class moments, calibrated on users it was not fitted on.

The classifier is the discriminant of the group's class means under the scatter that a new row of
the group meets, with a ridge. Held-out users' class means and draws, pushed through the scores of
classifiers fitted without them, say how such scores fall for rows of every class; points drawn
from that (Student's t: tails of real rows are heavy) choose the ridge, and a temperature and
intercepts that make probabilities true. No row is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from scipy.linalg import helmert
from scipy.special import gammaln

from odcl._typing import Floats, Ints
from odcl.wide.moments import ClassMoments, OutOfFold
from odcl.wide.slopes import Fits, RowSpan, fit_slopes

RIDGES = 10.0 ** np.linspace(-2, 2, 9)  # in average variances
PRIOR_DOF = 10.0  # of a class's scatter of scores, at that of all classes
TAIL = 5  # degrees of freedom of the points that stand for held-out rows


@dataclass(frozen=True, eq=False)
class GroupScores:
    """Class scores of every ridge and group: x @ weights + offsets."""

    weights: Floats  # (ridges, K, p, C)
    offsets: Floats  # (ridges, K, C)
    common: bool = False  # by the scatter of all groups


def fit_scores(
    data: ClassMoments, r: Floats, ridges: Floats = RIDGES, *, common: bool = False
) -> GroupScores:
    """Linear discriminants of groups; ``r`` (m, K) are the users' shares in them.

    ``common``: by the scatter of all groups, each around its own means, instead of each one's.
    """
    C, p = data.n_classes, data.means.shape[2]
    weights = np.empty((len(ridges), r.shape[1], p, C))
    offsets = np.empty((len(ridges), r.shape[1], C))
    overall = _class_means(data, np.ones(len(r)), np.zeros((C, p)))
    empty = r.T @ data.counts.sum(axis=1) <= 1e-9  # all of a group are in the fold left out
    r = np.where(empty, 1.0, r)
    mus = [_class_means(data, own, overall) for own in r.T]
    rows = [_scatter_rows(data, own, mu) for own, mu in zip(r.T, mus, strict=True)]
    if common:
        size = r.T @ data.counts.sum(axis=1)
        size = np.sqrt(size / max(float(size.sum()), 1e-300))
        rows = [np.concatenate([w * own for w, own in zip(size, rows, strict=True)])]
    paths = [_RidgePath.of(own, ridges, data.width) for own in rows]
    for k, mu in enumerate(mus):
        solved = paths[0 if common else k].solve(mu.T)
        weights[:, k] = solved if data.intercept else _through_origin(mu, r[:, k], data, solved)
        offsets[:, k] = -0.5 * np.einsum("cp,lpc->lc", mu, solved) * data.intercept
    return GroupScores(weights, offsets, common)


def _through_origin(mu: Floats, r: Floats, data: ClassMoments, solved: Floats) -> Floats:
    """Scores without an intercept: classes as numbers on features, by least squares.

    With S^-1 mu' in hand, that of S + sum_c share_c mu_c mu_c' is a system of C equations away.
    """
    share = r @ data.counts
    share = share / max(float(share.sum()), 1e-300)
    inner = np.eye(len(mu)) + share[:, None] * (mu @ solved)  # (ridges, C, C)
    return solved @ np.linalg.solve(inner, np.diag(share))


def _class_means(data: ClassMoments, r: Floats, else_: Floats) -> Floats:
    """Means of a group's rows by class, (C, p); of a class that it lacks those of ``else_``."""
    n = r[:, None] * data.counts
    total = n.sum(axis=0)[:, None]
    found = np.einsum("ic,icp->cp", n, data.means) / np.where(total > 0, total, 1.0)
    return np.where(total > 1e-9, found, else_)


def _scatter_rows(data: ClassMoments, r: Floats, mu: Floats) -> Floats:
    """Rows whose Gram matrix is the covariance of a new row of the group around its class mean.

    Inside users it is that of the draws, a degree of freedom each; between them that of their
    class means.
    """
    n = r[:, None] * data.counts
    total = max(float(n.sum()), 1e-300)
    inside = max(total - float((r[:, None] * (data.counts > 0)).sum()), 0.0) / total
    own = r[data.owner]
    there = n > 1e-9
    between = (np.sqrt(n / total)[..., None] * (data.means - mu))[there]
    draws = np.sqrt(inside * own / max(float(own.sum()), 1e-300))[:, None] * data.draws
    return np.concatenate([draws[own > 1e-9], between])


@dataclass(frozen=True, eq=False)
class _RidgePath:
    """(rows'rows + ridge I)^-1 for several ridges, by one decomposition."""

    values: Floats
    vectors: Floats  # (p, rank)
    ridges: Floats

    @classmethod
    def of(cls, rows: Floats, ridges: Floats, width: int) -> _RidgePath:
        """``ridges`` are in average variances of ``width`` columns."""
        ridges = ridges * ((rows**2).sum() / width or 1.0)
        if len(rows) >= rows.shape[1]:
            values, vectors = np.linalg.eigh(rows.T @ rows)
            return cls(np.maximum(values, 0.0), vectors, ridges)
        values, vectors = np.linalg.eigh(rows @ rows.T)
        kept = values > 1e-12 * values.max(initial=1e-300)
        values = values[kept]
        return cls(values, rows.T @ (vectors[:, kept] / np.sqrt(values)), ridges)

    def solve(self, right: Floats) -> Floats:
        """Solutions for every ridge, (ridges, p, C)."""
        ridges = self.ridges[:, None]
        shrink = 1 / (self.values + ridges) - 1 / ridges
        inside = shrink[..., None] * (self.vectors.T @ right)
        return right / ridges[..., None] + self.vectors @ inside


# -- how scores fall for rows of held-out users ---------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Sums over held-out users that moments of scores are read off, for every ridge and group."""

    rows: Floats  # (K, C)
    users: Floats  # (K, C), that have any
    first: Floats  # (ridges, K, C, C): by class of the row, sums of scores
    second: Floats  # (ridges, K, C, C, C): of their products, between users
    inside: Floats  # (ridges, K, C, C, C): of draws
    dof: Floats  # (K, C)

    def __add__(self, other: ScoreSums) -> ScoreSums:
        return ScoreSums(*(getattr(self, name) + getattr(other, name) for name in vars(self)))


def score_sums(scores: GroupScores, data: ClassMoments, r: Floats) -> ScoreSums:
    """Held-out users, as these classifiers see them."""
    n = r[:, :, None] * data.counts[:, None]  # (m, K, C)
    s = np.einsum("icp,lkpd->lkicd", data.means, scores.weights, optimize=True)
    s = s + scores.offsets[:, :, None, None]
    first = np.einsum("ikc,lkicd->lkcd", n, s)
    second = np.einsum("ikc,lkicd,lkice->lkcde", n, s, s, optimize=True)
    own, C = r[data.owner], data.n_classes
    along = np.einsum("jp,lkpd->lkjd", data.draws, scores.weights, optimize=True)
    inside = np.zeros_like(second)
    dof = np.zeros(n.shape[1:])
    for c in range(C):
        some = data.of_class == c
        dof[:, c] = own[some].sum(axis=0)
        inside[:, :, c] = np.einsum(
            "jk,lkjd,lkje->lkde", own[some], along[:, :, some], along[:, :, some], optimize=True
        )
    users = np.einsum("ik,ic->kc", r, (data.counts > 0).astype(np.float64))
    return ScoreSums(n.sum(axis=0), users, first, second, inside, dof)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What makes scores probabilities: the ridge, and each group's temperature and intercepts."""

    ridge: int  # position in the path
    slopes: Floats  # (K,), temperatures
    levels: Floats  # (K, C)
    loss: float  # log-loss per held-out row

    def applied(self, scores: GroupScores) -> tuple[Floats, Floats]:
        """Weights (K, p, C) and offsets (K, C) of calibrated scores."""
        weights, offsets = scores.weights[self.ridge], scores.offsets[self.ridge]
        slopes = self.slopes[:, None]
        return slopes[..., None] * weights, slopes * offsets + self.levels


def calibrate(sums: OutOfFold[ScoreSums], shares: Floats, *, intercept: bool = True) -> Calibration:
    """The ridge of least held-out log-loss, with its temperature and, if any, intercepts.

    ``shares`` (K, C) are how often classes occur in the groups.
    """
    rows, users, first, second, inside, dof = vars(reduce(add, sums.parts)).values()
    seen = np.where(rows > 0, rows, 1.0)
    mean = first / seen[..., None]
    between = second / seen[..., None, None] - mean[..., :, None] * mean[..., None, :]
    inside = _pooled(inside, dof)
    # Of a user's noise its class means hold one part in n already.
    rest = np.maximum(1 - users / seen, 0.0)
    covariance = between + rest[..., None, None] * inside
    each = list[tuple[Floats, Floats, Floats]]()
    for one in zip(mean, covariance, strict=True):  # each ridge starts from the one before
        each.append(_temperatures(_points(*one), shares, intercept, *each[-1:]))
    slopes, levels, loss = (np.stack(parts) for parts in zip(*each, strict=True))
    weight = rows.sum(axis=1) / rows.sum()
    total = loss @ weight
    best = int(np.argmin(total))
    return Calibration(best, slopes[best], levels[best], float(total[best]))


def _pooled(inside: Floats, dof: Floats) -> Floats:
    """Covariances of scores inside users by class, leaning on those of all classes."""
    every = (
        inside.sum(axis=2, keepdims=True) / np.maximum(dof.sum(axis=1), 1.0)[:, None, None, None]
    )
    return (inside + PRIOR_DOF * every) / (dof + PRIOR_DOF)[..., None, None]


def _points(mean: Floats, covariance: Floats) -> Floats:
    """Antithetic points with these moments, (K, class, points, C)."""
    C = mean.shape[-1]
    pairs = int(np.clip(1200 // C, 30, 200))
    rng = np.random.default_rng(0)
    z = rng.standard_normal((pairs, C)) / np.sqrt(rng.chisquare(TAIL, (pairs, 1)) / (TAIL - 2))
    # A triangular root moves smoothly along the path: neighbours meet the same points.
    # Its size is that of a second moment: a variance may be nothing but rounding of one.
    size = np.trace(covariance, axis1=-2, axis2=-1) + (mean**2).sum(axis=-1)
    root = np.linalg.cholesky(covariance + (1e-9 * size + 1e-300)[..., None, None] * np.eye(C))
    away = z @ root.swapaxes(-1, -2)
    return mean[..., None, :] + np.concatenate([away, -away], axis=-2)


def _temperatures(
    points: Floats, shares: Floats, intercept: bool, near: tuple[Floats, ...] | None = None
) -> tuple[Floats, Floats, Floats]:
    """Newton's method for temperature and intercepts of every group, and the losses.

    Convex in both; a little ridge holds what no point tells of. An answer that is ``near`` is a
    good start.
    """
    K, C, P, _ = points.shape
    own = np.repeat(np.arange(C), P), np.arange(C * P)  # where a point's class is
    y = np.zeros((C, C * P))
    y[own] = 1.0
    flat = points.reshape(K, C * P, C)
    size = np.sqrt((flat - flat.mean(axis=-1, keepdims=True)).var(axis=(1, 2)))  # one unit
    unit = np.where(size > 0, size, 1.0)
    x = np.ascontiguousarray(flat.swapaxes(1, 2)) / unit[:, None, None]  # (K, C, C P)
    weight = np.repeat(shares / P, P, axis=1)  # (K, C P)
    prior = np.log(np.maximum(shares, 1e-9)) * intercept
    slope, level = np.ones(K), np.zeros((K, C))
    if near is not None:
        slope, level = near[0] * unit, near[1]
    hold = 1e-4
    hold_level = hold if intercept else 1e12

    def at(slope: Floats, level: Floats) -> tuple[Floats, Floats, Floats]:
        """Losses without and with what holds them, and probabilities (K, C, C P)."""
        z = slope[:, None, None] * x + (level + prior)[..., None]
        top = z.max(axis=1)
        p = np.exp(z - top[:, None])
        total = p.sum(axis=1)
        loss = ((top + np.log(total) - z[:, *own]) * weight).sum(axis=1)
        held = loss + (hold * slope**2 + hold_level * (level**2).sum(axis=1)) / 2
        return loss, held, p / total[:, None]

    loss, value, p = at(slope, level)
    for _ in range(30):
        residual = (p - y) * weight[:, None]
        g0 = (residual * x).sum(axis=(1, 2)) + hold * slope
        g = residual.sum(axis=2) + hold_level * level
        px = p * x
        mx = px.sum(axis=1)
        wp = weight[:, None] * p
        H = np.empty((K, C + 1, C + 1))
        H[:, 0, 0] = (weight * ((px * x).sum(axis=1) - mx**2)).sum(axis=1) + hold
        H[:, 0, 1:] = H[:, 1:, 0] = (wp * (x - mx[:, None])).sum(axis=2)
        H[:, 1:, 1:] = -(wp @ p.swapaxes(1, 2))
        diagonal = np.arange(1, C + 1)
        H[:, diagonal, diagonal] += wp.sum(axis=2) + hold_level
        step = np.linalg.solve(H, np.column_stack([g0, g])[..., None])[..., 0]
        length = np.ones(K)
        for _ in range(20):
            new = slope - length * step[:, 0], level - length[:, None] * step[:, 1:]
            loss, trial, p = at(*new)
            worse = trial > value + 1e-12
            if not worse.any():
                break
            length = np.where(worse, length / 2, length)
        gain = value - trial
        slope, level, value = *new, trial
        if gain.max() < 1e-9:
            break
    return slope / unit, level * intercept, loss


# -- class shares ---------------------------------------------------------------------------------


def class_shares(data: ClassMoments, r: Floats) -> Floats:
    """How often classes occur in each group, (K, C)."""
    total = r.T @ data.counts + 0.5
    return np.asarray(total / total.sum(axis=1, keepdims=True))


def share_concentration(data: ClassMoments, r: Floats, shares: Floats) -> float:
    """How closely users follow their group's class shares.

    Counts of a user are Dirichlet-multinomial with this many times the shares.
    """
    n, grid = data.counts, 10.0 ** np.linspace(-1, 4, 51)
    size, level = n.sum(axis=1), np.zeros(len(grid))
    for k, own in enumerate(r.T):
        a = grid[:, None, None] * shares[k]
        each = gammaln(grid)[:, None] - gammaln(grid[:, None] + size)
        each = each + (gammaln(a + n) - gammaln(a)).sum(axis=-1)
        level += each @ own
    return float(grid[int(np.argmax(level))])


# -- logistic models, fitted to rows that stand for the users' own ---------------------------------
#
# A discriminant takes one scatter for all classes, which real rows do not have. Of a class with n
# rows, their mean and k draws, k + 1 rows around the mean have the scatter that the draws tell of;
# each counts n / (k + 1) times. They are not the user's rows but as good for a linear model.


# Of slopes and intercepts, where rows have a mean squared length of one:
VARIANCES = 10.0 ** np.linspace(-0.5, 2, 4)
FREE = 100.0
MOST_ROWS = 4_000  # of a group: beyond, a part of its users
ABOVE = 1e-3  # how far a fit is above its minimum, in nats per row


@dataclass(frozen=True, eq=False)
class StandIns:
    """Rows with the moments that users told of."""

    X: Floats  # (n, p)
    y: Ints  # (n,)
    owner: Ints  # (n,)
    weight: Floats  # (n,)

    @classmethod
    def of(cls, data: ClassMoments) -> StandIns:
        C, p = data.n_classes, data.means.shape[2]
        n, means = data.counts.ravel(), data.means.reshape(-1, p)
        code = C * data.owner + data.of_class
        k, order = np.bincount(code, minlength=len(n)), np.argsort(code, kind="stable")
        nobody = np.zeros(0, np.intp)
        first, parts = np.cumsum(k) - k, [(np.zeros((0, p)), nobody, nobody, np.zeros(0))]
        for size in np.unique(k[n > 0]):
            which = np.flatnonzero((n > 0) & (k == size))
            draws = data.draws[order[first[which, None] + np.arange(size)]]
            away = np.sqrt(np.maximum(1 - 1 / n[which], 0.0) * (size + 1) / max(size, 1))
            X = away[:, None, None] * np.matmul(helmert(size + 1).T, draws)
            X += means[which, None]
            who = np.repeat(which, size + 1)
            parts.append((X.reshape(-1, p), who % C, who // C, n[who] / (size + 1)))
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def logistic_scores(data: ClassMoments, r: Floats) -> GroupScores:
    """Class scores, without class shares, of each group and under each variance of slopes."""
    rows, shares = StandIns.of(data), np.log(class_shares(data, r))
    K, C, p = r.shape[1], data.n_classes, data.means.shape[2]
    weights, offsets = np.zeros((len(VARIANCES), K, p, C)), np.zeros((len(VARIANCES), K, C))
    for k in range(K if len(rows.y) else 0):
        weight = rows.weight * r[rows.owner, k]
        some = np.flatnonzero(weight > 1e-9)[:: max(1, int((weight > 1e-9).sum()) // MOST_ROWS)]
        if not len(some):  # all of the group are in the fold left out
            some, weight = np.arange(len(weight))[:MOST_ROWS], rows.weight
        found = _fitted(rows.X[some], rows.y[some], weight[some], shares[k], data.intercept)
        weights[:, k], offsets[:, k] = found[:, :-1], found[:, -1]
    return GroupScores(weights, offsets)


def _fitted(X: Floats, y: Ints, weight: Floats, prior: Floats, intercept: bool) -> Floats:
    """Slopes and (last) intercepts under each variance, (variances, p + 1, C)."""
    middle = weight @ X / weight.sum() * intercept
    size = np.sqrt(weight @ ((X - middle) ** 2).sum(axis=1) / weight.sum()) or 1.0
    span = RowSpan.of(X, weight, np.full(X.shape[1], size), intercept)
    t, C, n = len(VARIANCES), len(prior), len(y)
    spread = np.full(t, np.sqrt(FREE) * intercept), np.sqrt(VARIANCES)
    asked = Fits(
        span,
        (y == np.arange(C)[:, None]).astype(np.float64),
        np.tile(weight, (t, 1)),
        np.broadcast_to(prior[:, None] * intercept, (t, C, n)),
        span.variances(*spread),
        np.zeros((t, C, len(span.size))),
    )
    (found,) = fit_slopes([asked], ABOVE * float(weight.sum()), np.float32)
    return np.stack([span.coefficients(b) for b in found])
