"""An experiment's page and figure, from its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from odcl import __version__
from odcl.files import atomic_path
from odcl.paper.experiments.definition import Experiment
from odcl.paper.experiments.rows import Rows, whole_setting


def write_report(
    experiment: Experiment, rows: Rows, out: Path, *, quick: bool
) -> tuple[str, list[Path]]:
    """NAME.md, NAME.png and NAME.svg; without matplotlib only the page."""
    from odcl.report import pictures

    stem = out / experiment.name
    smaller = _smaller(experiment) if quick else ""
    figures = []
    if experiment.draw is not None and pictures.available():
        fig = experiment.draw(rows)
        if smaller:
            fig.suptitle("A quick look, not the paper's set-up", fontsize=10, color="#555555")
        for ending in (".png", ".svg"):
            figures.append(stem.with_suffix(ending))
            pictures.save(fig, figures[-1])
    parts = [f"# {experiment.title}"]
    if smaller:
        parts.append(f"**A quick look, not the paper's set-up**: {smaller}.")
    if figures:
        parts.append(f"![{experiment.title}]({experiment.name}.png)")
    page = "\n\n".join([*parts, experiment.table(rows), _foot(rows)]) + "\n"
    path = stem.with_suffix(".md")
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return page, [path, *figures]


def _foot(rows: Rows) -> str:
    """Runs, seeds, version and time."""
    n_runs = len({row.run for row in rows.rows})
    seeds = sorted({row.seed for row in rows.rows})
    shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return (
        f"{n_runs} run{'s' * (n_runs > 1)}, {shown}, odcl {__version__}, "
        f"{work_seconds(rows):,.1f} s of work."
    )


def _smaller(experiment: Experiment) -> str:
    """In words, what ``--quick`` makes smaller; empty: nothing."""
    full, quick = experiment.settings(False), experiment.settings(True)
    parts = []
    for key in full[0]:
        many, few = (list(dict.fromkeys(str(s[key]) for s in some)) for some in (full, quick))
        if many != few:
            parts.append(f"{key} = {_listed(few)} in place of {_listed(many)}")
    if experiment.quick_runs < experiment.runs:
        parts.append(f"{experiment.quick_runs} runs by default in place of {experiment.runs}")
    return "; ".join(parts)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= 5 else f"{values[0]} to {values[-1]}"


def work_seconds(rows: Rows) -> float:
    """Wall time of the methods; a method's several numbers come from one call."""
    calls = {
        (row.method, json.dumps(whole_setting(row.setting), sort_keys=True), row.run): row.seconds
        for row in rows.rows
    }
    return sum(calls.values())
