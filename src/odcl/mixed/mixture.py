"""The model of a federation, theta_i ~ sum_k weight_k N(c_k, T), seen through quadratics.

User i's log-likelihood is -(theta'A theta - 2 b'theta + uu) / (2 s2) - n/2 log(2 pi s2). With
At = A / s2 and bt = b / s2, all that groups need of a user, with theta integrated out, is

    W = (I + At T)^-1 At    w = (I + At T)^-1 bt    ld = log|I + At T|    e = uu/s2 - bt'T w

    -2 log p(y_i | c) = n log(2 pi s2) + ld + e - 2 w'c + c'W c.

Centers have the prior N(c_bar, B) and a Gaussian posterior N(c_k, C_k): the E-step, the centers
and T ascend one lower bound of the evidence (variational Bayes), which for one group with a flat
prior is exactly the restricted likelihood (REML) of the linear mixed model.

The users' noise is one variance for all, or one each around a common value. The prior, s2_i ~
scaled inverse chi-squared (nu, s0), is read off pure error alone: the residuals of the users' own
least squares. Residuals of the model would not do: a user far from its center looks noisy, is
shrunk more, and looks noisier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import isinf

import numpy as np
from scipy.special import gammaln

from odcl._typing import Array, Bools, Floats, Ints
from odcl.mixed.marginal import marginals, stack_size

Product = Callable[[Floats, Floats], Floats]
UNSEEN = 1e-12  # eigenvalues of the summed curvature below this share of the largest count as zero


@dataclass(frozen=True, eq=False)
class Bends:
    """Coordinates that are bends of curves. A variance of a curve is shared out by roughness."""

    of: Ints  # (dim,), whose bend it is; -1: a level or a line
    rough: Floats  # (dim,), 1 of the smoothest bend

    @cached_property
    def curves(self) -> Ints:
        """The curves that have bends here."""
        return np.unique(self.of[self.of >= 0])

    @property
    def lines(self) -> Bools:
        """Levels and lines, (dim,)."""
        return self.of < 0

    def parts(self, opened: Bools) -> Floats:
        """(dim, n), a column for each curve with bends that are open: 1 / roughness on these."""
        own = (self.of[:, None] == self.curves) & opened[:, None]
        return np.where(own, 1 / self.rough[:, None], 0.0)[:, own.any(axis=0)]


@dataclass(frozen=True, eq=False)
class Quadratics:
    """The users' log-likelihoods as quadratics, in canonical coordinates."""

    A: Floats  # (n_users, dim, dim)
    b: Floats  # (n_users, dim)
    uu: Floats  # (n_users,)
    rows: Floats  # (n_users,)
    dof: Floats  # (n_users,), rows minus the rank of A
    pure: Floats  # (n_users,), residual sum of squares of the user's own least squares
    noisy: bool = True  # False where the noise is known to be one (Gaussian terms of other losses)
    ceiling: Floats | None = None  # (n_users,), log-likelihoods that no model can exceed
    anchor: Floats | None = None  # (dim,), prior precision of the centers' mean; None: flat
    many: bool = False  # is T to be tried at many multiples of I? then ``eigen`` pays
    fixed: Bools | None = None  # (dim,), coefficients that all users share, see :class:`Spread`
    dispersion: float = (
        1.0  # of Gaussian terms: times as much as their law says rows scatter, at least 1
    )
    level: bool = False  # is the first coordinate the level?
    bends: Bends | None = None  # coordinates that are bends of curves; None: there are none
    # Levels and lines beside curves that all users share and that are known well: a search for
    # groups may look at these. None: at everything.
    beside: Quadratics | None = None

    def __len__(self) -> int:
        return len(self.b)

    def __getitem__(self, users: Array | slice) -> Quadratics:
        return Quadratics(
            self.A[users],
            self.b[users],
            self.uu[users],
            self.rows[users],
            self.dof[users],
            self.pure[users],
            self.noisy,
            None if self.ceiling is None else self.ceiling[users],
            self.anchor,
            fixed=self.fixed,
            dispersion=self.dispersion,
            level=self.level,
            bends=self.bends,
        )

    @property
    def dim(self) -> int:
        return self.b.shape[1]

    @property
    def alike(self) -> Spread:
        """T = 0: users of a group differ only by noise."""
        return Spread.zero(self.dim, self.fixed, self.bends)

    @cached_property
    def eigen(self) -> tuple[Floats, Floats]:
        """Eigenvalues and eigenvectors of every A, for a spread that is a multiple of I."""
        values, vectors = np.linalg.eigh(self.A)
        return np.maximum(values, 0.0), vectors


@dataclass(frozen=True, eq=False)
class Spread:
    """T, the covariance of users inside a group; ``open`` are the coordinates that may vary."""

    shape: str  # "zero", "scalar", "diag" or "full"
    matrix: Floats  # (dim, dim)
    open: Bools  # (dim,)
    unseen: int = 0  # directions among the open coordinates that nobody's rows tell anything of
    # (dim,), coefficients that all users and groups share: their columns do not vary within users,
    # so that nobody's rows can tell a user's own from its level. None: there are none.
    fixed: Bools | None = None
    bends: Bends | None = None  # whose variances are tied, one number a curve

    @staticmethod
    def zero(dim: int, fixed: Bools | None = None, bends: Bends | None = None) -> Spread:
        return Spread("zero", np.zeros((dim, dim)), np.zeros(dim, np.bool_), 0, fixed, bends)

    @property
    def may(self) -> Bools:
        """Coordinates that may vary between users, open or not, (dim,)."""
        return np.ones_like(self.open) if self.fixed is None else ~self.fixed

    @property
    def lines(self) -> Bools:
        """Levels and lines, (dim,): all coordinates but bends."""
        return np.ones_like(self.open) if self.bends is None else self.bends.lines

    @cached_property
    def parts(self) -> Floats:
        """(dim, n): the diagonal of T is made of these, each times a number from zero on."""
        own = np.eye(len(self.open))[:, self.open & self.lines]
        if self.shape == "scalar":
            own = own.sum(axis=1, keepdims=True)[:, : own.shape[1]]
        return own if self.bends is None else np.hstack([own, self.bends.parts(self.open)])


@dataclass(frozen=True, eq=False)
class MixtureMoments:
    """What groups need of every user at a given T and noise, with its model integrated out."""

    raw: Floats  # (n_users, dim, dim), W but for its unit
    w: Floats  # (n_users, dim)
    base: Floats  # (n_users,), n log(2 pi s2) + ld + e: -2 log p(y_i | c = 0)
    e: Floats  # (n_users,)
    unit: Floats | None = None  # (n_users,), W = unit raw; None: one

    @cached_property
    def W(self) -> Floats:
        """(n_users, dim, dim). Sums and inner products do without it where T = 0."""
        return self.raw if self.unit is None else self.raw * self.unit[:, None, None]

    def inner(self, a: Floats, product: Product = np.matmul) -> Floats:
        """<W_i, a_k> for matrices a (k, dim, dim), as (n_users, k)."""
        values = product(self.raw.reshape(len(self.w), -1), a.reshape(len(a), -1).T)
        return values if self.unit is None else values * self.unit[:, None]


def moments(q: Quadratics, spread: Spread, s2: Floats) -> MixtureMoments:
    """W, w and the log density at c = 0 of every user; ``s2`` is (n_users,)."""
    unit = None
    if spread.shape == "zero" or not spread.matrix.any():
        W, w, unit = q.A, q.b / s2[:, None], 1 / s2
        ld = drop = np.zeros(len(q))
    elif spread.shape == "scalar" and q.many and spread.open.all() and q.bends is None:
        W, w, ld, drop = _scalar_moments(q, float(spread.matrix[0, 0]), s2)
    else:
        W, w, ld, drop = marginals(q.A, q.b, spread.matrix, s2)
    e = q.uu / s2 - drop
    base = ld + e
    if q.noisy:
        base = base + q.rows * np.log(2 * np.pi * s2)
    return MixtureMoments(W, w, base, e, unit)


def _scalar_moments(q: Quadratics, t: float, s2: Floats) -> tuple[Floats, ...]:
    """T = t I: one eigendecomposition of each A serves every t; worth it from some seven t on."""
    values, vectors = q.eigen
    grown = s2[:, None] + t * values
    back = vectors.transpose(0, 2, 1)
    b = (back @ q.b[..., None])[..., 0]
    W, share, step = np.empty_like(q.A), (values / grown)[:, None], stack_size(q.dim)
    for first in range(0, len(q), step):
        part = slice(first, first + step)
        np.matmul(vectors[part] * share[part], back[part], out=W[part])
    w = (vectors @ (b / grown)[..., None])[..., 0]
    ld = np.log(grown / s2[:, None]).sum(axis=1)
    return W, w, ld, t * (b**2 / grown).sum(axis=1) / s2


def by_row(a: Floats, b: Floats) -> Floats:
    """a @ b, one row of ``a`` at a time: a user's numbers are the same alone and in any batch."""
    return (np.ascontiguousarray(a)[:, None] @ b)[:, 0]


@dataclass(frozen=True, eq=False)
class Centers:
    """Gaussian posteriors N(c_k, C_k) of the centers, for a stack of starts.

    ``price`` is the Kullback-Leibler divergence from their priors (up to a constant for one
    center, whose prior is flat): what the centers cost the evidence.
    """

    c: Floats  # (starts, K, dim)
    C: Floats  # (starts, K, dim, dim)
    mean: Floats  # (starts, dim), c_bar
    price: Floats  # (starts,)
    told: Floats  # (starts, dim, dim), information about c_bar in units of ``root``
    root: Floats | None = None  # (dim, dim), of B; None: in the units of c

    @property
    def common(self) -> Floats:
        """log |information about c_bar|, its flat prior's charge; (starts,)."""
        back = np.eye(self.c.shape[-1]) if self.root is None else np.linalg.inv(self.root)
        values = np.linalg.eigvalsh(back.T @ self.told @ back)
        seen = values > UNSEEN * np.maximum(values[:, -1:], 1e-300)
        return np.log(np.where(seen, values, 1.0)).sum(axis=1)

    def sharing(self, fixed: Bools | None) -> Centers:
        """With one coefficient for all groups where it is ``fixed``, and its own uncertainty.

        Inside a fit the centers' common mean counts as known, and B is next to nothing there.
        """
        if fixed is None or self.root is None:
            return self
        back = np.linalg.inv(self.root)
        values, vectors = np.linalg.eigh(back.T @ self.told @ back)
        seen = values > 1e-8 * np.maximum(values[:, -1:], 1e-300)  # B is small: rounding shows
        vectors = vectors * np.where(seen, 1 / np.sqrt(np.where(seen, values, 1.0)), 0.0)[:, None]
        own = vectors * fixed[:, None]
        C = self.C + (own @ own.transpose(0, 2, 1))[:, None]
        return replace(self, c=np.where(fixed, self.mean[:, None], self.c), C=C)

    @staticmethod
    def of(c: Floats, C: Floats) -> Centers:
        """Given centers (K, dim) and covariances, as a stack of one."""
        return Centers(c[None], C[None], c[:1], np.zeros(1), np.zeros_like(C[:1]))


def center_step(M: Floats, v: Floats, B: Floats | None, *, anchor: Floats | None = None) -> Centers:
    """The posterior of the centers from M_k = sum r W and v_k = sum r w, stacked over starts.

    One center (``B`` None): c = M^-1 v, C = M^-1; directions that nobody sees stay at the
    reference. Otherwise, with the prior N(c_bar, B), C_k = (M_k + B^-1)^-1 and
    c_k = C_k (v_k + B^-1 c_bar), c_bar the mean of the c_k: solved jointly, in units of B's root.
    ``anchor`` is the diagonal precision of the one center, or of c_bar, around the reference.
    """
    if B is None:
        return _one_center(M[:, 0], v[:, 0], anchor)
    K, eye = M.shape[1], np.eye(len(B))
    root: Floats = np.asarray(np.linalg.cholesky(B), np.float64)
    scaled = eye + root.T @ M @ root
    P = np.linalg.inv(scaled)
    right = (P @ (v @ root)[..., None])[..., 0]
    # The mean of P tends to I where nobody sees anything; there c_bar is the reference, zero.
    shared = P.sum(axis=1)
    told = eye - shared / K
    if anchor is not None:
        hold = (root.T * anchor) @ root / K
        told = told + hold
    middle = np.linalg.solve(told + UNSEEN * eye, right.sum(axis=1)[..., None] / K)[..., 0]
    c = right + (P @ middle[:, None, :, None])[..., 0]
    log_det, away = np.linalg.slogdet(scaled)[1], ((c - middle[:, None]) ** 2).sum(axis=(1, 2))
    trace = shared.trace(axis1=1, axis2=2)
    price = 0.5 * (trace + away - K * len(B) + log_det.sum(axis=1))
    if anchor is not None:
        price = price + K / 2 * ((middle @ hold) * middle).sum(axis=1)
    return Centers(c @ root.T, root @ P @ root.T, middle @ root.T, price, K * told, root)


def _one_center(M: Floats, v: Floats, anchor: Floats | None) -> Centers:
    """One center without a prior, or with that of ``anchor``; (starts, dim, dim) and (., dim)."""
    held = M if anchor is None else M + np.diag(anchor)
    values, vectors = np.linalg.eigh(held)
    seen = values > UNSEEN * np.maximum(values[:, -1:], 1e-300)
    inverse = np.where(seen, 1 / np.where(seen, values, 1.0), 0.0)
    C = (vectors * inverse[:, None]) @ vectors.transpose(0, 2, 1)
    c = (C @ v[..., None])[..., 0]
    log_det = np.log(np.where(seen, values, 1.0)).sum(axis=1)
    price = 0.5 * (log_det - (C * M).sum(axis=(1, 2)))
    if anchor is not None:
        price = price + 0.5 * (c**2 @ anchor)
    return Centers(c[:, None], C[:, None], c, price, held)


def group_sums(m: MixtureMoments, r: Floats) -> tuple[Floats, Floats]:
    """M_k = sum_i r_ik W_i and v_k = sum_i r_ik w_i; ``r`` is (starts, n_users, K)."""
    starts, n, K = r.shape
    dim = m.w.shape[1]
    flat = r.transpose(0, 2, 1).reshape(starts * K, n)
    scaled = flat if m.unit is None else flat * m.unit
    M = (scaled @ m.raw.reshape(n, -1)).reshape(starts, K, dim, dim)
    return M, (flat @ m.w).reshape(starts, K, dim)


def misfits(m: MixtureMoments, centers: Centers, product: Product = np.matmul) -> Floats:
    """-2 E log p(y_i | c_k) over the posterior of c_k, as (starts, n_users, K).

    One matrix product: base - 2 w'c_k + <W, c_k c_k' + C_k>; at the user its bits matter, and it
    is taken ``by_row``.
    """
    starts, K, dim = centers.c.shape
    c = centers.c.reshape(-1, dim)
    second = c[:, :, None] * c[:, None] + centers.C.reshape(-1, dim, dim)
    values = m.inner(second, product) - 2 * product(m.w, c.T) + m.base[:, None]
    return values.reshape(-1, starts, K).transpose(1, 0, 2)


def responsibilities(misfit: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """r_ik, proportional to weight_k exp(-misfit_ik / 2), and the log of its normalizer."""
    with np.errstate(divide="ignore"):
        logits = np.log(weights)[..., None, :] - 0.5 * misfit
    if logits.shape[-1] == 1:
        return np.ones_like(logits), logits[..., 0]
    top = logits.max(axis=-1, keepdims=True)
    r = np.exp(logits - top)
    total = r.sum(axis=-1, keepdims=True)
    return r / total, (top + np.log(total))[..., 0]


# -- the users' noise ----------------------------------------------------------------------------


GRID = 2.0 ** np.arange(7)  # nu = 1, 2, ..., 64
# A variance that is plugged in wants more caution than one that is integrated over: nu counts twice
# (errors fall on every table and simulation with unequal noise; four times is too much).
CAUTION = 2.0
FLOOR = 1e-10  # of the pooled residual variance, which is one in canonical coordinates
# Of the usual variance: below it a user (a closed shop: all sales are zero) is fitted exactly.
# It says nothing of others' noise, and a prior that believed it would put everybody's near zero.
NOTHING = 1e-6
SHORT = 5  # rows up to which a user far from its center must not pass for a noisy one
BLIND_FLOOR = 1e-4  # where nobody has a row to spare: differences alone could explain everything


@dataclass(frozen=True)
class Noise:
    """Prior of the users' noise variances; ``nu`` infinite means that all are equal."""

    nu: float
    s0: float
    dof: float  # degrees of freedom behind s0

    @property
    def common(self) -> bool:
        return isinf(self.nu)

    def log_prior(self, s2: Floats) -> float:
        """sum_i log p(log s2_i), up to a constant; zero for common noise."""
        if self.common:
            return 0.0
        return float(-0.5 * self.nu * (np.log(s2 / self.s0) + self.s0 / s2).sum())


def short_of_rows(q: Quadratics) -> Bools:
    """Users whose noise is told by pure error alone, (n_users,): by no distance from a center."""
    return np.asarray(q.rows <= SHORT)


def are_noisy(q: Quadratics, usual: float) -> Bools:
    """Whose residuals tell of noise, (n_users,)? ``usual`` is about the variance of others."""
    return np.asarray((q.dof > 0) & (q.pure > NOTHING * usual * q.dof))


def pure_noise(q: Quadratics) -> tuple[Noise, Floats]:
    """The noise prior, and every user's variance to start from; see :func:`_largest`.

    Where noise is not known to be equal and the median user has five rows or fewer, with one to
    spare at most, pure error is what a level of its own leaves beside everybody's slopes: its own
    slopes would leave next to nothing.
    """
    noise, s2 = _largest(q)
    spare = np.median(q.dof)
    told = spare > 1 or (noise.common and spare > 0)
    if told or not (q.level and q.noisy) or np.median(q.rows) > SHORT:
        return noise, s2
    left = np.maximum(q.uu - q.b[:, 0] ** 2 / np.maximum(q.rows, 1e-300), 0.0)
    return _largest(replace(q, pure=left, dof=np.maximum(q.rows - 1, 0.0)))


def _largest(q: Quadratics) -> tuple[Noise, Floats]:
    """The noise prior of largest likelihood over nu, and every user's variance to start from.

    Given s2_i the pure error is s2_i chi-squared(f_i), so that, up to a constant,

        log p = nu/2 log(nu s0) - (nu + f)/2 log(nu s0 + pure) + log G((nu + f)/2) - log G(nu/2).

    A finite nu must earn log n_users: one number more. Users who are fitted exactly do not count.
    """
    n = len(q)
    if not q.noisy:
        return Noise(np.inf, q.dispersion, np.inf), np.full(n, q.dispersion)
    all_dof, spare = float(q.dof.sum()), q.dof > 0
    if q.pure[spare].sum() <= FLOOR * all_dof:  # one row each, or rows that repeat: only rounding
        return Noise(np.inf, 0.5, all_dof), np.full(n, 0.5)
    each = q.pure[spare] / q.dof[spare]
    # By the median user who is not fitted exactly: one mistyped target is not what is usual.
    seen = are_noisy(q, float(np.median(each[each > FLOOR])) if (each > FLOOR).any() else 0.0)
    f, pure = q.dof[seen], q.pure[seen]
    common = pure.sum() / f.sum()
    nu = GRID[:, None]
    s0 = np.full((len(GRID), 1), common)
    for _ in range(100):  # Newton's steps to mean E[1 / s2_i] = 1 / s0, of EM where these fail
        size = nu * s0 + pure
        mean, slope = ((nu + f) / size).mean(axis=1), ((nu + f) * pure / size**2).mean(axis=1)
        step = s0 + ((1 - s0[:, 0] * mean) / np.maximum(slope, 1e-300))[:, None]
        new = np.where(step > 0, step, 1 / mean[:, None])
        done = np.all(np.abs(new - s0) <= 1e-12 * s0)
        s0 = np.maximum(new, FLOOR)
        if done:
            break
    fits = nu / 2 * np.log(nu * s0) - (nu + f) / 2 * np.log(nu * s0 + pure)
    fits = (fits + gammaln((nu + f) / 2) - gammaln(nu / 2)).sum(axis=1)
    base = float((-f / 2 * np.log(2 * common)).sum() - pure.sum() / (2 * common))
    best = int(np.argmax(fits))
    if 2 * (fits[best] - base) <= np.log(n):
        return Noise(np.inf, common, float(f.sum())), np.full(n, common)
    nu_, s0_ = CAUTION * float(GRID[best]), float(s0[best, 0])
    return Noise(nu_, s0_, float(f.sum())), (nu_ * s0_ + q.pure) / (nu_ + q.dof)
