"""The Gaussian nearest to each user's posterior: natural gradients, accelerated.

A user's numbers are the same alone and in any batch: each stops on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from odcl._typing import Bools, Floats, Ints
from odcl.mixed.marginal import invert_lower
from odcl.mixed.mixture import by_row
from odcl.mixed.terms import _cholesky

STEPS = 200
EXACT = 1e-9  # what is left to go, in standard deviations of the posterior
DEPTH = 4  # steps that the next one is extrapolated from
# Ridge of that extrapolation: from steps that are all but parallel it would take their rounding.
LEAN = 1e-3


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Variational posteriors of a batch of users, and the Gaussian terms behind them."""

    mu: Floats  # (n, D dim)
    V: Floats  # (n, D dim, D dim)
    A: Floats  # (n, D dim, D dim)
    b: Floats  # (n, D dim), relative to the prior's mean
    elbo: Floats  # (n,), or another log-evidence


@dataclass(frozen=True, eq=False)
class _Seen:
    """What a look at some users' Gaussian terms tells. A term is a row of numbers, A and then b."""

    mu: Floats  # (n, D dim), relative to the prior's mean
    R: Floats  # (n, rank, D dim), R'R is the covariance
    aim: Floats  # (n, size), the term that the step aims at
    gap: Floats  # (n,), how far it is to there, in standard deviations of the posterior
    bound: Floats  # (n,)

    def replace(self, who: Ints, good: Bools, seen: _Seen) -> None:
        """Take over what was ``seen`` of the users ``who`` where it was ``good``."""
        for name, old in vars(self).items():
            old[who[good]] = getattr(seen, name)[good]


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The rows of a batch of users with equally many rows, and the law of their targets."""

    loss: str
    X: Floats  # (n, rows, dim)
    y: Floats  # (n, rows)
    weights: Floats  # (n, rows)
    D: int = 1  # logits


def variational(
    given: Likelihood,
    mean: Floats,
    root: Floats,
    start: tuple[Floats, Floats] | None = None,
    near: float = EXACT,
) -> Gaussians:
    """The Gaussian nearest to each user's posterior under N(mean, root root').

    ``mean`` is (n, D dim), ``root`` (D dim, rank), coordinates may be fixed, or (n, D dim, rank),
    each user's own. Steps are natural
    gradients in (A, b), from ``start`` on, halved for a user whose bound would fall, unless the
    step brings it nearer to its aim: the cubature's bound is not flat there. A user who is ``near``
    its aim takes it and stops: that last step is not looked at, and the bound, being flat, is that
    of the step before.
    """
    y, weights, D = given.y, given.weights, given.D
    n, _, dim = given.X.shape
    if not root.shape[-1]:
        return _known(given, mean)
    scales = _diagonal(root) if root.ndim == 2 else None
    turned = np.ascontiguousarray(given.X.transpose(0, 2, 1))

    def look(who: Ints, term: Floats) -> _Seen:
        """The posteriors of some users, the terms that the step aims at, and the bound."""
        # In units of the prior, theta = mean + root u: nothing cancels where it is narrow.
        own = root if root.ndim == 2 else root[who]
        mu, R, divergence = _in_units(*_parted(term, D * dim), own, scales)
        theta = (mu + mean[who]).reshape(-1, D, dim)
        rows, weight = (turned, weights) if len(who) == n else (turned[who], weights[who])
        logits = (theta @ rows).transpose(0, 2, 1)
        e = expected(given.loss, y[who], logits, logit_covariance(rows, R, D))
        A, g = _information(rows, weight, e, D)
        aim = _joined(A, (A @ mu[..., None])[..., 0] + g)
        bound: Floats = (weight * e.value).sum(axis=1) - 0.5 * divergence
        return _Seen(mu, R, aim, _distance(aim - term, R), bound)

    term = np.zeros((n, D * dim * (D * dim + 1))) if start is None else _joined(*start)
    step, live = np.ones(n), np.arange(n)
    state, past = look(live, term), _Past.of(n, D * dim)
    for _ in range(STEPS):
        # A user who has arrived stays put, so that it does not matter who else is in the batch.
        stuck = step[live] <= 1e-6
        there = live[(state.gap[live] <= near) & ~stuck]
        term[there] = state.aim[there]
        live = live[(state.gap[live] > near) & ~stuck]
        if not len(live):
            break
        at, gap = term[live], state.aim[live] - term[live]
        tried = past.ahead(live, at, gap, step[live])
        seen = look(live, tried)
        fall, level = state.bound[live] - seen.bound, 1 + np.abs(state.bound[live])
        nearer = seen.gap < 0.9 * state.gap[live]
        good = (fall <= 1e-12 * level) | (nearer & (fall <= 1e-6 * level))
        past.learn(live, good, tried - at, seen.aim - tried - gap)
        term[live[good]] = tried[good]
        state.replace(live, good, seen)
        # A step that was not accelerated, and no good, is halved.
        plain = past.plain[live] | (step[live] < 1)
        step[live] = np.where(good, np.minimum(1.0, 1.5 * step[live]), step[live])
        step[live] = np.where(~good & plain, step[live] / 2, step[live])
        past.plain[live] = ~good
    V = state.R.transpose(0, 2, 1) @ state.R
    return Gaussians(state.mu + mean, V, *_parted(term, D * dim), state.bound)


def _known(given: Likelihood, mean: Floats) -> Gaussians:
    """The model is the prior's mean: nothing that is seen moves it, and no term is needed."""
    (n, _, dim), D = given.X.shape, given.D
    logits = given.X @ mean.reshape(n, D, dim).transpose(0, 2, 1)
    value = log_likelihood(given.loss, given.y, logits)
    none = np.zeros((n, D * dim, D * dim))
    return Gaussians(mean, none, none, np.zeros_like(mean), (given.weights * value).sum(axis=1))


def outset(given: Likelihood) -> tuple[Floats, Floats]:
    """(A, b) to start from where nothing is known but the rows: their targets alone say it."""
    first = at_first(given.loss, given.y, given.D)
    return _information(given.X.transpose(0, 2, 1), given.weights, first, given.D)


def _diagonal(root: Floats) -> Floats | None:
    """The diagonal of a prior's root, where there is nothing else to it."""
    own = np.diagonal(root)
    return own if root.shape[0] == root.shape[1] and (np.diag(own) == root).all() else None


def _in_units(
    A: Floats, b: Floats, root: Floats, scales: Floats | None
) -> tuple[Floats, Floats, Floats]:
    """mu and R of the Gaussians N(mu, R'R) with terms (A, b), and twice their divergence.

    The divergence is that from the prior; R is (n, rank, D dim).
    """
    rank, back = root.shape[-1], root.swapaxes(-1, -2)
    if scales is None:
        grown, right = back @ A @ root, back @ b[..., None]
    else:
        grown, right = scales[:, None] * A * scales, (scales * b)[..., None]
    grown += np.eye(rank)
    L = _cholesky(grown)[0].transpose(0, 2, 1)
    own = np.einsum("nii->ni", L)
    far: Bools = np.asarray((own <= 0).any(axis=1))  # extrapolations that went too far
    L[far] = np.eye(rank)
    half = np.zeros_like(grown)  # half' half is the inverse
    invert_lower(L, half)
    u = (half.transpose(0, 2, 1) @ (half @ right))[..., 0]
    volume = 2 * np.log(own).sum(axis=1)
    trace = (half.reshape(len(half), -1) ** 2).sum(axis=1)
    divergence = trace - rank + (u**2).sum(axis=1) + volume
    divergence[far] = np.inf
    if scales is None:
        return by_row(u, back), half @ back, divergence
    return scales * u, half * scales, divergence


def _distance(gap: Floats, R: Floats) -> Floats:
    """The largest number of terms' differences, in standard deviations of the posterior, (n,).

    Both count: as many hits as misses at one place leave b at zero, and A to be found.
    """
    sd = np.sqrt((R**2).sum(axis=1))
    A, b = _parted(np.abs(gap), sd.shape[1])
    curvature = (A * sd[:, None]).max(axis=2)
    return (np.maximum(curvature, b) * sd).max(axis=1)


def _joined(A: Floats, b: Floats) -> Floats:
    return np.concatenate([A.reshape(len(A), b.shape[1] ** 2), b], axis=1)


def _parted(x: Floats, size: int) -> tuple[Floats, Floats]:
    return x[:, : size * size].reshape(-1, size, size), x[:, size * size :]


@dataclass(frozen=True, eq=False)
class _Past:
    """The last steps of each user, and how they changed what was left to go.

    Anderson's acceleration: of the steps before, so much is taken back as best explains what is
    left (least squares), which makes a few steps of many that each shrink the gap by a share.
    """

    moved: Floats  # (n, DEPTH, size), steps
    changed: Floats  # (n, DEPTH, size), of the gap by them
    oldest: Ints  # (n,)
    plain: Bools  # (n,), the next step goes straight ahead

    @staticmethod
    def of(n: int, size: int) -> _Past:
        steps = np.zeros((n, DEPTH, size**2 + size)), np.zeros((n, DEPTH, size**2 + size))
        return _Past(*steps, np.zeros(n, np.intp), np.ones(n, np.bool_))

    def ahead(self, who: Ints, at: Floats, gap: Floats, step: Floats) -> Floats:
        """Where each of these users goes from ``at``."""
        changed, plain = self.changed[who], self.plain[who] | (step < 1)
        gram = changed @ changed.transpose(0, 2, 1)
        own = np.einsum("nkk->nk", gram)  # a view
        own[:] = np.where(own > 0, own * (1 + LEAN), 1.0)
        share = np.linalg.solve(gram, changed @ gap[..., None])
        share[plain] = 0.0
        back = (share.transpose(0, 2, 1) @ (self.moved[who] + changed))[:, 0]
        return at + step[:, None] * gap - back

    def learn(self, who: Ints, good: Bools, moved: Floats, changed: Floats) -> None:
        """Remember good steps; after one that was not, everything before is forgotten."""
        kept = who[good]
        at = self.oldest[kept]
        self.moved[kept, at], self.changed[kept, at] = moved[good], changed[good]
        self.oldest[kept] = (at + 1) % DEPTH
        self.moved[who[~good]] = self.changed[who[~good]] = 0.0


def logit_covariance(Xt: Floats, R: Floats, D: int) -> Floats:
    """Covariance of each row's logits, (n, rows, D, D), under covariances R'R of the models.

    Rows stand upright, (n, dim, rows): long sums are quicker.
    """
    n, dim, rows = Xt.shape
    S = np.empty((n, rows, D, D))
    moved = [R[..., a * dim : (a + 1) * dim] @ Xt for a in range(D)]
    for a in range(D):
        for c in range(a + 1):
            S[..., a, c] = S[..., c, a] = (moved[a] * moved[c]).sum(axis=1)
    return S


def _information(Xt: Floats, weights: Floats, e: Expected, D: int) -> tuple[Floats, Floats]:
    """sum_r w h x x' and sum_r w g x, in D dim numbers."""
    n, dim, _ = Xt.shape
    A, g = np.empty((n, D * dim, D * dim)), np.empty((n, D * dim))
    for a in range(D):
        g[:, a * dim : (a + 1) * dim] = (Xt @ (weights * e.slope[..., a])[..., None])[..., 0]
        for c in range(D):
            bent = Xt * (weights * e.curvature[..., a, c])[:, None]
            block = bent @ Xt.transpose(0, 2, 1)
            A[:, a * dim : (a + 1) * dim, c * dim : (c + 1) * dim] = block
    return (A + A.transpose(0, 2, 1)) / 2, g  # it is sent as a triangle


# -- log-likelihoods averaged over Gaussian logits ------------------------------------------------


# The logistic function is a mixture of normal distribution functions to 2e-9 (Monahan and
# Stefanski 1992), so that its averages over Gaussians are closed forms.
SHARES, RATES = np.array(
    [
        (0.003246343272134, 1.365340806296348),
        (0.051517477033972, 1.059523971016916),
        (0.195077912673858, 0.830791313765644),
        (0.315569823632818, 0.650732166639391),
        (0.274149576158423, 0.508135425366489),
        (0.131076880695470, 0.396313345166341),
        (0.027912418727972, 0.308904252267995),
        (0.001449567805354, 0.238212616409306),
    ]
).T.copy()
# Phi(-z) / phi(z) for z >= 0 as a polynomial in t = 1 / (1 + SLOWER z), times t, least squares:
# Phi is right to 3e-13, at a third of the time that a library's takes.
SLOWER = 0.3
MILLS = (
    0.29995407678379826,
    0.2997514725607532,
    0.28196965200487367,
    0.14931127628525304,
    0.4312751737726355,
    -0.6615633592458079,
    1.2054537786911168,
    -1.3122542093539618,
    0.7593396481223764,
    -0.2286840234421353,
    0.02876065113711245,
)
FLATTER = 0.6  # than at even odds: the curvature of rows whose logits are not known yet


@dataclass(frozen=True, eq=False)
class Expected:
    """Expectations of rows' log-likelihoods over Gaussian logits N(m, S)."""

    value: Floats  # (..., rows)
    slope: Floats  # (..., rows, D)
    curvature: Floats  # (..., rows, D, D)


def expected(loss: str, y: Floats, m: Floats, S: Floats) -> Expected:
    """E log p(y | z), its gradient and its curvature for z ~ N(m, S), m (..., rows, D).

    logistic (y 0 or 1) and poisson: closed forms; multinomial (y 0..D, the last class the
    reference): the cubature rule with 2 D points that is exact for cubics.
    """
    if loss == "poisson":
        # A rate a million times the count is wrong enough: more would drown the prior in rounding.
        rate = np.exp(np.minimum(m[..., 0] + S[..., 0, 0] / 2, np.log1p(y) + 14.0))
        value = y * m[..., 0] - rate - gammaln(y + 1)
        return Expected(value, (y - rate)[..., None], rate[..., None, None])
    if loss == "logistic":
        return _logistic(y, m[..., 0], S[..., 0, 0])
    D = m.shape[-1]
    root = np.linalg.cholesky(S + 1e-12 * np.eye(D)) * np.sqrt(D)
    points = np.concatenate([root, -root], axis=-1) + m[..., None]  # (..., rows, D, 2 D)
    top = np.maximum(points.max(axis=-2, keepdims=True), 0.0)
    total = np.exp(points - top).sum(axis=-2, keepdims=True) + np.exp(-top)
    p = np.exp(points - top) / total
    hit = (y[..., None] == np.arange(D)).astype(np.float64)
    value = (hit * m).sum(axis=-1) - (top + np.log(total))[..., 0, :].mean(axis=-1)
    mean = p.mean(axis=-1)
    bend = mean[..., None] * np.eye(D) - p @ np.swapaxes(p, -1, -2) / (2 * D)
    return Expected(value, hit - mean, bend)


def log_likelihood(loss: str, y: Floats, m: Floats) -> Floats:
    """log p(y | z) of rows whose logits m (..., rows, D) are known."""
    if loss == "poisson":
        return y * m[..., 0] - np.exp(m[..., 0]) - gammaln(y + 1)
    if loss == "logistic":
        z = m[..., 0]
        return y * z - np.maximum(z, 0.0) - np.log1p(np.exp(-np.abs(z)))
    hit = (y[..., None] == np.arange(m.shape[-1])).astype(np.float64)
    top = np.maximum(m.max(axis=-1), 0.0)
    total = np.exp(m - top[..., None]).sum(axis=-1) + np.exp(-top)
    return (hit * m).sum(axis=-1) - top - np.log(total)


def at_first(loss: str, y: Floats, D: int) -> Expected:
    """Slope and curvature of rows before a model is known, as if their logits were zero.

    Classes: of even odds, and the curvature somewhat below its largest, as it is where logits
    vary. Counts: those of a model that fits each, and half a count more.
    """
    value = np.zeros(y.shape)
    if loss == "poisson":
        rate = y + 0.5
        return Expected(value, (rate * np.log(rate))[..., None], rate[..., None, None])
    if loss == "logistic":
        return Expected(value, (y - 0.5)[..., None], np.full((*y.shape, 1, 1), FLATTER / 4))
    even, hit = 1 / (D + 1), (y[..., None] == np.arange(D)).astype(np.float64)
    bend = FLATTER * even * (np.eye(D) - even)
    return Expected(value, hit - even, np.broadcast_to(bend, (*y.shape, D, D)))


def _logistic(y: Floats, m: Floats, s2: Floats) -> Expected:
    """The mixture's averages: sum_k share_k Phi(m / size_k) with size_k^2 = 1 / rate_k^2 + s2.

    Numbers are worked out one by one, no sum by BLAS: a row's are the same in any batch.
    """
    parts = (slice(None), *[None] * m.ndim)
    size = np.sqrt((1 / RATES**2)[parts] + s2)
    z = np.abs(m) / size
    density = np.exp(-0.5 * z * z)
    density *= (SHARES / np.sqrt(2 * np.pi))[parts]
    t = 1.0 / (1.0 + SLOWER * z)
    tail = np.full_like(t, MILLS[-1])
    for c in MILLS[-2::-1]:
        tail *= t
        tail += c
    tail *= t
    tail *= density
    far = tail.sum(axis=0)  # of the smaller of p and 1 - p
    slope = np.where(m < 0, y - far, (y - 1.0) + far)
    curvature = (density / size).sum(axis=0)
    value = slope * m - (size * density).sum(axis=0)
    return Expected(value, slope[..., None], curvature[..., None, None])


def predicted(loss: str, m: Floats, S: Floats) -> Floats:
    """E of the target over N(m, S): a rate, a probability, or the probabilities of all classes."""
    if loss == "poisson":
        return np.exp(m[..., 0] + S[..., 0, 0] / 2)
    hits = np.zeros(m.shape[:-1])
    if loss == "logistic":
        return -expected(loss, hits, m, S).slope[..., 0]
    first = -expected(loss, hits - 1.0, m, S).slope
    rest = np.maximum(1 - first.sum(axis=-1, keepdims=True), 0.0)
    return np.concatenate([first, rest], axis=-1)
