"""How commands talk: results on stdout, progress and notices on stderr, tables in files."""

from __future__ import annotations

import codecs
import io
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from odcl.errors import printable
from odcl.files import check_replace
from odcl.runs.settings import Silent

# A table's columns by name, and what is to be said of them.
Answer = Callable[[], tuple[dict[str, Any], list[str]]]


class Visible(io.BufferedIOBase):
    """A terminal that takes UTF-8 and spells out control characters in names and ids, as ``ls``."""

    def __init__(self, terminal: TextIO):
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, content: Any) -> int:
        lines = self._decoder.decode(bytes(content)).split("\n")
        self._terminal.write("\n".join(map(printable, lines)))
        return len(content)

    def flush(self) -> None:
        self._terminal.flush()

    def fileno(self) -> int:
        return self._terminal.fileno()

    def writable(self) -> bool:
        return True


# -- stderr ----------------------------------------------------------------------------------------


class Bar(Silent):
    """Stages and a bar of rich's, one line that goes away at the end."""

    def __init__(self, progress: Any):
        self._progress = progress
        self._task = progress.add_task("", total=None, visible=False)

    def stage(self, text: str, n: int | None = None, what: str = "local models") -> None:
        words = f"{text}: {what}" if n else text
        self._progress.reset(self._task, total=n, description=words, visible=True)

    def advance(self, n: int) -> None:
        self._progress.advance(self._task, n)


@contextmanager
def watched(options: Namespace) -> Iterator[Silent]:
    """A bar where stderr is a terminal, unless the options are quiet."""
    if options.quiet or not sys.stderr.isatty():
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text, bar, console = TextColumn("{task.description}"), BarColumn(24), Console(stderr=True)
    columns = (SpinnerColumn(), text, bar, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress)


def notice(text: str, quiet: bool = False) -> None:
    """One line on stderr."""
    if not quiet:
        print(f"odcl: {printable(' '.join(text.split()))}", file=sys.stderr)


def say(text: str, options: Namespace) -> None:
    """One line on stderr, unless the options are quiet."""
    notice(text, options.quiet)


@contextmanager
def warnings_as_notices(quiet: bool) -> Iterator[None]:
    """Python's warnings in our voice: one line each, without a place in the source.

    Those of NumPy about a single operation tell a user nothing and are left out.
    """

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        notice(str(message), quiet or issubclass(category, RuntimeWarning))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def unsigned(task: Any) -> list[str]:
    """What is to be said of a task whose files are not signed."""
    if task.signed:
        return []
    return ["files are not signed, for the card lists no keys: whoever carries one can change it"]


def open_page(path: Path) -> None:
    """Show a page in the user's browser."""
    import webbrowser

    webbrowser.open(path.resolve().as_uri())


# -- files -----------------------------------------------------------------------------------------


def check_file_place(out: Path) -> None:
    """Refuse a file that cannot be written before the work."""
    place = out.resolve()
    if out.is_dir():
        raise ValueError(f"{out} is a folder, and a file is to be written: name a file in it.")
    if not place.parent.is_dir():
        raise ValueError(f"{out} cannot be written: there is no folder {out.parent}. Make it.")
    if not os.access(place.parent, os.W_OK):
        raise ValueError(
            f"{out} cannot be written: folder {place.parent} is not yours to change. Name a file "
            "in another folder with --out."
        )


def check_out_file(options: Namespace, *, run: Path, table: Path) -> None:
    """Refuse an output file before the work: no known format, in no folder, there, or read."""
    from odcl.data.tables import check_ending

    out: Path | None = options.out
    if out is None:
        return
    check_ending(out)
    check_file_place(out)
    place = out.resolve()
    if place == table.resolve() or place.parent == table.resolve():
        raise ValueError(f"{out} would stand where {table} is read from: name another file.")
    if place.parent == run.resolve():
        raise ValueError(f"{out} would lie in the run itself: name a file elsewhere.")
    check_replace(out, options.force)


def answer(stage: str, work: Answer, options: Namespace) -> None:
    """Make the table that a command gives from RUN and TABLE, and write it."""
    check_out_file(options, run=options.run, table=options.table)
    with watched(options) as shown:
        shown.stage(stage)
        columns, notices = work()
    write_answer(columns, notices, options)


def write_answer(columns: Mapping[str, Any], notices: Sequence[str], options: Namespace) -> None:
    """The table that a command gives, to its file or as CSV to stdout, and what is said of it."""
    from odcl.data.tables import piecewise
    from odcl.report.text import count

    for text in notices:
        say(text, options)
    sys.stdout.flush()
    with piecewise(options.out, sys.stdout.buffer) as write:
        write(columns)
    if options.out is not None:
        n = len(next(iter(columns.values())))
        say(f"{count(n, 'row')} written to {options.out}", options)
