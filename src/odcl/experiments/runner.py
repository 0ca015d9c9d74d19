"""Runs an experiment: what is missing in ``rows.jsonl`` is computed, then table and figure."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from odcl import __version__
from odcl.exchange.files import atomic_path
from odcl.experiments.rows import (
    PARTS,
    Row,
    Rows,
    Setting,
    alone_in,
    append_rows,
    finite,
    is_torn,
    read_rows,
    write_rows,
)

ROWS = "rows.jsonl"
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

    @property
    def key(self) -> tuple[str, int, int]:
        return json.dumps(self.setting, sort_keys=True), self.run, self.seed


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper.

    ``work`` gives the numbers of a task in a fixed order, those of the last method's last metric
    at the very end: by it a task is known to be complete. ``table`` writes the page, ``draw`` the
    figure. ``settings(quick)`` are the federations.
    """

    name: str
    title: str
    settings: Callable[[bool], list[Setting]]
    work: Callable[[Task, Path | None], Iterator[Measured]]
    last: tuple[str, str]  # method and metric that end a task
    table: Callable[[Rows], str]
    draw: Callable[[Rows], Any] | None = None
    runs: int = 10
    quick_runs: int = 2
    check: Callable[[Path | None], None] = field(default=lambda data: None)  # is the data there?

    def tasks(self, *, runs: int | None, quick: bool, seed: int) -> list[Task]:
        """Run by run: after an interruption the first runs are complete. Run r has seed + r."""
        runs = (self.quick_runs if quick else self.runs) if runs is None else runs
        return [Task(s, run, seed + run) for run in range(runs) for s in self.settings(quick)]


@dataclass(frozen=True)
class Outcome:
    """What a call of :func:`reproduce` found and made."""

    experiment: Experiment
    rows: Rows
    page: str
    files: list[Path]
    n_tasks: int
    n_new: int  # tasks that were not in the file yet
    seconds: float  # wall time of this call
    work_seconds: float  # of all methods in all rows


def reproduce(
    experiment: Experiment,
    out: Path,
    *,
    runs: int | None = None,
    jobs: int = 1,
    data: Path | None = None,
    quick: bool = False,
    seed: int = 0,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Compute what is missing, append it to ``out/rows.jsonl``, write the page and the figure.

    Tasks run through joblib: ``with joblib.parallel_config(backend="dask")`` around this call
    sends them elsewhere. ``advance(done, total)`` is told of progress.
    """
    start = time.perf_counter()
    experiment.check(data)
    tasks = experiment.tasks(runs=runs, quick=quick, seed=seed)
    if not tasks:
        raise ValueError("There is nothing to run: --runs must be 1 or more.")
    path = out / ROWS
    with alone_in(out):
        have = _complete(path, experiment, tasks)
        missing = [task for task in tasks if task.key not in have]
        advance(len(tasks) - len(missing), len(tasks))
        for done, rows in enumerate(_results(experiment, missing, data, jobs), 1):
            append_rows(path, rows)
            advance(len(tasks) - len(missing) + done, len(tasks))
    found = Rows(_of(experiment, tasks, read_rows(path)))
    page, files = _report(experiment, found, out, n_runs=len({task.run for task in tasks}))
    wall = time.perf_counter() - start
    return Outcome(
        experiment, found, page, files, len(tasks), len(missing), wall, work_seconds(found)
    )


def work_seconds(rows: Rows) -> float:
    """Wall time of the methods; a method's several numbers come from one call."""
    calls = {
        (row.method, json.dumps(_whole(row.setting), sort_keys=True), row.run): row.seconds
        for row in rows.rows
    }
    return sum(calls.values())


# -- the rows --------------------------------------------------------------------------------------


def _whole(setting: Setting) -> Setting:
    """The setting of the task that a row comes from."""
    return {key: value for key, value in setting.items() if key not in PARTS}


def _key(row: Row) -> tuple[str, int, int]:
    return json.dumps(_whole(row.setting), sort_keys=True), row.run, row.seed


def _of(experiment: Experiment, tasks: Sequence[Task], rows: Sequence[Row]) -> list[Row]:
    """The rows of these tasks, made by this version."""
    keys = {task.key for task in tasks}
    return [
        row
        for row in rows
        if row.experiment == experiment.name and row.version == __version__ and _key(row) in keys
    ]


def _complete(
    path: Path, experiment: Experiment, tasks: Sequence[Task]
) -> set[tuple[str, int, int]]:
    """Tasks whose rows are all there. Rows of those cut short are taken out of the file."""
    rows = read_rows(path)
    own = _of(experiment, tasks, rows)
    have = {_key(row) for row in own if (row.method, row.metric) == experiment.last}
    halves = {id(row) for row in own if _key(row) not in have}
    if halves or is_torn(path):
        write_rows(path, [row for row in rows if id(row) not in halves])
    return have


# -- the work --------------------------------------------------------------------------------------


def _results(
    experiment: Experiment, tasks: Sequence[Task], data: Path | None, jobs: int
) -> Iterator[list[Row]]:
    """The tasks' rows, in the order of the tasks, each as soon as it is there."""
    from joblib import Parallel, delayed

    calls = (delayed(_do)(experiment, task, data) for task in tasks)
    try:
        pool = Parallel(n_jobs=jobs, return_as="generator")
    except ValueError:  # a backend that gives results all at once, such as Ray's
        pool = Parallel(n_jobs=jobs)
    yield from pool(calls)


def _do(experiment: Experiment, task: Task, data: Path | None) -> list[Row]:
    """One task, on one BLAS thread: numbers are the same however many tasks run side by side."""
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        # The paper's own step is too long on CIFAR10: the rows show what comes of it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        rows = [_row(experiment, task, found) for found in experiment.work(task, data)]
    assert (rows[-1].method, rows[-1].metric) == experiment.last
    return rows


def _row(experiment: Experiment, task: Task, found: Measured) -> Row:
    return Row(
        experiment.name,
        found.method,
        {**task.setting, **found.part},
        task.run,
        task.seed,
        found.metric,
        finite(found.value),
        round(found.seconds, 6),
        __version__,
    )


# -- the page --------------------------------------------------------------------------------------


def _report(
    experiment: Experiment, rows: Rows, out: Path, *, n_runs: int
) -> tuple[str, list[Path]]:
    """NAME.md, NAME.png and NAME.svg; without matplotlib only the page."""
    from odcl.report import pictures

    stem = out / experiment.name
    figures = []
    if experiment.draw is not None and pictures.available():
        fig = experiment.draw(rows)
        for ending in (".png", ".svg"):
            figures.append(stem.with_suffix(ending))
            pictures.save(fig, figures[-1])
    image = f"![{experiment.title}]({experiment.name}.png)\n\n" if figures else ""
    seeds = sorted({row.seed for row in rows.rows})
    foot = (
        f"{n_runs} run{'s' * (n_runs > 1)}, seeds {seeds[0]} to {seeds[-1]}, odcl {__version__}, "
        f"{work_seconds(rows):,.1f} s of work."
    )
    page = f"# {experiment.title}\n\n{image}{experiment.table(rows)}\n\n{foot}\n"
    path = stem.with_suffix(".md")
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return page, [path, *figures]
