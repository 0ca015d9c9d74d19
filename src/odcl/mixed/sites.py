"""Losses that are not quadratic: every user's log-likelihood as a Gaussian site.

Under the prior N(0, P^-1) the Gaussian q = N(mu, V) nearest to the user's posterior has

    V^-1 = P + A,   A = sum_r x x' E_q[h(z)],   b = A mu + sum_r x E_q[g(z)],   (P + A) mu = b,

with g and -h the first two derivatives of a row's log-likelihood in its logit z = x'theta (for C
classes C - 1 logits, and A in (C - 1) dim numbers). The site exp(k + b'theta - theta'A theta / 2)
stands for the likelihood; k makes its evidence under the prior the variational bound, so that
sites are comparable. A site exists for one row, for one class, and for more parameters than rows.

It is good where the prior has its mass, and nobody knows beforehand how large the users' models
are. So each user sends its site under priors of several widths, and the server takes the width
whose groups have the best evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.special import gammaln, ndtr, xlogy

from odcl._typing import Floats, Ints
from odcl.mixed.mixture import Quadratics
from odcl.mixed.posterior import Download
from odcl.mixed.terms import by_size
from odcl.risk.loss import symmetric
from odcl.risk.risk import SITE_WIDTHS

INTERCEPT_SD = 3.0  # prior of the sites, for standardized columns; of slopes: SITE_WIDTHS
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
STEPS = 200


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
        size = np.sqrt(1 / RATES**2 + S[..., 0])
        z = m / size
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        p = ndtr(z) @ SHARES
        value = (y - p) * m[..., 0] - (size * density) @ SHARES
        return Expected(value, (y - p)[..., None], ((density / size) @ SHARES)[..., None, None])
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


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Variational posteriors of a batch of users, and the sites behind them."""

    mu: Floats  # (n, D dim)
    V: Floats  # (n, D dim, D dim)
    A: Floats  # (n, D dim, D dim)
    b: Floats  # (n, D dim), relative to the prior's mean
    elbo: Floats  # (n,), or another log-evidence


OwnPosterior = Callable[[Ints, Ints, Floats, Floats], Gaussians]


def variational(
    loss: str,
    X: Floats,
    y: Floats,
    weights: Floats,
    mean: Floats,
    root: Floats,
    D: int = 1,
    start: tuple[Floats, Floats] | None = None,
) -> Gaussians:
    """The Gaussian nearest to each user's posterior under N(mean, root root').

    ``X`` is (n, rows, dim), ``y`` and ``weights`` (n, rows), ``mean`` (n, D dim), ``root``
    (D dim, rank): coordinates may be fixed. Steps are natural gradients in (A, b), from ``start``
    on, halved for a user whose bound would fall, unless the step brings it nearer to its aim: the
    cubature's bound is not flat there.
    """
    n, _, dim = X.shape
    rank = root.shape[1]

    def look(who: Ints, A: Floats, b: Floats) -> tuple[Floats, ...]:
        """mu, V, the (A, b) that the step aims at, and the bound, of some users."""
        # In units of the prior, theta = mean + root u: nothing cancels where it is narrow.
        grown = np.eye(rank) + root.T @ A @ root
        inverse = np.linalg.inv(grown)
        u = (inverse @ (root.T @ b[..., None]))[..., 0]
        V: Floats = root @ inverse @ root.T
        mu = (root @ u[..., None])[..., 0]
        theta = (mu + mean[who]).reshape(-1, D, dim)
        logits = X[who] @ theta.transpose(0, 2, 1)
        e = expected(loss, y[who], logits, _logit_covariance(X[who], V, D))
        aim, g = _information(X[who], weights[who], e, D)
        divergence = np.trace(inverse, axis1=1, axis2=2) - rank + (u**2).sum(axis=1)
        divergence = divergence + np.linalg.slogdet(grown)[1]
        bound: Floats = (weights[who] * e.value).sum(axis=1) - 0.5 * divergence
        return mu, V, aim, (aim @ mu[..., None])[..., 0] + g, bound

    A, b = np.zeros((n, D * dim, D * dim)), np.zeros((n, D * dim))
    if start is not None:
        A, b = start[0].copy(), start[1].copy()
    step, live = np.ones(n), np.arange(n)
    state = look(live, A, b)
    for _ in range(STEPS):
        # A user who has arrived stays put, so that it does not matter who else is in the batch.
        # Both count: as many hits as misses at one place leave b at zero, and A to be found.
        gap = _largest(state[2][live] - A[live], state[3][live] - b[live])
        going = (gap > 1e-9 * (1 + _largest(A[live], b[live]))) & (step[live] > 1e-6)
        live, gap = live[going], gap[going]
        if not len(live):
            break
        share = step[live][:, None]
        A_try = A[live] + share[..., None] * (state[2][live] - A[live])
        b_try = b[live] + share * (state[3][live] - b[live])
        seen = look(live, A_try, b_try)
        fall, level = state[4][live] - seen[4], 1 + np.abs(state[4][live])
        nearer = _largest(seen[2] - A_try, seen[3] - b_try) < 0.9 * gap
        good = (fall <= 1e-12 * level) | (nearer & (fall <= 1e-6 * level))
        A[live[good]], b[live[good]] = A_try[good], b_try[good]
        for part, new in zip(state, seen, strict=True):
            part[live[good]] = new[good]
        step[live] = np.where(good, np.minimum(1.0, 1.5 * step[live]), step[live] / 2)
    return Gaussians(state[0] + mean, state[1], A, b, state[4])


def _largest(A: Floats, b: Floats) -> Floats:
    """The largest number of each user's curvature and slope, (n,)."""
    return np.maximum(np.abs(A).max(axis=(1, 2)), np.abs(b).max(axis=1))


def _logit_covariance(X: Floats, V: Floats, D: int) -> Floats:
    """Covariance of each row's logits, (n, rows, D, D)."""
    n, rows, dim = X.shape
    S = np.empty((n, rows, D, D))
    for a in range(D):
        for c in range(D):
            block = V[:, a * dim : (a + 1) * dim, c * dim : (c + 1) * dim]
            S[..., a, c] = ((X @ block) * X).sum(axis=2)
    return S


def _information(X: Floats, weights: Floats, e: Expected, D: int) -> tuple[Floats, Floats]:
    """sum_r w h x x' and sum_r w g x, in D dim numbers."""
    n, _, dim = X.shape
    A, g = np.empty((n, D * dim, D * dim)), np.empty((n, D * dim))
    turned = X.transpose(0, 2, 1)
    for a in range(D):
        g[:, a * dim : (a + 1) * dim] = (turned @ (weights * e.slope[..., a])[..., None])[..., 0]
        for c in range(D):
            block = turned @ (X * (weights * e.curvature[..., a, c])[..., None])
            A[:, a * dim : (a + 1) * dim, c * dim : (c + 1) * dim] = block
    return (A + A.transpose(0, 2, 1)) / 2, g  # it is sent as a triangle


def prior_sd(dim: int, D: int = 1, *, intercept: bool = True, width: float = 1.0) -> Floats:
    """Prior of the sites: the intercept (first, if any) may be wide, slopes have ``width``."""
    sd = np.full(dim, width)
    if intercept:
        sd[0] = INTERCEPT_SD
    return np.tile(sd, D)


def sites(
    loss: str,
    Z: Floats,
    y: Floats,
    users: Ints,
    n_users: int,
    weights: Floats | None = None,
    *,
    n_classes: int = 2,
    intercept: bool = True,
) -> list[Quadratics]:
    """Every user's sites of all widths, from design rows ``Z`` on columns of agreed scales.

    ``ceiling`` is the log-likelihood of a model that fits every row exactly: no group may claim
    more. Users who answered one way only would otherwise peak where the prior puts them, above it.
    """
    D = n_classes - 1 if loss == "multinomial" else 1
    size = D * Z.shape[1]
    w = np.ones(len(y)) if weights is None else weights
    rows = np.bincount(users, weights=w, minlength=n_users).astype(np.float64)
    best = w * (xlogy(y, y) - y - gammaln(y + 1) if loss == "poisson" else 0.0)
    ceiling = np.bincount(users, weights=best, minlength=n_users).astype(np.float64)
    nothing, stacks = np.zeros(n_users), by_size(users, n_users)
    found: list[Quadratics] = []
    for width in SITE_WIDTHS:
        sd = prior_sd(Z.shape[1], D, intercept=intercept, width=width)
        A, b, uu = np.zeros((n_users, size, size)), np.zeros((n_users, size)), np.zeros(n_users)
        for who, index in stacks:
            start = (found[-1].A[who], found[-1].b[who]) if found else None
            mean = np.zeros((len(who), size))
            own = variational(loss, Z[index], y[index], w[index], mean, np.diag(sd), D, start)
            A[who], b[who], uu[who] = own.A, own.b, 2 * own.elbo
        q = Quadratics(symmetric(A), b, nothing, rows, nothing, nothing, False, ceiling, sd**-2.0)
        found.append(replace(q, uu=2 * site_evidence(q) - uu))
    return found


def site_evidence(q: Quadratics) -> Floats:
    """log of the integral of each user's site over the prior it was made under, (n_users,)."""
    assert q.anchor is not None
    grown = q.A + np.diag(q.anchor)
    mu = np.linalg.solve(grown, q.b[..., None])[..., 0]
    inside = np.linalg.slogdet(grown)[1] - np.log(q.anchor).sum()
    return 0.5 * ((q.b * mu).sum(axis=1) - inside - q.uu)


def spread_root(T: Floats) -> Floats:
    """(dim, rank) with root root' = T."""
    values, vectors = np.linalg.eigh(T)
    seen = values > 1e-14 * max(float(values[-1]), 1e-300)
    return vectors[:, seen] * np.sqrt(values[seen])


@dataclass(frozen=True, eq=False)
class SitePosterior:
    """The users' last step for losses that are not quadratic: own rows under each N(c_k, T)."""

    loss: str
    n_logits: int
    shares: Floats  # (n_users, J, K), probabilities of scale and group
    mu: Floats  # (n_users, J, K, D dim)
    V: Floats  # (n_users, J, K, D dim, D dim)

    @property
    def responsibilities(self) -> Floats:
        """The probability of each group, (n_users, K)."""
        return self.shares.sum(axis=1)

    def mean(self) -> Floats:
        """The posterior mean of every user's model, (n_users, D dim)."""
        return (self.shares[..., None] * self.mu).sum(axis=(1, 2))

    def covariance(self) -> Floats:
        """Its covariance, over groups and models, (n_users, D dim, D dim)."""
        away = self.mu - self.mean()[:, None, None]
        inside = (self.shares[..., None, None] * self.V).sum(axis=(1, 2))
        return inside + np.einsum("njk,njka,njkb->nab", self.shares, away, away, optimize=True)

    def predict(self, Z: Floats, users: Ints) -> Floats:
        """E of the target over groups and models, for design rows Z of the batch's ``users``."""
        D, dim = self.n_logits, Z.shape[1]
        total: Floats = np.zeros(())
        for j, k in np.ndindex(*self.shares.shape[1:]):
            m = (self.mu[users, j, k].reshape(-1, D, dim) @ Z[..., None])[..., 0]
            S = _logit_covariance(Z[:, None], self.V[users, j, k], D)[:, 0]
            part = predicted(self.loss, m, S)
            r = self.shares[users, j, k]
            total = total + r.reshape(-1, *[1] * (part.ndim - 1)) * part
        return total


def site_posterior(
    loss: str,
    Z: Floats,
    y: Floats,
    users: Ints,
    n_users: int,
    download: Download,
    weights: Floats | None = None,
    *,
    n_classes: int = 2,
) -> SitePosterior:
    """Each user's own variational posterior under every N(c_k, T), weighed by its evidence.

    V includes what the center is not known to, J C_k J'.
    """
    D = n_classes - 1 if loss == "multinomial" else 1
    w = np.ones(len(y)) if weights is None else weights

    def own(_: Ints, index: Ints, center: Floats, root: Floats) -> Gaussians:
        mean = np.tile(center, (len(index), 1))
        return variational(loss, Z[index], y[index], w[index], mean, root, D)

    return over_components(loss, D, users, n_users, download, own)


def over_components(
    loss: str, D: int, users: Ints, n_users: int, download: Download, own: OwnPosterior
) -> SitePosterior:
    """Every user under each scale of the spread and each group, weighed by the evidence of ``own``.

    ``own`` is (users, positions of their rows, center, root of the spread) -> their posteriors
    around that center, which this makes less sure by what the center is not known to.
    """
    centers, scales = download.centers, download.scales
    K, size = centers.shape
    spreads = [scale * download.spread.matrix for scale in scales]
    mu = np.tile(centers, (n_users, len(scales), 1, 1))
    V = np.tile(np.stack(spreads)[:, None] + download.covariances, (n_users, 1, 1, 1, 1))
    with np.errstate(divide="ignore"):
        prior = np.log(np.outer(download.shares, download.weights))
    logits = np.tile(prior, (n_users, 1, 1))
    stacks = by_size(users, n_users)
    for (j, k), (who, index) in product(np.ndindex(len(scales), K), stacks):
        if np.isneginf(prior[j, k]):
            continue
        found = own(who, index, centers[k], spread_root(spreads[j]))
        through = np.linalg.inv(np.eye(size) + spreads[j] @ found.A)  # J = I - T W
        unsure = through @ download.covariances[k] @ through.transpose(0, 2, 1)
        mu[who, j, k], V[who, j, k] = found.mu, found.V + unsure
        logits[who, j, k] += found.elbo
    r = np.exp(logits - logits.max(axis=(1, 2), keepdims=True))
    return SitePosterior(loss, D, r / r.sum(axis=(1, 2), keepdims=True), mu, V)
