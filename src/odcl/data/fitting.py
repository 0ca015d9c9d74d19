"""What a schema learns from its table: features, levels, classes, means, and the rows to use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from odcl._typing import Bools, Floats
from odcl.data.columns import (
    Keys,
    check_column,
    gaps,
    keys,
    kind_of,
    numbers,
)
from odcl.errors import InputError, Setting, listing, show

_MOST_LEVELS = 1_000  # each level is a dense design column and a parameter of every user
_MOST_CLASSES = 1_000
_MOST_FLOAT_CLASSES = 100


def as_names(given: Iterable[str]) -> tuple[str, ...]:
    """Column names; a single one may stand for itself."""
    return (given,) if isinstance(given, str) else tuple(given)


def choose_features(
    columns: Sequence[str],
    user: str,
    target: str,
    features: Iterable[str] | None,
    drop: tuple[str, ...],
    categorical: tuple[str, ...],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the features and of the categorical ones among them."""
    asked = () if features is None else as_names(features)
    if user == target:
        raise InputError(f"Column {user!r} cannot be the user and the target at once.")
    for role, names in (("features", asked), ("drop", drop), ("categorical", categorical)):
        for name in names:
            check_column(name, columns)
            if name in (user, target):
                other = "user" if name == user else "target"
                raise InputError(
                    f"Column {name!r} is the {other}, and cannot stand in {role} as well."
                )
    both = [name for name in asked if name in drop]
    if both:
        raise InputError(f"Column {both[0]!r} is both asked for and dropped: choose one.")
    given = dict.fromkeys(columns if features is None else asked)
    chosen = tuple(name for name in given if name not in (user, target, *drop))
    idle = [name for name in categorical if name not in chosen]
    if idle:
        raise InputError(
            f"Column {idle[0]!r} is named as categorical but is not among the features: "
            f"{listing(chosen)}."
        )
    if not chosen:
        raise InputError(
            "No feature is left beside the user and the target, and a model needs at least one. "
            f"Columns: {listing(columns)}."
        )
    if any(not name.strip() for name in chosen):
        raise InputError(
            "A column has no name (a row index written along?) and would count as a feature: give "
            "it a name, or leave it out (",
            Setting("drop", [""]),
            "; in pandas, to_csv(index=False)).",
        )
    return chosen, categorical


def read_target(
    table: pa.Table, name: str, task: str, classes: tuple[Any, ...] | None
) -> Floats | Keys:
    """The target as numbers, or as keys where it is a class; counts are checked."""
    if task == "classification":
        return keys(table, name, None if classes is None else kind_of(classes))
    values = numbers(table, name, target=True)
    wrong = (values < 0) | (values != np.floor(values)) & ~np.isnan(values)
    if task == "count" and wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"Target {name!r} is {values[row]:g} in row {row + 1}, and counts are 0, 1, 2, ...: "
            "correct it, or say that it is any number: ",
            Setting("task", "regression"),
            ".",
        )
    return values


def usable_rows(columns: dict[str, Floats | Keys], target: str | None, missing: str) -> Bools:
    """Rows to use, (n_rows,): ``missing`` decides about those that lack a value."""
    lacking = {name: gaps(column) for name, column in columns.items()}
    lacking = {name: gap for name, gap in lacking.items() if gap.any()}
    n_rows = len(gaps(next(iter(columns.values()))))
    somewhere = np.zeros(n_rows, dtype=np.bool_)
    for gap in lacking.values():
        somewhere |= gap
    if missing == "error" and lacking:
        raise _missing_error(lacking, int(somewhere.sum()), n_rows, target)
    if missing == "mean":
        somewhere = lacking.get(target or "", np.zeros(n_rows, dtype=np.bool_))
    if somewhere.all():
        worst = max(lacking, key=lambda name: int(lacking[name].sum()))
        raise InputError(
            f"Not one of {n_rows} rows has all its values, and none is left to use: column "
            f"{worst!r} lacks {int(lacking[worst].sum())}. Fill them in",
            *(
                ()
                if worst == target
                else (", or do without the column: ", Setting("drop", [worst]))
            ),
            ".",
        )
    return ~somewhere


def _missing_error(
    lacking: dict[str, Bools], n_lacking: int, n_rows: int, target: str | None
) -> InputError:
    """Names the first row without a value, and in it the first column."""
    name = min(lacking, key=lambda name: int(lacking[name].argmax()))
    row = int(lacking[name].argmax()) + 1
    here = int(lacking[name].sum())
    also = f", {here} of them in this column" if here < n_lacking else ""
    fixed = target is None or name == target  # at prediction the columns are given
    advice: list[str | Setting] = [Setting("missing", "drop"), " (leave these rows out)"]
    if set(lacking) != {target}:
        advice += [", ", Setting("missing", "mean"), " (fill in the mean)"]
    if not fixed:
        advice += [", or ", Setting("drop", [name]), " (do without the column)"]
    return InputError(
        f"Column {name!r} has no value in row {row} (incomplete rows: {n_lacking} of {n_rows}"
        f"{also}), and a model needs them all. Say ",
        *advice,
        ".",
    )


def fit_levels(name: str, column: Keys, keep: Bools) -> tuple[Any, ...]:
    """Levels of a category, the most frequent first, the others sorted."""
    codes = column.codes[keep]
    counts = np.bincount(codes[codes >= 0], minlength=len(column.values))
    present = {v: int(c) for v, c in zip(column.values, counts, strict=True) if c}
    if not present:
        raise _no_value(name)
    if len(present) > _MOST_LEVELS:
        raise InputError(
            f"Column {name!r} has {len(present)} levels, and each would be a design column of its "
            f"own (at most {_MOST_LEVELS}): group them, or leave it out: ",
            Setting("drop", [name]),
            ".",
        )
    ordered = sorted(present)
    reference = max(ordered, key=present.__getitem__)  # max keeps the first of equals
    return (reference, *(v for v in ordered if v != reference))


def fit_classes(name: str, column: Keys, keep: Bools) -> tuple[Any, ...]:
    """Classes in the rows to use, sorted."""
    present = np.unique(column.codes[keep])
    classes = sorted(column.values[i] for i in present)
    if len(classes) < 2:
        raise InputError(
            f"Target {name!r} is {show(classes[0])} in every row, and classification needs two "
            "classes or more: choose another target or more rows."
        )
    most = _MOST_FLOAT_CLASSES if kind_of(classes) == "float" else _MOST_CLASSES
    if len(classes) > most:
        raise InputError(
            f"Target {name!r} has {len(classes)} distinct values ({listing(classes, 3)}): labels "
            "that are not classes. For a target that is a number say ",
            Setting("task", "regression"),
            ".",
        )
    return tuple(classes)


def fit_mean(name: str, values: Floats) -> float:
    """Mean of the values that are there, summed in units of a power of two: 1e308 is no limit."""
    values = values[~np.isnan(values)]
    if len(values) == 0:
        raise _no_value(name)
    _, exponent = math.frexp(np.abs(values).max())
    return math.ldexp(np.ldexp(values, -exponent).mean(), exponent)


def _no_value(name: str) -> InputError:
    return InputError(
        f"Column {name!r} has no value in any row, and so no mean or level to fill in: leave it "
        "out: ",
        Setting("drop", [name]),
        ".",
    )


def check_design(columns: tuple[str, ...]) -> None:
    """Refuse a design without columns, or with two of one name."""
    if not columns:
        raise InputError(
            "The features give no design column: each is a category of a single level."
        )
    seen: set[str] = set()
    for name in columns:
        if name in seen:
            raise InputError(
                f"Two design columns would be called {name!r} (a level and a column): rename one."
            )
        seen.add(name)
