"""What a figure or a table of the paper is: its federations, its methods, its page.

Methods of your own join it by a Python file that registers them.
"""

from __future__ import annotations

import hashlib
import json
import math
import runpy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from odcl import __version__
from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.data.synthetic import linear_federation
from odcl.files import atomic_path
from odcl.local.fit import solve_users
from odcl.local.problem import Solution
from odcl.paper.baselines import METHODS, BaselineResult
from odcl.paper.baselines import run as run_baseline
from odcl.paper.images import ImageFederation
from odcl.risk.risk import Risk


class MissingData(ValueError):
    """The files that an experiment reads are not there, or not as they should be."""


class Measurement(NamedTuple):
    """A number that a method gave; ``part`` names the round or the user where it is of one."""

    method: str
    metric: str
    value: float
    seconds: float
    part: Setting = {}  # noqa: RUF012 - never written to


@dataclass(frozen=True)
class ExperimentTask:
    """One federation in one run: all methods see the same data and the same seed."""

    setting: Setting
    run: int
    seed: int
    added: str = ""  # the added method that is run; empty: those of the experiment
    version: str = __version__

    @property
    def key(self) -> tuple[str, int, int, str, str]:
        setting = json.dumps(self.setting, sort_keys=True)
        return setting, self.run, self.seed, self.added, self.version


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
    gives other numbers of a task. Where there is a ``bench``, users can add methods.
    """

    name: str
    title: str
    settings: Callable[[bool], list[Setting]]
    table: Callable[[Rows], list[str]]  # the page's paragraphs
    draw: Callable[[Rows], Any] | None = None
    bench: Callable[[ExperimentTask, Path | None], Bench] | None = None
    methods: tuple[str, ...] = ()  # the experiment's own, where others can join
    metrics: tuple[str, ...] = ()
    work: Callable[[ExperimentTask, Path | None], Iterator[Measurement]] | None = None
    runs: int = 10
    quick_runs: int = 2
    check: Callable[[Path | None], None] = field(default=lambda data: None)  # is the data there?

    def tasks(
        self, *, runs: int | None, quick: bool, seed: int, added: Added
    ) -> list[ExperimentTask]:
        """Run by run: after an interruption the first runs are complete. Run r has seed + r."""
        runs = (self.quick_runs if quick else self.runs) if runs is None else runs
        own = [("", __version__)]
        if self.bench is not None:
            own += [(name, added.version) for name in added.names if name not in self.methods]
        return [
            ExperimentTask(setting, run, seed + run, name, version)
            for run in range(runs)
            for setting in self.settings(quick)
            for name, version in own
        ]

    def measure(self, task: ExperimentTask, data: Path | None) -> Iterator[Measurement]:
        """The numbers of a task."""
        if self.work is not None and not task.added:
            yield from self.work(task, data)
            return
        assert self.bench is not None
        here = self.bench(task, data)
        for method in (task.added,) if task.added else self.methods:
            yield from here.run(method).rows(self.metrics)


# -- running methods -------------------------------------------------------------------------------


class _LocalModels:
    """Local models fitted already: a ``solver`` that the one-shot methods of a run share."""

    def __init__(self, federation: Federation, risk: Risk) -> None:
        self.federation, self.risk = federation, risk
        self.solution = solve_users(federation, risk)

    def solve_users(self, federation: Federation, risk: Risk, *, seed: int) -> Solution:
        if federation.X is self.federation.X and risk == self.risk:
            return self.solution
        return solve_users(federation, risk)  # other rows: of a method that changes them

    def __repr__(self) -> str:
        return "exact"


class Bench:
    """One federation, one risk, one seed, and the methods that are run on it.

    The local models are fitted once and belong to ``local``'s time; the seconds of other one-shot
    methods are those of the server.
    """

    def __init__(self, federation: Federation, risk: Risk = Risk(), *, seed: int) -> None:
        self.federation = federation
        self.call: dict[str, Any] = {"risk": risk, "seed": seed}
        start = time.perf_counter()
        self.solver = _LocalModels(federation, risk)
        self.fit_seconds = time.perf_counter() - start

    def run(self, name: str, **options: Any) -> Timed:
        """A method of the registry."""
        if METHODS[name].starts_from_local_models:
            options = {"solver": self.solver, **options}
        start = time.perf_counter()
        result = run_baseline(name, self.federation, **self.call, **options)
        seconds = time.perf_counter() - start + self.fit_seconds * (name == "local")
        return Timed(self.federation, name, result, seconds)


def linear_bench(task: ExperimentTask, data: Path | None) -> Bench:
    """The paper's linear federation of a task's setting."""
    s = task.setting
    federation = linear_federation(s["m"], s["n"], n_clusters=s["K"], dim=s["d"], seed=task.seed)
    return Bench(federation, seed=task.seed)


@dataclass(frozen=True, eq=False)
class Timed:
    """A method's result, and the numbers it gives."""

    federation: Federation
    method: str
    result: BaselineResult
    seconds: float

    def rows(self, metrics: Sequence[str]) -> Iterator[Measurement]:
        for metric in metrics:
            yield Measurement(self.method, metric, self.value(metric), self.seconds)

    def value(self, metric: str) -> float:
        if metric == "nmse":
            return self.result.nmse()
        if metric == "accuracy":
            return float(self.user_accuracy().mean())
        return float(getattr(self.result, "n_rounds" if metric == "rounds" else metric))

    def user_accuracy(self) -> Floats:
        """Share of the withheld images that each user's model gets right, (n_users,)."""
        federation, result = self.federation, self.result
        assert isinstance(federation, ImageFederation)
        X, p = federation.test_X, federation.n_features
        score = X @ result.models[:, :p].T + result.models[:, p:].sum(axis=1)
        return (score * federation.test_y[federation.groups].T > 0).mean(axis=0)

    def curve(self, rounds: Sequence[int]) -> Iterator[Measurement]:
        """The error after these rounds."""
        errors = self.result.history.error
        assert errors is not None
        for t in rounds:
            error = float(errors[min(t, len(errors) - 1)])
            yield Measurement(self.method, "nmse", error, self.seconds, {"round": int(t)})


# -- ``rows.jsonl``: one number per row, written task by task --------------------------------------


Setting = dict[str, Any]
# A row of one of these belongs to a part of a run: a point of its curve, a single user.
PARTS = ("round", "user")


@dataclass(frozen=True)
class ResultRow:
    """What one method gave in one run."""

    experiment: str
    method: str
    setting: Setting
    run: int
    seed: int
    metric: str
    value: float | None  # None: not a finite number
    seconds: float  # wall time of the method, without what it shares with others
    version: str

    @classmethod
    def of(cls, experiment: Experiment, task: ExperimentTask, found: Measurement) -> ResultRow:
        """A number of a task; JSON knows no infinity."""
        value = float(found.value) if math.isfinite(found.value) else None
        if value is not None and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        setting, seconds = {**task.setting, **found.part}, round(found.seconds, 6)
        measured = found.metric, value, seconds, task.version
        return cls(experiment.name, found.method, setting, task.run, task.seed, *measured)

    @property
    def task_setting(self) -> str:
        """The setting of the task that the row comes from, as text."""
        whole = {key: value for key, value in self.setting.items() if key not in PARTS}
        return json.dumps(whole, sort_keys=True)


def read_rows(path: Path) -> list[ResultRow]:
    """The rows of a file; none where there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(ResultRow(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"Line {number} of {path} is not a row of odcl's, and a run cannot go on from it: "
                "take the line out, or name another folder."
            ) from error
    return rows


def lines_of(rows: Iterable[ResultRow]) -> str:
    """The rows as they stand in a file."""
    return "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows)


def write_lines(path: Path, lines: str) -> None:
    """The whole file anew, whole or not at all: a task's rows are all there or none is."""
    with atomic_path(path) as temporary:
        temporary.write_text(lines, encoding="utf-8")


class Rows:
    """Rows of one experiment, to ask for numbers by method, metric and setting."""

    def __init__(self, rows: Sequence[ResultRow]) -> None:
        self.rows = rows
        self._by: dict[tuple[str, str], list[ResultRow]] = {}
        for row in rows:
            self._by.setdefault((row.method, row.metric), []).append(row)

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, method: str, metric: str, **setting: Any) -> Floats:
        """One number per run, in the order of runs; infinity where it was not finite."""
        wanted = {**dict.fromkeys(PARTS), **setting}
        found = [
            (row.run, np.inf if row.value is None else row.value)
            for row in self._by.get((method, metric), ())
            if all(row.setting.get(key) == value for key, value in wanted.items())
        ]
        return np.array([value for _, value in sorted(found)], dtype=np.float64)

    def mean(self, method: str, metric: str, **setting: Any) -> float:
        values = self.values(method, metric, **setting)
        return float(values.mean()) if len(values) else math.nan

    def of(self, key: str, **setting: Any) -> list[Any]:
        """The values that a setting takes, in order."""
        return sorted({row.setting[key] for row in self._with(setting) if key in row.setting})

    def methods(self, **setting: Any) -> list[str]:
        """The methods that there are rows of, in the order in which they came."""
        return list(dict.fromkeys(row.method for row in self._with(setting)))

    def _with(self, setting: Setting) -> Iterator[ResultRow]:
        return (row for row in self.rows if setting.items() <= row.setting.items())

    def others(self, methods: Sequence[str]) -> list[str]:
        """Methods that a user added: those that are not the experiment's."""
        return [method for method in self.methods() if method not in methods]
