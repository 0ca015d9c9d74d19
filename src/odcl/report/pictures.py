"""Pictures: the users' models as points, and what each method is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints

# Okabe and Ito's colours, told apart by colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = "os^Dv<>PX*"


def figure(width: float = 9.0, height: float = 4.0, columns: int = 2) -> tuple[Any, Any]:
    """A figure that needs no screen and touches no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.subplots(1, columns, squeeze=False)[0]


def available() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def draw_models(ax: Any, theta: Floats, centers: Floats, labels: Ints, *, most: int = 2000) -> None:
    """Local models on the two directions in which the groups' models differ most."""
    shift = theta.mean(axis=0)
    basis = np.linalg.svd(centers - centers.mean(axis=0), full_matrices=False)[2]
    if len(centers) < 3 or theta.shape[1] < 2:
        spread = np.linalg.svd(theta[:most] - shift, full_matrices=False)[2]
        basis = np.vstack([basis[: max(len(centers) - 1, 0)], spread])
    plane = np.zeros((2, theta.shape[1]))
    plane[: len(basis)] = basis[:2]
    plane = np.linalg.qr(plane.T)[0].T if theta.shape[1] > 1 else plane
    points, middle = (theta - shift) @ plane.T, (centers - shift) @ plane.T
    some = np.linspace(0, len(points) - 1, min(most, len(points))).astype(np.intp)
    for k in range(len(centers)):
        own = some[labels[some] == k]
        style = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}
        ax.scatter(points[own, 0], points[own, 1], s=14, alpha=0.6, linewidths=0, **style)
    ax.scatter(middle[:, 0], middle[:, 1], s=60, marker="+", color="black", label="group's model")
    ax.set(title="Users' local models, by group found", xlabel="direction 1", ylabel="direction 2")
    ax.legend(loc="best", frameon=False)


def draw_bars(ax: Any, names: list[str], values: list[float], *, label: str, log: bool) -> None:
    """One bar a method, the best at the top left to the eye."""
    positions = np.arange(len(names))[::-1]
    ax.barh(positions, values, color=COLOURS[0], height=0.6)
    for x, y in zip(values, positions, strict=True):
        ax.annotate(f" {x:.3g}", (x, y), va="center", fontsize=9)
    ax.set_yticks(positions, names)
    ax.set(xlabel=label)
    if log:
        ax.set_xscale("log")
    ax.margins(x=0.25)
    ax.spines[["top", "right"]].set_visible(False)


def draw_users(ax: Any, scores: dict[str, Floats], metric: str) -> None:
    """Each method's users from worst to best: who is left behind."""
    worst_first = metric == "accuracy"
    for c, (name, values) in enumerate(scores.items()):
        ordered = np.sort(values) if worst_first else np.sort(values)[::-1]
        share = (np.arange(len(ordered)) + 0.5) / len(ordered)
        ax.plot(share, ordered, color=COLOURS[c % len(COLOURS)], label=name, lw=1.8)
    ax.set(title="Every user, worst first", xlabel="share of users", ylabel=metric)
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)


def save(fig: Any, path: Path) -> None:
    from odcl.exchange.files import atomic_path

    with atomic_path(path) as temporary:
        fig.savefig(temporary, dpi=140)
