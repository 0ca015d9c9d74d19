"""Curves in the paper's form: one colour, marker and line per method, the same in all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from odcl.paper.experiments.rows import Rows
from odcl.report.pictures import COLOURS, LINES, MARKERS, figure

BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY = COLOURS


class Look(NamedTuple):
    label: str
    colour: str
    marker: str = ""
    line: str = "-"
    width: float = 1.6  # a wide pale line lies under those that meet it
    above: float = 2.0


LOOKS = {
    "local": Look("Local ERMs", GREY, "v", "-."),
    "naive": Look("Naive averaging", GREY, "x", ":"),
    "oracle-averaging": Look("Oracle Averaging", "#AAAAAA", "", "-", 7.0, 1.0),
    "cluster-oracle": Look("Cluster Oracle", "black", "", ":", 1.8, 3.0),
    "fedavg": Look("FedAvg", PINK, "<"),
    "odcl-km": Look("ODCL-KM", SKY, ">"),
    "odcl-km++": Look("ODCL-KM++", BLUE, "o"),
    "odcl-cc-oracle": Look("ODCL-CC, lambda of true clusters", RED, "s"),
    "odcl-cc": Look("ODCL-CC, clusterpath", ORANGE, "^", "--"),
    "odcl-noise": Look("odcl's groups, K not given (ours)", GREEN, "D", "--"),
    "odcl": Look("odcl, K not given (ours)", GREEN, "D"),
}


def look_of(method: str, position: int = 0) -> Look:
    """A method's look; those without one of their own take what the paper's methods leave over."""
    if method in LOOKS:
        return LOOKS[method]
    colours = (PINK, SKY, BLUE, RED)
    marker = MARKERS[-1 - position % len(MARKERS)]
    return Look(method, colours[position % 4], marker, LINES[position % len(LINES)])


def draw_curves(
    ax: Any,
    rows: Rows,
    metric: str,
    methods: Sequence[str],
    *,
    key: str = "n",
    looks: dict[str, Look] | None = None,
    band: bool = True,
    **setting: Any,
) -> None:
    """Mean over runs against ``key``; the band goes from the least to the greatest run."""
    places = rows.of(key, **setting)
    for position, method in enumerate(methods):
        look = (looks or {}).get(method) or look_of(method, position)
        values = [rows.values(method, metric, **{key: x}, **setting) for x in places]
        points = [(x, v) for x, v in zip(places, values, strict=True) if len(v)]
        if not points:
            continue
        x = [place for place, _ in points]
        # Where curves meet, each has its markers at other places.
        every = 1 if len(x) < 9 else (position % 3, 3)
        style = {"color": look.colour, "ls": look.line, "lw": look.width, "zorder": look.above}
        marks = {"marker": look.marker or None, "ms": 5, "markevery": every}
        ax.plot(x, [v.mean() for _, v in points], label=look.label, **style, **marks)
        if band:
            low, high = ([f(v) for _, v in points] for f in (np.min, np.max))
            ax.fill_between(x, low, high, color=look.colour, alpha=0.12, lw=0)


def draw_error_and_clusters(rows: Rows, errors: Sequence[str], clusters: Sequence[str]) -> Any:
    """Two panels against n: the error, and the number of clusters where the truth is 4."""
    fig, (left, right) = figure(width=11, height=5.0)
    draw_curves(left, rows, "nmse", errors)
    finish(left, "Error", "samples per user", "normalised MSE", log="y")
    draw_curves(right, rows, "n_clusters", clusters)
    right.axhline(4, color="black", ls=":", lw=1, label="true number")
    finish(right, "Clusters found", "samples per user", "clusters", log="y")
    plain_ticks(right.yaxis, (1, 2, 4, 10, 25, 50, 100))
    return fig


def plain_ticks(axis: Any, places: Sequence[int]) -> None:
    """Numbers as people write them, at these places of a logarithmic axis."""
    low, high = axis.get_view_interval()
    seen = [place for place in places if low <= place <= high]
    axis.set_ticks(seen, [f"{place:,}" for place in seen])
    axis.set_ticks([], minor=True)


def level(ax: Any, value: float, look: Look) -> None:
    """A horizontal line: what does not depend on the axis."""
    style = {"color": look.colour, "ls": look.line, "lw": look.width, "zorder": look.above}
    ax.axhline(value, label=look.label, **style)


def finish(ax: Any, title: str, xlabel: str, ylabel: str, *, log: str = "") -> None:
    """Labels, axes ("x", "y" or "xy" logarithmic), and the legend below, clear of the curves."""
    if "x" in log:
        ax.set_xscale("log")
    if "y" in log:
        ax.set_yscale("log")
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    ax.grid(True, which="major", alpha=0.25, lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2}
    ax.legend(frameon=False, fontsize=8, **place)
