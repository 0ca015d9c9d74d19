"""The user's last step: from the mixture and its own data term to its model.

Everything is a function of (own term, mixture), so a new user takes the same step; a user
without rows gets the mixture's mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtr

from odcl._typing import Floats, Ints
from odcl.mixed.em import MixtureFit
from odcl.mixed.layout import Coordinates
from odcl.mixed.mixture import (
    CAUTION,
    SHORT,
    Centers,
    Noise,
    Quadratics,
    Spread,
    by_row,
    misfits,
    moments,
)
from odcl.mixed.streaming_em import Parameters, own_noise, scores

# A user whose noise is so many times the usual has its own, if a law of users' noise draws as much
# with less than this probability.
BEYOND, UNLIKELY = 100.0, 1e-6
# The weight of groups of users whose features lie apart: only such users are drawn there.
APART = 1e-6


@dataclass(frozen=True, eq=False)
class Mixture:
    """What every user receives: the mixture, in the coordinates it was fitted in."""

    coordinates: Coordinates
    weights: Floats  # (K,)
    centers: Floats  # (K, dim), relative to the coordinates' reference
    covariances: Floats  # (K, dim, dim), of the centers
    spread: Spread
    scales: Floats  # (J,), multiples of the spread
    shares: Floats  # (J,), their probabilities
    noise: Noise
    # (2, J), variances of every coefficient by which users may lie further out than the groups say,
    # zero first, and how likely each is, where groups were found through noise (private uploads);
    # None: they do not.
    beyond: Floats | None = None

    @property
    def parameters(self) -> Parameters:
        """Without the coordinates, and everybody at the spread itself."""
        return Parameters(self.weights, self.centers, self.covariances, self.spread, self.noise)

    @property
    def inside(self) -> Floats:
        """Covariance of the users of a group, (dim, dim): the spread at its mean scale."""
        return self.spread.matrix * float(self.scales @ self.shares)

    def heights(self, own: bool) -> Floats:
        """R of each open curve, with its t for a user's ``own`` curve: rough c^2 on average.

        That is what R is estimated by, in the coordinates' units of the target.
        """
        bends, V = self.coordinates.bends, self.covariances + own * self.inside
        if bends is None:
            return np.zeros(0)
        c, V = self.weights @ self.centers, np.tensordot(self.weights, V, 1)
        second = bends.rough * (c**2 + np.diag(V))
        return np.array([second[bends.of == curve].mean() for curve in bends.curves])

    def take(self, groups: Ints) -> Mixture:
        """The mixture with its groups in another order."""
        at = self.parameters.take(groups)
        return replace(self, weights=at.weights, centers=at.centers, covariances=at.covariances)

    @property
    def n_numbers(self) -> int:
        """Numbers that a user receives: matrices as triangles, and which columns are in use."""
        K, dim = self.centers.shape
        at, triangle = self.coordinates, dim * (dim + 1) // 2
        columns = 3 * len(at.kept) + len(at.reference) + 2
        return K * (1 + dim + triangle) + triangle + 2 * len(self.scales) + 3 + columns


def mixture_of(fit: MixtureFit, coordinates: Coordinates) -> Mixture:
    """The parts of ``fit`` that users need; nothing in it names a user. Matrices are symmetric."""
    C, T = fit.covariances, fit.spread.matrix
    return Mixture(
        coordinates,
        fit.weights,
        fit.centers,
        (C + C.transpose(0, 2, 1)) / 2,
        replace(fit.spread, matrix=(T + T.T) / 2),
        fit.scales,
        fit.shares,
        fit.noise,
    )


@dataclass(frozen=True, eq=False)
class Posterior:
    """The models of a batch of users given their rows: mixtures of Gaussians.

    A component is a scale j of the spread and a group k. Given both, theta_i is Gaussian with mean
    c_k + T z_ik and covariance V + J C_k J', where T is scaled, z_ik = w - W c_k, V = T - T W T and
    J = I - T W: the last part is what the center is not known to.
    """

    mixture: Mixture
    shares: Floats  # (n_users, J, K), probabilities of the components
    theta: Floats  # (n_users, J, K, dim)
    V: Floats  # (n_users, J, dim, dim)
    J: Floats  # (n_users, J, dim, dim)
    s2: Floats  # (n_users,)
    dof: Floats  # (n_users,), degrees of freedom behind s2

    @property
    def responsibilities(self) -> Floats:
        """The probability of each group, (n_users, K)."""
        return self.shares.sum(axis=1)

    def mean(self) -> Floats:
        """The posterior mean of every user's model, (n_users, dim)."""
        return (self.shares[..., None] * self.theta).sum(axis=(1, 2))

    def covariance(self) -> Floats:
        """Its covariance, over groups, users' differences and centers, (n_users, dim, dim)."""
        n, J, K, dim = self.theta.shape
        flat = self.mixture.covariances.reshape(K, -1)
        away = (self.theta - self.mean()[:, None, None]).reshape(n, J * K, dim)
        weighed = self.shares.reshape(n, J * K, 1) * away
        total: Floats = weighed.transpose(0, 2, 1) @ away
        for j in range(J):
            through, r = self.J[:, j], self.shares[:, j]
            C = by_row(r, flat).reshape(n, dim, dim)
            if self.mixture.spread.matrix.any():  # else V is zero, and J the identity
                C = through @ C @ through.transpose(0, 2, 1)
                C = C + r.sum(axis=1)[:, None, None] * self.V[:, j]
            total = total + C
        return total


def posterior(q: Quadratics, mixture: Mixture) -> Posterior:
    """The last step of every user of ``q``, whose quadratics are in the mixture's coordinates."""
    c, noise = mixture.centers, mixture.noise
    stack = Centers.of(c, mixture.covariances)
    s2 = own_noise(q, mixture.parameters)
    logits, theta, V, J = [], [], [], []
    none = np.broadcast_to(np.zeros(()), q.A.shape), np.broadcast_to(np.eye(q.dim), q.A.shape)
    for scale, share in zip(mixture.scales, mixture.shares, strict=True):
        T = scale * mixture.spread.matrix
        m = moments(q, replace(mixture.spread, matrix=T), s2)
        with np.errstate(divide="ignore"):
            logits.append(np.log(share * mixture.weights) - 0.5 * misfits(m, stack, by_row)[0])
        if not T.any():
            theta.append(np.tile(c, (len(q), 1, 1)))
            V.append(none[0])
            J.append(none[1])
            continue
        theta.append(c + scores(m, c) @ T)
        TW = T @ m.W
        V.append(T - (TW @ T + (TW @ T).transpose(0, 2, 1)) / 2)
        J.append(np.eye(q.dim) - TW)
    r = np.stack(logits, axis=1)
    r = np.exp(r - r.max(axis=(1, 2), keepdims=True))
    r /= r.sum(axis=(1, 2), keepdims=True)
    dof = np.full(len(q), noise.dof) if noise.common else noise.nu / CAUTION + q.dof
    return Posterior(mixture, r, np.stack(theta, 1), _stacked(V), _stacked(J), s2, dof)


def with_noise_beyond(q: Quadratics, found: Posterior) -> Posterior:
    """With their own noise around their models for users whose noise others' law hardly draws.

    A target in another unit: groups and models stay, and intervals are as wide as its residuals.
    """
    noise = found.mixture.noise
    beyond = (q.dof > SHORT) & (q.pure > BEYOND * noise.s0 * q.dof)
    if not q.noisy or (not noise.common and chdtr(noise.nu, noise.nu / BEYOND) >= UNLIKELY):
        return found
    theta = found.mean()
    pull = (q.A @ theta[..., None])[..., 0]
    left = q.uu + ((pull - 2 * q.b) * theta).sum(axis=1)
    own = np.maximum(left, q.pure) / np.maximum(q.dof, 1.0)
    return replace(found, s2=np.where(beyond, own, found.s2))


def _stacked(parts: list[Floats]) -> Floats:
    """Along a second axis; one alone without a copy."""
    return parts[0][:, None] if len(parts) == 1 else np.stack(parts, 1)
