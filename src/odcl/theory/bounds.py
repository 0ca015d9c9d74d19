"""Rounds of communication (Section 4.3) and Table 1: orders, to be compared with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from odcl.theory import check


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
