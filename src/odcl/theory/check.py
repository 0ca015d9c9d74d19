"""Domains of the theory's arguments: what was seen, what is allowed, what the number means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from numbers import Real
from typing import Any


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


def several(name: str, values: Any, what: str) -> list[Any]:
    """The values as a list; text and single numbers are refused."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        kind = type(values).__name__
        raise TypeError(
            f"{name}={_shown(values)} is of type {kind} and not a list; the domain is {what}. Give "
            "a list, such as [10, 20]."
        )
    return list(values)


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


def positive(name: str, value: float, why: str) -> None:
    between(name, value, 0, math.inf, f"0 < {name} < inf", why)


def not_negative(name: str, value: float, why: str) -> None:
    between(name, value, 0, math.inf, f"0 <= {name} < inf", why, closed="[")


def whole(name: str, value: float, why: str, *, least: int = 1) -> int:
    """An integer of at least ``least``; 10.0 counts as one, 10.5 does not."""
    domain = f"of integers {name} >= {least}"
    number(name, value, domain, why)
    ok = math.isfinite(value) and value == int(value) and value >= least
    inside(ok, f"{name}={value!r}", domain, why)
    return int(value)


# Symbols that several formulas share, all larger than 0.
_SYMBOLS = {
    "D": "D is the smallest distance between two population optima (Assumption 1)",
    "M": "it is the constant of Appendix B.1, see m_constant",
    "M_bar": "it is the mean over users of M_ik, see m_over_users",
    "R": "Theta lies in the ball ||theta|| <= R (Assumption 2)",
    "c": "it is the constant of Definition 3 and Lemma 2, shown to suffice from 100 on",
    "xi": "it is xi_F = max_k G_Fk / mu_Fk (Theorem 2)",
}


def symbols(**values: float) -> None:
    for name, value in values.items():
        positive(name, value, _SYMBOLS[name])


_N = "the theorems need three samples per user, so that log n > 1"  # M log n / n relies on it
parameters = partial(whole, "dim", why="it counts the parameters")
samples = partial(whole, "n", why=_N, least=3)


def users(n_users: float, smallest: float) -> tuple[int, int]:
    """m and |C_(K)| with 1 <= |C_(K)| <= m."""
    m = whole("n_users", n_users, "it counts the users, the paper's m")
    size = whole("smallest", smallest, "it counts the users of the smallest cluster, |C_(K)|")
    domain = f"1 <= smallest <= n_users = {m}"
    inside(size <= m, f"smallest={size}", domain, "a cluster is a part of the users")
    return m, size


def cluster_sizes(sizes: Sequence[int]) -> list[int]:
    """|C_1|, ..., |C_K| of K > 1 clusters, none empty."""
    sizes = several("sizes", sizes, "the numbers of users of two or more clusters")
    why = "Assumption 1 has more than one cluster"
    inside(len(sizes) > 1, f"sizes={sizes}", "of two or more clusters", why)
    return [whole("size of a cluster", size, "no cluster is empty") for size in sizes]


def paired(what: str, values: Any, other: str, n_others: int) -> None:
    """As many ``values`` as there are others."""
    seen = f"{len(values)} {what} for {n_others} {other}"
    inside(len(values) == n_others, seen, f"of one per {other[:-1]}", "they are paired")
