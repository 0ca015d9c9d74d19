"""Declared values: dataclasses to JSON and back, checked field by field.

    @dataclass(frozen=True)
    class Entry:
        bytes: Count
        sha256: Digest

    from_json(Entry, {"bytes": 3, "sha256": "..."})    # an Entry, or a ValueError naming the field
    to_json(entry)

A field's annotation is all that is checked: bool, int, float, str, None, Any, Literal, unions,
tuples, mappings with text keys, dataclasses, and ``Annotated`` with a :class:`Check`. A float is
finite; a ``Number`` may also be infinite or NaN, which JSON holds as text. Unknown fields are
refused, and missing ones unless their metadata is ``OPTIONAL`` or the class :class:`HasDefaults`.
A class with a ``from_json`` of its own is read by that.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from odcl.errors import did_you_mean, show

T = TypeVar("T")
OPTIONAL = {"optional": True}  # metadata of a field that is missing where it has its default


class HasDefaults:
    """Base of dataclasses in which fields with a default may be missing: people write them."""


@dataclass(frozen=True)
class Check:
    """A condition on a decoded value, and what it asks for in words."""

    what: str
    holds: Callable[[Any], bool]


def matching(pattern: str, what: str) -> Check:
    compiled = re.compile(pattern)
    return Check(what, lambda value: bool(compiled.fullmatch(value)))


def one_of(known: tuple[str, ...]) -> Check:
    return Check(f"one of {', '.join(known)}", lambda value: value in known)


def is_label(value: str) -> bool:
    """Is it text that can be shown in one line?"""
    return 0 < len(value) <= 1000 and value.isprintable()


_UNBOUNDED = Check("a number", lambda value: True)

Count = Annotated[int, Check("a whole number from 0 on", lambda value: value >= 0)]
Positive = Annotated[int, Check("a whole number from 1 on", lambda value: 1 <= value < 10**9)]
Size = Annotated[float, Check("a finite number from 0 on", lambda value: value >= 0)]
Number = Annotated[float, _UNBOUNDED]
Label = Annotated[str, Check("printable text of 1 to 1,000 characters", is_label)]
Printable = Annotated[str, Check("printable text", str.isprintable)]
Digest = Annotated[str, matching("[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits")]

_PLAIN: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    NoneType: "null",
    Any: "a value",
}
_NOT_FINITE = ("inf", "-inf", "nan")


def expect(holds: Any, why: str) -> None:
    """Refuse a value that was read from a file, where fields do not fit together."""
    if not holds:
        raise ValueError(why)


# -- reading ---------------------------------------------------------------------------------------


def from_json(kind: Any, value: Any, where: str = "") -> Any:
    """The value of the declared kind that ``value`` stands for; ``where`` it was found."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or (isinstance(kind, type) and kind not in _PLAIN and isinstance(value, kind)):
        return value  # it was read already
    if origin is Annotated:
        return _annotated(inner[0], inner[1:], value, where)
    if kind in _PLAIN:
        return _plain(kind, value, where)
    if origin is Literal:
        _expect(any(value == one and type(value) is type(one) for one in inner), value, where, kind)
        return value
    if origin in (Union, UnionType):
        return _one_of(inner, value, where)
    if origin is tuple:
        return _tuple(kind, inner, value, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _expect(isinstance(value, dict), value, where, kind)
        own = {name: from_json(inner[1], one, _inside(where, name)) for name, one in value.items()}
        return {from_json(inner[0], name, f"a name in {where or 'it'}"): own[name] for name in own}
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    return fields_from_json(kind, value, where)


def fields_from_json(kind: type[T], value: Any, where: str = "") -> T:
    """A dataclass, field by field."""
    declared = _declared(kind)
    _expect(isinstance(value, dict), value, where, kind)
    for name in value:
        if name not in declared:
            near = did_you_mean(name, declared).rstrip(".")
            raise ValueError(f"{_inside(where, show(name))} is not known{near}")
    found = {}
    for name, (one, hint) in declared.items():
        if name in value:
            found[name] = from_json(hint, value[name], _inside(where, name))
        elif not _may_be_missing(kind, one):
            raise ValueError(f"{_inside(where, name)} is missing: {_what(hint)}")
    return kind(**found)


def check_fields(value: Any) -> None:
    """Check the fields of a dataclass that was made in Python like those of a file."""
    for name, (_, hint) in _declared(type(value)).items():
        from_json(hint, getattr(value, name), name)


def _may_be_missing(kind: Any, one: Field[Any]) -> bool:
    has_default = one.default is not MISSING or one.default_factory is not MISSING
    return has_default and (issubclass(kind, HasDefaults) or one.metadata == OPTIONAL)


def _declared(kind: Any) -> dict[str, tuple[Field[Any], Any]]:
    hints = _hints(kind)
    return {one.name: (one, hints[one.name]) for one in fields(kind) if one.init}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _annotated(kind: Any, checks: tuple[Check, ...], value: Any, where: str) -> Any:
    if _UNBOUNDED in checks:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        _expect(number or (type(value) is str and value in _NOT_FINITE), value, where, _UNBOUNDED)
        return float(value)
    found = from_json(kind, value, where)
    for check in checks:
        _expect(check.holds(found), value, where, check)
    return found


def _plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        _expect(number and abs(value) <= sys.float_info.max, value, where, kind)
        return value  # 1 stays 1: what is read is written as the same bytes
    _expect(type(value) is kind, value, where, kind)
    return value


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """The first kind that fits; where there is but one beside None, its own error says more."""
    if value is None and NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not NoneType]
    if len(others) == 1:
        return from_json(others[0], value, where)
    for kind in others:
        try:
            return from_json(kind, value, where)
        except ValueError:
            continue
    raise ValueError(_refusal(value, where, " or ".join(map(_what, kinds))))


def _tuple(kind: Any, inner: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(value, list | tuple), value, where, kind)
    kinds = (inner[0],) * len(value) if inner[-1] is Ellipsis else inner
    _expect(len(kinds) == len(value), value, where, kind)
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(from_json(one, item, f"{where}[{i}]") for i, (one, item) in pairs)


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _expect(holds: bool, value: Any, where: str, kind: Any) -> None:
    if not holds:
        raise ValueError(_refusal(value, where, _what(kind)))


def _refusal(value: Any, where: str, what: str) -> str:
    return f"{where or 'it'} is {show(value)}, and not {what}"


def _what(kind: Any) -> str:
    """What a kind asks for, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, Check):
        return kind.what
    if origin is Annotated:
        return inner[1].what if isinstance(inner[1], Check) else _what(inner[0])
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (Union, UnionType):
        return " or ".join(map(_what, inner))
    if origin is tuple:
        return "a list" if inner[-1] is Ellipsis else f"a list of {len(inner)}"
    return _PLAIN.get(kind, "a table of names and values")


# -- writing ---------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """The way back: the same value always gives the same JSON."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return fields_to_json(value)
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def fields_to_json(value: Any) -> dict[str, Any]:
    """A dataclass, field by field; an ``OPTIONAL`` one at its default is left out."""
    return {
        one.name: to_json(getattr(value, one.name))
        for one in fields(value)
        if one.init and (one.metadata != OPTIONAL or getattr(value, one.name) != one.default)
    }
