"""Tables, sentences and notices for the terminal: a pipe gets what a person sees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.design import OTHER
from odcl.data.federation import Federation
from odcl.data.schema import Encoded, TableSchema
from odcl.data.unusual import unusual_notices
from odcl.diagnose.verdict import scattered
from odcl.errors import listing, number
from odcl.evaluate.scores import NAMES, Comparison
from odcl.mixed.differences import differing
from odcl.server.dispersion import overdispersion

if TYPE_CHECKING:
    from odcl.theory import MethodRow, MSETerms

AHEAD = 0.05  # share by which another line is ahead from which a word is said of chance
_OPTIONS = {  # how to get what did better: on the command line, in Python
    "local": ("--refit 0 --l2 {l2:g}", "method=Method(refit=0), l2={l2:g}"),
    "pooled": ("--clusters 1 --refit none", "method=Method(1, refit=None)"),
    "mixed": ("--clusters auto:1", "clusterer='auto:1'"),
    "paper": ("--paper", "method='paper'"),
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
    """The same in Markdown that also reads well as plain text."""
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


def verdict(comparison: Comparison, *, shell: bool = False) -> str:
    """Who gained, and what is better: a sentence or two, with options of the shell or of Python."""
    ours, n = comparison.ours, comparison.n_users
    better, worse = comparison.better_off(ours, "local")
    text = (
        f"With {NAMES[ours]} {better:,} of {n:,} users do better than with a model of their own, "
        f"{worse:,} do worse, {n - better - worse:,} the same."
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
        if rival == "intercepts":
            how = "odcl does not fit it: use a regression with a dummy per user."
        elif rival != "odcl":
            # One round adds up quadratic models: exact for squared loss, close for others.
            near = rival == "pooled" and metric != "RMSE"
            how = f"{'Close to it' if near else 'For it'}: "
            how += f"{_OPTIONS[rival][not shell].format(l2=comparison.l2)}."
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

    ``among`` says who was looked at ("60 users"); ``differences`` are standard deviations within a
    group by coefficient, as in :func:`~odcl.mixed.differences.named_differences`, None: not known.
    """
    text = f"{n_groups:,} groups among {among}" if n_groups > 1 else f"No groups among {among}"
    if differences is None:
        return text
    who = "users of a group" if n_groups > 1 else "users"
    where = differing(differences)
    if not where:
        return f"{text}; {who} differ only by noise"
    return f"{text}; {who}{' still' * (n_groups > 1)} differ in {where}"


def group_table(labels: Ints, n_rows: Ints, users: Any, *, most: int = 20) -> str:
    """Groups with their sizes and the first of their users, the largest first."""
    rows = np.bincount(labels, weights=n_rows)
    return groups_text(np.bincount(labels), rows, labels, users, most=most)


def groups_text(sizes: Any, rows: Any, labels: Ints, users: Any, *, most: int = 20) -> str:
    """Groups of ``sizes`` users, largest first, with some of ``users``, whose groups are told."""
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


# A column whose values spread by more or less than this is worth a word.
_WIDE, _NARROW = 1e6, 1e-6
MANY_REPEATED = 0.05  # share of rows that repeat others from which it matters
BY_CHANCE = 10  # rows of one user are equal so many times as often as rows of two: no chance


MOST_LOOKED_AT = 20_000  # users whose rows are compared one by one


@dataclass(frozen=True)
class Looked:
    """What a look at the rows of a table tells before they are scaled."""

    spread: dict[str, float]  # numeric feature -> largest minus least value
    repeated: int  # rows equal to another row of the same user
    whole: bool  # were all users looked at for that?
    unusual: list[str]  # users whose columns lie where nobody else's do, in words


def look_at(schema: TableSchema, rows: Federation, row_numbers: Ints) -> Looked:
    """``row_numbers`` (n_rows,) are the positions of the rows in the table, from 0."""
    design = dict(zip(schema.columns, rows.X.T, strict=True))
    numeric = {name: design[name] for name in schema.features if name not in schema.levels}
    spread = {name: float(np.ptp(column)) for name, column in numeric.items()}
    few = rows.some_users(MOST_LOOKED_AT)
    whole = len(few) == rows.n_users
    names = [name if name in numeric else "" for name in schema.columns]
    names.append("" if schema.classes is not None else schema.target)
    unusual = unusual_notices(rows, names, lambda row: int(row_numbers[row]) + 1)
    return Looked(spread, repeated_rows(rows if whole else rows.take(few)), whole, unusual)


def accepted(
    schema: TableSchema, encoded: Encoded, rows: Federation, looked: Looked, model: Any
) -> list[str]:
    """Everything odd about a table that the fit took as it is."""
    lines = about_values(schema, encoded, schema.missing)
    lines += _about_users(schema, rows, model) + about_columns(schema, looked.spread, model)
    lines += looked.unusual
    repeated = looked.repeated
    if repeated and not looked.whole:
        text = f"some rows repeat another row of the same user ({repeated:,} in a sample of users)"
        lines.append(text)
    elif repeated:
        verb = "repeats" if repeated == 1 else "repeat"
        text = f"{count(repeated, 'row')} {verb} another row of the same user"
        if repeated > MANY_REPEATED * len(rows.y):
            text += (
                ": if they are copies, leave them out, or users seem surer, and more different, "
                "than they are"
            )
        lines.append(text)
    few = rows.some_users(MOST_LOOKED_AT)
    scatter = scattered(overdispersion(model.result_.uploads.take(few)))
    return [*lines, scatter.rstrip(".")] if scatter else lines


def about_values(schema: TableSchema, encoded: Encoded, missing: str) -> list[str]:
    """Rows left out, values filled in, levels that the fit did not see."""
    lines = about_gaps(schema, encoded.n_dropped, encoded.missing, missing)
    for name in dict.fromkeys(column for column, _ in encoded.unseen):
        rows = {level: n for (column, level), n in encoded.unseen.items() if column == name}
        read = OTHER if name in schema.other else schema.levels[name][0]
        new = f"a new level of {name!r} ({listing(sorted(rows))})"
        lines.append(f"{count(sum(rows.values()), 'row')} with {new}, read as {read!r}")
    return lines


def about_gaps(roles: Any, dropped: int, gaps: Mapping[str, int], missing: str) -> list[str]:
    """Rows left out, and values filled in; ``gaps``: rows that lack a value, by column."""
    lines = []
    if dropped:
        nameless = gaps.get(roles.user, 0)
        more = f", {nameless:,} of them without a user's id" if nameless else ""
        lines.append(f"{count(dropped, 'row')} left out for want of a value{more}")
    filled = {name: n for name, n in gaps.items() if name not in (roles.user, roles.target)}
    if filled and missing == "mean":
        where = ", ".join(f"{name}: {n:,}" for name, n in filled.items())
        lines.append(f"{count(sum(filled.values()), 'missing value')} filled in ({where})")
    return lines


def about_single_rows(n_users: int) -> list[str]:
    return [f"{count(n_users, 'user')} with a single row"] if n_users else []


def about_strangers(n_users: int) -> list[str]:
    """Users who were not in the fit, and how they were predicted."""
    return [f"{count(n_users, 'user')} not in the fit, predicted as average users"] * (n_users > 0)


def _about_users(schema: TableSchema, federation: Federation, model: Any) -> list[str]:
    lines = []
    lines += about_single_rows(int((federation.n_rows == 1).sum()))
    one_class = np.zeros(federation.n_users, dtype=bool)
    if schema.classes is not None:
        y, starts = federation.y, federation.offsets[:-1]
        one_class = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
        if one_class.any():
            lines.append(f"{count(int(one_class.sum()), 'user')} with a single class")
    local = model.result_.local
    if local.solved is None:  # nobody needed a model alone
        return lines
    lost = int((local.prior & ~one_class).sum())
    if lost:
        what = "separable or short of a class" if schema.classes is not None else "no counts"
        lines.append(
            f"{count(lost, 'user')} without a finite model alone ({what}), given a small prior"
        )
    stopped = int((~local.converged).sum())
    if stopped:
        lines.append(f"{count(stopped, 'user')} whose local fit did not converge")
    return lines


def about_columns(schema: TableSchema, spread: dict[str, float], model: Any) -> list[str]:
    """Constant columns, and columns at a scale that few tables have."""
    constant = [n for n in schema.features if spread.get(n, len(schema.levels.get(n, ())) - 1) == 0]
    lines = []
    if constant:
        lines.append(f"{count(len(constant), 'constant column')} ({listing(constant, 3)})")
    for j, k in model.scaling_.copies[:3]:
        lines.append(f"column {schema.columns[j]!r} left out: a copy of {schema.columns[k]!r}")
    more = len(model.scaling_.copies) - 3
    if more > 0:
        lines.append(f"{count(more, 'more column')} left out: copies of others")
    odd = [n for n, width in spread.items() if width > 0 and not _NARROW <= width <= _WIDE]
    if odd:
        standard = model.method_.standardize
        done = "brought to a common scale" if standard else "and nothing is standardised"
        lines.append(f"{count(len(odd), 'column')} at an extreme scale ({listing(odd, 3)}), {done}")
    return lines


def repeated_rows(federation: Federation) -> int:
    """Rows equal to an earlier row of the same user, compared byte for byte.

    0 where rows of different users are equal about as often: features of a few values do that.
    """
    owner = federation.row_user.astype(np.float64)
    rows = np.column_stack([federation.X, federation.y.astype(np.float64), owner])
    rows += 0.0  # -0.0 is 0.0
    own, n = _times(rows), federation.n_rows.astype(np.float64)
    equal, pairs = (own * (own - 1)).sum(), (n * (n - 1)).sum()
    alike = _times(rows[:, :-1])
    others, between = (alike * (alike - 1)).sum() - equal, n.sum() ** 2 - (n**2).sum()
    if equal * between <= BY_CHANCE * others * pairs:
        return 0
    return int((own - 1).sum())


def _times(rows: Floats) -> Floats:
    """How often each different row is there."""
    rows = np.ascontiguousarray(rows)
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    return np.unique(keys, return_counts=True)[1].astype(np.float64)


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


def error_terms(bound: MSETerms) -> str:
    """The terms of a bound under each other, the largest named first."""
    width = max(map(len, bound.terms))
    lines = [f"  {name:<{width}}  {value:.3g}" for name, value in bound.terms.items()]
    return "\n".join([f"{bound.source}: {bound.ruling} rules", *lines])
