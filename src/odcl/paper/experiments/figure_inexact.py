"""Inexact local models (our illustration of Theorem 2): error against T steps of projected SGD."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from odcl.local.sgd import ProjectedSGD
from odcl.paper.experiments import pages
from odcl.paper.experiments.definition import Experiment, Measured, Task
from odcl.paper.experiments.measure import linear_bench
from odcl.paper.experiments.rows import Rows, Setting
from odcl.report.pictures import figure
from odcl.report.text import markdown_table

TITLE = "Inexact local models: error against steps"
METRICS = ("n_clusters", "nmse")
EXACT = ("local", "oracle-averaging", "odcl-km++")
INEXACT = {"last": "i-odcl-km++", "average": "i-odcl-km++/average"}
STEPS = (300, 1_000, 3_000, 10_000, 30_000)


def settings(quick: bool) -> list[Setting]:
    some = (1_000, 5_000) if quick else STEPS
    return [{"T": T, "n": 100, "K": 10, "m": 100, "d": 20} for T in some]


def work(task: Task, data: Path | None) -> Iterator[Measured]:
    """The same federation at every T; both outputs of Section 4.4: last iterate, average."""
    bench = linear_bench(task, data)
    for name in EXACT:
        yield from bench.run(name).rows(METRICS)
    for output, name in INEXACT.items():
        solver = ProjectedSGD(n_iter=task.setting["T"], output=output)  # type: ignore[arg-type]
        yield from bench.run(name, solver=solver).rows(METRICS)


def page(rows: Rows) -> list[str]:
    lines = []
    for T in rows.of("T"):
        exact = rows.mean("odcl-km++", "nmse", T=T)
        cells: list[str] = []
        for name in INEXACT.values():
            error = rows.mean(name, "nmse", T=T)
            cells += [pages.number(error), pages.number(error / exact)]
        lines.append([f"{T:,}", *cells])
    first = rows.of("T")[0]
    there = [pages.number(rows.mean(m, "nmse", T=first)) for m in ("odcl-km++", "local")]
    header = ["T", "last iterate", "/ exact", "weighted average", "/ exact"]
    return [
        "Error of I-ODCL-KM++ after T steps of projected SGD at each user, mean over runs. 100 "
        "users in 10 clusters, n = 100. The paper has no such experiment.",
        markdown_table(header, lines),
        pages.spread_over_runs(rows, list(INEXACT.values()), key="T"),
        f"Exact local models: {there[0]}; without clusters (local): {there[1]}. The "
        "steps 1/(mu t) are long at first, and the ball keeps them; then the error falls until "
        "that of the exact models is left.",
    ]


def draw(rows: Rows) -> Any:
    fig, (ax,) = figure(width=12, height=4.8, columns=1)
    looks = {
        "i-odcl-km++": pages.Look("I-ODCL-KM++, last iterate", pages.BLUE, "o"),
        "i-odcl-km++/average": pages.Look("I-ODCL-KM++, weighted average", pages.ORANGE, "s", "--"),
    }
    pages.draw_curves(ax, rows, "nmse", list(looks), key="T", looks=looks)
    for method in EXACT:
        ax.axhline(rows.mean(method, "nmse", T=rows.of("T")[0]), **pages.LOOKS[method].style)
    pages.finish(ax, "Inexact local models, n = 100", "steps T", "normalised MSE", log="xy")
    pages.plain_ticks(ax.xaxis, rows.of("T"))
    return fig


EXPERIMENT = Experiment(
    "figure-inexact", TITLE, settings, page, draw, work=work, last=(INEXACT["average"], METRICS[-1])
)
