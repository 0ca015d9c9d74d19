"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks"."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.paper.baselines.problem import Answers, StepSize, answer, problem_of, work_of
from odcl.paper.baselines.result import BaselineResult, from_models
from odcl.paper.baselines.rounds import Ledger, iterate
from odcl.paper.baselines.starts import start_models
from odcl.risk.loss import Loss


def fedavg(
    federation: Federation,
    *,
    weights: Literal["samples", "users"] = "samples",
    start: Any = "zeros",
    optima: Any = None,
    step_size: StepSize = "auto",
    rounds: int = 200,
    local_steps: int = 10,
    batch_size: int | None = None,
    stop_at: float | None = None,
    loss: str | Loss = "squared",
    l2: float = 0.0,
    fit_intercept: bool = False,
    seed: int = 0,
    n_jobs: int | None = None,
) -> BaselineResult:
    """One model for all: users take ``local_steps`` steps, the server averages their models.

    The mean is weighted by sample size, as published, or counts ``"users"`` once each, which is
    IFCA with K = 1. The paper starts it from zero (Section 5). ``batch_size``, ``stop_at``,
    ``step_size``: as in :func:`~odcl.baselines.ifca`.
    """
    if weights not in ("samples", "users"):
        raise ValueError(f"weights={weights!r} is neither 'samples' nor 'users'.")
    problem = problem_of(federation, loss, l2, fit_intercept, seed, optima)
    m, dim = problem.n_users, problem.dim
    models = start_models(problem, start, n_clusters=1, n_starts=1, labels=None)
    work = work_of(
        problem, models, "models", step_size=step_size, n_steps=local_steps, batch_size=batch_size
    )
    n = federation.n_samples if weights == "samples" else np.ones(m)
    everybody = np.zeros(m, dtype=np.intp)

    def combine(now: Floats, answers: Answers) -> Floats:
        return ((n / n.sum()) @ answers.replies[:, 0])[None, None]

    counted = weights == "samples"  # a user's answer carries its sample size
    run = iterate(
        problem,
        models,
        lambda now: answer(problem, now, work, everybody),
        combine,
        Ledger(up=8 * m * (dim + counted), down=8 * m * dim, delivery=8 * m * dim),
        n_rounds=rounds,
        stop_at=stop_at,
    )
    settings = {
        "weights": weights,
        "start": start if isinstance(start, str) else "given",
        "step_size": work.step_size,
        "local_steps": local_steps,
        "batch_size": batch_size,
        "rounds": rounds,
        "stop_at": stop_at,
    }
    return from_models(
        problem,
        "fedavg",
        everybody,
        run.answers.picked[:, 0],
        run.history,
        combined="averaging of models",
        settings=settings,
        n_jobs=n_jobs,
    )
