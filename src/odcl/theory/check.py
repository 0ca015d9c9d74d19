"""Domains of the theory's arguments: what was seen, what is allowed, what the number means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

# What symbols mean that are real numbers larger than 0, or 0 and larger.
_POSITIVE = {
    "D": "it is the smallest distance between two population optima (Assumption 1)",
    "D_max": "it is the largest squared distance between population optima",
    "L": "it is the smoothness of the loss (Assumption 3)",
    "M": "it is the constant of Appendix B.1, see m_constant",
    "M_bar": "it is the mean over users of M_ik, see m_over_users",
    "M_ik": "see m_constant",
    "R": "Theta lies in the ball ||theta|| <= R (Assumption 2)",
    "c": "it is the constant of Definition 3 and Lemma 2, shown to suffice from 100 on",
    "c1": "it is a global constant of Lemma 4",
    "c2": "it is a global constant of Lemma 4",
    "decay": "it is alpha_k of Lemma 4, see local_rates",
    "epsilon": "it bounds the distance of a local model from the exact one",
    "gamma": "it bounds the stochastic gradients (Section 4.4)",
    "mu": "it is a strong convexity (Assumptions 4 and 7)",
    "radius": "Theta lies in the ball ||theta|| <= radius (Assumption 2)",
    "row_norm": "it bounds ||x||",
    "squared_distances": "population optima differ (Assumption 1)",
    "xi": "it is xi_F = max_k G_Fk / mu_Fk (Theorem 2)",
}
_NOT_NEGATIVE = {
    "F_star": "the loss is not negative (Assumption 3)",
    "G": "it bounds the gradient of the population loss (Section 2)",
    "H": "it bounds how fast the Hessian changes (Assumption 5)",
    "N": "it bounds the gradients at the optimum (Assumption 6)",
    "alpha": "it is the separation of Eq. (4) that a method needs",
    "epsilon": "it bounds the error of a local solver",
    "fractions": "they count misplaced users",
    "l2": "it is the weight of a penalty",
    "noise": "it bounds the slope of the loss at the optimum",
    "ratio": "it is the right-hand side of a condition on n or T",
    "target": "it bounds |y|",
}
_COUNTS = {
    "T": "Lemma 6 speaks of the iterates from the eighth on",
    "dim": "it counts the parameters",
    "k": "it names a cluster",
    "largest": "it counts the users of the largest cluster",
    "least": "below 5.83 T / log log T falls, and there may be no smallest T",
    # M log n / n relies on it.
    "n": "the theorems need three samples per user, so that log n > 1",
    "n_clusters": "it counts the clusters",
    "n_features": "it counts the columns of x",
    "n_users": "it counts the users, the paper's m",
    "size": "it counts the users of a cluster",
    "sizes": "no cluster is empty",
    "smallest": "it counts the users of the smallest cluster, |C_(K)|",
}


def inside(ok: bool, seen: str, domain: str, why: str) -> None:
    """Raise unless ``ok``: '<seen> is outside the domain <domain>: <why>.'"""
    if not ok:
        raise ValueError(f"{seen} is outside the domain {domain}: {why}.")


def number(name: str, value: Any, domain: str, why: str) -> None:
    """Raise unless ``value`` is one number: text, None, True, lists and arrays are not."""
    if not isinstance(value, Real) or isinstance(value, bool):
        kind, domain = type(value).__name__, domain.removeprefix("of ")
        raise TypeError(
            f"{name}={_shown(value)} is of type {kind} and not a number; the domain is {domain}: "
            f"{why}. Give one number."
        )
    try:
        float(value)
    except OverflowError:
        text = f"{name} has {len(str(value))} digits and is outside the domain {domain}, as far as "
        raise ValueError(f"{text}a computer counts (1.8e308): {why}.") from None


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def between(
    name: str, value: float, low: float, high: float, domain: str, why: str, *, closed: str = ""
) -> None:
    """low < value < high; ``closed`` holds "[" where low counts, "]" where high does."""
    number(name, value, domain, why)
    above = low <= value if "[" in closed else low < value
    below = value <= high if "]" in closed else value < high
    inside(above and below, f"{name}={value!r}", domain, why)


def positive(**values: float) -> None:
    """Symbols larger than 0."""
    for name, value in values.items():
        between(name, value, 0, math.inf, f"0 < {name} < inf", _POSITIVE[name])


def not_negative(**values: float) -> None:
    """Symbols that are 0 or larger."""
    for name, value in values.items():
        domain = f"0 <= {name} < inf"
        between(name, value, 0, math.inf, domain, _NOT_NEGATIVE[name], closed="[")


def whole(name: str, value: float, *, least: int = 1) -> int:
    """An integer of at least ``least``; 10.0 counts as one, 10.5 does not."""
    domain, why = f"of integers {name} >= {least}", _COUNTS[name]
    number(name, value, domain, why)
    ok = math.isfinite(value) and value == int(value) and value >= least
    inside(ok, f"{name}={value!r}", domain, why)
    return int(value)


def samples(n: float) -> int:
    return whole("n", n, least=3)


def users(n_users: float, smallest: float) -> tuple[int, int]:
    """m and |C_(K)| with 1 <= |C_(K)| <= m."""
    m, size = whole("n_users", n_users), whole("smallest", smallest)
    domain = f"1 <= smallest <= n_users = {m}"
    inside(size <= m, f"smallest={size}", domain, "a cluster is a part of the users")
    return m, size


def several(name: str, values: Any, n: int | None = None, other: str = "") -> list[Any]:
    """A list, of one value for each of ``n`` others; text and single numbers are refused."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        kind = type(values).__name__
        raise TypeError(
            f"{name}={_shown(values)} is of type {kind} and not a list; the domain is lists, such "
            "as [10, 20]."
        )
    values = list(values)
    seen = f"{len(values)} {name} for {n} {other}s"
    inside(n is None or len(values) == n, seen, f"of one per {other}", "they are paired")
    return values


def cluster_sizes(sizes: Sequence[int]) -> list[int]:
    """|C_1|, ..., |C_K| of K > 1 clusters, none empty."""
    sizes = several("sizes", sizes)
    why = "Assumption 1 has more than one cluster"
    inside(len(sizes) > 1, f"sizes={sizes}", "of two or more clusters", why)
    return [whole("sizes", size) for size in sizes]
