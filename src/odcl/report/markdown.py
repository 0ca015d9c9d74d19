"""Markdown tables that also read well as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(
    header: Sequence[str], rows: Sequence[Sequence[Any]], *, left: Sequence[int] = (0,)
) -> str:
    """A Markdown table; the columns ``left`` stand to the left, the others to the right."""
    cells = [[_escaped(cell) for cell in line] for line in (header, *rows)]
    widths = [max(3, *(len(line[c]) for line in cells)) for c in range(len(header))]
    rule = ["-" * w if c in left else "-" * (w - 1) + ":" for c, w in enumerate(widths)]
    lines = []
    for line in (cells[0], rule, *cells[1:]):
        padded = [
            cell.ljust(w) if c in left else cell.rjust(w)
            for c, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(padded)} |")
    return "\n".join(lines)


def _escaped(cell: Any) -> str:
    return str(cell).replace("|", "\\|").replace("\n", " ")
