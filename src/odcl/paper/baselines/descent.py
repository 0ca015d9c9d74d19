"""Rounds of descent where nobody asks who belongs to whom: FedAvg, ALL-for-ALL, refinement.

Users work on one model for all, on that of a group they are told, or on that of a cluster found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy import sparse

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.ledger import Exchange, fedavg_exchange
from odcl.paper.baselines.ifca import start_models
from odcl.paper.baselines.result import TOLD_GROUPS, BaselineResult, from_run, passes_on
from odcl.paper.baselines.rounds import SET_BY_METHOD, Run, check_groups, iterate, problem_of
from odcl.risk.risk import Risk
from odcl.rounds.server import descend_in_clusters, steps_in_clusters
from odcl.rounds.users import Answers, FederatedProblem, StepSize, ball_around
from odcl.server.combine import average_by_cluster


@passes_on(iterate, *SET_BY_METHOD)
def fedavg(
    federation: Federation,
    *,
    weights: Literal["samples", "users"] = "samples",
    start: Any = "zeros",
    local_steps: int = 10,
    optima: Any = None,
    risk: Risk = Risk(),
    seed: int = 0,
    n_jobs: int | None = None,
    **call: Any,
) -> BaselineResult:
    """FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks").

    One model for all: users take ``local_steps`` steps, the server averages their models. The mean
    is weighted by sample size, as published, or counts ``"users"`` once each, which is IFCA with
    K = 1. The paper starts it from zero (Section 5). ``batch_size``, ``stop_at``, ``step_size``:
    as in :func:`~odcl.baselines.ifca`.
    """
    if weights not in ("samples", "users"):
        raise ValueError(f"weights={weights!r} is neither 'samples' nor 'users'.")
    problem = problem_of(federation, risk, seed, optima)
    m = problem.n_users
    models = start_models(problem, start, n_clusters=1, n_starts=1, labels=None)
    n = federation.n_samples if weights == "samples" else np.ones(m)

    def combine(now: Floats, answers: Answers, step: float) -> Floats:
        return ((n / n.sum()) @ answers.replies[:, 0])[None, None]

    exchange = fedavg_exchange(m, problem.dim, weighted=weights == "samples")
    shared: dict[str, Any] = {"labels": np.zeros(m, dtype=np.intp), "n_steps": local_steps}
    run = iterate(problem, models, "models", combine, exchange, **shared, **call)
    options = {"weights": weights, "start": start if isinstance(start, str) else "given"}
    how = "averaging of models"
    return from_run(problem, "fedavg", run, combined=how, options=options, n_jobs=n_jobs)


@passes_on(iterate, *SET_BY_METHOD)
def all_for_all(
    federation: Federation,
    *,
    groups: Any,
    mixing: Any = None,
    optima: Any = None,
    risk: Risk = Risk(),
    seed: int = 0,
    n_jobs: int | None = None,
    **call: Any,
) -> BaselineResult:
    """ALL-for-ALL (Even, Massoulie, Scaman, "Sample Optimality and All-for-all Strategies", 2022).

    Gradient steps mixed over the known graph of groups, user to user, without a server.

        theta_i <- theta_i - step_size * sum over j of W_ij grad f_j(theta_j)

    ``mixing`` is W, (n_users, n_users), dense or sparse; by default 1 / |C_k| inside the true
    ``groups`` and 0 between them, with which every group runs gradient descent on its g_k of
    Eq. (3). Users start from zero. A gradient goes to every user that weighs it: these are the
    bytes counted. ``batch_size=1`` draws a fresh row per step, as published; None takes all rows.
    ``step_size="auto"`` is 1 / (max L_i * bound of |W|).
    """
    problem = problem_of(federation, risk, seed, optima)
    m, gradient = problem.n_users, (problem.dim,)
    labels = check_groups(groups, m)
    mix, links, size = _mixing(mixing, labels)
    start = np.zeros((1, m, problem.dim))

    def combine(now: Floats, answers: Answers, step: float) -> Floats:
        return now - step * mix(answers.replies[:, 0])[None]

    exchange = Exchange(links, sends=(gradient,), receives=(gradient,))  # a message per link
    shared: dict[str, Any] = {"labels": np.arange(m), "size": size}
    run = iterate(problem, start, "gradients", combine, exchange, **shared, **call)
    how = "uniform in groups" if mixing is None else "given"
    said: dict[str, Any] = {"combined": "gradients mixed over the graph", "told": TOLD_GROUPS}
    said |= {"options": {"mixing": how}, "n_jobs": n_jobs}
    return from_run(problem, "all-for-all", run, labels=labels, **said)


def _mixing(mixing: Any, labels: Ints) -> tuple[Callable[[Floats], Floats], int, float]:
    """How gradients are mixed, how many pairs of different users that links, a bound of |W|."""
    if mixing is None:  # the group's mean, without the matrix
        sizes = np.bincount(labels)
        links = int((sizes * (sizes - 1)).sum())
        return lambda gradients: average_by_cluster(gradients, labels)[labels], links, 1.0
    W, m = sparse.csr_array(mixing, dtype=np.float64), len(labels)
    if W.shape != (m, m):
        raise ValueError(f"mixing has shape {W.shape}, and {m} users need a row and a column each.")
    links = int(W.count_nonzero() - np.count_nonzero(W.diagonal()))
    # The spectral norm is at most the geometric mean of the largest column and row sums.
    size = float(np.sqrt(abs(W).sum(axis=0).max() * abs(W).sum(axis=1).max()))
    return lambda gradients: W @ gradients, links, size


def refine_centers(
    problem: FederatedProblem, centers: Floats, labels: Ints, *, rounds: int, step_size: StepSize
) -> tuple[Run, Floats]:
    """Descend on each cluster's risk from the one-shot models: ours. Also the steps taken.

        theta_k <- theta_k - step_k * mean of grad f_i(theta_k) over i in C_k

    A user sends its L_i along with its first gradient. The cluster's risk is as smooth as the mean
    of its users' risks, so that step_k = 1 / mean L_i is below 2/L_k; a ``step_size`` that is not
    below 2 / mean L_i is cut to 1 / mean L_i, with a warning. In the limit this is the pooled fit
    of the cluster (Eq. (3)): for K clusters that are exact, the Cluster Oracle.
    """
    start = centers[None]
    steps = steps_in_clusters(problem.smoothness(ball_around(start)), labels, step_size)

    def combine(models: Floats, answers: Answers, step: float) -> Floats:
        return descend_in_clusters(models[0], answers.replies[:, 0], labels, steps)[None]

    model = (problem.dim,)
    exchange = Exchange(problem.n_users, sends=(model,), receives=(model,), sends_first=((),))
    call: dict[str, Any] = {"labels": labels, "rounds": rounds, "step_size": float(steps.min())}
    return iterate(problem, start, "gradients", combine, exchange, **call), steps
