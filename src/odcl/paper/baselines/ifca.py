"""IFCA: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning".

Every round the server broadcasts K models; each user takes the one with the least risk on its own
rows and answers with its number and a gradient (option I) or an updated model (option II).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.ledger import Exchange
from odcl.paper.baselines.plain import oracle_models
from odcl.paper.baselines.result import TOLD_GROUPS, BaselineResult, from_run, passes_on
from odcl.paper.baselines.rounds import SET_BY_METHOD, Run, check_groups, iterate, problem_of
from odcl.risk.risk import Risk
from odcl.rounds.server import combine_gradients, combine_models, random_models, start_rng
from odcl.rounds.users import Average, FederatedProblem, check_average
from odcl.server.combine import average_by_cluster

# What each start is told of the truth; the others are told nothing.
STARTS = {"random": (), "zeros": (), "oracle": TOLD_GROUPS, "optima": (*TOLD_GROUPS, "optima")}


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
    n_starts: int = 1,
    risk: Risk = Risk(),
    seed: int = 0,
    n_jobs: int | None = None,
    **call: Any,
) -> BaselineResult:
    """Iterative federated clustering.

    ``average="gradients"``: theta_k <- theta_k - step_size / m * sum of grad f_i(theta_k) over the
    users i that chose k; the sum is divided by all m users, as in the published code (whose loss
    has no 1/2: its step is half of ours). ``"models"``: each user takes ``local_steps`` steps
    (tau, default 10), and theta_k becomes the mean over its users. A model nobody chose stays.

    ``batch_size`` rows drawn at random serve each step (None: all rows); the choice of the model
    always looks at all rows. ``start``: "random" (N(0, 1) per coordinate), "oracle" (the Cluster
    Oracle's models plus N(0, ``variance``); needs ``groups``, or these models as ``around``:
    IFCA-1 has variance 1, IFCA-2 has 4), "optima" (between a D and b D of the optima,
    ``between=(a, b)``; needs ``groups``), "zeros", or models. ``n_starts`` starts run side by side:
    at each point the one with the least training risk counts, and the bytes of all. ``stop_at``:
    see :func:`~odcl.baselines.rounds.iterate`. ``step_size="auto"`` is 1 / max L_i.
    """
    problem = problem_of(federation, risk, seed, optima)
    labels = None if groups is None else check_groups(groups, problem.n_users)
    near: dict[str, Any] = {"variance": variance, "around": around, "between": between}
    near |= {"n_clusters": n_clusters, "n_starts": n_starts, "labels": labels}
    models = start_models(problem, start, **near)
    run = _play(problem, models, average, local_steps, n_starts, **call)
    said = _said(run, average, start, n_starts)
    return from_run(problem, "ifca", run, n_jobs=n_jobs, **said)


def ifca_from_each(
    federation: Federation,
    *,
    n_clusters: int,
    starts: Mapping[str, Mapping[str, Any]],
    average: Average = "gradients",
    groups: Any = None,
    local_steps: int | None = None,
    risk: Risk = Risk(),
    seed: int = 0,
    **call: Any,
) -> dict[str, BaselineResult]:
    """IFCA from several starts, each its own method; the rows are read once per round for all.

    ``starts`` gives each start's ``start``, ``variance``, ``around`` or ``between``, by name. The
    models are those of single calls to rounding; of the histories only bytes and the last risk are
    kept. ``call``: step_size ("auto" is one for all starts) and rounds.
    """
    problem = problem_of(federation, risk, seed)
    labels = None if groups is None else check_groups(groups, problem.n_users)
    each = [
        start_models(problem, n_clusters=n_clusters, n_starts=1, labels=labels, **own)
        for own in starts.values()
    ]
    run = _play(problem, np.concatenate(each), average, local_steps, 1, **call)
    found = {}
    for s, (name, own) in enumerate(starts.items()):
        seen = np.full(run.history.ledger.n_rounds + 1, np.nan)
        seen[-1] = run.answers.mean_risk[s]
        history = replace(run.history, risk=seen, error=None, diverged=not np.isfinite(seen[-1]))
        alone, said = replace(run, history=history), _said(run, average, own["start"], 1)
        found[name] = from_run(problem, name, alone, start=s, **said)
    return found


def _play(
    problem: FederatedProblem,
    models: Floats,
    average: Average,
    local_steps: int | None,
    n_starts: int,
    **call: Any,
) -> Run:
    """The rounds. ``n_starts`` of the ``models`` belong to one method and are paid for by it.

    Users receive K models and send one vector, with the number of their model if K > 1. Of several
    starts users also tell the risk, once more after the last download: by it the start that counts
    is found.
    """
    check_average(average, local_steps)
    default, combine = (1, combine_gradients) if average == "gradients" else (10, combine_models)
    n_steps = default if local_steps is None else local_steps
    k, model = models.shape[1], (problem.dim,)
    told = ((),) * (n_starts > 1)
    exchange = Exchange(
        problem.n_users,
        sends=n_starts * (model, *((),) * (k > 1), *told),
        receives=n_starts * k * (model,),
        sends_first=n_starts * told,
        delivers=True,
    )
    return iterate(problem, models, average, combine, exchange, n_steps=n_steps, **call)


def _said(run: Run, average: Average, start: Any, n_starts: int) -> dict[str, Any]:
    """How a result came about, for its readers."""
    named = start if isinstance(start, str) else "given"
    options = {"n_clusters": run.models.shape[1], "average": average, "start": named}
    return {
        "combined": f"averaging of {average}",
        "told": STARTS.get(named, ()),
        "options": {**options, "n_starts": n_starts},
    }


def start_models(
    problem: FederatedProblem,
    start: Any,
    *,
    n_clusters: int,
    n_starts: int,
    labels: Ints | None,
    variance: float = 1.0,
    around: Any = None,
    between: tuple[float, float] = (1 / 6, 1 / 4),
) -> Floats:
    """Models of round 0, (n_starts, n_clusters, dim). ``labels`` are the true groups, if told.

    ``start`` is a name or the models themselves, (n_clusters, dim) or one such for each start.
    ``around`` are the Cluster Oracle's models, (n_clusters, dim), where they are known already.
    """
    shape = (n_starts, n_clusters, problem.dim)
    if not isinstance(start, str):
        given = np.asarray(start, dtype=np.float64)
        if given.shape not in (shape, shape[1:]):
            raise ValueError(f"start has shape {given.shape}, not {shape[1:]} or {shape}.")
        return np.broadcast_to(given, shape).copy()
    if start not in STARTS:
        raise ValueError(f"start={start!r} is not one of {', '.join(STARTS)}, nor models.")
    if start == "zeros":
        return np.zeros(shape)
    if start == "random":
        return random_models(shape, problem.seed)
    rng = start_rng(problem.seed)
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
    return between_of_optima(average_by_cluster(problem.optima, labels), between, n_starts, rng)


def between_of_optima(
    optima: Floats, between: tuple[float, float], n_starts: int, rng: np.random.Generator
) -> Floats:
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
    direction = rng.standard_normal((n_starts, *optima.shape))
    direction /= np.linalg.norm(direction, axis=2, keepdims=True)
    distance = D * rng.uniform(a, b, size=(n_starts, len(optima), 1))
    return optima + distance * direction
