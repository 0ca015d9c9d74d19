"""Rows per user: what one gets for n, and the smallest n for what one wants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.kmeans import kmeans_pp
from odcl.clustering.labels import number_by_first_user, sum_by_cluster
from odcl.combine import average_by_cluster, solve_symmetric
from odcl.plan.recovery import (
    convex_guaranteed,
    convex_path,
    fusing_lambdas,
    kmeans_expected,
    kmeans_rate,
    moments,
)
from odcl.plan.scenario import Scenario
from odcl.plan.uploads import Trials, draw_trials

METHODS = {
    "kmeans": "K-means++ (number of groups given)",
    "convex": "convex clustering, best lambda",
    "convex-13": "convex clustering, lambda of Eq. (13)",
}
COMBINERS = ("mean", "precision")
STEP = 1.6  # between the n of the first look
CEILING = 10_000_000  # no plan goes beyond so many rows a user
FAR = 1000  # times the first guess: where the search for the groups ends
USERS = 30_000  # users drawn for one n: 300 trials of 100
CONVEX_TRIALS = 100  # trials that are looked at for convex clustering
CONVEX_PAIRS = 20_000_000  # pairs of users of a group in them
SLIGHTLY = 1.02  # above the least lambda that fuses the groups
ERROR_USERS = 1_500  # users of the trials whose models are combined


@dataclass(frozen=True)
class Point:
    """What n rows per user give."""

    n: int
    trials: int
    recovery: dict[str, float]  # probability that a method finds exactly the true groups
    spread: dict[str, float]  # standard error of it
    # Squared error of the users' models, divided by the models' squared size:
    error: dict[str, float]  # mean and precision in the groups K-means++ finds, and "local"


@dataclass(frozen=True, eq=False)
class Plan:
    """How many rows per user a federation needs."""

    scene: Scenario
    target: float  # probability of exact recovery that is wanted
    points: list[Point]  # by n
    smallest: dict[str, int | None]  # method -> n; None: not below the largest n looked at
    paper: dict[str, int] = field(default_factory=dict)  # the paper's threshold, by method
    wanted_error: float | None = None
    for_error: dict[str, int | None] = field(default_factory=dict)  # combiner -> n


def plan(
    scene: Scenario,
    *,
    target: float = 0.95,
    error: float | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Smallest n for exact recovery with probability ``target``, by simulation of uploads.

    Local models are drawn from their normal law around the truth, with the curvature of rows drawn
    as the scenario says, and clustered. ``error`` asks besides for the smallest n at which the
    models' relative squared error is no larger.
    """
    if not 0.5 <= target < 1:
        raise ValueError(f"target={target!r} is a probability to reach: say 0.5 <= target < 1.")
    if error is not None and not error > 0:
        raise ValueError(f"error={error!r} is a relative squared error: say one > 0.")
    points: dict[int, Point] = {}

    def look(n: int) -> Point:
        if n not in points:
            if progress is not None:
                progress(f"simulating n = {n:,}")
            points[n] = evaluate(scene, n, seed=seed)
        return points[n]

    # Small problems one after the other: threads would only wait for each other.
    with threadpool_limits(1):
        _scan(scene, look, target)
        _refine(look, points, target)
        if error is not None:
            _reach_error(look, points, error)
    ordered = [points[n] for n in sorted(points)]
    return Plan(
        scene,
        target,
        ordered,
        {method: smallest_for(ordered, method, target) for method in METHODS},
        paper_thresholds(scene),
        error,
        {} if error is None else {c: _smallest_error(ordered, c, error) for c in COMBINERS},
    )


def evaluate(scene: Scenario, n: int, *, seed: int = 0, real: int = 12) -> Point:
    """Simulate federations with ``n`` rows per user. Each n has a random stream of its own."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(n,)))
    n_trials = max(40, min(300, USERS // scene.n_users))
    trials = draw_trials(scene, n, n_trials, rng)
    at = moments(trials.theta, scene.sizes)
    expected = kmeans_expected(at)
    rate, spread = kmeans_rate(trials.theta, at, expected, real=real, seed=seed)
    pairs = int(np.square(scene.sizes).sum())
    some = at.first(max(4, min(CONVEX_TRIALS, CONVEX_PAIRS // pairs)))
    lam = fusing_lambdas(trials.theta[: len(some)], scene.sizes)
    found = {
        "convex": convex_path(SLIGHTLY * lam.least, some),
        "convex-13": convex_guaranteed(lam.sure, some),
    }
    shares = {name: float(values.mean()) for name, values in found.items()}
    return Point(
        n,
        n_trials,
        {"kmeans": rate} | shares,
        {"kmeans": spread} | {k: math.sqrt(p * (1 - p) / len(some)) for k, p in shares.items()},
        _errors(scene, n, trials, expected.would, seed),
    )


def _errors(scene: Scenario, n: int, trials: Trials, right: Bools, seed: int) -> dict[str, float]:
    """Relative squared error of local models, and of both combiners in the groups found."""
    some = min(max(5, ERROR_USERS // scene.n_users), len(trials.theta))
    totals = dict.fromkeys((*COMBINERS, "local"), 0.0)
    size = 0.0
    for t in range(some):
        theta, optima = trials.theta[t], trials.optima[t]
        labels = scene.groups
        if not right[t]:
            labels = number_by_first_user(kmeans_pp(theta, scene.n_clusters, seed=seed).labels)
        models = {
            "mean": average_by_cluster(theta, labels)[labels],
            "precision": _precision(scene, n, theta, trials.curvature(t), labels)[labels],
            "local": theta,
        }
        for name, model in models.items():
            totals[name] += float(np.square(model - optima).sum())
        size += float(np.square(optima).sum())
    return {name: total / size for name, total in totals.items()}


def _precision(scene: Scenario, n: int, theta: Floats, A: Floats, labels: Ints) -> Floats:
    """Pooled quadratic models of each cluster, the penalty counted once, (n_clusters, dim)."""
    H, once = A, np.zeros(scene.dim)
    if scene.penalty is not None:
        once = n * scene.penalty
        H = A + np.diag(once)
    right = sum_by_cluster(np.matmul(H, theta[..., None])[..., 0], labels)
    return solve_symmetric(sum_by_cluster(A, labels) + np.diag(once), right)


# -- where to look ---------------------------------------------------------------------------------


def first_guess(scene: Scenario) -> int:
    """n at which groups are seven standard deviations of a user's model apart, roughly.

    Squared loss needs more rows than parameters besides.
    """
    rng = np.random.default_rng(0)
    least = scene.dim + 2
    D = scene.separation()
    if not math.isfinite(D):
        return 2 * least
    rows = scene.draw_rows(0, 2_000, rng)
    power = float(np.square(rows).mean()) * (1.0 if not scene.loss.classification else 0.2)
    return max(least, min(CEILING, round(scene.dim + 50 * scene.dispersion / (power * D**2))))


def _scan(scene: Scenario, look: Callable[[int], Point], target: float) -> None:
    """Look at n in steps of 1.6, from one that fails up to one that is beyond doubt."""
    least = scene.dim + 2
    start = first_guess(scene)
    if scene.n_clusters == 1:
        for n in (start, 2 * start, 4 * start):
            look(n)
        return
    n = start
    while n > least and look(n).recovery["kmeans"] > 0.5 * target:
        n = max(least, int(n / STEP))
    n = start
    sure = 1 - (1 - target) / 3
    while n < min(CEILING, FAR * start):  # beyond, it is not noise that hides the groups
        point = look(n)
        if min(point.recovery[name] for name in ("kmeans", "convex-13")) >= sure:
            return
        # Eq. (13) asks for far more than the methods need: longer steps, and not for ever.
        done = min(point.recovery[name] for name in ("kmeans", "convex")) >= sure
        if done and n > 60 * start:
            return
        n = math.ceil(n * (STEP**1.5 if done else STEP))


def _refine(look: Callable[[int], Point], points: dict[int, Point], target: float) -> None:
    """A few more n where each method crosses the target."""
    between = {"kmeans": (0.3, 0.6, 0.85), "convex": (0.4, 0.7), "convex-13": (0.35, 0.7)}
    for method, shares in between.items():
        below = [n for n, p in points.items() if p.recovery[method] < target]
        above = [n for n, p in points.items() if p.recovery[method] >= target]
        if not below or not above or min(above) <= max(below):
            continue
        low, high = max(below), min(above)
        for share in shares:
            look(round(low * (high / low) ** share))


def _reach_error(look: Callable[[int], Point], points: dict[int, Point], error: float) -> None:
    """Go on until the better combiner is below ``error``; far beyond, errors fall like 1 / n,
    unless users of a group differ: then they stop falling, and so does the search."""
    before = math.inf
    while True:
        last = points[max(points)]
        best = min(last.error[c] for c in COMBINERS)
        if best <= error or last.n >= CEILING or best > 0.9 * before:
            return
        before = best
        look(min(CEILING, math.ceil(last.n * min(max(1.2 * best / error, STEP), 30.0))))


# -- reading the curve -----------------------------------------------------------------------------


def smallest_for(points: list[Point], method: str, target: float) -> int | None:
    """Smallest n with recovery of at least ``target``, from a smooth curve through the points.

        recovery(n) = exp(-exp(a - b log n))

    fitted by likelihood to the points within a factor 2.5 of the crossing: with users failing
    independently at a rate that falls as a power of n this is its form, and a point that is off by
    chance moves the answer little.
    """
    good = [p.n for p in points if p.recovery[method] >= target]
    if not good:
        return None
    bad = [p.n for p in points if p.recovery[method] < target]
    crossing = min((n for n in good if n > max(bad, default=0)), default=max(p.n for p in points))
    near = [p for p in points if crossing / 2.5 <= p.n <= 2.5 * crossing]
    if not any(p.recovery[method] < target for p in near):
        return crossing
    x = np.log([p.n for p in near]) - math.log(crossing)
    rate = np.array([p.recovery[method] for p in near])
    weight = np.array([p.trials for p in near])

    def misfit(ab: Floats) -> float:
        fail = np.exp(np.clip(ab[0] - np.exp(ab[1]) * x, -30, 6))
        return float(weight @ (rate * fail - (1 - rate) * np.log(-np.expm1(-fail) + 1e-300)))

    a, log_b = minimize(misfit, [math.log(-math.log(target)), 1.5], method="Nelder-Mead").x
    shift = (a - math.log(-math.log(target))) / math.exp(log_b)
    low, high = min(p.n for p in near), max(p.n for p in near)
    return int(np.clip(math.ceil(crossing * math.exp(shift)), low, high))


def _smallest_error(points: list[Point], combiner: str, error: float) -> int | None:
    """n at which the error falls to ``error`` for good, between the points on a log-log line."""
    values = [p.error[combiner] for p in points]
    if values[-1] > error:
        return None
    at = max((i for i, v in enumerate(values) if v > error), default=-1)
    if at < 0:
        return points[0].n
    (n0, e0), (n1, e1) = ((points[i].n, values[i]) for i in (at, at + 1))
    share = math.log(e0 / error) / math.log(e0 / e1)
    return math.ceil(n0 * (n1 / n0) ** share)


def paper_thresholds(scene: Scenario, *, seed: int = 0) -> dict[str, int]:
    """The n that Theorem 1 asks for: "ODCL-KM" (c = 100) and "ODCL-CC"; {} where not known.

    Constants of Section 2 with bounds that hold for 999 of 1,000 rows and the radius of the
    largest of the groups' models. Worst cases multiply up: expect astronomical numbers.
    """
    from odcl.theory import problem_constants, sample_ratio_cc, sample_ratio_km, smallest_n

    bounds = scene.paper
    if bounds is None or scene.n_clusters == 1:
        return {}
    rng = np.random.default_rng(seed)
    radius = float(np.linalg.norm(scene.draw_centers(rng), axis=1).max())
    target = None
    if bounds.target is not None:
        target = radius * bounds.row_norm + (bounds.noise or 0.0)
    try:
        constants = problem_constants(
            scene.loss,
            n_features=scene.dim,
            row_norm=max(bounds.row_norm, math.sqrt(scene.dim * bounds.least_eigenvalue)),
            radius=max(radius, 1 / 6),
            least_eigenvalue=bounds.least_eigenvalue,
            target=target,
            noise=bounds.noise,
        )
    except (ValueError, OverflowError):  # Poisson rates beyond floating point
        return {}
    m, smallest, D = scene.n_users, int(scene.sizes.min()), scene.separation()
    if not math.isfinite(constants.M):
        return {}
    return {
        "ODCL-KM": smallest_n(sample_ratio_km(m, smallest, constants.M, D)),
        "ODCL-CC": smallest_n(sample_ratio_cc(m, smallest, constants.M, D)),
    }
