"""JSON and back: whole files within limits, and ids, classes and numbers that JSON has no word for.

Readers check what they are given and say what is wrong; whoever opened the file adds its name.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import numpy as np

from odcl._typing import Array
from odcl.data.federation import as_ids

MOST_DEPTH = 32  # of lists in lists; functions that walk through a value may recurse
# The multinomial loss keeps a basis of n_classes^2 numbers: no file may ask for more than 200 MB.
MOST_CLASSES = 5000
_NOT_FINITE = ("inf", "-inf", "nan")


def expect(holds: bool, why: str) -> None:
    """Refuse a value that was read from a file."""
    if not holds:
        raise ValueError(why)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_size(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


# -- files -----------------------------------------------------------------------------------------


def json_bytes(value: Any) -> bytes:
    """The contents of a JSON file: the same value always gives the same bytes."""
    _check_depth(value)
    try:
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
        return (text + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from a file name that is no text
        return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def parse_json(content: bytes) -> Any:
    """The value of a JSON file that may come from anyone; the caller has limited its size."""
    try:
        value = json.loads(content.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_DEPTH} deep") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        lists = [v.values() if isinstance(v, dict) else v for v in level if _holds_more(v)]
        if not lists:
            return
        level = [inner for one in lists for inner in one if _holds_more(inner)]
    raise ValueError(f"it is nested more than {MOST_DEPTH} deep")


def _holds_more(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


# -- numbers ---------------------------------------------------------------------------------------


def number_to_json(value: float) -> float | str:
    """A number; infinity and NaN as text, for JSON has no word for them."""
    return float(value) if math.isfinite(value) else repr(float(value))


def number_from_json(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    expect(is_number or value in _NOT_FINITE, f"{value!r} is not a number")
    return float(value)


# -- ids -------------------------------------------------------------------------------------------


def ids_to_json(ids: Array) -> list[Any] | None:
    """Users' ids as a list; None where they are whole numbers, which are stored as an array."""
    return None if ids.dtype.kind in "iub" else [id_to_json(user) for user in ids.tolist()]


def ids_from_json(listed: Any, stored: Array | None) -> Array:
    """Users' ids from the list or from the array, whichever was written."""
    if listed is None:
        expect(stored is not None, "the ids are not there")
        ids = stored
    else:
        expect(isinstance(listed, list) and stored is None, "ids are a list, or an array")
        ids = as_ids([id_from_json(user) for user in listed])
        expect(len(ids) == len(listed), "an id is not one value")
    assert ids is not None
    expect(len(set(ids.tolist())) == len(ids), "a user is there twice")
    return ids


def id_to_json(user: Any) -> Any:
    """Text, numbers, None and tuples of these, so that they come back as they were."""
    if isinstance(user, tuple):
        return {"tuple": [id_to_json(part) for part in user]}
    if isinstance(user, float) and not math.isfinite(user):
        return {"float": repr(user)}
    if isinstance(user, str | int | float | bool | None):
        return user
    raise ValueError(
        f"User {user!r} cannot be written: ids on disk are text, numbers, None, or tuples of "
        "these. Fit with such ids, e.g. with their text."
    )


def id_from_json(value: Any) -> Any:
    expect(not isinstance(value, list), "an id is a list")
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()), (None, None))
    if kind == "tuple" and isinstance(content, list):
        return tuple(id_from_json(part) for part in content)
    expect(kind == "float" and content in _NOT_FINITE, f"an id is {value!r}")
    return float(content)  # type: ignore[arg-type]


# -- classes ---------------------------------------------------------------------------------------


def classes_to_json(classes: Array) -> dict[str, Any]:
    """The labels of a classifier, with their type."""
    values = classes.tolist()
    if not all(_is_label(v) for v in values):
        raise ValueError(
            f"Class {values[0]!r} cannot be written: classes on disk are text or numbers. Fit with "
            "such labels, e.g. with their text."
        )
    expect(len(values) <= MOST_CLASSES, f"Models of {MOST_CLASSES} classes are the largest.")
    return {"dtype": classes.dtype.str, "values": values}


def classes_from_json(words: Any) -> Array:
    values, dtype = words["values"], np.dtype(str(words["dtype"]))
    expect(dtype.kind in "biufUO", f"classes of type {dtype}")
    expect(isinstance(values, list) and len(values) >= 2, "a classifier has two classes or more")
    expect(len(values) <= MOST_CLASSES, f"more than {MOST_CLASSES} classes")
    expect(all(_is_label(v) for v in values), "a class is no label")
    if dtype.kind == "U":  # a type of 10^9 letters would take as many bytes per class
        dtype = np.dtype(f"U{max(len(str(v)) for v in values)}")
    classes = np.array(values, dtype=dtype)
    expect(classes.tolist() == values, "the classes are not of their type")
    expect(len(set(values)) == len(values), "a class is there twice")
    return classes


def _is_label(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)
