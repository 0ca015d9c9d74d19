"""``rows.jsonl``: one number per row, written task by task, read again when a run goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Floats
from odcl.files import atomic_path

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

    @property
    def task_setting(self) -> str:
        """The setting of the task that the row comes from, as text."""
        whole = {key: value for key, value in self.setting.items() if key not in PARTS}
        return json.dumps(whole, sort_keys=True)


def finite(value: float) -> float | None:
    """A value for a row: JSON knows no infinity."""
    value = float(value)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


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
