"""What a schema needs to know of a table, as a value that pieces of the table add up to.

A table in memory is one piece; a table beyond memory is summarized piece by piece, and its schema
is the same up to the last digits of means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from odcl._typing import Bools, Floats
from odcl.data.columns import MOST_KEYS, Keys, counted, levels_of, read_target
from odcl.data.design import FeatureSummary, NumberSummary, summarize
from odcl.data.federation import target_size_error
from odcl.data.roles import Roles
from odcl.data.rows import Gap, Gaps, missing_error, no_row_error, ownerless, read_columns
from odcl.data.scaling import Moments
from odcl.errors import InputError, Row

_FEW = 20  # distinct values of a target that are remembered


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
            raise self.named(error) from None

    def named(self, error: InputError) -> InputError:
        """The error with rows of the file."""
        return error.of_file(self.file, self.first) if self.file else error


@dataclass(frozen=True, eq=False)
class TableSummary:
    """Counts, levels, means and gaps of some rows. Summaries add up, in the order of the pieces."""

    rows: int = 0
    usable: int = 0  # rows without a gap that matters
    incomplete: int = 0  # rows that lack a value
    gaps: Mapping[str, Gap] = field(default_factory=dict)
    id_kinds: frozenset[str] = frozenset()
    features: Mapping[str, FeatureSummary] = field(default_factory=dict)
    classes: Counter[Any] = field(default_factory=Counter)
    targets: frozenset[float] = frozenset()  # distinct targets: all of up to two, else some
    whole: bool = True  # targets are whole numbers
    largest: tuple[float, Row] | None = None  # the target of the largest size
    error: InputError | None = None  # the first thing that cannot be used

    @classmethod
    def of(cls, table: pa.Table, roles: Roles, place: Place = Place()) -> TableSummary:  # noqa: B008
        """The summary of a piece. An error is kept, not raised, so that the first piece in the
        table's order decides, whichever was read first."""
        if table.num_rows == 0:
            return cls()
        try:
            return _summary(table, roles, place)
        except InputError as error:
            return cls(rows=table.num_rows, error=place.named(error))

    def __add__(self, other: TableSummary) -> TableSummary:
        gaps = dict(self.gaps)
        for name, gap in other.gaps.items():
            seen = gaps.get(name)
            gaps[name] = gap if seen is None else Gap(seen.first, seen.rows + gap.rows)
        features: dict[str, Any] = {**other.features, **self.features}
        for name in self.features.keys() & other.features.keys():
            features[name] = features[name] + other.features[name]
        sizes = [one for one in (self.largest, other.largest) if one is not None]
        return TableSummary(
            rows=self.rows + other.rows,
            usable=self.usable + other.usable,
            incomplete=self.incomplete + other.incomplete,
            gaps=gaps,
            id_kinds=self.id_kinds | other.id_kinds,
            features=features,
            classes=self.classes + other.classes,
            targets=frozenset(sorted(self.targets | other.targets)[:_FEW]),
            whole=self.whole and other.whole,
            largest=max(sizes, key=lambda one: one[0]) if sizes else None,
            error=self.error or other.error,
        )

    @classmethod
    def merged(cls, pieces: Iterable[TableSummary]) -> TableSummary:
        """The summary of a whole table."""
        return reduce(cls.__add__, pieces, cls())

    def check(self, roles: Roles) -> None:
        """Refuse a table that cannot be fitted."""
        if self.error is not None:
            raise self.error
        if self.rows == 0:
            raise InputError("The table has no rows under its columns: there is nothing to fit.")
        named = [roles.user, roles.target]
        if roles.missing == "error" and self.gaps:
            raise missing_error(self.gaps, self.incomplete, self.rows, named, is_fit=True)
        if self.usable == 0:
            raise no_row_error(self.gaps, self.rows, named)
        if self.largest is not None:
            error = target_size_error(*self.largest, f"Target {roles.target!r}")
            if error is not None:
                raise error

    def moments(self, table: pa.Table, roles: Roles) -> Moments | None:
        """Moments of the piece's design columns, where the piece alone tells what these are:
        all features are numbers, and no row lacks a value."""
        if roles.categorical or self.gaps or self.error or not self.rows:
            return None
        columns = read_columns(table, roles.features, {})
        return Moments.of(np.column_stack(list(columns.values())))

    @property
    def user_kind(self) -> str:
        """What ids are: "int", "float", "bool" or "text"."""
        if len(self.id_kinds) == 1:
            return next(iter(self.id_kinds))
        return "float" if self.id_kinds == {"int", "float"} else "text"

    @property
    def spread(self) -> dict[str, float]:
        """Largest minus least value of each numeric feature."""
        numeric = {n: f for n, f in self.features.items() if isinstance(f, NumberSummary)}
        return {name: one.high - one.low for name, one in numeric.items() if one.rows}


def _summary(table: pa.Table, roles: Roles, place: Place) -> TableSummary:
    columns = read_columns(table, roles.features, dict.fromkeys(roles.categorical))
    goal = read_target(table, roles.target, roles.task, None)
    unowned, kind = ownerless(table, roles.user)
    owner = Keys([], np.where(unowned, -1, 0))
    lacking = Gaps.of({roles.user: owner}, columns, {roles.target: goal})
    keep = lacking.usable(roles.missing)
    features = summarize(columns, keep)
    for name, found in features.items():
        if isinstance(found, Counter) and len(found) > MOST_KEYS:
            levels_of(name, found)  # raises
    told: dict[str, Any] = {}
    if isinstance(goal, Keys):
        told["classes"] = counted(goal, keep)
    elif keep.any():
        told = _of_target(goal, keep, place)
    return TableSummary(
        rows=len(keep),
        usable=int(keep.sum()),
        incomplete=lacking.n_incomplete,
        gaps=lacking.listed(place.file, place.first),
        id_kinds=frozenset({kind} if kind else ()),
        features=features,
        **told,
    )


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
