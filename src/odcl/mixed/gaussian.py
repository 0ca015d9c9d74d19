"""Losses that are not quadratic: every user's log-likelihood as a Gaussian term, and Huber's loss.

Under the prior N(0, P^-1) the Gaussian q = N(mu, V) nearest to the user's posterior has

    V^-1 = P + A,   A = sum_r x x' E_q[h(z)],   b = A mu + sum_r x E_q[g(z)],   (P + A) mu = b,

with g and -h the first two derivatives of a row's log-likelihood in its logit z = x'theta (for C
classes C - 1 logits, and A in (C - 1) dim numbers). The term exp(k + b'theta - theta'A theta / 2)
stands for the likelihood; k makes its evidence under the prior that of the rows, so that terms are
comparable. A term exists for one row, for one class, and for more parameters than rows.

It is good where the prior has its mass, and nobody knows beforehand how large the users' models
are. So each user sends its term under priors of several widths, and the server takes the width
whose groups have the best evidence. Of classes, a user whose rows say far more than the prior, of a
model that is no likelier under the widest, has one term, that of the middle width: others would
hardly differ. (Counts' curvature is an exponential of the model, and differs all the same.)

Huber's loss has data terms: at a user's own Huber fit the pseudo-targets y* = z'theta + psi(r) / l,
psi(r) = clip(r, -delta, delta) and l the mean of psi', have that fit for least squares, and
residuals whose variance is that of Huber's estimator (Huber, Robust Statistics, 1981, chapter 7).
So the user sends the data term of its pseudo-targets, and the server takes it like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import gammaln, logsumexp, ndtri, xlogy

from odcl._typing import Bools, Floats, Ints
from odcl.mixed.marginal import inverse_root
from odcl.mixed.mixture import Quadratics
from odcl.mixed.posterior import Mixture, Posterior
from odcl.mixed.terms import CHUNK, by_size, stacked_rows
from odcl.mixed.variational import Gaussians, Likelihood, log_likelihood, outset, variational
from odcl.risk.loss import symmetric
from odcl.risk.risk import GAUSSIAN_WIDTHS, MIDDLE_WIDTH

# Length of a term's last step, which is not looked at: half its square is the divergence between
# the posteriors before it and after it. A Gaussian is not nearer to the likelihood itself.
NEAR = 0.01
# Share of the prior's variance that rows leave, at most, of each number of a model that they know.
# Centers of groups of such users cost the same log-loss to a thousandth, whatever the width.
KNOWN = 0.2
OTHERS = [width for width in range(len(GAUSSIAN_WIDTHS)) if width != MIDDLE_WIDTH]
DRAWN = 64  # models that a user's rows are weighed by, two per parameter at least


OwnPosterior = Callable[[Ints, Ints], Callable[[Floats, Floats], Gaussians]]


def prior_sd(dim: int, D: int = 1, *, intercept: bool = True, width: int = MIDDLE_WIDTH) -> Floats:
    """Prior of the terms of one ``width``, the intercept (if any) first."""
    slopes, level = GAUSSIAN_WIDTHS[width]
    sd = np.full(dim, slopes)
    if intercept:
        sd[0] = level
    return np.tile(sd, D)


def gaussian_terms(
    loss: str,
    Z: Floats,
    y: Floats,
    users: Ints,
    n_users: int,
    weights: Floats | None = None,
    *,
    n_classes: int = 2,
    intercept: bool = True,
    narrow: Floats | None = None,
    own: tuple[Floats, Floats] | None = None,
) -> list[Quadratics]:
    """Every user's terms of all widths, from design rows ``Z`` on columns of agreed scales.

    With ``own`` means and units of each user's columns, both (n_users, p), design rows are made of
    ``Z`` (rows, p) here. The prior of each column is as many times as wide as ``narrow`` (dim,)
    says.

    ``ceiling`` is the log-likelihood of a model that fits every row exactly: no group may claim
    more. Users who answered one way only would otherwise peak where the prior puts them, above it.
    """
    D = n_classes - 1 if loss == "multinomial" else 1
    dim = Z.shape[1] + (own is not None and intercept)
    size = D * dim
    w = np.ones(len(y)) if weights is None else weights
    rows_of = np.bincount(users, weights=w, minlength=n_users).astype(np.float64)
    best = w * (xlogy(y, y) - y - gammaln(y + 1) if loss == "poisson" else 0.0)
    ceiling = np.bincount(users, weights=best, minlength=n_users).astype(np.float64)
    sds = [prior_sd(dim, D, intercept=intercept, width=i) for i in range(len(GAUSSIAN_WIDTHS))]
    if narrow is not None:
        sds = [sd * np.tile(narrow, D) for sd in sds]
    A, b = np.zeros((len(sds), n_users, size, size)), np.zeros((len(sds), n_users, size))
    bound, nothing = np.zeros(n_users), np.zeros(n_users)
    left, most = np.full((n_users, size), np.inf), CHUNK // size  # variances

    def given(who: Ints, index: Ints) -> Likelihood:
        units = None if own is None else (own[0][who], own[1][who])
        rows = _design(stacked_rows(Z, index), dim, units)
        return Likelihood(loss, rows, y[index], w[index], D)

    def fitted(rows: Likelihood, width: int, start: tuple[Floats, Floats]) -> Gaussians:
        mean = np.zeros((len(rows.y), size))
        return variational(rows, mean, np.diag(sds[width]), start, near=NEAR)

    for who, index in by_size(users, n_users, most):
        rows = given(who, index)
        found = fitted(rows, MIDDLE_WIDTH, outset(rows))
        A[:, who], b[:, who], bound[who] = found.A, found.b, found.elbo
        left[who] = np.diagonal(found.V, axis1=1, axis2=2)
    usual, middle = sds[MIDDLE_WIDTH], (A[MIDDLE_WIDTH], b[MIDDLE_WIDTH])
    evidence, widest = (gaussian_evidence(*middle, sd**-2.0) for sd in (usual, sds[-1]))
    known = (evidence >= widest) & (left <= KNOWN * usual**2).all(axis=1) & (loss != "poisson")
    constant = np.tile(2 * (evidence - bound), (len(sds), 1))
    others = np.flatnonzero(~known[users])
    for who, index in by_size(users[others], n_users, most):
        rows, start = given(who, others[index]), (A[MIDDLE_WIDTH, who], b[MIDDLE_WIDTH, who])
        for width in OTHERS:
            found = fitted(rows, width, start)
            A[width, who], b[width, who] = found.A, found.b
        for width, sd in enumerate(sds):
            constant[width, who] = _constant(rows, A[width, who], b[width, who], sd)
    parts = rows_of, nothing, nothing, False, ceiling
    return [
        Quadratics(symmetric(A[width]), b[width], constant[width], *parts, sd**-2.0)
        for width, sd in enumerate(sds)
    ]


def _constant(given: Likelihood, A: Floats, b: Floats, sd: Floats) -> Floats:
    """-2 k of terms (A, b) whose evidence under N(0, diag(sd)^2) is that of the rows, (n_users,).

    The variational bound falls short of it, by the more the wider the prior: by their bounds, too
    narrow priors would win. Models are drawn from the Gaussian of the term, by the same numbers for
    everybody, and weighed by how much likelier they are than under that Gaussian.
    """
    (n, size), D = b.shape, given.D
    half, pull = np.empty_like(A), (sd * b)[..., None]
    grown = sd[:, None] * A * sd + np.eye(size)
    inverse_root(grown, half)
    mean = (half.transpose(0, 2, 1) @ (half @ pull))[..., 0]  # in units of the prior
    # By size and with one sign, so that draws do not depend on how a table's columns are written.
    turn = np.eye(size)[np.argsort(-np.abs(mean), axis=1, kind="stable")]
    turn *= np.where(mean < 0, -1.0, 1.0)[:, None]
    inverse_root(turn @ grown @ turn.transpose(0, 2, 1), half)
    u = _drawn(size)
    models = mean[:, None] + u @ half @ turn
    logits = (models * sd).reshape(n, -1, size // D) @ given.X.transpose(0, 2, 1)
    logits = logits.reshape(n, len(u), D, -1).transpose(0, 1, 3, 2)
    with np.errstate(over="ignore"):  # a rate of a model that nobody would have
        rows = given.weights[:, None] * log_likelihood(given.loss, given.y[:, None], logits)
    likelier = rows.sum(axis=2) + 0.5 * ((u**2).sum(axis=1) - (models**2).sum(axis=2))
    return (pull[..., 0] * mean).sum(axis=1) - 2 * (logsumexp(likelier, axis=1) - np.log(len(u)))


@cache
def _drawn(size: int) -> Floats:
    """Normal numbers (u, -u) of covariance I, spread evenly by a recurrence of golden ratios."""
    ratio, pairs = 2.0, max(DRAWN // 2, size)
    for _ in range(60):  # to the root of x^(size + 1) = x + 1
        ratio = (1 + ratio) ** (1 / (size + 1))
    steps = ratio ** -np.arange(1.0, size + 1)
    u = ndtri((0.5 + np.arange(1, pairs + 1)[:, None] * steps) % 1)
    u = np.linalg.solve(np.linalg.cholesky(u.T @ u / pairs), u.T).T
    return np.concatenate([u, -u])


def _design(block: Floats, dim: int, own: tuple[Floats, Floats] | None) -> Floats:
    """Design rows (users, rows, dim) of a stack, upright in memory as they are looked at."""
    upright = np.ones((len(block), dim, block.shape[1]))
    columns = upright[:, dim - block.shape[2] :]
    columns[:] = block.transpose(0, 2, 1)
    if own is not None:
        mean, unit = own
        columns -= mean[..., None]
        columns /= unit[..., None]
    return upright.transpose(0, 2, 1)


def gaussian_evidence(A: Floats, b: Floats, P: Floats) -> Floats:
    """log of the integral of users' terms, k = 0, over the prior N(0, diag(P)^-1), (n_users,)."""
    sd = P**-0.5
    grown = np.eye(len(P)) + sd[:, None] * A * sd
    root = np.empty_like(grown)
    inside = inverse_root(grown, root)
    return 0.5 * (((root @ (sd * b)[..., None]) ** 2).sum(axis=(1, 2)) - inside)


def spread_root(T: Floats) -> Floats:
    """(dim, rank) with root root' = T."""
    values, vectors = np.linalg.eigh(T)
    seen = values > 1e-14 * max(float(values[-1]), 1e-300)
    return vectors[:, seen] * np.sqrt(values[seen])


@dataclass(frozen=True, eq=False)
class GaussianPosterior:
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


def gaussian_posterior(
    loss: str,
    X: Floats,
    y: Floats,
    users: Ints,
    n_users: int,
    mixture: Mixture,
    weights: Floats | None = None,
    *,
    n_classes: int = 2,
) -> GaussianPosterior:
    """Each user's own variational posterior under every N(c_k, T), weighed by its evidence.

    Design rows are made of ``X`` in pieces: fresh memory for all takes longer than their numbers.
    V includes what the center is not known to, J C_k J'.
    """
    D = n_classes - 1 if loss == "multinomial" else 1
    w = (np.ones(len(y)) if weights is None else weights) / mixture.noise.s0

    def own(_: Ints, index: Ints) -> Callable[[Floats, Floats], Gaussians]:
        rows = mixture.coordinates.design(stacked_rows(X, index).reshape(index.size, -1))
        rows = rows.reshape(*index.shape, -1)
        given = Likelihood(loss, rows, y[index], w[index], D)
        return lambda center, root: variational(given, np.tile(center, (len(index), 1)), root)

    return over_components(loss, D, users, n_users, mixture, own)


def over_components(
    loss: str, D: int, users: Ints, n_users: int, mixture: Mixture, own: OwnPosterior
) -> GaussianPosterior:
    """Every user under each scale of the spread and each group, weighed by the evidence of ``own``.

    ``own`` is (users, positions of their rows) -> (center, root of the spread) -> their posteriors
    around that center, which this makes less sure by what the center is not known to.
    """
    centers, scales = mixture.centers, mixture.scales
    size = centers.shape[1]
    spreads = [scale * mixture.spread.matrix for scale in scales]
    mu = np.tile(centers, (n_users, len(scales), 1, 1))
    V = np.tile(np.stack(spreads)[:, None] + mixture.covariances, (n_users, 1, 1, 1, 1))
    with np.errstate(divide="ignore"):
        prior = np.log(np.outer(mixture.shares, mixture.weights))
    logits = np.tile(prior, (n_users, 1, 1))
    stacks = by_size(users, n_users, most=CHUNK // size)
    roots = [spread_root(spread) for spread in spreads]
    for who, index in stacks:
        under = own(who, index)
        for j, k in np.argwhere(np.isfinite(prior)):
            found = under(centers[k], roots[j])
            unsure = mixture.covariances[k]
            if roots[j].size:
                through = np.linalg.inv(np.eye(size) + spreads[j] @ found.A)  # J = I - T W
                unsure = through @ unsure @ through.transpose(0, 2, 1)
            mu[who, j, k], V[who, j, k] = found.mu, found.V + unsure
            logits[who, j, k] += found.elbo
    r = np.exp(logits - logits.max(axis=(1, 2), keepdims=True))
    return GaussianPosterior(loss, D, r / r.sum(axis=(1, 2), keepdims=True), mu, V)


# -- Huber's loss on data terms -------------------------------------------------------------------


STEPS = 500
FEW = 4  # rows per parameter below which outliers cannot be told from the model


@dataclass(frozen=True, eq=False)
class PseudoTargets:
    """The targets of all rows as least squares takes them."""

    y: Floats  # (n_rows,)
    share: Floats  # (n_users,), the mean of psi', counted with one row more
    few: Bools  # (n_users,), too few rows: the user keeps its targets


def pseudo_targets(
    fitted: Floats,
    y: Floats,
    users: Ints,
    n_users: int,
    delta: float,
    dim: int,
    weights: Floats | None,
) -> PseudoTargets:
    """Pseudo-targets at the users' own fits.

    With fewer than four rows per parameter a fit follows an outlier, and other rows look wrong:
    such users keep their targets, and the noise that an outlier leaves in them makes them count
    for little.
    """
    w = np.ones(len(y)) if weights is None else weights
    rows = np.bincount(users, w, minlength=n_users)
    inside = np.bincount(users, w * (np.abs(y - fitted) <= delta), minlength=n_users)
    few = rows < FEW * dim
    share = np.where(few, 1.0, (inside + 1) / (rows + 1))
    cut = fitted + np.clip(y - fitted, -delta, delta) / share[users]
    return PseudoTargets(np.where(few[users], y, cut), share, few)


def huber_posterior(
    Z: Floats,
    u: Floats,
    users: Ints,
    first: Posterior,
    delta: float,
    share: Floats,
    weights: Floats | None = None,
) -> GaussianPosterior:
    """Each user's own rows under every N(c_k, T), with Huber's loss: Laplace at each mode.

    ``first`` is the posterior by pseudo-targets: its noise s2 is that of Huber's estimator, so a
    row says -rho(r) / (s2 l), whose curvature is l / (s2 l) on the average. A short user meets its
    rows exactly before it knows of the others; only here its outliers are seen as such.
    """
    w, s2 = np.ones(len(u)) if weights is None else weights, first.s2

    def own(who: Ints, index: Ints) -> Callable[[Floats, Floats], Gaussians]:
        z, weight = Z[index], w[index]
        A = z.transpose(0, 2, 1) @ (z * weight[..., None]) / s2[who][:, None, None]

        def under(center: Floats, root: Floats) -> Gaussians:
            away = u[index] - (z @ center[:, None])[..., 0]
            at, cost = _mode(z @ root, away, weight, (s2 * share)[who], delta)
            grown = np.eye(root.shape[1]) + root.T @ A @ root
            mu = center + (root @ at[..., None])[..., 0]
            V = root @ np.linalg.inv(grown) @ root.T
            evidence = -cost - 0.5 * np.linalg.slogdet(grown)[1]
            return Gaussians(mu, V, A, (A @ mu[..., None])[..., 0], evidence)

        return under

    return over_components("huber", 1, users, len(share), first.mixture, own)


def _mode(
    Zr: Floats, r: Floats, weight: Floats, phi: Floats, delta: float
) -> tuple[Floats, Floats]:
    """argmin over a of sum w rho(r - Zr a) / phi + |a|^2 / 2, and its value, per user.

    Steps solve with psi' = 1 everywhere, which majorizes rho: the value never rises. A user who
    has arrived stays put, so that it does not matter who else is in the batch.
    """
    n, _, rank = Zr.shape
    turned = Zr.transpose(0, 2, 1)
    share = weight / phi[:, None]
    inverse = np.linalg.inv(np.eye(rank) + turned @ (Zr * share[..., None]))
    a, going = np.zeros((n, rank)), np.ones(n, np.bool_)
    for _ in range(STEPS):
        left = r - (Zr @ a[..., None])[..., 0]
        pull = (turned @ (share * np.clip(left, -delta, delta))[..., None])[..., 0] - a
        step = (inverse @ pull[..., None])[..., 0]
        size = np.abs(a).max(axis=1, initial=0.0)
        going &= np.abs(step).max(axis=1, initial=0.0) > 1e-11 * (1 + size)
        if not going.any():
            break
        a = np.where(going[:, None], a + step, a)
    left = np.abs(r - (Zr @ a[..., None])[..., 0])
    rho = np.where(left <= delta, 0.5 * left**2, delta * (left - 0.5 * delta))
    return a, (share * rho).sum(axis=1) + 0.5 * (a**2).sum(axis=1)
