"""``report.html``: one file that a store manager understands and a statistician trusts.

``svg`` draws the pictures that are there without a script and in print, ``sections`` and this
module make the file of facts, ``assets`` holds its style and its script: points on a canvas above
our own SVG, for up to 10,000 users in two pictures. A plotting library would be most of the 5 MB
that a page may have, draw the static pictures a second time, and need a weaker content policy.

Nothing from outside is ever executed: texts are escaped where they become markup, numbers and
names travel as JSON that no parser of HTML can leave, scripts put names into the page as text,
and the page's policy allows this one script, by its digest, and nothing that is loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from odcl import __version__
from odcl.errors import printable

_SLOT = re.compile(r"\{\{(\w+)\}\}")
SCRIPTS = ("core.js", "pictures.js", "user.js", "table.js", "controls.js")


@cache
def asset(name: str) -> str:
    """A file of the page, as it lies beside this module."""
    return (files("odcl.report.page") / "assets" / name).read_text(encoding="utf-8")


def page(title: str, body: Markup, symbols: Markup, data: Any = None) -> bytes:
    """The whole file. ``data`` is what the script works with; None: the page needs none."""
    style = asset("page.css")
    script = "\n".join(asset(name) for name in SCRIPTS) if data is not None else ""
    script = f'(() => {{\n"use strict";\n{script}\n}})();' if script else ""
    policy = (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    slots = {
        "policy": el("x", policy)[3:-4],
        "version": el("x", __version__)[3:-4],
        "title": el("x", title)[3:-4],
        "style": style,
        "symbols": symbols,
        "body": body,
        "data": "" if data is None else json_block("facts", data),
        "script": script,
    }
    # One pass: what stands in a slot is not looked at again, whatever it holds.
    return _SLOT.sub(lambda slot: slots[slot.group(1)], asset("page.html")).encode("utf-8")


def digest(text: str) -> str:
    """Of an inline script or style, as a policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


def json_block(name: str, value: Any) -> Markup:
    """JSON that a parser of HTML reads as one text, to the end that is ours."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(f'<script type="application/json" id="{name}">{text}</script>')


# -- HTML and SVG from values: nowhere else does text become markup --------------------------------


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
