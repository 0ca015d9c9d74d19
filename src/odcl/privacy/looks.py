"""Private uploads: a few looks at the user's rows, each with noise, and each wiser by the last.

The first looks find roughly where the model is; later ones look at residuals from there, which are
small, so that their noise is small as well.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Array, Floats
from odcl.data.federation import Federation
from odcl.errors import InputError
from odcl.privacy import BINS, Privacy
from odcl.privacy.noise import Entropy, discrete_gaussian
from odcl.privacy.rows import FINE, GRID, BoundedRows
from odcl.privacy.terms import Curvature, Sent, TypicalRows, denoised_alone, mean_diagonal
from odcl.risk.risk import Risk

COUNTS = 2**10  # parts of a count, so that its noise is as fine as other noise
UNTYPICAL = 0.25  # of what typical rows say of a curve, that of others may differ by
MARGIN = 1.0  # noise deviations by which counts must be clear of a half
WIDEST = 3  # residuals are cut at as many times their median; of counts, their deviation


@dataclass(frozen=True)
class Shares:
    """How mu^2 is shared out among the looks: everything that leaves is here."""

    rows: float
    curvature: float  # at the first look
    scores: tuple[float, ...]
    sizes: float = 0.0  # of residuals, after each score
    last_curvature: float = 0.0  # again, where the last score is taken
    # Half of the largest change of a row's curvature with its predictor, as a share of the largest
    # curvature: p (1 - p)(1 - 2 p) is below .1, and rates are their own derivative.
    bent: float = 0.0

    @property
    def total(self) -> float:
        first = self.rows + self.curvature + self.last_curvature
        return first + sum(self.scores) + len(self.scores) * self.sizes


CLASSES = Shares(0.02, 0.10, (0.10, 0.16, 0.22, 0.26), last_curvature=0.14, bent=0.2)
SHARES = {
    "squared": Shares(0.02, 0.16, (0.04, 0.07, 0.11, 0.18, 0.27), sizes=0.03),
    "logistic": CLASSES,
    "multinomial": CLASSES,
    "poisson": Shares(0.02, 0.06, (0.08, 0.14, 0.20, 0.28), 0.02, last_curvature=0.14, bent=0.5),
}


def noise_sd(moved: int, mu: float, share: float) -> int:
    """The noise of a look at a statistic that one row moves by at most ``moved``."""
    return math.ceil(moved / (mu * math.sqrt(share)))


def private_upload(
    rows: Federation, risk: Risk, privacy: Privacy, entropy: Entropy = os.urandom
) -> dict[str, Array]:
    """The fields of the users' private uploads, their noisy number of rows among them."""
    privacy.refuse_uncovered(risk, rows.n_features)
    if rows.weight is not None:
        raise InputError("Private uploads take each row once: leave out the rows' weights.")
    rows = rows.with_y(risk.loss.encode(rows.y))
    own = BoundedRows(rows, privacy.bounds(risk, rows.n_features), risk.loss)
    return _looked(_Looks(own, privacy.mu, SHARES[risk.loss.name], entropy))


def _looked(looks: _Looks) -> dict[str, Array]:
    """All looks, one after the other."""
    own, shares = looks.own, looks.shares
    n, model, clip = looks.rows(), _Model.unknown(looks.own), _Clip.widest(own)
    gram, gram_sd = looks.gram()
    base = known = denoised_alone(gram, gram_sd)
    A, sd, typical = gram, gram_sd, None
    if shares.bent:
        typical = TypicalRows.of(own.loss, own.bounds, base.A, n)
    scores = list[_Score]()
    for share in shares.scores:
        center, last = model.theta, len(scores) == len(shares.scores) - 1
        if last and shares.last_curvature:
            A, sd = looks.curvature(center, clip.cap)
            known = denoised_alone(A, sd)
        scores.append(looks.score(share, center, clip))
        for _ in range(2 if typical is not None else 1):
            sums = scores
            if typical is not None:
                center = center if last else model.theta
                here = typical.curvature(center, typical.weights(center, clip.cap))
                if not last:
                    known = base.like(here)
                sums = [one.seen_from(center, here, typical) for one in scores]
            sent = _summed(sums, [model.bent(s, center, known.A, shares.bent) for s in sums], A, sd)
            model = model.after(sent, known, clip.noise)
        if shares.sizes:
            sizes = looks.sizes(own.residuals(model.theta))
            clip = _Clip.of(own, _median(sizes, n, noise_sd(COUNTS, looks.mu, shares.sizes)))
    fields = {
        "n_samples": n,
        "private_curvature": sent.A,
        "private_curvature_sd": sent.curvature_sd,
        "private_slope": sent.b,
        "private_offset": sent.offset,
        "private_sd": sent.sd,
    }
    if shares.sizes:
        fields["private_residuals"] = sizes
    if typical is not None:
        fields["private_center"] = center
    return fields


@dataclass(frozen=True, eq=False)
class _Clip:
    """Where residuals are cut, and what they are noisy by, as far as looks tell."""

    cut: Array  # (n_users,), in steps of residuals
    cap: Floats  # (n_users,), rates above count for less
    noise: Floats  # (n_users,), variance of residuals; of classes and counts, over the curvature

    @staticmethod
    def widest(own: BoundedRows) -> _Clip:
        one, reach = np.ones(own.rows.n_users), own.bounds.reach
        noise = (reach / 4) ** 2 if own.loss.name == "squared" else 1.0
        return _Clip(np.full(len(one), GRID * FINE), one * own.bounds.ends[1], noise * one)

    @staticmethod
    def of(own: BoundedRows, median: Array) -> _Clip:
        """From the median size of residuals.

        Counts of rate r are off by about the root of r, or mostly by r itself where it is small:
        their tail reaches further up, by one count that noise on a mean of nothing adds.
        """
        step = own.bounds.reach / (GRID * FINE)
        sd = median * step / 0.6745
        if not own.counts:
            return _Clip(np.minimum(WIDEST * median, GRID * FINE), sd, sd**2)
        cap = np.clip(np.maximum(sd**2, median * step), 1e-3, own.bounds.ends[1])
        cut = np.rint((WIDEST * np.sqrt(cap) + 1) / step).astype(np.int64)
        return _Clip(np.minimum(cut, GRID * FINE), cap, np.ones(len(cap)))


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

    def gram(self) -> tuple[Floats, Floats]:
        """X'X, (n_users, width, width), and its noise (n_users,)."""
        A, share, unit = self.own.gram(), self.shares.curvature, self.own.unit**2
        sd = np.full(len(A), noise_sd(GRID**2, self.mu, share) * unit)
        return self._noisy_matrix(A, share) * unit, sd

    def curvature(self, theta: Floats, cap: Floats) -> tuple[Floats, Floats]:
        """Where the last score is taken, and its noise (n_users,)."""
        (A, unit), share = self.own.curvature(theta, cap), self.shares.last_curvature
        sd = noise_sd(GRID**2, self.mu, share) * unit
        return self._noisy_matrix(A, share) * unit[:, None, None], sd

    def _noisy_matrix(self, A: Array, share: float) -> Floats:
        """Off the diagonal, where entries stand twice, noise is 1 / sqrt(2) of that on it."""
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
        return found

    def score(self, share: float, theta: Floats, clip: _Clip) -> _Score:
        values, unit = self.own.score(theta, clip.cut, clip.cap)
        found = self._noisy(values, GRID**2, share) * unit[:, None]
        return _Score(found, noise_sd(GRID**2, self.mu, share) * unit, theta, clip.cap)


@dataclass(frozen=True, eq=False)
class _Score:
    """A score with noise, and the model that it was taken at."""

    g: Floats  # (n_users, d)
    sd: Floats  # (n_users,), of its noise
    theta: Floats  # (n_users, d)
    cap: Floats  # (n_users,)

    def seen_from(self, center: Floats, A: Floats, typical: TypicalRows) -> _Score:
        """The score as it would be, were targets linear in the model as they are at ``center``.

        Of typical rows, what is not linear is known; ``A`` (n_users, d, d) is their curvature
        there. Where rows counted otherwise than there, the score is brought to that size.
        """
        weights = typical.weights(self.theta, self.cap)
        own = np.maximum(mean_diagonal(typical.curvature(center, weights)), 1e-300)
        size = mean_diagonal(A) / own
        away = (A @ (center - self.theta)[..., None])[..., 0]
        bent = size[:, None] * typical.change(center, self.theta, weights) - away
        return replace(self, g=size[:, None] * self.g - bent, sd=size * self.sd)


def _summed(
    scores: Sequence[_Score], bent: Sequence[Floats], A: Floats, curvature_sd: Floats
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
    first: Floats  # (n_users, d), theta before the first look
    norm: float  # of a usual row
    wide: float  # variance of a coefficient before the first look

    @staticmethod
    def unknown(own: BoundedRows) -> _Model:
        """Before the first look: targets vary by about half of what bounds allow for."""
        bounds, m, wide = own.bounds, own.rows.n_users, own.bounds.wide / 4
        d = own.whole.shape[1] * own.loss.n_outputs
        theta = np.zeros((m, d))
        if own.counts:
            theta[:, 0] = math.log(bounds.rate) * bounds.intercept
        return _Model(theta, np.tile(wide * np.eye(d), (m, 1, 1)), theta, bounds.norm, wide)

    def after(self, sent: Sent, curvature: Curvature, noise: Floats) -> _Model:
        """The models given what is about to be sent."""
        terms = sent.terms(curvature, noise, sent.spread(self.theta, self.V))
        precision = np.full(sent.b.shape[1], 1 / self.wide)
        theta, V = terms.under(precision, self.first)
        return replace(self, theta=theta, V=V)

    def bent(self, score: _Score, center: Floats, A: Floats, change: float) -> Floats:
        """Variance of what a curvature that changes between models adds to a score, (n_users,).

        It is about half of that change times the way: at most ``change`` times the curvature times
        the predictors' root mean square times the way from ``center``, squared; of the way from
        there to where the score was taken, typical rows leave a part.
        """
        d = center.shape[1]
        away = ((self.theta - center) ** 2).sum(axis=1) + np.trace(self.V, axis1=1, axis2=2)
        away = away + UNTYPICAL * ((score.theta - center) ** 2).sum(axis=1)
        far = change * np.maximum(mean_diagonal(A), 0.0) * self.norm / math.sqrt(d) * away
        return far**2 / d


def _median(sizes: Floats, n: Floats, parts: int) -> Array:
    """A size that more than half of the residuals are below, for all the noise, (n_users,).

    Who is beyond an edge is counted from the widest one down: few counts, with little noise.
    Between the last edge that enough are below and the next, counts are taken to grow evenly.
    """
    sd, edges = parts / COUNTS, GRID * FINE // 2 ** np.arange(BINS - 1)
    below = n[:, None] - sizes[:, :-1].cumsum(axis=1)  # (n_users, BINS - 1), below each edge
    enough = n[:, None] / 2 + MARGIN * sd * np.sqrt(np.arange(BINS - 1) + 2)
    last = np.minimum.accumulate(below > enough, axis=1).sum(axis=1) - 1
    users, at = np.arange(len(n)), np.clip(last, 0, BINS - 3)
    high, low, half = below[users, at], below[users, at + 1], enough[users, at]
    share = np.clip((half - low) / np.maximum(high - low, 1.0), 0.0, 1.0)
    found = np.rint(edges[at + 1] * (1 + share)).astype(np.int64)  # an edge is twice the next
    return np.where(last < 0, edges[0], found)
