"""Runs an experiment: what is missing in ``rows.jsonl`` is computed, then page and figure."""

from __future__ import annotations

import json
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from odcl import __version__
from odcl.errors import count
from odcl.files import atomic_path, locked
from odcl.paper.experiments import pages
from odcl.paper.experiments.definition import (
    NONE_ADDED,
    Added,
    Experiment,
    ExperimentTask,
    ResultRow,
    Rows,
    lines_of,
    read_rows,
    write_lines,
)
from odcl.runs.settings import Silent

ROWS = "rows.jsonl"


@dataclass(frozen=True)
class Reproduced:
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
    failures: list[str]  # of added methods, a line each


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
    progress: Silent | None = None,
) -> Reproduced:
    """Compute what is missing in ``out/rows.jsonl``, write the page and the figure.

    Tasks run through joblib: ``with joblib.parallel_config(backend="dask")`` around this call
    sends them elsewhere. ``added`` are methods of your own (``load_added``).
    ``progress`` counts the tasks.
    """
    start, shown = time.perf_counter(), progress or Silent()
    experiment.check(data)
    tasks = experiment.tasks(runs=runs, quick=quick, seed=seed, added=added)
    if not tasks:
        raise ValueError("There is nothing to run: runs must be 1 or more.")
    path = out / ROWS
    with _alone_in(out):
        rows = read_rows(path)
        lines = lines_of(rows)
        have = {_key(experiment, row) for row in _of(experiment, tasks, rows)[0]}
        missing = [task for task in tasks if task.key not in have]
        shown.stage(experiment.name, len(tasks), "tasks")
        shown.advance(len(tasks) - len(missing))
        failures = []
        for new in _results(experiment, missing, data, jobs, added):
            if isinstance(new, str):
                failures.append(new)
            else:
                rows += new
                lines += lines_of(new)
                write_lines(path, lines)
            shown.advance(1)
    own, n_other = _of(experiment, tasks, rows)
    found = Rows(own)
    page, files = _report(experiment, found, out, quick)
    seconds, work = time.perf_counter() - start, work_seconds(found)
    numbers = (len(tasks), len(missing), n_other, seconds, work)
    return Reproduced(experiment, found, page, files, *numbers, failures)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other run writes to the folder's rows meanwhile; a process that dies lets go of it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, timeout=0))
        except TimeoutError as error:
            raise ValueError(
                f"Another run writes to {folder}, and both would write its rows: wait for it, or "
                "name another folder."
            ) from error
        yield


def _key(experiment: Experiment, row: ResultRow) -> tuple[str, int, int, str, str]:
    """The key of the task that a row comes from."""
    joined = experiment.bench is not None and row.method not in experiment.methods
    return row.task_setting, row.run, row.seed, row.method if joined else "", row.version


def _of(
    experiment: Experiment, tasks: list[ExperimentTask], rows: list[ResultRow]
) -> tuple[list[ResultRow], int]:
    """The rows of these tasks by this version, and how many there are by others."""
    keys = {task.key for task in tasks}
    but_version = {key[:-1] for key in keys}
    keyed = [(row, _key(experiment, row)) for row in rows if row.experiment == experiment.name]
    n_other = sum(key not in keys and key[:-1] in but_version for _, key in keyed)
    return [row for row, key in keyed if key in keys], n_other


def _results(
    experiment: Experiment,
    tasks: Sequence[ExperimentTask],
    data: Path | None,
    jobs: int,
    added: Added,
) -> Iterator[list[ResultRow] | str]:
    """The tasks' rows in their order, each as soon as it is there, or why a task has none."""
    from joblib import Parallel, delayed

    jobs = 1 if experiment.runs == 1 else jobs  # formulas: starting processes would take longer
    calls = (delayed(_do)(experiment, task, data, added) for task in tasks)
    try:
        pool = Parallel(n_jobs=jobs, return_as="generator")
    except ValueError:  # a backend that gives results all at once, such as Ray's
        pool = Parallel(n_jobs=jobs)
    yield from pool(calls)


def _do(
    experiment: Experiment, task: ExperimentTask, data: Path | None, added: Added
) -> list[ResultRow] | str:
    """One task, on one BLAS thread: numbers are the same however many tasks run side by side.

    An added method that fails says so, and the others go on.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        # The paper's own step is too long on CIFAR10: the rows show what comes of it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        added.register()  # not known yet in a process of its own
        try:
            return [
                ResultRow.of(experiment, task, found) for found in experiment.measure(task, data)
            ]
        except Exception as error:
            if not task.added:
                raise
            return _failure(experiment, task, added, error)


def _failure(experiment: Experiment, task: ExperimentTask, added: Added, error: Exception) -> str:
    """One line: which method, where in its file, on what, and the error."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if added.path is not None and frame.filename == str(added.path)
    ]
    where = f" (line {lines[-1]} of {added.path.name})" if lines and added.path else ""
    what = f"{experiment.name} with {json.dumps(task.setting)}, run {task.run}"
    return f"{task.added}{where} failed on {what}: {type(error).__name__}: {error}"


def _report(experiment: Experiment, rows: Rows, out: Path, quick: bool) -> tuple[str, list[Path]]:
    """NAME.md, NAME.png and NAME.svg; without matplotlib only the page."""
    stem = out / experiment.name
    smaller = _smaller(experiment) if quick else ""
    figures = []
    if experiment.draw is not None and pages.can_draw():
        fig = experiment.draw(rows)
        if smaller:
            fig.suptitle("A quick look, not the paper's set-up", fontsize=10, color="#555555")
        for ending in (".png", ".svg"):
            figures.append(stem.with_suffix(ending))
            pages.save(fig, figures[-1])
    parts = [f"# {experiment.title}"]
    if smaller:
        parts.append(f"**A quick look, not the paper's set-up**: {smaller}.")
    if figures:
        parts.append(f"![{experiment.title}]({experiment.name}.png)")
    page = "\n\n".join([*parts, *experiment.table(rows), _foot(rows)]) + "\n"
    path = stem.with_suffix(".md")
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return page, [path, *figures]


def _foot(rows: Rows) -> str:
    """Runs, seeds, version and time."""
    seeds = sorted({row.seed for row in rows.rows})
    shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return (
        f"{count(len({row.run for row in rows.rows}), 'run')}, {shown}, odcl {__version__}, "
        f"{work_seconds(rows):,.1f} s of work."
    )


def _smaller(experiment: Experiment) -> str:
    """In words, what ``quick`` makes smaller; empty: nothing."""
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


def work_seconds(rows: Rows) -> float:
    """Wall time of the methods; a method's several numbers come from one call."""
    calls = {(row.method, row.task_setting, row.run): row.seconds for row in rows.rows}
    return sum(calls.values())
