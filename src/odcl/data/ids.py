"""Arrays and frames as they come: whose row is it, and are the features numbers?"""

from __future__ import annotations

from datetime import date, time, timedelta
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse

from odcl._typing import Array, Ints
from odcl.data.federation import as_ids, group_rows, owner_ids
from odcl.errors import did_you_mean, show

MOST_SIZE = 1e70


def take_column(X: Any, column: Any) -> tuple[Any, Array]:
    """A frame or array without one column, and that column as ids.

    A frame's column goes by its name, or by position where the name is no number; an array's by
    position, from the end if negative.
    """
    if hasattr(X, "column_names"):  # Arrow: scikit-learn takes frames and arrays
        X = X.to_pandas()
    if hasattr(X, "columns"):
        at = column_position(list(X.columns), column)
        rest = [i for i in range(X.shape[1]) if i != at]
        if hasattr(X, "iloc"):
            return X.iloc[:, rest], as_ids(X.iloc[:, at])
        return X[:, rest], as_ids(X[:, at])
    if sparse.issparse(X):
        raise TypeError(
            f"X is sparse, and its column {column!r} names the users: pass a dense array "
            "(X.toarray()), or the ids as users=..."
        )
    X = np.asarray(X)
    if not _is_position(column) or X.ndim != 2 or not -X.shape[1] <= column < X.shape[1]:
        raise ValueError(
            f"users={column!r} names a column of X, and X is an array of shape {X.shape}: pass a "
            "frame with that column, or the column's position."
        )
    return np.delete(X, int(column), axis=1), as_ids(X[:, int(column)])


def column_position(names: list[Any], column: Any) -> int:
    """Position of the users' column among a frame's."""
    if column in names:
        return names.index(column)
    if _is_position(column) and -len(names) <= column < len(names):
        return int(column) % len(names)
    raise ValueError(f"X has no column {column!r} for the users{did_you_mean(column, names)}")


def _is_position(column: Any) -> bool:
    return isinstance(column, Integral) and not isinstance(column, bool)


def check_owners(users: Any, n_rows: int) -> Array:
    """Ids of the rows' owners, one per row and none missing."""
    if isinstance(users, str | bytes) or not hasattr(users, "__len__"):
        raise ValueError(
            f"users={users!r} is one id, and every row needs its own: pass as many ids as rows. A "
            "column of X is named in the constructor, ODCLRegressor(users='store')."
        )
    ids = owner_ids(users)
    if len(ids) != n_rows:
        raise ValueError(
            f"X has {n_rows} rows and users {len(ids)} ids, and every row needs its owner: pass as "
            "many ids as rows."
        )
    return ids


def positions(known: Array, ids: Array) -> Ints:
    """Position of each id among the known ones, -1 for those never seen, (len(ids),).

    Python looks at each distinct id once.
    """
    distinct, codes = group_rows(ids)
    sortable = known.dtype.kind in "iU" and known.dtype.kind == distinct.dtype.kind
    if sortable and (known[:-1] < known[1:]).all():
        at = np.searchsorted(known, distinct).clip(max=len(known) - 1)
        return np.where(known[at] == distinct, at, -1)[codes]
    place = {user: i for i, user in enumerate(known.tolist())}
    return np.array([place.get(user, -1) for user in distinct.tolist()], dtype=np.intp)[codes]


def check_size(y: Array, name: str = "y", rows: Ints | None = None) -> None:
    """Refuse a target whose fourth power, a variance squared, is beyond floating point.

    ``rows`` are the numbers of the rows as the reader counts them, from 0 if not given.
    """
    size = np.abs(y)
    at = int(size.argmax())
    if not (size[at] == 0 or 1 / MOST_SIZE < size[at] < MOST_SIZE):
        row = f"row {at}, counted from 0," if rows is None else f"row {rows[at]},"
        raise ValueError(
            f"{name} reaches {size[at]:g} in {row} and its squares are beyond what a computer "
            "counts with: express it in another unit, or correct the row."
        )


def check_features(X: Any) -> None:
    """Refuse a column of X that holds dates or text, by its name.

    Text that reads as a number is none, and other objects are scikit-learn's to refuse.
    """
    if not hasattr(X, "shape") or len(X.shape) != 2 or sparse.issparse(X):
        return
    if getattr(getattr(X, "dtype", None), "kind", "O") in "biufc":
        return
    names = list(X.columns) if hasattr(X, "columns") else range(X.shape[1])
    for at, name in enumerate(names):
        column = np.asarray(X.iloc[:, at] if hasattr(X, "iloc") else X[:, at])
        if column.dtype.kind not in "biufc":
            _check_feature(name, column)


def _check_feature(name: Any, column: Array) -> None:
    for row, value in enumerate(column.tolist() if column.dtype.kind not in "mM" else column):
        if isinstance(value, date | time | timedelta | np.datetime64 | np.timedelta64):
            raise ValueError(
                f"Column {name!r} of X holds dates or times (row {row}: {value}), and features are "
                "numbers: turn it into one, e.g. days since a start, or the month."
            )
        if isinstance(value, str) and not _reads_as_number(value):
            advice = "If it holds categories, encode them first, e.g. with OneHotEncoder."
            if _reads_as_number(value.replace(",", ".", 1)):
                advice = "If these are decimal commas, put points: X[c].str.replace(',', '.')."
            raise ValueError(
                f"Column {name!r} of X holds text (row {row}: {show(value)}), and features are "
                "numbers. If it names the users, say so: users=... in the constructor or in fit. "
                f"{advice}"
            )


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_names(X: Any) -> bool:
    """Is it a frame or a table, whose columns have names?"""
    return hasattr(X, "columns") or hasattr(X, "column_names")
