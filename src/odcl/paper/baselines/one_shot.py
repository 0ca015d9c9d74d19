"""Algorithm 1 with any clusterer, and what may come before and after it: the paper's and ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.engines.in_process import fit
from odcl.local.receive import receive
from odcl.method import Method
from odcl.paper.baselines.iterated import refine_centers
from odcl.paper.baselines.result import (
    TOLD_GROUPS,
    BaselineResult,
    GivenGroups,
    as_baseline,
    check_groups,
    passes_on,
    problem_of,
)
from odcl.paper.baselines.steps import StepSize
from odcl.risk.risk import Risk


@passes_on(fit, "method")
def one_shot(
    federation: Federation,
    *,
    clusterer: Any,
    n_clusters: int | None = None,
    combine: str = "mean",
    refine_rounds: int = 0,
    step_size: StepSize = "auto",
    public_mean: Any = None,
    risk: Risk = Risk(),
    **call: Any,
) -> BaselineResult:
    """Algorithm 1 with a given clusterer; the other defaults are the paper's too.

    With ``n_clusters``, ``clusterer`` is a function of this number, such as a clusterer's class.
    ``public_mean``, (n_features,), is subtracted from every row first, which costs nothing.
    ``refine_rounds`` rounds of descent inside the clusters follow the one round
    (``refine_centers``). ``call``: seed, solver, n_jobs, as for :func:`odcl.fit`.
    """
    if not refine_rounds and step_size != "auto":
        raise ValueError(
            f"step_size={step_size} is that of refinement rounds, and there are none: give "
            "refine_rounds=, such as 10."
        )
    clusterer = clusterer if n_clusters is None else clusterer(n_clusters)
    method = Method(clusterer, combine, standardize=False)
    rows, shift = federation, None
    if public_mean is not None:
        rows, shift = _less_public_mean(federation, public_mean)
    found = as_baseline(fit(rows, risk, method, **call), "one-shot", shift=shift)
    return _refined(rows, found, refine_rounds, step_size) if refine_rounds else found


def _refined(
    federation: Federation, found: BaselineResult, rounds: int, step_size: StepSize
) -> BaselineResult:
    """A one-shot result, carried on by some rounds inside its clusters."""
    problem = problem_of(federation, found.risk, found.seed, found.optima)
    call: dict[str, Any] = {"rounds": rounds, "step_size": step_size}
    run, steps = refine_centers(problem, found.centers, found.labels, **call)
    centers = run.models
    step = replace(found.step, centers=centers, models=centers[found.labels])
    received = receive(federation, found.risk, found.uploads, step.downloads)
    options = {**found.options, "refine_rounds": rounds, "step_size": steps.tolist()}
    history = found.history.then(run.history)
    return replace(found, step=step, received=received, history=history, options=options)


def _less_public_mean(federation: Federation, mean: Any) -> tuple[Federation, Floats]:
    """The federation less a public mean, (n_features,); and that mean."""
    shift = np.asarray(mean, dtype=np.float64)
    if shift.shape != (federation.n_features,):
        raise ValueError(
            f"public_mean has shape {shift.shape}, and a mean of {federation.n_features} "
            "features has one number for each."
        )
    return federation.with_X(federation.X - shift), shift


@passes_on(one_shot, "clusterer", "n_clusters")
def with_oracle_lambda(
    federation: Federation, *, groups: Any, seed: int = 0, **call: Any
) -> BaselineResult:
    """ODCL-CC as in Section 5: lambda from the true clusters, by Eq. (13)."""
    truth = GivenGroups(federation, check_groups(groups, federation.n_users)).labels
    found = one_shot(federation, clusterer=_OracleLambda(truth, seed), seed=seed, **call)
    return replace(found, told=TOLD_GROUPS)


class _OracleLambda:
    """Convex clustering with the lambda that the true clusters ask for."""

    def __init__(self, labels: Ints, seed: int) -> None:
        self.labels, self.seed = labels, seed

    def fit(self, X: Floats) -> _OracleLambda:
        from odcl.clustering.convex.estimator import ConvexClustering
        from odcl.clustering.convex.fusion import oracle_lambda

        lam = oracle_lambda(X, self.labels, seed=self.seed)
        self.labels_ = ConvexClustering(lam=lam).fit(X).labels_
        return self

    def __repr__(self) -> str:
        return "ConvexClustering(lam from the true groups)"
