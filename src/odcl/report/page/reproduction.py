"""The page of a reproduction: texts, tables and figures, the paper's numbers beside ours."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

from odcl.files import read_regular
from odcl.report.page import svg
from odcl.report.page.facts import Table
from odcl.report.page.render import Markup, el, joined, page
from odcl.report.page.sections import navigation, table_block

MOST_BYTES = 2**22  # of one figure or text


def reproduction_page(folder: Path, names: tuple[str, ...]) -> bytes:
    """The page of the experiments whose texts and figures lie in a folder."""
    there = [name for name in names if (folder / f"{name}.md").is_file()]
    parts, places = [], []
    for name in there:
        text = read_regular(folder / f"{name}.md", most=MOST_BYTES).decode("utf-8")
        title, *blocks = list(blocks_of(text))
        places.append((name, name))
        parts.append(_experiment(name, title, blocks, _figure(folder, name, title)))
    header = el(
        "header",
        el("p", "odcl reproduce", class_="eyebrow"),
        el("h1", f"The paper's evidence again: {len(there)} of its figures and tables"),
        el("p", "Paper is the paper's own number, ours what this library gives.", class_="lead"),
        el("p", "A click on a figure shows it larger.", class_="lead needs-script"),
        navigation(places),
    )
    body = joined([header, el("main", *parts, id="main")])
    return page("The paper's evidence again", body, svg.symbols())


def _experiment(name: str, title: str, blocks: list[str], figure: Markup | None) -> Markup:
    inside = [_block(text) for text in blocks]
    return el("section", el("h2", _plain(title)), figure, *inside, id=name, class_="block long")


def _figure(folder: Path, name: str, title: str) -> Markup | None:
    file = folder / f"{name}.png"
    if not file.is_file():
        return None
    content = base64.b64encode(read_regular(file, most=MOST_BYTES)).decode("ascii")
    source = f"data:image/png;base64,{content}"
    image = el("img", src=source, alt=f"Figure: {_plain(title)}; its numbers are below.")
    return el("div", image, class_="zoom")


def blocks_of(text: str) -> Iterator[str]:
    """The blocks of a text in Markdown, which empty lines part; pictures are left out."""
    for block in re.split(r"\n\s*\n", text.strip()):
        if not block.startswith("!["):
            yield block


def _block(text: str) -> Markup:
    """A table, a list, a heading or a paragraph."""
    lines = text.splitlines()
    if lines[0].startswith("|"):
        return _table(lines)
    if lines[0].startswith("#"):
        return el("h3", _plain(lines[0]))
    if all(line.startswith(("- ", "  ")) for line in lines):
        items = re.split(r"\n?- ", text)[1:]
        return el("ul", *(el("li", _plain(item)) for item in items))
    return el("p", _plain(text))


def _plain(text: str) -> str:
    """Words without the signs of Markdown."""
    return re.sub(r"\*\*|`", "", " ".join(text.lstrip("# ").split()))


def _table(lines: list[str]) -> Markup:
    rows = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
    ]
    header, rule, *body = rows
    left = [i for i, cell in enumerate(rule) if not cell.endswith(":")]
    return table_block(Table(header, body, left))
