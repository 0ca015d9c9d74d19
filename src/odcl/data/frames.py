"""Columns of frames and arrays, as scikit-learn's users pass them: by name or by position."""

from __future__ import annotations

from datetime import date, time, timedelta
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from odcl._typing import Array
from odcl.data.federation import as_ids
from odcl.data.tables import as_table, collected
from odcl.data.write import arrow_column
from odcl.errors import did_you_mean, show


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
    if not _is_position(column) or X.ndim != 2 or not -X.shape[1] <= column < X.shape[1]:
        raise ValueError(
            f"users={column!r} names a column of X, and X is an array of shape {X.shape}: pass a "
            "frame with that column, or the column's position."
        )
    return np.delete(X, int(column), axis=1), as_ids(X[:, int(column)])


def column_position(names: list[Any], column: Any, what: str = "the users") -> int:
    """Position of a column, by its name or position, among a frame's."""
    if column in names:
        return names.index(column)
    if _is_position(column) and -len(names) <= column < len(names):
        return int(column) % len(names)
    raise ValueError(f"X has no column {column!r} for {what}{did_you_mean(column, names)}")


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


def category_columns(X: Any) -> list[int]:
    """Positions of a frame's columns whose type says that they hold categories."""
    return _columns_of_type(X, ("category", "Categorical", "Enum"))


def open_columns(X: Any) -> list[int]:
    """Positions of a frame's columns of text and of integers: values decide what they are."""
    text, whole = ("object", "str", "large_str", "Str", "Utf8"), ("int", "uint", "Int", "UInt")
    return _columns_of_type(X, text + whole)


def _columns_of_type(X: Any, beginnings: tuple[str, ...]) -> list[int]:
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


def _is_position(column: Any) -> bool:
    return isinstance(column, Integral) and not isinstance(column, bool)


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
    """Is it a frame or a table, whose columns have names?"""
    return hasattr(X, "columns") or hasattr(X, "column_names")


def is_dask_frame(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "dask" and hasattr(data, "to_delayed")
