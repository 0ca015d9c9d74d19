"""A plan in words, for people who have not read the paper, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from odcl.plan.search import CEILING, CURVES, METHODS, Plan
from odcl.plan.simulate import combiners
from odcl.report import pictures
from odcl.report.text import table

GAIN = 1.5  # times the error of precision combining from which the mean is advised against
ALLOWED = 2  # users in 100 that `odcl diagnose` lets stand in a wrong group
MADE_BY = "odcl plan"  # in the picture's file, so that a later plan may replace it
_COLUMNS = {"kmeans": "K-means++", "convex": "convex", "convex-13": "Eq. (13)"}
_MODELS = {
    "local": "a user's own",
    "mean": "group's, mean",
    "precision": "group's, precision",
    "refit": "between both",
}


def plan_text(plan: Plan) -> str:
    """What was asked, what it takes, the curve it was read off, and what to do."""
    words = plan.scene.words
    advice = [*_collect(plan), *_error(plan), *_differ(plan), *_pilot(plan), *_doubt(plan)]
    parts = [f"{words[0].upper()}{words[1:]}.", _needed(plan), _error_table(plan)]
    parts += [_curve(plan), "\n".join(advice)]
    return "\n\n".join(part for part in parts if part)


# -- tables ----------------------------------------------------------------------------------------


def _needed(plan: Plan) -> str:
    """Rows per user that each method takes, and what the paper proves."""
    if not plan.crossings:
        return ""
    rows = []
    for name, found in plan.crossings.items():
        n, interval = f"beyond {plan.points[-1].n:,}", ""
        if found is not None:
            n = _shown(found.n)
            interval = f"{_shown(found.low)} - {_shown(found.high)}" * (found.low < found.high)
        rows.append((METHODS[name], n, interval))
    rows += [(f"the paper's threshold for {k}", _shown(n), "") for k, n in plan.paper.items()]
    head = f"rows per user, exactly the true groups in {_percent(plan.target)} of federations"
    return table((head, "n", "likely range"), rows)


def _error_table(plan: Plan) -> str:
    if plan.wanted_error is None:
        return ""
    names = {"mean": "mean of a group's models", "precision": "precision combining (the default)"}
    names["refit"] = "... drawn to the user's own (the default)"
    head = f"rows per user, relative squared error of at most {plan.wanted_error:g}"
    return table((head, "n"), [(names[name], _shown(n)) for name, n in plan.for_error.items()])


def _curve(plan: Plan) -> str:
    """What every simulated n gives, and what the columns mean."""
    models, many = ("local", *combiners(plan.scene)), plan.scene.n_clusters > 1
    methods = ("default", *CURVES) if plan.crossings.get("default") else CURVES
    head = ["rows per user"]
    if many:
        head += [*(_COLUMNS.get(name, name) for name in methods), "misplaced"]
    rows = []
    for p in plan.points:
        cells = [f"{p.n:,}"]
        if many:
            chances = [plan.chance(p, name) for name in methods]
            cells += ["" if c is None else f"{c:.2f}" for c in chances] + [_share(p.misplaced)]
        rows.append((*cells, *(f"{p.error[name]:.2g}" for name in models)))
    text = table((*head, *models), rows)
    if many:
        text += (
            "\nUnder the methods' names: chance of exactly the true groups (Eq. (13): the paper "
            "proves it there).\nmisplaced: share of users whose rows look more like those of "
            "another group."
        )
    errors = "a user's own model, of its group's by mean and by precision combining"
    if "refit" in models:
        errors += ",\nand of one between the user's own and the latter"
    return (
        f"{text}\n{', '.join(models)}: relative squared error of {errors};\nin the typical "
        "(median) federation."
    )


def _shown(n: int | None) -> str:
    return "not reached" if n is None else f"{n:,}" if n < 10**7 else f"{n:.1e}"


def _percent(p: float) -> str:
    return f"{100 * p:.4g} %"


def _share(p: float) -> str:
    return "0" if p == 0 else f"{100 * p:.2g} %"


# -- what to do ------------------------------------------------------------------------------------


def _collect(plan: Plan) -> list[str]:
    if plan.scene.n_clusters == 1:
        return [
            "With one group there is nothing to find: every n does. More rows make its model "
            "better: see the errors."
        ]
    if plan.rows is None:
        return [_out_of_reach(plan)]
    n, found = plan.rows, plan.crossings.get("default", plan.crossings["kmeans"])
    assert found is not None
    method = "the default method" if "default" in plan.crossings else "K-means++"
    between = f" (between {found.low:,} and {found.high:,})" if found.low < found.high else ""
    text = (
        f"Collect about {n:,} rows per user{between}: then {method} finds exactly the true groups, "
        f"every user in the right one, in {_percent(plan.target)} of federations."
    )
    if n > CEILING / 10:
        text += " So many rows are hardly ever at hand: ask whether groups this close matter."
    at = next((p for p in plan.points if p.n >= n), plan.points[-1])
    gain = at.error["mean"] / max(at.error["precision"], 1e-300)
    if gain > GAIN:
        text += (
            f" With {at.n:,} rows precision combining (the default) has {100 / gain:.2g} % of the "
            "error of the mean."
        )
    return [text]


def _out_of_reach(plan: Plan) -> str:
    if plan.beyond is not None:
        return (
            f"Out of reach: groups this close together ({plan.scene.separation():.2g} apart, "
            f"against the noise of the rows) take about {plan.beyond:.0e} rows per user, and "
            f"{CEILING:,} is where a plan ends. Use one model for all, whose error such groups "
            "hardly change; or look for features in which they differ more."
        )
    best = max(max(p.recovery.values()) for p in plan.points)
    start = (
        f"No n up to {plan.points[-1].n:,} rows per user finds exactly the true groups in "
        f"{_percent(plan.target)} of federations (the best chance seen is {best:.2f}): "
    )
    if plan.scene.tau > 0:
        return start + (
            f"users of a group {plan.scene.differ}, so much that groups "
            "run into each other, and more rows do not change that. Expect some users in a wrong "
            "group (column misplaced), or let users stay local."
        )
    return start + (
        "the groups are too close together. Ask whether they matter, use one model for all, or "
        "ask for a lower probability."
    )


def _error(plan: Plan) -> list[str]:
    """The rows for the wanted error, with the best model that was simulated."""
    if plan.wanted_error is None:
        return []
    wanted = f"a relative squared error of at most {plan.wanted_error:g}"
    best = "refit" if "refit" in plan.for_error else "precision"
    n, mean = plan.for_error[best], plan.for_error["mean"]
    if n is None:
        last = plan.points[-1]
        why = (
            "the penalty draws the users' models in, whatever n"
            if plan.scene.penalty is not None
            else "users of a group differ, whatever n"
            if plan.scene.tau > 0
            else "the groups are not found"
        )
        return [
            f"No number of rows gives {wanted}: {why}. With {last.n:,} rows it is "
            f"{last.error[best]:.2g}. Ask for more than that."
        ]
    takes = "never gets there" if mean is None else f"takes {_shown(mean)}"
    others = "" if mean == n else f"; the mean of a group's models {takes}"
    text = f"For {wanted} collect about {_shown(n)} rows per user (the default combining{others})."
    if n > CEILING:
        text += (
            f" Nobody has so many; {CEILING:,} rows give about "
            f"{plan.wanted_error * n / CEILING:.1g}. Ask for no less."
        )
    elif plan.rows is not None and n > plan.rows:
        text += " That is more than finding the groups takes: it is the number to go by."
    elif plan.rows is not None:
        text += " Finding the groups takes more: go by that number."
    return [text]


def _differ(plan: Plan) -> list[str]:
    """What it means that users of a group differ."""
    if not plan.scene.tau > 0:
        return []
    last = plan.points[-1]
    text = (
        f"Users of a group {plan.scene.differ}. A group's model cannot "
        f"follow each of them: its error stops at about {last.error['precision']:.2g}, however "
        "many rows."
    )
    better = [p.n for p in plan.points if p.error["local"] < p.error["precision"]]
    if better and last.n in better:
        first = max((p.n for p in plan.points if p.n not in better), default=0)
        n = min(n for n in better if n > first)
        text += f" From about {n:,} rows on users are better off with a model of their own."
    return [
        f"{text} Models between a user's own and its group's, which the default gives, are no "
        "worse than either, with any n."
    ]


def _pilot(plan: Plan) -> list[str]:
    """What `odcl diagnose` says of the same table, and how the plan agrees with it."""
    pilot = plan.scene.pilot
    if pilot is None:
        return []
    at = next(p for p in plan.points if p.n >= pilot.n)
    curve = plan.crossings.get("default")
    chance = None if curve is None else curve.chance(at.n)
    chance = at.recovery["kmeans"] if chance is None else chance
    which = f"{pilot.n:,} rows" if pilot.even else f"{pilot.n:,} rows (the median)"
    like = "hardly any user has" if at.misplaced < 1e-3 else f"{_share(at.misplaced)} of users have"
    text = (
        f"The pilot's users have {which}. With {at.n:,} rows for everybody exactly the true groups "
        f"are found in {_percent(round(chance, 2))} of federations, and {like} rows more like "
        "those of another group (where the groups are not exact, mostly one user is left in a "
        f"group of its own). `odcl diagnose` says of the pilot: {pilot.verdict}"
    )
    if plan.rows is not None and plan.rows > pilot.n and pilot.verdict.startswith("One shot"):
        text += (
            f" That is no contradiction: it lets {ALLOWED} users in 100 be in a wrong group, and "
            "this plan none."
        )
    if not pilot.even:
        text += " A plan takes all users to have as many rows; users with fewer are placed worse."
    return [text, *pilot.warnings]


def _doubt(plan: Plan) -> list[str]:
    """How well the numbers are known."""
    if plan.scene.n_clusters == 1 or plan.rows is None:
        return []
    most = max(p.trials["kmeans"] for p in plan.points)
    convex = max(p.trials["convex"] for p in plan.points)
    runs = sum(b.runs for b in plan.batches)
    text = f"Simulated: {most:,} federations for each n ({convex:,} for convex clustering)"
    text += f", and {runs} for the default method in all" if runs else ""
    text += (
        ". Near the n that is needed, chances are those of a smooth curve through the simulated "
        "ones; in about 19 of 20 plans the range given holds the n of the federation described."
    )
    lines = [text]
    if plan.scene.loss.curvature_varies:
        lines.append(
            f"Users' models are drawn from a normal law, which the {plan.scene.loss.name} loss "
            "follows with many rows. With few it is wider than real models are: expect to need "
            "fewer rows than planned (where we measured it, a quarter to a half fewer)."
        )
    if not runs:
        lines.append(
            "The default method (number of groups not given) was not simulated: a round takes too "
            "long with so many users or parameters. Plan with fewer users to see it: the n that is "
            "needed grows with the logarithm of their number."
        )
    return lines


# -- the picture -----------------------------------------------------------------------------------


def draw_plan(plan: Plan, path: Path) -> bool:
    """Save the curve as a PNG file; False where there is none, for want of matplotlib."""
    if pictures.available():
        pictures.save(plan_figure(plan), path, metadata={"Software": MADE_BY})
    return pictures.available()


def is_plan_picture(path: Path) -> bool:
    """Was the file drawn by :func:`draw_plan`?"""
    with path.open("rb") as stream:
        return f"Software\0{MADE_BY}".encode() in stream.read(4096)


def plan_figure(plan: Plan) -> Any:
    """Chances and errors against n, the legends below."""
    fig, axes = pictures.figure(11, 5, columns=2 if plan.crossings else 1, searched=False)
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


def _draw_chances(ax: Any, plan: Plan) -> None:
    """Shares that were simulated as marks, the smooth curve as lines."""
    for c, (name, words) in enumerate(METHODS.items()):
        if name not in plan.crossings:
            continue
        shares = {p.n: p.recovery[name] for p in plan.points if name != "default"}
        for n in {b.n for b in plan.batches if name == "default"}:
            here = [b for b in plan.batches if b.n == n]
            shares[n] = sum(b.found for b in here) / sum(b.runs for b in here)
        color, marker = pictures.COLOURS[c], pictures.MARKERS[c]
        ax.plot(*_line(plan, name), lw=1.5, color=color, label=words)
        ax.plot(*zip(*shares.items(), strict=True), marker, ms=4, color=color, alpha=0.6)
    ax.axhline(plan.target, color="#555555", lw=0.8, ls=":")
    if plan.rows is not None:
        color = pictures.COLOURS[0 if "default" in plan.crossings else 1]
        ax.axvline(plan.rows, color=color, lw=0.8, ls="--")
        ax.annotate(f" n = {plan.rows:,}", (plan.rows, 0.02), fontsize=9)
    ax.set(ylim=(-0.03, 1.03), title="Chance of exactly the true groups", ylabel="probability")


def _line(plan: Plan, name: str) -> tuple[list[float], list[float | None]]:
    """The smooth curve near the crossing and the simulated shares elsewhere."""
    found, points = plan.crossings[name], plan.points
    chances: dict[float, float | None] = {}
    if name != "default":
        far = [p for p in points if found is None or not found.covers(p.n)]
        chances = {p.n: p.recovery[name] for p in far}
    if found is not None:
        for n in np.geomspace(points[0].n, points[-1].n, 150).tolist():
            if name == "default" or found.covers(n):
                chances[n] = found.chance(n)
    x = sorted(chances)
    return x, [chances[n] for n in x]


def _draw_errors(ax: Any, plan: Plan) -> None:
    n = [p.n for p in plan.points]
    for c, name in enumerate(("local", *combiners(plan.scene))):
        style = {"color": pictures.COLOURS[c + 3], "marker": pictures.MARKERS[c], "ms": 4}
        ax.plot(n, [p.error[name] for p in plan.points], label=_MODELS[name], **style)
    if plan.wanted_error is not None:
        ax.axhline(plan.wanted_error, color="#555555", lw=0.8, ls=":")
    ax.set(title="Error of the users' models", ylabel="relative squared error", yscale="log")
