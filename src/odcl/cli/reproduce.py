"""``odcl reproduce``: the paper's figures and tables into a folder, from where a run stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from odcl.paper.experiments import NAMES, experiment
from odcl.paper.experiments.added import NONE_ADDED, Added, load
from odcl.paper.experiments.definition import Experiment, MissingData
from odcl.paper.experiments.rows import read_rows, write_rows
from odcl.paper.experiments.runner import ROWS, Outcome, reproduce
from odcl.report.text import count

_LITTER = (".DS_Store", "Thumbs.db")  # what file managers leave behind


def chosen(name: str) -> list[Experiment]:
    """The experiments that a name stands for."""
    return [experiment(own) for own in (NAMES if name == "all" else (name,))]


def own_clusters(
    name: str, sizes: Sequence[int] | None, separation: float | None, rows: int | None
) -> list[Experiment]:
    """The experiments, with the methods' table for clusters of somebody's own where given."""
    if (sizes, separation, rows) == (None, None, None):
        return chosen(name)
    if name != "table-methods" or sizes is None or separation is None or rows is None:
        raise ValueError(
            "--sizes, --separation and --rows go together, with table-methods: they are the "
            "clusters that its formulas are evaluated for."
        )
    from odcl.paper.experiments.table_methods import for_clusters

    return [for_clusters(sizes, separation, rows)]


def load_methods(path: Path | None, experiments: Sequence[Experiment]) -> Added:
    """The methods that a file registers, for experiments that others can join."""
    if path is None:
        return NONE_ADDED
    if not any(one.bench for one in experiments):
        open_to = ", ".join(name for name in NAMES if experiment(name).bench)
        raise ValueError(f"Methods of your own can join {open_to}, not {experiments[0].name}.")
    return load(path)


def without_data(experiments: Sequence[Experiment], data: Path | None) -> dict[str, str]:
    """Experiments whose files are not there, by name, and what to do."""
    lacking = {}
    for one in experiments:
        try:
            one.check(data)
        except MissingData as error:
            lacking[one.name] = str(error)
    return lacking


def open_folder(out: Path, experiments: Sequence[Experiment], *, force: bool) -> None:
    """Make the folder, or go on in it; with ``force`` the experiments' rows are forgotten."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, and a folder is to be written: name another place.")
    out.mkdir(parents=True, exist_ok=True)
    there = [p.name for p in out.iterdir() if p.name not in _LITTER]
    if there and ROWS not in there:
        raise ValueError(
            f"{out} holds what odcl did not write (such as {sorted(there)[0]!r}), and no {ROWS} to "
            "go on from: name a new folder."
        )
    if force and ROWS in there:
        names = {one.name for one in experiments}
        # A file of that name that is not ours cannot be read, and is never lost.
        write_rows(out / ROWS, [r for r in read_rows(out / ROWS) if r.experiment not in names])
    (out / ROWS).touch()


def run_one(
    one: Experiment,
    out: Path,
    *,
    runs: int | None,
    jobs: int,
    data: Path | None,
    quick: bool,
    seed: int,
    quiet: bool,
    added: Added = NONE_ADDED,
) -> Outcome:
    """One experiment, with a bar where somebody watches."""
    with _counted(one.name, quiet) as advance:
        return reproduce(
            one,
            out,
            runs=runs,
            jobs=jobs,
            data=data,
            quick=quick,
            seed=seed,
            added=added,
            advance=advance,
        )


def time_line(outcome: Outcome) -> str:
    """How much was done and how long it took."""
    old = outcome.n_tasks - outcome.n_new
    kept = f", {old} from before" if old else ""
    done = count(outcome.n_new, "task")
    return (
        f"{outcome.experiment.name}: {done} in {outcome.seconds:.1f} s{kept}; "
        f"all rows hold {outcome.work_seconds:.1f} s of work."
    )


def other_rows(outcome: Outcome) -> str:
    """A line on rows that are there and not used; empty: there are none."""
    n = outcome.n_other
    if not n:
        return ""
    return (
        f"{n} rows of other versions (of odcl, or of your file of methods) in {ROWS} are kept and "
        "not used; --force forgets them."
    )


@contextmanager
def _counted(text: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar over the tasks on stderr; nothing in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
