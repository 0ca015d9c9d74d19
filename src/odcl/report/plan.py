"""A plan in words, for people who have not read the paper."""

from __future__ import annotations

from odcl.plan.search import CEILING, Plan
from odcl.report.text import table

BAR = 20  # characters of a chance of 1
ALLOWED = 2  # users in 100 that `odcl diagnose` lets stand in a wrong group


def plan_text(plan: Plan) -> str:
    """What was asked, what it takes, the runs it was read off, and what to do."""
    words = plan.scene.words
    advice = "\n".join([_collect(plan), *_pilot(plan), *_doubt(plan)])
    parts = [f"{words[0].upper()}{words[1:]}.", _needed(plan), _runs(plan), advice]
    return "\n\n".join(part for part in parts if part)


# -- tables ----------------------------------------------------------------------------------------


def _needed(plan: Plan) -> str:
    """Rows per user that the method takes, and what the paper proves."""
    if plan.scene.n_clusters == 1:
        return ""
    n, interval = "not reached", ""
    if plan.found is not None:
        low, high = plan.found.low, plan.found.high
        n, interval = _shown(plan.found.n), f"{_shown(low)} - {_shown(high)}" * (low < high)
    rows = [("the default method", n, interval)]
    rows += [(f"the paper's threshold for {k}", _shown(n), "") for k, n in plan.paper.items()]
    head = f"rows per user, exactly the true groups in {_percent(plan.target)} of federations"
    return table((head, "n", "likely range"), rows)


def _runs(plan: Plan) -> str:
    """What every simulated n gave, and the chance on the smooth curve, also drawn as a bar."""
    rows = []
    for n in sorted({batch.n for batch in plan.batches}):
        here = [batch for batch in plan.batches if batch.n == n]
        found, runs = sum(b.found for b in here), sum(b.runs for b in here)
        chance = plan.chance(n)
        share = found / runs if chance is None else chance
        shown = "" if chance is None else f"{chance:.2f}"
        rows.append((f"{n:,}", f"{found} of {runs}", shown, "#" * round(BAR * share)))
    return table(("rows per user", "groups found", "chance", ""), rows, left=(3,)) if rows else ""


def _shown(n: int) -> str:
    return f"{n:,}" if n < 10**7 else f"{n:.1e}"


def _percent(p: float) -> str:
    return f"{100 * p:.4g} %"


# -- what to do ------------------------------------------------------------------------------------


def _collect(plan: Plan) -> str:
    if plan.scene.n_clusters == 1:
        return "With one group there is nothing to find, so any n will do."
    found = plan.found
    if found is None:
        return _out_of_reach(plan)
    between = f" (between {found.low:,} and {found.high:,})" if found.low < found.high else ""
    return (
        f"Collect about {found.n:,} rows per user{between}: then the default method finds exactly "
        f"the true groups, every user in the right one, in {_percent(plan.target)} of federations."
    )


def _out_of_reach(plan: Plan) -> str:
    if plan.beyond is not None:
        return (
            f"Out of reach: groups this close together ({plan.scene.separation():.2g} apart, "
            f"against the noise of the rows) take about {plan.beyond:.0e} rows per user, and a "
            f"plan ends at {CEILING:,}. Use one model for all, whose error such groups hardly "
            "change, or look for features in which they differ more."
        )
    most = max(batch.n for batch in plan.batches)
    start = (
        f"No n up to {most:,} rows per user finds exactly the true groups in "
        f"{_percent(plan.target)} of federations: "
    )
    if plan.scene.tau > 0:
        return start + (
            f"users of a group {plan.scene.differ}, so much that groups run into each other, and "
            "more rows do not change that. Expect some users in a wrong group."
        )
    return start + (
        "the groups are too close together. Ask whether they matter, use one model for all, or "
        "ask for a lower probability."
    )


def _pilot(plan: Plan) -> list[str]:
    """What `odcl diagnose` says of the same table, and how the plan agrees with it."""
    pilot = plan.scene.pilot
    if pilot is None or not plan.batches:
        return []
    at = plan.batches[0]
    chance = plan.chance(at.n)
    chance = at.found / at.runs if chance is None else chance
    which = f"{pilot.n:,} rows" if pilot.even else f"{pilot.n:,} rows (the median)"
    text = (
        f"The pilot's users have {which}. If every user has {at.n:,} rows, exactly the true groups "
        f"are found in {_percent(round(chance, 2))} of federations. `odcl diagnose` says of the "
        f"pilot: {pilot.verdict}"
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
    if plan.rows is None:
        return []
    runs = sum(batch.runs for batch in plan.batches)
    lines = [
        f"Simulated: {runs} federations. Chances are those of a smooth curve through them; in "
        "about 19 of 20 plans the range given holds the n of the federation described."
    ]
    if plan.simulated < plan.scene.n_users:
        lines.append(
            f"Simulated with {plan.simulated:,} users in place of {plan.scene.n_users:,}, in "
            "groups of the same shares: all take too long. The n that is needed grows with the "
            "logarithm of the number of users, so collect a few rows more."
        )
    if plan.scene.loss.curvature_varies:
        lines.append(
            f"Users' models are drawn from a normal law, which the {plan.scene.loss.name} loss "
            "follows with many rows. With few rows it is wider than real models are: expect to "
            "need fewer rows than planned (a quarter to a half fewer where we measured it)."
        )
    return lines
