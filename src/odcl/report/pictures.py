"""What figures share, and the clusterpath."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl.report.text import count

if TYPE_CHECKING:
    from odcl.clustering.convex.clusterpath import ClusterPath

# Okabe and Ito's colours, told apart by colour-blind readers; their yellow is lost on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#555555")
MARKERS = "os^Dv<>PX*"  # 7 colours and 10 markers: 70 groups before two look alike
LINES = ("--", ":", "-.")
MOST_READ = 60  # leaves whose names can be read under a dendrogram
MOST_LEAVES = 30  # branches of a dendrogram of more than 300 points


def figure(width: float = 9.0, height: float = 4.0, columns: int = 2) -> tuple[Any, Any]:
    """A figure that needs no screen and touches no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (width if columns > 1 else 0.55 * width, height)
    fig = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.subplots(1, columns, squeeze=False)[0]


def available() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def save(fig: Any, path: Path) -> None:
    from odcl.files import atomic_path

    with atomic_path(path) as temporary:
        fig.savefig(temporary, dpi=140)


def draw_path(path: ClusterPath, file: Any = None, labels: Any = None) -> Any:
    """Left: number of clusters against lambda. Right: the dendrogram."""
    from scipy.cluster.hierarchy import dendrogram

    fig, (steps, tree) = figure(width=11.0, height=4.2)
    _draw_steps(steps, path)
    if path.n_points > 1 and path.merges:
        few = path.n_points <= MOST_READ
        names = None if labels is None else [str(name) for name in labels]
        if names is not None and len(names) != path.n_points:
            raise ValueError(f"{len(names)} labels for {path.n_points} points: give one per point.")
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, 4 * path.n_points + 1000))  # SciPy draws recursively
        try:
            dendrogram(
                path.linkage,
                ax=tree,
                labels=names,
                no_labels=not few,
                truncate_mode=None if path.n_points <= 300 else "lastp",
                p=MOST_LEAVES,
                color_threshold=0,
                above_threshold_color=COLOURS[0],
            )
        finally:
            sys.setrecursionlimit(limit)
        tree.tick_params(axis="x", labelsize=6, labelrotation=90)
        heights = path.linkage[path.linkage[:, 2] > 0, 2]
        if len(heights):  # below the first merge there are only the points, side by side
            tree.set_ylim(0.9 * heights[0], heights[-1] + 0.1 * (heights[-1] - 0.9 * heights[0]))
        for lines in tree.collections:
            lines.set_linewidth(1.0)
    tree.set(title=f"Who meets whom ({count(path.n_points, 'point')})", ylabel="lambda")
    if not path.exact:
        style = {"color": COLOURS[6], "linestyle": ":"}
        tree.axhline(path.opened_from, label="not opened below", **style)
        tree.legend(frameon=False, fontsize=8)
    if file is not None:
        fig.savefig(file, dpi=150)
    return fig


def _draw_steps(ax: Any, path: ClusterPath) -> None:
    levels = path.plateaus
    first = min((p.start for p in levels if p.start > 0), default=1.0)
    last = max((p.end for p in levels if np.isfinite(p.end)), default=first)
    starts = [p.start for p in levels]
    ends = [p.end if np.isfinite(p.end) else 1.2 * max(last, first) for p in levels]
    counts = [p.n_clusters for p in levels]
    ax.hlines(counts, starts, ends, color=COLOURS[0], linewidth=2.5)
    ax.vlines(starts[1:], counts[1:], counts[:-1], color=COLOURS[0], linewidth=0.8)
    title = "The clusterpath"
    inner = [i for i, k in enumerate(counts) if 1 < k < max(counts)]
    if inner:
        best = max(inner, key=lambda i: ends[i] - starts[i])
        ax.hlines(counts[best], starts[best], ends[best], color=COLOURS[5], linewidth=4)
        title += f" (longest plateau between 1 and {max(counts)}: K = {counts[best]})"
    ax.set(yscale="log", xlabel="lambda", ylabel="clusters", title=title)
    ax.set_ylim(0.8, max(1.6 * max(counts), 2))
    ticks = [k for k in (1, 2, 3, 4, 5, 10, 20, 50, 100, 300, 1000, 10000) if k <= max(counts)]
    ax.set_yticks(ticks, [str(k) for k in ticks])
    ax.minorticks_off()
