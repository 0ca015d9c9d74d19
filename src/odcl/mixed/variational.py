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
EXACT = 1e-9  # length of the last step, see ``_distance``
DEPTH = 2  # steps that the next one is extrapolated from
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
    gap: Floats  # (n,), how far it is to there, see ``_distance``
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
    its aim takes it and stops: that last step is not looked at, and the bound is that of the step
    before, lower by about half the square of its length.
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
        return _Seen(mu, R, aim, _distance(aim - term, mu, R), bound)

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
        good = (fall <= 1e-12 * level) | (nearer & (fall <= state.gap[live]))
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
    first = at_first(given.loss, given.y, given.D, given.X.shape[2])
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


def _distance(gap: Floats, mu: Floats, R: Floats) -> Floats:
    """How far posteriors N(mu, R'R) go where their terms change by ``gap``, (n,).

    Half its square is the divergence, and what the bound gains by a short step.
    """
    A, b = _parted(gap, mu.shape[1])
    pull = R @ (b - (A @ mu[..., None])[..., 0])[..., None]
    bend = (R @ A @ R.transpose(0, 2, 1)).reshape(len(R), -1)
    return np.sqrt((pull**2).sum(axis=(1, 2)) + 0.5 * (bend**2).sum(axis=1))


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
    A, g = np.empty((n, D, dim, D, dim)), np.empty((n, D, dim))
    for a in range(D):
        g[:, a] = (Xt @ (weights * e.slope[..., a])[..., None])[..., 0]
        for c in range(a + 1):
            # One sign for all rows, and a matrix times itself takes half the work.
            sign = 1.0 if a == c else -1.0
            bent = Xt * np.sqrt(np.maximum(sign * weights * e.curvature[..., a, c], 0.0))[:, None]
            A[:, a, :, c] = A[:, c, :, a] = sign * (bent @ bent.transpose(0, 2, 1))
    return A.reshape(n, D * dim, D * dim), g.reshape(n, D * dim)


# -- log-likelihoods averaged over Gaussian logits ------------------------------------------------


# The logistic function is a mixture of normal distribution functions (Monahan and Stefanski 1992),
# six of them to 8e-8 (least maximum error), so that its averages over Gaussians are closed forms.
SHARES, RATES = np.array(
    [
        (0.01844649628362194, 1.2112582069236661),
        (0.17267298643680057, 0.8973523505483306),
        (0.3739083657038606, 0.668344280912601),
        (0.31697503279100403, 0.49555108940981657),
        (0.10891862720662596, 0.36670290223308255),
        (0.009078491578086724, 0.2694715856217386),
    ]
).T.copy()
# Phi(-z) / phi(z) for z >= 0 as a polynomial in t = 1 / (1 + SLOWER z), times t, least squares:
# Phi is right to 3e-8, at a fraction of the time that a library's takes.
SLOWER = 0.4
MILLS = (
    0.3938256684077805,
    0.4663002636166594,
    0.05047796877400215,
    0.8291869487419836,
    -0.6242647051692488,
    0.1377880547048747,
)


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


def at_first(loss: str, y: Floats, D: int, dim: int) -> Expected:
    """Slope and curvature of rows before a model is known, as if their logits were zero.

    Classes: of even odds, and the curvature below its largest, as it is where logits vary as much
    as those of ``dim`` columns with slopes around one. Counts: those of a model that fits each, and
    half a count more.
    """
    flatter = 1 / np.sqrt(1 + np.pi / 8 * dim)
    value = np.zeros(y.shape)
    if loss == "poisson":
        rate = y + 0.5
        return Expected(value, (rate * np.log(rate))[..., None], rate[..., None, None])
    if loss == "logistic":
        return Expected(value, (y - 0.5)[..., None], np.full((*y.shape, 1, 1), flatter / 4))
    even, hit = 1 / (D + 1), (y[..., None] == np.arange(D)).astype(np.float64)
    bend = flatter * even * (np.eye(D) - even)
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
