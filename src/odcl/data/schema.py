"""From a table to arrays: the fitted schema, and what it makes of a table."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.columns import Column, Keys, classes_of, owners, read_target
from odcl.data.design import UNSEEN, Design, Levels, are_keys, key_positions, read_columns
from odcl.data.federation import Federation, check_size, row_order
from odcl.data.roles import (
    MISSING,
    TASKS,
    ColumnOptions,
    Roles,
    check_choice,
    check_columns,
    looks_at,
)
from odcl.data.summary import Gaps, TableSummary
from odcl.data.tables import as_table
from odcl.declared import OPTIONAL, Check, expect, fields_from_json, fields_to_json, one_of
from odcl.errors import InputError, Row, Rule, listing, show

KINDS = ("int", "float", "bool", "text")

_FORMAT = 1


def _are_classes(values: tuple[Any, ...]) -> bool:
    return are_keys(values, 2) and list(values) == sorted(values)


Classes = Annotated[tuple[Any, ...], Check("two or more distinct keys, sorted", _are_classes)]


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as arrays, in the order of its rows. Rows that were dropped are in none of them."""

    X: Floats  # (n_rows, n_columns), C-contiguous
    y: Array | None  # (n_rows,), numbers, or positions in the schema's classes; None: not asked for
    ids: Array  # (n_users,), the users' ids in canonical order
    codes: Ints  # (n_rows,), position of each row's user in ids
    rows: Ints  # (n_rows,), position of each row in the table, from 0
    n_dropped: int  # rows of the table with missing values left out
    missing: dict[str, int]  # column -> rows without a value there, dropped ones included
    unseen: dict[tuple[str, Any], int]  # (column, level that the fit did not see) -> rows with it

    @property
    def users(self) -> Array:
        """The id of each row's user, (n_rows,)."""
        return self.ids[self.codes]

    def counts(self, before: Encoded | None = None) -> Encoded:
        """What was left out, filled in or unseen, without the rows; that of others on top."""
        none = np.zeros(0, np.intp)
        alone = replace(self, X=np.zeros((0, 0)), y=None, ids=none, codes=none, rows=none)
        if before is None:
            return alone
        return replace(
            alone,
            n_dropped=self.n_dropped + before.n_dropped,
            missing=dict(Counter(self.missing) + Counter(before.missing)),
            unseen=dict(Counter(self.unseen) + Counter(before.unseen)),
        )

    def federation(self) -> Federation:
        """The rows, user by user; built once."""
        return self._federation

    @cached_property
    def _federation(self) -> Federation:
        if self.y is None:
            raise ValueError(
                "A federation needs a target, and this table was encoded without one: "
                "say encode(table, with_target=True)."
            )
        return Federation.from_codes(self.X, self.y, self.ids, self.codes)

    def by_user(self, values: Array) -> Array:
        """Values of the rows, (n_rows, ...), in the order of the federation's rows."""
        order = row_order(self.codes)
        return values if order is None else values[order]


@dataclass(frozen=True)
class TableSchema:
    """How the columns of a table become users, design columns and a target.

    It is fitted to one table and encodes that one and every later one alike; see :class:`Design`
    for the columns of categories.
    """

    user: str  # "": all rows are one user's, and no column names it
    target: str
    features: tuple[str, ...]
    levels: dict[str, Levels]  # categorical feature -> its levels, the reference first
    fill: dict[str, float]  # numeric feature -> its mean in the fit
    missing: Annotated[str, one_of(MISSING)]
    task: Annotated[str, one_of(TASKS)]
    classes: Classes | None  # None unless task is "classification"
    user_kind: Annotated[str, one_of(KINDS)]  # the type of the ids in the fit
    # Categorical features whose unknown levels count as "other".
    other: tuple[str, ...] = field(default=(), metadata=OPTIONAL)

    @classmethod
    def fit(cls, table: Any, **options: Any) -> TableSchema:
        """Learn the schema of a table (anything that :func:`odcl.data.tables.as_table` takes).

        ``options`` are those of :class:`~odcl.data.roles.ColumnOptions`, as
        :func:`odcl.federation_from_table` explains them.
        """
        table = as_table(table)
        roles = ColumnOptions(**options).roles(table.column_names)
        roles = roles.settled(looks_at(table, roles.features))
        return cls.of(TableSummary.of(table, roles), roles)

    @classmethod
    def of(cls, summary: TableSummary, roles: Roles) -> TableSchema:
        """The schema of a table that was summarized, in memory or piece by piece."""
        summary.check(roles)
        design = Design.of(roles.features, summary.features)
        classes = None
        if roles.task == "classification":
            classes = classes_of(roles.target, summary.classes)
        named = roles.user, roles.target, roles.features, design.levels, design.fill
        return cls(*named, roles.missing, roles.task, classes, summary.user_kind)

    @property
    def design(self) -> Design:
        return Design(self.features, self.levels, self.fill, self.other)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the design columns: ``price`` for a number, ``region=north`` for a level."""
        return self.design.columns

    @property
    def text(self) -> tuple[str, ...]:
        """The columns to read as text from a file: ``read_table(path, text=schema.text)``."""
        return tuple(name for name in (self.user, *self.levels) if name)

    def encode(
        self,
        table: Any,
        *,
        with_target: bool = True,
        missing: str | None = None,
        unseen: str = "error",
        piece: bool = False,
    ) -> Encoded:
        """The table as arrays. Columns the schema does not know are ignored.

        ``missing`` overrides the schema's own way. A level that was not in the fit is an error,
        or with ``unseen="reference"`` counts as the reference level; features in ``other`` count
        it as "other". A ``piece`` of a table may have no row, or none to use.
        """
        table = table if piece else as_table(table)
        missing = self.missing if missing is None else missing
        check_choice("missing", missing, MISSING)
        check_choice("unseen", unseen, UNSEEN)
        names = (self.user, *self.features, *((self.target,) if with_target else ()))
        check_columns(filter(None, names), table.column_names)
        columns = read_columns(table, self.features, self.design.kinds)
        goal = read_target(table, self.target, self.task, self.classes) if with_target else None
        ids, codes = np.zeros(1, np.intp), np.zeros(table.num_rows, dtype=np.intp)
        if self.user:
            ids, codes = owners(table, self.user, self.user_kind)
        given = {} if goal is None else {self.target: goal}
        lacking = Gaps.of({self.user: Keys([], codes)}, columns, given)
        keep = lacking.checked_rows(missing, is_fit=False, piece=piece)
        rows = np.flatnonzero(keep)
        X, replaced = self.design.rows(columns, rows, unseen)
        codes = codes[rows]
        used = np.bincount(codes, minlength=len(ids)) > 0
        if not used.all():  # some have no row that is used
            ids, codes = ids[used], (np.cumsum(used) - 1)[codes]
        return Encoded(
            X=X,
            y=None if goal is None else self._target(goal, rows),
            ids=ids,
            codes=codes,
            rows=rows,
            n_dropped=len(keep) - len(rows),
            missing=lacking.counts,
            unseen=replaced,
        )

    def labels(self, codes: Any) -> Array:
        """The classes at the given positions: the way back from ``Encoded.y`` to the table."""
        if self.classes is None:
            raise ValueError(f"A {self.task} target has no classes.")
        return np.array(self.classes)[np.asarray(codes)]

    def to_json(self) -> dict[str, Any]:
        """The schema as a dict of JSON types; :meth:`from_json` gives it back exactly."""
        return {"format": _FORMAT, **fields_to_json(self)}

    @classmethod
    def from_json(cls, content: Any) -> TableSchema:
        """The schema that :meth:`to_json` wrote, as that dict or as its JSON text.

        Everything is checked: files may come from elsewhere.
        """
        return _read_schema(content)

    def _target(self, goal: Column, rows: Ints) -> Array:
        """Values of the target, or positions of its classes, in the given rows."""
        if not isinstance(goal, Keys):
            y = goal[rows]
            check_size(y, f"Target {self.target!r}", rows + 1)
            return y
        assert self.classes is not None
        classes = key_positions(goal.values, self.classes)[goal.codes[rows]]
        if (classes < 0).any():
            row = int(rows[(classes < 0).argmax()])
            raise InputError(
                Rule(f"Target {self.target!r} is"),
                *(f" {show(goal.values[goal.codes[row]])} in ", Row(row + 1)),
                Rule(", which is none of the classes"),
                f": {listing(self.classes)}. Correct the row, or leave it out.",
            )
        return classes


def _read_schema(content: Any) -> TableSchema:
    """A stored schema. What no fit can have written is refused."""
    if isinstance(content, str | bytes):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"This table schema is damaged: it is no JSON ({error}).") from None
    number = content.get("format") if isinstance(content, dict) else _FORMAT
    if number != _FORMAT:
        found = show(number) if isinstance(number, int) else "none"
        raise ValueError(
            f"This table schema has format {found}, and this version of odcl reads format "
            f"{_FORMAT}: read it with the version that wrote it."
        )
    try:
        expect(isinstance(content, dict), "it is not a table of names and values")
        own = {name: value for name, value in content.items() if name != "format"}
        schema = fields_from_json(TableSchema, own)
        roles = [schema.user, schema.target, *schema.features]
        expect(len(set(roles)) == len(roles), "a column stands in it twice")
        fits = (schema.classes is None) == (schema.task != "classification")
        expect(fits, "its classes do not fit its task")
        schema.design.written()
    except ValueError as error:
        why = str(error).rstrip(".")
        raise ValueError(f"This table schema is damaged or was changed: {why}.") from None
    return schema
