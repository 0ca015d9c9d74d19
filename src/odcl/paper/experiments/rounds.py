"""Rounds of communication: figure-ifca (Appendix D.3) and table-rounds (Section 5).

IFCA's error round by round against one round of ODCL-CC, and the rounds it takes to match the error
of ODCL-KM++.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.paper.experiments import pages
from odcl.paper.experiments.definition import (
    Experiment,
    ExperimentTask,
    Measurement,
    Rows,
    Setting,
    linear_bench,
)
from odcl.report.text import markdown_table

METRICS = ("bytes_up", "bytes_down", "rounds", "nmse")
STEPS = {0.1: pages.PINK, 0.05: pages.ORANGE, 0.01: pages.BLUE}
SEEN = {False: "all rows", True: "one row"}  # by a local step; the latter is stochastic
ONE_ROUND = ("oracle-averaging", "cluster-oracle", "odcl-km++", "odcl-cc-oracle")
# About where the paper's text says that a step meets ODCL-CC, by n and step; none at n = 600.
PAPER_MEETS = {(400, 0.1): "20", (400, 0.05): "20", (400, 0.01): "70"}


def ifca_settings(quick: bool) -> list[Setting]:
    rounds = 150 if quick else 1000
    return [{"n": n, "K": 4, "m": 100, "d": 20, "rounds": rounds} for n in (400, 600)]


def name_of(step: float, stochastic: bool) -> str:
    return f"ifca/step-{step}" + "/stochastic" * stochastic


def ifca_work(task: ExperimentTask, data: Path | None) -> Iterator[Measurement]:
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


def ifca_page(rows: Rows) -> list[str]:
    lines = []
    for n in rows.of("n"):
        for step, (stochastic, seen) in product(STEPS, SEEN.items()):
            method = name_of(step, stochastic)
            of_mean, each = first_match(rows, method, n)
            lines.append(
                [
                    f"n = {n}, step {step}, {seen}",
                    PAPER_MEETS.get((n, step), "never"),
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


def draw_ifca(rows: Rows) -> Any:
    sizes = rows.of("n")
    fig, axes = pages.figure(width=11, height=5.0, columns=len(sizes))
    for ax, n in zip(axes, sizes, strict=True):
        looks = {
            name_of(step, one): pages.LineStyle(
                f"IFCA, step {step}, {SEEN[one]}", colour, "", "-:"[one]
            )
            for one, (step, colour) in product(SEEN, STEPS.items())
        }
        pages.draw_curves(ax, rows, "nmse", list(looks), key="round", looks=looks, band=False, n=n)
        for method in ("oracle-averaging", "odcl-cc-oracle"):
            ax.axhline(rows.mean(method, "nmse", n=n), **pages.LOOKS[method].style)
        pages.finish(ax, f"n = {n}", "rounds of communication", "normalised MSE", log="y")
        ax.set_xscale("symlog", linthresh=1)
        ax.set_xlim(left=0)
    return fig


IFCA = Experiment(
    "figure-ifca",
    "IFCA round by round against one round",
    ifca_settings,
    ifca_page,
    draw_ifca,
    work=ifca_work,
)


# -- rounds to the same error ----------------------------------------------------------------------

PAPER_ROUNDS = {1: "440", 4: "655"}
# With one cluster IFCA is FedAvg from zero. Stochastic: each local step on one random row.
RIVAL = {1: "fedavg", 4: "ifca-near"}
MOST = 1000


def rounds_settings(quick: bool) -> list[Setting]:
    return [{"n": 400, "K": K, "m": 100, "d": 20} for K in (1, 4)]


def rounds_work(task: ExperimentTask, data: Path | None) -> Iterator[Measurement]:
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


def rounds_page(rows: Rows) -> list[str]:
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
                    "1" if method == "odcl-km++" else PAPER_ROUNDS[K],
                    pages.spread(rounds, 0),
                    pages.number(float(np.median(rounds))),
                    f"{np.mean(reached(rows, method, K)):.0%}",
                    pages.number(float((sent / once).mean())),
                ]
            )
    header = ["method", "paper", "mean", "median", "reached", "bytes / one round's"]
    return [
        "Rounds until the error of the users' models is that of ODCL-KM++ or less, at most "
        f"{MOST:,}. 100 users, n = 400, 20 parameters, 10 local steps of 0.01; K = 1 starts "
        "from zero, K = 4 between D/6 and D/4 of the optima.",
        markdown_table(header, lines),
        f"A run that never gets there counts {MOST:,} rounds in mean and median; 'reached' is "
        f"the share of runs that did. {pages.OVER_RUNS} The paper gives one number per setting and "
        "does not say whether local steps see all rows or one.",
    ]


def draw_rounds(rows: Rows) -> Any:
    """A panel per number of clusters: each run as a dot, the median, and the paper's number."""
    sizes = rows.of("K")
    fig, axes = pages.figure(width=11, height=3.2, columns=len(sizes))
    for ax, K in zip(axes, sizes, strict=True):
        methods = ["odcl-km++", *(m for m in rows.methods(K=K) if m != "odcl-km++")]
        for place, method in enumerate(methods):
            rounds = rows.values(method, "rounds", K=K)
            ok = np.array(reached(rows, method, K))
            ax.plot(rounds[ok], np.full(ok.sum(), place), "o", color=pages.BLUE, alpha=0.5, ms=5)
            ax.plot(rounds[~ok], np.full((~ok).sum(), place), "x", color=pages.RED, ms=6)
            ax.plot(np.median(rounds), place, "|", color="black", ms=18, mew=2)
        ax.axvline(float(PAPER_ROUNDS[K]), color=pages.ORANGE, ls="--", lw=1.4)
        ax.set_yticks(range(len(methods)), methods)
        ax.set(title=f"K = {K}", xscale="log", xlim=(0.8, 1.3 * MOST), ylim=(-0.6, 2.6))
        ax.set_xlabel("rounds; bar: median; cross: not reached; dashed: the paper's")
        ax.spines[["top", "right"]].set_visible(False)
        pages.plain_ticks(ax.xaxis, (1, 10, 100, 1000))
    return fig


ROUNDS = Experiment(
    "table-rounds",
    "Rounds of communication to the same error",
    rounds_settings,
    rounds_page,
    draw_rounds,
    work=rounds_work,
)

EXPERIMENTS = {one.name: one for one in (IFCA, ROUNDS)}
