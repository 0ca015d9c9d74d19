"""How noisy the users' own models are, and how far models lie apart in units of that noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.exchange.upload import Uploads
from odcl.server.combine import average_by_cluster
from odcl.server.dispersion import covariances, pooled_dispersion

Source = Literal["curvature", "trace", "spread"]
LEAST_SHARE = 0.01  # of a direction's curvature that must come from the rows, not the penalty


@dataclass(frozen=True, eq=False)
class Noise:
    """Estimated covariances of the local models around their own optima.

    ``matrices`` where the users sent their curvature; otherwise one variance a coordinate each,
    from the trace that they sent or from the spread inside groups (which counts real differences
    between users of a group as noise). Users who cannot tell have infinite ``variance``.
    """

    variance: Floats  # (n_users,), mean over coordinates
    matrices: Floats | None  # (n_users, dim, dim)
    source: Source

    @property
    def known(self) -> Bools:
        return np.isfinite(self.variance)

    def take(self, rows: Ints) -> Noise:
        matrices = None if self.matrices is None else self.matrices[rows]
        return Noise(self.variance[rows], matrices, self.source)

    def mean(self, dim: int) -> Floats:
        """Average covariance of the users who know theirs, (dim, dim)."""
        if self.matrices is None:
            return float(self.variance[self.known].mean()) * np.eye(dim)
        return np.asarray(self.matrices[self.known].mean(axis=0))


def estimated_noise(uploads: Uploads, labels: Ints) -> Noise:
    """The best estimate of noise that the uploads allow; ``labels`` serve where there is none."""
    phi = pooled_dispersion(uploads)
    cov = covariances(uploads, phi)
    if cov is not None:
        variance = np.trace(cov, axis1=1, axis2=2) / uploads.dim
        return Noise(np.where(np.isfinite(variance), variance, np.inf), cov, "curvature")
    if phi is not None and uploads.noise is not None:
        variance = np.where(uploads.founders, phi * uploads.noise / uploads.dim, np.inf)
        return Noise(variance, None, "trace")
    return _from_spread(uploads, labels)


def _from_spread(uploads: Uploads, labels: Ints) -> Noise:
    """One scale for all users from the spread inside groups: v_i = s / n_i.

    s = sum w_i |theta_i - c|^2 / (dim sum_k (|C_k| - 1)), with c weighted by w_i: the rows that a
    user has beyond its parameters (:func:`effective_rows`).
    """
    n = effective_rows(uploads)
    centers = average_by_cluster(uploads.theta, labels, n)
    freedom = uploads.n_users - int(labels.max()) - 1
    if freedom < 1:
        return Noise(np.full(uploads.n_users, np.inf), None, "spread")
    squares = np.square(uploads.theta - centers[labels]).sum(axis=1)
    scale = float((n * squares).sum()) / (uploads.dim * freedom)
    return Noise(np.maximum(scale / n, 1e-300), None, "spread")


def effective_rows(uploads: Uploads) -> Floats:
    """What a user's model is worth in rows, (n_users,): n_i - dim - 1, and n_i where all are alike.

    The noise of least squares on normal rows is phi / (n_i - dim - 1) a coordinate. A user with
    no more rows than that counts as having half a row too many.
    """
    n = uploads.n_samples
    return n if n.min() == n.max() else np.maximum(n - uploads.dim - 1.0, 0.5)


def guessed_noise(uploads: Uploads) -> Floats | None:
    """Traces of the users' noise, where nobody says it and users have different numbers of rows.

    All of the spread of the models is taken for noise. That is too much where there are groups,
    and the mixture, told so, fits a factor: what it takes from here are the ratios between users.
    None where users say their noise themselves, or have as many rows each.
    """
    n = uploads.n_samples
    if uploads.dispersion is not None or n.min() == n.max() or uploads.n_users < 3:
        return None
    everybody = np.zeros(uploads.n_users, dtype=np.intp)
    return uploads.dim * _from_spread(uploads, everybody).variance


def without_penalty(uploads: Uploads, noise: Noise) -> tuple[Floats, Noise]:
    """What the users' rows alone say: models (n_users, dim) and noise, the penalty P taken off.

        A_i = H_i - n_i P,   theta_i -> A_i^-1 H_i theta_i,   C_i -> phi_i A_i^-1

    Groups' models count the penalty once; a user's own model is drawn to zero by all of it, and
    would look out of place. Users whose rows leave A_i nearly singular keep the model they have.
    """
    if uploads.l2 is None or not uploads.l2.any() or noise.matrices is None:
        return uploads.theta, noise
    assert uploads.curvature is not None
    rows = np.flatnonzero(noise.known)
    H = uploads.curvature[rows]
    A = H - uploads.n_samples[rows, None, None] * np.diag(uploads.l2)
    root = np.linalg.inv(np.linalg.cholesky(H))
    share = np.linalg.eigvalsh(np.matmul(root, np.matmul(A, root.swapaxes(1, 2))))[:, 0]
    able = share > LEAST_SHARE
    rows, H, A = rows[able], H[able], A[able]
    phi = np.trace(np.matmul(noise.matrices[rows], H), axis1=1, axis2=2) / uploads.dim
    inverse = np.linalg.inv(A)
    theta, matrices, variance = uploads.theta.copy(), noise.matrices.copy(), noise.variance.copy()
    b = np.matmul(H, theta[rows, :, None])
    theta[rows] = np.matmul(inverse, b)[..., 0]
    matrices[rows] = phi[:, None, None] * 0.5 * (inverse + inverse.swapaxes(1, 2))
    variance[rows] = np.trace(matrices[rows], axis1=1, axis2=2) / uploads.dim
    return theta, Noise(variance, matrices, noise.source)


@dataclass(frozen=True, eq=False)
class Centers:
    """Groups' models, what each user sees of its own without itself, and their uncertainty."""

    models: Floats  # (n_clusters, dim)
    others: Floats  # (n_users, dim), the own group's model without the user
    covariance: Floats  # (n_clusters, dim, dim); (n_clusters, 1, 1): times the unit matrix
    sizes: Ints  # (n_clusters,)


def center_covariance(
    noise: Noise, labels: Ints, tau2: float, *, weights: Floats | None = None
) -> Floats:
    """Covariance of the groups' combined models, (n_clusters, dim, dim).

    Where the noise is one variance a user it is (n_clusters, 1, 1), times the unit matrix.

    Precision combining: P^-1 + tau2 P^-1 (sum C_i^-2) P^-1 with P = sum C_i^-1. With ``weights``
    (n_users,) a weighted mean: sum w_i^2 (C_i + tau2 I) / (sum w_i)^2. Users of unknown noise take
    no part; a group of such has infinities.
    """
    k, rows = int(labels.max()) + 1, np.flatnonzero(noise.known)
    C: Floats = noise.variance[rows, None, None]
    if noise.matrices is not None:
        C = noise.matrices[rows]
    own, eye = labels[rows], np.eye(C.shape[1])
    if len(rows) == 0:
        return np.full((k, *C.shape[1:]), np.inf)
    there = np.flatnonzero(np.bincount(own, minlength=k))
    out = np.full((k, *C.shape[1:]), np.inf)
    if weights is not None:
        w = weights[rows]
        total = np.bincount(own, w, minlength=k)[there, None, None]
        spread = _by_cluster(w[:, None, None] ** 2 * (C + tau2 * eye), own, k)
        out[there] = spread[there] / total**2
        return out
    inverse = np.asarray(np.linalg.inv(C), dtype=np.float64)
    back = np.linalg.inv(_by_cluster(inverse, own, k)[there])
    out[there] = back
    if tau2 > 0:
        squares = _by_cluster(np.matmul(inverse, inverse), own, k)[there]
        out[there] += tau2 * np.matmul(back, np.matmul(squares, back))
    return out


def _by_cluster(values: Floats, labels: Ints, k: int) -> Floats:
    """Sums over clusters 0..k-1, zeros for those that are empty."""
    total = sum_by_cluster(values, labels)
    missing = k - len(total)
    return np.concatenate([total, np.zeros((missing, *total.shape[1:]))]) if missing else total


def in_noise_units(noise: Noise, delta: Floats, more: Floats, tau2: float) -> tuple[Floats, Floats]:
    """delta' S^-1 delta and log det S, (n_users,) each, S_i = C_i + tau2 I + more_i.

    ``delta`` is (n_users, dim), ``more`` (n_users, dim, dim), or (n_users, 1, 1) where the noise is
    one variance a user and S_i a multiple of the unit matrix.
    """
    dim = delta.shape[1]
    if noise.matrices is None:
        s = noise.variance + tau2 + more[:, 0, 0]
        return np.square(delta).sum(axis=1) / s, dim * np.log(s)
    S = noise.matrices + more + tau2 * np.eye(dim)
    root = np.linalg.cholesky(S)
    z = np.linalg.solve(root, delta[..., None])[..., 0]
    log_det = 2 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return np.square(z).sum(axis=1), log_det
