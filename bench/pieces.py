"""Tables in pieces: ``odcl fit --engine dask`` and ``odcl predict --engine dask`` of more and more
users, what they take of time, memory and disk, and what one user more costs.

Each command is a process whose whole tree is watched; tables and runs are deleted afterwards.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.tables import at_most, progress, table
from odcl._typing import Floats

ROWS, FEATURES, GROUPS = 10, 5, 3
FILE_ROWS = 1_000_000
FIRST, LAST = 100_000, 1_000_000  # users; --users says another last one
FLAT, GIGABYTES = 1.5, 6.0
NOTE = f"""{ROWS} rows and {FEATURES} features per user, {GROUPS} groups, rows of users scattered
over files of {FILE_ROWS:,}. CPU and peak PSS are those of all processes together; the fit includes
the comparison and the report. Disk: most that lay in working files at a time."""


def run(*, quick: bool, data: Path, users: int | None = None) -> None:
    """From 100,000 users on, ten times as many at a time, up to ``users``."""
    try:
        import distributed  # noqa: F401
    except ImportError:
        print("Tables in pieces are not measured: pip install 'odcl[dask]'.")
        return
    last = users or (20_000 if quick else LAST)
    sizes = [n for n in (FIRST * 10**i for i in range(9)) if n < last] + [last]
    found = [_one_size(n) for n in sizes]
    lines = []
    for n, measured in zip(sizes, found, strict=True):
        for what, one in measured.items():
            lines.append((f"{n:,} users, {what}", *one.cells(n)))
    header = ("", "wall s", "CPU s", "GB", "disk GB", "us CPU per user")
    table("Tables in pieces: --engine dask", header, lines, NOTE)
    for what in ("fit", "fit, no comparison", "predict"):
        each = [one[what].cpu / n for n, one in zip(sizes, found, strict=True)]
        if len(sizes) > 1:
            more = found[-1][what].cpu - found[0][what].cpu
            marginal = more / (sizes[-1] - sizes[0])
            ratio = max(each) / min(each)
            print(
                f"{what}: one user more costs {1e6 * marginal:.0f} us of CPU; per user the largest "
                f"is {ratio:.2f} times the smallest: {at_most(ratio, FLAT)} (<= {FLAT:g})."
            )
    peak = max(one.peak for measured in found for one in measured.values())
    print(f"Peak memory: {at_most(peak, GIGABYTES)} (<= {GIGABYTES:g} GB).")


def _one_size(users: int) -> dict[str, Measured]:
    with tempfile.TemporaryDirectory(prefix="odcl-bench-") as place:
        folder = Path(place)
        progress(f"pieces: a table of {users:,} users")
        make_pieces(folder / "table", users)
        named = ("table", "--user", "store", "--target", "sales", "--engine", "dask")
        commands = {
            "fit, no comparison": ("fit", *named, "--holdout", "0", "--out", "plain"),
            "fit": ("fit", *named, "--out", "run"),
            "predict": ("predict", "run", "table", "--engine", "dask", "--out", "predictions"),
        }
        told = {}
        for what, words in commands.items():
            progress(f"pieces: {what}")
            told[what] = watched(words, folder)
            shutil.rmtree(folder / "plain", ignore_errors=True)
    return told


def make_pieces(
    folder: Path,
    users: int,
    rows: int = ROWS,
    features: int = FEATURES,
    bend: Callable[[Floats], Floats] = np.zeros_like,
) -> None:
    """Users of some groups, a file at a time, without a list of all rows anywhere.

    Row i of the table is row (a i) mod n in the order of users, a prime to n: neighbours in the
    table are far apart there.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    n = users * rows
    a = next(k for k in range(int(0.618 * n) | 1, 2 * n, 2) if math.gcd(k, n) == 1)
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((GROUPS, features + 1))
    names = ["store", *(f"x{j}" for j in range(features)), "sales"]
    for number, start in enumerate(range(0, n, FILE_ROWS)):
        at = np.arange(start, min(start + FILE_ROWS, n), dtype=np.int64)
        owner = (at * a) % n // rows
        X = rng.standard_normal((len(at), features))
        theta = centers[owner * 2_654_435_761 % 2**32 % GROUPS]
        y = (X * theta[:, 1:]).sum(axis=1) + theta[:, 0] + rng.standard_normal(len(at))
        y += bend(X[:, 0])
        part = pa.table([pa.array(owner), *map(pa.array, X.T.copy()), pa.array(y)], names=names)
        pq.write_table(part, folder / f"part-{number:05d}.parquet")


# -- one command, watched from outside -------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What a command and all its processes took."""

    wall: float
    cpu: float
    peak: float  # GB of PSS
    disk: float  # GB of working files

    def cells(self, users: int) -> tuple[str, ...]:
        numbers = f"{self.wall:.0f}", f"{self.cpu:.1f}", f"{self.peak:.2f}", f"{self.disk:.2f}"
        return *numbers, f"{1e6 * self.cpu / users:.0f}"


def watched(words: tuple[str, ...], folder: Path) -> Measured:
    """Run ``odcl`` in a folder; look at its processes and files a few times a second."""
    before, start = _children(), time.perf_counter()
    call = [sys.executable, "-m", "odcl", *words, "--quiet"]
    process = subprocess.Popen(call, cwd=folder, stdout=subprocess.DEVNULL)
    peak = disk = 0
    try:
        while process.poll() is None:
            peak = max(peak, sum(map(_pss, _tree(process.pid))))
            working = folder.glob(".odcl-work-*")
            disk = max(disk, sum(_size(path) for one in working for path in one.rglob("*")))
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise SystemExit(f"odcl {' '.join(words)} ended with {process.returncode}.")
    return Measured(time.perf_counter() - start, _children() - before, peak / 1e9, disk / 1e9)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tree(root: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(words[1]), []).append(int(entry))
    found, at = [root], 0
    while at < len(found):
        found += parents.get(found[at], [])
        at += 1
    return found


def _pss(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
