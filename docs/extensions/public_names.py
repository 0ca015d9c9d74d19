"""The reference holds every public name, and docstrings read well in it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from sphinx.util import logging
from sphinx.util.inspect import signature as sphinx_signature
from sphinx.util.inspect import stringify_signature

import odcl

logger = logging.getLogger(__name__)
ENGINES = ("odcl.engines.files", "odcl.engines.flower")


def _every_name_has_its_place(app: Any, env: Any) -> None:
    known = set(env.get_domain("py").objects)
    for name in odcl.__all__:
        value = getattr(odcl, name)
        place = value.__name__ if inspect.ismodule(value) else f"odcl.{name}"
        inside = getattr(value, "__all__", ()) if name == "theory" else ()
        missing = [place] if place not in known else []
        missing += [f"{place}.{one}" for one in inside if f"{place}.{one}" not in known]
        _say(missing)
    for engine in ENGINES:
        names = (f"{engine}.{one}" for one in import_module(engine).__all__)
        _say(name for name in names if name not in known)


def _say(missing: Iterable[str]) -> None:
    for one in missing:
        logger.warning("Public name %s has no place in the reference.", one)


def _docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    told = fields_of(value) if what == "class" and is_dataclass(value) else {}
    own = ["Fields", "------", *(f"{field} : {text}" for field, text in told.items()), ""]
    lines[:] = as_restructured_text(with_lists([*lines, *own] if told else lines))


_FIELD = re.compile(r"^    (\w+): [^#\n]*  # (.*)$", flags=re.MULTILINE)


def fields_of(value: type) -> dict[str, str]:
    """Fields of a dataclass with what the comments beside them say: shapes, units."""
    names = {field.name for field in fields(value)}
    told = _FIELD.findall(inspect.getsource(value).split("    def ")[0])
    return {name: text for name, text in told if name in names and not text.startswith("noqa")}


def _signature(
    app: Any, what: str, name: str, value: Any, options: Any, signature: Any, returns: Any
) -> tuple[Any, Any]:
    """Our names for arrays (``Floats``) as they are, without Sphinx's wrapping of them."""
    if what == "class" and hasattr(value, "__sphinx_mock__"):  # of another's base
        told = sphinx_signature(value.__init__, True, app.config.autodoc_type_aliases)
        signature = stringify_signature(
            told, show_return_annotation=False, unqualified_typehints=True
        )
    signature = signature and signature.replace("<factory>", "...")
    return tuple(
        x and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", x) for x in (signature, returns)
    )


_NAMED = re.compile(r"\w+(, \w+)* : ")


def with_lists(lines: list[str]) -> list[str]:
    """Sections of parameters and attributes as lists: names, and what they are.

    Ours say it in a sentence after the colon, as often as they name a type and go on below; some
    have no heading.
    """
    made: list[str] = []
    inside = False
    for line in lines:
        indented = line.startswith(" ")
        if line.strip() and set(line.strip()) == {"-"} and made:
            made[-1:] = [f".. rubric:: {made[-1].strip('`')}", ""]
            inside = True
        elif (inside or _NAMED.match(line)) and line.strip() and not indented:
            names, _, text = line.partition(" : ")
            made.append(", ".join(f"``{name.strip()}``" for name in names.split(",")))
            made += [f"    {text}"] if text else []
        else:
            made.append(line)
    return made


# Kept as they are: literals, roles, `names`, and *emphasis* around whole words.
_KEPT = re.compile(r"(``.+?``|:[\w:]+:`[^`]+`|`[^`]+`_*|\*\*?\w[^*]*\w\*\*?(?![\w*]))")
_MARKS = re.compile(r"(?<!\\)([|*]|(?<=\w)_(?!\w))")


def as_restructured_text(lines: list[str]) -> list[str]:
    """Docstrings are plain text with ``literals``: |x|, theta* and labels_ stand for themselves.

    Blocks that are set off by four spaces (formulas, pieces of code) stay as they are.
    """
    made: list[str] = []
    literal: int | None = None  # how far the block is indented that we are in
    example = False
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            example = False
            made.append(line)
            continue
        before = next((x for x in reversed(made) if x.strip()), "")
        above = len(before) - len(before.lstrip())
        if literal is not None and indent < literal:
            literal = None
        listed = re.match(r"\s*(\.\.|[-*:]|\d+\.)", before)
        alone = i > 0 and not lines[i - 1].strip()
        if literal is None and alone and before and not listed and indent >= above + 4:
            if not before.rstrip().endswith("::"):
                made += [" " * above + "::", ""]
            literal = indent
        example = example or line.lstrip().startswith(">>>")
        plain = literal is not None or example or line.lstrip().startswith(".. ")
        made.append(line if plain else _escaped(line))
    return made


def _escaped(line: str) -> str:
    parts = _KEPT.split(line)
    return "".join(x if i % 2 else _MARKS.sub(r"\\\1", x) for i, x in enumerate(parts))


def setup(app: Any) -> dict[str, Any]:
    app.connect("env-check-consistency", _every_name_has_its_place)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
