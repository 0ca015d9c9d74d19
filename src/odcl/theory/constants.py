"""Constants of a learning problem (Section 2) and M of Theorem 1 (Appendix B.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcl._typing import Floats
from odcl.risk.loss import Loss
from odcl.risk.losses import Huber, Logistic, Multinomial, Poisson, Squared, as_loss
from odcl.theory import check


@dataclass(frozen=True)
class ProblemConstants:
    """What the theorems know of one cluster: losses, gradients and curvature over Theta."""

    L: float  # smoothness: the most the loss of a row bends (Assumption 3)
    mu: float  # strong convexity: the least the population loss bends, mu_F (Assumption 4)
    N: float  # bound on a row's gradient at the optimum, N_k (Assumption 6)
    G: float  # bound on the population gradient over Theta, G_F (Section 2)
    H: float  # Lipschitz constant of a row's Hessian, H_k (Assumption 5)
    F_star: float  # bound on the population loss at its optimum, F_k(theta*): the targets' noise
    R: float  # Theta lies in the ball ||theta|| <= R (Assumption 2)
    dim: int  # d, number of parameters
    sigma: float  # bound on ||stochastic - full gradient|| for steps on one row (Assumption 8)

    @property
    def kappa(self) -> float:
        """Condition number L / mu (Section 1)."""
        return self.L / self.mu

    @property
    def xi(self) -> float:
        """xi_F = G_F / mu_F of one cluster (Theorem 2 takes the largest; its remark says tau_F)."""
        return self.G / self.mu

    @property
    def gamma(self) -> float:
        """Gamma = sigma + 2 L R + N, bound on a stochastic gradient (Section 4.4)."""
        return self.sigma + 2 * self.L * self.R + self.N

    @property
    def M(self) -> float:
        """M_ik of Appendix B.1; see :func:`m_constant`."""
        return m_constant(
            L=self.L, mu=self.mu, R=self.R, N=self.N, G=self.G, F_star=self.F_star, dim=self.dim
        )


def problem_constants(
    loss: str | Loss,
    *,
    n_features: int,
    row_norm: float,
    radius: float,
    least_eigenvalue: float,
    target: float | None = None,
    noise: float | None = None,
    l2: float = 0.0,
) -> ProblemConstants:
    """Constants of Section 2 for a loss we ship, from bounds on the data and the radius R.

    Rows have ||x|| <= row_norm = B, targets |y| <= target (not asked for where they are labels),
    models ||theta|| <= radius = R, so that |x theta| <= R B, and E[x x^T] has no eigenvalue below
    ``least_eigenvalue``: no bound on the data alone gives strong convexity. With s, s', s'' the
    largest slope, curvature and change of curvature of the loss while |z| <= R B,

        L = s' B^2 + l2                        mu = (least s') least_eigenvalue + l2
        N = min(s, noise) B + l2 R             G  = min(s B + l2 R, 2 L R)
        H = s'' B^3                            F* = largest loss of theta = 0
        sigma = 2 s B

    ``noise`` is a bound on the slope at the optimum where one is known: for the squared loss on
    |y - x theta*|. G uses that the population gradient vanishes at theta* (Assumption 2). An
    intercept is a feature that is 1 in every row: count it in all four; ``l2`` penalises all.
    The Hessian of Huber's loss jumps at delta: H is infinite unless no row gets there. A number
    that is known better goes in by ``dataclasses.replace``.
    """
    loss = as_loss(loss)
    n_features = check.whole("n_features", n_features)
    check.positive(row_norm=row_norm, radius=radius)
    check.not_negative(l2=l2)
    most = row_norm**2 / n_features
    domain = f"0 <= least_eigenvalue <= row_norm^2 / n_features = {most:g}"
    why, top = "the eigenvalues of E[x x^T] sum to E||x||^2", most * (1 + 1e-12)
    check.between("least_eigenvalue", least_eigenvalue, 0, top, domain, why, closed="[]")
    row = _row_bounds(loss, radius * row_norm, target)
    L, mu = row.curve * row_norm**2 + l2, row.least_curve * least_eigenvalue + l2
    if not mu > 0:
        wanted = "" if row.least_curve == 0 else "least_eigenvalue > 0, "
        raise ValueError(
            f"The {loss.name} loss has curvature {row.least_curve:g} at least and the features "
            f"least_eigenvalue={least_eigenvalue!r}: mu = 0, and Assumption 4 wants a strongly "
            f"convex population loss. Give {wanted}l2 > 0, or a smaller radius."
        )
    if noise is not None:
        check.not_negative(noise=noise)
    slope_at_optimum = row.slope if noise is None else min(row.slope, noise)
    return ProblemConstants(
        L=L,
        mu=mu,
        N=slope_at_optimum * row_norm + l2 * radius,
        G=min(row.slope * row_norm + l2 * radius, 2 * L * radius),
        H=row.jerk * row_norm**3,
        F_star=row.at_zero,
        R=float(radius),
        dim=n_features * loss.n_outputs,
        sigma=2 * row.slope * row_norm,
    )


@dataclass(frozen=True)
class _RowBounds:
    """Bounds on one row's loss as a function of z, over |z| <= reach and all targets."""

    slope: float
    least_curve: float
    curve: float
    jerk: float  # Lipschitz constant of the curvature
    at_zero: float  # the loss itself, at z = 0


def _row_bounds(loss: Loss, reach: float, target: float | None) -> _RowBounds:
    y = _extreme_targets(loss, target)
    low, high = loss.curve_bounds(y, np.full(len(y), reach))
    if isinstance(loss, Multinomial):
        # ||p - e_y||^2 <= 2 (1 - p_y)^2, and no p_y is below the least curvature.
        slope = math.sqrt(2.0) * (1.0 - float(low.min()))
    else:
        # The slope grows with z and is monotone in y: its extremes are at the four corners.
        z = np.array([[-reach], [reach]])[:, None, :]
        slope = float(np.abs(loss.slope(z, y[None, :])).max())
    at_zero = float(loss.value(np.zeros((len(y), loss.n_outputs)), y).max())
    return _RowBounds(slope, float(low.min()), float(high.max()), _jerk(loss, reach, y), at_zero)


def _extreme_targets(loss: Loss, target: float | None) -> Floats:
    """The ends of the targets' range: every bound of a row is attained at one of them."""
    if isinstance(loss, Multinomial):
        return np.zeros(1)  # all classes are alike
    if isinstance(loss, Logistic):
        return np.array([-1.0, 1.0])
    if target is None:
        raise ValueError(
            f"The {loss.name} loss of a row depends on the size of its target, and target=None. "
            "Give target=..., a bound on |y|."
        )
    check.not_negative(target=target)
    return np.array([0.0 if isinstance(loss, Poisson) else -target, float(target)])


def _jerk(loss: Loss, reach: float, y: Floats) -> float:
    """Lipschitz constant of the curvature in z, in the spectral norm."""
    if isinstance(loss, Squared):
        return 0.0
    if isinstance(loss, Logistic):
        return 1 / (6 * math.sqrt(3.0))  # largest p (1 - p) |1 - 2 p|
    if isinstance(loss, Multinomial):
        # The third derivative in direction u is a third central moment of a variable of range
        # sqrt(2) ||u||; the norm of a symmetric form is attained on its diagonal (Banach).
        return math.sqrt(8.0) / (6 * math.sqrt(3.0))
    if isinstance(loss, Poisson):
        return float(loss.curve_bounds(y, np.full(len(y), reach))[1].max())  # exp(reach)
    if isinstance(loss, Huber):
        return 0.0 if float(np.abs(y).max()) + reach <= loss.delta else math.inf
    raise ValueError(
        f"No bound is known on how fast the curvature of {loss!r} changes. Those of squared, "
        "logistic, multinomial, poisson and huber are."
    )


def c_constant(epsilon: float, delta: float, *, R: float, dim: int) -> float:
    """C(epsilon, delta) = 2 (log(2 / delta) + d log(6 R / epsilon)) of Lemma 3.

    0 < delta < 1/2 and 0 < epsilon <= 6 R; with a larger epsilon one point covers Theta and the
    logarithm turns negative, which Lemma 3 does not exclude and cannot mean.
    """
    check.positive(R=R)
    dim = check.whole("dim", dim)
    check.between("delta", delta, 0, 0.5, "0 < delta < 1/2", "Lemma 3 holds with 1 - 2 delta")
    why = "it is the resolution of a cover of Theta"
    domain = f"0 < epsilon <= 6 R = {6 * R:g}"
    check.between("epsilon", epsilon, 0, 6 * R, domain, why, closed="]")
    return 2 * (math.log(2 / delta) + dim * math.log(6 * R / epsilon))


def erm_distance(
    n: int, *, L: float, mu: float, R: float, N: float, G: float, F_star: float, dim: int
) -> float:
    """Right-hand side of Eq. (8): ||theta-hat_i - theta*_k||^2 <= this, up to probability 2/n^3.

        2/mu (16 R^2 L C / n + 8 R N l / n + 8 L F* l / (mu n) + (8 R L + G + 4 R L C / n) / n^3)

    that is Lemma 3 and strong convexity, with C = C(n^-3, n^-3) and l = log 2 + 3 log n.
    """
    n = check.samples(n)
    dim = _check(L=L, mu=mu, R=R, N=N, G=G, F_star=F_star, dim=dim)
    C, log = c_constant(n**-3, n**-3, R=R, dim=dim), math.log(2) + 3 * math.log(n)
    rest = 8 * R * L + G + 4 * R * L * C / n
    gap = (16 * R**2 * L * C + 8 * R * N * log + 8 * L * F_star * log / mu) / n + rest / n**3
    return 2 * gap / mu


def m_constant(
    *, L: float, mu: float, R: float, N: float, G: float, F_star: float, dim: int
) -> float:
    """M_ik of Appendix B.1: with it, ||theta-hat_i - theta*_k||^2 <= M_ik log n / n (Eq. (9)).

        M = 16 L F* (log 2 + 3) / mu^2 + 64 R^2 L (3 + log 2 + d (log 6R + 3)) / mu
          + 16 R N (log 2 + 3) / mu    + (2 G + 16 R L (4 + log 2 + d (log 6R + 3))) / mu

    :class:`ProblemConstants` says what each of them is; :func:`problem_constants` gives all of them
    for a loss we ship, and M as ``.M``. 0 < mu <= L; N, G and F_star are 0 or larger. M depends on
    the user only through its cluster. R >= 1/6 because the step from Eq. (8) to M multiplies log 6R
    by log n, an upper bound only where log 6R >= 0 (the paper does not say so; R may always be
    taken larger).
    """
    dim = _check(L=L, mu=mu, R=R, N=N, G=G, F_star=F_star, dim=dim)
    log = math.log(2) + 3
    cover = log + dim * (math.log(6 * R) + 3)
    return (
        16 * L * F_star * log / mu / mu
        + 64 * R * R * L * cover / mu
        + 16 * R * N * log / mu
        + (2 * G + 16 * R * L * (1 + cover)) / mu
    )


def _check(*, L: float, mu: float, R: float, N: float, G: float, F_star: float, dim: int) -> int:
    check.positive(L=L, mu=mu)
    check.not_negative(N=N, G=G, F_star=F_star)
    why = f"an L-smooth loss with L={L!r} is at most L-strongly convex. Are L and mu swapped?"
    check.inside(mu <= L, f"mu={mu!r}", "mu <= L", why)
    why = "log 6R must not be negative. Take R = 1/6: R only has to be large enough (Assumption 2)"
    check.between("R", R, 1 / 6, math.inf, "1/6 <= R < inf", why, closed="[")
    return check.whole("dim", dim)


@dataclass(frozen=True)
class UserConstants:
    """M of Theorems 1 and 2, and M-bar of Theorem 3."""

    M: float  # max over users
    M_bar: float  # mean over users


def m_over_users(per_cluster: Sequence[float], sizes: Sequence[int]) -> UserConstants:
    """M = max M_ik (Theorem 1) and M-bar = (1/m) sum M_ik (Theorem 3).

    ``per_cluster`` holds M_ik of each cluster, which its users share, ``sizes`` its |C_k|.
    """
    sizes = check.cluster_sizes(sizes)
    per_cluster = check.several("per_cluster", per_cluster, len(sizes), "cluster")
    for value in per_cluster:
        check.positive(M_ik=value)
    mean = math.fsum(s * M for s, M in zip(sizes, per_cluster, strict=True)) / sum(sizes)
    return UserConstants(M=max(per_cluster), M_bar=mean)
