"""Curves in the paper's form: one colour, marker and line a method, the same in all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from odcl.experiments.rows import Rows
from odcl.report.pictures import COLOURS, LINES, MARKERS

BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY = COLOURS


class Look(NamedTuple):
    label: str
    colour: str
    marker: str = ""
    line: str = "-"


LOOKS = {
    "local": Look("Local ERMs", GREY, "v", "-."),
    "naive": Look("Naive averaging", GREY, "x", ":"),
    "oracle-averaging": Look("Oracle Averaging", "black", "", "--"),
    "cluster-oracle": Look("Cluster Oracle", "black", "", ":"),
    "fedavg": Look("FedAvg", PINK, "<"),
    "odcl-km": Look("ODCL-KM", SKY, ">"),
    "odcl-km++": Look("ODCL-KM++", BLUE, "o"),
    "odcl-cc-oracle": Look("ODCL-CC, lambda of true clusters", RED, "s"),
    "odcl-cc": Look("ODCL-CC, clusterpath", ORANGE, "^"),
    "odcl-noise": Look("odcl's groups, K not given (ours)", GREEN, "D", "--"),
    "odcl": Look("odcl, K not given (ours)", GREEN, "D"),
}


def look_of(method: str, position: int = 0) -> Look:
    """A method's look; methods without one of their own take the next colour."""
    plain = Look(
        method,
        COLOURS[position % len(COLOURS)],
        MARKERS[position % len(MARKERS)],
        LINES[position % len(LINES)],
    )
    return LOOKS.get(method, plain)


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
        style = {"color": look.colour, "marker": look.marker or None, "ls": look.line}
        ax.plot(x, [v.mean() for _, v in points], label=look.label, lw=1.6, ms=4.5, **style)
        if band:
            low, high = ([f(v) for _, v in points] for f in (np.min, np.max))
            ax.fill_between(x, low, high, color=look.colour, alpha=0.12, lw=0)


def level(ax: Any, value: float, look: Look) -> None:
    """A horizontal line: what does not depend on the axis."""
    ax.axhline(value, color=look.colour, ls=look.line, lw=1.4, label=look.label)


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
