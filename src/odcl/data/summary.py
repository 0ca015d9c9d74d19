"""Rows that lack a value, and what a schema needs to know of a table: a value that the summaries
of its pieces add up to.

A table in memory is one piece; a table beyond memory is summarized piece by piece, and its schema
is the same up to the last digits of means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from odcl._typing import Bools, Floats
from odcl.data.columns import (
    MOST_KEYS,
    Column,
    Keys,
    counted,
    gaps,
    levels_of,
    ownerless,
    read_target,
)
from odcl.data.design import FeatureSummary, NumberSummary, read_columns, summarize
from odcl.data.federation import as_ids, target_size_error
from odcl.data.roles import Roles
from odcl.data.scaling import TableMoments
from odcl.errors import Advice, InputError, Row, Rule, Setting, listing

_FEW = 20  # distinct values of a target that are remembered


class Gap(NamedTuple):
    """Where a column has no value."""

    first: Row
    rows: int  # without one

    @classmethod
    def of(cls, gap: Bools, file: str = "", before: int = 0) -> Gap:
        """``file`` and the rows ``before`` say where the rows of ``gap`` stand."""
        return cls(Row(int(gap.argmax()) + 1 + before, file), int(gap.sum()))


@dataclass(frozen=True, eq=False)
class Gaps:
    """The rows of a table that lack a value, column by column."""

    n_rows: int
    columns: dict[str, Bools]  # (n_rows,) each; columns without a gap are not here
    roles: tuple[str, ...]  # the user and the target, which can be neither filled in nor left out

    @classmethod
    def of(
        cls,
        owner: Mapping[str, Keys],
        features: Mapping[str, Column],
        target: Mapping[str, Column],
    ) -> Gaps:
        named = chain(owner.items(), features.items(), target.items())
        found = {name: gap for name, column in named if (gap := gaps(column)).any()}
        n_rows = len(next(iter(owner.values())).codes)
        return cls(n_rows, found, (*owner, *target))

    @property
    def n_incomplete(self) -> int:
        """Rows that lack a value in some column."""
        return int(np.any(list(self.columns.values()), axis=0).sum()) if self.columns else 0

    @property
    def counts(self) -> dict[str, int]:
        """Rows without a value, by column."""
        return {name: int(gap.sum()) for name, gap in self.columns.items()}

    def listed(self, file: str = "", before: int = 0) -> dict[str, Gap]:
        """The first row without a value and their number, by column."""
        return {name: Gap.of(gap, file, before) for name, gap in self.columns.items()}

    def usable(self, missing: str) -> Bools:
        """Rows to use, (n_rows,): complete ones, with "mean" all that have a user and a target."""
        unusable = np.zeros(self.n_rows, dtype=np.bool_)
        for name, gap in self.columns.items():
            if missing != "mean" or name in self.roles:
                unusable |= gap
        return ~unusable

    def checked_rows(self, missing: str, *, is_fit: bool, piece: bool = False) -> Bools:
        """The rows to use; a table with gaps is refused where ``missing`` is "error", and one
        without any row to use unless it is a ``piece`` of another."""
        if missing == "error" and self.columns:
            given = self.n_incomplete, self.n_rows, self.roles
            raise missing_error(self.listed(), *given, is_fit=is_fit)
        keep = self.usable(missing)
        if not piece and not keep.any():
            raise no_row_error(self.listed(), self.n_rows, self.roles, is_fit=is_fit)
        return keep


def refuse_gaps(columns: Mapping[Any, Column], *, fitting: bool = False) -> None:
    """Refuse columns of a frame that lack a value, by their names and rows."""
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


def no_row_error(
    lacking: Mapping[str, Gap], n_rows: int, roles: Sequence[str], *, is_fit: bool
) -> InputError:
    """Nothing is left of a table when rows that lack a value are."""
    worst = max(lacking, key=lambda name: lacking[name].rows)
    leave: tuple[str | Setting, ...] = (", or say ", Setting("missing", "mean"))
    if is_fit:
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
    spare = [column for column in lacking if column not in roles]
    without = is_fit and bool(spare)  # at prediction the columns are given
    if spare:
        advice += [", " if without else " or ", Setting("missing", "mean"), " (fill in the mean)"]
    if without:
        many = "s" * (len(spare) > 1)
        advice += [", or ", Setting("drop", spare), f" (do without the column{many})"]
    return InputError(
        *(Rule(f"Column {name!r} {what}"), " in ", row),
        f" (incomplete rows: {n_lacking} of {n_rows}{also}), and {why}. ",
        *(Advice("Say "), *advice),
        ".",
    )


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
            raise no_row_error(self.gaps, self.rows, named, is_fit=True)
        if self.largest is not None:
            error = target_size_error(*self.largest, f"Target {roles.target!r}")
            if error is not None:
                raise error

    def moments(self, table: pa.Table, roles: Roles) -> TableMoments | None:
        """Moments of the piece's design columns, where the piece alone tells what these are:
        all features are numbers, and no row lacks a value."""
        if roles.categorical or self.gaps or self.error or not self.rows:
            return None
        columns = read_columns(table, roles.features, {})
        return TableMoments.of(np.column_stack(list(columns.values())))

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
