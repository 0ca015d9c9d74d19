"""Clusterpath against the lambda of the true clusters (Appendix D.2): linear models, K = 4."""

from __future__ import annotations

from typing import Any

from odcl.paper.experiments.curves import draw_error_and_clusters
from odcl.paper.experiments.figure_mse import meets
from odcl.paper.experiments.measure import comparison, linear_bench
from odcl.paper.experiments.pages import by_setting, from_on, spread_over_runs
from odcl.paper.experiments.rows import Rows, Setting
from odcl.report.markdown import table

METHODS = ("local", "oracle-averaging", "odcl-cc-oracle", "odcl-cc", "odcl-noise")
METRICS = ("n_clusters", "nmse")
SAMPLES = (50, 100, 200, 300, 400, 500, 600, 700, 800, 1000)


def settings(quick: bool) -> list[Setting]:
    some = (100, 400, 1000) if quick else SAMPLES
    return [{"n": n, "K": 4, "m": 100, "d": 20} for n in some]


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
            by_setting(rows, "nmse", [*METHODS, *rows.others(METHODS)]),
            spread_over_runs(rows, "nmse", METHODS),
            by_setting(rows, "n_clusters", [*METHODS[2:], *rows.others(METHODS)]),
            table(["in every run", "paper", "ours"], claims),
        ]
    )


def draw(rows: Rows) -> Any:
    others = rows.others(METHODS)
    return draw_error_and_clusters(rows, [*METHODS[:-1], *others], [*METHODS[2:], *others])


EXPERIMENT = comparison(
    "figure-clusterpath",
    "Clusterpath against the lambda of the true clusters",
    settings,
    linear_bench,
    METHODS,
    METRICS,
    page,
    draw,
)
