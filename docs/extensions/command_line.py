"""The reference of the command line, from its own parser: ``{commands}`` lists them all."""

from __future__ import annotations

import argparse
import re
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from odcl.cli.main import EVERY, _parsers


class Commands(SphinxDirective):
    """One section per command: what it does, its usage, its options, its examples."""

    def run(self) -> list[nodes.Node]:
        _, found = _parsers()
        return [self._section(found[name], name) for name in EVERY]

    def _section(self, parser: argparse.ArgumentParser, name: str) -> nodes.section:
        section = nodes.section(ids=[f"odcl-{name.replace(' ', '-')}"])
        title = f"odcl {name}"
        section += nodes.title(title, title)
        section += _paragraphs(parser.description or "")
        section += _literal(f"odcl {name} {_usage(parser, name)}")
        for group in parser._action_groups:
            actions = [a for a in group._group_actions if a.help != argparse.SUPPRESS]
            if actions:
                section += nodes.rubric("", (group.title or "options").capitalize())
                section += _options(actions, parser.prog)
        if parser.epilog:
            section += _literal(parser.epilog)
        return section


def _usage(parser: argparse.ArgumentParser, name: str) -> str:
    return " ".join((parser.usage or "").split()).removeprefix(f"odcl {name} ")


def _options(actions: list[argparse.Action], prog: str) -> nodes.definition_list:
    listed = nodes.definition_list(classes=["options"])
    for action in actions:
        shown = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        takes = action.metavar if action.option_strings and action.nargs != 0 else None
        if takes is None and action.option_strings and action.nargs != 0:
            takes = action.dest.upper()
        word = f"{shown} {takes}" if takes else shown
        words = (action.help or "") % {**vars(action), "prog": prog}
        listed += nodes.definition_list_item(
            "",
            nodes.term("", "", nodes.literal("", word)),
            nodes.definition("", nodes.paragraph("", "", *_marked(words))),
        )
    return listed


def _paragraphs(text: str) -> list[nodes.Node]:
    """Prose becomes paragraphs; whatever is indented stays as it was written."""
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    prose = [not any(line.startswith(" ") for line in block.splitlines()) for block in blocks]
    return [
        nodes.paragraph("", "", *_marked(" ".join(block.split()))) if plain else _literal(block)
        for block, plain in zip(blocks, prose, strict=True)
    ]


def _marked(text: str) -> list[nodes.Node]:
    """Text with `code` in it."""
    parts = re.split(r"`([^`]+)`", text)
    made = [nodes.literal("", p) if i % 2 else nodes.Text(p) for i, p in enumerate(parts)]
    return [node for node in made if node.astext()]


def _literal(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
