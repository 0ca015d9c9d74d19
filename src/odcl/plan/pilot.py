"""A plan for the federation of which a pilot shows a part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Ints
from odcl.plan.scenario import PilotFacts, Scenario, checked_sizes

if TYPE_CHECKING:
    from odcl.data.federation import Federation
    from odcl.diagnose import Diagnosis
    from odcl.engines.in_process import ODCLResult

MOST_BLIND = 0.25  # share of users with no more rows than parameters
FEW = 3  # users that a group needs to be trusted


def from_pilot(
    result: ODCLResult,
    federation: Federation,
    *,
    n_users: int | None = None,
    l2: float = 0.0,
    fit_intercept: bool = False,
) -> Scenario:
    """The federation that a pilot suggests: its groups, its rows, its noise.

    ``federation`` holds the rows that ``result`` was fitted on. Groups keep their shares when
    ``n_users`` is another number than the pilot's; rows are drawn from those of the group's users.
    How far users of a group differ (tau) is what ``result.diagnose()`` finds. A pilot that shows no
    groups, or has too few rows to show any, is refused.
    """
    from odcl.risk.loss import penalty

    found = result.diagnose(resamples=1)
    _check(found)
    labels, step = result.labels, result.step
    counts = np.bincount(labels)
    dim = result.centers.shape[1]
    if n_users is not None:
        counts = _shared_out(counts, n_users)
    counts = checked_sizes(counts, dim)
    X = federation.X
    if fit_intercept:
        X = np.column_stack([X, np.ones(len(X))])
    owner = labels[federation.row_user]
    own = [X[owner == k] for k in range(len(counts))]
    phi = step.dispersion
    known = phi[np.isfinite(phi)] if phi is not None else np.ones(1)
    pen = penalty(X.shape[1], result.loss.n_outputs, l2, fit_intercept)
    tau = math.sqrt(found.tau2)
    differ = (
        f"users of a group differ by {tau:.2g} a parameter" if tau else "users of a group alike"
    )
    words = (
        f"the pilot's {len(counts)} groups, {int(counts.sum())} users, {dim} parameters, "
        f"{result.loss.name} loss, in standardised units; {differ}"
    )
    return Scenario(
        loss=result.loss,
        sizes=counts,
        dim=dim,
        dispersion=float(np.mean(known)) if len(known) else 1.0,
        draw_centers=lambda _: result.centers,
        draw_rows=lambda k, count, rng: own[k][rng.integers(len(own[k]), size=count)],
        words=words,
        penalty=pen if l2 > 0 else None,
        tau=tau,
        rows_differ=True,
        pilot=_facts(found, federation),
    )


def _check(found: Diagnosis) -> None:
    """Refuse a pilot from which nothing follows."""
    verdict = found.verdict
    blind = float(np.mean(found.n_samples <= found.dim))
    if found.n_clusters > 1 and not (verdict.advice == "collect" and blind > MOST_BLIND):
        return
    what = (
        "collect these rows for the pilot, or say what you expect"
        if verdict.advice == "collect"
        else "if you expect groups all the same, say which"
    )
    raise ValueError(
        f"Nothing can be planned from this pilot. `odcl diagnose` says of it: {verdict.sentence} "
        f"{verdict.reason} What to do: {what} (in numbers and without a pilot: `odcl plan "
        "--clusters K --dim D --separation D`, or odcl.plan.scenario)."
    )


def _facts(found: Diagnosis, federation: Federation) -> PilotFacts:
    """The pilot in numbers, and in which way the plan is not to be trusted."""
    n = found.n_samples
    verdict, warnings = found.verdict, []
    if verdict.advice == "collect":
        warnings.append(
            f"The pilot's own groups are in doubt (about {found.misplaced:.2g} of its "
            f"{found.n_users} users are in a wrong one): the plan is for the groups it seems to "
            "have. Plan again with more rows."
        )
    elif verdict.advice == "local":
        warnings.append(
            "Users of a group differ so much that groups bring them little: `odcl diagnose` "
            "advises to stay local."
        )
    elif verdict.advice == "one-model":
        warnings.append("`odcl diagnose` sees no groups in the pilot that are worth finding.")
    elif verdict.advice == "refine":
        warnings.append(
            "The users' models are not yet normal around the truth with the pilot's rows: numbers "
            "for so few are rough."
        )
    few = [int(size) for size in np.bincount(found.labels) if size < FEW]
    if few:
        some = "1 group has" if len(few) == 1 else f"{len(few)} groups have"
        warnings.append(f"{some} fewer than {FEW} users in the pilot: their models are guesses.")
    return PilotFacts(
        n=round(float(np.median(n))),
        even=bool(n.min() == n.max()),
        n_users=federation.n_users,
        verdict=verdict.sentence,
        warnings=tuple(warnings),
    )


def _shared_out(counts: Ints, n_users: int) -> Ints:
    """Sizes with the same shares that add up to ``n_users``; no group is lost."""
    if n_users < len(counts):
        raise ValueError(f"{n_users} users cannot form the pilot's {len(counts)} groups.")
    edges = np.round(np.cumsum(counts) * n_users / counts.sum())
    found = np.maximum(np.diff(np.concatenate([[0], edges])), 1).astype(np.intp)
    found[found.argmax()] += n_users - found.sum()
    return found
