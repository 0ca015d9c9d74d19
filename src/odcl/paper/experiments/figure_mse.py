"""Normalised MSE against samples per user (the figure of Section 5): linear models, K = 10."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from odcl.paper.experiments import pages
from odcl.paper.experiments.definition import Experiment
from odcl.paper.experiments.measure import linear_bench
from odcl.paper.experiments.rows import Rows, Setting
from odcl.report.pictures import figure
from odcl.report.text import markdown_table

TITLE = "Normalised MSE against samples per user"
# Ours come after the figure's own. n from 21 to 30 is left to one point: with so few rows over
# dim = 20 the least-squares error is heavy-tailed.
BASELINES = ("local", "naive", "oracle-averaging", "cluster-oracle")
CLUSTERERS = ("odcl-km++", "odcl-km", "odcl-km-part1", "odcl-cc-oracle", "odcl-cc")
METHODS = (*BASELINES, *CLUSTERERS, "odcl-noise", "odcl")
NOT_DRAWN = ("odcl-km", "odcl-km-part1", "odcl-noise")  # they lie on others
METRICS = ("bytes_up", "bytes_down", "n_clusters", "nmse")
SAMPLES = (15, 25, 35, 50, 75, 100, 150, 200, 300, 400, 500, 600, 800, 1000)


def settings(quick: bool) -> list[Setting]:
    some = (50, 200, 1000) if quick else SAMPLES
    return [{"n": n, "K": 10, "m": 100, "d": 20} for n in some]


def page(rows: Rows) -> list[str]:
    tall = [n for n in rows.of("n") if n >= 50]
    share = [
        rows.mean("local", "nmse", n=n) / rows.mean("oracle-averaging", "nmse", n=n) for n in tall
    ]
    least = partial(pages.meets_from, rows)
    claims = [
        ["ODCL-KM++ (10 seedings) equals it from n =", "any n", least("odcl-km++")],
        ["ODCL-KM (spectral K-means), from n =", "not shown", least("odcl-km")],
        ["ODCL-CC, lambda of true clusters, from n =", "about 400", least("odcl-cc-oracle")],
        ["ODCL-CC, clusterpath, from n =", "not shown", least("odcl-cc")],
        ["odcl's own groups, K not given, from n =", "-", least("odcl-noise")],
        ["error of local models / its error", "10 (theory)", pages.number(float(np.mean(share)))],
    ]
    return [
        "Error of the users' models, mean over runs. 100 users in 10 clusters, 20 parameters.",
        *pages.error_tables(rows, METHODS),
        "Against Oracle Averaging; 'equals': the same error in every run.",
        markdown_table(["", "paper", "ours"], claims),
        "In the figure lines are means over runs and bands go from the least to the greatest.",
    ]


def draw(rows: Rows) -> Any:
    fig, (ax,) = figure(width=13, height=5.5, columns=1)
    shown = [m for m in METHODS if m not in NOT_DRAWN]
    pages.draw_curves(ax, rows, "nmse", [*shown, *rows.others(METHODS)])
    title = "Linear models, 10 clusters, 100 users"
    pages.finish(ax, title, "samples per user", "normalised MSE", log="xy")
    pages.plain_ticks(ax.xaxis, (15, 25, 50, 100, 200, 500, 1000))
    return fig


EXPERIMENT = Experiment("figure-mse", TITLE, settings, page, draw, linear_bench, METHODS, METRICS)
