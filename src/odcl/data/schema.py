"""From a table to arrays: the fitted schema, and what it makes of a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odcl._typing import Array, Floats, Ints
from odcl.data.columns import (
    Column,
    Keys,
    as_names,
    fit_classes,
    gaps,
    is_numeric,
    is_text,
    keys,
    kind_of,
    not_numbers,
    numbers,
    read_target,
)
from odcl.data.design import UNSEEN, Design, are_keys, expect, key_positions
from odcl.data.federation import Federation, distinct_integers, group_rows, row_order
from odcl.data.gaps import usable_rows
from odcl.data.tables import as_table
from odcl.data.unnamed import looks_at, settle
from odcl.errors import InputError, Row, Rule, Setting, did_you_mean, listing, show

MISSING = ("error", "drop", "mean")
TASKS = ("regression", "classification", "count")
KINDS = ("int", "float", "bool", "text")

_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as arrays, in the order of its rows. Rows that were dropped are in none of them."""

    X: Floats  # (n_rows, n_columns), C-contiguous
    y: Array | None  # (n_rows,), numbers, or positions in the schema's classes; None: not asked for
    ids: Array  # (n_users,), the users' ids in canonical order
    codes: Ints  # (n_rows,), position of each row's user in ids
    rows: Ints  # (n_rows,), position of each row in the table, from 0
    n_dropped: int  # rows of the table left out for want of a value
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
    levels: dict[str, tuple[Any, ...]]  # categorical feature -> its levels, the reference first
    fill: dict[str, float]  # numeric feature -> its mean in the fit
    missing: str  # "error", "drop" or "mean"
    task: str  # "regression", "classification" or "count"
    classes: tuple[Any, ...] | None  # sorted; None unless task is "classification"
    user_kind: str  # "int", "float", "bool" or "text": the type of the ids in the fit
    other: tuple[str, ...] = ()  # categorical features whose unknown levels count as "other"

    @classmethod
    def fit(
        cls,
        table: Any,
        *,
        user: str,
        target: str,
        features: Iterable[str] | None = None,
        drop: Iterable[str] = (),
        categorical: Iterable[str] = (),
        missing: str = "error",
        task: str = "regression",
    ) -> TableSchema:
        """Learn the schema of a table (anything that :func:`odcl.data.tables.as_table` takes).

        ``features`` defaults to all columns but the user and the target; ``drop`` takes some
        away. Columns of text hold categories; those that ``features`` does not name are left out
        where nearly every row has its own level, or where integers count the rows (a warning says
        so). ``categorical`` names others, such as codes. ``missing`` says what to do with a row
        that lacks a value: "error" stops, "drop" leaves the row out, "mean" fills in the column's
        mean, or a category's most frequent level (a row without a user or a target is left out all
        the same). ``task`` says what the target is: any number, classes, or counts 0, 1, 2, ...
        """
        table = as_table(table)
        check_choice("missing", missing, MISSING)
        check_choice("task", task, TASKS)
        check_columns((user, target), table.column_names)
        names, category = table.column_names, as_names(categorical)
        chosen = choose_features(names, user, target, features, as_names(drop), category)
        looks = looks_at(table, chosen)
        chosen, category = settle(chosen, category, looks, asked=features is not None)
        columns = read_columns(table, chosen, dict.fromkeys(category))
        goal = read_target(table, target, task, None)
        owner, kind = _owner_kind(table, user)
        keep = usable_rows(columns, {user: owner}, {target: goal}, missing)
        design = Design.fit(columns, keep)
        classes = fit_classes(target, goal, keep) if isinstance(goal, Keys) else None
        return cls(
            *(user, target, chosen, design.levels, design.fill), missing, task, classes, kind
        )

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
        owner = Keys([], codes)
        given = {} if goal is None else {self.target: goal}
        keep = usable_rows(columns, {self.user: owner}, given, missing, piece=piece)
        rows = np.flatnonzero(keep)
        X, replaced = self.design.rows(columns, rows, unseen)
        codes = codes[rows]
        used = np.bincount(codes, minlength=len(ids)) > 0
        if not used.all():  # some have no row that is used
            ids, codes = ids[used], (np.cumsum(used) - 1)[codes]
        every = (*{self.user: owner}.items(), *given.items(), *columns.items())
        lacking = {name: int(gaps(column).sum()) for name, column in every}
        return Encoded(
            X=X,
            y=None if goal is None else self._target(goal, rows),
            ids=ids,
            codes=codes,
            rows=rows,
            n_dropped=len(keep) - len(rows),
            missing={name: n for name, n in lacking.items() if n},
            unseen=replaced,
        )

    def labels(self, codes: Any) -> Array:
        """The classes at the given positions: the way back from ``Encoded.y`` to the table."""
        if self.classes is None:
            raise ValueError(f"A {self.task} target has no classes.")
        return np.array(self.classes)[np.asarray(codes)]

    def to_json(self) -> dict[str, Any]:
        """The schema as a dict of JSON types; :meth:`from_json` gives it back exactly."""
        content = asdict(self)
        del content["other"]  # the design says it, where there is one
        content |= self.design.to_json()
        content["classes"] = None if self.classes is None else list(self.classes)
        return {"format": _FORMAT, **content}

    @classmethod
    def from_json(cls, content: Any) -> TableSchema:
        """The schema that :meth:`to_json` wrote, as that dict or as its JSON text.

        Everything is checked: files may come from elsewhere.
        """
        return cls(**_checked_json(content))

    def _target(self, goal: Column, rows: Ints) -> Array:
        """Values of the target, or positions of its classes, in the given rows."""
        if not isinstance(goal, Keys):
            return goal[rows]
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


def _checked_json(content: Any) -> dict[str, Any]:
    """The fields of a stored schema. What no fit can have written is refused."""
    if isinstance(content, str | bytes):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"This table schema is damaged: it is no JSON ({error}).") from None
    names = {field.name for field in fields(TableSchema)}
    expect(isinstance(content, dict), "it holds no names and values")
    if content.get("format") != _FORMAT:
        found = show(content["format"]) if isinstance(content.get("format"), int) else "none"
        raise ValueError(
            f"This table schema has format {found}, and this version of odcl reads format "
            f"{_FORMAT}: read it with the version that wrote it."
        )
    content = {"other": [], **content}
    for text, odd in (("lacks", names - set(content)), ("adds", set(content) - {"format", *names})):
        expect(not odd, f"it {text} {listing(sorted(odd), 3)}")
    user, target, features, _, _, missing, task, classes, kind, _ = (
        content[field.name] for field in fields(TableSchema)
    )
    roles = [user, target, *(features if isinstance(features, list) else ())]
    expect(all(isinstance(name, str) for name in roles), "a column's name is no text")
    expect(len(set(roles)) == len(roles), "a column stands in it twice")
    design = Design.from_json(content)
    for value, known in ((missing, MISSING), (task, TASKS), (kind, KINDS)):
        expect(isinstance(value, str) and value in known, f"it lacks one of {', '.join(known)}")
    expect((classes is None) == (task != "classification"), "its classes do not fit its task")
    if classes is not None:
        expect(are_keys(classes, 2), "its classes are not distinct keys")
        expect(classes == sorted(classes), "its classes are not in order")
    return {
        **{name: content[name] for name in names},
        "features": design.features,
        "levels": design.levels,
        "other": design.other,
        "classes": None if classes is None else tuple(classes),
    }


def check_choice(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{option} is one of {', '.join(known)}, not {show(value)}.")


def check_columns(names: Iterable[str], columns: Sequence[str]) -> None:
    """Refuse names that are not among ``columns``, with the nearest to one that is not."""
    lacking = [name for name in dict.fromkeys(names) if name not in columns]
    if lacking:
        some, near = f"Column {lacking[0]!r} is not", did_you_mean(lacking[0], columns)
        if len(lacking) > 1:
            some, near = f"Columns {listing(lacking)} are not", "."
        raise InputError(Rule(f"{some} in the table"), f"{near} Columns: {listing(columns)}.")


def read_columns(
    table: pa.Table, features: Iterable[str], kinds: Mapping[str, str | None]
) -> Mapping[str, Column]:
    """The features' columns: keys for those in ``kinds``, as what they were in the fit.

    Of a long table numbers are read when they are asked for: a copy of one column at a time.
    """
    features = tuple(features)
    others = [n for n in features if n not in kinds and not is_numeric(table[n].type)]
    if others:
        raise not_numbers(table, others)
    columns = _Columns(table, features, kinds)
    return columns if table.num_rows > _LONG else dict(columns)


_LONG = 1_000_000  # rows


class _Columns(Mapping[str, Column]):
    """Columns of a table that are read anew at every look, save for keys."""

    def __init__(
        self, table: pa.Table, features: tuple[str, ...], kinds: Mapping[str, str | None]
    ) -> None:
        self._table, self._features = table, features
        self._keys = {name: keys(table, name, kinds[name]) for name in features if name in kinds}

    def __getitem__(self, name: str) -> Column:
        return self._keys[name] if name in self._keys else numbers(self._table, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)


def _owner_kind(table: pa.Table, user: str) -> tuple[Keys, str]:
    """Which rows have an owner (codes -1: none), and what kind of ids they are.

    Ids that are integers or text need not be looked at one by one.
    """
    column = table[user]
    whole = pa.types.is_integer(column.type) and not pa.types.is_uint64(column.type)
    if (whole or is_text(column.type)) and column.null_count < len(column):
        codes = np.zeros(len(column), np.intp)
        if column.null_count:
            codes[pc.is_null(column).to_numpy()] = -1
        return Keys([], codes), "int" if whole else "text"
    owner = keys(table, user)
    return owner, kind_of(owner.values)


def owners(table: pa.Table, user: str, kind: str) -> tuple[Array, Ints]:
    """Ids in canonical order, and the position of each row's among them, -1 where it has none.

    Integers and text, by the million, without a Python object for each row.
    """
    column = table[user]
    own, empty = column.type, None
    if kind == "int" and pa.types.is_integer(own) and not pa.types.is_uint64(own):
        if column.null_count:
            empty = pc.is_null(column).to_numpy()
            column = pc.fill_null(column, pc.min(column))
        ids, codes = distinct_integers(column.to_numpy().astype(np.int64))
    elif kind == "text" and is_text(own):
        coded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        ids, rank = group_rows(coded.dictionary.to_pylist())
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        codes = np.append(rank, -1)[codes]
    else:
        found = keys(table, user, kind)
        ids, rank = group_rows(found.values)
        codes = np.append(rank, -1)[found.codes]
    codes = codes.reshape(-1).astype(np.intp)
    if empty is not None:
        codes[empty] = -1
    return ids, codes


def choose_features(
    columns: Sequence[str],
    user: str,
    target: str,
    features: Iterable[str] | None,
    drop: tuple[str, ...],
    categorical: tuple[str, ...],
) -> tuple[str, ...]:
    """Names of the features."""
    asked = () if features is None else as_names(features)
    if user == target:
        raise InputError(f"Column {user!r} cannot be the user and the target at once.")
    for role, names in (("features", asked), ("drop", drop), ("categorical", categorical)):
        check_columns(names, columns)
        for name in names:
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
    return chosen
