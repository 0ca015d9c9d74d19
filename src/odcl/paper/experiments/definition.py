"""What a figure or a table of the paper is: its federations, its methods, its page.

Methods of your own join it by a Python file that registers them.
"""

from __future__ import annotations

import hashlib
import json
import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from odcl import __version__
from odcl.paper.baselines import METHODS
from odcl.paper.experiments.rows import Row, Rows, Setting

if TYPE_CHECKING:
    from odcl.paper.experiments.measure import Bench

METRICS = ("nmse", "accuracy", "n_clusters", "rounds", "bytes_up", "bytes_down")


class MissingData(ValueError):
    """The files that an experiment reads are not there, or not as they should be."""


class Measured(NamedTuple):
    """A number that a method gave; ``part`` names the round or the user where it is of one."""

    method: str
    metric: str
    value: float
    seconds: float
    part: Setting = {}  # noqa: RUF012 - nobody writes to it


@dataclass(frozen=True)
class Task:
    """One federation in one run: all methods see the same data and the same seed."""

    setting: Setting
    run: int
    seed: int
    added: str = ""  # the added method that is run; empty: those of the experiment
    version: str = __version__

    @property
    def key(self) -> Key:
        setting = json.dumps(self.setting, sort_keys=True)
        return setting, self.run, self.seed, self.added, self.version


Key = tuple[str, int, int, str, str]


@dataclass(frozen=True)
class Added:
    """The methods that a file registers (:func:`odcl.baselines.register`)."""

    path: Path | None = None
    names: tuple[str, ...] = ()
    version: str = __version__  # with the file's fingerprint: another file, other rows

    def register(self) -> None:
        """Run the file, unless its methods are known in this process."""
        if self.path is not None and not set(self.names) <= set(METHODS):
            runpy.run_path(str(self.path))


NONE_ADDED = Added()


def load_added(path: Path) -> Added:
    """Run a file and see what it registers."""
    if not path.is_file():
        raise ValueError(f"There is no file {path}: name a Python file that registers methods.")
    fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    before = set(METHODS)
    try:
        runpy.run_path(str(path.resolve()))
    except Exception as error:
        raise ValueError(
            f"{path} could not be run, and its methods are not known: "
            f"{type(error).__name__}: {error}"
        ) from error
    names = tuple(name for name in METHODS if name not in before)
    if not names:
        call = "odcl.baselines.register(NAME, FUNCTION)"
        raise ValueError(f"{path} registers no method. Call {call} in it.")
    return Added(path.resolve(), names, f"{__version__}+{fingerprint}")


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper.

    ``settings(quick)`` are the federations; ``table`` writes the page, ``draw`` the figure. By
    default all ``methods`` are run on a task's ``bench`` and ``metrics`` are measured; ``work``
    gives other numbers of a task, in a fixed order, those of ``last`` at the very end: by it a
    task is known to be complete. Where there is a ``bench``, users can add methods.
    """

    name: str
    title: str
    settings: Callable[[bool], list[Setting]]
    table: Callable[[Rows], list[str]]  # the page's paragraphs
    draw: Callable[[Rows], Any] | None = None
    bench: Callable[[Task, Path | None], Bench] | None = None
    methods: tuple[str, ...] = ()  # the experiment's own, where others can join
    metrics: tuple[str, ...] = ()
    work: Callable[[Task, Path | None], Iterator[Measured]] | None = None
    last: tuple[str, str] | None = None  # method and metric that end a task; None: the last ones
    runs: int = 10
    quick_runs: int = 2
    check: Callable[[Path | None], None] = field(default=lambda data: None)  # is the data there?

    def tasks(self, *, runs: int | None, quick: bool, seed: int, added: Added) -> list[Task]:
        """Run by run: after an interruption the first runs are complete. Run r has seed + r."""
        runs = (self.quick_runs if quick else self.runs) if runs is None else runs
        own = [("", __version__)]
        if self.bench is not None:
            own += [(name, added.version) for name in added.names if name not in self.methods]
        return [
            Task(setting, run, seed + run, name, version)
            for run in range(runs)
            for setting in self.settings(quick)
            for name, version in own
        ]

    def owner(self, row: Row) -> str:
        """The task's ``added`` that a row comes from."""
        return row.method if self.bench is not None and row.method not in self.methods else ""

    def do(self, task: Task, data: Path | None) -> Iterator[Measured]:
        """The numbers of a task."""
        if self.work is not None and not task.added:
            yield from self.work(task, data)
            return
        assert self.bench is not None
        here = self.bench(task, data)
        for method in (task.added,) if task.added else self.methods:
            yield from here.run(method).rows(self.metrics)

    def ends(self, task: Task) -> tuple[str, str]:
        """Method and metric of a task's last row."""
        if self.last is not None and not task.added:
            return self.last
        return task.added or self.methods[-1], self.metrics[-1]
