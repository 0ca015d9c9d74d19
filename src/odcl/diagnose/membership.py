"""Where each user belongs, how surely, and whether it would with other rows too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import chdtrc, ndtr
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from odcl._typing import Floats, Ints
from odcl.clustering.labels import nearest_center
from odcl.diagnose.noise import Differ, GroupModels, Noise, spread_matrix

NEAREST = 6  # groups that a user is compared with, besides its own
PART = 4096  # users looked at together


@dataclass(frozen=True, eq=False)
class Membership:
    """How surely each user is in the right group; NaN for users of unknown noise."""

    elsewhere: Floats  # (n_users,), probability of belonging to another of the groups
    rival: Ints  # (n_users,), the likeliest other group; -1 where there is none
    distance: Floats  # (n_users,), to the own group without it, in noise units; about 1
    tail: Floats  # (n_users,), probability that a member is so far


def membership(
    theta: Floats, labels: Ints, noise: Noise, groups: GroupModels, differ: Differ
) -> Membership:
    """Posterior probabilities of the groups.

        log r_ik = log |C_k| - 1/2 log det S_ik - 1/2 (theta_i - c_k)' S_ik^-1 (theta_i - c_k)

    S_ik = C_i + T + V_k, with V_k the covariance of the group's model. The own group is seen
    without the user itself: with it, everybody would look at home. A user alone in its group is
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
        square, log_det = some.whiten(models - groups.others[rows], seen, differ)
        at_home = np.log(np.maximum(sizes[own] - 1.0, 1e-300)) - 0.5 * (log_det + square)
        answer.distance[rows] = np.where(alone, 0.0, np.sqrt(square / dim))
        answer.tail[rows] = np.where(alone, 1.0, chdtrc(dim, square))
        if len(sizes) == 1 or len(rows) == 0:
            continue
        rivals = _rivals(models, own, some, groups, differ)
        joint, tails = np.zeros(rivals.shape), np.zeros(rivals.shape)
        for j, k in enumerate(rivals.T):
            square, log_det = some.whiten(models - groups.models[k], groups.covariance[k], differ)
            joint[:, j] = np.log(sizes[k]) - 0.5 * (log_det + square)
            tails[:, j] = chdtrc(dim, square)
        top = np.maximum(joint.max(axis=1), at_home)
        others = np.exp(joint - top[:, None]).sum(axis=1)
        chance = others / (others + np.exp(at_home - top))
        answer.elsewhere[rows] = np.where(alone, tails.max(axis=1), chance)
        answer.rival[rows] = rivals[np.arange(len(rows)), joint.argmax(axis=1)]
    return answer


def _rivals(theta: Floats, own: Ints, noise: Noise, groups: GroupModels, differ: Differ) -> Ints:
    """The few groups nearest to each user besides its own, in units of its noise."""
    unit = _unit(noise, theta.shape[1], differ)
    z, c = theta @ unit, groups.models @ unit
    squared = cdist(z, c, "sqeuclidean")
    squared[np.arange(len(own)), own] = np.inf
    few = min(NEAREST, len(c) - 1)
    return np.asarray(np.argpartition(squared, few - 1, axis=1)[:, :few])


def _unit(noise: Noise, dim: int, differ: Differ) -> Floats:
    """R with R R' the inverse of the average noise: rows times R have it as their unit."""
    return np.linalg.cholesky(np.linalg.inv(noise.mean(dim) + spread_matrix(differ, dim)))


def expected_wrong(
    noise: Noise, labels: Ints, groups: GroupModels, differ: Differ, shrink: float
) -> float:
    """Expected number of users put into a wrong group with ``shrink`` times their noise.

    Before their rows are seen: sum over other groups l of Phi(-delta / 2), delta the distance
    between the two groups' models in units of (shrink C_i + T).
    """
    rows = np.flatnonzero(noise.known)
    less = Noise(shrink * noise.covariance[rows], noise.source)
    home = groups.models[labels[rows]]
    chance = np.zeros(len(rows))
    for k in _rivals(home, labels[rows], less, groups, differ).T:
        chance += ndtr(-0.5 * np.sqrt(less.whiten(home - groups.models[k], 0.0, differ)[0]))
    return float(np.minimum(chance, 1.0).sum())


@dataclass(frozen=True)
class Stability:
    """What became of the groups in federations drawn from the fitted one."""

    kept: float  # share of users that keep their group, mean over resamples
    same: float  # share of resamples in which every user does
    resamples: int


def stability(
    means: Floats,
    centers: Floats,
    labels: Ints,
    noise: Noise,
    differ: Differ,
    *,
    resamples: int,
    seed: int,
) -> Stability:
    """Would the same users come together again, had they other rows?

        theta_i ~ N(mean_i, C_i + T)

    is drawn and clustered ``resamples`` times. ``means`` (n_users, dim) are the best guess of the
    users' optima: the models of the groups that their noise shows. K-means from ``centers``, the
    judged groups' models, in units of the average noise, so that these are estimated anew. Users
    who do not know their noise are left out.
    """
    k, dim = centers.shape
    if k == 1:
        return Stability(1.0, 1.0, resamples)
    rows = np.flatnonzero(noise.known)
    unit = _unit(noise, dim, differ)
    C = noise.covariance[rows]
    roots = np.linalg.cholesky(C + spread_matrix(differ, C.shape[1]))
    rng = np.random.default_rng(seed)
    kept = np.zeros(resamples)
    with threadpool_limits(1):
        for i in range(resamples):
            e = rng.standard_normal((len(rows), C.shape[1], dim // C.shape[1]))
            points = (means[rows] + (roots @ e).reshape(len(rows), dim)) @ unit
            run = KMeans(k, init=centers @ unit, n_init=1, max_iter=20).fit(points)
            kept[i] = np.mean(nearest_center(points, run.cluster_centers_) == labels[rows])
    return Stability(float(kept.mean()), float(np.mean(kept == 1.0)), resamples)
