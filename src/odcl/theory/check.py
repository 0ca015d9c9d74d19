"""Domains of the theory's arguments: what was seen, and what is allowed.

What a symbol means, and which assumption asks for its domain, stands with the function."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

from odcl.errors import show


def inside(ok: bool, seen: str, domain: str, why: str = "") -> None:
    """Raise unless ``ok``: '<seen> is outside the domain <domain>: <why>.'"""
    if not ok:
        raise ValueError(f"{seen} is outside the domain {domain}{f': {why}' * bool(why)}.")


def number(name: str, value: Any, domain: str) -> None:
    """Raise unless ``value`` is one number: text, None, True, lists and arrays are not."""
    if not isinstance(value, Real) or isinstance(value, bool):
        kind, seen = type(value).__name__, " ".join(show(value).split())
        raise TypeError(
            f"{name}={seen} is of type {kind} and not a number; the domain is "
            f"{domain.removeprefix('of ')}. Give one number."
        )
    try:
        float(value)
    except OverflowError:
        seen = f"{name} of {len(str(value))} digits"
        inside(False, seen, domain, "a computer counts to 1.8e308")


def between(
    name: str,
    value: float,
    low: float,
    high: float,
    domain: str,
    why: str = "",
    *,
    closed: str = "",
) -> None:
    """low < value < high; ``closed`` holds "[" where low counts, "]" where high does."""
    number(name, value, domain)
    above = low <= value if "[" in closed else low < value
    below = value <= high if "]" in closed else value < high
    inside(above and below, f"{name}={value!r}", domain, why)


def positive(**values: float) -> None:
    """Symbols larger than 0."""
    for name, value in values.items():
        between(name, value, 0, math.inf, f"0 < {name} < inf")


def not_negative(**values: float) -> None:
    """Symbols that are 0 or larger."""
    for name, value in values.items():
        between(name, value, 0, math.inf, f"0 <= {name} < inf", closed="[")


def whole(name: str, value: float, *, least: int = 1) -> int:
    """An integer of at least ``least``; 10.0 counts as one, 10.5 does not."""
    domain = f"of integers {name} >= {least}"
    number(name, value, domain)
    ok = math.isfinite(value) and value == int(value) and value >= least
    inside(ok, f"{name}={value!r}", domain)
    return int(value)


def samples(n: float) -> int:
    """Three per user at least, so that log n > 1: M log n / n relies on it."""
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
            f"{name}={show(values)} is of type {kind} and not a list; the domain is lists, such "
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
