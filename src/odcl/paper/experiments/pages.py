"""What the pages share: numbers and tables in Markdown, and curves in the paper's form.

A method has one colour, marker and line in all figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from odcl._typing import Floats
from odcl.files import atomic_path
from odcl.paper.experiments.definition import Rows
from odcl.report.text import markdown_table

# Okabe and Ito's colours, told apart by colour-blind readers; their yellow is lost on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#555555")
BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY = COLOURS
MARKERS = "os^Dv<>PX*"
LINES = ("--", ":", "-.")
OVER_RUNS = "+- is the standard deviation over runs."


def number(value: float) -> str:
    """Three digits; '-' for what was not measured."""
    if np.isnan(value):
        return "-"
    if np.isinf(value):
        return "inf"
    return f"{value:.3g}" if abs(value) < 1e4 else f"{value:.0f}"


def spread(values: Floats, digits: int | None = 3) -> str:
    """Mean +- standard deviation over runs; ``digits`` after the point, None: three in all."""
    if len(values) == 0:
        return "-"
    shown = [values.mean()] if len(values) == 1 else [values.mean(), values.std(ddof=1)]
    return " +- ".join(number(x) if digits is None else f"{x:.{digits}f}" for x in shown)


def by_n(rows: Rows, metric: str, methods: Sequence[str]) -> str:
    """Means over runs: one line per n, one column per method."""
    lines = [[n, *(number(rows.mean(m, metric, n=n)) for m in methods)] for n in rows.of("n")]
    return markdown_table(["n", *methods], lines)


def spread_over_runs(rows: Rows, methods: Sequence[str]) -> str:
    """A sentence on how far runs are from the mean errors."""
    shares = []
    for n in rows.of("n"):
        for method in methods:
            own = rows.values(method, "nmse", n=n)
            if len(own) > 1 and np.isfinite(own).all() and own.mean() > 0:
                shares.append(float(own.std(ddof=1) / own.mean()))
    if not shares:
        return "There is one run: how far others would be from it is not known."
    middle, most = np.median(shares), np.max(shares)
    return (
        f"Over runs, a number has a standard deviation of {middle:.0%} of its mean (the median of "
        f"the table), and of {most:.0%} at most."
    )


def meets(rows: Rows, method: str, n: int) -> bool:
    """Does a method equal Oracle Averaging in every run? The same clusters, to rounding."""
    ours, oracle = (rows.values(m, "nmse", n=n) for m in (method, "oracle-averaging"))
    return len(ours) == len(oracle) > 0 and bool(np.allclose(ours, oracle, rtol=1e-6))


def meets_from(rows: Rows, method: str) -> str:
    """The least n from which on a method equals Oracle Averaging in every run."""
    return _from_on(rows.of("n"), [meets(rows, method, n) for n in rows.of("n")])


def finds_from(rows: Rows, method: str, n_clusters: int, share: float = 1.0) -> str:
    """The least n from which on a method finds this number of clusters, in a share of the runs."""
    found = [rows.values(method, "n_clusters", n=n) == n_clusters for n in rows.of("n")]
    return _from_on(rows.of("n"), [bool(np.mean(right) >= share) for right in found])


def _from_on(values: Sequence[Any], holds: Sequence[bool]) -> str:
    """The least of ``values`` from which on something holds without exception."""
    last = max((i for i, ok in enumerate(holds) if not ok), default=-1)
    return "never" if last == len(values) - 1 else str(values[last + 1])


def error_tables(rows: Rows, methods: Sequence[str], clusters: Sequence[str] = ()) -> list[str]:
    """Errors by n with their spread, and numbers of clusters; with methods that others added."""
    others = rows.others(methods)
    parts = [by_n(rows, "nmse", [*methods, *others]), spread_over_runs(rows, methods)]
    return parts + [by_n(rows, "n_clusters", [*clusters, *others])] * bool(clusters)


def figure(width: float = 9.0, height: float = 4.0, columns: int = 2) -> tuple[Any, Any]:
    """A figure that needs no screen and touches no global state."""
    from matplotlib.figure import Figure

    size = (width if columns > 1 else 0.55 * width, height)
    fig = Figure(figsize=size, layout="constrained")
    return fig, fig.subplots(1, columns, squeeze=False)[0]


def can_draw() -> bool:
    """Is matplotlib installed?"""
    return find_spec("matplotlib") is not None


def save(fig: Any, path: Path) -> None:
    with atomic_path(path) as temporary:
        fig.savefig(temporary, dpi=140)


class LineStyle(NamedTuple):
    label: str
    colour: str
    marker: str = ""
    line: str = "-"
    width: float = 1.6  # a wide pale line lies under those that meet it
    above: float = 2.0

    @property
    def style(self) -> dict[str, Any]:
        line = {"color": self.colour, "ls": self.line, "lw": self.width, "zorder": self.above}
        return {"label": self.label, **line}


LOOKS = {
    "local": LineStyle("Local ERMs", GREY, "v", "-."),
    "naive": LineStyle("Naive averaging", GREY, "x", ":"),
    "oracle-averaging": LineStyle("Oracle Averaging", "#AAAAAA", "", "-", 7.0, 1.0),
    "cluster-oracle": LineStyle("Cluster Oracle", "black", "", ":", 1.8, 3.0),
    "fedavg": LineStyle("FedAvg", PINK, "<"),
    "odcl-km": LineStyle("ODCL-KM", SKY, ">"),
    "odcl-km++": LineStyle("ODCL-KM++", BLUE, "o"),
    "odcl-cc-oracle": LineStyle("ODCL-CC, lambda of true clusters", RED, "s"),
    "odcl-cc": LineStyle("ODCL-CC, clusterpath", ORANGE, "^", "--"),
    "odcl": LineStyle("odcl, K not given (ours)", GREEN, "D"),
}


def draw_curves(
    ax: Any,
    rows: Rows,
    metric: str,
    methods: Sequence[str],
    *,
    key: str = "n",
    looks: dict[str, LineStyle] = LOOKS,
    band: bool = True,
    **setting: Any,
) -> None:
    """Mean over runs against ``key``; the band goes from the least to the greatest run."""
    places = rows.of(key, **setting)
    for position, method in enumerate(methods):
        # A method without a look of its own takes what the paper's leave over.
        colour, line = (PINK, SKY, BLUE, RED)[position % 4], LINES[position % len(LINES)]
        other = LineStyle(method, colour, MARKERS[-1 - position % len(MARKERS)], line)
        look = looks.get(method, other)
        found = {x: rows.values(method, metric, **{key: x}, **setting) for x in places}
        found = {x: values for x, values in found.items() if len(values)}
        x = list(found)
        # Where curves meet, each has its markers at other places.
        every = 1 if len(x) < 9 else (position % 3, 3)
        marks = {"marker": look.marker or None, "ms": 5, "markevery": every}
        ax.plot(x, [v.mean() for v in found.values()], **look.style, **marks)
        if band:
            low, high = ([f(v) for v in found.values()] for f in (np.min, np.max))
            ax.fill_between(x, low, high, color=look.colour, alpha=0.12, lw=0)


def draw_panels(
    methods: Sequence[str], errors: Sequence[str], clusters: Sequence[str], rows: Rows
) -> Any:
    """Two panels against n: the error, and the number of clusters where the truth is 4.

    Methods that others added beside ``methods`` are in both.
    """
    fig, (left, right) = figure(width=11, height=5.0)
    others = rows.others(methods)
    draw_curves(left, rows, "nmse", [*errors, *others])
    finish(left, "Error", "samples per user", "normalised MSE", log="y")
    draw_curves(right, rows, "n_clusters", [*clusters, *others])
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
