"""What is odd about a table that was taken as it is: a line of text for each finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.design import OTHER
from odcl.data.federation import Federation
from odcl.data.scaling import Scaling
from odcl.data.schema import Encoded, TableSchema
from odcl.data.unusual import SAMPLE, Unusual, sample_moments, unusual_users
from odcl.errors import count, listing, number, show

# A column whose values spread by more or less than this is worth a word.
_WIDE, _NARROW = 1e6, 1e-6
MANY_REPEATED = 0.05  # share of repeated rows above which they matter
BY_CHANCE = 10  # equal rows within users this many times as frequent as between users: no chance
MOST_LOOKED_AT = 20_000  # users whose rows are compared one by one
MOST_NAMED = 3  # users, and cells of a column, named in a line
RARE, COMMON = 3, 20  # rows of a class that may be mistyped, and of others that are none


@dataclass(frozen=True)
class TableCheck:
    """Findings about the rows of a table, made before they are scaled."""

    spread: dict[str, float]  # numeric feature -> largest minus least value
    single_rows: int  # users with one row
    single_class: Bools  # (n_users,), users whose rows are all of one class
    classes: dict[Any, int]  # rows of each class
    repeated: list[str]  # a line on rows equal to another row of the same user, if there are any
    unusual: list[str]  # lines on users whose columns lie where nobody else's do


def check_rows(schema: TableSchema, rows: Federation, row_numbers: Ints) -> TableCheck:
    """``row_numbers`` (n_rows,) are the positions of the rows in the table, from 0."""
    design = dict(zip(schema.columns, rows.X.T, strict=True))
    numeric = {name: design[name] for name in schema.features if name not in schema.levels}
    names = [name if name in numeric else "" for name in schema.columns]
    names.append("" if schema.classes is not None else schema.target)
    one_class, classes = np.zeros(rows.n_users, dtype=np.bool_), dict[Any, int]()
    if schema.classes is not None:
        y, starts = rows.y, rows.offsets[:-1]
        one_class = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
        counts = np.bincount(y.astype(np.intp), None, len(schema.classes)).tolist()
        classes = dict(zip(schema.classes, counts, strict=True))
    return TableCheck(
        spread={name: float(np.ptp(column)) for name, column in numeric.items()},
        single_rows=int((rows.n_rows == 1).sum()),
        single_class=one_class,
        classes=classes,
        repeated=about_repeated(rows),
        unusual=unusual_notices(rows, names, lambda row: int(row_numbers[row]) + 1),
    )


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
        lines.append(f"{count(dropped, 'row')} with missing values left out{more}")
    filled = {name: n for name, n in gaps.items() if name not in (roles.user, roles.target)}
    if filled and missing == "mean":
        where = ", ".join(f"{name}: {n:,}" for name, n in filled.items())
        lines.append(f"{count(sum(filled.values()), 'missing value')} filled in ({where})")
    return lines


def about_users(single_rows: int, single_class: int = 0) -> list[str]:
    """Users with a single row, or with rows of a single class."""
    lines = [f"{count(single_rows, 'user')} with a single row"] if single_rows else []
    return lines + [f"{count(single_class, 'user')} with a single class"] * (single_class > 0)


def about_classes(target: str, rows: Mapping[Any, int]) -> list[str]:
    """Classes that look mistyped; ``rows`` are those of each class."""
    lines, first = [], dict[str, Any]()  # of the classes that differ in case and spaces alone
    for name in sorted(rows, key=rows.__getitem__, reverse=True):
        first.setdefault(_folded(name), name)
    common = [str(name) for name, n in rows.items() if n >= COMMON]
    for name, n in rows.items():
        near = [first[_folded(name)]] if first[_folded(name)] != name else []
        if not near and (n > RARE or len(common) < 2):
            continue
        near = near or get_close_matches(str(name), common, 1)
        meant = f"mistyped for {show(near[0])}? If so," if near else "if that is a mistake,"
        own = f"{count(n, 'row')} with {target} {show(name)}, a class of its own"
        lines.append(f"{own}: {meant} correct such rows, or leave them out")
    return lines[:MOST_NAMED]


def _folded(name: Any) -> str:
    return " ".join(str(name).casefold().split())


def about_strangers(n_users: int) -> list[str]:
    """Users who were not in the fit, and how they were predicted."""
    return [f"{count(n_users, 'user')} not in the fit, predicted as average users"] * (n_users > 0)


def about_beyond(n_rows: int) -> list[str]:
    """Rows beyond the values that curves were seen at."""
    lie = "lies" if n_rows == 1 else "lie"
    told = f"{count(n_rows, 'row')} {lie} beyond the values that were seen: curves go on as lines"
    return [told] * (n_rows > 0)


def about_columns(
    schema: TableSchema, spread: Mapping[str, float], scaling: Scaling, *, standardize: bool
) -> list[str]:
    """Constant columns, copies, and columns at a scale that few tables have."""
    constant = [n for n in schema.features if spread.get(n, len(schema.levels.get(n, ())) - 1) == 0]
    lines = []
    if constant:
        lines.append(f"{count(len(constant), 'constant column')} ({listing(constant, 3)})")
    for j, k in scaling.copies[:3]:
        lines.append(f"column {schema.columns[j]!r} left out: a copy of {schema.columns[k]!r}")
    more = len(scaling.copies) - 3
    if more > 0:
        lines.append(f"{count(more, 'more column')} left out: copies of others")
    odd = [n for n, width in spread.items() if width > 0 and not _NARROW <= width <= _WIDE]
    if odd:
        done = "brought to a common scale" if standardize else "and nothing is standardised"
        lines.append(f"{count(len(odd), 'column')} at an extreme scale ({listing(odd, 3)}), {done}")
    return lines


def about_repeated(rows: Federation) -> list[str]:
    """Rows that repeat another row of the same user; of many users, among a sample."""
    few = rows.some_users(MOST_LOOKED_AT)
    sampled = len(few) < rows.n_users
    repeated = repeated_rows(rows.take(few) if sampled else rows)
    if not repeated:
        return []
    if sampled:
        return [
            f"some rows repeat another row of the same user ({repeated:,} in a sample of users)"
        ]
    verb = "repeats" if repeated == 1 else "repeat"
    text = f"{count(repeated, 'row')} {verb} another row of the same user"
    if repeated > MANY_REPEATED * len(rows.y):
        text += (
            ": if they are copies, leave them out, or users seem surer, and more different, than "
            "they are"
        )
    return [text]


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


# -- users whose columns lie where nobody else's do -----------------------------------------------


class LoneCell(NamedTuple):
    """The one cell that makes a user's column vary as nobody else's does."""

    row: int  # among the rows of the federation
    value: float
    low: float  # of the user's other rows
    high: float


def lone_cell(rows: Federation, user: int, column: int) -> LoneCell | None:
    """The cell without which the user's column would vary less than a tenth as much, if any."""
    own = rows.X[rows.rows(user), column] if column < rows.n_features else rows.y[rows.rows(user)]
    if len(own) < 4:
        return None
    at = int(np.argmax(np.abs(own - np.median(own))))
    rest = np.delete(own, at)
    if own.std() <= 10 * rest.std():
        return None
    found = int(rows.offsets[user]) + at
    return LoneCell(found, *(float(v) for v in (own[at], rest.min(), rest.max())))


def unusual_lines(
    found: Unusual,
    users: Array,
    names: Sequence[str],
    rows: Federation | None = None,
    row_number: Callable[[int], int] | None = None,
    *,
    called: str = "user",
) -> list[str]:
    """A notice for each column in which users lie outside; ``names`` end with the target's.

    Columns without a name are passed over. With ``rows`` a cell that stands alone is named, by its
    ``row_number`` in the table, from 1.
    """
    lines = []
    for j, name in enumerate(names):
        wide = np.flatnonzero(found.wide[:, j] * bool(name)).tolist()
        far = np.flatnonzero(found.far[:, j] * bool(name)).tolist()
        cells = {} if rows is None else {i: lone_cell(rows, i, j) for i in wide}
        alone = {i: cell for i, cell in cells.items() if cell is not None}
        for i, cell in list(alone.items())[:MOST_NAMED]:
            where = "" if row_number is None else f"row {row_number(cell.row):,}, "
            lines.append(
                f"{where}user {show(users.tolist()[i])}: {name} is {number(cell.value, 6)}, and "
                f"{number(cell.low)} to {number(cell.high)} in the user's other rows: mistyped, or "
                "a code for a missing value?"
            )
        if len(alone) > MOST_NAMED:
            lines.append(f"{len(alone) - MOST_NAMED:,} more users with one such value of {name}")
        loud = [i for i in wide if i not in alone]
        if loud:
            times = number(float(np.median(found.wide[loud, j])))
            text = f"{name} varies {times} times as much as everybody else's: another unit?"
            lines.append(f"{_who(users, loud, called)}: {text}")
        away = [i for i in far if i not in wide]
        if away:
            gap = number(float(np.median(np.abs(found.far[away, j]))))
            text = f"{name} lies {gap} away from everybody else's: another unit?"
            lines.append(f"{_who(users, away, called)}: {text}")
    return lines


def _who(users: Array, some: list[int], called: str) -> str:
    names = ", ".join(show(user) for user in users[some[:MOST_NAMED]].tolist())
    if len(some) == 1:
        return f"{called} {names}"
    return f"{len(some):,} {called}s ({names}{', ...' * (len(some) > MOST_NAMED)})"


def unusual_notices(
    rows: Federation, names: Sequence[str], row_number: Callable[[int], int]
) -> list[str]:
    """What is odd about some users of a table; ``names`` and ``row_number`` as above."""
    found = unusual_users(sample_moments(rows))
    if not found.users.any():
        return []
    few = rows.some_users(SAMPLE)
    at, part = rows.rows_of(few), rows.take(few)
    return unusual_lines(found, part.users, names, part, lambda row: row_number(int(at[row])))
