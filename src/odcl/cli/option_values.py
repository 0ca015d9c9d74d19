"""Values of options: what they may be, and what is said of those that may not."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

from odcl.errors import did_you_mean

LOSSES = ("auto", "squared", "huber", "poisson", "logistic", "multinomial")
COMBINE = ("precision", "mean", "samples", "shrink")
CURVATURE = ("auto", "full", "diagonal", "none")
MISSING = ("error", "drop", "mean")
UNKNOWN = ("error", "pooled", "nearest")
UNSEEN = ("error", "reference")
RULES = ("auto", "convex", "elbow", "silhouette")
METHODS = ("kmeans", "spectral", "gradient")


def column_names(values: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Columns named one by one or as ``a,b,c``; a name that holds a comma stands for itself."""
    names: list[str] = []
    for value in values:
        names += [value] if value in columns else _split(value)
    return tuple(dict.fromkeys(names))


def _split(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def one_of(known: tuple[str, ...]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in known:
            raise _wrong(f"{text!r} is none of {', '.join(known)}{did_you_mean(text, known)}")
        return text

    return check


def clusters(text: str) -> str | int:
    """A rule, a number, or ``method:number``."""
    method, colon, count = text.rpartition(":")
    if text in RULES or (count.isdecimal() and int(count) and (not colon or method in METHODS)):
        return int(text) if text.isdecimal() else text
    choices = ", ".join([*RULES, "a number from 1 on", *(f"{m}:K" for m in METHODS)])
    raise _wrong(f"{text!r} is none of {choices}{did_you_mean(text, RULES)}")


def refit(text: str) -> str | float:
    if text in ("evidence", "cv", "none"):
        return text
    try:
        return at_least_0(text)
    except argparse.ArgumentTypeError:
        raise _wrong(f"{text!r} is none of evidence, cv, none, a number >= 0.") from None


def at_least_0(text: str) -> float:
    value = _number(text)
    if not 0 <= value < math.inf:
        raise _wrong(f"{text!r} is not a number >= 0.")
    return value


def share(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise _wrong(f"{text!r} is not a share of the rows, from 0 to below 1.")
    return value


def seed_number(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**32):
        raise _wrong(f"{text!r} is not a whole number from 0 to 2^32 - 1.")
    return int(text)


def jobs(text: str) -> int:
    if text != "-1" and not (text.isdecimal() and int(text)):
        raise _wrong(f"{text!r} is neither a number from 1 on nor -1 (one a core).")
    return int(text)


def positive(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise _wrong(f"{text!r} is not a whole number from 1 on.")
    return int(text)


def sizes(text: str) -> list[int]:
    return [positive(part) for part in _split(text)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _wrong(text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(text)
