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
    counts = [level.n_clusters for level in path.plateaus]
    starts = np.array([level.start for level in path.plateaus])
    steps.stairs(counts, [*starts, 1.2 * starts[-1] or 1.0], baseline=None, lw=2.5)
    steps.set(title="The clusterpath", yscale="log", xlabel="lambda", ylabel="clusters")
    ticks = [k for k in (1, 2, 3, 4, 5, 10, 20, 50, 100, 300, 1000, 10000) if k <= max(counts)]
    steps.set_yticks(ticks, [str(k) for k in ticks], minor=False)
    names = None if labels is None else [str(name) for name in labels]
    if names is not None and len(names) != path.n_points:
        raise ValueError(f"{len(names)} labels for {path.n_points} points: give one per point.")
    if path.n_points > 1 and path.merges:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, 4 * path.n_points + 1000))  # SciPy draws recursively
        how = {"p": MOST_LEAVES, "no_labels": path.n_points > MOST_READ, "color_threshold": 0}
        try:
            mode = None if path.n_points <= 300 else "lastp"
            dendrogram(path.linkage, ax=tree, labels=names, truncate_mode=mode, **how)
        finally:
            sys.setrecursionlimit(limit)
        tree.tick_params(axis="x", labelsize=6, labelrotation=90)
    tree.set(title=f"Who meets whom ({count(path.n_points, 'point')})", ylabel="lambda")
    if not path.exact:
        tree.axhline(path.opened_from, label="not opened below", color=COLOURS[6], ls=":")
        tree.legend(frameon=False, fontsize=8)
    if file is not None:
        fig.savefig(file, dpi=150)
    return fig
