"""HTML and SVG from values: every text is escaped here; nowhere else does text become markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from odcl.errors import printable

_EMPTY = ("meta", "link", "input", "br", "hr", "col")


class Markup(str):
    """Text that is markup already."""


def el(name: str, *inside: Any, **attributes: Any) -> Markup:
    """An element. Attributes: ``class_`` is class, ``aria_label`` is aria-label, None is left out.

    What stands inside is text, and escaped, unless it is :class:`Markup`; lists are joined.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        parts.append(word if value is True else f'{word}="{escape(_text(value), quote=True)}"')
    start = " ".join(parts)
    if name in _EMPTY:
        return Markup(f"<{start}>")
    return Markup(f"<{start}>{joined(inside)}</{name}>")


def joined(inside: Iterable[Any], between: str = "") -> Markup:
    """Texts and elements one after the other."""
    return Markup(between.join(_markup(one) for one in inside))


def _markup(one: Any) -> str:
    if isinstance(one, Markup):
        return one
    if isinstance(one, list | tuple):
        return joined(one)
    return "" if one is None else escape(_text(one), quote=True)


def _text(value: Any) -> str:
    """Text without characters that would turn the line around or hide in it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(str(value))
