"""IFCA's error round by round against one round of ODCL-CC (Appendix D.3): linear, K = 4."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.paper.experiments import pages
from odcl.paper.experiments.definition import Experiment, Measured, Task
from odcl.paper.experiments.measure import linear_bench
from odcl.paper.experiments.rows import Rows, Setting
from odcl.report.pictures import figure
from odcl.report.text import markdown_table

TITLE = "IFCA round by round against one round"
METRICS = ("bytes_up", "bytes_down", "rounds", "nmse")
STEPS = {0.1: pages.PINK, 0.05: pages.ORANGE, 0.01: pages.BLUE}
SEEN = {False: "all rows", True: "one row"}  # by a local step; the latter is stochastic
ONE_ROUND = ("oracle-averaging", "cluster-oracle", "odcl-km++", "odcl-cc-oracle")
# About where the paper's text says that a step meets ODCL-CC, by n and step; none at n = 600.
PAPER = {(400, 0.1): "20", (400, 0.05): "20", (400, 0.01): "70"}


def settings(quick: bool) -> list[Setting]:
    rounds = 150 if quick else 1000
    return [{"n": n, "K": 4, "m": 100, "d": 20, "rounds": rounds} for n in (400, 600)]


def name_of(step: float, stochastic: bool) -> str:
    return f"ifca/step-{step}" + "/stochastic" * stochastic


def work(task: Task, data: Path | None) -> Iterator[Measured]:
    """Starts between D/5 and D/3 of the optima, 10 local steps per round, models averaged."""
    bench, rounds = linear_bench(task, data), task.setting["rounds"]
    # On the curve: each of the first 30 rounds, then evenly on a log axis.
    later = np.geomspace(30, rounds, 40).round().astype(int)
    for step, stochastic in product(STEPS, SEEN):
        run = bench.run(name_of(step, stochastic), rounds=rounds)
        yield from run.curve(sorted({*range(31), *later.tolist()}))
        yield from run.rows(METRICS)
    for name in ONE_ROUND:
        yield from bench.run(name).rows(METRICS)


def curve(rows: Rows, method: str, n: int) -> tuple[Ints, Floats]:
    """The rounds shown, and the errors there, (n_rounds, n_runs)."""
    rounds = rows.of("round", n=n)
    errors = [rows.values(method, "nmse", n=n, round=t) for t in rounds]
    return np.array(rounds), np.array(errors)


def first_match(rows: Rows, method: str, n: int) -> tuple[float, Floats]:
    """The first round shown at which IFCA has ODCL-CC's error; infinite: none.

    Of the mean over runs, as the paper's figure has it, and run by run.
    """
    rounds, errors = curve(rows, method, n)
    target = rows.values("odcl-cc-oracle", "nmse", n=n)

    def first(met: Bools) -> float:
        return float(rounds[met.argmax()]) if met.any() else np.inf

    each = [first(errors[:, run] <= target[run]) for run in range(len(target))]
    return first(errors.mean(axis=1) <= target.mean()), np.array(each)


def page(rows: Rows) -> list[str]:
    lines = []
    for n in rows.of("n"):
        for step, (stochastic, seen) in product(STEPS, SEEN.items()):
            method = name_of(step, stochastic)
            of_mean, each = first_match(rows, method, n)
            lines.append(
                [
                    f"n = {n}, step {step}, {seen}",
                    PAPER.get((n, step), "never"),
                    f"{of_mean:.0f}" if np.isfinite(of_mean) else "never",
                    f"{np.isfinite(each).mean():.0%}",
                    pages.spread(rows.values(method, "nmse", n=n), None),
                ]
            )
        for method in ONE_ROUND:
            error = pages.spread(rows.values(method, "nmse", n=n), None)
            lines.append([f"n = {n}, {pages.LOOKS[method].label}", "1", "1", "", error])
    header = ["IFCA (and one round)", "paper: meets at", "ours", "runs that do", "last NMSE"]
    return [
        "Rounds until IFCA's mean error over runs is that of ODCL-CC (lambda from the true "
        "clusters), the share of runs in which it gets there by itself, and the mean error "
        "after the last round. 100 users in 4 clusters of 25.",
        markdown_table(header, lines),
        "'All rows': local steps on the full gradient; 'one row': stochastic local steps. "
        f"{pages.OVER_RUNS}",
    ]


def draw(rows: Rows) -> Any:
    sizes = rows.of("n")
    fig, axes = figure(width=11, height=5.0, columns=len(sizes))
    for ax, n in zip(axes, sizes, strict=True):
        looks = {
            name_of(step, one): pages.Look(f"IFCA, step {step}, {SEEN[one]}", colour, "", "-:"[one])
            for one, (step, colour) in product(SEEN, STEPS.items())
        }
        pages.draw_curves(ax, rows, "nmse", list(looks), key="round", looks=looks, band=False, n=n)
        for method in ("oracle-averaging", "odcl-cc-oracle"):
            ax.axhline(rows.mean(method, "nmse", n=n), **pages.LOOKS[method].style)
        pages.finish(ax, f"n = {n}", "rounds of communication", "normalised MSE", log="y")
        ax.set_xscale("symlog", linthresh=1)
        ax.set_xlim(left=0)
    return fig


EXPERIMENT = Experiment(
    "figure-ifca", TITLE, settings, page, draw, work=work, last=(ONE_ROUND[-1], METRICS[-1])
)
