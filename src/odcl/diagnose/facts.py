"""What is measured of a fitted federation before anything is concluded from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq
from scipy.spatial.distance import pdist, squareform

from odcl._typing import Floats, Ints
from odcl.diagnose.noise import Centers, Noise, center_covariance, in_noise_units
from odcl.diagnose.places import confusion
from odcl.exchange.upload import Uploads
from odcl.server.combine import average_by_cluster, combine_clusters

CONFUSED = 0.05  # expected number of users in a wrong group that a wanted n may leave
MOST_SHRINK = 1e-6  # of the noise: beyond a million times the rows nobody goes


@dataclass(frozen=True)
class Distance:
    """Smallest distance between two groups' models, the paper's D, with its uncertainty."""

    value: float  # noise of the groups' models taken off
    low: float  # 95 % interval
    high: float
    pair: tuple[int, int]
    in_noise: float  # least distance of two groups in standard deviations of a user's model
    noise_pair: tuple[int, int]  # these two: not always the pair of the smallest distance


@dataclass(frozen=True)
class Errors:
    """Expected squared error of a user's model, in units of its local model's error."""

    one: float  # one model for all
    used: float  # its group's, combined as it was
    precision: float  # its group's, precision combining
    drawn: float  # precision, and then drawn to the group's only as far as users are alike


def group_centers(uploads: Uploads, labels: Ints, noise: Noise, tau2: float) -> Centers:
    """The groups' models by precision combining, and how well they are known."""
    combined = combine_clusters(uploads, labels, "precision", others=True)
    assert combined.others is not None
    return Centers(
        combined.centers,
        combined.others,
        center_covariance(noise, labels, tau2),
        np.bincount(labels),
    )


def surplus(uploads: Uploads, theta: Floats, labels: Ints, noise: Noise, centers: Centers) -> float:
    """How sure it is that users of a group differ by more than noise, in standard deviations.

    Squared distances from the group without the user, in units of C_i and of the group's own noise,
    are chi-squared with dim degrees of freedom if users are alike. Their mean, less 1, is divided
    by its standard deviation, that of the pooled noise scale included.
    """
    size = centers.sizes[labels]
    rows = np.flatnonzero(noise.known & (size > 1))
    if len(rows) == 0:
        return 0.0
    V = np.where(np.isfinite(centers.covariance), centers.covariance, 0.0)[labels[rows]]
    swell = (size / np.maximum(size - 1.0, 1.0))[rows, None, None]
    square, _ = in_noise_units(noise.take(rows), theta[rows] - centers.others[rows], V * swell, 0.0)
    freedom = np.inf
    if uploads.has_dispersion:
        freedom = max(float((uploads.n_samples[rows] - uploads.dim).sum()), 1.0)
    spread = np.sqrt(2 / square.size / uploads.dim + 2 / freedom)
    return float((square.mean() / uploads.dim - 1) / spread)


def closest(centers: Centers, noise: Noise, tau2: float) -> Distance | None:
    """D: the smallest distance between groups' models, noise taken off, and its 95 % interval.

    d^2 = |c_k - c_l|^2 - tr V,    var(d^2) = 4 d' V d + 2 tr V^2,    V = V_k + V_l
    """
    k, dim = centers.models.shape
    if k == 1 or not noise.known.any():
        return None
    V = np.where(np.isfinite(centers.covariance), centers.covariance, 0.0)
    first, second = np.triu_indices(k, 1)
    gap = centers.models[first] - centers.models[second]
    squared = np.square(gap).sum(axis=1)
    near = np.argsort(squared)[:50]  # the smallest is among them, noise or not
    gap, pair_V = gap[near], V[first[near]] + V[second[near]]
    times = dim / pair_V.shape[1]  # a multiple of the unit matrix is kept as one number
    value = squared[near] - times * np.trace(pair_V, axis1=1, axis2=2)
    at = int(value.argmin())
    along, one = gap[at], pair_V[at]
    turned = one @ along if times == 1 else one[0, 0] * along
    spread = np.sqrt(4 * along @ turned + 2 * times * np.square(one).sum())
    S = noise.mean(dim) + tau2 * np.eye(dim)
    in_noise, pair = _nearest_in_noise(centers.models, S)
    low, high = (max(value[at] + s * 1.96 * spread, 0.0) ** 0.5 for s in (-1, 1))
    return Distance(
        float(max(value[at], 0.0) ** 0.5),
        float(low),
        float(high),
        (int(first[near[at]]), int(second[near[at]])),
        in_noise,
        pair,
    )


def _nearest_in_noise(models: Floats, S: Floats) -> tuple[float, tuple[int, int]]:
    """Least sqrt(d' S^-1 d) over pairs of groups' models: a distance in any units of features."""
    white = np.linalg.solve(np.linalg.cholesky(S), models.T).T
    squared = squareform(pdist(white, "sqeuclidean"))
    np.fill_diagonal(squared, np.inf)
    a, b = divmod(int(squared.argmin()), len(models))
    return float(np.sqrt(squared[a, b])), (min(a, b), max(a, b))


def expected_errors(
    uploads: Uploads, labels: Ints, noise: Noise, centers: Centers, tau2: float, combine: str
) -> Errors:
    """Expected squared errors, coordinates weighed by the inverse of the average noise.

    A local model then has error 1; a group's model the size of its covariance plus ``own``, that of
    tau2; one model for all its distance from the groups' models plus own. Drawing a user to its
    group leaves own / (own + 1) of its noise, and what of the group's model's error it takes over.
    """
    dim, known = uploads.dim, noise.known
    if not known.any():
        return Errors(np.nan, np.nan, np.nan, np.nan)
    W = np.linalg.inv(noise.mean(dim))
    at = labels[known]

    def size(V: Floats) -> float:
        V = np.where(np.isfinite(V), V, 0.0)
        unit = W if V.shape[1] == dim else W[:1, :1] * dim
        return float(((V * unit).sum(axis=(1, 2)) / dim)[at].mean())

    own = tau2 * float(np.trace(W)) / dim
    precision = size(centers.covariance) + own
    used = precision
    if combine in ("mean", "samples"):
        weights = np.ones(uploads.n_users) if combine == "mean" else uploads.n_samples
        used = size(center_covariance(noise, labels, tau2, weights=weights)) + own
    everybody = np.zeros_like(labels)
    gap = centers.models - average_by_cluster(centers.models[labels], everybody, uploads.n_samples)
    one = float(((gap @ W) * gap).sum(axis=1)[at].mean()) / dim + own
    kept = own / (own + 1)
    drawn = kept + (1 - kept) ** 2 * (precision - own)
    return Errors(one, used, precision, drawn)


def in_typical_noise(tau2: float, noise: Noise, dim: int) -> float:
    """tau2 in units of a typical user's noise, the median over users.

    Where coordinates have different units, so that one variance for all says little, each counts
    by its own noise: tr(S) tr(S^-1) / dim^2 of the average noise S comes on top.
    """
    known = noise.variance[noise.known]
    if tau2 == 0 or len(known) == 0:
        return 0.0
    S = noise.mean(dim)
    uneven = float(np.trace(S) * np.trace(np.linalg.inv(S))) / dim**2
    return tau2 / float(np.median(known)) * uneven


def measured_error(models: Floats, labels: Ints, centers: Centers, noise: Noise) -> float:
    """How far the models that users have are from their groups' best, in units of local error.

    Mean over users of |models_i - c_k|^2 / dim, coordinates weighed as in
    :func:`expected_errors`. The error of ``models`` is this and the error of c_k: precision
    combining is the best linear unbiased one, so that what another one adds does not correlate.
    """
    dim, known = models.shape[1], noise.known
    if not known.any():
        return 0.0
    gap = (models - centers.models[labels])[known]
    return float(((gap @ np.linalg.inv(noise.mean(dim))) * gap).sum(axis=1).mean()) / dim


def bend(uploads: Uploads, labels: Ints, centers: Centers) -> float:
    """How far the users' quadratic models are from adding up, in units of the centres' noise.

    Where curvature depends on the model, a group's model combined with each user's curvature at its
    own model and one that halves this with the group's average curvature (see
    ``server/combine``) agree if users have many rows. The squared distance between them, in the
    noise of the group's model and a coordinate, mean over users; 0 for squared loss. Logistic
    models: from about 1.5 on, rounds inside the groups halve the error and more.
    """
    if not uploads.curvature_varies or not uploads.full:
        return 0.0
    plain = combine_clusters(replace(uploads, curvature_varies=False), labels, "precision").centers
    V = centers.covariance
    able = np.isfinite(V).all(axis=(1, 2))
    if not able.any():
        return 0.0
    gap = (centers.models - plain)[able]
    square = (gap * np.linalg.solve(V[able], gap[..., None])[..., 0]).sum(axis=1) / uploads.dim
    return float(np.average(square, weights=centers.sizes[able]))


def rows_for(
    uploads: Uploads, labels: Ints, noise: Noise, centers: Centers, tau2: float
) -> int | None:
    """Rows per user at which hardly a user would be in a wrong group; None: no number helps.

    The noise shrinks like 1 / (n - dim - 1), and the wanted n leaves ``CONFUSED`` users wrong.
    Where users of a group differ so much that no n does, their difference may be groups that
    cannot be told apart yet: it is left out.
    """
    who = int(noise.known.sum())
    if len(centers.models) == 1 or who == 0:
        return None

    def excess(log_shrink: float) -> float:
        wrong = confusion(noise, labels, centers, tau2, float(np.exp(log_shrink))).sum()
        return float(np.log(wrong + 1e-12) - np.log(CONFUSED))

    n = float(np.median(uploads.n_samples[noise.known]))
    if excess(0.0) <= 0:
        return round(n)
    if excess(np.log(MOST_SHRINK)) > 0:
        return rows_for(uploads, labels, noise, centers, 0.0) if tau2 > 0 else None
    shrink = float(np.exp(brentq(excess, np.log(MOST_SHRINK), 0.0, xtol=1e-3)))
    return rows_after(n, uploads.dim, shrink)


def rows_after(n: float, dim: int, shrink: float) -> int:
    """Rows at which the noise of n rows has shrunk to ``shrink`` of itself."""
    lost = dim + 1 if n > dim + 2 else 0
    return int(np.ceil(lost + (n - lost) / shrink))
