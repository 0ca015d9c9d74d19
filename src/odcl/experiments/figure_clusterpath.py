"""Clusterpath against the lambda of the true clusters (Appendix D.2): linear models, K = 4."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from odcl.data.synthetic import linear_federation
from odcl.experiments.curves import draw_curves, finish
from odcl.experiments.figure_mse import meets
from odcl.experiments.measure import Bench
from odcl.experiments.pages import by_setting, from_on, table
from odcl.experiments.rows import Rows, Setting
from odcl.experiments.runner import Experiment, Measured, Task
from odcl.report.pictures import figure

METHODS = ("local", "oracle-averaging", "odcl-cc-oracle", "odcl-cc", "odcl-noise")
METRICS = ("n_clusters", "nmse")
SAMPLES = (50, 100, 200, 300, 400, 500, 600, 700, 800, 1000)


def settings(quick: bool) -> list[Setting]:
    some = (100, 400, 1000) if quick else SAMPLES
    return [{"n": n, "K": 4, "m": 100, "d": 20} for n in some]


def work(task: Task, data: Path | None) -> Iterator[Measured]:
    s = task.setting
    federation = linear_federation(s["m"], s["n"], n_clusters=s["K"], dim=s["d"], seed=task.seed)
    bench = Bench(federation, seed=task.seed)
    for name in METHODS:
        yield from bench.run(name).rows(METRICS)


def page(rows: Rows) -> str:
    sizes = rows.of("n")

    def least(method: str) -> str:
        return from_on(sizes, [meets(rows, method, n) for n in sizes])

    def clusters(method: str) -> str:
        right = [bool((rows.values(method, "n_clusters", n=n) == 4).all()) for n in sizes]
        return from_on(sizes, right)

    exact, path = "odcl-cc-oracle", "odcl-cc"
    few = ", ".join(f"{rows.mean(path, 'n_clusters', n=n):.3g} (n = {n})" for n in sizes[:2])
    many = ", ".join(f"{rows.mean(exact, 'n_clusters', n=n):.3g} (n = {n})" for n in sizes[:2])
    claims = [
        ["clusterpath equals Oracle Averaging from n =", "600", least(path)],
        ["the lambda of true clusters does from n =", "600 or less", least(exact)],
        ["clusterpath finds 4 clusters from n =", "600", clusters(path)],
        ["the lambda of true clusters does from n =", "600 or less", clusters(exact)],
        ["clusters of clusterpath for small n", "fewer than 4", few],
        ["clusters of the lambda of true clusters", "about 100", many],
    ]
    return "\n\n".join(
        [
            "Error of the users' models and number of clusters, means over runs. 100 users in 4 "
            "clusters of 25 (the paper's text says 10), 20 parameters.",
            by_setting(rows, "nmse", METHODS),
            by_setting(rows, "n_clusters", METHODS[2:]),
            table(["in every run", "paper", "ours"], claims),
        ]
    )


def draw(rows: Rows) -> Any:
    fig, (left, right) = figure(width=11, height=5.0)
    draw_curves(left, rows, "nmse", METHODS[:-1])
    finish(left, "Error", "samples per user", "normalised MSE", log="y")
    draw_curves(right, rows, "n_clusters", METHODS[2:])
    right.axhline(4, color="black", ls=":", lw=1, label="true number")
    finish(right, "Clusters found", "samples per user", "clusters", log="y")
    return fig


EXPERIMENT = Experiment(
    "figure-clusterpath",
    "Clusterpath against the lambda of the true clusters",
    settings,
    work,
    (METHODS[-1], METRICS[-1]),
    page,
    draw,
)
