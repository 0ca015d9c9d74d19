"""How noisy users' and groups' models are, and how surely users belong to their groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import chdtrc, ndtr

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.diagnose.own_models import OwnModels, covariances, pooled_dispersion

NoiseSource = Literal["curvature", "held out", "none"]  # "held out": wide users, by other users
NEAREST = 6  # other groups that a user is compared with
PART = 4096  # users processed together
LEAST_SHARE = 0.01  # of a direction's curvature that must come from the rows, not the penalty


@dataclass(frozen=True, eq=False)
class ModelNoise:
    """Estimated covariances of the local models around their own optima.

    (n_users, dim, dim), from the curvature of the users' rows; infinite for users who cannot tell.
    """

    covariance: Floats
    source: NoiseSource

    @cached_property
    def variance(self) -> Floats:
        """Mean over coordinates, (n_users,)."""
        trace = np.trace(self.covariance, axis1=1, axis2=2)
        return np.asarray(trace / self.covariance.shape[1])

    @cached_property
    def known(self) -> Bools:
        return np.isfinite(self.variance)

    def take(self, rows: Ints) -> ModelNoise:
        return ModelNoise(self.covariance[rows], self.source)

    def mean(self) -> Floats:
        """Average covariance of the users who know theirs, (dim, dim)."""
        return np.asarray(self.covariance[self.known].mean(axis=0))

    def whiten(self, delta: Floats, more: Floats | float, T: Floats) -> tuple[Floats, Floats]:
        """delta' S^-1 delta and log det S, (n_users,) each, S_i = C_i + T + more_i.

        ``delta`` is (n_users, dim), ``more`` of the covariance's shape, ``T`` (dim, dim) how users
        of a group differ.
        """
        root = np.linalg.cholesky(self.covariance + more + T)
        z = np.linalg.solve(root, delta[..., None])
        log_det = 2 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        return np.square(z).sum(axis=(1, 2)), log_det


@dataclass(frozen=True, eq=False)
class GroupModels:
    """Models of the groups' pooled rows, what each user sees of its own, and their noise."""

    models: Floats  # (n_clusters, dim)
    others: Floats  # (n_users, dim), the own group's model without the user
    covariance: Floats  # (n_clusters, dim, dim): see center_covariance
    sizes: Ints  # (n_clusters,)

    def seen_without(self, own: Ints) -> Floats:
        """Covariance of ``others`` for users of these groups: one member fewer, more noise."""
        size = self.sizes[own]
        return self.covariance[own] * (size / np.maximum(size - 1.0, 1.0))[:, None, None]


def center_covariance(
    noise: ModelNoise, labels: Ints, T: Floats, *, weights: Floats | None = None
) -> Floats:
    """Covariance of the groups' combined models, (n_clusters, dim, dim).

    Of pooled rows: P^-1 + P^-1 (sum C_i^-1 T C_i^-1) P^-1 with P = sum C_i^-1. With
    ``weights`` (n_users,) a weighted mean: sum w_i^2 (C_i + T) / (sum w_i)^2. Users of unknown
    noise take no part; a group of such has zeros.
    """
    rows = np.flatnonzero(noise.known)
    C = noise.covariance[rows]
    out = np.zeros((int(labels.max()) + 1, *C.shape[1:]))
    if len(rows) == 0:
        return out
    there, own = np.unique(labels[rows], return_inverse=True)
    if weights is not None:
        w = weights[rows, None, None]
        spread = sum_by_cluster(w**2 * (C + T), own)
        out[there] = spread / sum_by_cluster(w, own) ** 2
        return out
    precision: Floats = np.linalg.inv(C).astype(np.float64, copy=False)
    inverse = np.linalg.inv(sum_by_cluster(precision, own))
    out[there] = inverse
    if T.any():
        out[there] += inverse @ sum_by_cluster(precision @ T @ precision, own) @ inverse
    return out


def estimated_noise(users: OwnModels) -> ModelNoise:
    """The noise of the users' models, as their data terms have it."""
    covariance = covariances(users, pooled_dispersion(users))
    if covariance is None:  # no user has a model of its own
        covariance = np.full(users.curvature.shape, np.inf)
    return ModelNoise(covariance, "curvature")


def of_bare_models(n_users: int) -> tuple[ModelNoise, Membership]:
    """Of users who sent models alone nothing is known of their noise and where they belong."""
    no = np.full(n_users, np.nan)
    unknown = Membership(no, np.full(n_users, -1), no, no)
    return ModelNoise(np.full((n_users, 1, 1), np.inf), "none"), unknown


def of_wide_users(labels: Ints, sure: Floats, k: int) -> tuple[ModelNoise, Membership]:
    """Of wide users, whose models' noise is in too many directions to be told: where they belong.

    ``sure`` is the probability of the own label, (n_users,).
    """
    rival = 1 - labels if k == 2 else np.full(len(labels), -1)
    no = np.full(len(labels), np.nan)
    noise = ModelNoise(np.full((len(labels), 1, 1), np.inf), "held out")
    return noise, Membership(1 - sure, rival, no, no)


def without_penalty(users: OwnModels, noise: ModelNoise) -> tuple[Floats, ModelNoise]:
    """What the users' rows alone say: models (n_users, dim) and noise, the penalty P taken off.

        A_i = H_i - n_i P,   theta_i -> A_i^-1 H_i theta_i,   C_i -> phi_i A_i^-1

    Groups' models count the penalty once; a user's own model is drawn to zero by all of it, and
    would look out of place. Users whose rows leave A_i nearly singular keep the model they have.
    """
    if not users.penalty.any():
        return users.theta, noise
    rows = np.flatnonzero(noise.known)
    H = users.curvature[rows]
    A = H - users.n_samples[rows, None, None] * np.diag(users.penalty)
    root = np.linalg.inv(np.linalg.cholesky(H))
    able = np.linalg.eigvalsh(root @ A @ root.swapaxes(1, 2))[:, 0] > LEAST_SHARE
    rows, H, inverse = rows[able], H[able], np.linalg.inv(A[able])
    phi = np.trace(noise.covariance[rows] @ H, axis1=1, axis2=2) / users.dim
    theta, covariance = users.theta.copy(), noise.covariance.copy()
    theta[rows] = (inverse @ (H @ theta[rows, :, None]))[..., 0]
    covariance[rows] = phi[:, None, None] * 0.5 * (inverse + inverse.swapaxes(1, 2))
    return theta, ModelNoise(covariance, noise.source)


# -- where each user belongs, and how surely ------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Membership:
    """How surely each user is in the right group; NaN for users of unknown noise."""

    elsewhere: Floats  # (n_users,), probability of belonging to another of the groups
    rival: Ints  # (n_users,), the likeliest other group; -1 where there is none
    distance: Floats  # (n_users,), to the own group without it, in noise units; about 1
    tail: Floats  # (n_users,), probability that a member is so far


def membership(
    theta: Floats, labels: Ints, noise: ModelNoise, groups: GroupModels, T: Floats
) -> Membership:
    """Posterior probabilities of the groups.

        log r_ik = log |C_k| - 1/2 log det S_ik - 1/2 (theta_i - c_k)' S_ik^-1 (theta_i - c_k)

    S_ik = C_i + T + V_k, with V_k the covariance of the group's model. The own group is seen
    without the user itself, or every user would seem to belong. A user alone in its group is
    compared with the other groups only: ``elsewhere`` is the chance that a member of the nearest
    one is as far from it.
    """
    m = len(theta)
    answer = Membership(np.full(m, np.nan), np.full(m, -1), np.full(m, np.nan), np.full(m, np.nan))
    able, dim, sizes = np.flatnonzero(noise.known), theta.shape[1], groups.sizes
    answer.elsewhere[able] = 0.0
    for rows in np.split(able, range(PART, len(able), PART)):
        models, own, some = theta[rows], labels[rows], noise.take(rows)
        alone = sizes[own] == 1
        seen = groups.seen_without(own)
        square, log_det = some.whiten(models - groups.others[rows], seen, T)
        at_home = np.log(np.maximum(sizes[own] - 1.0, 1e-300)) - 0.5 * (log_det + square)
        answer.distance[rows] = np.where(alone, 0.0, np.sqrt(square / dim))
        answer.tail[rows] = np.where(alone, 1.0, chdtrc(dim, square))
        if len(sizes) == 1 or len(rows) == 0:
            continue
        rivals = _rivals(models, own, some, groups, T)
        joint, tails = np.zeros(rivals.shape), np.zeros(rivals.shape)
        for j, k in enumerate(rivals.T):
            square, log_det = some.whiten(models - groups.models[k], groups.covariance[k], T)
            joint[:, j] = np.log(sizes[k]) - 0.5 * (log_det + square)
            tails[:, j] = chdtrc(dim, square)
        top = np.maximum(joint.max(axis=1), at_home)
        others = np.exp(joint - top[:, None]).sum(axis=1)
        chance = others / (others + np.exp(at_home - top))
        answer.elsewhere[rows] = np.where(alone, tails.max(axis=1), chance)
        answer.rival[rows] = rivals[np.arange(len(rows)), joint.argmax(axis=1)]
    return answer


def _rivals(theta: Floats, own: Ints, noise: ModelNoise, groups: GroupModels, T: Floats) -> Ints:
    """The few other groups nearest to each user, in units of its noise."""
    unit = noise_unit(noise, T)
    z, c = theta @ unit, groups.models @ unit
    squared = cdist(z, c, "sqeuclidean")
    squared[np.arange(len(own)), own] = np.inf
    few = min(NEAREST, len(c) - 1)
    return np.asarray(np.argpartition(squared, few - 1, axis=1)[:, :few])


def noise_unit(noise: ModelNoise, T: Floats) -> Floats:
    """R with R R' the inverse of the average noise: rows times R have it as their unit."""
    return np.linalg.cholesky(np.linalg.inv(noise.mean() + T))


def expected_wrong(
    noise: ModelNoise, labels: Ints, groups: GroupModels, T: Floats, shrink: float
) -> float:
    """Expected number of users put into a wrong group with ``shrink`` times their noise.

    Before their rows are seen: sum over other groups l of Phi(-delta / 2), delta the distance
    between the two groups' models in units of (shrink C_i + T).
    """
    rows = np.flatnonzero(noise.known)
    less = ModelNoise(shrink * noise.covariance[rows], noise.source)
    home = groups.models[labels[rows]]
    chance = np.zeros(len(rows))
    for k in _rivals(home, labels[rows], less, groups, T).T:
        chance += ndtr(-0.5 * np.sqrt(less.whiten(home - groups.models[k], 0.0, T)[0]))
    return float(np.minimum(chance, 1.0).sum())
