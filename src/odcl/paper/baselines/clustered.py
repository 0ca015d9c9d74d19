"""The paper's own family and ours, under the names by which experiments call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.engines.in_process import odcl
from odcl.local.receive import refit_users
from odcl.paper.baselines.oracles import TOLD_GROUPS
from odcl.paper.baselines.plain import GivenGroups, with_history
from odcl.paper.baselines.problem import StepSize, check_groups, problem_of
from odcl.paper.baselines.refine import refine_centers
from odcl.paper.baselines.result import BaselineResult, from_odcl
from odcl.paper.baselines.rounds import History
from odcl.risk.loss import Loss


def one_shot(
    federation: Federation,
    *,
    clusterer: Any,
    method: str = "one-shot",
    combine: str = "mean",
    refit: str | float | None = None,
    refine_rounds: int = 0,
    step_size: StepSize = "auto",
    centred: Any = False,
    told: tuple[str, ...] = (),
    loss: str | Loss = "squared",
    l2: float = 0.0,
    fit_intercept: bool = False,
    seed: int = 0,
    **call: Any,
) -> BaselineResult:
    """Algorithm 1 with a given clusterer, and what may come before and after it.

    The defaults are the paper's: plain means, no refit. ``centred=True`` takes the federation mean
    off every feature first: users send the sums of their features and receive the mean, one round
    more. A mean that is public, (n_features,), costs nothing. ``centred="own"`` stays in the one
    round: each user takes its own mean off, sends it along, and receives the mean of these.
    ``refine_rounds`` rounds of descent inside the clusters follow the one round
    (``refine_centers``); a refit, if any, comes after them. ``call``:
    solver, strict, curvature, n_jobs, as for :func:`odcl.odcl`.
    """
    if not refine_rounds and step_size != "auto":
        raise ValueError(
            f"step_size={step_size} is that of refinement rounds, and there are none: give "
            "refine_rounds=, such as 10."
        )
    federation, shift = _centre(federation, centred)
    result = odcl(
        federation,
        clusterer=clusterer,
        combine=combine,
        refit=refit,
        loss=loss,
        l2=l2,
        fit_intercept=fit_intercept,
        seed=seed,
        **call,
    )
    found = with_history(from_odcl(result, method, told=told, shift=shift))
    if refine_rounds:
        found = refined(federation, found, refine_rounds, step_size, refit)
    return found if shift is None else _after_centring(found, federation, centred)


def refined(
    federation: Federation,
    found: BaselineResult,
    rounds: int,
    step_size: StepSize = "auto",
    refit: str | float | None = None,
) -> BaselineResult:
    """A one-shot result, carried on by some rounds inside its clusters."""
    said = found.settings
    problem = problem_of(
        federation, found.loss, said["l2"], said["fit_intercept"], said["seed"], found.optima
    )
    done = refine_centers(problem, found.centers, found.labels, rounds=rounds, step_size=step_size)
    step = replace(found.step, centers=done.centers, models=done.centers[found.labels])
    final = refit_users(
        federation,
        found.loss,
        found.local,
        step,
        refit,
        fit_intercept=problem.fit_intercept,
        seed=problem.seed,
    )
    settings = {**said, "refine_rounds": rounds, "step_size": done.steps.tolist()}
    history = _joined(found.history, done.history)
    return replace(found, step=step, refit=final, settings=settings, history=history)


def _joined(first: History | None, after: History) -> History:
    """The one round and those that followed; what the second part starts from is known twice."""
    assert first is not None
    error = None
    if first.error is not None and after.error is not None:
        error = np.concatenate([first.error[:-1], after.error])
    return replace(
        after,
        risk=np.concatenate([first.risk[:-1], after.risk]),
        error=error,
        bytes_up=np.concatenate([first.bytes_up, after.bytes_up]),
        bytes_down=np.concatenate([first.bytes_down, after.bytes_down]),
    )


def _centre(federation: Federation, centred: Any) -> tuple[Federation, Floats | None]:
    """The federation less a mean, or less the users' own; and what test rows are shifted by."""
    if centred is False:
        return federation, None
    if isinstance(centred, str):
        if centred != "own":
            raise ValueError(f"centred={centred!r} is neither True, False, 'own' nor a mean.")
        X, w = federation.X, federation.weight
        weighted = X if w is None else w[:, None] * X
        sums = np.add.reduceat(weighted, federation.offsets[:-1])
        own = sums / federation.n_samples[:, None]
        return federation.with_X(federation.X - own[federation.row_user]), own.mean(axis=0)
    if centred is True:
        shift = np.average(federation.X, axis=0, weights=federation.weight)
    else:
        shift = np.asarray(centred, dtype=np.float64)
        if shift.shape != (federation.n_features,):
            raise ValueError(
                f"centred has shape {shift.shape}, and a mean of {federation.n_features} features "
                "has one number for each."
            )
    return federation.with_X(federation.X - shift), shift


def _after_centring(found: BaselineResult, federation: Federation, centred: Any) -> BaselineResult:
    """What the centring added: nothing for a public mean, own means in the round, or a round."""
    assert found.history is not None
    m, p = federation.n_users, federation.n_features
    history = found.history
    if centred is True:  # one round before: sums of the features and their number up, mean down
        history = replace(
            history,
            risk=np.insert(history.risk, 0, np.nan),
            error=None if history.error is None else np.insert(history.error, 0, np.nan),
            bytes_up=np.insert(history.bytes_up, 0, 8 * m * (p + 1)),
            bytes_down=np.insert(history.bytes_down, 0, 8 * m * p),
        )
    elif isinstance(centred, str):
        first = (np.arange(history.n_rounds) == 0).astype(np.intp)
        history = replace(
            history,
            bytes_up=history.bytes_up + 8 * m * p * first,
            bytes_down=history.bytes_down + 8 * m * p * first,
        )
    how = centred if isinstance(centred, bool | str) else "by a given mean"
    return replace(found, history=history, settings={**found.settings, "centred": how})


def with_k(make: Callable[..., Any]) -> Callable[..., BaselineResult]:
    """A method from a clusterer that is told the number of clusters."""

    def method(federation: Federation, *, n_clusters: int, **call: Any) -> BaselineResult:
        return one_shot(federation, clusterer=make(n_clusters), **call)

    return method


def with_public_mean(
    make: Callable[..., Any],
    federation: Federation,
    *,
    n_clusters: int,
    public_mean: Any,
    **call: Any,
) -> BaselineResult:
    """The same on features less a mean that is public, of rows that belong to no user."""
    return one_shot(federation, clusterer=make(n_clusters), centred=public_mean, **call)


def with_noise_mixture(federation: Federation, **call: Any) -> BaselineResult:
    """ODCL with the groups of the noise mixture; averaged as in the paper unless told otherwise."""
    return one_shot(federation, clusterer="auto", **call)


def with_clusterpath(
    federation: Federation, *, select: str = "grid", **call: Any
) -> BaselineResult:
    """ODCL-CC, lambda chosen along the path (Appendix C); "grid" is the procedure of D.2."""
    from odcl import ConvexClustering

    return one_shot(federation, clusterer=ConvexClustering(lam="auto", select=select), **call)


def with_oracle_lambda(
    federation: Federation, *, groups: Any, seed: int = 0, **call: Any
) -> BaselineResult:
    """ODCL-CC as in Section 5: lambda from the true clusters, by Eq. (13)."""
    told = GivenGroups(federation, check_groups(groups, federation.n_users))
    clusterer = _OracleLambda(told.labels, seed)
    return one_shot(federation, clusterer=clusterer, told=TOLD_GROUPS, seed=seed, **call)


class _OracleLambda:
    """Convex clustering with the lambda that the true clusters ask for."""

    def __init__(self, labels: Ints, seed: int) -> None:
        self.labels, self.seed = labels, seed

    def fit(self, X: Floats) -> _OracleLambda:
        from odcl import ConvexClustering
        from odcl.clustering.convex.separation import oracle_lambda

        lam = oracle_lambda(X, self.labels, seed=self.seed)
        self.labels_ = ConvexClustering(lam=lam).fit(X).labels_
        return self

    def __repr__(self) -> str:
        return "ConvexClustering(lam from the true groups)"
