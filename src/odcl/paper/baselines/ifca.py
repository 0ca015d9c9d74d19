"""IFCA: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning".

Every round the server broadcasts K models; each user takes the one with the least risk on its own
rows and answers with its number and a gradient (option I) or an updated model (option II).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from odcl._typing import Floats
from odcl.clustering.labels import sum_by_cluster
from odcl.data.federation import Federation
from odcl.paper.baselines.oracles import TOLD_GROUPS
from odcl.paper.baselines.problem import (
    Answers,
    Problem,
    StepSize,
    Work,
    answer,
    check_groups,
    problem_of,
    work_of,
)
from odcl.paper.baselines.result import BaselineResult, from_models
from odcl.paper.baselines.rounds import Ledger, Run, iterate
from odcl.paper.baselines.starts import start_models
from odcl.risk.loss import Loss


def ifca(
    federation: Federation,
    *,
    n_clusters: int,
    average: Literal["gradients", "models"] = "gradients",
    start: Any = "random",
    variance: float = 1.0,
    around: Any = None,
    between: tuple[float, float] = (1 / 6, 1 / 4),
    groups: Any = None,
    optima: Any = None,
    step_size: StepSize = "auto",
    rounds: int = 200,
    local_steps: int | None = None,
    batch_size: int | None = None,
    stop_at: float | None = None,
    n_starts: int = 1,
    loss: str | Loss = "squared",
    l2: float = 0.0,
    fit_intercept: bool = False,
    seed: int = 0,
    n_jobs: int | None = None,
) -> BaselineResult:
    """Iterative federated clustering.

    ``average="gradients"``: theta_k <- theta_k - step_size / m * sum of grad f_i(theta_k) over the
    users i that chose k; the sum is divided by all m users, as in the published code (whose loss
    has no 1/2: its step is half of ours). ``"models"``: each user takes ``local_steps`` steps
    (tau, default 10), and theta_k becomes the mean over its users. A model nobody chose stays.

    ``batch_size`` rows drawn at random serve each step (None: all rows); the choice of the model
    always looks at all rows. ``start``: "random" (N(0, 1) a coordinate), "oracle" (the Cluster
    Oracle's models plus N(0, ``variance``); needs ``groups``, or these models as ``around``:
    IFCA-1 has variance 1, IFCA-2 has 4), "optima" (between a D and b D of the optima,
    ``between=(a, b)``; needs ``groups``), "zeros", or models. ``n_starts`` starts run side by side:
    at each point the one with the least training risk counts, and the bytes of all. ``stop_at``:
    see :func:`~odcl.baselines.rounds.iterate`. ``step_size="auto"`` is 1 / max L_i.
    """
    problem = problem_of(federation, loss, l2, fit_intercept, seed, optima)
    labels = None if groups is None else check_groups(groups, problem.n_users)
    models = start_models(
        problem,
        start,
        n_clusters=n_clusters,
        n_starts=n_starts,
        labels=labels,
        variance=variance,
        around=around,
        between=between,
    )
    how = _how(problem, models, average, step_size, local_steps, batch_size)
    run = _play(problem, models, how, n_starts, rounds=rounds, stop_at=stop_at)
    lead = run.answers.lead
    settings = {"batch_size": batch_size, "n_starts": n_starts, "stop_at": stop_at}
    return _result(problem, "ifca", run, lead, how, start, rounds, settings, n_jobs)


def ifca_from_each(
    federation: Federation,
    *,
    n_clusters: int,
    starts: Mapping[str, Mapping[str, Any]],
    average: Literal["gradients", "models"] = "gradients",
    groups: Any = None,
    step_size: StepSize = "auto",
    rounds: int = 200,
    local_steps: int | None = None,
    loss: str | Loss = "squared",
    l2: float = 0.0,
    fit_intercept: bool = False,
    seed: int = 0,
) -> dict[str, BaselineResult]:
    """IFCA from several starts, each a method of its own; the rows are read once a round for all.

    ``starts`` gives each start's ``start``, ``variance``, ``around`` or ``between``, by name. The
    models are those of single calls to rounding; of the histories only bytes and the last risk are
    kept. ``step_size="auto"`` is one for all starts.
    """
    problem = problem_of(federation, loss, l2, fit_intercept, seed)
    labels = None if groups is None else check_groups(groups, problem.n_users)
    each = [
        start_models(problem, n_clusters=n_clusters, n_starts=1, labels=labels, **own)
        for own in starts.values()
    ]
    models = np.concatenate(each)
    how = _how(problem, models, average, step_size, local_steps)
    run = _play(problem, models, how, 1, rounds=rounds)
    found = {}
    for s, (name, own) in enumerate(starts.items()):
        risk = np.full(run.history.n_rounds + 1, np.nan)
        risk[-1] = run.answers.mean_risk[s]
        history = replace(run.history, risk=risk, error=None, diverged=not np.isfinite(risk[-1]))
        alone = replace(run, history=history)
        found[name] = _result(problem, name, alone, s, how, own.get("start"), rounds)
    return found


def _how(
    problem: Problem,
    models: Floats,
    average: Literal["gradients", "models"],
    step_size: StepSize,
    local_steps: int | None,
    batch_size: int | None = None,
) -> Work:
    """What users do in a round."""
    n_steps = _local_steps(average, local_steps)
    return work_of(
        problem, models, average, step_size=step_size, n_steps=n_steps, batch_size=batch_size
    )


def _play(
    problem: Problem,
    models: Floats,
    work: Work,
    n_starts: int,
    *,
    rounds: int,
    stop_at: float | None = None,
) -> Run:
    """The rounds. ``n_starts`` of the ``models`` belong to one method and are paid for by it."""
    by_gradients = partial(combine_gradients, step_size=work.step_size)
    return iterate(
        problem,
        models,
        lambda now: answer(problem, now, work),
        by_gradients if work.average == "gradients" else combine_models,
        _ledger(problem.n_users, models.shape[1], problem.dim, n_starts),
        n_rounds=rounds,
        stop_at=stop_at,
    )


def _result(
    problem: Problem,
    method: str,
    run: Run,
    which: int,
    work: Work,
    start: Any,
    rounds: int,
    settings: Mapping[str, Any] = MappingProxyType({}),
    n_jobs: int | None = None,
) -> BaselineResult:
    """Start ``which`` of a run as a method's result."""
    named = start if isinstance(start, str) else "given"
    told = {"oracle": TOLD_GROUPS, "optima": ("the true groups", "optima")}
    return from_models(
        problem,
        method,
        run.answers.labels[:, which],
        run.answers.picked[:, which],
        run.history,
        combined=f"averaging of {work.average}",
        told=told.get(named, ()),
        settings={
            "n_clusters": run.models.shape[1],
            "average": work.average,
            "start": named,
            "step_size": work.step_size,
            "local_steps": work.n_steps,
            "rounds": rounds,
            **settings,
        },
        n_jobs=n_jobs,
    )


def _ledger(m: int, n_clusters: int, dim: int, n_starts: int) -> Ledger:
    """Users receive K models and send one vector, with the number of their model if K > 1.

    Of several starts users also tell the risk, once more after the last download: by it the start
    that counts is found.
    """
    several = n_starts > 1
    return Ledger(
        up=8 * m * n_starts * (dim + (n_clusters > 1) + several),
        down=8 * m * n_starts * n_clusters * dim,
        delivery=8 * m * n_starts * n_clusters * dim,
        once_up=8 * m * n_starts * several,
    )


def combine_gradients(models: Floats, answers: Answers, *, step_size: float) -> Floats:
    """Option I: the sum over the users of a model, divided by all users."""
    m = len(answers.labels)
    return models - step_size / m * _sums(answers.replies, answers, models.shape)


def combine_models(models: Floats, answers: Answers) -> Floats:
    """Option II: the mean over the users of a model; a model without users stays."""
    ones = np.ones((*answers.labels.shape, 1))
    counts = _sums(ones, answers, (*models.shape[:2], 1))
    sums = _sums(answers.replies, answers, models.shape)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), models)


def _sums(values: Floats, answers: Answers, shape: tuple[int, ...]) -> Floats:
    """Sum of the users' values for each model of each start, (starts, n_models, ...)."""
    starts, k, size = shape
    which = answers.labels + k * np.arange(starts)
    total = np.zeros((starts * k, size))
    found = sum_by_cluster(values.reshape(-1, size), which.ravel())
    total[: len(found)] = found
    return total.reshape(shape)


def _local_steps(average: str, local_steps: int | None) -> int:
    if average not in ("gradients", "models"):
        raise ValueError(f"average={average!r} is neither 'gradients' nor 'models'.")
    if average == "gradients" and local_steps not in (None, 1):
        raise ValueError(
            f"local_steps={local_steps} with average='gradients': a user answers with one "
            "gradient, so there is one step a round. Use average='models' for local steps."
        )
    default = 1 if average == "gradients" else 10
    return default if local_steps is None else local_steps
