"""The pages of docs/ as programs: their examples are run, and what they print is compared.

    ```python    code, in one namespace per page; a ```text block after it is what it prints
    ```console   lines with "$ " are commands, the others what they print on stdout
    ```bash      commands that take too long to be run here: only parsed
    <!-- run by tests/PATH.py -->    before a block: that test runs it

``python -m tests.pages docs/start.md`` writes what is printed into the page: read it, then commit.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

DOCS = Path(__file__).parents[1] / "docs"
TABLES = DOCS / "tables"
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", flags=re.MULTILINE | re.DOTALL)
_ELSEWHERE = re.compile(r"<!-- run by (\S+) -->\s*```[^\n`]*\n$")
_COMMAND = "$ "
SIZE = re.compile(r" *([\d.]+) kB")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its lines, and where these stand in the page."""

    language: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Ran:
    """What an example printed, and what the page says that it prints, in ``said``."""

    code: str
    printed: str
    said: Block  # empty where the page says nothing: "text" after code, "" in a console


def all_pages() -> list[Path]:
    return sorted(path for path in DOCS.rglob("*.md") if "extensions" not in path.parts)


def blocks(text: str) -> list[Block]:
    return [Block(m[1].strip(), m[2], m.start(2), m.end(2)) for m in _FENCE.finditer(text)]


def run_elsewhere(text: str) -> list[str]:
    """The tests that a page names for blocks which are not run here."""
    found = (_ELSEWHERE.search(text[: block.start]) for block in blocks(text))
    return [match[1] for match in found if match]


def commands(text: str) -> list[str]:
    """Every odcl command of a page, run or not, without its comment."""
    lines: list[str] = []
    for block in blocks(text):
        if block.language in ("console", "bash"):
            whole = block.text.replace("\\\n", " ").splitlines()
            marked = block.language == "console"
            lines += [
                x.removeprefix(_COMMAND) for x in whole if x.startswith(_COMMAND) or not marked
            ]
    return [line for line in lines if line.startswith("odcl ")]


def run_page(text: str, names: dict[str, Any] | None = None) -> Iterator[Ran]:
    """Run a page from top to bottom in the current folder; ``names`` are there before it."""
    found = blocks(text)
    names = {} if names is None else names
    names["__name__"] = "__page__"
    for place, block in enumerate(found):
        if _ELSEWHERE.search(text[: block.start]):
            continue
        if block.language == "python":
            printed = _run_python(block.text, names)
            following = found[place + 1] if place + 1 < len(found) else None
            closed = block.end + len("```")
            said = Block("text", "", closed, closed)
            if following and following.language == "text":
                between = text[block.end : following.start]
                said = following if re.fullmatch(r"```\s*```text[ \t]*\n", between) else said
            yield Ran(block.text, printed, said)
        elif block.language == "console":
            yield from _run_console(block)


def _run_python(code: str, names: dict[str, Any]) -> str:
    out = StringIO()
    with redirect_stdout(out), warnings.catch_warnings():
        exec(compile(code, "<page>", "exec"), names)
    return out.getvalue()


def _run_console(block: Block) -> Iterator[Ran]:
    lines = block.text.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith(_COMMAND)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        first = start
        while lines[first].endswith("\\\n"):  # a command that goes on in the next line
            first += 1
        command = "".join(lines[start : first + 1]).removeprefix(_COMMAND).replace("\\\n", " ")
        at = block.start + sum(map(len, lines[: first + 1]))
        said = "".join(lines[first + 1 : end])
        yield Ran(command, run_line(command), Block("", said, at, at + len(said)))


def run_line(command: str) -> str:
    """What a command prints on stdout. odcl runs in this process, others in a shell."""
    from odcl.cli.main import run_command

    words = shlex.split(command, comments=True)
    if words[0] != "odcl":
        made = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)
        return made.stdout
    out, rest = TextIOWrapper(BytesIO(), encoding="utf-8", newline=""), StringIO()
    with redirect_stdout(out), redirect_stderr(rest):
        code = run_command(words[1:])
        out.flush()
    assert code == 0, f"{command.strip()}: exit code {code}\n{rest.getvalue()}"
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined]


def same(said: str, printed: str) -> bool:
    """Is this what was printed? ``...`` stands for whatever is there.

    Of numbers with many digits seven count: the last ones are another machine's own. So is the
    size of a file that has such numbers in decimals: kB agree within half a percent.
    """
    sizes = [[float(kb) for kb in SIZE.findall(text)] for text in (said, printed)]
    near = len(sizes[0]) == len(sizes[1]) and np.allclose(*sizes, rtol=0.005)
    said, printed = (SIZE.sub("kB", text) if near else text for text in (said, printed))
    pattern = ".*?".join(map(re.escape, _plain(said).split("...")))
    return re.fullmatch(pattern, _plain(printed), flags=re.DOTALL) is not None


def _plain(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    return re.sub(r"-?\d+\.\d{9,}(e-?\d+)?", lambda m: f"{float(m[0]):.7g}", lines)


def run_in(folder: Path, page: Path) -> list[Ran]:
    """Run a page in a folder, which has the tables of the site."""
    for table in TABLES.glob("*.csv"):
        shutil.copy(table, folder)
    text = page.read_text(encoding="utf-8")
    with chdir(folder):
        return list(run_page(text))


def write_outputs(page: Path) -> None:
    """Put what the examples print into the page."""
    with tempfile.TemporaryDirectory() as folder:
        ran = run_in(Path(folder), page)
    text = page.read_text(encoding="utf-8")
    for one in sorted(ran, key=lambda r: r.said.start, reverse=True):
        if not same(one.said.text, one.printed):
            lines = one.printed.strip("\n") + "\n"
            if (
                one.said.language
                and not one.said.text
                and text[one.said.start - 3 : one.said.start] == "```"
            ):
                lines = f"\n\n```text\n{lines}```"
            text = text[: one.said.start] + lines + text[one.said.end :]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "100")
    for name in sys.argv[1:]:
        write_outputs(Path(name))
