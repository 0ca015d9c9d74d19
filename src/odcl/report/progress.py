"""What a person who watches sees on stderr while odcl works; nothing in a pipe."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from odcl.errors import printable


class Silent:
    """Progress that is not shown."""

    def stage(self, text: str, n: int | None = None, what: str = "local models") -> None:
        """Say what happens now; with ``n``, a bar over that many local models, or files."""

    def advance(self, n: int) -> None:
        """Count ``n`` more of them as done."""


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
def watched(quiet: bool) -> Iterator[Silent]:
    """A bar where stderr is a terminal, unless ``quiet``."""
    if quiet or not sys.stderr.isatty():
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
