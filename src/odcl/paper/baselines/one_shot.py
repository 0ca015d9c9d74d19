"""One round: local ERMs, naive and Oracle Averaging, Algorithm 1, and the Cluster Oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.engines.in_process import fit
from odcl.exchange.message import Exchange, Ledger
from odcl.local.fit import fit_users
from odcl.method import Method
from odcl.paper.baselines.result import (
    TOLD_GROUPS,
    BaselineResult,
    GivenGroups,
    History,
    as_baseline,
    check_groups,
    from_models,
    passes_on,
    problem_of,
)
from odcl.paper.baselines.steps import FederatedProblem
from odcl.risk.risk import Risk


def _average(
    federation: Federation,
    labels: Ints,
    name: str,
    *,
    ledger: Ledger | None = None,
    told: tuple[str, ...] = (),
    **call: Any,
) -> BaselineResult:
    """Algorithm 1 with given clusters and plain averages: one upload and one download per user."""
    result = fit(federation, method=Method.paper(GivenGroups(federation, labels)), **call)
    return as_baseline(result, name, ledger=ledger, told=told)


@passes_on(fit, "method")
def local(federation: Federation, **call: Any) -> BaselineResult:
    """Local ERMs: every user keeps theta-hat_i (Section 5). Nothing is sent.

    ``call``: risk, solver, seed, n_jobs, as for :func:`odcl.fit`.
    """
    m = federation.n_users
    return _average(federation, np.arange(m), "local", ledger=Exchange(m).over(0), **call)


@passes_on(fit, "method")
def naive(federation: Federation, **call: Any) -> BaselineResult:
    """Naive averaging: one model for all, the mean of the users' models (Zhang and Duchi, AVGM)."""
    return _average(federation, np.zeros(federation.n_users, dtype=np.intp), "naive", **call)


@passes_on(fit, "method")
def oracle_averaging(federation: Federation, *, groups: Any, **call: Any) -> BaselineResult:
    """Oracle Averaging: the mean of the local models inside each true group (Section 5).

    ``groups`` (n_users,) is the truth. ``call``: as for :func:`~odcl.baselines.local`.
    """
    labels = check_groups(groups, federation.n_users)
    return _average(federation, labels, "oracle-averaging", told=TOLD_GROUPS, **call)


@passes_on(fit, "method")
def one_shot(
    federation: Federation, *, clusterer: Any, n_clusters: int | None = None, **call: Any
) -> BaselineResult:
    """Algorithm 1 with a given clusterer and the paper's means.

    With ``n_clusters``, ``clusterer`` is a function of this number, such as a clusterer's class.
    ``call``: risk, solver, seed, n_jobs, as for :func:`odcl.fit`.
    """
    clusterer = clusterer if n_clusters is None else clusterer(n_clusters)
    method = Method(clusterer, "mean", standardize=False)
    return as_baseline(fit(federation, method=method, **call), "one-shot")


@passes_on(fit, "method")
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


def cluster_oracle(
    federation: Federation,
    *,
    groups: Any,
    risk: Risk = Risk(),
    seed: int = 0,
) -> BaselineResult:
    """Cluster Oracle: one model per true group, fitted on the rows of all its users (Eq. (3)).

        argmin of g_k(theta) = 1/|C_k| * sum of f_i(theta) over i in C_k

    Users count once each, as in the paper; with equal sample sizes this is plain pooling. It costs
    what pooling costs: all rows are sent.
    """
    problem = problem_of(federation, risk, seed)
    labels = check_groups(groups, federation.n_users)
    models = oracle_models(problem, labels)[labels]
    n_rows, p = federation.X.shape
    row = ((p,), (), ()) if federation.weight is not None else ((p,), ())  # target, weight
    up = Exchange(n_rows, sends=row).over(1).up
    ledger = Ledger(up, Exchange(federation.n_users, receives=((problem.dim,),)).over(1).down)
    history = History.of_one_shot(ledger, models, problem.optima)
    said: dict[str, Any] = {"combined": "fit on the pooled rows", "told": TOLD_GROUPS}
    return from_models(problem, "cluster-oracle", labels, models, history, **said)


def oracle_models(problem: FederatedProblem, labels: Ints) -> Floats:
    """Minimisers of g_k, (n_clusters, dim)."""
    return fit_users(pool(problem.federation, labels), problem.risk).theta


def pool(federation: Federation, labels: Ints) -> Federation:
    """The groups as users: all rows of a group, each user with the same total weight in it."""
    own = np.ones(len(federation.X)) if federation.weight is None else federation.weight
    n, members = federation.n_samples, np.bincount(labels)
    # A row's share of its user, times the user's share of the group; weights of a group add up
    # to its number of samples.
    share = (np.bincount(labels, weights=n) / members)[labels] / n
    weight = own * share[federation.row_user]
    groups, owner = np.arange(len(members)), labels[federation.row_user]
    counts = None if (weight == 1.0).all() else weight
    return Federation.from_codes(federation.X, federation.y, groups, owner, weight=counts)
