"""Many users on one machine: from a Parquet file to a saved run, and predictions, beside a plain
read of the file by pyarrow and DuckDB's grouping of it.

Every measurement runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.tables import at_most, progress, table

ROWS, FEATURES, GROUPS = 20, 10, 3
USERS = 100_000  # or as many as --users says
READS, GIGABYTES = 30.0, 6.0
NOTE = f"""CPU seconds, {ROWS} rows and {FEATURES} features per user, {GROUPS} groups, rows in any
order. The fit includes the comparison and the report; each process starts Python.
DuckDB adds up the {(FEATURES + 2) * (FEATURES + 3) // 2} sums of a least squares per user."""


def run(*, quick: bool, data: Path, users: int | None = None) -> None:
    users = users or (20_000 if quick else USERS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        progress(f"scale: {users:,} users")
        make_table(folder / "table.parquet", users)
        told = {}
        for what in ("read", "fit", "predict", "duckdb"):
            progress(f"scale: {what}")
            call = [sys.executable, "-m", "bench.scale", what, place]
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
            told[what] = json.loads(done.stdout.splitlines()[-1])
    read, fit, predict, duckdb = told.values()
    ratio = fit["seconds"] / read["seconds"]
    rows = [
        ("pyarrow reads the file", f"{read['seconds']:.1f} s", f"{read['peak']:.1f} GB", "", ""),
        _row("odcl fit, table to saved run", fit, ratio, f"<= {READS:g}", at_most(ratio, READS)),
        _row("odcl predict, file to file", predict, predict["seconds"] / read["seconds"]),
    ]
    if duckdb["seconds"] is not None:
        rows.append(_row("DuckDB groups it", duckdb, duckdb["seconds"] / read["seconds"]))
    title = f"{users:,} users, {users * ROWS:,} rows on one machine"
    table(title, ("", "CPU", "peak memory", "times the read", "goal"), rows, NOTE)
    if duckdb["seconds"] is None:
        print("Without DuckDB: pip install duckdb, and it is measured beside.")
    print(f"Peak memory of the fit: {at_most(fit['peak'], GIGABYTES)} (<= {GIGABYTES:g} GB).")


def _row(name: str, one: dict[str, float], ratio: float, goal: str = "", met: str = "") -> tuple:
    goal = f"{goal} {met}".strip()
    return name, f"{one['seconds']:.1f} s", f"{one['peak']:.1f} GB", f"{ratio:.1f}", goal


def make_table(path: Path, users: int, rows: int = ROWS, features: int = FEATURES) -> None:
    """Users of some groups, their rows in any order, a million rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    centers = rng.standard_normal((GROUPS, features + 1))
    group = rng.integers(0, GROUPS, users)
    order = rng.permutation(users * rows)
    names = ["user", *(f"x{j}" for j in range(features)), "y"]
    writer = None
    for start in range(0, len(order), 1_000_000):
        owner = order[start : start + 1_000_000] // rows
        X = rng.standard_normal((len(owner), features))
        theta = centers[group[owner]]
        y = (X * theta[:, 1:]).sum(axis=1) + theta[:, 0] + rng.standard_normal(len(owner))
        part = pa.table([pa.array(owner), *map(pa.array, X.T.copy()), pa.array(y)], names=names)
        writer = writer or pq.ParquetWriter(path, part.schema)
        writer.write_table(part)
    assert writer is not None
    writer.close()


# -- one measurement, in a process of its own ------------------------------------------------------


def _read(folder: Path) -> None:
    import pyarrow.parquet as pq

    pq.read_table(folder / "table.parquet")


def _fit(folder: Path) -> None:
    _command("fit", folder / "table.parquet", "--user", "user", "--target", "y", folder / "run")


def _predict(folder: Path) -> None:
    _command("predict", folder / "run", folder / "table.parquet", folder / "predictions.parquet")


def _command(*words: str | Path) -> None:
    from odcl.cli.main import main

    *words, out = words
    sys.argv = ["odcl", *map(str, words), "--out", str(out), "--quiet"]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def _duckdb(folder: Path) -> None:
    import duckdb

    names = ["1.0", *(f"x{j}" for j in range(FEATURES)), "y"]
    sums = ", ".join(f"sum({a} * {b})" for i, a in enumerate(names) for b in names[i:])
    query = f"SELECT user, {sums} FROM '{folder / 'table.parquet'}' GROUP BY user"
    duckdb.sql(f"COPY ({query}) TO '{folder / 'sums.parquet'}' (FORMAT parquet)")


def _measured(what: str, folder: Path) -> dict[str, float | None]:
    work = {"read": _read, "fit": _fit, "predict": _predict, "duckdb": _duckdb}[what]
    started = time.perf_counter()
    try:
        work(folder)
    except ImportError:
        return {"seconds": None, "wall": None, "peak": None}
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": used.ru_utime + used.ru_stime,
        "wall": time.perf_counter() - started,
        "peak": used.ru_maxrss / 1e6,
    }


if __name__ == "__main__":
    told = _measured(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps(told))
