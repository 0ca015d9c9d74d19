"""Normalised MSE against samples per user (the figure of Section 5): linear models, K = 10."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from odcl.data.synthetic import linear_federation
from odcl.experiments.curves import draw_curves, finish
from odcl.experiments.measure import Bench
from odcl.experiments.pages import by_setting, from_on, number, same, table
from odcl.experiments.rows import Rows, Setting
from odcl.experiments.runner import Experiment, Measured, Task
from odcl.report.pictures import figure

# Ours come after the figure's own. n from 21 to 30 is left to one point: with so few rows over
# dim = 20 the least-squares error is heavy-tailed.
METHODS = (
    "local",
    "naive",
    "oracle-averaging",
    "cluster-oracle",
    "odcl-km++",
    "odcl-cc-oracle",
    "odcl-cc",
    "odcl-noise",
    "odcl",
)
METRICS = ("bytes_up", "bytes_down", "n_clusters", "nmse")
SAMPLES = (15, 25, 35, 50, 75, 100, 150, 200, 300, 400, 500, 600, 800, 1000)


def settings(quick: bool) -> list[Setting]:
    some = (50, 200, 1000) if quick else SAMPLES
    return [{"n": n, "K": 10, "m": 100, "d": 20} for n in some]


def work(task: Task, data: Path | None) -> Iterator[Measured]:
    s = task.setting
    federation = linear_federation(s["m"], s["n"], n_clusters=s["K"], dim=s["d"], seed=task.seed)
    bench = Bench(federation, seed=task.seed)
    for name in METHODS:
        yield from bench.run(name).rows(METRICS)


def meets(rows: Rows, method: str, n: int) -> bool:
    """Does a method equal Oracle Averaging in every run?"""
    ours, oracle = (rows.values(m, "nmse", n=n) for m in (method, "oracle-averaging"))
    return same(ours, oracle)


def page(rows: Rows) -> str:
    sizes = rows.of("n")
    tall = [n for n in sizes if n >= 50]

    def least(method: str) -> str:
        return from_on(sizes, [meets(rows, method, n) for n in sizes])

    share = [
        float(np.mean(rows.values("local", "nmse", n=n)))
        / float(np.mean(rows.values("oracle-averaging", "nmse", n=n)))
        for n in tall
    ]
    claims = [
        ["ODCL-KM++ (10 seedings) equals it from n =", "any n", least("odcl-km++")],
        ["ODCL-CC, lambda of true clusters, from n =", "about 400", least("odcl-cc-oracle")],
        ["ODCL-CC, clusterpath, from n =", "not shown", least("odcl-cc")],
        ["odcl's own groups, K not given, from n =", "ours", least("odcl-noise")],
        ["error of local models / its error", "10 (theory)", number(float(np.mean(share)))],
    ]
    return "\n\n".join(
        [
            "Error of the users' models, mean over runs. 100 users in 10 clusters, 20 parameters.",
            by_setting(rows, "nmse", METHODS),
            "Against Oracle Averaging; 'equals': the same error in every run.",
            table(["", "paper", "ours"], claims),
            "In the figure lines are means over runs and bands go from the least to the greatest.",
        ]
    )


def draw(rows: Rows) -> Any:
    fig, (ax,) = figure(width=13, height=5.5, columns=1)
    draw_curves(ax, rows, "nmse", [m for m in METHODS if m != "odcl-noise"])
    title = "Linear models, 10 clusters, 100 users"
    finish(ax, title, "samples per user", "normalised MSE", log="xy")
    return fig


EXPERIMENT = Experiment(
    "figure-mse",
    "Normalised MSE against samples per user",
    settings,
    work,
    (METHODS[-1], METRICS[-1]),
    page,
    draw,
)
