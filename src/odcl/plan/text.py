"""The plan in words, for people who have not read the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odcl.diagnose.verdict import short
from odcl.plan.curve import CURVES, METHODS
from odcl.plan.point import combiners
from odcl.plan.search import CEILING
from odcl.report.text import table

if TYPE_CHECKING:
    from odcl.plan.curve import Plan
    from odcl.plan.point import Point

GAIN = 1.5  # times the error of precision combining from which the mean is advised against
ALLOWED = 2  # users in 100 that `odcl diagnose` lets stand in a wrong group
_COLUMNS = {"kmeans": "K-means++", "convex": "convex", "convex-13": "Eq. (13)"}


def report(plan: Plan) -> str:
    """What was asked, what it takes, the curve it was read off, and what to do."""
    words = plan.scene.words
    parts = [f"{words[0].upper()}{words[1:]}.", _needed(plan), _error_table(plan)]
    parts += [_curve(plan), "\n".join(conclusion(plan))]
    return "\n\n".join(part for part in parts if part)


def _needed(plan: Plan) -> str:
    """Rows per user that each method takes, and what the paper proves."""
    if not plan.crossings:
        return ""
    rows = []
    for name, found in plan.crossings.items():
        interval = ""
        if found is not None and found.low < found.high:
            interval = f"{shown(found.low)} - {shown(found.high)}"
        n = None if found is None else found.n
        rows.append((METHODS[name], shown(n, plan.points[-1].n), interval))
    rows += [(f"the paper's threshold for {k}", shown(n), "") for k, n in plan.paper.items()]
    head = f"rows per user, exactly the true groups in {_percent(plan.target)} of federations"
    return table((head, "n", "likely range"), rows)


def _error_table(plan: Plan) -> str:
    if plan.wanted_error is None:
        return ""
    names = {"mean": "mean of a group's models", "precision": "precision combining (the default)"}
    names["refit"] = "... and refit at the user (the default)"
    head = f"rows per user, relative squared error of at most {plan.wanted_error:g}"
    return table((head, "n"), [(names[name], shown(n)) for name, n in plan.for_error.items()])


def _curve(plan: Plan) -> str:
    ways = ("local", *combiners(plan.scene))
    many = plan.scene.n_clusters > 1
    curve = plan.crossings.get("default")
    head = ["rows per user", *(["default"] if curve else [])]
    head += [*(_COLUMNS[name] for name in CURVES), "misplaced"] if many else []
    rows = [_line(plan, p, ways) for p in plan.points]
    text = table((*head, *ways), rows)
    if many:
        text += (
            "\nUnder the methods' names: chance of exactly the true groups (Eq. (13): the paper "
            "proves it there).\nmisplaced: share of users whose rows look more like those of "
            "another group."
        )
    errors = "a user's own model, of its group's by mean and by precision combining"
    if "refit" in ways:
        errors += ",\nand of the latter refitted at the user"
    return (
        f"{text}\n{', '.join(ways)}: relative squared error of {errors};\nin the typical (median) "
        "federation."
    )


def _line(plan: Plan, p: Point, ways: tuple[str, ...]) -> tuple[str, ...]:
    cells = [f"{p.n:,}"]
    if plan.scene.n_clusters > 1:
        methods = ("default", *CURVES) if plan.crossings.get("default") else CURVES
        chances = [plan.chance(p, name) for name in methods]
        cells += [*("" if c is None else f"{c:.2f}" for c in chances), _share(p.misplaced)]
    return (*cells, *(f"{p.error[name]:.2g}" for name in ways))


def shown(n: int | None, last: int | None = None) -> str:
    if n is None:
        return "not reached" if last is None else f"beyond {last:,}"
    return f"{n:,}" if n < 10**7 else f"{n:.1e}"


def _percent(p: float) -> str:
    return f"{100 * p:.4g} %"


def _share(p: float) -> str:
    return "0" if p == 0 else f"{100 * p:.2g} %"


# -- what to do ------------------------------------------------------------------------------------


def conclusion(plan: Plan) -> list[str]:
    """Sentences, the most important first."""
    return [*_collect(plan), *_error(plan), *_differ(plan), *_pilot(plan), *_doubt(plan)]


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
    at = min((p for p in plan.points if p.n >= n), key=lambda p: p.n, default=plan.points[-1])
    gain = at.error["mean"] / max(at.error["precision"], 1e-300)
    if gain > GAIN:
        text += (
            f" There precision combining (the default) has {short(100 / gain)} % of the error of "
            "the mean."
        )
    return [text]


def _out_of_reach(plan: Plan) -> str:
    last = plan.points[-1].n
    best = max(max(p.recovery.values()) for p in plan.points)
    start = f"No n up to {last:,} rows per user finds exactly the true groups in "
    start += f"{_percent(plan.target)} of federations (the best chance seen is {best:.2f}): "
    if plan.beyond is not None:
        return (
            f"Out of reach: groups this close together ({plan.scene.separation():.2g} apart, "
            f"against the noise of the rows) take about {plan.beyond:.0e} rows per user, and "
            f"{CEILING:,} is where a plan ends. Use one model for all, whose error such groups "
            "hardly change; or look for features in which they differ more."
        )
    if plan.scene.tau > 0:
        return start + (
            f"users of a group differ (by {plan.scene.tau:.2g} a parameter) so much that groups "
            "run into each other, and more rows do not change that. Expect some users in a wrong "
            "group (column misplaced), or let users stay local."
        )
    return start + (
        "the groups are too close together. Ask whether they matter, use one model for all, or "
        "ask for a lower probability."
    )


def _error(plan: Plan) -> list[str]:
    """The rows for the wanted error: of the best way that was simulated."""
    if plan.wanted_error is None:
        return []
    wanted = f"a relative squared error of at most {plan.wanted_error:g}"
    way = "refit" if "refit" in plan.for_error else "precision"
    n, mean = plan.for_error[way], plan.for_error["mean"]
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
            f"{last.error[way]:.2g}. Ask for more than that."
        ]
    others = "" if mean == n else f"; the mean of a group's models {_takes(mean)}"
    text = f"For {wanted} collect about {shown(n)} rows per user (the default combining{others})."
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


def _takes(n: int | None) -> str:
    return "never gets there" if n is None else f"takes {shown(n)}"


def _differ(plan: Plan) -> list[str]:
    """What it means that users of a group differ."""
    if not plan.scene.tau > 0:
        return []
    last = plan.points[-1]
    text = (
        f"Users of a group differ by {plan.scene.tau:.2g} a parameter. A group's model cannot "
        f"follow each of them: its error stops at about {last.error['precision']:.2g}, however "
        "many rows."
    )
    better = [p.n for p in plan.points if p.error["local"] < p.error["precision"]]
    if better and last.n in better:
        first = max((p.n for p in plan.points if p.n not in better), default=0)
        n = min(n for n in better if n > first)
        text += f" From about {n:,} rows on users are better off with a model of their own."
    return [
        f"{text} Let users refit around their group's model (the default, refit='evidence'): no "
        "worse than either, with any n."
    ]


def _pilot(plan: Plan) -> list[str]:
    """How the plan stands to what `odcl diagnose` says of the same table."""
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
