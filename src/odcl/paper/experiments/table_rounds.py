"""Rounds until IFCA matches the error of one (the rounds table of Section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from odcl.paper.experiments.definition import Experiment, Measured, Task
from odcl.paper.experiments.measure import linear_bench
from odcl.paper.experiments.pages import BLUE, ORANGE, OVER_RUNS, RED, number, plain_ticks, spread
from odcl.paper.experiments.rows import Rows, Setting
from odcl.report.pictures import figure
from odcl.report.text import markdown_table

TITLE = "Rounds of communication to the same error"
METRICS = ("nmse", "bytes_up", "bytes_down", "rounds")
PAPER = {1: "440", 4: "655"}
# With one cluster IFCA is FedAvg from zero. Stochastic: each local step on one random row.
RIVAL = {1: "fedavg", 4: "ifca-near"}
MOST = 1000


def settings(quick: bool) -> list[Setting]:
    return [{"n": 400, "K": K, "m": 100, "d": 20} for K in (1, 4)]


def work(task: Task, data: Path | None) -> Iterator[Measured]:
    """ODCL-KM++, then its rival until it has the same error: 10 local steps of 0.01 per round."""
    s = task.setting
    bench = linear_bench(task, data)
    one = bench.run("odcl-km++", n_clusters=s["K"])
    call: dict[str, Any] = {"stop_at": one.value("nmse"), "rounds": MOST}
    call |= {"step_size": 0.01, "local_steps": 10}
    rival = RIVAL[s["K"]]
    for name in (rival, f"{rival}/stochastic"):
        yield from bench.run(name, **call).rows(METRICS)
    yield from one.rows(METRICS)


def reached(rows: Rows, method: str, K: int) -> list[bool]:
    """Run by run: did the error come down to that of ODCL-KM++?"""
    rival, ours = (rows.values(m, "nmse", K=K) for m in (method, "odcl-km++"))
    return [bool(r <= o) for r, o in zip(rival, ours, strict=True)]


def page(rows: Rows) -> list[str]:
    lines = []
    for K in rows.of("K"):
        for method in (*(m for m in rows.methods(K=K) if m != "odcl-km++"), "odcl-km++"):
            rounds = rows.values(method, "rounds", K=K)
            sent = rows.values(method, "bytes_up", K=K) + rows.values(method, "bytes_down", K=K)
            once = rows.values("odcl-km++", "bytes_up", K=K)
            once = once + rows.values("odcl-km++", "bytes_down", K=K)
            lines.append(
                [
                    f"{method}, K = {K}",
                    "1" if method == "odcl-km++" else PAPER[K],
                    spread(rounds, 0),
                    number(float(np.median(rounds))),
                    f"{np.mean(reached(rows, method, K)):.0%}",
                    number(float((sent / once).mean())),
                ]
            )
    header = ["method", "paper", "mean", "median", "reached", "bytes / one round's"]
    return [
        "Rounds until the error of the users' models is that of ODCL-KM++ or less, at most "
        f"{MOST:,}. 100 users, n = 400, 20 parameters, 10 local steps of 0.01; K = 1 starts "
        "from zero, K = 4 between D/6 and D/4 of the optima.",
        markdown_table(header, lines),
        f"A run that never gets there counts {MOST:,} rounds in mean and median; 'reached' is "
        f"the share of runs that did. {OVER_RUNS} The paper gives one number per setting and "
        "does not say whether local steps see all rows or one.",
    ]


def draw(rows: Rows) -> Any:
    """A panel per number of clusters: each run as a dot, the median, and the paper's number."""
    sizes = rows.of("K")
    fig, axes = figure(width=11, height=3.2, columns=len(sizes))
    for ax, K in zip(axes, sizes, strict=True):
        methods = ["odcl-km++", *(m for m in rows.methods(K=K) if m != "odcl-km++")]
        for place, method in enumerate(methods):
            rounds = rows.values(method, "rounds", K=K)
            ok = np.array(reached(rows, method, K))
            ax.plot(rounds[ok], np.full(ok.sum(), place), "o", color=BLUE, alpha=0.5, ms=5)
            ax.plot(rounds[~ok], np.full((~ok).sum(), place), "x", color=RED, ms=6)
            ax.plot(np.median(rounds), place, "|", color="black", ms=18, mew=2)
        ax.axvline(float(PAPER[K]), color=ORANGE, ls="--", lw=1.4)
        ax.set_yticks(range(len(methods)), methods)
        ax.set(title=f"K = {K}", xscale="log", xlim=(0.8, 1.3 * MOST), ylim=(-0.6, 2.6))
        ax.set_xlabel("rounds; bar: median; cross: not reached; dashed: the paper's")
        ax.spines[["top", "right"]].set_visible(False)
        plain_ticks(ax.xaxis, (1, 10, 100, 1000))
    return fig


EXPERIMENT = Experiment(
    "table-rounds", TITLE, settings, page, draw, work=work, last=("odcl-km++", "rounds")
)
