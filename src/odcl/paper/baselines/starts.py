"""Where IFCA starts: random, near the Cluster Oracle (IFCA-1, IFCA-2), or near the true optima."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from odcl._typing import Floats, Ints
from odcl.paper.baselines.oracles import oracle_models
from odcl.paper.baselines.problem import Problem
from odcl.server.combine import average_by_cluster

STARTS = ("random", "oracle", "optima", "zeros")


def start_models(
    problem: Problem,
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
    ``around`` are the Cluster Oracle's models, (n_clusters, dim), where somebody has them already.
    """
    shape = (n_starts, n_clusters, problem.dim)
    if not isinstance(start, str):
        given = np.asarray(start, dtype=np.float64)
        if given.shape not in (shape, shape[1:]):
            raise ValueError(f"start has shape {given.shape}, not {shape[1:]} or {shape}.")
        return np.broadcast_to(given, shape).copy()
    rng = np.random.default_rng(np.random.SeedSequence(problem.seed, spawn_key=(0,)))
    if start == "zeros":
        return np.zeros(shape)
    if start == "random":
        return rng.standard_normal(shape)
    if start not in STARTS:
        raise ValueError(f"start={start!r} is not one of {', '.join(STARTS)}, nor models.")
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
