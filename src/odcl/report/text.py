"""Tables, sentences and notices for the terminal: a pipe gets what a person sees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.errors import count as count
from odcl.errors import number
from odcl.evaluate import NAMES, Comparison
from odcl.mixed.differences import differing

if TYPE_CHECKING:
    from odcl.theory import MethodRow

AHEAD = 0.05  # share by which another line is ahead from which a word is said of chance
MOST_GROUPS = 20  # in a table
_OPTIONS = {  # how to get what did better: on the command line, in Python
    "mixed": ("--clusters auto:1", "clusterer='auto:1'"),
    "paper": ("--paper", "method='paper'"),
    "lines": ("--no-curves", "curves=False"),
}
_ELSEWHERE = {
    "local": "a model of each user's own (l2 {l2:g}, standardised features)",
    "pooled": "an ordinary model of all rows",
    "intercepts": "a regression with a dummy per user",
}
_TABLE_1 = (
    "Orders: hidden constants are 1, and so is the condition number kappa unless given. C and C1 "
    "are the sizes of the smallest and the largest cluster, eps the accuracy of the local solvers. "
    "To be known: a good start, the true clusters, their number, that the gap between them is "
    "sufficient. Rounds '-': with so few samples the accuracy that IFCA reaches, K m^2 / (C^2.5 "
    "sqrt n), is no better than where it starts, 2 D, and the formula counts no rounds; a larger n "
    "or D does. Samples '-': the local solvers are so inexact (eps) that no number of samples "
    "makes up for it."
)


def table(header: Sequence[str], rows: Sequence[Any], *, left: Sequence[int] = ()) -> str:
    """Columns under each other: the first and ``left`` ones to the left, others to the right."""
    return "\n".join("  ".join(line).rstrip() for line in _padded([header, *rows], left))


def markdown_table(header: Sequence[str], rows: Sequence[Any], *, left: Sequence[int] = ()) -> str:
    """A table in Markdown that also reads well as plain text."""
    one_line = str.maketrans({"|": "\\|", "\n": " "})
    cells = [[str(cell).translate(one_line) for cell in line] for line in (header, *rows)]
    head, *lines = _padded(cells, left, least=3)
    ends = ["-" if c in (0, *left) else ":" for c in range(len(head))]
    rule = ["-" * (len(cell) - 1) + end for cell, end in zip(head, ends, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def _padded(rows: Sequence[Sequence[Any]], left: Sequence[int], least: int = 0) -> list[Any]:
    """The lines with cells as wide as the widest of their column."""
    columns = []
    for c, column in enumerate(zip(*rows, strict=True)):
        width = max(least, *(len(str(cell)) for cell in column))
        columns.append([f"{cell!s:{'<' if c in (0, *left) else '>'}{width}}" for cell in column])
    return list(zip(*columns, strict=True))


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


def comparison_cells(comparison: Comparison) -> tuple[list[str], list[tuple[str, ...]]]:
    """Columns and lines: mean, median and worst user of every method, score by score."""
    header, columns = ["mean user", "median user", "worst user"], []
    if comparison.log_loss:
        header = [n for c in comparison.by for n in (f"{c.metric}: mean user", "median", "worst")]
    for one in comparison.by:
        values = np.array([row[1:] for row in one.rows()])
        columns.append(np.reshape(aligned(values.ravel()), values.shape))
    cells = zip(comparison.scores, np.hstack(columns).tolist(), strict=True)
    return header, [(NAMES.get(name, name), *row) for name, row in cells]


def scored_by(comparison: Comparison) -> str:
    """The scores of a comparison on its rows, and which way is better."""
    way = [f"{'higher' if one.larger_is_better else 'lower'} is better" for one in comparison.by]
    of = f"{comparison.metric} on {count(comparison.n_rows, 'held-out row')} ({way[0]})"
    return f"{of}, log-loss ({way[1]})" if comparison.log_loss else of


def comparison_table(comparison: Comparison) -> str:
    """Mean, median and worst user of every method."""
    (header, rows), of = comparison_cells(comparison), scored_by(comparison)
    return (
        f"{of}\n{table(('', *header), rows)}" if comparison.log_loss else table((of, *header), rows)
    )


def _do(users: int) -> str:
    return "does" if users == 1 else "do"


def verdict(comparison: Comparison, *, shell: bool = False) -> str:
    """Who gained, and what is better: a sentence or two, with options of the shell or of Python."""
    ours, n = comparison.ours, comparison.n_users
    better, worse = comparison.better_off(ours, "local")
    text = (
        f"With {NAMES[ours]} {better:,} of {n:,} users {_do(better)} better than with a model of "
        f"their own, {worse:,} {_do(worse)} worse, {n - better - worse:,} the same."
    )
    if comparison.of_users:
        text = f"Compared on {n:,} of {comparison.of_users:,} users, drawn by their ids.\n{text}"
    return "\n".join([text, *(line for one in comparison.by for line in _ahead(one, shell))])


def _ahead(comparison: Comparison, shell: bool) -> Iterator[str]:
    """What is better than ours beyond chance, and what only looks like it."""
    ours, metric, rival = comparison.ours, comparison.metric, comparison.beaten_by(comparison.ours)
    mean = {name: value for name, value, *_ in comparison.rows()}
    has = {name: number(value) for name, value in mean.items()}
    if rival is not None:
        how = "For it: the default settings."
        if rival in _ELSEWHERE:
            how = f"No option of odcl gives it: use {_ELSEWHERE[rival].format(l2=comparison.l2)}."
        elif rival != "odcl":
            with_default = "the default settings and " * (rival == "lines" and ours != "odcl")
            how = f"For it: {with_default}{_OPTIONS[rival][not shell]}."
        told = NAMES[ours].replace("the ", "The ", 1)
        yield (
            f"{told} is not the best here: {NAMES[rival]} has {metric} {has[rival]} on these "
            f"rows, {NAMES[ours]} {has[ours]}, more than chance explains. {how}"
        )
    gains = {name: comparison.gain(name, ours) for name in mean}
    least = max(AHEAD * mean[ours], 1e-300)
    lucky = {name: gain for name, (gain, chance) in gains.items() if least <= gain <= chance}
    if lucky:
        first = max(lucky, key=lucky.__getitem__)
        share, n = f"{lucky[first] / mean[ours]:.0%}", count(comparison.n_users, "user")
        others = f", {len(lucky) - 1} more by less" if len(lucky) > 1 else ""
        yield (
            f"By {metric} '{NAMES[first]}' is {share} ahead of {NAMES[ours]}{others}, no more than "
            f"chance would give: with {n} it may be luck."
        )


def finding(n_groups: int, among: str, differences: Mapping[str, float] | None) -> str:
    """What was found, for the headline of a fit or a round, without its full stop.

    ``among`` is the number of users or sites ("60 users"); ``differences`` are standard deviations
    within a group, as in :func:`~odcl.mixed.differences.named_differences`, None: not known.
    """
    text = f"{n_groups:,} groups among {among}" if n_groups > 1 else f"No groups among {among}"
    if differences is None:
        return text
    who = "users of a group" if n_groups > 1 else "users"
    where = differing(differences)
    if not where:
        return f"{text}; {who} differ only by noise"
    return f"{text}; {who}{' still' * (n_groups > 1)} differ in {where}"


def group_table(labels: Ints, n_rows: Ints, users: Any) -> str:
    """Groups with their sizes and the first of their users, the largest first."""
    rows = np.bincount(labels, weights=n_rows)
    return groups_text(np.bincount(labels), rows, labels, users)


def groups_text(sizes: Any, rows: Any, labels: Ints, users: Any) -> str:
    """Groups of ``sizes`` users, largest first, with some of ``users``, in groups ``labels``."""
    order = np.argsort(-sizes, kind="stable")
    lines = []
    for k in order[:MOST_GROUPS]:
        members = users[np.flatnonzero(labels == k)[:4]].tolist()
        some = ", ".join(map(shown_id, members)) + (", ..." if sizes[k] > 4 else "")
        lines.append((f"group {k}", f"{sizes[k]:,}", f"{int(rows[k]):,}", some))
    text = table(("", "users", "rows", "such as"), lines, left=(3,))
    if len(order) <= MOST_GROUPS:
        return text
    rest = order[MOST_GROUPS:]
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


def in_bytes(n: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if n < 1000:
            return f"{n:.0f} bytes" if unit == "bytes" else f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"


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
        numbers = (_order(row.rounds), row.rounds_formula, _order(row.samples), row.samples_formula)
        known = ", ".join(name for name, needed in needs.items() if needed)
        lines.append((row.method, *numbers, known or "nothing"))
    return f"{markdown_table(header, lines, left=(0, 2, 4, 5))}\n\n{_TABLE_1}"


def _order(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if 10 <= value < 1e7 else f"{value:.3g}"
