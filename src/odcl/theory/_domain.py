"""Domains of the theory's arguments: what was seen, what is allowed, what the number means."""

from __future__ import annotations

import math
from collections.abc import Sequence

_D = "D is the smallest distance between two population optima (Assumption 1)"


def inside(ok: bool, seen: str, domain: str, why: str) -> None:
    """Raise unless ``ok``: '<seen> is outside the domain <domain>: <why>.'"""
    if not ok:
        raise ValueError(f"{seen} is outside the domain {domain}: {why}.")


def positive(name: str, value: float, why: str) -> None:
    inside(0 < value < math.inf, f"{name}={value!r}", f"0 < {name} < inf", why)


def not_negative(name: str, value: float, why: str) -> None:
    inside(0 <= value < math.inf, f"{name}={value!r}", f"0 <= {name} < inf", why)


def whole(name: str, value: float, why: str, *, least: int = 1) -> int:
    """An integer of at least ``least``; 10.0 counts as one, 10.5 does not."""
    ok = math.isfinite(value) and value == int(value) and value >= least
    inside(ok, f"{name}={value!r}", f"of integers {name} >= {least}", why)
    return int(value)


def distance(D: float) -> None:
    positive("D", D, _D)


def samples(n: float) -> int:
    """n >= 3, as Theorems 1 and 2 ask: from there on log n > 1, which M log n / n relies on."""
    return whole("n", n, "the theorems need three samples a user, so that log n > 1", least=3)


def users(n_users: float, smallest: float) -> tuple[int, int]:
    """m and |C_(K)| with 1 <= |C_(K)| <= m."""
    m = whole("n_users", n_users, "it counts the users, the paper's m")
    size = whole("smallest", smallest, "it counts the users of the smallest cluster, |C_(K)|")
    domain = f"1 <= smallest <= n_users = {m}"
    inside(size <= m, f"smallest={size}", domain, "a cluster is a part of the users")
    return m, size


def cluster_sizes(sizes: Sequence[int]) -> list[int]:
    """|C_1|, ..., |C_K| of K > 1 clusters, none empty."""
    why = "Assumption 1 has more than one cluster"
    inside(len(sizes) > 1, f"sizes={list(sizes)}", "of two or more clusters", why)
    return [whole("size of a cluster", size, "no cluster is empty") for size in sizes]
