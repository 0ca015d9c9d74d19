"""What goes wrong around a fit in pieces: workers, files and disks; each is told in one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose

from odcl.cli import fit, run
from odcl.engines.dask import round as stages
from odcl.engines.dask.cluster import local_cluster
from odcl.files import locked
from odcl.runs.settings import Silent
from tests.engines.dask.tables import NAMED, SENT, cut, fitted_pieces, in_memory, sales

PIECES = ("--engine", "dask")
FIT = ("fit", "sales", *NAMED, *PIECES, "--holdout", "0", "--out", "run")


def large_ids(table, first=2**63 - 5):
    """The table with integers for its ids that no int64 holds, beside some that it does."""
    ids = np.array(table["store"].to_pylist(), np.uint64) + np.uint64(first)
    return table.set_column(0, "store", pa.array(ids))


@pytest.mark.parametrize("many", ["rows", "sums"])
def test_ids_beyond_signed_integers_are_fitted_as_in_memory(command, tmp_path, many, monkeypatch):
    monkeypatch.setattr(stages, "sums_pay", SENT[many])
    table = large_ids(sales())
    cut(table, tmp_path / "sales", [100])
    assert command(*FIT).code == 0
    assert command("predict", "run", "sales", *PIECES, "--out", "answers").code == 0
    assert command("predict", "run", "sales", "--out", "answers.parquet").code == 0
    whole = in_memory(table).predict(table.drop_columns(["sales"]).to_pandas())
    for place in ("answers", "answers.parquet"):
        found = pq.read_table(place)
        assert_allclose(found["prediction"].to_numpy(), whole, rtol=1e-8)
        assert [int(user) for user in found["store"].to_pylist()] == table["store"].to_pylist()
    own = pq.read_table("run/users")["user"].to_pylist()
    assert sorted(own) == sorted(set(table["store"].to_pylist()))


def test_ids_that_no_type_of_all_files_holds_are_refused(command, tmp_path):
    """Signed in one file, beyond signed in another: they must not come out as other ids."""
    cut(sales(), tmp_path / "sales", [100])
    pq.write_table(large_ids(sales()), tmp_path / "sales/other.parquet")
    for words in (FIT, (*FIT, "--engine", "memory")):
        said = command(*words)
        assert said.code == 2
        assert "not in range" in said.err


def test_ids_beyond_all_integers_are_refused_with_what_to_do(tmp_path):
    table = sales().set_column(0, "store", pa.array([1e19, 2e19] * 240))
    with pytest.raises(ValueError, match="write ids of this size as text"):
        fitted_pieces(cut(table, tmp_path / "sales", []), tmp_path)


@pytest.mark.parametrize("words", [FIT, ("predict", "whole", "sales", *PIECES, "--out", "answers")])
@pytest.mark.parametrize("when", [1, -1], ids=["early", "last"])
def test_a_file_that_is_replaced_meanwhile_is_named(command, tmp_path, monkeypatch, words, when):
    cut(sales(), tmp_path / "sales", [100, 300])
    assert command(*FIT[:-1], "whole").code == 0
    stages = []

    class Watch(Silent):
        def stage(self, name, *_):
            stages.append(name)
            if len(stages) == replace_at:
                pq.write_table(sales(seed=1).slice(100, 200), tmp_path / "sales/part-001.parquet")

    for module in (fit, run):
        monkeypatch.setattr(module, "watched", lambda _: contextlib.nullcontext(Watch()))
    replace_at = -1
    assert command(*words).code == 0
    shutil.rmtree(words[-1])
    reading = [name for name in stages if name != "writing"]
    replace_at, stages = (2 if when == 1 else len(reading)), []
    said = command(*words)
    assert said.code == 2
    assert "sales/part-001.parquet was changed while the table was read" in said.err
    assert not (tmp_path / words[-1]).exists()


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_workers_that_are_killed_again_and_again_are_told_of_in_one_line(capfd):
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local_cluster(1, memory=2**30) as own,
        pytest.raises(ChildProcessError, match=r"killed again and again.*--workers 1") as caught,
    ):
        own.run(die, range(2))
    assert caught.value.__suppress_context__
    assert capfd.readouterr().err == ""


def started(*words, folder, before=()):
    """An odcl command as a process of its own."""
    return subprocess.Popen(
        [*before, sys.executable, "-m", "odcl", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def until(found, process):
    """Wait for something that the process does."""
    deadline = time.monotonic() + 60
    while not (seen := found()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return seen


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_worker_that_is_killed_at_its_start_is_told_of_in_one_line(tmp_path):
    cut(sales(), tmp_path / "sales", [])
    process = started(*FIT, "--workers", "1", folder=tmp_path)

    def workers():
        with contextlib.suppress(psutil.Error):
            there = psutil.Process(process.pid).children()
            return [one for one in there if any("spawn_main" in word for word in one.cmdline())]

    until(workers, process)[0].kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = said.decode().splitlines()
    assert "A worker was killed, or failed, before it was ready" in line
    assert [path.name for path in tmp_path.iterdir()] == ["sales"]


@pytest.mark.slow
def test_working_files_of_a_killed_run_are_swept_by_the_next(command, tmp_path):
    """Those of a run that still goes on are not, nor those of other runs."""
    cut(sales(m=2500, n=5), tmp_path / "sales", [6000])
    process = started(*FIT, folder=tmp_path)
    (left,) = until(lambda: list(tmp_path.glob(".odcl-work-*")), process)
    process.kill()
    process.communicate()
    assert left.is_dir()
    live, other = (tmp_path / f".odcl-work-{name}" for name in ("12345678-run", "12345678-other"))
    for folder in (live, other):
        folder.mkdir()
    with locked(live):
        assert command(*FIT).code == 0
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"sales", "run", live.name, other.name}


def small_disk(place, size):
    """Words before a command that make a folder a disk of so many bytes, for it alone."""
    mount = f'mount -t tmpfs -o size={size} tmpfs {place} && exec "$@"'
    return "unshare", "-rm", "sh", "-c", mount, "sh"


@pytest.mark.slow
def test_a_full_disk_for_working_files_is_named_with_the_option(tmp_path):
    (tmp_path / "small").mkdir()
    before = small_disk(tmp_path / "small", 40_000)
    try:
        subprocess.run([*before, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no small disk can be made here")
    cut(sales(m=200, n=20), tmp_path / "sales", [2000])
    words = (*FIT, "--workers", "1", "--work", "small")
    process = started(*words, folder=tmp_path, before=before)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    line = said.decode().splitlines()[-1]
    assert line == (
        f"odcl: {tmp_path}/small: No space left for working files: name a folder with more room by "
        "--work."
    )
    assert len(said.decode().splitlines()) == 2  # the other tells of workers
    assert not (tmp_path / "run").exists()
