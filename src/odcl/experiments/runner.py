"""Runs an experiment: what is missing in ``rows.jsonl`` is computed, then table and figure."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from odcl import __version__
from odcl.exchange.files import atomic_path
from odcl.experiments.added import NONE_ADDED, Added
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

if TYPE_CHECKING:
    from odcl.experiments.measure import Bench

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
    added: str = ""  # the method of somebody's own that is run; empty: those of the experiment
    version: str = __version__

    @property
    def key(self) -> Key:
        setting = json.dumps(self.setting, sort_keys=True)
        return setting, self.run, self.seed, self.added, self.version


Key = tuple[str, int, int, str, str]


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper.

    ``work`` gives the numbers of a task in a fixed order, those of the last method's last metric
    at the very end: by it a task is known to be complete. ``table`` writes the page, ``draw`` the
    figure. ``settings(quick)`` are the federations. Where ``bench`` is there, methods of
    somebody's own can join: it is a task's federation, on which ``metrics`` are measured.
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
    bench: Callable[[Task, Path | None], Bench] | None = None
    methods: tuple[str, ...] = ()  # the experiment's own, where others can join
    metrics: tuple[str, ...] = ()

    def tasks(
        self, *, runs: int | None, quick: bool, seed: int, added: Added = NONE_ADDED
    ) -> list[Task]:
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
        if not task.added:
            return self.work(task, data)
        assert self.bench is not None
        return self.bench(task, data).run(task.added).rows(self.metrics)

    def ends(self, task: Task) -> tuple[str, str]:
        """Method and metric of a task's last row."""
        return (task.added, self.metrics[-1]) if task.added else self.last


@dataclass(frozen=True)
class Outcome:
    """What a call of :func:`reproduce` found and made."""

    experiment: Experiment
    rows: Rows
    page: str
    files: list[Path]
    n_tasks: int
    n_new: int  # tasks that were not in the file yet
    n_other: int  # rows of these tasks that another version made: kept, not used
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
    added: Added = NONE_ADDED,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Compute what is missing, append it to ``out/rows.jsonl``, write the page and the figure.

    Tasks run through joblib: ``with joblib.parallel_config(backend="dask")`` around this call
    sends them elsewhere. ``added`` are methods of your own (:func:`~odcl.experiments.added.load`).
    ``advance(done, total)`` is told of progress.
    """
    start = time.perf_counter()
    experiment.check(data)
    tasks = experiment.tasks(runs=runs, quick=quick, seed=seed, added=added)
    if not tasks:
        raise ValueError("There is nothing to run: --runs must be 1 or more.")
    path = out / ROWS
    with alone_in(out):
        have = _complete(path, experiment, tasks)
        missing = [task for task in tasks if task.key not in have]
        advance(len(tasks) - len(missing), len(tasks))
        for done, rows in enumerate(_results(experiment, missing, data, jobs, added), 1):
            append_rows(path, rows)
            advance(len(tasks) - len(missing) + done, len(tasks))
    everything = read_rows(path)
    found = Rows(_of(experiment, tasks, everything))
    page, files = _report(experiment, found, out, quick=quick)
    return Outcome(
        experiment,
        found,
        page,
        files,
        len(tasks),
        len(missing),
        _n_other(experiment, tasks, everything),
        time.perf_counter() - start,
        work_seconds(found),
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


def _key(experiment: Experiment, row: Row) -> Key:
    setting = json.dumps(_whole(row.setting), sort_keys=True)
    return setting, row.run, row.seed, experiment.owner(row), row.version


def _of(experiment: Experiment, tasks: Sequence[Task], rows: Sequence[Row]) -> list[Row]:
    """The rows of these tasks, made by this version."""
    keys = {task.key for task in tasks}
    return [
        row for row in rows if row.experiment == experiment.name and _key(experiment, row) in keys
    ]


def _n_other(experiment: Experiment, tasks: Sequence[Task], rows: Sequence[Row]) -> int:
    """Rows of these tasks by other versions."""
    keys = {task.key for task in tasks}
    own = (_key(experiment, row) for row in rows if row.experiment == experiment.name)
    return sum(key not in keys and any(key[:-1] == k[:-1] for k in keys) for key in own)


def _complete(path: Path, experiment: Experiment, tasks: Sequence[Task]) -> set[Key]:
    """Tasks whose rows are all there. Rows of those cut short are taken out of the file."""
    rows = read_rows(path)
    own = _of(experiment, tasks, rows)
    ends = {task.key: experiment.ends(task) for task in tasks}
    have = {
        key
        for key, row in ((_key(experiment, row), row) for row in own)
        if (row.method, row.metric) == ends[key]
    }
    halves = {id(row) for row in own if _key(experiment, row) not in have}
    if halves or is_torn(path):
        write_rows(path, [row for row in rows if id(row) not in halves])
    return have


# -- the work --------------------------------------------------------------------------------------


def _results(
    experiment: Experiment, tasks: Sequence[Task], data: Path | None, jobs: int, added: Added
) -> Iterator[list[Row]]:
    """The tasks' rows, in the order of the tasks, each as soon as it is there."""
    from joblib import Parallel, delayed

    jobs = 1 if experiment.runs == 1 else jobs  # formulas: starting processes would take longer
    calls = (delayed(_do)(experiment, task, data, added) for task in tasks)
    try:
        pool = Parallel(n_jobs=jobs, return_as="generator")
    except ValueError:  # a backend that gives results all at once, such as Ray's
        pool = Parallel(n_jobs=jobs)
    yield from pool(calls)


def _do(experiment: Experiment, task: Task, data: Path | None, added: Added) -> list[Row]:
    """One task, on one BLAS thread: numbers are the same however many tasks run side by side."""
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        # The paper's own step is too long on CIFAR10: the rows show what comes of it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        added.register()  # in a process of its own nobody has yet
        rows = [_row(experiment, task, found) for found in experiment.do(task, data)]
    assert (rows[-1].method, rows[-1].metric) == experiment.ends(task)
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
        task.version,
    )


# -- the page --------------------------------------------------------------------------------------


def _report(
    experiment: Experiment, rows: Rows, out: Path, *, quick: bool
) -> tuple[str, list[Path]]:
    """NAME.md, NAME.png and NAME.svg; without matplotlib only the page."""
    from odcl.report import pictures

    stem = out / experiment.name
    smaller = _smaller(experiment) if quick else ""
    figures = []
    if experiment.draw is not None and pictures.available():
        fig = experiment.draw(rows)
        if smaller:
            fig.suptitle("A quick look, not the paper's set-up", fontsize=10, color="#555555")
        for ending in (".png", ".svg"):
            figures.append(stem.with_suffix(ending))
            pictures.save(fig, figures[-1])
    parts = [f"# {experiment.title}"]
    if smaller:
        parts.append(f"**A quick look, not the paper's set-up**: {smaller}.")
    if figures:
        parts.append(f"![{experiment.title}]({experiment.name}.png)")
    page = "\n\n".join([*parts, experiment.table(rows), _foot(rows)]) + "\n"
    path = stem.with_suffix(".md")
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return page, [path, *figures]


def _foot(rows: Rows) -> str:
    """Runs, seeds, version and time."""
    n_runs = len({row.run for row in rows.rows})
    seeds = sorted({row.seed for row in rows.rows})
    shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return (
        f"{n_runs} run{'s' * (n_runs > 1)}, {shown}, odcl {__version__}, "
        f"{work_seconds(rows):,.1f} s of work."
    )


def _smaller(experiment: Experiment) -> str:
    """In words, what ``--quick`` makes smaller; empty: nothing."""
    full, quick = experiment.settings(False), experiment.settings(True)
    parts = []
    for key in full[0]:
        many, few = (list(dict.fromkeys(str(s[key]) for s in some)) for some in (full, quick))
        if many != few:
            parts.append(f"{key} = {_listed(few)} in place of {_listed(many)}")
    if experiment.quick_runs < experiment.runs:
        parts.append(f"{experiment.quick_runs} runs by default in place of {experiment.runs}")
    return "; ".join(parts)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 5 else f"{values[0]} to {values[-1]}"
