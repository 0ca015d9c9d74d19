"""Told the true groups: what ODCL would give if its clusters were exact, and what pooling gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.engines.in_process import nmse
from odcl.local.fit import fit_users
from odcl.paper.baselines.plain import average_given
from odcl.paper.baselines.problem import Problem, check_groups, problem_of
from odcl.paper.baselines.result import BaselineResult, from_models, one_shot_history
from odcl.risk.loss import Loss

TOLD_GROUPS = ("the true groups",)


def oracle_averaging(federation: Federation, *, groups: Any, **call: Any) -> BaselineResult:
    """Oracle Averaging: the mean of the local models inside each true group (Section 5).

    ``groups`` (n_users,) is the truth. ``call``: as for :func:`~odcl.baselines.local`.
    """
    labels = check_groups(groups, federation.n_users)
    return average_given(federation, labels, "oracle-averaging", told=TOLD_GROUPS, **call)


def cluster_oracle(
    federation: Federation,
    *,
    groups: Any,
    loss: str | Loss = "squared",
    l2: float = 0.0,
    fit_intercept: bool = False,
    seed: int = 0,
    n_jobs: int | None = None,
    optima: Any = None,
) -> BaselineResult:
    """Cluster Oracle: one model a true group, fitted on the rows of all its users (Eq. (3)).

        argmin of g_k(theta) = 1/|C_k| * sum of f_i(theta) over i in C_k

    Users count once each, as in the paper; with equal sample sizes this is plain pooling. It costs
    what pooling costs: all rows are sent.
    """
    problem = problem_of(federation, loss, l2, fit_intercept, seed, optima)
    labels = check_groups(groups, federation.n_users)
    models = oracle_models(problem, labels)[labels]
    error = None if problem.optima is None else nmse(models, problem.optima)
    rows, p = federation.X.shape
    sent = 8 * rows * (p + 1 + (federation.weight is not None))
    return from_models(
        problem,
        "cluster-oracle",
        labels,
        models,
        one_shot_history(sent, 8 * models.size, error),
        combined="fit on the pooled rows",
        told=TOLD_GROUPS,
        settings={},
        n_jobs=n_jobs,
    )


def oracle_models(problem: Problem, labels: Ints) -> Floats:
    """Minimisers of g_k, (n_clusters, dim)."""
    pooled = pool(problem.federation, labels)
    fitted = fit_users(
        pooled,
        problem.loss,
        l2=problem.l2,
        fit_intercept=problem.fit_intercept,
        curvature="none",
    )
    return fitted.theta


def pool(federation: Federation, labels: Ints) -> Federation:
    """The groups as users: all rows of a group, each user with the same total weight in it."""
    owner = labels[federation.row_user]
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    own = np.ones(len(owner)) if federation.weight is None else federation.weight
    n = federation.n_samples
    group_n, members = np.bincount(labels, weights=n), np.bincount(labels)
    # A row's share of its user, times the user's share of the group; weights of a group add up
    # to its number of samples.
    weight = (own * ((group_n / members)[labels] / n)[federation.row_user])[order]
    even = bool((weight == 1.0).all())
    X, y = federation.X[order], federation.y[order]
    return Federation(X, y, offsets, np.arange(len(counts)), None if even else weight)
