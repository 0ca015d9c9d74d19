"""What a schema needs to know of a table, as a value that pieces of the table add up to.

A table beyond memory is looked at piece by piece; the schema of the merged summary is the one that
:meth:`TableSchema.fit` reads off the whole table, up to the last digits of means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odcl._typing import Bools, Floats
from odcl.data.columns import (
    MOST_KEYS,
    Keys,
    as_names,
    classes_of,
    counted,
    fit_mean,
    gaps,
    is_text,
    keys,
    kind_of,
    levels_of,
    read_target,
)
from odcl.data.design import Design
from odcl.data.federation import MOST_SIZE
from odcl.data.gaps import Gap, missing_error, no_row_error, usable_rows
from odcl.data.schema import (
    MISSING,
    TASKS,
    TableSchema,
    check_choice,
    check_columns,
    choose_features,
    read_columns,
)
from odcl.data.unnamed import Look, settle
from odcl.errors import InputError, Row

_FEW = 20  # distinct values of a target that are remembered


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are taken for, before any row is read."""

    user: str
    target: str
    features: tuple[str, ...]
    categorical: tuple[str, ...] = ()
    missing: str = "error"
    task: str = "regression"
    asked: bool = False  # features were asked for by name

    @classmethod
    def of(
        cls,
        columns: Iterable[str],
        *,
        user: str,
        target: str,
        features: Iterable[str] | None = None,
        drop: Iterable[str] = (),
        categorical: Iterable[str] = (),
        missing: str = "error",
        task: str = "regression",
    ) -> Roles:
        """The options of :meth:`TableSchema.fit`, checked against the columns' names."""
        names, category = list(columns), as_names(categorical)
        check_choice("missing", missing, MISSING)
        check_choice("task", task, TASKS)
        check_columns((user, target), names)
        chosen = choose_features(names, user, target, features, as_names(drop), category)
        return cls(user, target, chosen, category, missing, task, features is not None)

    def settled(self, looks: Mapping[str, Look]) -> Roles:
        """The roles once the columns' values were looked at, as :meth:`TableSchema.fit` does."""
        chosen, category = settle(self.features, self.categorical, looks, asked=self.asked)
        return replace(self, features=chosen, categorical=category)

    @property
    def columns(self) -> list[str]:
        return [self.user, *self.features, self.target]


@dataclass(frozen=True)
class Place:
    """Where a piece of a table comes from: which rows of which file."""

    file: str = ""
    first: int = 0  # of its rows, counted from 0

    @contextmanager
    def naming_rows(self) -> Iterator[None]:
        """Errors name rows by their file."""
        try:
            yield
        except InputError as error:
            raise error.of_file(self.file, self.first) from None


@dataclass(frozen=True, eq=False)
class TableSummary:
    """Counts, levels, means and gaps of some rows. Summaries add up, in the order of the pieces."""

    rows: int = 0
    usable: int = 0  # rows that are left when those that lack a value are
    incomplete: int = 0  # rows that lack a value
    gaps: Mapping[str, Gap] = field(default_factory=dict)
    id_kinds: frozenset[str] = frozenset()
    levels: Mapping[str, Mapping[Any, int]] = field(default_factory=dict)  # rows of each level
    classes: Mapping[Any, int] = field(default_factory=dict)
    means: Mapping[str, tuple[int, float]] = field(
        default_factory=dict
    )  # (rows with a value, mean)
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # least and largest value
    targets: frozenset[float] = frozenset()  # distinct targets, a few
    whole: bool = True  # targets are whole numbers
    largest: tuple[float, Row] | None = None  # the target of the largest size
    error: InputError | None = None  # the first thing that cannot be used

    @classmethod
    def of(cls, table: pa.Table, roles: Roles, place: Place = Place()) -> TableSummary:  # noqa: B008
        """The summary of a piece. What cannot be used is in it, and not raised: the first piece
        that has something to say is heard, whichever was read first."""
        if table.num_rows == 0:
            return cls()
        try:
            return _summary(table, roles, place)
        except InputError as error:
            return cls(rows=table.num_rows, error=error.of_file(place.file, place.first))

    def __add__(self, other: TableSummary) -> TableSummary:
        gaps = dict(self.gaps)
        for name, gap in other.gaps.items():
            seen = gaps.get(name)
            gaps[name] = gap if seen is None else Gap(seen.first, seen.rows + gap.rows)
        sizes = [one for one in (self.largest, other.largest) if one is not None]
        return TableSummary(
            rows=self.rows + other.rows,
            usable=self.usable + other.usable,
            incomplete=self.incomplete + other.incomplete,
            gaps=gaps,
            id_kinds=self.id_kinds | other.id_kinds,
            levels=_few_keys(
                {
                    name: _sum(self.levels.get(name, {}), other.levels.get(name, {}))
                    for name in {**self.levels, **other.levels}
                }
            ),
            classes=_sum(self.classes, other.classes),
            means={
                name: _mean(self.means.get(name), other.means.get(name))
                for name in {**self.means, **other.means}
            },
            ends={
                name: _ends(self.ends.get(name), other.ends.get(name))
                for name in {**self.ends, **other.ends}
            },
            targets=frozenset(sorted(self.targets | other.targets)[:_FEW]),
            whole=self.whole and other.whole,
            largest=max(sizes, key=lambda one: one[0]) if sizes else None,
            error=self.error or other.error,
        )

    @property
    def spread(self) -> dict[str, float]:
        """Largest minus least value of each numeric feature."""
        return {name: high - low for name, (low, high) in self.ends.items()}

    @classmethod
    def merged(cls, pieces: Iterable[TableSummary]) -> TableSummary:
        return reduce(cls.__add__, pieces, cls())

    def schema(self, roles: Roles) -> TableSchema:
        """The schema of the whole table, or the error that :meth:`TableSchema.fit` would raise."""
        if self.error is not None:
            raise self.error
        if self.rows == 0:
            raise InputError("The table has no rows under its columns: there is nothing to fit.")
        named = [roles.user, roles.target]
        if roles.missing == "error" and self.gaps:
            raise missing_error(self.gaps, self.incomplete, self.rows, named, is_fit=True)
        if self.usable == 0:
            raise no_row_error(self.gaps, self.rows, named)
        self._check_target(roles)
        levels = {n: levels_of(n, self.levels.get(n, {})) for n in roles.categorical}
        for name in roles.features:
            if name not in levels and name not in self.means:
                fit_mean(name, np.empty(0))  # raises: no row has a value
        design = Design(
            roles.features,
            {name: levels[name] for name in roles.features if name in levels},
            {name: self.means[name][1] for name in roles.features if name not in levels},
        ).checked()
        classes = None
        if roles.task == "classification":
            classes = classes_of(roles.target, self.classes)
        given = (roles.features, design.levels, design.fill)
        kind = _common_kind(self.id_kinds)
        return TableSchema(
            *(roles.user, roles.target, *given, roles.missing, roles.task, classes, kind)
        )

    def _check_target(self, roles: Roles) -> None:
        if roles.task == "classification" or self.largest is None:
            return
        size, row = self.largest
        if not (size == 0 or 1 / MOST_SIZE < size < MOST_SIZE):
            raise InputError(
                *(f"Target {roles.target!r} reaches {size:g} in ", row),
                " and its squares are beyond what a computer counts with: express it in another "
                "unit, or correct the row.",
            )


def _summary(table: pa.Table, roles: Roles, place: Place) -> TableSummary:
    columns = read_columns(table, roles.features, dict.fromkeys(roles.categorical))
    goal = read_target(table, roles.target, roles.task, None)
    unowned, kind = ownerless(table, roles.user)
    owner = Keys([], np.where(unowned, -1, 0))
    named = {roles.user: owner, **columns, roles.target: goal}
    lacking = {name: gap for name, c in named.items() if (gap := gaps(c)).any()}
    drop = "drop" if roles.missing == "error" else roles.missing  # the sum of all pieces decides
    given = ({roles.user: owner}, {roles.target: goal})
    keep = usable_rows(columns, *given, drop, piece=True)
    levels = {n: counted(c, keep) for n, c in columns.items() if isinstance(c, Keys)}
    told: dict[str, Any] = {}
    if isinstance(goal, Keys):
        told["classes"] = counted(goal, keep)
    elif keep.any():
        told = _of_target(goal, keep, place)
    numeric = {n: c[keep] for n, c in columns.items() if not isinstance(c, Keys)}
    numeric = {n: values for n, values in numeric.items() if not np.isnan(values).all()}
    return TableSummary(
        rows=len(keep),
        usable=int(keep.sum()),
        incomplete=int(np.any(list(lacking.values()), axis=0).sum()) if lacking else 0,
        gaps={name: _gap(gap, place) for name, gap in lacking.items()},
        id_kinds=frozenset({kind} if kind else ()),
        levels=_few_keys(levels),
        means={
            n: (int((~np.isnan(values)).sum()), fit_mean(n, values))
            for n, values in numeric.items()
        },
        ends={n: (float(np.nanmin(v)), float(np.nanmax(v))) for n, v in numeric.items()},
        **told,
    )


def _gap(gap: Bools, place: Place) -> Gap:
    return Gap(Row(int(gap.argmax()) + 1 + place.first, place.file), int(gap.sum()))


def _of_target(goal: Floats, keep: Bools, place: Place) -> dict[str, Any]:
    values, rows = goal[keep], np.flatnonzero(keep)
    at = int(np.abs(values).argmax())
    head = np.unique(values[:1000])
    if len(head) <= 2:  # else a look is enough: they are no classes
        head = np.unique(values)
    return {
        "targets": frozenset([*head[:_FEW].tolist(), float(values.min())]),
        "whole": bool((values == np.floor(values)).all()),
        "largest": (
            float(np.abs(values[at])),
            Row(int(rows[at]) + 1 + place.first, place.file),
        ),
    }


def ownerless(table: pa.Table, user: str) -> tuple[Bools, str]:
    """Rows without an owner, and what ids look like; no Python object per id is made."""
    column = table[user]
    kind = column.type
    if pa.types.is_integer(kind) or is_text(kind) or pa.types.is_boolean(kind):
        empty = pc.is_null(column).to_numpy()
        word = "text" if is_text(kind) else "bool" if pa.types.is_boolean(kind) else "int"
        return empty, "" if empty.all() else word
    if pa.types.is_floating(kind):
        values = pc.cast(column, pa.float64(), safe=False).to_numpy()
        empty = np.isnan(values)
        if np.isfinite(values[~empty]).all():
            whole = bool((values[~empty] == np.floor(values[~empty])).all())
            return empty, "" if empty.all() else "int" if whole else "float"
    found = keys(table, user)  # other types; an infinite id is refused there
    return gaps(found), kind_of(found.values) if found.values else ""


def _common_kind(kinds: frozenset[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    return "float" if kinds == {"int", "float"} else "text"


def _few_keys(levels: dict[str, dict[Any, int]]) -> dict[str, dict[Any, int]]:
    """The same, unless a category has more levels than a model may have."""
    for name, present in levels.items():
        if len(present) > MOST_KEYS:
            levels_of(name, present)  # raises
    return levels


def _sum(one: Mapping[Any, int], other: Mapping[Any, int]) -> dict[Any, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def _mean(one: tuple[int, float] | None, other: tuple[int, float] | None) -> tuple[int, float]:
    if one is None or other is None:
        found = one or other
        assert found is not None
        return found
    n = one[0] + other[0]
    return n, one[1] * (one[0] / n) + other[1] * (other[0] / n)


def _ends(
    one: tuple[float, float] | None, other: tuple[float, float] | None
) -> tuple[float, float]:
    found = [ends for ends in (one, other) if ends is not None]
    return min(low for low, _ in found), max(high for _, high in found)
