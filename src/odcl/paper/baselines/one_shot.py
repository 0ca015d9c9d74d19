"""Algorithm 1 with any clusterer, and what may come before and after it: the paper's and ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.kmeans.kmeanspp import KMeansPP
from odcl.clustering.labels import sum_by_cluster
from odcl.data.federation import Federation
from odcl.engines.in_process import fit
from odcl.exchange.ledger import Exchange
from odcl.exchange.upload import Uploads
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
from odcl.risk.losses import Logistic
from odcl.risk.risk import Risk
from odcl.rounds.steps import StepSize


@passes_on(fit, "method")
def one_shot(
    federation: Federation,
    *,
    clusterer: Any,
    n_clusters: int | None = None,
    combine: str = "mean",
    refine_rounds: int = 0,
    step_size: StepSize = "auto",
    own_centred: bool = False,
    public_mean: Any = None,
    risk: Risk = Risk(),
    **call: Any,
) -> BaselineResult:
    """Algorithm 1 with a given clusterer; the other defaults are the paper's too.

    With ``n_clusters``, ``clusterer`` is a function of this number, such as a clusterer's class.
    ``public_mean``, (n_features,), is subtracted from every row first, which costs nothing. With
    ``own_centred`` each user subtracts its own mean, sends it along in the one round, and receives
    the mean of these. ``refine_rounds`` rounds of descent inside the clusters follow the one round
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
    elif own_centred:
        rows, shift = less_own_means(federation)
    found = as_baseline(fit(rows, risk, method, **call), "one-shot", shift=shift)
    if refine_rounds:
        found = _refined(rows, found, refine_rounds, step_size)
    if own_centred:  # the means go along in the one round
        mean, history = (federation.n_features,), found.history
        exchange = Exchange(federation.n_users, sends=(mean,), receives=(mean,))
        history = replace(history, ledger=history.ledger.with_first(exchange))
        found = replace(found, history=history)
    return found


def _refined(
    federation: Federation, found: BaselineResult, rounds: int, step_size: StepSize
) -> BaselineResult:
    """A one-shot result, carried on by some rounds inside its clusters."""
    problem = problem_of(federation, found.risk, found.seed, found.optima)
    call: dict[str, Any] = {"rounds": rounds, "step_size": step_size}
    run, steps = refine_centers(problem, found.centers, found.labels, **call)
    centers = run.models[0]
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


def less_own_means(federation: Federation) -> tuple[Federation, Floats]:
    """Every user's rows less their mean; and the mean of these, by which new rows are shifted."""
    X, weight = federation.X, federation.weight
    weighted = X if weight is None else weight[:, None] * X
    own = np.add.reduceat(weighted, federation.offsets[:-1]) / federation.n_samples[:, None]
    return federation.with_X(X - own[federation.row_user]), own.mean(axis=0)


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


# -- two classes, few rows: the server finds the threshold (ours) ----------------------------------
#
# Users take their own mean off, in one round, and nothing public is needed. With far fewer rows
# than features an intercept that each user fits is noise, and so is its mean over users; the
# clusters' class means are not.


@dataclass(frozen=True, eq=False)
class ClassSums:
    """What users send beside their models: each class's sum, spread and number of rows."""

    count: Floats  # (2, n_users)
    total: Floats  # (2, n_users, n_features)
    squares: Floats  # (2, n_users), about the user's class mean, over all features

    @classmethod
    def of(cls, federation: Federation) -> ClassSums:
        y = Logistic().encode(federation.y)
        m, p = federation.n_users, federation.n_features
        count, squares, total = np.zeros((2, m)), np.zeros((2, m)), np.zeros((2, m, p))
        for i in range(m):
            rows = federation.rows(i)
            for c, own in enumerate((y[rows] > 0, y[rows] < 0)):
                X = federation.X[rows][own]
                count[c, i] = len(X)
                total[c, i] = X.sum(axis=0)
                squares[c, i] = ((X - X.mean(axis=0)) ** 2).sum() if len(X) else 0.0
        return cls(count, total, squares)


@passes_on(one_shot, "clusterer", "own_centred", "public_mean")
def with_own_thresholds(
    federation: Federation, *, n_clusters: int, risk: Risk = Risk("logistic"), **call: Any
) -> BaselineResult:
    """ODCL-KM++ on rows less their user's mean, with an intercept per cluster (logistic loss).

    The intercept puts the border between the cluster's class means, as many standard deviations
    from the one as from the other; a class's deviation is that of its users' rows about their own
    class means, all features together. With equal deviations it is the middle. Beside its model
    a user sends ``ClassSums``: with two rows per class, that is close to the rows themselves.
    """
    if risk.intercept or not isinstance(risk.loss, Logistic):
        raise ValueError(
            f"{risk}: the threshold between two classes takes the place of an intercept. Use "
            "Risk('logistic', intercept=False)."
        )
    moved, _ = less_own_means(federation)
    alone = one_shot(moved, clusterer=KMeansPP, n_clusters=n_clusters, risk=risk, **call)
    sums = ClassSums.of(federation)
    means = sums.total.sum(axis=0) / sums.count.sum(axis=0)[:, None]
    local = _with_intercept(alone.local.theta, means)
    centers = _with_intercept(alone.centers, borders(sums, alone.labels))
    models = centers[alone.labels]
    risk = replace(risk, intercept=True)
    uploads = Uploads(alone.users, alone.uploads.n_samples, local, risk=risk)
    p = federation.n_features
    per_class = ((p,), (), ())  # sum, spread, number of rows
    exchange = Exchange(federation.n_users, sends=2 * per_class, receives=((),))  # an intercept
    changed = replace(
        alone,
        risk=risk,
        local=replace(alone.local, uploads=uploads),
        step=replace(alone.step, centers=centers, models=models),
        received=replace(alone.received, models=models),
    )
    ledger = alone.history.ledger.with_first(exchange)
    return as_baseline(changed, "odcl-km++/own-threshold", ledger=ledger, options=alone.options)


def borders(sums: ClassSums, labels: Ints) -> Floats:
    """A point of each cluster's border, (n_clusters, n_features)."""
    count = np.stack([np.bincount(labels, weights=c) for c in sums.count])[..., None]
    mean = np.stack([sum_by_cluster(t, labels) for t in sums.total]) / np.maximum(count, 1.0)
    spare = np.maximum(sums.count - 1, 0)
    dof = np.stack([np.bincount(labels, weights=c) for c in spare])
    spread = np.stack([np.bincount(labels, weights=s) for s in sums.squares])
    sd = np.sqrt(spread / np.maximum(dof, 1.0))
    # Without two rows of a class in a cluster nothing is known of its spread: the middle.
    known = ((dof > 0) & (sd > 0)).all(axis=0)
    sd = np.where(known, sd, 1.0)[..., None]
    return (sd[1] * mean[0] + sd[0] * mean[1]) / (sd[0] + sd[1])


def _with_intercept(theta: Floats, border: Floats) -> Floats:
    """theta (x - border) as a model with an intercept."""
    return np.column_stack([theta, -(theta * border).sum(axis=1)])
