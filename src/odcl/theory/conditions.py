"""How far apart, how many samples, how many steps: the conditions of Theorems 1 to 3.

Conditions on n read n / log n > ratio: the functions give the ratio,
:func:`odcl.theory.integers.smallest_n` the n. Where a display of the paper contradicts its own
proof we follow the proof, and ``as_printed=True`` gives the display.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from odcl.theory._domain import (
    between,
    distance,
    inside,
    not_negative,
    positive,
    samples,
    several,
    users,
    whole,
)
from odcl.theory.integers import smallest_T

# -- separation that a clustering method asks for, alpha of Eq. (4) ------------------------------


def alpha_cc(n_users: int, smallest: int) -> float:
    """Separation that convex clustering needs, alpha_cc = 4 (m - |C_(K)|) / |C_(K)| (Lemma 1).

    It makes the interval of Eq. (13) non-empty. The footnote of Lemma 1 gives an interval whose
    left end is half of Eq. (13)'s; that one is wrong (points +-1 and 100 +- 1, lam = .99: four
    clusters), and alpha_cc does not rest on it. 1 <= smallest <= n_users; a second cluster leaves
    at most n_users / 2, and with smallest = n_users there is nothing to separate: 0.
    """
    m, size = users(n_users, smallest)
    return 4 * (m - size) / size


def alpha_center(n_users: int, smallest: int, c: float = 100) -> float:
    """Separation that implies Definition 3, 2 c sqrt(m) / sqrt(|C_(K)|) (Section 4.5).

    The text after Definition 3 has |C_(K)| without its root; the proof of Lemma 2 has the root,
    and Theorem 3's condition follows only with it. 1 <= smallest <= n_users, c > 0.
    """
    m, size = users(n_users, smallest)
    positive("c", c, "it is the constant of Definition 3, shown to suffice from 100 on")
    return 2 * c * math.sqrt(m / size)


def alpha_km(n_users: int, smallest: int, c: float = 100) -> float:
    """Separation that spectral K-means needs, 2 + 2 c sqrt(m) / sqrt(|C_(K)|) (Lemma 2).

    The recovery theorem behind it is known for c >= 100 (its footnote); smaller c > 0 are
    accepted to see what they would buy. With c = 100 this is larger than alpha_cc until
    m > 2,503 |C_(K)|, whatever Section 4.2 says in orders of m.
    """
    return 2 + alpha_center(n_users, smallest, c)


# -- samples --------------------------------------------------------------------------------------


def sample_ratio(alpha: float, M: float, D: float, *, gamma: float | None = None) -> float:
    """Right-hand side of Theorem 1's condition, n / log n > 16 M alpha^2 / D^2.

    ``alpha`` is the separation the clustering method needs, M that of
    :func:`~odcl.theory.constants.m_constant` (the largest over users), D > 0 the smallest distance
    between population optima. ``gamma`` gives Eq. (11), 4 M alpha^2 / (D - 2 gamma)^2 with
    0 < gamma < D/2, of which the theorem is the case gamma = D/4.
    """
    not_negative("alpha", alpha, "it is the separation of Eq. (4) that a method needs")
    positive("M", M, "it is the constant of Appendix B.1, see m_constant")
    distance(D)
    gamma = D / 4 if gamma is None else gamma
    why = "means of clusters are within gamma of the optima, and D - 2 gamma apart"
    between("gamma", gamma, 0, D / 2, f"0 < gamma < D/2 = {D / 2:g}", why)
    reach = alpha / (D - 2 * gamma)
    return 4 * M * reach * reach


def sample_ratio_cc(n_users: int, smallest: int, M: float, D: float) -> float:
    """ODCL-CC: n / log n > 256 M (m - |C_(K)|)^2 / (|C_(K)|^2 D^2) (Section 4.2, item 1)."""
    m, size = users(n_users, smallest)
    positive("M", M, "it is the constant of Appendix B.1, see m_constant")
    distance(D)
    return 256 * M * ((m - size) / size) ** 2 / D / D


def sample_ratio_km(n_users: int, smallest: int, M: float, D: float, c: float = 100) -> float:
    """ODCL-KM: n / log n > 64 M (sqrt|C_(K)| + c sqrt m)^2 / (|C_(K)| D^2) (Section 4.2, item 2).

    This display follows from Lemma 2. The sentence after it divides by |C_(K)|^2 and Table 1 has
    |C_(K)| + sqrt m: both lost a square root, and we follow neither.
    """
    m, size = users(n_users, smallest)
    positive("M", M, "it is the constant of Appendix B.1, see m_constant")
    distance(D)
    positive("c", c, "it is the constant of Lemma 2, shown to suffice from 100 on")
    return 64 * M * (math.sqrt(size) + c * math.sqrt(m)) ** 2 / size / D / D


def sample_ratio_part_one(
    n_users: int, smallest: int, M_bar: float, D: float, c: float = 100
) -> float:
    """Theorem 3, Part I of spectral K-means: n / log n > 64 c^2 m M_bar / (D^2 |C_(K)|).

    ``M_bar`` is the mean of M_ik over users, where Theorem 1 takes the largest. Where the two are
    equal this is less than ODCL-KM's by 64 M (1 + 2 c sqrt(m / |C_(K)|)) / D^2; the remark that
    calls it c^2 M / D^2 misplaced c.
    """
    m, size = users(n_users, smallest)
    positive("M_bar", M_bar, "it is the mean over users of M_ik, see m_over_users")
    distance(D)
    positive("c", c, "it is the constant of Definition 3, shown to suffice from 100 on")
    return 64 * c**2 * m * M_bar / size / D / D


# -- inexact local models (Theorem 2) -------------------------------------------------------------


def largest_epsilon(alpha: float, D: float, xi: float, *, as_printed: bool = False) -> float:
    """Local accuracy below which Theorem 2 holds: epsilon < D^2 / (32 xi alpha^2).

    The remark after Theorem 2 has 16 for 32; see :func:`sample_ratio_inexact` for why. ``xi`` is
    xi_F = max_k G_Fk / mu_Fk (tau_F in that remark is the same).
    """
    positive("alpha", alpha, "it is the separation of Eq. (4) that a method needs")
    distance(D)
    positive("xi", xi, "it is xi_F = max_k G_Fk / mu_Fk (Theorem 2)")
    return D**2 / (4 * (4 if as_printed else 8) * xi * alpha**2)


def sample_ratio_inexact(
    alpha: float, M: float, D: float, *, epsilon: float, xi: float, as_printed: bool = False
) -> float:
    """Right-hand side of Theorem 2's condition, n / log n > 4 M / (D^2 / (4 alpha^2) - 8 eps xi).

    Theorem 2 prints 4 eps xi and omits the proof. Lemma 7 adds eps G_F to F_k(theta) - F_k* (the S
    in it is G_F), strong convexity turns this into 2 eps G_F / mu_F of squared distance, and Eq.
    (7) into four times that: 8 eps xi. ``epsilon`` bounds a distance here,
    ||theta_i^T - theta-hat_i|| <= eps, and lies below :func:`largest_epsilon`; 0 is Theorem 1.
    """
    most = largest_epsilon(alpha, D, xi, as_printed=as_printed)
    why = (
        "beyond it no number of samples makes up for the error of the local solvers. Run more "
        "steps, see sgd_iterations"
    )
    between("epsilon", epsilon, 0, most, f"0 <= epsilon < {most:g}", why, closed="[")
    return sample_ratio(alpha, M, D) / (1 - epsilon / most)


def epsilon_that_keeps_the_rate(
    n: int, largest: int, *, alpha: float, D: float, xi: float, as_printed: bool = False
) -> float:
    """Below min(1 / (n |C_(1)|), largest_epsilon), Theorem 2 has Theorem 1's rate (its remark)."""
    n, largest = samples(n), whole("largest", largest, "it counts the users of the largest cluster")
    return min(1 / (n * largest), largest_epsilon(alpha, D, xi, as_printed=as_printed))


def sgd_distance(T: int, *, gamma: float, mu: float, delta: float) -> float:
    """Bound on ||theta^T - theta-hat||^2 of SGD with steps 1 / (mu t), with 1 - delta (Lemma 6).

        12 Gamma^2 / (mu^2 T) + 8 Gamma (121 Gamma + 1) log(log(T) / delta) / T,  T >= 8

    As printed; the second term has no mu, so that the bound changes with the unit of the loss,
    which SGD does not. Treat T from it as an order of magnitude.
    """
    T = whole("T", T, "Lemma 6 speaks of the iterates from the eighth on", least=8)
    _check_sgd(gamma, mu)
    between("delta", delta, 0, 1 / math.e, "0 < delta < 1/e", "Lemma 6 asks for it")
    return (
        12 * gamma**2 / mu**2 + 8 * gamma * (121 * gamma + 1) * math.log(math.log(T) / delta)
    ) / T


def iteration_ratio(epsilon: float, *, gamma: float, mu: float, n: int) -> float:
    """Right-hand side of Theorem 2's condition on T / log log T, with delta = n^-3 in Lemma 7.

        (12 Gamma^2 / mu^2 + 8 Gamma (121 Gamma + 1) (1 + 3 log n)) / epsilon^2

    ``epsilon`` is a distance. ``mu`` is mu_f, the strong convexity of the users' own risks
    (Assumption 7), ``gamma`` Gamma = sigma + 2 L R + N. The second remark after Theorem 2 has
    6 L Gamma^2 / mu_l^2 + 4 L Gamma (...): left over from another version, not followed.
    """
    n = samples(n)
    _check_sgd(gamma, mu)
    positive("epsilon", epsilon, "it bounds the distance of a local model from the exact one")
    log = 1 + 3 * math.log(n)
    return (12 * gamma**2 / mu**2 + 8 * gamma * (121 * gamma + 1) * log) / epsilon**2


def mean_iterations(epsilon: float, *, gamma: float, mu: float) -> float:
    """Right-hand side of T >= 4 Gamma^2 / (mu_f^2 epsilon) (Theorem 2 and Lemma 8).

    Here ``epsilon`` is a *squared* distance, E||theta_i^T - theta-hat_i||^2 <= eps (Lemma 5); the
    paper uses one letter for both. The ``+ eps`` of Lemma 8 should be 2 eps (Young's inequality).
    """
    _check_sgd(gamma, mu)
    positive("epsilon", epsilon, "it bounds the squared distance to the exact local model")
    return 4 * gamma**2 / (mu**2 * epsilon)


def sgd_iterations(epsilon: float, *, gamma: float, mu: float, n: int) -> int:
    """Smallest T that meets both conditions of Theorem 2, and T >= 16 (see ``smallest_T``)."""
    least = max(16, math.ceil(mean_iterations(epsilon, gamma=gamma, mu=mu)))
    return smallest_T(iteration_ratio(epsilon, gamma=gamma, mu=mu, n=n), least=least)


def _check_sgd(gamma: float, mu: float) -> None:
    positive("gamma", gamma, "it bounds the stochastic gradients (Section 4.4)")
    positive("mu", mu, "it is the strong convexity of the users' risks, mu_f (Assumption 7)")


# -- Part I of spectral K-means (Theorem 3) -------------------------------------------------------


@dataclass(frozen=True)
class Misclustered:
    """What Part I of spectral K-means may get wrong in a cluster (Theorem 3)."""

    kept: float  # least |C'_k & C_k| / |C_k|
    foreign: float  # most sum_{l != k} |C'_k & C_l| / |C_k|
    fraction: float  # most epsilon_k = sum_{l != k} |C'_k & C_l| / |C'_k|


def misclustered(c: float = 100) -> Misclustered:
    """Bounds of Theorem 3: 1 - 128/c^2 kept, 128/c^2 foreign, epsilon_k <= 128 / (c^2 - 128).

    c > sqrt(128) = 11.3, where the bounds begin to say something. The last bound is the paper's;
    the first two give 128/c^2 for it as well (x / (a + x) grows with x and falls with a). Lemma 10
    has '=' where Theorem 3 has '>=' and '<=': the theorem is right.
    """
    why = "128/c^2 bounds a fraction below 1"
    between("c", c, math.sqrt(128), math.inf, "c > sqrt(128)", why)
    return Misclustered(kept=1 - 128 / c**2, foreign=128 / c**2, fraction=128 / (c**2 - 128))


def error_floor(fractions: Sequence[float], squared_distances: Sequence[float]) -> float:
    """What does not vanish in cluster k: sum_{l != k} epsilon_kl^2 D_kl (Theorem 3).

    ``fractions`` are epsilon_kl = |C'_k & C_l| / |C'_k| and ``squared_distances`` D_kl =
    ||theta*_k - theta*_l||^2 over l != k. Up to a constant; Lemma 9 has a factor K - 1 besides,
    which Theorem 3 hides in it.
    """
    fractions = several("fractions", fractions, "a share of C'_k for every other cluster")
    squared_distances = several(
        "squared_distances", squared_distances, "a squared distance for every other cluster"
    )
    seen = f"{len(fractions)} fractions for {len(squared_distances)} distances"
    pairs = len(fractions) == len(squared_distances)
    inside(pairs, seen, "of one of each per other cluster", "they are paired")
    for fraction in fractions:
        not_negative("a fraction", fraction, "it counts misplaced users")
    total = math.fsum(fractions)
    inside(total <= 1 + 1e-12, f"sum of fractions={total!r}", "sum <= 1", "they are shares of C'_k")
    for squared in squared_distances:
        positive("a squared distance", squared, "population optima differ (Assumption 1)")
    return math.fsum(f**2 * d for f, d in zip(fractions, squared_distances, strict=True))


def worst_error_floor(D_max: float, c: float = 100) -> float:
    """Largest error floor that Theorem 3 allows, D_max (128 / (c^2 - 128))^2 (its remark).

    ``D_max`` = max_kl ||theta*_k - theta*_l||^2, a squared distance: 1.69e-4 D_max at c = 100.
    """
    positive("D_max", D_max, "it is the largest squared distance between population optima")
    return D_max * misclustered(c).fraction ** 2
