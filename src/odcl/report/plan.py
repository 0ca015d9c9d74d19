"""A plan in words, for people who have not read the paper, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from odcl.plan.search import CEILING, CURVES, METHODS, Plan
from odcl.plan.simulate import combiners
from odcl.report import pictures
from odcl.report.text import table

ALLOWED = 2  # users in 100 that `odcl diagnose` lets stand in a wrong group
MADE_BY = "odcl plan"  # in the picture's file, so that a later plan may replace it
_COLUMNS = {"kmeans": "K-means++"}
_MODELS = {
    "local": "a user's own",
    "mean": "group's, mean",
    "pooled": "group's, pooled",
    "drawn": "between both",
}


def plan_text(plan: Plan) -> str:
    """What was asked, what it takes, the curve it was read off, and what to do."""
    words = plan.scene.words
    advice = [_collect(plan), *_error(plan), *_differ(plan), *_pilot(plan), *_doubt(plan)]
    parts = [f"{words[0].upper()}{words[1:]}.", _needed(plan), _curve(plan), "\n".join(advice)]
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


def _curve(plan: Plan) -> str:
    """What every simulated n gives, and what the columns mean."""
    models, many = ("local", *combiners(plan.scene)), plan.scene.n_clusters > 1
    methods = [name for name, found in plan.crossings.items() if name != "default" or found]
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
            "\nUnder the methods' names: chance of exactly the true groups.\nmisplaced: share of "
            "users whose rows look more like another group's."
        )
    errors = "a user's own model, of its group's by mean and of its pooled rows"
    if "drawn" in models:
        errors += ",\nand of one between its own and the last"
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


def _collect(plan: Plan) -> str:
    if plan.scene.n_clusters == 1:
        return (
            "With one group there is nothing to find, so any n will do. More rows make its model "
            "better: see the errors."
        )
    if plan.rows is None:
        return _out_of_reach(plan)
    found = plan.crossings.get("default", plan.crossings["kmeans"])
    assert found is not None
    method = "the default method" if "default" in plan.crossings else "K-means++"
    between = f" (between {found.low:,} and {found.high:,})" if found.low < found.high else ""
    return (
        f"Collect about {found.n:,} rows per user{between}: then {method} finds exactly the true "
        f"groups, every user in the right one, in {_percent(plan.target)} of federations."
    )


def _out_of_reach(plan: Plan) -> str:
    if plan.beyond is not None:
        return (
            f"Out of reach: groups this close together ({plan.scene.separation():.2g} apart, "
            f"against the noise of the rows) take about {plan.beyond:.0e} rows per user, and a "
            f"plan ends at {CEILING:,}. Use one model for all, whose error such groups hardly "
            "change, or look for features in which they differ more."
        )
    known = plan.crossings["kmeans"]
    if known is not None:
        most = max(batch.n for batch in plan.batches)
        return (
            f"The default method did not reach {_percent(plan.target)} with up to {most:,} rows "
            f"per user. With the number of groups given, about {known.n:,} rows are enough."
        )
    best = max(max(p.recovery.values()) for p in plan.points)
    start = (
        f"No n up to {plan.points[-1].n:,} rows per user finds exactly the true groups in "
        f"{_percent(plan.target)} of federations (the best chance seen is {best:.2f}): "
    )
    if plan.scene.tau > 0:
        return start + (
            f"users of a group {plan.scene.differ}, so much that groups run into each other, and "
            "more rows do not change that. Expect some users in a wrong group (column misplaced), "
            "or let users stay local."
        )
    return start + (
        "the groups are too close together. Ask whether they matter, use one model for all, or "
        "ask for a lower probability."
    )


def _error(plan: Plan) -> list[str]:
    """The rows for the wanted error, with the best model that was simulated."""
    if plan.wanted_error is None:
        return []
    wanted, last = f"a relative squared error of at most {plan.wanted_error:g}", plan.points[-1]
    best = "drawn" if "drawn" in plan.for_error else "pooled"
    n, mean = plan.for_error[best], plan.for_error["mean"]
    if n is None:
        return [f"No n up to {last.n:,} gives {wanted}: there it is {last.error[best]:.2g}."]
    takes = "never gets there" if mean is None else f"takes {_shown(mean)}"
    return [
        f"For {wanted} collect about {_shown(n)} rows per user (the default combining; the mean of "
        f"a group's models {takes})."
    ]


def _differ(plan: Plan) -> list[str]:
    """What it means that users of a group differ."""
    if not plan.scene.tau > 0:
        return []
    last = plan.points[-1]
    text = (
        f"Users of a group {plan.scene.differ}. A group's model cannot follow each of them: its "
        f"error stops at about {last.error['pooled']:.2g}, however many rows there are."
    )
    worse = [p.n for p in plan.points if p.error["local"] >= p.error["pooled"]]
    better = [p.n for p in plan.points if p.n > max(worse, default=0)]
    if better:
        text += f" From about {better[0]:,} rows on users are better off with their own models."
    return [
        f"{text} The default's models, between a user's own and its group's, are no worse than "
        "either at any n."
    ]


def _pilot(plan: Plan) -> list[str]:
    """What `odcl diagnose` says of the same table, and how the plan agrees with it."""
    pilot = plan.scene.pilot
    if pilot is None:
        return []
    at = next(p for p in plan.points if p.n >= pilot.n)
    chance = plan.chance(at, "default") if "default" in plan.crossings else None
    chance = at.recovery["kmeans"] if chance is None else chance
    which = f"{pilot.n:,} rows" if pilot.even else f"{pilot.n:,} rows (the median)"
    like = "hardly any user has" if at.misplaced < 1e-3 else f"{_share(at.misplaced)} of users have"
    text = (
        f"The pilot's users have {which}. If every user has {at.n:,} rows, exactly the true groups "
        f"are found in {_percent(round(chance, 2))} of federations, and {like} rows more like "
        f"another group's. `odcl diagnose` says of the pilot: {pilot.verdict}"
    )
    if plan.rows is not None and plan.rows > pilot.n and pilot.enough:
        text += (
            f" That is no contradiction: it accepts {ALLOWED} users in 100 in a wrong group, and "
            "this plan none."
        )
    if not pilot.even:
        text += " A plan gives all users as many rows; users with fewer are placed less surely."
    return [text, *pilot.warnings]


def _doubt(plan: Plan) -> list[str]:
    """How well the numbers are known."""
    if plan.scene.n_clusters == 1 or plan.rows is None:
        return []
    most, convex = (max(p.trials[name] for p in plan.points) for name in CURVES)
    runs = sum(b.runs for b in plan.batches)
    lines = [
        f"Simulated: {most:,} federations for each n ({convex:,} for convex clustering)"
        f"{f', and {runs} in all for the default method' if runs else ''}. Near the n that is "
        "needed, chances are those of a smooth curve through the simulated ones; in about 19 of 20 "
        "plans the range given holds the n of the federation described."
    ]
    if plan.scene.loss.curvature_varies:
        lines.append(
            f"Users' models are drawn from a normal law, which the {plan.scene.loss.name} loss "
            "follows with many rows. With few rows it is wider than real models are: expect to "
            "need fewer rows than planned (a quarter to a half fewer where we measured it)."
        )
    if not runs:
        lines.append(
            "The default method (number of groups not given) was not simulated: a round takes too "
            "long with this many users or parameters. Plan with fewer users to see it: the n that "
            "is needed grows with the logarithm of their number."
        )
    return lines


# -- the picture -----------------------------------------------------------------------------------


def draw_plan(plan: Plan, path: Path) -> bool:
    """Save the curve as a PNG file; False where matplotlib is not installed."""
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
    for c, (name, words) in enumerate(METHODS.items()):
        if plan.crossings.get(name) is not None or name in CURVES:
            chances = [plan.chance(p, name) for p in plan.points]
            style = {"color": pictures.COLOURS[c], "marker": pictures.MARKERS[c], "ms": 4}
            ax.plot([p.n for p in plan.points], chances, label=words, **style)
    ax.axhline(plan.target, color="#555555", lw=0.8, ls=":")
    if plan.rows is not None:
        color = pictures.COLOURS[0 if "default" in plan.crossings else 1]
        ax.axvline(plan.rows, color=color, lw=0.8, ls="--")
        ax.annotate(f" n = {plan.rows:,}", (plan.rows, 0.02), fontsize=9)
    ax.set(ylim=(-0.03, 1.03), title="Chance of exactly the true groups", ylabel="probability")


def _draw_errors(ax: Any, plan: Plan) -> None:
    n = [p.n for p in plan.points]
    for c, name in enumerate(("local", *combiners(plan.scene))):
        style = {"color": pictures.COLOURS[c + 3], "marker": pictures.MARKERS[c], "ms": 4}
        ax.plot(n, [p.error[name] for p in plan.points], label=_MODELS[name], **style)
    if plan.wanted_error is not None:
        ax.axhline(plan.wanted_error, color="#555555", lw=0.8, ls=":")
    ax.set(title="Error of the users' models", ylabel="relative squared error", yscale="log")
