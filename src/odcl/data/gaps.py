"""Rows that lack a value: which of a table's rows can be used, and what is said of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from odcl._typing import Bools
from odcl.data.columns import Column, Keys, gaps
from odcl.data.federation import as_ids
from odcl.errors import InputError, Row, Rule, Setting, listing


def refuse_gaps(columns: Mapping[Any, Column], *, fitting: bool = False) -> None:
    """Refuse columns that lack a value, by their names and rows."""
    found = {name: Gap.of(gap) for name, c in columns.items() if (gap := gaps(c)).any()}
    if not found:
        return
    some = ", ".join(f"{name!r} ({gap.first})" for name, gap in list(found.items())[:12])
    then = "fill it in, leave such rows out, or fit with missing='mean'."
    now = "say missing='drop' (leave such rows out) or missing='mean' (fill in the mean)."
    raise ValueError(f"Input X contains NaN: no value in column {some}: {now if fitting else then}")


def without_value(values: Any) -> Keys:
    """Which of some ids or targets are missing: code -1."""
    return Keys([], np.array([-(value is None) for value in as_ids(values).tolist()], np.intp))


def usable_rows(
    columns: Mapping[str, Column],
    owner: Mapping[str, Keys],
    goal: Mapping[str, Column],
    missing: str,
    *,
    piece: bool = False,
) -> Bools:
    """Rows to use, (n_rows,): ``missing`` decides about those that lack a value.

    An owner or a target cannot be filled in: with "mean", rows without one are left out.
    """
    lacking = {}
    for name, column in (*owner.items(), *goal.items()):
        lacking[name] = gaps(column)
    n_rows = len(next(iter(lacking.values())))
    lacking |= {name: gap for name in columns if (gap := gaps(columns[name])).any()}
    lacking = {name: lacking[name] for name in (*owner, *columns, *goal) if name in lacking}
    lacking = {name: gap for name, gap in lacking.items() if gap.any()}
    found = {name: Gap.of(gap) for name, gap in lacking.items()}
    if missing == "error" and lacking:
        n_lacking = int(np.any(list(lacking.values()), axis=0).sum())
        raise missing_error(found, n_lacking, n_rows, [*owner, *goal], is_fit=bool(goal))
    unusable = np.zeros(n_rows, dtype=np.bool_)
    for name, gap in lacking.items():
        if missing == "drop" or name in (*owner, *goal):
            unusable |= gap
    if unusable.all() and not piece:
        raise no_row_error(found, n_rows, [*owner, *goal])
    return ~unusable


class Gap(NamedTuple):
    """Where a column has no value."""

    first: Row
    rows: int  # without one

    @classmethod
    def of(cls, gap: Bools) -> Gap:
        return cls(Row(int(gap.argmax()) + 1), int(gap.sum()))


def no_row_error(lacking: Mapping[str, Gap], n_rows: int, roles: Sequence[str]) -> InputError:
    """Nothing is left of a table when rows that lack a value are."""
    worst = max(lacking, key=lambda name: lacking[name].rows)
    leave = (", or do without the column: ", Setting("drop", [worst]))
    return InputError(
        f"Not one of {n_rows} rows has all its values, and none is left to use: column "
        f"{worst!r} lacks {lacking[worst].rows}. Fill them in",
        *(() if worst in roles else leave),
        ".",
    )


def missing_error(
    lacking: Mapping[str, Gap], n_lacking: int, n_rows: int, roles: Sequence[str], *, is_fit: bool
) -> InputError:
    """Names the first row without a value, in it the first column, and the other columns.

    ``roles`` are the user and the target, which can be neither filled in nor done without.
    """
    name = min(lacking, key=lambda name: (lacking[name].first.file, lacking[name].first.number))
    row, here = lacking[name]
    also = f", {here} of them in this column" if here < n_lacking else ""
    others = [other for other in lacking if other != name]
    also += f"; also in {listing(others)}" if others else ""
    what, why = "has no value", "a model needs them all"
    if name == roles[0]:
        what, why = "names no user", "every row needs its owner"
    advice: list[str | Setting] = [Setting("missing", "drop"), " (leave these rows out)"]
    if not set(lacking) <= set(roles):
        advice += [", ", Setting("missing", "mean"), " (fill in the mean)"]
    spare = [column for column in lacking if column not in roles]
    if is_fit and spare:  # at prediction the columns are given
        many = "s" * (len(spare) > 1)
        advice += [", or ", Setting("drop", spare), f" (do without the column{many})"]
    return InputError(
        *(Rule(f"Column {name!r} {what}"), " in ", row),
        f" (incomplete rows: {n_lacking} of {n_rows}{also}), and {why}. Say ",
        *advice,
        ".",
    )
