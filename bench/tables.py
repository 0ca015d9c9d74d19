"""Plain tables with targets, CPU seconds of two methods in turns, progress on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def progress(text: str) -> None:
    print(f"  ... {text}", file=sys.stderr, flush=True)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> None:
    """Print columns under each other: the first to the left, the others to the right."""
    cells = [list(header), *[[_text(c) for c in row] for row in rows]]
    width = [max(len(row[i]) for row in cells) for i in range(len(header))]
    print(f"\n{title}\n")
    for row in cells:
        first = row[0].ljust(width[0])
        print("  ".join([first, *(c.rjust(w) for c, w in zip(row[1:], width[1:], strict=True))]))
    if note:
        print(f"\n{note}")
    sys.stdout.flush()


def _text(cell: Any) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def at_least(value: float, target: float) -> str:
    return "met" if value >= target else "NOT MET"


def at_most(value: float, target: float) -> str:
    return "met" if value <= target else "NOT MET"


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def in_turns(
    ours: Callable[[], Any], reference: Callable[[], Any], rounds: int
) -> tuple[float, float, Any, Any]:
    """Least CPU seconds of each over some rounds, taken in turns, and what they gave."""
    mine, theirs = [], []
    for _ in range(rounds):
        seconds, a = cpu_seconds(ours)
        mine.append(seconds)
        seconds, b = cpu_seconds(reference)
        theirs.append(seconds)
    return min(mine), min(theirs), a, b
