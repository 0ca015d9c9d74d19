"""Terms of the mean squared error bounds, each by name and up to the hidden constant.

The paper's bounds are orders: a term is worth comparing with the others of its bound and with
itself at another n, not with a measured error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odcl.theory import check


@dataclass(frozen=True)
class MSETerms:
    """A bound on E||theta-tilde_k - theta*_k||^2, term by term: ``bound["variance"]``."""

    source: str  # where in the paper
    terms: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.terms[name]

    @property
    def total(self) -> float:
        return math.fsum(self.terms.values())

    @property
    def ruling(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=self.terms.__getitem__)

    def __str__(self) -> str:
        from odcl.report.text import error_terms

        return error_terms(self)


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
    as_printed: bool = False,
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

    Three places where Appendix E does not give what Lemma 4 prints; ``as_printed=True`` does:
    nu lost the 1/mu^4 of ||Sigma^-1||^4 (without it nu changes with the unit of the loss, as
    nothing else does); beta has d R^4 / decay, but n^2 exp(-decay n) is bounded by a multiple of
    1 / decay^2; and log d stands for max(1, log d), as the matrix inequality behind it needs
    (d = 1 would have no variance of the Hessian). The second bound in the decay has mu_k for mu_Fk.

    ``rho`` is a radius of the neighbourhood in which the Hessian is H-Lipschitz (Assumption 5) and
    also the share in 1 - rho: 0 < rho < 1, and any smaller one serves too. c1, c2 > 0 are global
    constants that the paper does not give.
    """
    for name, value in {"L": L, "mu": mu, "N": N, "R": R, "c1": c1, "c2": c2}.items():
        check.positive(name, value, "Lemma 4 divides by it or takes its root")
    check.not_negative("H", H, "it bounds how fast the Hessian changes (Assumption 5)")
    dim = check.parameters(dim)
    check.between("rho", rho, 0, 1, "0 < rho < 1", "Lemma 4 divides by 1 - rho")
    why = "an L-smooth loss has no more curvature"
    check.inside(mu <= L, f"mu={mu!r}", f"mu <= L = {L!r}", why)
    Ll = L * (math.log(dim) if as_printed else max(1.0, math.log(dim)))
    delta = rho * min(1.0, mu / (2 * H)) if H > 0 else rho
    try:
        decay = min(((1 - rho) * mu * delta / N) ** 2 / (8 * c1), (rho * mu / L) ** 2 / (8 * c2))
        beta = (N / ((1 - rho) * mu)) ** 4 + dim * R**4 / (decay if as_printed else decay**2)
        root = math.sqrt(beta)
        lam = N**2 * (Ll**2 + root * H**2) / mu**4
        upsilon = (root * Ll**2 + H**2 * beta) / mu**2
        nu = root * (Ll**4 + beta * H**4) / (1 if as_printed else mu**4)
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


def averaging_terms(rates: LocalRates, *, n: int, size: int) -> MSETerms:
    """Lemma 4: the mean of the exact local models of a true cluster of |C_k| = size users.

    variance    N^2 / (n |C_k| mu^2)       what averaging divides by the users
    bias        lambda / n^2               what it does not
    curvature   upsilon / (n^2 |C_k|)
    third       nu / n^3
    rare        (d R^2 + tau / n) d exp(-decay n)
    """
    _check_rates(rates)
    n = check.whole("n", n, "it counts the samples of a user")
    size = check.whole("size", size, "it counts the users of the cluster")
    d = rates.dim
    terms = {
        "variance": (rates.N / rates.mu) ** 2 / (n * size),
        "bias": rates.lam / n**2,
        "curvature": rates.upsilon / (n**2 * size),
        "third": rates.nu / n**3,
        "rare": (d * rates.R**2 + rates.tau / n) * d * math.exp(-rates.decay * n),
    }
    return MSETerms("Lemma 4", terms)


def _check_rates(rates: object) -> None:
    if not isinstance(rates, LocalRates):
        kind = type(rates).__name__
        text = f"Lemma 4 needs the constants of a cluster, and was given something of type {kind}."
        raise TypeError(f"{text} Make them by local_rates(L=..., mu=..., ...).")


def odcl_terms(
    rates: Sequence[LocalRates], sizes: Sequence[int], k: int, *, n: int, D: float
) -> MSETerms:
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
    check.symbols(D=D)
    rates = check.several("rates", rates, "the constants of each cluster, see local_rates")
    for rate in rates:
        _check_rates(rate)
    check.paired("rates", rates, "clusters", len(sizes))
    domain = f"0 <= k < K = {len(sizes)}"
    check.between("k", k, 0, len(sizes), domain, "it names a cluster", closed="[")
    k = check.whole("k", k, "it names a cluster", least=0)
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
    found = averaging_terms(rates[k], n=n, size=sizes[k])
    return MSETerms("Theorem 1", {**found.terms, **missed})


def inexact_terms(
    sizes: Sequence[int], *, n: int, D: float, R: float, dim: int, decay: float, epsilon: float
) -> MSETerms:
    """Theorem 2, where all constants of Lemma 4 but the decay are hidden as well.

        variance   1 / (n |C_(K)|)          third   m / n^3
        bias       1 / n^2                  rare    (d K + 1/n) d exp(-decay n)
        curvature  1 / (n^2 |C_(K)|)        solver  (K R^2 / D^2 + 1) epsilon

    ``epsilon`` is a squared distance here (Lemma 8). The remark after the theorem writes
    R^2 K D^2 in the last term; the theorem's K R^2 / D^2 is what Chebyshev's inequality gives.
    """
    n, sizes, d = check.samples(n), check.cluster_sizes(sizes), check.parameters(dim)
    check.symbols(D=D, R=R)
    check.positive("decay", decay, "it is alpha_k of Lemma 4, see local_rates")
    check.not_negative("epsilon", epsilon, "it bounds the squared error of a local solver")
    smallest, n_clusters = min(sizes), len(sizes)
    terms = {
        "variance": 1 / (n * smallest),
        "bias": 1 / n**2,
        "curvature": 1 / (n**2 * smallest),
        "third": sum(sizes) / n**3,
        "rare": (d * n_clusters + 1 / n) * d * math.exp(-decay * n),
        "solver": (n_clusters * (R / D) ** 2 + 1) * epsilon,
    }
    return MSETerms("Theorem 2", terms)


def part_one_terms(
    n_users: int,
    smallest: int,
    *,
    n: int,
    fractions: Sequence[float],
    squared_distances: Sequence[float],
) -> MSETerms:
    """Theorem 3: variance 1 / (n |C'_(K)|), bias 1 / n^2, and a floor that n does not lower.

    ``smallest`` counts the users of the smallest *recovered* cluster; ``fractions`` and
    ``squared_distances`` as in :func:`error_floor`. Lemma 9 multiplies all of it by K - 1, the
    theorem hides that.
    """
    n, (_, size) = check.samples(n), check.users(n_users, smallest)
    floor = error_floor(fractions, squared_distances)
    return MSETerms("Theorem 3", {"variance": 1 / (n * size), "bias": 1 / n**2, "floor": floor})


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
    ||theta*_k - theta*_l||^2 over l != k. Up to a constant; Lemma 9 has a factor K - 1 besides,
    which Theorem 3 hides in it.
    """
    shares = check.several("fractions", fractions, "a share of C'_k for every other cluster")
    what = "a squared distance for every other cluster"
    squares = check.several("squared_distances", squared_distances, what)
    check.paired("fractions", shares, "distances", len(squares))
    for share, square in zip(shares, squares, strict=True):
        check.not_negative("a fraction", share, "it counts misplaced users")
        check.positive("a squared distance", square, "population optima differ (Assumption 1)")
    total = math.fsum(shares)
    seen = f"sum of fractions={total!r}"
    check.inside(total <= 1 + 1e-12, seen, "sum <= 1", "they are shares of C'_k")
    return math.fsum(f**2 * d for f, d in zip(shares, squares, strict=True))


def worst_error_floor(D_max: float, c: float = 100) -> float:
    """Largest error floor that Theorem 3 allows, D_max (128 / (c^2 - 128))^2 (its remark).

    ``D_max`` = max_kl ||theta*_k - theta*_l||^2, a squared distance: 1.69e-4 D_max at c = 100.
    """
    check.positive("D_max", D_max, "it is the largest squared distance between population optima")
    return D_max * misclustered(c).fraction ** 2
