"""Bounds on the models' error, rounds of communication (Section 4.3) and Table 1.

A bound on E||theta-tilde_k - theta*_k||^2 is a dictionary of its terms, each up to the hidden
constant. The paper's bounds are orders: a term is worth comparing with the others of its bound and
with itself at another n, not with a measured error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from odcl.theory import check


@dataclass(frozen=True)
class LocalRates:
    """Constants of one cluster in Lemma 4."""

    N: float
    mu: float
    R: float
    dim: int
    decay: float  # alpha_k of Lemma 4
    beta: float
    lam: float  # lambda_k
    upsilon: float
    nu: float
    tau: float


def local_rates(
    *,
    L: float,
    mu: float,
    N: float,
    H: float,
    R: float,
    dim: int,
    rho: float = 0.5,
    c1: float = 1.0,
    c2: float = 1.0,
) -> LocalRates:
    """lambda_k, upsilon_k, nu_k, tau_k, beta_k and the decay alpha_k of Lemma 4 (Appendix E).

        delta   = min(rho, rho mu / (2 H))
        decay   = min((1 - rho)^2 mu^2 delta^2 / (8 c1 N^2), rho^2 mu^2 / (8 c2 L^2))
        beta    = N^4 / ((1 - rho)^4 mu^4) + d R^4 / decay^2
        lambda  = (N^2 L^2 log^2 d + beta^(1/2) H^2 N^2) / mu^4
        upsilon = (beta^(1/2) L^2 log^2 d + H^2 beta) / mu^2
        nu      = (beta^(1/2) L^4 log^4 d + beta^(3/2) H^4) / mu^4
        tau     = N^2 / mu^2 + (N^4 L^4 log^4 d + beta N^4 H^4)^(1/2) / mu^4
                + (beta L^8 log^8 d + beta^3 H^8)^(1/2) / mu^4

    Three places follow Appendix E where Lemma 4 prints something else: nu lost the 1/mu^4 of
    ||Sigma^-1||^4 (without it nu changes with the unit of the loss, as nothing else does); beta
    has d R^4 / decay, but n^2 exp(-decay n) is bounded by a multiple of 1 / decay^2; and log d
    stands for max(1, log d), as the matrix inequality behind it needs (d = 1 would have no
    variance of the Hessian). The second bound in the decay has mu_k for mu_Fk.

    ``rho`` is a radius of the neighbourhood in which the Hessian is H-Lipschitz (Assumption 5) and
    also the share in 1 - rho: 0 < rho < 1, and any smaller one serves too. c1, c2 > 0 are global
    constants that the paper does not give.
    """
    check.positive(L=L, mu=mu, R=R, c1=c1, c2=c2)
    check.between("N", N, 0, math.inf, "0 < N < inf", "Lemma 4 divides by it")
    check.not_negative(H=H)
    dim = check.whole("dim", dim)
    check.between("rho", rho, 0, 1, "0 < rho < 1", "Lemma 4 divides by 1 - rho")
    why = "an L-smooth loss has no more curvature"
    check.inside(mu <= L, f"mu={mu!r}", f"mu <= L = {L!r}", why)
    Ll = L * max(1.0, math.log(dim))
    delta = rho * min(1.0, mu / (2 * H)) if H > 0 else rho
    try:
        decay = min(((1 - rho) * mu * delta / N) ** 2 / (8 * c1), (rho * mu / L) ** 2 / (8 * c2))
        beta = (N / ((1 - rho) * mu)) ** 4 + dim * R**4 / decay**2
        root = math.sqrt(beta)
        lam = N**2 * (Ll**2 + root * H**2) / mu**4
        upsilon = (root * Ll**2 + H**2 * beta) / mu**2
        nu = root * (Ll**4 + beta * H**4) / mu**4
        tau = (N / mu) ** 2 + N**2 * math.hypot(Ll**2, root * H**2) / mu**4
        tau += root * math.hypot(Ll**4, beta * H**4) / mu**4
    except (OverflowError, ZeroDivisionError):
        nu = tau = math.inf
    if not math.isfinite(nu + tau):
        raise ValueError(
            f"With mu={mu:.3g} against L={L:.3g}, N={N:.3g}, R={R:.3g} the constants of Lemma 4 "
            "exceed 1e308: the bound says nothing. Take a smaller R or an l2 penalty."
        )
    return LocalRates(N, mu, R, dim, decay, beta, lam, upsilon, nu, tau)


def averaging_terms(rates: LocalRates, *, n: int, size: int) -> dict[str, float]:
    """Lemma 4: the mean of the exact local models of a true cluster of |C_k| = size users.

    variance    N^2 / (n |C_k| mu^2)       what averaging divides by the users
    bias        lambda / n^2               what it does not
    curvature   upsilon / (n^2 |C_k|)
    third       nu / n^3
    rare        (d R^2 + tau / n) d exp(-decay n)
    """
    _check_rates(rates)
    n, size, d = check.whole("n", n), check.whole("size", size), rates.dim
    return {
        "variance": (rates.N / rates.mu) ** 2 / (n * size),
        "bias": rates.lam / n**2,
        "curvature": rates.upsilon / (n**2 * size),
        "third": rates.nu / n**3,
        "rare": (d * rates.R**2 + rates.tau / n) * d * math.exp(-rates.decay * n),
    }


def _check_rates(rates: object) -> None:
    if not isinstance(rates, LocalRates):
        kind = type(rates).__name__
        text = f"Lemma 4 needs the constants of a cluster, and was given something of type {kind}."
        raise TypeError(f"{text} Make them by local_rates(L=..., mu=..., ...).")


def odcl_terms(
    rates: Sequence[LocalRates], sizes: Sequence[int], k: int, *, n: int, D: float
) -> dict[str, float]:
    """Theorem 1 for cluster ``k``: Lemma 4's terms, and what a failed clustering may cost.

        missed_variance   R^2 N^2 / (n |C_(K)| mu_F^2 D^2)
        missed_bias       R^2 lambda / (D^2 n^2)
        missed_curvature  R^2 upsilon / (n^2 |C_(K)| D^2)
        missed_third      R^2 nu / (D^2 n^3)
        missed_rare       (d K R^4 / D^2 + R^2 tau / (n D^2)) d exp(-decay n)
        missed_users      R^2 m / n^3

    N^2, lambda, upsilon, nu, tau are sums over clusters, mu_F and the decay minima. The theorem
    holds where n meets its condition (:func:`~odcl.theory.conditions.sample_ratio`), which is not
    checked here. ``missed_variance`` is of order 1 / (n |C_(K)|): the bound for a large cluster
    is ruled by the smallest one.
    """
    n, sizes = check.samples(n), check.cluster_sizes(sizes)
    check.positive(D=D)
    rates = check.several("rates", rates, len(sizes), "cluster")
    for rate in rates:
        _check_rates(rate)
    domain = f"0 <= k < K = {len(sizes)}"
    check.between("k", k, 0, len(sizes), domain, "it names a cluster", closed="[")
    k = check.whole("k", k, least=0)
    R, d = rates[k].R, rates[k].dim
    alike = all((other.R, other.dim) == (R, d) for other in rates)
    check.inside(alike, "rates with several R or dim", "of one Theta", "all clusters share it")
    ratio, smallest = (R / D) ** 2, min(sizes)
    N2 = math.fsum(rate.N**2 for rate in rates)
    mu, decay = min(rate.mu for rate in rates), min(rate.decay for rate in rates)
    tau = math.fsum(rate.tau for rate in rates)
    missed = {
        "missed_variance": ratio * N2 / (n * smallest * mu**2),
        "missed_bias": ratio * math.fsum(rate.lam for rate in rates) / n**2,
        "missed_curvature": ratio * math.fsum(r.upsilon for r in rates) / (n**2 * smallest),
        "missed_third": ratio * math.fsum(rate.nu for rate in rates) / n**3,
        "missed_rare": ratio * (d * len(sizes) * R**2 + tau / n) * d * math.exp(-decay * n),
        "missed_users": R**2 * sum(sizes) / n**3,
    }
    return averaging_terms(rates[k], n=n, size=sizes[k]) | missed


def inexact_terms(
    sizes: Sequence[int], *, n: int, D: float, R: float, dim: int, decay: float, epsilon: float
) -> dict[str, float]:
    """Theorem 2, where all constants of Lemma 4 but the decay are hidden as well.

        variance   1 / (n |C_(K)|)          third   m / n^3
        bias       1 / n^2                  rare    (d K + 1/n) d exp(-decay n)
        curvature  1 / (n^2 |C_(K)|)        solver  (K R^2 / D^2 + 1) epsilon

    ``epsilon`` is a squared distance here (Lemma 8). The remark after the theorem writes
    R^2 K D^2 in the last term; the theorem's K R^2 / D^2 is what Chebyshev's inequality gives.
    """
    n, sizes, d = check.samples(n), check.cluster_sizes(sizes), check.whole("dim", dim)
    check.positive(D=D, R=R, decay=decay)
    check.not_negative(epsilon=epsilon)
    smallest, n_clusters = min(sizes), len(sizes)
    return {
        "variance": 1 / (n * smallest),
        "bias": 1 / n**2,
        "curvature": 1 / (n**2 * smallest),
        "third": sum(sizes) / n**3,
        "rare": (d * n_clusters + 1 / n) * d * math.exp(-decay * n),
        "solver": (n_clusters * (R / D) ** 2 + 1) * epsilon,
    }


def part_one_terms(
    n_users: int,
    smallest: int,
    *,
    n: int,
    fractions: Sequence[float],
    squared_distances: Sequence[float],
) -> dict[str, float]:
    """Theorem 3: variance 1 / (n |C'_(K)|), bias 1 / n^2, and a floor that n does not lower.

    ``smallest`` counts the users of the smallest *recovered* cluster; ``fractions`` and
    ``squared_distances`` as in :func:`error_floor`. Lemma 9 multiplies all of it by K - 1, the
    theorem hides that.
    """
    n, (_, size) = check.samples(n), check.users(n_users, smallest)
    floor = error_floor(fractions, squared_distances)
    return {"variance": 1 / (n * size), "bias": 1 / n**2, "floor": floor}


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
    check.between("c", c, math.sqrt(128), math.inf, "c > sqrt(128)", why)
    return Misclustered(kept=1 - 128 / c**2, foreign=128 / c**2, fraction=128 / (c**2 - 128))


def error_floor(fractions: Sequence[float], squared_distances: Sequence[float]) -> float:
    """What does not vanish in cluster k: sum_{l != k} epsilon_kl^2 D_kl (Theorem 3).

    ``fractions`` are epsilon_kl = |C'_k & C_l| / |C'_k| and ``squared_distances`` D_kl =
    ||theta*_k - theta*_l||^2 over l != k. Up to a constant; Lemma 9 has another factor K - 1,
    which Theorem 3 hides in it.
    """
    squares = check.several("squared_distances", squared_distances)
    shares = check.several("fractions", fractions, len(squares), "distance")
    for share, square in zip(shares, squares, strict=True):
        check.not_negative(fractions=share)
        check.positive(squared_distances=square)
    total = math.fsum(shares)
    seen = f"sum of fractions={total!r}"
    check.inside(total <= 1 + 1e-12, seen, "sum <= 1", "they are shares of C'_k")
    return math.fsum(f**2 * d for f, d in zip(shares, squares, strict=True))


def worst_error_floor(D_max: float, c: float = 100) -> float:
    """Largest error floor that Theorem 3 allows, D_max (128 / (c^2 - 128))^2 (its remark).

    ``D_max`` = max_kl ||theta*_k - theta*_l||^2, a squared distance: 1.69e-4 D_max at c = 100.
    """
    check.positive(D_max=D_max)
    return D_max * misclustered(c).fraction ** 2


# -- rounds of communication, and Table 1 ---------------------------------------------------------


def ifca_rounds(
    n_users: int, smallest: int, *, D: float, epsilon: float, kappa: float = 1.0
) -> float:
    """Rounds of IFCA to distance epsilon: 8 kappa m / |C_(K)| log(2 D / epsilon) (Section 4.3).

    ODCL takes one round, so this is also the factor by which the paper counts the communication
    saved. 0 < epsilon < 2 D, kappa = L / mu >= 1.
    """
    m, size = check.users(n_users, smallest)
    check.positive(D=D)
    _check_kappa(kappa)
    why = "IFCA starts closer than that already, and the formula says nothing"
    check.between("epsilon", epsilon, 0, 2 * D, f"0 < epsilon < 2 D = {2 * D:g}", why)
    return 8 * kappa * m / size * math.log(2 * D / epsilon)


def ifca_accuracy(n_users: int, n_clusters: int, smallest: int, n: int) -> float:
    """Distance that IFCA reaches, K m^2 / (|C_(K)|^(5/2) sqrt n), up to constants and logarithms.

    Section 4.3 says O(1 / (delta sqrt(n |C_(K)|))); Table 1's logarithm holds the square of this
    one, which keeps the dependence on K and m / |C_(K)| that the text hides. We follow Table 1.
    """
    m, size = check.users(n_users, smallest)
    K = check.whole("n_clusters", n_clusters)
    return K * m**2 / (size**2.5 * math.sqrt(check.samples(n)))


def all_for_all_rounds(
    n_users: int, n_clusters: int, *, epsilon: float, kappa: float = 1.0, mu: float = 1.0
) -> float:
    """Rounds of ALL-for-ALL: kappa K / (epsilon mu m) log(1 / epsilon) (Section 4.3), 0 < eps < 1.

    At the accuracy epsilon = K / (n m) of all the data of a cluster this is (kappa / mu) n
    log(n m / K). Table 1 has n m / K in front for n, larger by the mean size of a cluster; we
    follow the text, which says what accuracy its rounds buy.
    """
    m = check.whole("n_users", n_users)
    K = check.whole("n_clusters", n_clusters)
    check.inside(m >= K, f"n_clusters={K}", f"n_clusters <= n_users = {m}", "no cluster is empty")
    _check_kappa(kappa)
    check.positive(mu=mu)
    why = "the rounds grow with log(1 / epsilon)"
    check.between("epsilon", epsilon, 0, 1, "0 < epsilon < 1", why)
    return kappa * K / (epsilon * mu * m) * math.log(1 / epsilon)


def _check_kappa(kappa: float) -> None:
    check.between("kappa", kappa, 1, math.inf, "1 <= kappa < inf", "kappa is L / mu", closed="[")


@dataclass(frozen=True)
class MethodRow:
    """One line of Table 1. Numbers are orders: hidden constants are 1, kappa is as given."""

    method: str
    rounds_formula: str
    rounds: float | None  # None: the formula says nothing here
    samples_formula: str
    samples: float | None  # per user; None: no number of samples suffices
    needs_initialization: bool = False
    needs_clusters: bool = False
    needs_k: bool = False
    needs_separation: bool = False


class MethodTable(list[MethodRow]):
    """The lines of Table 1; ``print`` shows them as a table with a legend."""

    def __str__(self) -> str:
        from odcl.report.text import method_table

        return method_table(self)


def table1(
    sizes: Sequence[int], *, D: float, n: int, epsilon: float | None = None, kappa: float = 1.0
) -> MethodTable:
    """Table 1 for clusters of these sizes, separation D and n samples per user; ``print`` it.

    m and K are the sum and the number of ``sizes``; ``epsilon`` is the accuracy of the inexact
    methods, 1 / (n |C_(1)|) unless given (the remark after Theorem 2). Where the printed table
    disagrees with the text we follow

    - ODCL-KM: Section 4.2's display, (sqrt|C_(K)| + sqrt m)^2 / (|C_(K)| D^2); the table lost the
      root of the first |C_(K)|;
    - I-ODCL-KM: Theorem 2 with alpha_km, |C_(K)| D^2 / (sqrt|C_(K)| + sqrt m)^2 - epsilon; the
      table has |C_(K)|^2;
    - IFCA's rounds: Section 4.3's formula at Table 1's accuracy (:func:`ifca_accuracy`);
    - ALL-for-ALL's rounds: Section 4.3 at epsilon = K / (n m); the table has m / K times as many;
    - IFCA's samples: the table, with the K / D^4 that Section 4.3 leaves out.
    """
    n, sizes = check.samples(n), check.cluster_sizes(sizes)
    check.positive(D=D)
    m, K, small, large = sum(sizes), len(sizes), min(sizes), max(sizes)
    epsilon = 1 / (n * large) if epsilon is None else epsilon
    check.not_negative(epsilon=epsilon)
    _check_kappa(kappa)
    reached = ifca_accuracy(m, K, small, n)
    ifca = ifca_rounds(m, small, D=D, epsilon=reached, kappa=kappa) if reached < 2 * D else None
    cc = small**2 * D**2 / (m - small) ** 2
    km = small * D**2 / (math.sqrt(small) + math.sqrt(m)) ** 2
    return MethodTable(
        [
            MethodRow(
                "IFCA",
                "8 kappa m / C log(2 D C^2.5 sqrt n / (K m^2))",
                ifca,
                "max(C1, K / D^4)",
                max(large, K / D**4),
                needs_initialization=True,
                needs_k=True,
                needs_separation=True,
            ),
            MethodRow(
                "ALL-for-ALL",
                "kappa n log(n m / K)",
                all_for_all_rounds(m, K, epsilon=K / (n * m), kappa=kappa),
                "log(n m / K)",
                math.log(n * m / K),
                needs_clusters=True,
            ),
            _one_round("ODCL-KM", "(sqrt C + sqrt m)^2 / (C D^2)", km, large),
            _one_round("ODCL-CC", "(m - C)^2 / (C^2 D^2)", cc, large),
            _one_round("I-ODCL-KM", "1 / (C D^2 / (sqrt C + sqrt m)^2 - eps)", km - epsilon, large),
            _one_round("I-ODCL-CC", "1 / (C^2 D^2 / (m - C)^2 - eps)", cc - epsilon, large),
        ]
    )


def _one_round(method: str, formula: str, margin: float, large: int) -> MethodRow:
    """A line of ours: max(|C_(1)|, 1 / margin) samples, where a margin is left."""
    enough = max(large, 1 / margin) if margin > 0 else None
    needs_k = method.endswith("KM")
    return MethodRow(method, "1", 1.0, f"max(C1, {formula})", enough, needs_k=needs_k)
