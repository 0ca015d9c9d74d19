"""Markdown that also reads well as plain text, and numbers in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from odcl._typing import Floats
from odcl.paper.experiments.rows import Rows
from odcl.report.markdown import table

OVER_RUNS = "+- is the standard deviation over runs."


def number(value: float) -> str:
    """Three digits; '-' for what was not measured."""
    if np.isnan(value):
        return "-"
    if np.isinf(value):
        return "inf"
    return f"{value:.3g}" if abs(value) < 1e4 else f"{value:.0f}"


def spread(values: Floats, digits: int | None = 3) -> str:
    """Mean +- standard deviation over runs; ``digits`` after the point, None: three in all."""
    if len(values) == 0:
        return "-"
    shown = [values.mean()] if len(values) == 1 else [values.mean(), values.std(ddof=1)]
    return " +- ".join(number(x) if digits is None else f"{x:.{digits}f}" for x in shown)


def by_setting(
    rows: Rows, metric: str, methods: Sequence[str], *, key: str = "n", **setting: Any
) -> str:
    """Means over runs: one line per value of ``key``, one column per method."""
    lines = [
        [value, *(number(rows.mean(m, metric, **{key: value}, **setting)) for m in methods)]
        for value in rows.of(key, **setting)
    ]
    return table([key, *methods], lines)


def spread_over_runs(
    rows: Rows, metric: str, methods: Sequence[str], *, key: str = "n", **setting: Any
) -> str:
    """A sentence on how far runs are from these means."""
    shares = []
    for value in rows.of(key, **setting):
        for method in methods:
            own = rows.values(method, metric, **{key: value}, **setting)
            if len(own) > 1 and np.isfinite(own).all() and own.mean() > 0:
                shares.append(float(own.std(ddof=1) / own.mean()))
    if not shares:
        return "There is one run: how far others would be from it is not known."
    middle, most = np.median(shares), np.max(shares)
    return (
        f"Over runs, a number has a standard deviation of {middle:.0%} of its mean (the median of "
        f"the table), and of {most:.0%} at most."
    )


def meets(rows: Rows, method: str, n: int) -> bool:
    """Does a method equal Oracle Averaging in every run? The same clusters, to rounding."""
    ours, oracle = (rows.values(m, "nmse", n=n) for m in (method, "oracle-averaging"))
    return len(ours) == len(oracle) > 0 and bool(np.allclose(ours, oracle, rtol=1e-6))


def meets_from(rows: Rows, method: str) -> str:
    """The least n from which on a method equals Oracle Averaging in every run."""
    return _from_on(rows.of("n"), [meets(rows, method, n) for n in rows.of("n")])


def finds_from(rows: Rows, method: str, n_clusters: int, share: float = 1.0) -> str:
    """The least n from which on a method finds so many clusters, in a share of the runs."""
    found = [rows.values(method, "n_clusters", n=n) == n_clusters for n in rows.of("n")]
    return _from_on(rows.of("n"), [bool(np.mean(right) >= share) for right in found])


def _from_on(values: Sequence[Any], holds: Sequence[bool]) -> str:
    """The least of ``values`` from which on something holds without exception."""
    last = max((i for i, ok in enumerate(holds) if not ok), default=-1)
    return "never" if last == len(values) - 1 else str(values[last + 1])


def errors_and_clusters(
    rows: Rows, methods: Sequence[str], clusters: Sequence[str] = ()
) -> list[str]:
    """Errors by n with their spread, and numbers of clusters; with methods that others added."""
    others = rows.others(methods)
    parts = [by_setting(rows, "nmse", [*methods, *others]), spread_over_runs(rows, "nmse", methods)]
    return parts + [by_setting(rows, "n_clusters", [*clusters, *others])] * bool(clusters)
