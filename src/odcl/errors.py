"""Errors that a reader can act on: what was seen, why it matters, what to do, in one line."""

from __future__ import annotations

import difflib
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, takewhile
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A setting that an error recommends, written as Python takes it: ``missing='drop'``."""

    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}"


class Row(NamedTuple):
    """A row of a table, counted from 1, and its file where the table has several."""

    number: int
    file: str = ""

    def __str__(self) -> str:
        return f"row {self.number}{f' of {self.file}' * bool(self.file)}"


class Rule(str):
    """What is wrong, without any value of a row or name of a user."""


class Advice(str):
    """Where a message turns from what was seen to what to do about it."""


class InputError(ValueError):
    """Input that cannot be used. Its message consists of texts, rows, and settings to try.

    Python's users read the settings as keywords; the command line writes them as its own options
    with :meth:`in_words`.
    """

    def __init__(self, *parts: str | Setting | Row):
        super().__init__(*parts)

    def of_file(self, file: str, first: int) -> InputError:
        """Re-locate row numbers of a piece of a file, which begins at row ``first`` (0)."""
        parts = self.args
        moved = (Row(p.number + first, file) if isinstance(p, Row) else p for p in parts)
        here = any(isinstance(p, Row) for p in parts)
        return InputError(*(() if here else (f"{file}: ",)), *moved)

    def of_files(self, files: Sequence[str], rows: Sequence[int]) -> InputError:
        """Re-locate row numbers in the file they came from; ``rows`` are the files' lengths."""
        ends = list(accumulate(rows))

        def placed(row: Row) -> Row:
            at = bisect_left(ends, row.number)
            return Row(row.number - ends[at] + rows[at], files[at])

        parts = self.args
        return InputError(*(placed(p) if isinstance(p, Row) and not p.file else p for p in parts))

    @property
    def rule(self) -> str:
        """The part of the message that reveals nothing of the rows."""
        return " ... ".join(p.strip(" ,:") for p in self.args if isinstance(p, Rule))

    @property
    def seen(self) -> str:
        """The message up to the advice."""
        parts = takewhile(lambda part: not isinstance(part, Advice), self.args)
        return " ".join("".join(map(str, parts)).split())

    def __str__(self) -> str:
        return self.in_words(str)

    def in_words(self, write: Callable[[Setting], str]) -> str:
        """The message in one line, whatever the names and values in it hold."""
        parts = (write(p) if isinstance(p, Setting) else str(p) for p in self.args)
        return " ".join("".join(parts).splitlines())

    def where(self, known: Callable[[Setting], bool]) -> InputError:
        """The error without its advice, unless all settings that it advises are known."""
        if all(known(p) for p in self.args if isinstance(p, Setting)) or self.seen == str(self):
            return self
        return InputError(f"{self.seen} Correct these rows, or leave them out.")


class NotAdmissible(ValueError):
    """No grouping is admissible, not even one group of all users."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """'; did you mean ...?' where one of the known names is close, else a full stop."""
    folded = {str(k).casefold(): k for k in known}
    match = difflib.get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.75)
    return f"; did you mean {str(folded[match[0]])!r}?" if match else "."


def number(value: float, digits: int = 3, step: float = math.inf) -> str:
    """A number for people: plain, three digits, or as many as ``step``, what is known, allows."""
    size = abs(value)
    if not math.isfinite(size) or size == 0:
        return "unknown" if size else "0"
    if not 1e-6 <= size < 1e15:
        return f"{value:.{digits - 1}e}"
    place = math.floor(math.log10(size)) + 1 - digits
    if 0 < step < math.inf:
        last = math.floor(math.log10(step) + 1e-9)
        place = max(min(place, last), last - 1)
    text = f"{round(value, -place) + 0.0:,.{max(-place, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(n: int, what: str) -> str:
    """'1 row', '2,000 rows'; the last word takes the plural."""
    if n == 1:
        return f"1 {what}"
    plural = f"{what}es" if what.endswith(("s", "x")) else f"{what}s"
    return f"{n:,} {plural}"


def listing(values: Iterable[Any], most: int = 12) -> str:
    """The first values, and how many there are."""
    values = list(values)
    shown = ", ".join(
        v if isinstance(v, str) and v.isidentifier() else show(v) for v in values[:most]
    )
    return shown if len(values) <= most else f"{shown}, ... ({len(values)} in all)"


def ended(text: str) -> str:
    """A sentence with its full stop, which a question does not need."""
    return text if text.endswith(("?", ".")) else f"{text}."


def printable(text: str) -> str:
    """Text from outside for a terminal: characters that would move its cursor are spelled out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def show(value: Any) -> str:
    """A value as Python writes it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]}...{text[-1]}"
