"""One column of a table as numbers or as keys, with errors that name the row and the value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import distinct_integers, group_rows
from odcl.errors import Advice, InputError, Row, Rule, Setting, listing, show

# A number as pyarrow's CSV reader takes it: no thousands separators, a decimal point.
NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
DECIMAL_COMMA = r"^\s*[+-]?[0-9]+,[0-9]+\s*$"
_COMMA_NUMBER = r"^\s*[+-]?[0-9]+(,[0-9]+)?\s*$"
_THOUSANDS = r"^\s*[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+\s*$"  # 1,234 may be meant as 1234
_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_WHOLE_FLOAT = r"^(0|-?[1-9][0-9]*)\.0$"  # how pandas writes integers beside a missing one

MOST_KEYS = 1_000  # each level or class is a parameter of every user, a level a dense column too
_MOST_FLOAT_CLASSES = 100


class Keys(NamedTuple):
    """A column of repeated values: what they are, and which one each row holds."""

    values: list[Any]  # distinct, each an int, float, bool or str
    codes: Ints  # (n_rows,), position in values; -1 where the row has no value


Column = Floats | Keys


def numbers(table: pa.Table, name: str, *, target: bool = False) -> Floats:
    """A column as (n_rows,) float64, NaN where it has no value.

    Booleans are 0 and 1; integers beyond 2^53 are rounded to the nearest float. Text, dates and
    infinities are refused: ``target`` only changes the advice given then.
    """
    column = table[name]
    if not is_numeric(column.type):
        raise not_numbers(table, [name], target=target)
    values: Floats = pc.cast(column, pa.float64(), safe=False).to_numpy()
    _check_finite(name, np.isinf(values))
    return values


def times(table: pa.Table, name: str, rows: Ints) -> Array:
    """The column that orders rows, in ``rows``: numbers as they are, dates and times as integers.

    Text counts as a date where it is one by ISO 8601, or where its order is that of time: all
    values of one shape that begins with the year, as in 2024-03 or 2024-W07.
    """
    column = table[name].take(rows)
    missing = pc.is_null(column, nan_is_null=True).to_numpy()
    if missing.any():
        raise InputError(
            f"Column {name!r} orders the rows, and has no value in ",
            Row(int(rows[missing.argmax()]) + 1),
            f" (rows without one: {missing.sum()} of {len(rows)}): fill it in, or leave these rows "
            "out.",
        )
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if is_text(column.type):
        column = _text_times(column, name)
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InputError(
            f"Column {name!r} holds values of type {kind} (row 1: {_first(column)}), and rows are "
            "ordered by numbers, dates or times: name such a column."
        )
    return np.asarray(column.to_numpy())


def _text_times(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Dates and times that are written as text, as integers."""
    for zone in (None, "UTC"):
        try:
            return column.cast(pa.timestamp("us", zone)).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
    shapes = pc.unique(pc.replace_substring_regex(column, "[0-9]", "0")).to_pylist()
    if len(shapes) > 1 or not shapes[0].startswith("0000") or "+" in shapes[0]:
        raise InputError(
            f"Column {name!r} holds text whose order is not that of time (row 1: "
            f"{_first(column)}): write dates as 2024-12-31, times as 2024-12-31 23:59."
        )
    return pc.rank(column, tiebreaker="dense").cast(pa.int64())


def keys(table: pa.Table, name: str, kind: str | None = None) -> Keys:
    """A column as keys: levels of a category, classes, users' ids.

    Whole floats are integers (a frame turns integers into floats beside a missing one), dates
    are text. ``kind`` is how the keys looked when the schema was fitted: keys that come in
    another type now ("7" for 7) are turned into it where that is exact.
    """
    encoded = _keyed(table[name], name).dictionary_encode().unify_dictionaries().combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.intp)
    values = encoded.dictionary.to_pylist()
    if pa.types.is_floating(encoded.dictionary.type):
        infinite = [i for i, v in enumerate(values) if abs(v) == np.inf]
        _check_finite(name, np.isin(codes, infinite))
        values = [int(v) if v.is_integer() else None if v != v else v for v in values]
    if kind is not None and kind != kind_of(values):
        values = [_as_kind(v, kind) for v in values]
    # Without None, and without the doubles that a change of type may bring.
    seen: dict[Any, int] = {}
    place = [-1 if v is None else seen.setdefault(v, len(seen)) for v in values]
    if len(seen) < len(values):
        codes = np.array([*place, -1], dtype=np.intp)[codes]  # code -1 reads the last entry
    return Keys(list(seen), codes)


def kind_of(values: Iterable[Any]) -> str:
    """What keys are: ``bool``, ``int``, ``float`` (some number is not whole) or ``text``."""
    types = {type(v) for v in values if v is not None}
    if types <= {int} and types:
        return "int"
    if types <= {bool} and types:
        return "bool"
    return "float" if types and types <= {int, float} else "text"


def whole_text_to_int(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A text column as int64 if every value, written as an integer again, is what stood there.

    "7" qualifies, "007" and "+7" do not, and one that does not keeps them all text. A column in
    which every value ends in ".0" qualifies as well.
    """
    written = pc.unique(column.drop_null())
    for pattern in (_INTEGER, _WHOLE_FLOAT):
        if len(written) and pc.all(pc.match_substring_regex(written, pattern)).as_py():
            try:
                return pc.replace_substring_regex(column, r"\.0$", "").cast(pa.int64())
            except pa.ArrowInvalid:  # more digits than int64 holds
                return column
    return column


def has_decimal_commas(column: pa.ChunkedArray) -> bool:
    """Whether most values of a text column are written as 3,14."""
    written = pc.unique(column.drop_null())
    return 2 * _n_matches(written, DECIMAL_COMMA) > len(written)


def without_decimal_commas(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A text column of numbers with decimal commas as float64.

    As it is where some value is no such number, or where all commas may separate thousands.
    """
    written = pc.unique(column.drop_null())
    commas, thousands = (_n_matches(written, p) for p in (DECIMAL_COMMA, _THOUSANDS))
    if commas <= thousands or _n_matches(written, _COMMA_NUMBER) < len(written):
        return column
    points = pc.replace_substring(pc.utf8_trim_whitespace(column), ",", ".")
    return pc.replace_substring_regex(points, r"^\+", "").cast(pa.float64())


def _n_matches(values: pa.Array, pattern: str) -> int:
    return pc.sum(pc.match_substring_regex(values, pattern)).as_py() or 0


def gaps(column: Column) -> Bools:
    """Where a column has no value, (n_rows,)."""
    return column.codes < 0 if isinstance(column, Keys) else np.isnan(column)


def _keyed(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """The column in one of the types keys have: bool, integer, double or string."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _keyed(column.cast(kind.value_type), name)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pc.cast(column, pa.float64(), safe=False)
    if pa.types.is_null(kind) or pa.types.is_temporal(kind):
        return column.cast(pa.string())
    if is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column
    raise InputError(
        f"Column {name!r} holds values of type {kind}, which can be neither ids nor levels: turn "
        "them into text or numbers first."
    )


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a type holds numbers, or booleans, which count as 0 and 1."""
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return number or pa.types.is_boolean(kind) or pa.types.is_null(kind)


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_kind(value: Any, kind: str) -> Any:
    """A key in the type of the fitted ones; as it is where that would not be exact."""
    if value is None:
        return None
    if kind == "text":
        return str(value)
    if not isinstance(value, str):
        return value  # 1, 1.0 and True are one key
    if kind == "bool":
        return {"true": True, "false": False}.get(value.lower(), value)
    whole = value.removesuffix(".0")
    if _writes_back(whole, int):
        return int(whole)
    return float(value) if kind == "float" and _writes_back(value, float) else value


def _writes_back(text: str, kind: type) -> bool:
    """Whether the text is exactly how its number is written."""
    try:
        number = kind(text)
        return str(number) == text and math.isfinite(number)
    except (ValueError, OverflowError):
        return False


def leave_out(name: str) -> tuple[str | Setting, ...]:
    """The end of an error whose column can be done without."""
    return "leave the column out: ", Setting("drop", [name]), "."


def _check_finite(name: str, infinite: Bools) -> None:
    if infinite.any():
        raise InputError(
            *(Rule(f"Column {name!r} is infinite"), " in ", Row(int(infinite.argmax()) + 1)),
            ", and no model can be fitted to that: correct the value or leave the row out.",
        )


def not_numbers(table: pa.Table, names: Sequence[str], *, target: bool = False) -> InputError:
    """Columns that hold something else than the numbers they are needed for."""
    if target:
        classes = Setting("task", "classification")
        choose = Advice("Choose a target that is a number, or say that it holds classes: ")
        return InputError(*_seen(table[names[0]], names[0]), " ", choose, classes, ".")
    seen = [part for name in names for part in (*_seen(table[name], name), " ")]
    it = "it" if len(names) == 1 else "them"
    as_levels = (
        Advice("Say "),
        Setting("categorical", list(names)),
        f" to use {it} as categories, or ",
    )
    return InputError(*seen, *as_levels, Setting("drop", list(names)), ".")


def _seen(column: pa.ChunkedArray, name: str) -> tuple[str | Row | Rule, ...]:
    """A sentence on what a column holds in place of numbers."""
    kind, first = column.type, f"row 1: {_first(column)}"
    if pa.types.is_temporal(kind):
        told = f" ({kind}; {first}), and a model needs numbers: turn it into one"
        rule = Rule(f"Column {name!r} holds dates or times")
        return (rule, f"{told}, e.g. days since a start, or the month.")
    if not is_text(kind):
        what = "categories" if pa.types.is_dictionary(kind) else f"values of type {kind}"
        return (Rule(f"Column {name!r} holds {what}"), f" ({first}), not numbers.")
    if has_decimal_commas(column):
        told = (
            f" ({first}), and numbers are written 3.14: put points for the commas (in pandas, "
            "read_csv with decimal=','), or nothing where they separate thousands."
        )
        return (Rule(f"Column {name!r} looks like numbers with decimal commas"), told)
    is_number = pc.fill_null(pc.match_substring_regex(column, NUMBER), True)
    row = pc.index(is_number, pa.scalar(False)).as_py()
    if row < 0:
        told = f" ({first}): turn them into numbers first."
        return (Rule(f"Column {name!r} holds numbers written as text"), told)
    return (
        *(Rule(f"Column {name!r} holds text where numbers are needed"), ": ", Row(row + 1)),
        f" has {show(column[row].as_py())} (numbers are written 1234.5, without "
        "separators; a missing value is an empty cell).",
    )


def _first(column: pa.ChunkedArray) -> str:
    value = column[0].as_py()
    return show(value if isinstance(value, str | int | float | None) else str(value))


def read_target(table: pa.Table, name: str, task: str, classes: tuple[Any, ...] | None) -> Column:
    """The target as numbers, or as keys where it is a class; counts are checked."""
    if task == "classification":
        return keys(table, name, None if classes is None else kind_of(classes))
    values = numbers(table, name, target=True)
    wrong = (values < 0) | (values != np.floor(values)) & ~np.isnan(values)
    if task == "count" and wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            *(Rule(f"Target {name!r} is"), f" {values[row]:g} in ", Row(row + 1)),
            Rule(", and counts are 0, 1, 2, ..."),
            Advice(": correct it, or say that it is any number: "),
            Setting("task", "regression"),
            ".",
        )
    return values


def counted(column: Keys, keep: Bools | None = None) -> Counter[Any]:
    """How many of the rows, or of those to ``keep``, hold each value."""
    codes = column.codes if keep is None else column.codes[keep]
    counts = np.bincount(codes[codes >= 0], minlength=len(column.values))
    return Counter({v: int(c) for v, c in zip(column.values, counts, strict=True) if c})


def levels_of(name: str, present: Mapping[Any, int]) -> tuple[Any, ...]:
    """Levels of a category by how many rows hold each: the most frequent first, others sorted."""
    if not present:
        raise no_value(name)
    if len(present) > MOST_KEYS:
        raise InputError(
            f"Column {name!r} has {len(present)} levels, and each would be a design column of its "
            f"own (at most {MOST_KEYS}): group them, or ",
            *leave_out(name),
        )
    ordered = sorted(present)
    reference = max(ordered, key=present.__getitem__)  # max keeps the first of equals
    return (reference, *(v for v in ordered if v != reference))


def classes_of(name: str, present: Iterable[Any]) -> tuple[Any, ...]:
    """Classes that rows hold, sorted."""
    classes = sorted(present)
    if len(classes) < 2:
        raise InputError(
            f"Target {name!r} is {show(classes[0])} in every row, and classification needs two "
            "classes or more: choose another target or more rows."
        )
    most = _MOST_FLOAT_CLASSES if kind_of(classes) == "float" else MOST_KEYS
    if len(classes) > most:
        raise InputError(
            f"Target {name!r} has {len(classes)} distinct values ({listing(classes, 3)}): labels "
            "that are not classes. For a target that is a number say ",
            Setting("task", "regression"),
            ".",
        )
    return tuple(classes)


def no_value(name: str) -> InputError:
    return InputError(
        f"Column {name!r} has no value in any row, and so no mean or level to fill in: ",
        *leave_out(name),
    )


def as_names(given: Iterable[str]) -> tuple[str, ...]:
    """Column names; a single one may stand for itself."""
    return (given,) if isinstance(given, str) else tuple(given)


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
