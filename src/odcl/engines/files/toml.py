"""TOML for task cards: tables whose entries are taken out one by one, and values written."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from odcl.clustering.spec import BY_RULE, WITH_K, ClustererSpec, clusterer_spec
from odcl.errors import did_you_mean, show

MOST_BYTES = 2**20
MOST_DEPTH = 32  # of lists in lists, before TOML's reader sees them


class CardError(ValueError):
    """What is wrong with a card, without its name: the reader puts that in front."""


# -- reading ---------------------------------------------------------------------------------------


def parse_toml(content: bytes) -> dict[str, Any]:
    """The tables of a card."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise CardError("it is not text in UTF-8") from None
    if max(_depths(text), default=0) > MOST_DEPTH:
        raise CardError(f"it is nested more than {MOST_DEPTH} deep")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError, OverflowError) as error:
        raise CardError(f"it is no TOML: {error}") from None


def _depths(text: str) -> Iterator[int]:
    """How deep brackets lie, line by line; those in texts count as well, and hardly matter."""
    depth = 0
    for sign in text:
        if sign in "[{":
            depth += 1
            yield depth
        elif sign in "]}":
            depth = max(depth - 1, 0)


class Entries:
    """One table of a card: its entries are taken out one by one, and none may be left."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise CardError(f"{where or 'it'} is {show(values)}, and no table of entries")
        self._values, self._where, self._known = dict(values), where, list[str]()

    def take(self, name: str, holds: Callable[[Any], bool], what: str, *default: Any) -> Any:
        """The entry of this name; ``what`` it has to be, in words; without a default it must be."""
        self._known.append(name)
        if name not in self._values:
            if default:
                return default[0]
            raise CardError(f"{self.named(name)} is missing: {what}")
        value = self._values.pop(name)
        if not holds(value):
            raise CardError(f"{self.named(name)} is {show(value)}, and not {what}")
        return value

    def text(self, name: str, *default: Any) -> Any:
        return self.take(name, is_text, "a text", *default)

    def number(self, name: str, *default: Any) -> Any:
        return self.take(name, is_number, "a finite number", *default)

    def count(self, name: str, least: int, *default: Any) -> Any:
        what = f"a whole number from {least} on"
        return self.take(name, lambda v: is_whole(v) and least <= v < 10**9, what, *default)

    def truth(self, name: str, *default: Any) -> Any:
        return self.take(name, lambda v: isinstance(v, bool), "true or false", *default)

    def one_of(self, name: str, known: tuple[str, ...], *default: Any) -> Any:
        what = f"one of {', '.join(known)}"
        return self.take(name, lambda v: is_text(v) and v in known, what, *default)

    def done(self) -> None:
        """Refuse entries that nobody asked for: a misspelt one must not be passed over."""
        for name in self._values:
            near = did_you_mean(name, self._known)
            raise CardError(f"{self.named(name)} is not known to a task card{near.rstrip('.')}")

    def rest(self) -> dict[str, Any]:
        """The entries that are left."""
        left, self._values = self._values, {}
        return left

    def named(self, name: str) -> str:
        return f"{name!r} in [{self._where}]" if self._where else repr(name)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 1000 and value.isprintable()


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) < 1e300 and math.isfinite(value)


# -- writing ---------------------------------------------------------------------------------------


def toml_value(value: Any) -> str:
    """A text, number, truth value, list or flat table as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{k} = {toml_value(v)}' for k, v in value.items())} }}"
    return f"[{', '.join(map(toml_value, value))}]"


def entry(name: str, value: Any, comment: str = "") -> str:
    """One line; ``comment`` behind it."""
    line = f"{toml_key(name)} = {toml_value(value)}"
    return f"{line:<28} # {comment}" if comment else line


def toml_key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "_").replace("_", "a").isalnum()
    return name if bare else toml_value(name)


# -- the clusterer in a word -----------------------------------------------------------------------


def clusterer_word(spec: ClustererSpec) -> Any:
    """As people write it: ``"auto"``, ``"kmeans:4"``; a table where there is no such word."""
    counts = [value for _, value in spec.params if is_whole(value)]
    words = [*BY_RULE, *(f"{m}:{k}" for m in ("auto", *WITH_K) for k in counts)]
    return next((word for word in words if clusterer_spec(word) == spec), spec.to_json())


def clusterer_of(word: Any) -> ClustererSpec:
    if isinstance(word, dict):
        return ClustererSpec.from_json(word)
    if not isinstance(word, str | int) or isinstance(word, bool):
        raise CardError(f"'clusterer' in [method] is {show(word)}, and no rule")
    return clusterer_spec(word)
