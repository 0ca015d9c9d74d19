"""A few rounds of gradient descent inside the clusters that one round found: ours."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np

from odcl._typing import Floats, Ints
from odcl.paper.baselines.problem import Answers, Problem, StepSize, Work, answer, resolve_step
from odcl.paper.baselines.rounds import History, Ledger, iterate
from odcl.server.combine import average_by_cluster


@dataclass(frozen=True, eq=False)
class Refined:
    centers: Floats  # (n_clusters, dim)
    steps: Floats  # (n_clusters,), as they were taken
    history: History  # of the rounds after the first


def refine_centers(
    problem: Problem, centers: Floats, labels: Ints, *, rounds: int, step_size: StepSize
) -> Refined:
    """Descend on each cluster's risk from the one-shot models.

        theta_k <- theta_k - step_k * mean of grad f_i(theta_k) over i in C_k

    A user sends its L_i along with its first gradient. The cluster's risk is as smooth as the mean
    of its users' risks, so that step_k = 1 / mean L_i is below 2/L_k; a ``step_size`` that is not
    below 2 / mean L_i is cut to 1 / mean L_i, with a warning. In the limit this is the pooled fit
    of the cluster (Eq. (3)): for K clusters that are exact, the Cluster Oracle.
    """
    start = centers[None]
    L = np.maximum(average_by_cluster(problem.smoothness(start)[:, None], labels)[:, 0], 1e-300)
    safe = 1.0 / L
    wanted = np.array([resolve_step(step_size, partial(float, own)) for own in L])
    long = wanted >= 2.0 * safe
    if long.any():
        warnings.warn(
            f"step_size={step_size} is not below 2/L in {int(long.sum())} of {len(L)} clusters (L "
            f"up to {L.max():.3g}), where descent would run away: it is cut to 1/L there.",
            UserWarning,
            stacklevel=3,
        )
    step = np.where(long, safe, wanted)[:, None]

    def combine(models: Floats, answers: Answers) -> Floats:
        return models - step * average_by_cluster(answers.replies[:, 0], labels)

    m, dim = problem.n_users, problem.dim
    work = Work("gradients", float(step.min()))
    run = iterate(
        problem,
        start,
        lambda now: answer(problem, now, work, labels),
        combine,
        Ledger(up=8 * m * dim, down=8 * m * dim, delivery=0, once_up=8 * m),
        n_rounds=rounds,
    )
    return Refined(run.models[0], step[:, 0], run.history)
