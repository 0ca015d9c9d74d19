"""The smallest n for what one wants: few n are simulated, where something happens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from threadpoolctl import threadpool_limits

from odcl.plan.crossing import Crossing, crossing
from odcl.plan.scenario import Scenario, paper_thresholds, scenario
from odcl.plan.simulate import TRIALS, Point, combiners, default_finds, evaluate

METHODS = {
    "default": "the default method (number of groups not given)",
    "kmeans": "K-means++ (number of groups given)",
    "convex": "convex clustering, best lambda",
    "convex-13": "convex clustering, lambda of Eq. (13)",
}
CURVES = ("kmeans", "convex", "convex-13")  # simulated at every point
MOST_SURE, LEAST_ERROR = 0.99, 1e-200
CEILING = 10_000_000  # rows per user: nobody has more
STEP = 1.6  # between the n of the first look
FAR = 1000  # times the first guess: where the search for the groups ends
WIDE = 10  # times the first guess: from here on steps are longer
GUARANTEE = 60  # times the first guess: how far Eq. (13) is followed
DONE_TRIALS = 60  # where only Eq. (13) is still open
FLOORED = 1.05  # an error within this of where it stops falling is not reached
SETTLED = 10  # rows per parameter from which errors fall like 1 / n

# Runs of the default method: how many, and how n moves from batch to batch.
MOST_RUNS, FEWEST_RUNS = 40, 10
BATCH = 5  # runs for one n; all five succeed half of the time where 87 in 100 do
SECONDS = 5.0  # for all runs, roughly
FEWEST_ROWS = 3  # of squared loss, with the default method
MOST_PARAMETERS = 100  # users send their curvature up to here
FIRST_MOVE, LEAST_MOVE, MOST_MOVE = math.log(1.3), math.log(1.06), math.log(3.0)


@dataclass(frozen=True)
class Batch:
    """Some rounds of the default method with n rows per user."""

    n: int
    runs: int
    found: int  # times it gave exactly the true groups


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """How many rows per user a federation needs. ``print`` it for the whole answer."""

    scene: Scenario
    target: float  # probability of exact recovery that is wanted
    points: list[Point]  # by n
    crossings: dict[str, Crossing | None]  # by method; None: not reached; {} with one group
    batches: list[Batch] = field(default_factory=list)  # runs of the default method
    paper: dict[str, int] = field(default_factory=dict)  # the paper's threshold, by method
    wanted_error: float | None = None
    for_error: dict[str, int | None] = field(default_factory=dict)  # combiner -> n; None: never
    beyond: int | None = None  # about the n that would be needed, where nobody has so many rows

    @property
    def smallest(self) -> dict[str, int | None]:
        """Method -> smallest n for the target; None: not below the largest n looked at."""
        return {name: None if at is None else at.n for name, at in self.crossings.items()}

    @property
    def rows(self) -> int | None:
        """What to collect: n of the default method, or of K-means++ where it was not simulated."""
        found = self.smallest
        return found.get("default", found.get("kmeans"))

    def chance(self, point: Point, method: str) -> float | None:
        """Chance of exactly the true groups: on the smooth curve near the n that is needed, as
        simulated elsewhere; None for the default method where nothing is known of it."""
        found = self.crossings.get(method)
        if method == "default":
            return None if found is None else found.chance(point.n)
        if found is None or not found.covers(point.n):
            return point.recovery[method]
        return found.chance(point.n)

    def __str__(self) -> str:
        from odcl.report.plan import plan_text

        return plan_text(self)

    def __repr__(self) -> str:
        wanted = "" if self.wanted_error is None else f", for_error={self.for_error}"
        return (
            f"<Plan: {self.scene.n_users} users in {self.scene.n_clusters} group(s), target "
            f"{self.target:g}, smallest={self.smallest}{wanted}>"
        )


def plan(
    scene: Scenario | None = None,
    *,
    target: float = 0.95,
    error: float | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Smallest n for exact recovery with probability ``target``, by simulation of uploads.

    Local models are drawn from their normal law around the truth, with the curvature of rows drawn
    as the scenario says (default: the paper's linear set-up), and clustered. ``error`` asks
    besides for the smallest n at which the models' relative squared error is no larger.
    """
    scene = scenario() if scene is None else scene
    if not isinstance(scene, Scenario):
        raise TypeError(
            f"A plan is for a scenario, not for {scene!r}: say odcl.plan.scenario(n_users=60, "
            "n_clusters=3, ...), or odcl.plan.from_pilot(result, federation)."
        )
    if not 0.5 <= target <= MOST_SURE:
        raise ValueError(
            f"target={target!r} is a probability to reach, and some hundred simulated federations "
            f"tell it up to {MOST_SURE}: say 0.5 <= target <= {MOST_SURE}."
        )
    if error is not None and not error > LEAST_ERROR:
        raise ValueError(f"error={error!r} is a relative squared error: say one > {LEAST_ERROR:g}.")
    say = progress or (lambda _: None)
    simulated, guess = _Simulated(scene, seed, say), first_guess(scene)
    found: dict[str, Crossing | None] = {}
    batches: list[Batch] = []
    # Small problems one after the other: threads would only wait for each other.
    try:
        with threadpool_limits(1):
            _scan(simulated, guess, target)
            if scene.pilot is not None:
                simulated.at(max(scene.pilot.n, scene.least_rows))
            if scene.n_clusters > 1:
                _refine(simulated, target)
                found = {name: _crossing(simulated.points, name, target) for name in CURVES}
                if guess <= CEILING:
                    near, most = found["kmeans"], min(CEILING, FAR * guess)
                    start = 2 * guess if near is None else near.n
                    if scene.loss.name == "squared":  # data terms need no model alone
                        start = min(start, max(scene.dim, start // 2))
                    batches = default_batches(scene, start, most=most, seed=seed, progress=say)
            rows = {} if error is None else _rows_for_error(simulated, error)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"Models this far apart ({scene.separation():.2g}) leave rows of the {scene.loss.name} "
            "loss without curvature, so that nothing can be simulated. Say a smaller separation."
        ) from None
    if batches:
        shares, weights = [b.found / b.runs for b in batches], [b.runs for b in batches]
        at = [b.n for b in batches]
        found = {"default": crossing(at, shares, weights, target, like=found["kmeans"])} | found
    proved, beyond = paper_thresholds(scene), guess if guess > CEILING else None
    return Plan(scene, target, simulated.points, found, batches, proved, error, rows, beyond)


def _crossing(points: list[Point], method: str, target: float) -> Crossing | None:
    """The n for the target; trials that share curvatures count as fewer (see Point.dependence)."""
    seen = [x for p in points if (x := p.dependence(method)) is not None]
    dependence = max(1.0, sum(seen) / max(len(seen), 1))
    shares = [p.recovery[method] for p in points]
    weights = [p.trials[method] / dependence for p in points]
    return crossing([p.n for p in points], shares, weights, target)


# -- the curve -------------------------------------------------------------------------------------


class _Simulated:
    """The n that were looked at, each simulated once."""

    def __init__(self, scene: Scenario, seed: int, say: Callable[[str], None]) -> None:
        self.scene, self.seed, self.say = scene, seed, say
        self._points: dict[int, Point] = {}

    def at(self, n: int, most: int = TRIALS) -> Point:
        if n not in self._points:
            self.say(f"simulating n = {n:,}")
            self._points[n] = evaluate(self.scene, n, seed=self.seed, most=most)
        return self._points[n]

    @property
    def points(self) -> list[Point]:
        return [self._points[n] for n in sorted(self._points)]


def first_guess(scene: Scenario) -> int:
    """n at which groups are seven standard deviations of a user's model apart, roughly."""
    D = scene.separation()
    if not math.isfinite(D):
        return 2 * scene.least_rows
    rows = scene.draw_rows(0, 2_000, np.random.default_rng(0))
    power = float(np.square(rows).mean()) * (1.0 if not scene.loss.classification else 0.2)
    wanted = 50 * scene.dispersion / max(power * D**2, 1e-300)
    return max(scene.least_rows, round(scene.dim + min(wanted, 1e300)))


def _scan(simulated: _Simulated, start: int, target: float) -> None:
    """Look at n in steps of 1.6, from one that fails up to one that is beyond doubt."""
    least = simulated.scene.least_rows
    if start > CEILING or simulated.scene.n_clusters == 1:
        far = start > CEILING
        for n in (CEILING // 100, CEILING // 10, CEILING) if far else (start, 2 * start, 4 * start):
            simulated.at(n)
        return
    n = start
    while n > least and simulated.at(n).recovery["kmeans"] > 0.5 * target:
        n = max(least, int(n / STEP))
    simulated.at(n)
    # Upwards until every method is sure, or more rows no longer help.
    sure = 1 - (1 - target) / 3
    n, done = start, False
    while n <= min(CEILING, FAR * start):  # beyond, it is not noise that hides the groups
        recovery = simulated.at(n, DONE_TRIALS if done else TRIALS).recovery
        done = min(recovery[name] for name in ("kmeans", "convex")) >= sure
        # Eq. (13) asks for far more than the methods need: longer steps, and not for ever.
        if done and (recovery["convex-13"] >= sure or n > GUARANTEE * start):
            return
        power = 2.5 if done else 2.0 if n > WIDE * start else 1.0
        n = math.ceil(n * STEP**power)


def _refine(simulated: _Simulated, target: float) -> None:
    """A few more n where each method crosses the target."""
    between = {"kmeans": (0.35, 0.75), "convex": (0.6,), "convex-13": (0.5,)}
    for method, shares in between.items():
        points = simulated.points
        low = max((p.n for p in points if p.recovery[method] < target), default=0)
        high = min((p.n for p in points if p.recovery[method] >= target), default=0)
        if 0 < low < high:
            for share in shares:
                n = round(low * (high / low) ** share)
                simulated.at(n, TRIALS if method == "kmeans" else 100)


# -- the default method ----------------------------------------------------------------------------


def runs_for(scene: Scenario) -> int:
    """How many rounds of the default method can be simulated in a few seconds; 0: too few."""
    if scene.n_clusters == 1 or scene.dim > MOST_PARAMETERS:
        return 0
    size = scene.n_users * scene.n_clusters * max(0.5, scene.dim / 20)
    each = 0.05 + 2.5e-4 * size  # seconds, measured
    runs = min(MOST_RUNS, int(SECONDS / each))
    return runs if runs >= FEWEST_RUNS else 0


def default_batches(
    scene: Scenario,
    start: int,
    *,
    most: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Batch]:
    """Batches of runs up and down around the n where the method begins to succeed.

    n goes down after a batch without a failure and up after one with, in steps that halve when the
    direction changes: most batches then lie where success is likely and not yet certain.
    """
    made: list[Batch] = []
    # Data terms of squared loss say what they say with fewer rows than parameters too.
    least = FEWEST_ROWS if scene.loss.name == "squared" else scene.least_rows
    n, move, way = min(max(start, least), most), FIRST_MOVE, 0
    for number in range(runs_for(scene) // BATCH):
        progress(f"simulating the default method, n = {n:,}")
        found = default_finds(scene, n, BATCH, seed=seed, number=number)
        made.append(Batch(n, BATCH, found))
        before, way = way, -1 if found == BATCH else 1
        if before:
            move = min(1.5 * move, MOST_MOVE) if way == before else max(move / 2, LEAST_MOVE)
        after = min(max(round(n * math.exp(way * move)), least), most)
        if after == n and n in (least, most) and number > 1:
            break
        n = after
    return made


# -- a wanted error --------------------------------------------------------------------------------


def _rows_for_error(simulated: _Simulated, error: float) -> dict[str, int | None]:
    """n at which the relative squared error falls to ``error``, by combiner; None: never.

    Where the groups are found, an error is floor + c / n: the floor is zero unless users of a
    group differ or a penalty draws their models in. Beyond the curve it is taken from this law.
    """
    scene, names = simulated.scene, combiners(simulated.scene)
    near = simulated.points[-1]
    while near.n < SETTLED * scene.dim:
        near = simulated.at(4 * near.n)
    floors = dict.fromkeys(names, 0.0)
    if scene.tau > 0 or scene.penalty is not None:
        far = simulated.at(20 * near.n)
        floors = {name: _floor(near, far, name) for name in names}
    points = simulated.points
    found = {name: _rows(points, name, error, floors[name]) for name in names}
    for n in [n for n in found.values() if n is not None and points[-1].n < n <= CEILING]:
        simulated.at(n)  # so that the curve ends where it was asked for
    return found


def _floor(near: Point, far: Point, name: str) -> float:
    """Where an error stops falling, from the last two n: e = floor + c / n."""
    shrink = near.n / far.n
    floor = (far.error[name] - shrink * near.error[name]) / (1 - shrink)
    return floor if floor > 0.1 * far.error[name] else 0.0  # less is chance


def _rows(points: list[Point], name: str, error: float, floor: float) -> int | None:
    """n for one combiner: between the points on a log-log line, or beyond them by the law."""
    values = [p.error[name] for p in points]
    if values[-1] > error:
        if error <= FLOORED * floor or points[-1].recovery["kmeans"] < 0.5:
            return None
        return math.ceil(points[-1].n * (values[-1] - floor) / (error - floor))
    at = max((i for i, v in enumerate(values) if v > error), default=-1)
    if at < 0:
        return points[0].n
    (n0, e0), (n1, e1) = ((points[i].n, values[i]) for i in (at, at + 1))
    share = math.log(e0 / error) / math.log(e0 / e1)
    return math.ceil(n0 * (n1 / n0) ** share)
