"""What each user's rows say alone, a model and its noise, and what a group's say together."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from odcl._typing import Array, Bools, Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.exchange.upload import Uploads
from odcl.risk.losses import Huber
from odcl.risk.risk import MIDDLE_WIDTH, Risk
from odcl.server.columns import gaussian_columns
from odcl.server.models import average_by_cluster

if TYPE_CHECKING:
    from odcl.mixed.posterior import Mixture


_CHUNK = 1024  # users whose curvature is turned around at one time
SINGULAR = 1e-10  # least eigenvalue, at unit diagonal, of rows that leave a direction unseen


@dataclass(frozen=True, eq=False)
class OwnModels:
    """The users' own models, with curvature and noise: cov(theta_i) = phi_i H_i^-1."""

    terms: Uploads  # what the users sent
    own: Ints  # (dim,), the numbers of a model that are each user's own: all but those they share
    theta: Floats  # (n_users, dim)
    curvature: Floats  # (n_users, dim, dim), n_i times the Hessian of the penalised risk at theta
    dispersion: Floats  # (n_users,), phi_i; infinite where a user cannot tell: too few rows

    @property
    def users(self) -> Array:
        return self.terms.users

    @property
    def n_users(self) -> int:
        return len(self.theta)

    @property
    def dim(self) -> int:
        return int(self.theta.shape[1])

    @property
    def n_samples(self) -> Floats:
        return self.terms.n_samples

    @property
    def penalty(self) -> Floats:
        """Diagonal of the penalty's Hessian, (dim,)."""
        return self.terms.penalty[self.own]

    @property
    def risk(self) -> Risk:
        assert self.terms.risk is not None
        return self.terms.risk

    @cached_property
    def told(self) -> Bools:
        """Users whose rows say anything, (n_users,)."""
        return np.any(np.diagonal(self.curvature, axis1=1, axis2=2) != 0, axis=1)

    @property
    def knows_noise(self) -> Bools:
        """Users who can tell their noise, (n_users,)."""
        return np.isfinite(self.dispersion)


def has_own_models(uploads: Uploads) -> bool:
    """Do the data terms hold the users' own models?"""
    return uploads.factor is not None or uploads.gaussian_curvature is not None


def own_models(uploads: Uploads, mixture: Mixture | None = None) -> OwnModels:
    """Models, curvature and dispersion of users who sent data terms.

    Squared loss: with the users' means and factors of [X y] the curvature is X'X + n P, and the
    model and what the target scatters around it are known exactly. Other losses: as the
    Gaussian term has them.
    Coefficients that all users of a ``mixture`` share are no user's to find: models are beside
    them, and without them.
    """
    risk = uploads.risk
    assert risk is not None
    n, dim = uploads.n_samples, uploads.dim
    phi = np.ones(len(n))
    shared = shared_coefficients(mixture, risk, dim)
    own = np.flatnonzero(np.isnan(shared))
    held = np.nan_to_num(shared)
    if uploads.factor is not None:
        root, target = squared_term(uploads)
        if len(own) < dim:
            root, target = root[:, :, own], target - root @ held
        H, b = root.transpose(0, 2, 1) @ root, root.transpose(0, 2, 1) @ target[..., None]
    else:
        from odcl.mixed.layout import from_own_units, gaussian_coordinates, gaussian_map

        assert uploads.gaussian_curvature is not None
        assert uploads.gaussian_slope is not None
        p = dim // risk.n_outputs - risk.intercept
        columns = gaussian_columns(uploads)
        table = gaussian_coordinates(np.zeros(p), np.ones(p), risk)
        P = from_own_units(columns.mean[:, :p], columns.sd[:, :p], table, risk.n_outputs)
        # A term's numbers to those of a model: no more than a turn.
        P = np.linalg.inv(gaussian_map(p, risk.intercept, getattr(risk.loss, "basis", None))).T @ P
        H = P @ uploads.gaussian_curvature[:, MIDDLE_WIDTH] @ P.transpose(0, 2, 1)
        b = P @ uploads.gaussian_slope[:, MIDDLE_WIDTH, :, None]
        if len(own) < dim:
            H, b = H[:, own[:, None], own], (b - H @ held[:, None])[:, own]
    scale = 1 / np.sqrt(np.maximum(np.diagonal(H, axis1=1, axis2=2), 1e-300))
    least = np.linalg.eigvalsh(H * scale[:, :, None] * scale[:, None])[:, 0]
    H = H + n[:, None, None] * np.diag(uploads.penalty[own])
    theta = solve_symmetric(H, b[..., 0])
    if uploads.factor is not None:
        rest = target - (root @ theta[..., None])[..., 0]
        phi = (rest**2).sum(axis=1) / np.maximum(n - len(own), 1.0)
    if isinstance(risk.loss, Huber):  # few rows with outliers among them: their noise is not known
        phi[phi > (2 * risk.loss.delta) ** 2] = np.inf
    phi[(n <= len(own)) | (least < SINGULAR)] = np.inf
    return OwnModels(uploads, own, theta, H, phi)


def in_common_units(uploads: Uploads, mixture: Mixture) -> tuple[Uploads, Mixture]:
    """Both as if the table had been standardized by what all users' columns are like.

    Distances between models then depend on no column's unit, and its origin costs no digits.
    Categories stay as they are.
    """
    at, risk = mixture.coordinates, uploads.risk
    assert risk is not None
    levels = [j for factor in risk.factors for j in factor.columns]
    own = ~np.isin(at.kept, levels) & (at.kept < at.n_features)
    shift, scale = np.where(own, at.shift, 0.0), np.where(own, at.scale, 1.0)
    n = at.n_features + (1 if uploads.factor is not None else len(risk.factors))
    zero, unit = np.zeros(n), np.ones(n)  # of the columns as they are sent
    zero[at.kept[own]], unit[at.kept[own]] = at.shift[own], at.scale[own]
    told: dict[str, Any] = {}
    for name in ("means", "factor", "gaussian_means", "gaussian_sds"):
        values = getattr(uploads, name)
        if values is not None:
            told[name] = (values - zero if name.endswith("means") else values) / unit
    at = replace(at, shift=(at.shift - shift) / scale, scale=at.scale / scale)
    return replace(uploads, **told), replace(mixture, coordinates=at)


def shared_coefficients(mixture: Mixture | None, risk: Risk, dim: int) -> Floats:
    """What the numbers of a model are that all users share, (dim,); NaN: each has its own."""
    from odcl.mixed.layout import model_map

    own = np.full(dim, np.nan)
    if mixture is None:
        return own
    at, every = mixture.coordinates, np.arange(mixture.coordinates.n_features)
    fixed = ~mixture.spread.may[int(at.intercept) : int(at.intercept) + len(at.kept)]
    columns = at.kept[fixed]
    shared = np.isin(every, columns) | ~np.isin(every, at.kept)
    for curve in risk.curves if len(mixture.centers) == 1 else ():
        shared[list(curve.columns)] = True  # a user's rows are few for a curve of its own
    for f, factor in enumerate(risk.factors):
        some = list(factor.columns)
        shared[some] = np.isin(some, columns) | (at.n_features + f in columns)
    offset, change = model_map(mixture, risk)
    held = np.repeat(np.append(shared, [False] * at.intercept), risk.n_outputs).astype(np.bool_)
    return np.where(held, offset + change @ mixture.centers[0], own)


def squared_term(uploads: Uploads) -> tuple[Floats, Floats]:
    """A few rows (root, target) that say of a model what the user's rows do, for squared loss."""
    assert uploads.risk is not None
    assert uploads.means is not None
    assert uploads.factor is not None
    R, n = uploads.factor, np.sqrt(uploads.seen)[:, None]
    root = np.concatenate([(n * uploads.means)[:, None, :-1], R[:, :, :-1]], axis=1)
    target = np.concatenate([n * uploads.means[:, -1:], R[:, :, -1]], axis=1)
    if uploads.risk.intercept:
        ones = np.zeros((*root.shape[:2], 1))
        ones[:, 0] = n
        root = np.concatenate([root, ones], axis=2)
    return root, target


def pooled_dispersion(users: OwnModels) -> Floats | None:
    """Each user's noise scale, drawn towards the federation's as far as the data say, (n_users,).

    A user's own phi_i rests on n_i - dim degrees of freedom and is noisy. Empirical Bayes
    (inverse-gamma prior, moments of log phi_i) measures how much users really differ in it: not
    at all gives the pooled value to everybody. Users who cannot tell get the prior's scale.
    None where nobody can tell.
    """
    return pooled_scales(users.dispersion, users.n_samples, users.dim, users.risk)


def pooled_scales(phi: Floats, n: Floats, dim: int, risk: Risk) -> Floats | None:
    """The same from noise scales and numbers of rows, (n_users,) each."""
    if not risk.loss.has_dispersion:
        return np.ones(len(phi))
    known = np.isfinite(phi) & (phi > 0)
    if not known.any():
        return None
    dof = np.where(known, np.maximum(n - dim, 1.0), 0.0)
    scale, prior_dof = noise_prior(phi[known], dof[known])
    if np.isinf(prior_dof):
        return np.full(len(phi), scale)
    return (prior_dof * scale + dof * np.where(known, phi, 0.0)) / (prior_dof + dof)


def noise_prior(phi: Floats, dof: Floats) -> tuple[float, float]:
    """A typical noise scale, and the degrees of freedom that it is worth beside a user's own.

    Inverse-gamma prior by moments of log phi_i; where users do not differ in it, the pooled scale
    and infinity.
    """
    sizes, which = np.unique(dof, return_inverse=True)  # few: special functions are slow
    half = 0.5 * sizes
    offset = np.log(phi) + (np.log(half) - digamma(half))[which.reshape(-1)]
    excess = 0.0
    if len(phi) > 2:
        expected = float(np.bincount(which.reshape(-1)) @ polygamma(1, half)) / len(offset)
        excess = float(np.var(offset, ddof=1)) - expected
    if excess <= 0:
        return float((dof * phi).sum() / dof.sum()), np.inf
    prior_dof = 2.0 * _inverse_trigamma(excess)
    scale = float(np.exp(offset.mean() + digamma(prior_dof / 2) - np.log(prior_dof / 2)))
    return scale, prior_dof


def _inverse_trigamma(y: float) -> float:
    """x with trigamma(x) = y, which lies between 1 / x and 1 / x + 1 / x^2."""
    ends = 1 / y, (1 + np.sqrt(1 + 4 * y)) / (2 * y)
    return float(brentq(lambda x: polygamma(1, x) - y, *ends, rtol=1e-14))


def covariances(users: OwnModels, phi: Floats | None) -> Floats | None:
    """cov(theta_i) = phi_i H_i^-1, (n_users, dim, dim); NaN-free, infinite where not known.

    ``phi`` is the :func:`pooled_dispersion`.
    """
    if phi is None:
        return None
    H, known = users.curvature, users.knows_noise & users.told
    cov = np.full(H.shape, np.inf)
    some = np.flatnonzero(known)
    for part in np.array_split(some, len(some) // _CHUNK + 1):  # in pieces that a cache holds
        cov[part] = np.linalg.inv(H[part]) * phi[part, None, None]
    return cov


def solve_symmetric(A: Floats, b: Floats) -> Floats:
    """A^-1 b for a stack of positive semi-definite A; minimum norm where A is singular.

    Brought to unit diagonal first, so that features in other units are not taken for missing.
    """
    diagonal = np.diagonal(A, axis1=1, axis2=2)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(A * scale[:, :, None] * scale[:, None, :])
    keep = values > A.shape[1] * 1e-13 * values[:, -1:]
    inverse = np.where(keep, 1.0 / np.where(keep, values, 1.0), 0.0)
    along = np.matmul(vectors.transpose(0, 2, 1), (scale * b)[..., None]) * inverse[..., None]
    return scale * np.matmul(vectors, along)[..., 0]


# -- the models of pooled rows ---------------------------------------------------------------------


def pooled_models(users: OwnModels, labels: Ints) -> tuple[Floats, Floats]:
    """The models of each group's pooled rows, (n_clusters, dim), and (n_users, dim) without a user.

    They are the stationary points of the sums of the users' quadratic models, the penalty
    P = diag(l2) counted once per group. With A_i = H_i - n_i P the curvature of user i's data term
    at its own theta_i,

        (sum_i A_i + n-bar P) c = sum_i (W_i + n_i P) theta_i

    W_i = A_i where curvature does not depend on the model: for squared loss c is then exactly the
    group's pooled ridge regression (n-bar is the group's mean n_i). Elsewhere a user's gradient at
    c is an integral of its curvature from theta_i to c, and W_i is the trapezoid rule for it: the
    mean of A_i, at one end, and of n_i times the group's average curvature, for the other. This
    takes off the bias that A_i and theta_i share their noise (logistic users with large models are
    the flat ones). A user alone in its group is left its own model.
    """
    n, own = users.n_samples, _Sums.of_users(users)
    total = own.by_cluster(labels)
    means, blend = average_by_cluster(users.theta, labels, n), users.risk.loss.curvature_varies
    silent = (total.members == 0)[:, None]
    centers = np.where(silent, means, total.solve(users.penalty, blend))
    share = (n / sum_by_cluster(n, labels)[labels])[:, None]
    alone = share >= 1.0
    rest = (means[labels] - share * users.theta) / np.where(alone, 1.0, 1.0 - share)
    without = np.where(alone, users.theta, rest)
    able = np.flatnonzero(total.members[labels] - own.members > 0)  # somebody else tells
    for part in np.array_split(able, max(1, len(able) // 4096)):
        without[part] = total.minus(own, labels[part], part).solve(users.penalty, blend)
    return centers, without


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over a set of users; one row per user or cluster.

    The users' own rows hold H_i itself, not A_i = H_i - n_i P: for a million users that copy
    would be the largest thing in memory. P is taken off the sums.
    """

    members: Floats  # whose rows say anything
    n: Floats
    H: Floats  # (., dim, dim)
    H_theta: Floats  # (., dim)
    n_theta: Floats  # (., dim)

    @classmethod
    def of_users(cls, users: OwnModels) -> _Sums:
        H, theta, told = users.curvature, users.theta, users.told.astype(float)
        n = users.n_samples * told
        return cls(told, n, H, np.matmul(H, theta[..., None])[..., 0], n[:, None] * theta)

    def by_cluster(self, labels: Ints) -> _Sums:
        return _Sums(*(sum_by_cluster(getattr(self, f.name), labels) for f in fields(self)))

    def minus(self, users: _Sums, clusters: Ints, part: Ints) -> _Sums:
        return _Sums(
            *(getattr(self, f.name)[clusters] - getattr(users, f.name)[part] for f in fields(self))
        )

    def solve(self, pen: Floats, blend: bool) -> Floats:
        """The stationary point, (., dim)."""
        n = np.maximum(self.n, 1e-300)[:, None]
        counted, once = pen * n, pen * n / np.maximum(self.members, 1.0)[:, None]
        right = self.H_theta
        A = self.H - counted[:, :, None] * np.eye(len(pen))
        if blend:
            average = np.matmul(A, (self.n_theta / n)[..., None])[..., 0]
            right = 0.5 * (right + pen * self.n_theta + average)
        return solve_symmetric(A + once[:, :, None] * np.eye(len(pen)), right)
