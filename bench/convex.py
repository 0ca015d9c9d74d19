"""Convex clustering: against general solvers at one lambda, then our own scale.

CPU seconds of one thread. The set-up is the paper's (Section 5): 10 clusters, 20 parameters, users
with 1,500 rows, where the interval of Eq. (13) is not empty.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.tables import at_least, at_most, cpu_seconds, progress, table
from odcl import Risk, clusterpath, linear_federation, recovery_interval
from odcl.clustering.convex.estimator import convex_cluster
from odcl.clustering.convex.weighted import gaussian_knn_weights, weighted_convex
from odcl.local.fit import fit_users

ROWS = 1500  # per user


def run(*, quick: bool, data: Path) -> None:
    _against_general_solvers((30,) if quick else (100, 300))
    _one_lambda((1000,) if quick else (1000, 10_000, 100_000), quick)
    _paths((100, 300) if quick else (100, 300, 1000), (1000,) if quick else (1000, 10_000))
    _weighted((1000,) if quick else (1000, 10_000))


def models(n_users: int, dim: int = 20) -> tuple[Any, Any]:
    """Local models of the paper's linear set-up and the true groups.

    Up to 300 users they are fitted; beyond, drawn from the law that they follow for many rows,
    N(u_k, 4 / n I): a row sees a quarter of the parameters.
    """
    if n_users <= 300:
        few = linear_federation(n_users, ROWS, n_clusters=10)
        return fit_users(few, Risk()).theta, few.groups
    optima = linear_federation(10, 1, n_clusters=10, dim=dim).optima
    assert optima is not None
    groups = np.arange(n_users) % 10
    noise = np.random.default_rng(0).standard_normal((n_users, dim))
    return optima[groups] + noise * np.sqrt(4 / ROWS), groups


def _general(a: Any, lam: float, solver: str, **options: Any) -> float:
    """Eq. (12) by CVXPY; the value it reports for its own u, worked out again."""
    import cvxpy as cp

    m = len(a)
    first, second = np.triu_indices(m, 1)
    u = cp.Variable(a.shape)
    apart = cp.norm(u[first] - u[second], 2, axis=1)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(u - a) + lam * cp.sum(apart)))
    problem.solve(solver=solver, **options)
    off = u.value[first] - u.value[second]
    return float(0.5 * ((u.value - a) ** 2).sum() + lam * np.sqrt((off**2).sum(axis=1)).sum())


def _against_general_solvers(sizes: tuple[int, ...]) -> None:
    targets = {(100, "CLARABEL"): 1000, (100, "SCS"): 100, (300, "CLARABEL"): 5000}
    rows = []
    for m in sizes:
        a, groups = models(m)
        lam = recovery_interval(a, groups).middle
        seconds, ours = _least(lambda: convex_cluster(a, lam), 5)  # noqa: B023
        for solver, options in (("CLARABEL", {}), ("SCS", {"eps_abs": 1e-6, "eps_rel": 1e-6})):
            if solver == "SCS" and m > 100:
                continue
            progress(f"m = {m}: {solver}")
            theirs, value = cpu_seconds(lambda: _general(a, lam, solver, **options))  # noqa: B023
            worse = (ours.objective - value) / value
            goal = targets.get((m, solver))
            rows.append(
                [
                    f"m = {m}, {solver}",
                    theirs,
                    seconds,
                    theirs / seconds,
                    "-" if goal is None else f"{goal}: {at_least(theirs / seconds, goal)}",
                    f"{worse:.0e}",
                    f"{ours.n_clusters}, {'proven' if ours.certified else 'NOT PROVEN'}",
                ]
            )
            gc.collect()
    table(
        "Convex clustering at the middle of the interval of Eq. (13), against CVXPY",
        ["", "CVXPY s", "odcl s", "ratio", "target", "objective above theirs", "clusters"],
        rows,
    )


def _least(work: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """Least CPU seconds of some rounds, and what the work gave."""
    return min((cpu_seconds(work) for _ in range(rounds)), key=lambda pair: pair[0])


def _row(name: str, seconds: float, found: Any, goal: float | None = None) -> list[Any]:
    clusters = f"{found.n_clusters}, {'proven' if found.certified else 'NOT PROVEN'}"
    target = "-" if goal is None else f"{goal:g} s: {at_most(seconds, goal)}"
    return [name, seconds, clusters, target]


def _one_lambda(sizes: tuple[int, ...], quick: bool) -> None:
    rows = []
    for m in sizes:
        progress(f"one lambda, m = {m}")
        a, groups = models(m)
        lam = recovery_interval(a, groups).middle
        seconds, found = cpu_seconds(lambda: convex_cluster(a, lam))  # noqa: B023
        rows.append(_row(f"m = {m:,}, middle of Eq. (13)", seconds, found))
        if m <= 10_000:
            hard = lam * 0.7  # the cheap certificate fails, the clusters are the same
            seconds, found = cpu_seconds(lambda: convex_cluster(a, hard))  # noqa: B023
            rows.append(_row(f"m = {m:,}, at 0.7 of it", seconds, found))
        if m == 1000:
            rows.append(_hard_case(a))
    a, groups = models(1000 if quick else 3000, dim=784)
    lam = recovery_interval(a, groups).middle
    for share in (1.0, 0.7):
        progress(f"wide, share {share}")
        seconds, found = cpu_seconds(lambda: convex_cluster(a, share * lam))  # noqa: B023
        rows.append(_row(f"m = {len(a):,}, dim = 784, at {share:g} of it", seconds, found))
    table("Convex clustering at one lambda", ["", "s", "clusters", "target"], rows)


def _hard_case(a: Any) -> list[Any]:
    """In the middle of the events: some groups are one point already, others not at all."""
    starts = []
    path = clusterpath(a, exact=True)
    for merge in path.merges:
        if len(merge.children) > 20:
            starts.append(merge.high)
    lam = float(np.median(starts)) * (1 + 1e-3)
    seconds, found = cpu_seconds(lambda: convex_cluster(a, lam))
    return _row("m = 1,000, in the middle of the merges", seconds, found, 2)


def _paths(exact: tuple[int, ...], lazy: tuple[int, ...]) -> None:
    rows = []
    for m in exact:
        a, _ = models(m)
        seconds, path = _least(lambda: clusterpath(a, exact=True), 3)  # noqa: B023
        goal = f"0.3 s: {at_most(seconds, 0.3)}" if m == 300 else "-"
        rows.append([f"every event to 1e-4, m = {m:,}", seconds, len(path.merges), goal])
    for m in lazy:
        a, _ = models(m)
        seconds, path = cpu_seconds(lambda: clusterpath(a, exact=False))  # noqa: B023
        goal = f"5 s: {at_most(seconds, 5)}" if m == 10_000 else "-"
        rows.append([f"top of the path, m = {m:,}", seconds, len(path.merges), goal])
    table("The clusterpath", ["", "s", "merges", "target"], rows)


def _weighted(sizes: tuple[int, ...]) -> None:
    rows = []
    for m in sizes:
        a, _ = models(m)
        weights = gaussian_knn_weights(a, 10)
        for lam in (0.05, 0.5):
            progress(f"weighted, m = {m}, lam = {lam}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seconds, found = cpu_seconds(lambda: weighted_convex(a, lam, weights))  # noqa: B023
            gap = found.gap / found.objective
            proven = "proven" if found.certified else "not proven"
            rows.append(
                [f"m = {m:,}, lam = {lam}", seconds, f"{gap:.0e}", len(found.centers), proven]
            )
    table("Weighted, ten nearest neighbours", ["", "s", "relative gap", "clusters", ""], rows)
