"""What a fit of a table is asked for: columns, method, rows to hold out, engine, and progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odcl.data.roles import ColumnOptions
    from odcl.method import Method

SHARE = 0.2  # of each user's rows that is held out for the comparison
MEMORY_SHARE = 0.25  # a table that would take more of the memory is fitted in pieces


@dataclass(frozen=True)
class HoldOut:
    """Which of a user's rows are kept back: a share of them, drawn at random or the last ones."""

    share: float
    last: bool = False

    @classmethod
    def of(cls, text: Any) -> HoldOut:
        """A share of each user's rows, ``last`` or ``last:SHARE``."""
        if isinstance(text, HoldOut):
            return text
        words = str(text)
        given = {"last": str(SHARE)}.get(words, words.removeprefix("last:"))
        try:
            share = float(given)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            raise ValueError(
                f"{words!r} is neither a share of the rows, from 0 to below 1, nor last."
            )
        return cls(share, words.startswith("last"))

    def __str__(self) -> str:
        return f"last:{self.share:g}" if self.last else f"{self.share:g}"


@dataclass(frozen=True)
class FitSettings:
    """The columns of a table, and how it is fitted and compared: the options of ``odcl fit``."""

    columns: ColumnOptions
    method: Method
    loss: str = "auto"
    l2: float | None = None  # None: the default of the loss
    intercept: bool = True
    curves: Any = "auto"  # columns that may act in curves, by name; False: none
    periodic: Mapping[str, float] | None = None  # columns that begin anew, and their periods
    holdout: HoldOut = HoldOut(SHARE)
    seed: int = 0
    n_jobs: int | None = None

    def estimator(self, loss: str, categorical: Sequence[str]) -> Any:
        """The estimator that would be fitted to the table in Python."""
        from odcl.data.source import task_of
        from odcl.estimators import ODCLClassifier, ODCLRegressor

        kind = ODCLClassifier if task_of(loss) == "classification" else ODCLRegressor
        more: dict[str, Any] = {} if self.l2 is None else {"l2": self.l2}
        return kind(
            loss=loss,
            users=self.columns.user,
            categorical=list(categorical) or None,
            missing=self.columns.missing,
            method=self.method,
            fit_intercept=self.intercept,
            curves=self.curves,
            periodic=self.periodic,
            random_state=self.seed,
            n_jobs=self.n_jobs,
            **more,
        )


@dataclass(frozen=True)
class Engine:
    """Where a table is worked on: in memory, or in pieces on a Dask cluster."""

    name: str = "auto"  # "memory", "dask", or "auto": by the size of the table
    scheduler: str | None = None  # address of a Dask cluster
    workers: int | None = None  # of a cluster on this machine
    work: Path | str | None = None  # folder for files that are needed meanwhile

    def takes_pieces(self, table: Any, say: Callable[[str], None]) -> bool:
        """Is the table worked on in pieces? ``say`` gets a line where "auto" has decided it."""
        if self.name != "auto":
            return self.name == "dask"
        if self.scheduler is not None or "://" in str(table):
            return True
        size, most = _parquet_bytes(Path(table)), int(MEMORY_SHARE * _memory())
        if size <= most:
            return False
        try:
            import distributed  # noqa: F401
        except ImportError:
            say("the table may not fit into memory; with `pip install 'odcl[dask]'` it need not")
            return False
        size_text = f"the table takes {size / 2**30:.1f} GiB in memory"
        say(f"{size_text}, more than {most / 2**30:.1f}: it is fitted in pieces (--engine dask)")
        return True


def _parquet_bytes(table: Path) -> int:
    """About the size of a table in memory; 0 for one that is not all Parquet."""
    from odcl.data.tables import is_csv, is_parquet

    if table.is_dir():
        files = [f for f in table.iterdir() if not f.name.startswith((".", "_"))]
        if any(map(is_csv, files)) or not any(map(is_parquet, files)):
            return 0
    elif not (table.is_file() and is_parquet(table)):
        return 0
    from odcl.engines.dask.table import table_bytes

    return table_bytes(table)


def _memory() -> int:
    if not hasattr(os, "sysconf"):  # not told on this system: nobody is moved to pieces
        return 2**62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# -- progress --------------------------------------------------------------------------------------


class Silent:
    """Progress that is not shown."""

    def stage(self, text: str, n: int | None = None, what: str = "local models") -> None:
        """Say what happens now; with ``n``, a bar over that many local models, or files."""

    def advance(self, n: int) -> None:
        """Count ``n`` more of them as done."""
