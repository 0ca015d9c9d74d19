"""Methods in rounds: IFCA, FedAvg and ALL-for-ALL.

In every round users answer a broadcast with a gradient or with a model after some local steps
(:func:`~odcl.paper.baselines.steps.answer`), and the server makes the next models of the answers.
One round is the broadcast and the answers to it (Appendix D.3); the history counts both as sent.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.exceptions import ConvergenceWarning

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.evaluate import nmse
from odcl.exchange.message import Exchange, fedavg_exchange, ifca_exchange
from odcl.paper.baselines.one_shot import oracle_models
from odcl.paper.baselines.result import (
    TOLD_GROUPS,
    BaselineResult,
    History,
    check_groups,
    from_models,
    passes_on,
    problem_of,
)
from odcl.paper.baselines.steps import (
    Answers,
    Average,
    FederatedProblem,
    StepSize,
    answer,
    combine_gradients,
    combine_models,
)
from odcl.risk.risk import Risk
from odcl.server.models import average_by_cluster

# Descent with a step below 2/L never raises the risk; stochastic steps and averaged models may, a
# little. A final risk above this many times the first, and above that of zero models, is no noise.
_RISEN = 2.0

# What each start knows of the truth.
STARTS = {"random": (), "oracle": TOLD_GROUPS, "optima": (*TOLD_GROUPS, "optima")}


# -- the loop --------------------------------------------------------------------------------------


# What a method says of its rounds; the rest of what the loop takes is its caller's to say.
SET_BY_METHOD = ("models", "average", "combine", "exchange", "labels", "n_steps")


def iterate(
    problem: FederatedProblem,
    models: Floats,
    average: Average,
    combine: Callable[[Floats, Answers, float], Floats],
    exchange: Exchange,
    *,
    labels: Ints | None = None,
    n_steps: int = 1,
    step_size: StepSize = "auto",
    rounds: int = 200,
    batch_size: int | None = None,
    stop_at: float | None = None,
) -> tuple[Answers, History, dict[str, Any]]:
    """Broadcast, answers (:func:`answer`), combination with the step; at most ``rounds`` times.

    Gives the last finite answers, the history, and how the loop was run.

    ``step_size="auto"`` is 1 / max L_i. Stops at the first round after which the NMSE is
    ``stop_at`` or less (Section 5, "matches this error"). Models that leave the numbers end the
    loop, with a warning: the last finite models are kept, and ``diverged`` is True.
    """
    _check(problem, models, rounds, n_steps, batch_size, stop_at)
    step = 0.0 if isinstance(step_size, str) else float(step_size)
    if step_size == "auto":  # in a ball twice as large as the start's models need
        radius = 2.0 * float(np.linalg.norm(models, axis=-1).max(initial=0.0)) + 1.0
        largest = problem.smoothness(radius, batch_size).max()
        step = 1.0 / largest if largest > 0 else 1.0
    if not step > 0:
        raise ValueError(f"step_size={step_size!r} is neither 'auto' nor a number > 0.")
    how: dict[str, Any] = {
        "average": average,
        "step_size": step,
        "n_steps": n_steps,
        "batch_size": batch_size,
    }
    risk: list[float] = []
    error: list[float] = []
    reached = None if stop_at is None else False
    finite = True
    with np.errstate(over="ignore", invalid="ignore"):
        latest = models
        for t in range(rounds + 1):
            answers = answer(problem, latest, labels, **how)
            mean = float(answers.risk.mean())
            finite = math.isfinite(mean)
            risk.append(mean if finite else math.inf)
            if problem.optima is not None:
                now = nmse(answers.picked, problem.optima)
                error.append(now if finite else np.inf)
            if finite or t == 0:
                last = answers
            if not finite:
                break
            if stop_at is not None and error[-1] <= stop_at:
                reached = True
            if reached or t == rounds:
                break
            latest = combine(latest, answers, step)
    tame = finite and (risk[-1] <= _RISEN * risk[0] or risk[-1] <= problem.risk_of_zero())
    if not tame:
        now_is = f"{risk[-1]:.3g}, from {risk[0]:.3g} at the start" if finite else "not a number"
        warnings.warn(
            f"The users' mean risk is {now_is} after {len(risk) - 1} rounds: the step is too long "
            "(at 2/L or more, descent runs away). Lower step_size, or use step_size='auto'.",
            ConvergenceWarning,
            stacklevel=3,
        )
    errors = np.array(error) if error else None
    history = History(np.array(risk), errors, exchange.over(len(risk) - 1), reached, not tame)
    options = {"step_size": step, "local_steps": n_steps, "batch_size": batch_size}
    return last, history, {**options, "rounds": rounds, "stop_at": stop_at}


def _check(
    problem: FederatedProblem,
    models: Floats,
    rounds: int,
    n_steps: int,
    batch_size: int | None,
    stop_at: float | None,
) -> None:
    if rounds < 0:
        raise ValueError(f"rounds={rounds} must be 0 or more.")
    if n_steps < 1 or (batch_size is not None and batch_size < 1):
        raise ValueError(
            f"A round needs a step and a row at least, got {n_steps} local steps with "
            f"batch_size={batch_size}."
        )
    if models.shape[-1] != problem.dim or not np.isfinite(models).all():
        raise ValueError(
            f"The start has shape {models.shape}: it must be finite numbers, {problem.dim} to a "
            "model (features, and the intercept where there is one, times outputs)."
        )
    if stop_at is not None and problem.optima is None:
        raise ValueError(
            f"stop_at={stop_at:g} compares with the error of the users' models, and their optima "
            "are not known. Give optima=, or leave stop_at out."
        )


# -- IFCA ------------------------------------------------------------------------------------------


@passes_on(iterate, *SET_BY_METHOD)
def ifca(
    federation: Federation,
    *,
    n_clusters: int,
    average: Average = "gradients",
    start: Any = "random",
    variance: float = 1.0,
    around: Any = None,
    between: tuple[float, float] = (1 / 6, 1 / 4),
    groups: Any = None,
    optima: Any = None,
    local_steps: int | None = None,
    risk: Risk = Risk(),
    seed: int = 0,
    **call: Any,
) -> BaselineResult:
    """IFCA (Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated
    Learning").

    Every round the server broadcasts K models; each user takes the one with the least risk on its
    own rows. ``average="gradients"`` (their option I): theta_k <- theta_k - step_size / m * sum of
    grad f_i(theta_k) over the users i that chose k; the sum is divided by all m users, as in the
    published code (whose loss has no 1/2: its step is half of ours). ``"models"`` (option II): each
    user takes ``local_steps`` steps (tau, default 10), and theta_k becomes the mean over its users.
    A model that no user chose stays.

    ``batch_size`` rows drawn at random serve each step (None: all rows); the choice of the model
    always looks at all rows. ``start``: "random" (N(0, 1) per coordinate), "oracle" (the Cluster
    Oracle's models plus N(0, ``variance``); needs ``groups``, or these models as ``around``:
    IFCA-1 has variance 1, IFCA-2 has 4), "optima" (between a D and b D of the optima,
    ``between=(a, b)``; needs ``groups``), or models. ``stop_at``, ``step_size``: see ``iterate``.
    """
    if average not in ("gradients", "models"):
        raise ValueError(f"average={average!r} is neither 'gradients' nor 'models'.")
    if average == "gradients" and local_steps not in (None, 1):
        raise ValueError(
            f"local_steps={local_steps} with average='gradients': a user answers with one "
            "gradient, so there is one step per round. Use average='models' for local steps."
        )
    problem = problem_of(federation, risk, seed, optima)
    labels = None if groups is None else check_groups(groups, problem.n_users)
    near: dict[str, Any] = {"variance": variance, "around": around, "between": between}
    models = start_models(problem, start, n_clusters=n_clusters, labels=labels, **near)
    default, combine = (1, combine_gradients) if average == "gradients" else (10, combine_models)
    n_steps = default if local_steps is None else local_steps
    exchange = ifca_exchange(problem.n_users, problem.dim, n_clusters)
    call |= {"n_steps": n_steps}
    last, history, options = iterate(problem, models, average, combine, exchange, **call)
    named = start if isinstance(start, str) else "given"
    return from_models(
        *(problem, "ifca", last.labels, last.picked, history),
        combined=f"averaging of {average}",
        told=STARTS.get(named, ()),
        options=options | {"n_clusters": n_clusters, "average": average, "start": named},
    )


def start_models(
    problem: FederatedProblem,
    start: Any,
    *,
    n_clusters: int,
    labels: Ints | None,
    variance: float = 1.0,
    around: Any = None,
    between: tuple[float, float] = (1 / 6, 1 / 4),
) -> Floats:
    """Models of round 0, (n_clusters, dim). ``labels`` are the true groups, if told.

    ``start`` is a name or the models themselves; ``around`` are the Cluster Oracle's models, where
    they are known already.
    """
    shape = (n_clusters, problem.dim)
    if not isinstance(start, str):
        given = np.array(start, dtype=np.float64)
        if given.shape != shape:
            raise ValueError(f"start has shape {given.shape}, not {shape}.")
        return given
    if start not in STARTS:
        raise ValueError(f"start={start!r} is not one of {', '.join(STARTS)}, nor models.")
    rng = np.random.default_rng(np.random.SeedSequence(problem.seed, spawn_key=(0,)))
    if start == "random":
        return rng.standard_normal(shape)
    if start == "oracle" and around is not None:
        known = np.asarray(around, dtype=np.float64)
        return known + np.sqrt(variance) * rng.standard_normal(shape)
    if labels is None or labels.max() + 1 != n_clusters:
        raise ValueError(
            f"start={start!r} puts each of the {n_clusters} models near the truth of one group: "
            f"give groups= with {n_clusters} true groups, or use start='random'."
        )
    if start == "oracle":
        return oracle_models(problem, labels) + np.sqrt(variance) * rng.standard_normal(shape)
    if problem.optima is None:
        raise ValueError("start='optima' needs the true optima: give optima=, (n_users, dim).")
    return _near_optima(average_by_cluster(problem.optima, labels), between, rng)


def _near_optima(optima: Floats, between: tuple[float, float], rng: np.random.Generator) -> Floats:
    """Models between a D and b D of the groups' optima (Section 5 and Appendix D.3).

    D is the least distance between two optima (Assumption 1). The direction is uniform on the
    sphere and the distance uniform in [a D, b D]: the paper leaves the law open.
    """
    a, b = between
    if len(optima) < 2 or not 0 <= a <= b:
        raise ValueError(
            f"start='optima' needs two groups or more for their distance D, and 0 <= a <= b; got "
            f"{len(optima)} and between={between!r}."
        )
    D = float(pdist(optima).min())
    direction = rng.standard_normal(optima.shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    distance = D * rng.uniform(a, b, size=(len(optima), 1))
    return optima + distance * direction


# -- users who do not choose a model ---------------------------------------------------------------


@passes_on(iterate, *SET_BY_METHOD)
def fedavg(
    federation: Federation,
    *,
    local_steps: int = 10,
    risk: Risk = Risk(),
    seed: int = 0,
    **call: Any,
) -> BaselineResult:
    """FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks").

    One model for all, from zero (Section 5): users take ``local_steps`` steps, the server averages
    their models by sample size. ``batch_size``, ``stop_at``, ``step_size``: see ``iterate``.
    """
    problem = problem_of(federation, risk, seed)
    share = federation.n_samples / federation.n_samples.sum()

    def combine(now: Floats, answers: Answers, step: float) -> Floats:
        return (share @ answers.replies)[None]

    exchange = fedavg_exchange(problem.n_users, problem.dim)
    zero, everybody = np.zeros((1, problem.dim)), np.zeros(problem.n_users, dtype=np.intp)
    call |= {"labels": everybody, "n_steps": local_steps}
    last, history, options = iterate(problem, zero, "models", combine, exchange, **call)
    return from_models(
        *(problem, "fedavg", last.labels, last.picked, history),
        combined="averaging of models",
        options=options,
    )


@passes_on(iterate, *SET_BY_METHOD)
def all_for_all(
    federation: Federation,
    *,
    groups: Any,
    risk: Risk = Risk(),
    seed: int = 0,
    **call: Any,
) -> BaselineResult:
    """ALL-for-ALL (Even, Massoulie, Scaman, "Sample Optimality and All-for-all Strategies", 2022).

    Gradient steps mixed inside the true ``groups``, user to user, without a server.

        theta_i <- theta_i - step_size / |C_k| * sum over j in C_k of grad f_j(theta_j)

    with which every group runs gradient descent on its g_k of Eq. (3), from zero. A gradient goes
    to every other user of the group: these are the bytes counted. ``batch_size=1`` draws a fresh
    row per step, as published; None takes all rows.
    """
    problem = problem_of(federation, risk, seed)
    m, gradient = problem.n_users, (problem.dim,)
    labels = check_groups(groups, m)
    sizes = np.bincount(labels)

    def combine(now: Floats, answers: Answers, step: float) -> Floats:
        return now - step * average_by_cluster(answers.replies, labels)[labels]

    links = int((sizes * (sizes - 1)).sum())
    exchange = Exchange(links, sends=(gradient,), receives=(gradient,))  # a message per link
    start = np.zeros((m, problem.dim))
    call |= {"labels": np.arange(m)}
    last, history, options = iterate(problem, start, "gradients", combine, exchange, **call)
    return from_models(
        *(problem, "all-for-all", labels, last.picked, history),
        combined="gradients mixed inside groups",
        told=TOLD_GROUPS,
        options=options,
    )
