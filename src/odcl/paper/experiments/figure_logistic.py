"""Logistic models (Appendix D.1): error and number of clusters against samples per user."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from odcl.data.synthetic import logistic_federation
from odcl.paper.experiments.definition import Experiment, Task
from odcl.paper.experiments.figure_mse import METHODS, NOT_DRAWN
from odcl.paper.experiments.measure import Bench
from odcl.paper.experiments.pages import draw_panels, error_tables, finds_from, meets_from
from odcl.paper.experiments.rows import Rows, Setting
from odcl.report.text import markdown_table
from odcl.risk.risk import Risk

TITLE = "Logistic models: error and number of clusters"
CLUSTERS = ("odcl-cc-oracle", "odcl-cc", "odcl-noise")
METRICS = ("n_clusters", "nmse")
SAMPLES = (100, 200, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4600, 5000)


def settings(quick: bool) -> list[Setting]:
    some = (200, 1000, 3000) if quick else SAMPLES
    return [{"n": n, "K": 4, "m": 100, "d": 2, "l2": 1e-5} for n in some]


def bench(task: Task, data: Path | None) -> Bench:
    s = task.setting
    federation = logistic_federation(s["m"], s["n"], seed=task.seed)
    return Bench(federation, Risk("logistic", s["l2"], intercept=True), seed=task.seed)


def page(rows: Rows) -> list[str]:
    exact, first, least = "odcl-cc-oracle", rows.of("n")[0], partial(meets_from, rows)
    alone = f"{rows.mean(exact, 'n_clusters', n=first):.3g} (n = {first})"
    half, every = (finds_from(rows, exact, 4, share) for share in (0.5, 1.0))
    claims = [
        ["ODCL-CC (true clusters' lambda): clusters at small n", "100 (n < 500)", alone],
        ["... finds 4 clusters in half of the runs from n =", "3000", half],
        ["... finds 4 clusters in every run from n =", "4600", every],
        ["... equals Oracle Averaging in every run from n =", "4600", least(exact)],
        ["clusterpath equals it in every run from n =", "not shown", least("odcl-cc")],
        ["ODCL-KM++ equals it in every run from n =", "not shown", least("odcl-km++")],
        ["odcl's own groups equal it in every run from n =", "-", least("odcl-noise")],
    ]
    return [
        "Error of the users' models and number of clusters, means over runs. 100 users in 4 "
        "clusters, two features and an intercept. The paper's third covariance matrix has a "
        "negative eigenvalue; what its sampler draws in effect, [[2, 1], [1, 2]], is used.",
        *error_tables(rows, METHODS, CLUSTERS),
        markdown_table(["", "paper", "ours"], claims),
    ]


def draw(rows: Rows) -> Any:
    others = rows.others(METHODS)
    shown = [m for m in METHODS if m not in NOT_DRAWN]
    return draw_panels(rows, [*shown, *others], [*CLUSTERS, *others])


EXPERIMENT = Experiment(
    "figure-logistic", TITLE, settings, page, draw, bench, METHODS, METRICS, runs=20
)
