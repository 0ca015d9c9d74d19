"""Federation by file: ten thousand uploads of forty parameters, from a folder to a round.

Combining runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.tables import at_most, progress, table
from odcl.data.federation import Federation
from odcl.engines.files import Feature, Task, combine_uploads
from odcl.engines.files.envelope import envelope_bytes
from odcl.engines.files.keys import SigningKey, make_keys, read_key

SITES, FEATURES, ROWS, GROUPS = 10_000, 39, 60, 5
SECONDS, GIGABYTES = 60.0, 2.0
NOTE = """CPU seconds on one thread, signatures checked and made, 5 groups, 60 rows per site.
The folder is read, groups are found, and a signed download per site is written and flushed."""


def run(*, quick: bool, data: Path) -> None:
    m = 1_000 if quick else SITES
    with tempfile.TemporaryDirectory() as place:
        progress(f"files: {m} uploads")
        _write_uploads(Path(place), m)
        call = [sys.executable, "-m", "bench.files", place]
        told = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    seconds, peak = told["seconds"], told["peak_gb"]
    rows = [
        (
            f"{m:,} uploads combined",
            f"{seconds:.1f} s",
            f"<= {SECONDS:g}",
            at_most(seconds, SECONDS),
        ),
        ("... on the clock of this machine", f"{told['wall']:.1f} s", "", ""),
        ("peak memory", f"{peak:.2f} GB", f"<= {GIGABYTES:g}", at_most(peak, GIGABYTES)),
        ("groups found", f"{told['groups']}", f"{GROUPS}", ""),
        ("bytes up", f"{told['up'] / 1e6:.1f} MB", "", ""),
        ("bytes down", f"{told['down'] / 1e6:.1f} MB", "", ""),
    ]
    table("Federation by file", ("", "measured", "goal", ""), rows, NOTE)


def _task() -> Task:
    names = tuple(Feature(f"x{j}") for j in range(FEATURES))
    return Task("bench", names, "y")


def _write_uploads(place: Path, m: int) -> None:
    task, rng = _task(), np.random.default_rng(0)
    (place / "uploads").mkdir()
    coordinator = read_key(make_keys("coordinator", place / "keys")[0])
    sites = [f"site-{i:05d}" for i in range(m)]
    keys = {site: _key() for site in sites}
    listed = {site: (key.public,) for site, key in keys.items()}
    task = replace(task, coordinator=(coordinator.public,), sites=listed)
    models = rng.normal(size=(GROUPS, FEATURES + 1))
    words = {"users": 1, "withheld": {"levels": [], "classes": [], "users": 0}}
    for start in range(0, m, 500):
        some = sites[start : start + 500]
        X = rng.normal(size=(len(some) * ROWS, FEATURES))
        owner = np.repeat(np.arange(len(some)), ROWS)
        theta = models[(start + owner) % GROUPS]
        y = (X * theta[:, :-1]).sum(axis=1) + theta[:, -1] + rng.normal(size=len(X))
        uploads = task.uploads_of(Federation.from_arrays(X, y, owner))
        for site, one in zip(some, uploads, strict=True):
            arrays, now = one.to_arrays(), "2026-01-31T12:00:00.000000Z"
            content = envelope_bytes(
                "upload", task, site, arrays, words, created=now, key=keys[site]
            )
            (place / "uploads" / f"{site}.upload").write_bytes(content)
    task.write(place / "task.toml")


def _key() -> SigningKey:
    private = Ed25519PrivateKey.generate()
    return SigningKey(private.public_key().public_bytes_raw().hex(), private)


def _combine(place: Path) -> dict[str, Any]:
    start = time.process_time(), time.perf_counter()
    key = place / "keys" / "coordinator.key"
    combined = combine_uploads(place / "task.toml", place / "uploads", out=place / "round", key=key)
    seconds = time.process_time() - start[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    ledger = combined.ledger
    return {
        "seconds": seconds,
        "wall": time.perf_counter() - start[1],
        "peak_gb": peak,
        "groups": combined.n_groups,
        "up": ledger.total_up,
        "down": ledger.total_down,
    }


if __name__ == "__main__":
    print(json.dumps(_combine(Path(sys.argv[1]))))
