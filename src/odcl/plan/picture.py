"""The plan as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl.plan.curve import METHODS
from odcl.plan.point import combiners

if TYPE_CHECKING:
    from odcl.plan.curve import Plan

MADE_BY = "odcl plan"  # in the file, so that a later plan may replace it
_WAYS = {
    "local": "a user's own",
    "mean": "group's, mean",
    "precision": "group's, precision",
    "refit": "group's, refitted",
}


def draw_plan(plan: Plan, path: Path) -> bool:
    """The curve as a PNG file. Is there one? None is drawn for want of matplotlib."""
    from odcl.files import atomic_path
    from odcl.report import pictures

    if not pictures.available():
        return False
    with atomic_path(path) as temporary:
        plan_figure(plan).savefig(temporary, dpi=140, metadata={"Software": MADE_BY})
    return True


def plan_figure(plan: Plan) -> Any:
    """Chances and errors against n, the legends below."""
    from odcl.report import pictures

    fig, axes = pictures.figure(
        width=11, height=5, columns=2 if plan.crossings else 1, searched=False
    )
    if plan.crossings:
        _draw_chances(axes[0], plan)
    _draw_errors(axes[-1], plan)
    for ax in axes:
        ax.set(xlabel="rows per user", xscale="log")
        ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14))
        ax.spines[["top", "right"]].set_visible(False)
    # The room is known: a layout that is searched for would draw everything twice.
    left = 0.075 if plan.crossings else 0.14
    fig.subplots_adjust(left=left, right=0.985, top=0.92, bottom=0.31, wspace=0.2)
    return fig


def is_ours(path: Path) -> bool:
    """Was the file drawn by :func:`draw_plan`?"""
    with path.open("rb") as stream:
        return f"Software\0{MADE_BY}".encode() in stream.read(4096)


def _draw_chances(ax: Any, plan: Plan) -> None:
    """Shares that were simulated as marks, the smooth curve as lines."""
    from odcl.report import pictures

    n = np.array([p.n for p in plan.points])
    for c, (name, words) in enumerate(METHODS.items()):
        if name not in plan.crossings:
            continue
        x, share = n, [p.recovery.get(name, np.nan) for p in plan.points]
        if name == "default":
            x = np.unique([b.n for b in plan.batches])
            share = [_share(plan, int(at)) for at in x]
        style = {"color": pictures.COLOURS[c], "label": words}
        line = _line(plan, name, n, share)
        ax.plot(*line, lw=1.5, **style)
        ax.plot(x, share, pictures.MARKERS[c], ms=4, color=pictures.COLOURS[c], alpha=0.6)
    ax.axhline(plan.target, color="#555555", lw=0.8, ls=":")
    if plan.rows is not None:
        colour = pictures.COLOURS[0 if "default" in plan.crossings else 1]
        ax.axvline(plan.rows, color=colour, lw=0.8, ls="--")
        ax.annotate(f" n = {plan.rows:,}", (plan.rows, 0.02), fontsize=9)
    ax.set(ylim=(-0.03, 1.03), title="Chance of exactly the true groups", ylabel="probability")


def _line(plan: Plan, name: str, n: Any, share: list[float]) -> tuple[Any, Any]:
    """The smooth curve near the crossing and the simulated shares elsewhere."""
    found = plan.crossings[name]
    if found is None:
        return (n, share) if name != "default" else ([], [])
    fine = np.geomspace(n[0], n[-1], 150)
    if name == "default":
        y = [found.chance(v) for v in fine]
        return fine, np.array([np.nan if v is None else v for v in y], dtype=np.float64)
    near = {float(v): found.chance(v) for v in fine if found.covers(v)}
    far = {float(v): p for v, p in zip(n, share, strict=True) if not found.covers(v)}
    x = sorted(near | far)
    return x, [(near | far)[v] for v in x]


def _share(plan: Plan, n: int) -> float:
    """Of the default method's runs with n rows that succeeded."""
    here = [b for b in plan.batches if b.n == n]
    return sum(b.found for b in here) / sum(b.runs for b in here)


def _draw_errors(ax: Any, plan: Plan) -> None:
    from odcl.report import pictures

    n = [p.n for p in plan.points]
    for c, name in enumerate(("local", *combiners(plan.scene))):
        style = {"color": pictures.COLOURS[c + 3], "marker": pictures.MARKERS[c], "ms": 4}
        ax.plot(n, [p.error[name] for p in plan.points], label=_WAYS[name], **style)
    if plan.wanted_error is not None:
        ax.axhline(plan.wanted_error, color="#555555", lw=0.8, ls=":")
    ax.set(title="Error of the users' models", ylabel="relative squared error", yscale="log")
