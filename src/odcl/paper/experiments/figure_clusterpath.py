"""Clusterpath against the lambda of the true clusters (Appendix D.2): linear models, K = 4."""

from __future__ import annotations

from typing import Any

from odcl.paper.experiments.definition import Experiment
from odcl.paper.experiments.measure import linear_bench
from odcl.paper.experiments.pages import draw_panels, error_tables, finds_from, meets_from
from odcl.paper.experiments.rows import Rows, Setting
from odcl.report.text import markdown_table

TITLE = "Clusterpath against the lambda of the true clusters"
METHODS = ("local", "oracle-averaging", "odcl-cc-oracle", "odcl-cc", "odcl-noise")
METRICS = ("n_clusters", "nmse")
SAMPLES = (50, 100, 200, 300, 400, 500, 600, 700, 800, 1000)


def settings(quick: bool) -> list[Setting]:
    some = (100, 400, 1000) if quick else SAMPLES
    return [{"n": n, "K": 4, "m": 100, "d": 20} for n in some]


def page(rows: Rows) -> list[str]:
    exact, path = "odcl-cc-oracle", "odcl-cc"

    def at_first(method: str) -> str:
        few = rows.of("n")[:2]
        return ", ".join(f"{rows.mean(method, 'n_clusters', n=n):.3g} (n = {n})" for n in few)

    claims = [
        ["clusterpath equals Oracle Averaging from n =", "600", meets_from(rows, path)],
        ["the lambda of true clusters does from n =", "600 or less", meets_from(rows, exact)],
        ["clusterpath finds 4 clusters from n =", "600", finds_from(rows, path, 4)],
        ["the lambda of true clusters does from n =", "600 or less", finds_from(rows, exact, 4)],
        ["clusters of clusterpath for small n", "fewer than 4", at_first(path)],
        ["clusters of the lambda of true clusters", "about 100", at_first(exact)],
    ]
    return [
        "Error of the users' models and number of clusters, means over runs. 100 users in 4 "
        "clusters of 25 (the paper's text says 10), 20 parameters.",
        *error_tables(rows, METHODS, METHODS[2:]),
        markdown_table(["in every run", "paper", "ours"], claims),
    ]


def draw(rows: Rows) -> Any:
    others = rows.others(METHODS)
    return draw_panels(rows, [*METHODS[:-1], *others], [*METHODS[2:], *others])


EXPERIMENT = Experiment(
    "figure-clusterpath", TITLE, settings, page, draw, linear_bench, METHODS, METRICS
)
