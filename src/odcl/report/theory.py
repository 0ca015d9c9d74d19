"""Results of :mod:`odcl.theory` as text: Table 1, and the terms of a bound."""

from __future__ import annotations

from collections.abc import Sequence

from odcl.report.text import markdown_table
from odcl.theory import MethodRow, MSETerms

_LEGEND = (
    "Orders: hidden constants are 1, and so is the condition number kappa unless given. C and C1 "
    "are the sizes of the smallest and the largest cluster, eps the accuracy of the local solvers. "
    "To be known: a good start, the true clusters, their number, that the gap between them is "
    "sufficient. Rounds '-': with so few samples the accuracy that IFCA reaches, K m^2 / (C^2.5 "
    "sqrt n), is no better than where it starts, 2 D, and the formula counts no rounds; a larger n "
    "or D does. Samples '-': the local solvers are so inexact (eps) that no number of samples "
    "makes up for it."
)


def method_table(rows: Sequence[MethodRow]) -> str:
    """Table 1 as Markdown that also reads well as plain text, its legend below."""
    header = ("method", "rounds", "their order", "samples per user", "order of these", "must know")
    lines = []
    for row in rows:
        needs = {
            "start": row.needs_initialization,
            "clusters": row.needs_clusters,
            "K": row.needs_k,
            "gap": row.needs_separation,
        }
        numbers = (_shown(row.rounds), row.rounds_formula, _shown(row.samples), row.samples_formula)
        known = ", ".join(name for name, needed in needs.items() if needed)
        lines.append((row.method, *numbers, known or "nothing"))
    return f"{markdown_table(header, lines, left=(0, 2, 4, 5))}\n\n{_LEGEND}"


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if 10 <= value < 1e7 else f"{value:.3g}"


def error_terms(bound: MSETerms) -> str:
    """The terms of a bound under each other, the largest named first."""
    width = max(map(len, bound.terms))
    lines = [f"  {name:<{width}}  {value:.3g}" for name, value in bound.terms.items()]
    return "\n".join([f"{bound.source}: {bound.ruling} rules", *lines])
