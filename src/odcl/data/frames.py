"""Frames and arrays as scikit-learn's users pass them: features, owners and targets, checked.

Columns go by name, or by position where they have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, time, timedelta
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import column_or_1d, validate_data

from odcl._typing import Array, Bools, Floats
from odcl.data.columns import keys
from odcl.data.design import Design, DesignRows, read_columns, summarize
from odcl.data.federation import MOST_SIZE, as_ids, check_owners, owner_ids
from odcl.data.roles import check_columns, column_position, is_position, looks_at, settle
from odcl.data.summary import Gaps, refuse_gaps, without_value
from odcl.data.tables import arrow_column, as_table, check_names, collected
from odcl.errors import InputError, show


class FrameInput(BaseEstimator):  # type: ignore[misc]
    """What fit, predict and later users have in common: rows are checked and split from owners.

    What a fit settled is read off ``fitted_``.
    """

    def _first_rows(self, X: Any, y: Any, users: Any) -> tuple[Floats, Any, Bools, Design | None]:
        """Design rows and owners for a fit, which settles the columns, and the rows it uses."""
        if self.users is not None and users is not None:
            raise ValueError(
                f"Users were given twice: as column {self.users!r} of X (users={self.users!r} in "
                "the constructor) and as users=. Leave one of them out."
            )
        X = as_frame(X)
        if has_names(X):
            check_names(column_names(X), "X")
        X, chosen = self._settled(X, has_users=not (self.users is users is None))
        plain = not chosen and self.missing == "error"
        if self.users is not None or not plain:
            validate_data(self, X, reset=True, skip_check_array=True)
        if self.users is not None:
            names = list(X.columns) if has_names(X) else list(range(_width(X)))
            X, users = take_column(X, self.users)
            at = column_position(names, self.users)
            chosen = [j - (j > at) for j in chosen if j != at]
        if plain:
            X = self._numbers(X, fitting=True)
            return X, users, np.ones(len(X), np.bool_), None
        check_features(without_columns(X, chosen))
        table = feature_table(X)
        kept = np.ones(table.num_rows, np.bool_)
        kinds = dict.fromkeys(table.column_names[j] for j in chosen)
        columns = read_columns(table, table.column_names, kinds)
        if self.missing == "error":
            refuse_gaps(columns, fitting=True)
        else:
            owners = kept if users is None else as_ids(users)
            check_consistent_length(X, owners, y)
            absent = {"users": without_value(owners), "y": without_value(y)}
            kept = Gaps.of(absent, columns, {}).checked_rows(self.missing, is_fit=True)
            users = None if users is None else owners[kept]
        design = Design.of(tuple(columns), summarize(columns, kept))
        return design.rows(columns, np.flatnonzero(kept))[0], users, kept, design

    def _settled(self, X: Any, *, has_users: bool) -> tuple[Any, list[int]]:
        """The columns of a frame that are used, and positions of its categories among them."""
        chosen = _category_positions(X, self.categorical, self.users)
        if not has_names(X) or isinstance(self.users, Integral):
            return X, chosen
        own = [j for j, name in enumerate(X.columns) if name != self.users]
        spare = [j for j in _columns_of_type(X, _OPEN) if j in own and j not in chosen]
        if not spare:
            return X, chosen
        table = feature_table(without_columns(X, [j for j in range(X.shape[1]) if j not in spare]))
        names = {j: str(X.columns[j]) for j in own}
        given = tuple(names[j] for j in chosen if j in own)
        looks = looks_at(table, table.column_names)
        kept, texts = settle(tuple(names.values()), given, looks, asked=not has_users)
        left = [j for j, name in names.items() if name not in kept]
        at = [j - sum(gone < j for gone in left) for j in names if names[j] in texts]
        return (without_columns(X, left) if left else X), at

    def _later_rows(self, X: Any) -> tuple[Floats, Array | None]:
        """Design rows of a table or an array, and their owners where the users' column is there.

        Columns with names go by them, in any order and among others; an array's by position.
        """
        if isinstance(X, DesignRows):
            return X.X, None
        X = collected(X)
        ids, known = None, getattr(self, "feature_names_in_", None)
        if has_names(X) and known is not None:
            names = column_names(X)
            check_names(names, "X")
            user = self.fitted_.columns.user_name
            check_columns(self.fitted_.columns.own_names, names)
            if user in names:
                ids = self._ids(X, user)
            X = as_frame(select_columns(X, self.fitted_.columns.own_names))
        elif self.users is not None and _width(X) != self.n_features_in_ - 1:
            validate_data(self, X, reset=False, skip_check_array=True)
            at = self.users if known is None else column_position(known.tolist(), self.users)
            X, ids = take_column(X, at)
        if self.design_ is None:
            return self._numbers(X), ids
        table, design = feature_table(X), self.design_
        if table.num_columns != len(design.features):
            raise ValueError(
                f"X has {table.num_columns} features, but {type(self).__name__} is expecting "
                f"{len(design.features)} features as input."
            )
        table = table.rename_columns(list(design.features))
        try:
            columns = read_columns(table, design.features, design.kinds)
            if "mean" not in (self.missing, getattr(self.schema_, "missing", None)):
                refuse_gaps(columns)
            return design.rows(columns, np.arange(table.num_rows), self.unseen)[0], ids
        except InputError as error:  # columns are those of the fit: no advice to leave some out
            told = error.where(lambda setting: setting.name == "unseen")
            raise InputError(told.in_words("set_params({})".format)) from None

    def _owned_rows(self, X: Any, users: Any) -> tuple[Floats, Any]:
        """Design rows and their owners: from the argument, or from the users' column."""
        rows, ids = self._later_rows(X)
        if users is None:
            if ids is None and self.users is not None and not isinstance(X, DesignRows):
                names = column_names(X) if has_names(X) else ()
                check_columns([self.fitted_.columns.user_name], names)
            return rows, ids
        if ids is not None:
            given = check_owners(users, len(rows))
            pairs = zip(ids.tolist(), given.tolist(), strict=True)
            wrong = next(((j, a, b) for j, (a, b) in enumerate(pairs, 1) if a != b), None)
            if wrong is not None:
                raise ValueError(
                    "Row {} belongs to {!r} by column {!r} of X and to {!r} by users=: leave one "
                    "of them out.".format(*wrong[:2], self.fitted_.columns.user_name, wrong[2])
                )
        return rows, users

    def _numbers(self, X: Any, *, fitting: bool = False) -> Floats:
        """Columns that are numbers, checked."""
        check_features(X)
        try:
            if self.users is not None:  # names and width were checked with the users' column
                return check_array(X, dtype=np.float64, estimator=self, input_name="X")
            return validate_data(self, X, reset=fitting, dtype=np.float64)
        except ValueError as error:
            if "contains NaN" not in str(error):
                raise
            names = list(X.columns) if hasattr(X, "columns") else range(np.shape(X)[1])
            values = np.asarray(X, dtype=np.float64).T
            refuse_gaps(dict(zip(names, values, strict=True)), fitting=fitting)
            raise

    def _ids(self, X: Any, user: Any) -> Array:
        """The users' column; a run's ids may come in another type than in its table ("7" for 7)."""
        if self.schema_ is None:
            return take_column(X, user)[1]
        owner = keys(as_table(select_columns(X, [user])), user, self.schema_.user_kind)
        refuse_gaps({user: owner})
        return as_ids(owner.values)[owner.codes]

    def _checked_rows(
        self, X: Any, y: Any, users: Any
    ) -> tuple[Floats, Array, Any, Bools, Design | None]:
        """Everything that a fit is given, and which of the rows it uses."""
        if y is None:
            raise ValueError(
                f"requires y to be passed, but the target y is None: {type(self).__name__} "
                "learns to predict it."
            )
        y = column_or_1d(collected(y), warn=True)
        X, users, kept, design = self._first_rows(X, y, users)
        y = self._checked_target(y if kept.all() else y[kept])
        check_consistent_length(X, y)
        return X, y, users, kept, design

    def _rows_of_one(self, X: Any, y: Any, user: Any = None) -> tuple[Floats, Floats]:
        """The rows of one user as its model sees them, checked: features scaled, target encoded."""
        X, ids = self._later_rows(X)
        distinct = [] if ids is None else list(dict.fromkeys(ids.tolist()))
        if len(distinct) > 1:
            raise ValueError(
                f"These are rows of {len(distinct)} users, and one user is assigned at a "
                "time: pass the rows of one."
            )
        if user is not None and distinct and distinct[0] != owner_ids([user]).tolist()[0]:
            raise ValueError(
                f"These rows belong to {distinct[0]!r} by column "
                f"{self.fitted_.columns.user_name!r}, and were given as {user!r}'s: correct one of "
                "them, or leave the column out."
            )
        y = self._checked_target(column_or_1d(y))
        check_consistent_length(X, y)
        rows = np.ascontiguousarray(self.scaling_.apply(X))  # frames come column by column
        size = np.abs(rows[:, : len(self.scaling_.used)]).max(axis=0, initial=0.0)
        if (size >= MOST_SIZE).any():
            name = self.feature_names_[self.scaling_.used[size.argmax()]]
            raise ValueError(
                f"Feature {name!r} reaches {size.max():.1g} times its spread in the fit, and its "
                "squares are beyond what a computer counts with: correct that value."
            )
        return rows, self.risk_.loss.encode(self._encode_known(y))


def _width(X: Any) -> int:
    shape = X.shape if hasattr(X, "shape") else np.shape(X)
    return int(shape[1]) if len(shape) == 2 else -1


def _category_positions(X: Any, categorical: Any, users: Any) -> list[int]:
    """Positions of categories: columns named so, and columns of a frame's type for them."""
    if categorical is None:
        return _columns_of_type(X, _CATEGORIES)
    one = isinstance(categorical, str) or not isinstance(categorical, Iterable)
    names = column_names(X) if has_names(X) else list(range(max(_width(X), 0)))
    given = (categorical,) if one else categorical
    found = [column_position(names, column, "categories") for column in given]
    if users is not None and column_position(names, users) in found:
        raise ValueError(f"Column {users!r} names the users, and cannot be categorical as well.")
    return sorted({*found, *_columns_of_type(X, _CATEGORIES)})


# -- columns, whatever holds them ------------------------------------------------------------------


def take_column(X: Any, column: Any) -> tuple[Any, Array]:
    """A frame or array without one column, and that column as ids.

    A frame's column goes by its name, or by position where the name is no number; an array's by
    position, from the end if negative.
    """
    X = as_frame(X)
    if hasattr(X, "columns"):
        at = column_position(list(X.columns), column)
        own = X.iloc[:, at] if hasattr(X, "iloc") else X[:, at]
        return without_columns(X, [at]), as_ids(own)
    if sparse.issparse(X):
        raise TypeError(
            f"X is sparse, and its column {column!r} names the users: pass a dense array "
            "(X.toarray()), or the ids as users=..."
        )
    X = np.asarray(X)
    if not is_position(column) or X.ndim != 2 or not -X.shape[1] <= column < X.shape[1]:
        raise ValueError(
            f"users={column!r} names a column of X, and X is an array of shape {X.shape}: pass a "
            "frame with that column, or the column's position."
        )
    return np.delete(X, int(column), axis=1), as_ids(X[:, int(column)])


def as_frame(X: Any) -> Any:
    """An Arrow table as a frame, which scikit-learn takes; others as they are."""
    return X.to_pandas() if hasattr(X, "column_names") else collected(X)


def column_names(X: Any) -> list[Any]:
    """The names of a frame's or a table's columns."""
    return list(X.column_names if hasattr(X, "column_names") else X.columns)


def select_columns(X: Any, names: list[Any]) -> Any:
    """Some columns of a frame or a table, in this order."""
    return X.select(names) if hasattr(X, "column_names") else X[names]


def without_columns(X: Any, left_out: list[int]) -> Any:
    """A frame or array without some columns, by position."""
    if hasattr(X, "columns"):
        rest = [i for i in range(X.shape[1]) if i not in left_out]
        return X.iloc[:, rest] if hasattr(X, "iloc") else X[:, rest]
    return np.delete(np.asarray(X), left_out, axis=1)


# How types of a frame's columns begin that are categories, and of text and integers, which may be.
_CATEGORIES = ("category", "Categorical", "Enum")
_OPEN = ("object", "str", "large_str", "Str", "Utf8", "int", "uint", "Int", "UInt")


def _columns_of_type(X: Any, beginnings: tuple[str, ...]) -> list[int]:
    """Positions of a frame's columns of some types."""
    if not hasattr(X, "dtypes") or not has_names(X):
        return []
    return [j for j, kind in enumerate(X.dtypes) if str(kind).startswith(beginnings)]


def feature_table(X: Any) -> pa.Table:
    """The columns of a frame, or of an array as x0, x1, ..."""
    if has_names(X):
        return as_table(X)
    if sparse.issparse(X):
        raise TypeError("X is sparse, and has categories: pass a dense array (X.toarray()).")
    X = np.asarray(X)
    return as_table({f"x{j}": arrow_column(column) for j, column in enumerate(X.T)})


def check_features(X: Any) -> None:
    """Refuse columns of X that hold dates or text, by their names.

    Text that reads as a number is none, and other objects are scikit-learn's to refuse.
    """
    if not hasattr(X, "shape") or len(X.shape) != 2 or sparse.issparse(X):
        return
    if getattr(getattr(X, "dtype", None), "kind", "O") in "biufc":
        return
    names = list(X.columns) if hasattr(X, "columns") else range(X.shape[1])
    columns = (X.iloc[:, j] if hasattr(X, "iloc") else X[:, j] for j in range(X.shape[1]))
    odd = zip(names, map(_odd_value, map(np.asarray, columns)), strict=True)
    found = {name: seen for name, seen in odd if seen is not None}
    if not found:
        return
    texts = {name: value for name, (_, value) in found.items() if isinstance(value, str)}
    seen = [
        f"column {name!r} of X holds {'text' if name in texts else 'dates or times'} "
        f"(row {row}: {show(value) if name in texts else value})"
        for name, (row, value) in found.items()
    ]
    advice = "Turn dates into one, e.g. days since a start, or the month." * (
        len(found) > len(texts)
    )
    if any(_reads_as_number(value.replace(",", ".", 1)) for value in texts.values()):
        advice += " If these are decimal commas, put points: X[c].str.replace(',', '.')."
    elif texts:
        advice += f" Say users=... if text names them, categorical={list(texts)!r} for categories."
    told = f"{'; '.join(seen)}, and features are numbers. {advice.strip()}"
    raise ValueError(told[0].upper() + told[1:])


def _odd_value(column: Array) -> tuple[int, Any] | None:
    """The first date or text of a column that is no number, and its row from 1 on."""
    if column.dtype.kind in "biufc":
        return None
    odd = (date, time, timedelta, np.datetime64, np.timedelta64)
    for row, value in enumerate(column.tolist() if column.dtype.kind not in "mM" else column, 1):
        if isinstance(value, odd) or (isinstance(value, str) and not _reads_as_number(value)):
            return row, value
    return None


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_names(X: Any) -> bool:
    """Whether columns have names: in frames and tables."""
    return hasattr(X, "columns") or hasattr(X, "column_names")
