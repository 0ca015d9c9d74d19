"""A federation of a million users, from memory to models, and the server step against K-means.

Each run is a separate process, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from bench.tables import at_most, cpu_seconds, in_turns, progress, table
from odcl import KMeansPP, Method, NoiseMixture, fit
from odcl._typing import Floats, Ints
from odcl.clustering.labels import same_partition
from odcl.data.federation import Federation
from odcl.exchange.upload import Uploads
from odcl.server.combine import average_by_cluster
from odcl.server.step import server_step

ROWS, FEATURES, GROUPS = 20, 10, 10
NOTE = """CPU seconds, one thread. y = <x, u_k> + noise, all standard normal, u_k too. The data
themselves take {data:.2f} GB. 'error' is the mean squared error of the users' models over that of
their local models, and over that of averaging within the true groups; 'misplaced' counts users
outside their true group."""


def run(*, quick: bool, data: Path) -> None:
    m = 100_000 if quick else 1_000_000
    runs = {name: _in_process(name, m) for name in ("kmeans", "mixture")}
    rows = []
    for name, most in (("kmeans", 1.2), ("mixture", 10.0)):
        r = runs[name]
        steps = [("precision and evidence", r["server_s"], r["kmeans_s"])]
        if r["paper"]:
            steps.insert(0, ("mean, as in the paper", *r["paper"]))
        for what, server_s, kmeans_s in steps:
            ratio = server_s / kmeans_s
            rows.append(
                (
                    f"{r['method']}, {what}: server step / KMeans(10, n_init=10)",
                    f"{ratio:.2f}",
                    f"{server_s:.1f} / {kmeans_s:.1f} s",
                    f"<= {most}" + " at 1,000,000" * quick,
                    "" if quick else at_most(ratio, most),
                )
            )
    for r in runs.values():
        rows.append(
            (
                f"{r['method']}: peak memory, data to models",
                f"{r['peak_gb']:.2f} GB",
                "",
                "< 8 GB",
                at_most(r["peak_gb"], 8.0),
            )
        )
    table(
        f"2. {m:,} users x {ROWS} rows x {FEATURES} features in {GROUPS} groups, squared loss",
        ("", "ratio", "seconds", "target", ""),
        rows,
    )
    table(
        "   What came out",
        ("", "K", "misplaced", "error/local", "error/oracle", "local s", "server s", "refit s"),
        [
            (
                r["method"],
                r["n_clusters"],
                r["misplaced"],
                f"{r['error_local']:.4f}",
                f"{r['error_oracle']:.1f}",
                f"{r['local_s']:.1f}",
                f"{r['first_server_s']:.1f}",
                f"{r['refit_s']:.1f}",
            )
            for r in runs.values()
        ],
        NOTE.format(data=8e-9 * m * ROWS * (FEATURES + 1)),
    )


def _in_process(name: str, m: int) -> dict[str, Any]:
    progress(f"{m:,} users, {name}")
    command = [sys.executable, "-m", "bench.server", name, str(m)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def federation(m: int, rng: np.random.Generator) -> tuple[Federation, Ints, Floats]:
    """Rows written in place, user by user in pieces: nothing is held twice."""
    centers = rng.standard_normal((GROUPS, FEATURES))
    groups = np.arange(m) * GROUPS // m
    X = np.empty((m * ROWS, FEATURES))
    y = np.empty(m * ROWS)
    rng.standard_normal(out=X)
    rng.standard_normal(out=y)
    for part in np.array_split(np.arange(m), max(1, m // 10_000)):
        rows = slice(part[0] * ROWS, (part[-1] + 1) * ROWS)
        D = X[rows].reshape(len(part), ROWS, FEATURES)
        y[rows] += np.matmul(D, centers[groups[part], :, None]).ravel()
    return Federation(X, y, np.arange(m + 1) * ROWS, np.arange(m)), groups, centers


def measure(name: str, m: int) -> dict[str, Any]:
    """One whole run, then the server step and K-means on the same uploads, in turns."""
    users, groups, centers = federation(m, np.random.default_rng(0))
    clusterer = KMeansPP(GROUPS) if name == "kmeans" else NoiseMixture()
    seconds: dict[str, float] = {}
    _clock(seconds)
    result = fit(users, method=Method(clusterer))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    uploads, theta = result.uploads, result.local.theta

    def bare() -> Any:
        return KMeans(GROUPS, n_init=10, random_state=0).fit(theta)

    def step(sent: Uploads, method: Method) -> tuple[float, float]:
        again = 4 if name == "kmeans" else 2
        return in_turns(lambda: server_step(sent, method), bare, again)[:2]

    server, kmeans = step(uploads, result.method)
    paper = step(Uploads.of(theta), Method.paper(GROUPS)) if name == "kmeans" else None
    optima = centers[groups]
    oracle = average_by_cluster(theta, groups)[groups]
    return {
        "method": type(clusterer).__name__,
        "server_s": server,
        "kmeans_s": kmeans,
        "paper": paper,
        "peak_gb": peak,
        "n_clusters": result.n_clusters,
        "misplaced": _misplaced(result.labels, groups),
        "error_local": _error(result.models, optima) / _error(theta, optima),
        "error_oracle": _error(result.models, optima) / _error(oracle, optima),
        "local_s": seconds["fit_users"],
        "first_server_s": seconds["server_step"],
        "refit_s": seconds["receive"],
    }


def _clock(seconds: dict[str, float]) -> None:
    """Let the three steps of ``fit`` tell their time."""
    import odcl.engines.in_process as engine

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            seconds[name], result = cpu_seconds(lambda: work(*args, **settings))
            return result

        return call

    for name in ("fit_users", "server_step", "receive"):
        setattr(engine, name, timed(name, getattr(engine, name)))


def _error(models: Floats, optima: Floats) -> float:
    return float(((models - optima) ** 2).sum(axis=1).mean())


def _misplaced(labels: Ints, groups: Ints) -> int:
    """Users outside the cluster that holds most of their group."""
    if same_partition(labels, groups):
        return 0
    table_ = np.zeros((groups.max() + 1, labels.max() + 1), dtype=np.intp)
    np.add.at(table_, (groups, labels), 1)
    return len(labels) - int(table_.max(axis=1).sum())


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
