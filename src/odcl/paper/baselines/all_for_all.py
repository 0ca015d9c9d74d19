"""ALL-for-ALL: Even, Massoulie, Scaman, "Sample Optimality and All-for-all Strategies" (2022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.paper.baselines.oracles import TOLD_GROUPS
from odcl.paper.baselines.problem import (
    Answers,
    StepSize,
    answer,
    check_groups,
    problem_of,
    work_of,
)
from odcl.paper.baselines.result import BaselineResult, from_models
from odcl.paper.baselines.rounds import Ledger, iterate
from odcl.risk.loss import Loss
from odcl.server.combine import average_by_cluster


def all_for_all(
    federation: Federation,
    *,
    groups: Any,
    mixing: Any = None,
    optima: Any = None,
    step_size: StepSize = "auto",
    rounds: int = 200,
    batch_size: int | None = None,
    stop_at: float | None = None,
    loss: str | Loss = "squared",
    l2: float = 0.0,
    fit_intercept: bool = False,
    seed: int = 0,
    n_jobs: int | None = None,
) -> BaselineResult:
    """Gradient steps mixed over the known graph of groups, user to user, without a server.

        theta_i <- theta_i - step_size * sum over j of W_ij grad f_j(theta_j)

    ``mixing`` is W, (n_users, n_users), dense or sparse; by default 1 / |C_k| inside the true
    ``groups`` and 0 between them, with which every group runs gradient descent on its g_k of
    Eq. (3). Users start from zero. A gradient goes to every user that weighs it: these are the
    bytes counted. ``batch_size=1`` draws a fresh row a step, as published; None takes all rows.
    ``step_size="auto"`` is 1 / (max L_i * bound of |W|).
    """
    problem = problem_of(federation, loss, l2, fit_intercept, seed, optima)
    m, dim = problem.n_users, problem.dim
    labels = check_groups(groups, m)
    mix, links, size = _uniform(labels) if mixing is None else _given(mixing, m)
    theta = np.zeros((1, m, dim))
    work = work_of(
        problem, theta, "gradients", step_size=step_size, batch_size=batch_size, size=size
    )

    def combine(now: Floats, answers: Answers) -> Floats:
        return now - work.step_size * mix(answers.replies[:, 0])[None]

    sent = 8 * dim * links
    run = iterate(
        problem,
        theta,
        lambda now: answer(problem, now, work, np.arange(m)),
        combine,
        Ledger(up=sent, down=sent, delivery=0),
        n_rounds=rounds,
        stop_at=stop_at,
    )
    settings = {
        "mixing": "uniform in groups" if mixing is None else "given",
        "step_size": work.step_size,
        "batch_size": batch_size,
        "rounds": rounds,
        "stop_at": stop_at,
    }
    return from_models(
        problem,
        "all-for-all",
        labels,
        run.answers.picked[:, 0],
        run.history,
        combined="gradients mixed over the graph",
        told=TOLD_GROUPS,
        settings=settings,
        n_jobs=n_jobs,
    )


# How gradients are mixed, how many pairs of different users that links, and a bound of |W|.
Mixing = tuple[Callable[[Floats], Floats], int, float]


def _uniform(labels: Ints) -> Mixing:
    """W_ij = 1 / |C_k| inside a group: the group's mean, without the matrix."""
    sizes = np.bincount(labels)
    links = int((sizes * (sizes - 1)).sum())
    return lambda gradients: average_by_cluster(gradients, labels)[labels], links, 1.0


def _given(mixing: Any, n_users: int) -> Mixing:
    W = sparse.csr_array(mixing, dtype=np.float64)
    if W.shape != (n_users, n_users):
        raise ValueError(
            f"mixing has shape {W.shape}, and {n_users} users need a row and a column each."
        )
    links = int(W.count_nonzero() - np.count_nonzero(W.diagonal()))
    # The spectral norm is at most the geometric mean of the largest column and row sums.
    size = float(np.sqrt(abs(W).sum(axis=0).max() * abs(W).sum(axis=1).max()))
    return lambda gradients: W @ gradients, links, size
