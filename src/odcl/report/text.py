"""Tables and sentences for the terminal: plain text, so that a pipe gets what a person sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.evaluate.comparison import Comparison

NAMES = {
    "local": "one model per user",
    "pooled": "one model for all",
    "paper": "the paper's setting",
    "odcl": "odcl",
}


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, left: Sequence[int] = ()) -> str:
    """Columns under each other: the first and ``left`` ones to the left, others to the right."""
    cells = [list(map(str, header)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(row[c]) for row in cells) for c in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if c == 0 or c in left else cell.rjust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def aligned(values: Any) -> list[str]:
    """Numbers with one number of decimals, so that the smallest shows three digits or more."""
    numbers: Floats = np.asarray(values, dtype=np.float64)
    sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    if len(sizes) == 0:
        return [f"{v:g}" for v in numbers]
    digits = 2 - math.floor(math.log10(sizes.min()))
    if digits > 8 or sizes.max() >= 1e9 or sizes.max() >= 1e5 * sizes.min():
        return [f"{v:.3g}" for v in numbers]
    return [f"{v:.{max(digits, 0)}f}" for v in numbers]


def comparison_table(comparison: Comparison) -> str:
    """local / one model for all / the paper's setting / odcl: mean, median and worst user."""
    best = "higher" if comparison.larger_is_better else "lower"
    of = f"{comparison.metric} on {count(comparison.n_rows, 'held-out row')} ({best} is better)"
    names, *columns = zip(*comparison.rows(), strict=True)
    shown = aligned(np.concatenate(columns))
    cells = [shown[i :: len(names)] for i in range(len(names))]
    rows = [(NAMES.get(name, name), *cell) for name, cell in zip(names, cells, strict=True)]
    return table((of, "mean user", "median user", "worst user"), rows)


def verdict(comparison: Comparison) -> str:
    """Who gained: one sentence."""
    better, worse = comparison.better_off("odcl", "local")
    n = comparison.n_users
    return (
        f"With odcl {better:,} of {n:,} users do better than with a model of their own, "
        f"{worse:,} do worse, {n - better - worse:,} the same."
    )


def differences_text(differences: dict[str, float], n_groups: int, *, most: int = 6) -> str:
    """Which coefficients users of a group still differ in, and by how much; empty: in none."""
    vary = {name: sd for name, sd in differences.items() if sd > 0}
    same = [name for name in differences if name not in vary]
    if not vary:
        return ""
    who = "Users of a group still" if n_groups > 1 else "Users"
    ordered = sorted(vary.items(), key=lambda item: item[0] != "(level)")
    words = [
        f"{'their level' if name == '(level)' else name} "
        f"({'standard deviation ' * (i == 0)}{sd:.3g})"
        for i, (name, sd) in enumerate(ordered[:most])
    ]
    if len(ordered) > most:
        words.append(f"{len(ordered) - most} more")
    text = f"{who} differ in {_listed(words)}"
    if not same:
        return f"{text}."
    named = ["the level" if name == "(level)" else name for name in same[:most]]
    named += [f"{len(same) - most} more"] if len(same) > most else []
    return f"{text}; {_listed(named)} {'is' if len(same) == 1 else 'are'} the same for all of them."


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def group_table(labels: Ints, n_rows: Ints, users: Any, *, most: int = 20) -> str:
    """Groups with their sizes and the first of their users, the largest first."""
    sizes = np.bincount(labels)
    rows = np.bincount(labels, weights=n_rows)
    order = np.argsort(-sizes, kind="stable")
    lines = []
    for k in order[:most]:
        members = users[np.flatnonzero(labels == k)[:4]].tolist()
        some = ", ".join(map(shown_id, members)) + (", ..." if sizes[k] > 4 else "")
        lines.append((f"group {k}", f"{sizes[k]:,}", f"{int(rows[k]):,}", some))
    text = table(("", "users", "rows", "such as"), lines, left=(3,))
    if len(order) <= most:
        return text
    rest = order[most:]
    return (
        f"{text}\n... and {count(len(rest), 'more group')} of "
        f"{count(int(sizes[rest].sum()), 'user')} (all in groups.csv)"
    )


def shown_id(user: Any, most: int = 24) -> str:
    """An id for the terminal: short, and without characters that would move the cursor."""
    if user is None:
        return "(no id)"
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(user)[: most + 1])
    return text if len(text) <= most else f"{text[: most - 3]}..."


def count(n: int, what: str) -> str:
    """'1 row', '2,000 rows'; the last word takes the plural."""
    if n == 1:
        return f"1 {what}"
    plural = f"{what}es" if what.endswith(("s", "x")) else f"{what}s"
    return f"{n:,} {plural}"


def in_bytes(n: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if n < 1000:
            return f"{n:.0f} bytes" if unit == "bytes" else f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"
