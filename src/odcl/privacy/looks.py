"""Private uploads: a few looks at the user's rows, each with noise, and each wiser by the last.

Bounded rows are whole numbers on a grid, and so are the sums over them that leave, and their noise:
what one row can move is exact. The first looks find roughly where the model is; later ones look at
residuals, which are small, so that their noise is small as well.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from odcl._typing import Array, Floats
from odcl.data.federation import Federation
from odcl.errors import InputError
from odcl.privacy.guarantee import Bounds, Privacy
from odcl.privacy.noise import Entropy, discrete_gaussian
from odcl.privacy.terms import Sent, denoised
from odcl.risk.risk import Risk

GRID = 2**9  # steps of a bounded row, and of a bounded residual
FINE = 2**15  # of a coefficient; targets have GRID FINE
COUNTS = 2**10  # parts of a count, so that its noise is as fine as other noise
BINS = 11  # of residuals' sizes: beyond the target's reach, half of it, a quarter of it, ...
BENT = 0.2  # how much curvatures of classes change, see :meth:`_Model.bent`
WIDEST = 3  # residuals are cut at as many times their median
LOGITS = np.arange(-(2**14), 2**14 + 1) / 2**10  # where probabilities are tabulated
PROBABILITIES = 1 / (1 + np.exp(-LOGITS))


@dataclass(frozen=True)
class Shares:
    """How mu^2 is shared out among the looks: everything that leaves is here."""

    rows: float
    curvature: float  # at the first look
    scores: tuple[float, ...]
    sizes: float = 0.0  # of residuals, after each score
    last_curvature: float = 0.0  # again, where the last score is taken

    @property
    def total(self) -> float:
        first = self.rows + self.curvature + self.last_curvature
        return first + sum(self.scores) + len(self.scores) * self.sizes


SHARES = {
    "squared": Shares(0.02, 0.20, (0.06, 0.11, 0.19, 0.34), sizes=0.02),
    "logistic": Shares(0.02, 0.10, (0.10, 0.16, 0.22, 0.26), last_curvature=0.14),
}


CURVE = {"squared": 1.0, "logistic": 0.25}  # the largest curvature of a row in its model's output


def noise_sd(moved: int, mu: float, share: float) -> int:
    """The noise of a look at a statistic that one row moves by at most ``moved``."""
    return math.ceil(moved / (mu * math.sqrt(share)))


def grid_unit(bounds: Bounds, dim: int) -> float:
    """What one step of the grid stands for in a row; rounding may lengthen a row.

    One is a whole number of steps, so that intercepts and levels, 0 and 1, are exact.
    """
    steps = (GRID - math.sqrt(dim) / 2 - 1e-6) / bounds.norm
    return 1 / math.floor(steps) if steps >= 1 else 1 / steps


def curvature_sd(privacy: Privacy, risk: Risk, n_features: int) -> float:
    """The noise on the diagonal of a curvature that was sent."""
    shares, dim = SHARES[risk.loss.name], risk.dim(n_features)
    share = shares.last_curvature or shares.curvature
    unit = grid_unit(privacy.bounds(risk, n_features), dim)
    return noise_sd(GRID**2, privacy.mu, share) * unit**2 * CURVE[risk.loss.name]


@dataclass(frozen=True, eq=False)
class BoundedRows:
    """Rows within public bounds, as whole numbers; what a row is here depends on it alone.

    A row counts w^2 times, w = min(1, norm / |row|, reach / |target|): least squares weighed by
    rows, so that bounding rows draws the model nowhere.
    """

    rows: Federation
    bounds: Bounds
    logistic: bool

    @cached_property
    def _bounded(self) -> tuple[Floats, Floats]:
        """w times the rows in steps of the grid, not yet rounded, and w."""
        z = self.bounds.rows(self.rows.X)
        size = np.sqrt((z * z).sum(axis=1)) / self.bounds.norm
        w = np.minimum(1.0, 1 / np.maximum(size, 1e-300))
        if not self.logistic:
            far = np.abs(self._centered) / self.bounds.reach
            w = np.minimum(w, 1 / np.maximum(far, 1e-300))
        return z * (w / grid_unit(self.bounds, z.shape[1]))[:, None], w

    @cached_property
    def _centered(self) -> Floats:
        return self.rows.y.astype(np.float64) - self.bounds.origin

    @cached_property
    def whole(self) -> Array:
        """(n_rows, d), of length at most GRID."""
        return np.rint(self._bounded[0]).astype(np.int64)

    @property
    def unit(self) -> float:
        """What one step of the grid stands for in a row."""
        return grid_unit(self.bounds, self.whole.shape[1])

    def curvature(self, theta: Floats | None = None) -> Array:
        """X'X of every user, (n_users, d, d); of classes, rows weighed by 4 p (1 - p).

        One row moves it by at most GRID^2, as the root of its sum of squares.
        """
        a = self.whole
        if theta is not None:
            p = self._probability(theta)
            a = np.rint(self._bounded[0] * (2 * np.sqrt(p * (1 - p)))[:, None]).astype(np.int64)
        parts, at = a.astype(np.float64), self.rows.offsets
        sums = [parts[i:j].T @ parts[i:j] for i, j in pairwise(at)]
        return np.array(sums).astype(np.int64)  # exact: whole numbers below 2^53

    def residuals(self, theta: Floats) -> Array:
        """Of the bounded rows, in steps of reach / (GRID FINE); exact whole numbers."""
        scaled = np.clip(theta * self.unit * GRID / self.bounds.reach, -(2.0**13), 2.0**13)
        steps = np.rint(scaled * FINE).astype(np.int64)
        w, fine = self._bounded[1], GRID * FINE
        target = np.rint(np.clip(w * self._centered / self.bounds.reach, -1, 1) * fine)
        return target.astype(np.int64) - (self.whole * steps[self.rows.row_user]).sum(axis=1)

    def sizes(self, residuals: Array) -> Array:
        """How many residuals of every user are of each size, (n_users, BINS)."""
        edges = GRID * FINE // 2 ** np.arange(BINS - 1)
        size = (np.abs(residuals)[:, None] < edges).sum(axis=1)
        cells = np.bincount(self.rows.row_user * BINS + size, minlength=self.rows.n_users * BINS)
        return cells.reshape(-1, BINS)

    def score(self, residuals: Array, cut: Array) -> Array:
        """Sum of rows times residuals, cut at ``cut`` (n_users,), in steps of cut / GRID.

        One row moves it by at most GRID^2.
        """
        own = cut[self.rows.row_user]
        steps = (np.clip(residuals, -own, own) * GRID + own // 2) // own
        return np.asarray(np.add.reduceat(self.whole * steps[:, None], self.rows.offsets[:-1]))

    def class_score(self, theta: Floats) -> Array:
        """Sum of w rows times w (y - p), in steps of 1 / GRID: one row moves it by GRID^2."""
        y = self.rows.y > 0
        steps = np.rint(self._bounded[1] * (y - self._probability(theta)) * GRID).astype(np.int64)
        return np.asarray(np.add.reduceat(self.whole * steps[:, None], self.rows.offsets[:-1]))

    def _probability(self, theta: Floats) -> Floats:
        """Of the second class, from a table: the same for a row whatever stands beside it."""
        steps = np.rint(np.clip(theta * self.unit, -64, 64) * 2**20).astype(np.int64)
        z = (self.whole * steps[self.rows.row_user]).sum(axis=1) / (2.0**20 * self._bounded[1])
        at = np.rint(np.clip(z, LOGITS[0], LOGITS[-1]) * 2**10).astype(np.int64) + 2**14
        return np.asarray(PROBABILITIES[at])


def private_upload(
    rows: Federation, risk: Risk, privacy: Privacy, entropy: Entropy = os.urandom
) -> dict[str, Array]:
    """The fields of the users' private uploads, their noisy number of rows among them."""
    privacy.refuse_uncovered(risk, rows.n_features)
    if rows.weight is not None:
        raise InputError("Private uploads take each row once: leave out the rows' weights.")
    logistic = risk.loss.name == "logistic"
    rows = rows.with_y(risk.loss.encode(rows.y))
    own = BoundedRows(rows, privacy.bounds(risk, rows.n_features), logistic)
    return (_class_looks if logistic else _number_looks)(own, privacy.mu, entropy)


@dataclass(frozen=True, eq=False)
class _Looks:
    """The looks at bounded rows: whole numbers with noise, in the units of rows and targets."""

    own: BoundedRows
    mu: float
    shares: Shares
    entropy: Entropy

    def _noisy(self, values: Array, moved: int, share: float) -> Floats:
        sd = noise_sd(moved, self.mu, share)
        noise = discrete_gaussian(sd, values.size, self.entropy)
        return (values + noise.reshape(values.shape)).astype(np.float64)

    def rows(self) -> Floats:
        counts = self.own.rows.n_rows * COUNTS
        return np.maximum(np.rint(self._noisy(counts, COUNTS, self.shares.rows) / COUNTS), 1.0)

    def sizes(self, residuals: Array) -> Floats:
        counts = self.own.sizes(residuals) * COUNTS
        return self._noisy(counts, COUNTS, self.shares.sizes) / COUNTS

    def curvature(self, share: float, theta: Floats | None = None) -> Floats:
        """Off the diagonal, where entries stand twice, noise is 1 / sqrt(2) of that on it."""
        A = self.own.curvature(theta)
        d = A.shape[1]
        upper, at = np.triu_indices(d, 1), np.arange(d)
        sd = noise_sd(GRID**2, self.mu, share)
        found = np.zeros(A.shape)
        own = discrete_gaussian(sd, len(A) * d, self.entropy).reshape(-1, d)
        found[:, at, at] = A[:, at, at] + own
        if d > 1:
            half = math.ceil(sd / math.sqrt(2))
            other = discrete_gaussian(half, len(A) * len(upper[0]), self.entropy)
            found[:, upper[0], upper[1]] = A[:, upper[0], upper[1]] + other.reshape(len(A), -1)
            found[:, upper[1], upper[0]] = found[:, upper[0], upper[1]]
        return found * self.own.unit**2

    def score(self, values: Array, share: float, unit: Floats, theta: Floats) -> _Score:
        """A score at ``theta``; one step of the residuals is ``unit`` (n_users,)."""
        step = self.own.unit * unit
        found = self._noisy(values, GRID**2, share) * step[:, None]
        return _Score(found, noise_sd(GRID**2, self.mu, share) * step, theta)


@dataclass(frozen=True, eq=False)
class _Score:
    """A score with noise, and the model that it was taken at."""

    g: Floats  # (n_users, d)
    sd: Floats  # (n_users,), of its noise
    theta: Floats  # (n_users, d)


def _summed(
    scores: Sequence[_Score], bent: Sequence[Floats], A: Floats, curvature_sd: float
) -> Sent:
    """Scores weighed by their precision, as one score at one offset.

    ``bent`` are variances of what curvatures that change between models add to each, (n_users,).
    """
    p = np.stack([1 / (one.sd**2 + more) for one, more in zip(scores, bent, strict=True)])
    total = p.sum(axis=0)
    share = (p / total)[..., None]
    b = (share * np.stack([one.g for one in scores])).sum(axis=0)
    offset = (share * np.stack([one.theta for one in scores])).sum(axis=0)
    return Sent(A, b, offset, total**-0.5, curvature_sd)


@dataclass(frozen=True, eq=False)
class _Model:
    """What is known of the users' models between looks: nothing that did not leave with noise."""

    theta: Floats  # (n_users, d)
    V: Floats  # (n_users, d, d)
    norm: float  # of a usual row
    wide: float  # variance of a coefficient before the first look

    @staticmethod
    def unknown(m: int, d: int, bounds: Bounds) -> _Model:
        """Before the first look: the target's reach is about four of its standard deviations."""
        wide = bounds.wide / 4
        return _Model(np.zeros((m, d)), np.tile(wide * np.eye(d), (m, 1, 1)), bounds.norm, wide)

    def after(self, sent: Sent, noise: Floats) -> _Model:
        """The models given what is about to be sent."""
        d = sent.b.shape[1]
        size = np.maximum(_size(sent.A), sent.curvature_sd / math.sqrt(d))
        curvature = denoised(sent.A, sent.curvature_sd, size, np.eye(d), alone=True)
        terms = sent.terms(curvature, noise, sent.spread(self.theta, self.V))
        theta, V = terms.under(np.full(d, 1 / self.wide))
        return replace(self, theta=theta, V=V)

    def bent(self, theta: Floats, A: Floats) -> Floats:
        """Variance of what the curvature's change from ``theta`` to here adds to a score there.

        It is about half of that change times the way: with |p (1 - p)(1 - 2 p)| < .1, at most .2
        of the curvature times the logits' root mean square times the way, squared.
        """
        d = theta.shape[1]
        away = ((self.theta - theta) ** 2).sum(axis=1) + np.trace(self.V, axis1=1, axis2=2)
        far = BENT * np.maximum(_size(A), 0.0) * self.norm / math.sqrt(d) * away
        return far**2 / d


def _size(A: Floats) -> Floats:
    """The mean of each diagonal."""
    return np.trace(A, axis1=1, axis2=2) / A.shape[1]


def _number_looks(own: BoundedRows, mu: float, entropy: Entropy) -> dict[str, Array]:
    looks, fine = _Looks(own, mu, SHARES["squared"], entropy), GRID * FINE
    n, A = looks.rows(), looks.curvature(looks.shares.curvature)
    sd = noise_sd(GRID**2, mu, looks.shares.curvature) * own.unit**2
    (m, d, _), reach = A.shape, own.bounds.reach
    model, scores = _Model.unknown(m, d, own.bounds), list[_Score]()
    cut, noise = np.full(m, fine), np.full(m, (reach / 4) ** 2)
    for share in looks.shares.scores:
        values = own.score(own.residuals(model.theta), cut)
        scores.append(looks.score(values, share, cut * reach / fine / GRID, model.theta))
        sent = _summed(scores, [np.zeros(m)] * len(scores), A, sd)
        model = model.after(sent, noise)
        sizes = looks.sizes(own.residuals(model.theta))
        median = _median(sizes, n, noise_sd(COUNTS, mu, looks.shares.sizes) / COUNTS)
        cut = np.minimum(WIDEST * median, fine)
        noise = (median * reach / fine / 0.6745) ** 2
    return _fields(n, sent) | {"private_residuals": sizes}


def _median(sizes: Floats, n: Floats, sd: float) -> Array:
    """A size that more than half of the residuals are below, for all the noise, (n_users,).

    Between the last edge that enough are below and the next, counts are taken to grow evenly.
    """
    edges = GRID * FINE // 2 ** np.arange(BINS - 1)
    below = sizes[:, :0:-1].cumsum(axis=1)[:, ::-1]  # (n_users, BINS - 1), below each edge
    enough = n / 2 + sd * math.sqrt(5)
    last = np.minimum.accumulate(below > enough[:, None], axis=1).sum(axis=1) - 1
    users, at = np.arange(len(n)), np.clip(last, 0, BINS - 3)
    high, low = below[users, at], below[users, at + 1]
    share = np.clip((enough - low) / np.maximum(high - low, 1.0), 0.0, 1.0)
    found = np.rint(edges[at + 1] * (1 + share)).astype(np.int64)  # an edge is twice the next
    return np.where(last < 0, edges[0], found)


def _class_looks(own: BoundedRows, mu: float, entropy: Entropy) -> dict[str, Array]:
    looks = _Looks(own, mu, SHARES["logistic"], entropy)
    shares, rows_noise = looks.shares, np.ones(own.rows.n_users)
    n, A = looks.rows(), looks.curvature(shares.curvature) / 4
    sd = noise_sd(GRID**2, mu, shares.curvature) * own.unit**2 / 4
    model, scores = _Model.unknown(len(A), A.shape[1], own.bounds), list[_Score]()
    for t, share in enumerate(shares.scores):
        if t == len(shares.scores) - 1:
            A = looks.curvature(shares.last_curvature, model.theta) / 4
            sd = noise_sd(GRID**2, mu, shares.last_curvature) * own.unit**2 / 4
        values = own.class_score(model.theta)
        scores.append(looks.score(values, share, rows_noise / GRID, model.theta))
        for _ in range(2):  # where the model is tells which scores were taken far from it
            bent = [model.bent(one.theta, A) for one in scores]
            sent = _summed(scores, bent, A, sd)
            model = model.after(sent, rows_noise)
    return _fields(n, sent)


def _fields(n: Floats, sent: Sent) -> dict[str, Array]:
    return {
        "n_samples": n,
        "private_curvature": sent.A,
        "private_slope": sent.b,
        "private_offset": sent.offset,
        "private_sd": sent.sd,
    }
