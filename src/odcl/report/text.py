"""Tables and sentences for the terminal: plain text, so that a pipe gets what a person sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from odcl._typing import Ints
from odcl.report.compare import Comparison

NAMES = {
    "local": "one model per user",
    "pooled": "one model for all",
    "paper": "the paper's setting",
    "odcl": "odcl",
}


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns under each other: the first to the left, the others to the right."""
    cells = [list(map(str, header)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(row[c]) for row in cells) for c in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if c == 0 else cell.rjust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def number(value: float) -> str:
    return f"{value:.4g}"


def comparison_table(comparison: Comparison) -> str:
    """local / one model for all / the paper's setting / odcl: mean, median and worst user."""
    best = "higher" if comparison.larger_is_better else "lower"
    header = (f"{comparison.metric} on held-out rows ({best} is better)", "mean", "median", "worst")
    rows = [(NAMES.get(name, name), *map(number, values)) for name, *values in comparison.rows()]
    return table(header, rows)


def verdict(comparison: Comparison) -> str:
    """Who gained: one sentence."""
    better, worse = comparison.better_off("odcl", "local")
    same = comparison.n_users - better - worse
    text = f"Against their own model {better} of {comparison.n_users} users are better off"
    return text + f", {worse} worse off, {same} the same."


def group_table(labels: Ints, n_rows: Ints, users: Any, *, most: int = 20) -> str:
    """Groups with their sizes and the first of their users."""
    order = np.argsort(-np.bincount(labels), kind="stable")
    rows = []
    for k in order[:most]:
        members = np.flatnonzero(labels == k)
        some = ", ".join(str(u) for u in users[members[:4]].tolist())
        some += ", ..." if len(members) > 4 else ""
        rows.append((f"group {k}", len(members), int(n_rows[members].sum()), some))
    text = table(("", "users", "rows", "such as"), rows)
    hidden = len(order) - most
    return text + (f"\n... and {hidden} more groups" if hidden > 0 else "")


def megabytes(n_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    raise AssertionError
