"""Where each user belongs: probabilities of the groups, users at a border, users of no group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, ndtr

from odcl._typing import Floats, Ints
from odcl.diagnose.noise import Centers, Noise, in_noise_units

NEAREST = 6  # groups that a user is compared with, besides its own
PART = 4096  # users looked at together


@dataclass(frozen=True, eq=False)
class Places:
    """How surely each user stands where it was put; NaN for users of unknown noise."""

    elsewhere: Floats  # (n_users,), probability of belonging to another of the groups
    rival: Ints  # (n_users,), the likeliest other group; -1 where there is none
    distance: Floats  # (n_users,), to the own group without it, in noise units; about 1
    tail: Floats  # (n_users,), probability that a member is so far


def places(theta: Floats, labels: Ints, noise: Noise, centers: Centers, tau2: float) -> Places:
    """Posterior probabilities of the groups.

        log r_ik = log |C_k| - 1/2 log det S_ik - 1/2 (theta_i - c_k)' S_ik^-1 (theta_i - c_k)

    S_ik = C_i + tau2 I + V_k, with V_k the covariance of the group's model. The own group is seen
    without the user itself: with it, everybody would look at home. A user alone in its group is
    compared with the other groups only: ``elsewhere`` is the chance that a member of the nearest
    one is as far from it.
    """
    m, k = len(theta), len(centers.models)
    answer = Places(np.full(m, np.nan), np.full(m, -1), np.full(m, np.nan), np.full(m, np.nan))
    able = np.flatnonzero(noise.known)
    for start in range(0, len(able), PART):
        rows = able[start : start + PART]
        _fill(answer, rows, theta[rows], labels[rows], noise.take(rows), centers, tau2, k)
    return answer


def _fill(
    answer: Places,
    rows: Ints,
    theta: Floats,
    own: Ints,
    noise: Noise,
    centers: Centers,
    tau2: float,
    k: int,
) -> None:
    dim, sizes = theta.shape[1], centers.sizes
    alone = sizes[own] == 1
    swell = sizes[own] / np.maximum(sizes[own] - 1.0, 1.0)
    V = np.where(np.isfinite(centers.covariance), centers.covariance, 0.0)
    square, log_det = in_noise_units(
        noise, theta - centers.others[rows], V[own] * swell[:, None, None], tau2
    )
    at_home = np.log(np.maximum(sizes[own] - 1.0, 1e-300)) - 0.5 * (log_det + square)
    answer.distance[rows] = np.where(alone, 0.0, np.sqrt(square / dim))
    answer.tail[rows] = np.where(alone, 1.0, chdtrc(dim, square))
    if k == 1:
        answer.elsewhere[rows] = 0.0
        return
    rivals = _rivals(theta, own, noise, centers, tau2)
    joint = np.full((len(rows), rivals.shape[1]), -np.inf)
    tails = np.zeros(joint.shape)
    for j, group in enumerate(rivals.T):
        square, log_det = in_noise_units(noise, theta - centers.models[group], V[group], tau2)
        joint[:, j] = np.log(sizes[group]) - 0.5 * (log_det + square)
        tails[:, j] = chdtrc(dim, square)
    best = joint.argmax(axis=1)
    top = np.maximum(joint.max(axis=1), at_home)
    others = np.exp(joint - top[:, None]).sum(axis=1)
    answer.elsewhere[rows] = np.where(
        alone, tails.max(axis=1), others / (others + np.exp(at_home - top))
    )
    answer.rival[rows] = rivals[np.arange(len(rows)), best]


def _rivals(theta: Floats, own: Ints, noise: Noise, centers: Centers, tau2: float) -> Ints:
    """The few groups nearest to each user besides its own, in units of its noise."""
    k = len(centers.models)
    few = min(NEAREST, k - 1)
    W = np.linalg.inv(noise.mean(theta.shape[1]) + tau2 * np.eye(theta.shape[1]))
    root = np.linalg.cholesky(W)
    z, c = theta @ root, centers.models @ root
    squared = np.square(z).sum(axis=1)[:, None] + np.square(c).sum(axis=1) - 2 * z @ c.T
    squared[np.arange(len(own)), own] = np.inf
    return np.asarray(np.argpartition(squared, few - 1, axis=1)[:, :few])


def confusion(noise: Noise, labels: Ints, centers: Centers, tau2: float, shrink: float) -> Floats:
    """Expected chance of each user to be put into a wrong group with ``shrink`` times its noise.

    Before its rows are seen: sum over other groups l of Phi(-delta / 2), delta the distance
    between the two groups' models in units of (shrink C_i + tau2 I). (n_users,)
    """
    k = len(centers.models)
    chance = np.zeros(len(labels))
    if k == 1:
        return chance
    rows = np.flatnonzero(noise.known)
    matrices = None if noise.matrices is None else shrink * noise.matrices[rows]
    less = Noise(shrink * noise.variance[rows], matrices, noise.source)
    home = centers.models[labels[rows]]
    rivals = _rivals(home, labels[rows], less, centers, tau2)
    nothing = np.zeros((len(rows), 1, 1))
    for group in rivals.T:
        square, _ = in_noise_units(less, home - centers.models[group], nothing, tau2)
        chance[rows] += ndtr(-0.5 * np.sqrt(square))
    return np.minimum(chance, 1.0)
