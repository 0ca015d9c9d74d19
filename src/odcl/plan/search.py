"""The smallest n for what one wants: few n are simulated, where something happens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from sklearn.isotonic import isotonic_regression
from threadpoolctl import threadpool_limits

from odcl._typing import Floats
from odcl.plan.scenario import Scenario, paper_thresholds, scenario
from odcl.plan.simulate import TRIALS, Point, combiners, default_finds, evaluate

METHODS = {
    "default": "the default method (number of groups not given)",
    "kmeans": "K-means++ (number of groups given)",
    "convex": "convex clustering, best lambda",
}
CURVES = ("kmeans", "convex")  # simulated at every point
MOST_SURE = 0.99
CEILING = 10_000_000  # rows per user at which a plan ends
STEP = 1.6  # between the n of the first look
FAR = 1000  # times the first guess: where the search for the groups ends
WIDE = 10  # times the first guess: from here on steps are longer
LONG_STEP, FLOORED = 4, 0.9  # an error that has more than this left after such a step has settled

# Runs of the default method: how many, and how n moves from batch to batch.
MOST_RUNS, FEWEST_RUNS = 40, 10
BATCH = 5  # runs for one n; all five succeed half of the time where 87 in 100 do
SECONDS = 5.0  # for all runs, roughly
FEWEST_ROWS = 3  # of squared loss, with the default method
MOST_PARAMETERS = 100  # users send their curvature up to here
FIRST_MOVE, LEAST_MOVE, MOST_MOVE = math.log(1.3), math.log(1.06), math.log(3.0)


# From shares at a few n to the smallest n for a probability.
NEAR = 2.0  # points within this factor of the crossing are fitted
FINE = 241  # values of n that are weighed against each other
# How fast failures fall, as a power of n: 6 to 13 in what we simulated. The prior says so weakly;
# a curve with few runs is expected to be about as steep as one with many, rather flatter.
POWERS, USUAL, DOUBT = np.geomspace(2.0, 80.0, 41), 9.0, 0.8
FLATTER, ALIKE = 0.75, 0.5
SHOWN = 3.0  # failures expected at the target from which no failure is evidence


@dataclass(frozen=True)
class Batch:
    """Some rounds of the default method with n rows per user."""

    n: int
    runs: int
    found: int  # times it gave exactly the true groups


@dataclass(frozen=True, eq=False)
class Crossing:
    """The n for a probability, and the curve around it."""

    n: int
    low: int  # 95 % interval
    high: int
    target: float
    log_n: Floats | None = None  # (FINE,), where there is a curve: candidates
    weight: Floats | None = None  # (FINE, len(POWERS)), their posterior

    @property
    def power(self) -> float:
        """How fast failures fall with n; what is usual where the curve does not tell."""
        if self.weight is None:
            return USUAL
        return float(np.exp(self.weight.sum(axis=0) @ np.log(POWERS)))

    def chance(self, n: float) -> float | None:
        """Probability at n on the smooth curve; None: nothing is known so far below."""
        if self.log_n is None or self.weight is None:
            return 1.0 if n >= self.n else None
        return _chance(math.log(n), self.log_n, self.weight, self.target)

    def covers(self, n: float) -> bool:
        """Is n near enough to the crossing that the curve was fitted there?"""
        return self.log_n is not None and self.log_n[0] <= math.log(n) <= self.log_n[-1]


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
    for_error: dict[str, int | None] = field(default_factory=dict)  # by combiner; None: never
    beyond: int | None = None  # about the n that is needed, where it is beyond the ceiling

    @property
    def smallest(self) -> dict[str, int | None]:
        """Method -> smallest n for the target; None: beyond the largest n simulated."""
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
    as the scenario says (default: the paper's linear set-up), and clustered. ``error`` also asks
    for the smallest n at which the models' relative squared error is no larger.
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
    if error is not None and not error > 0:
        raise ValueError(f"error={error!r} is a relative squared error: say a number > 0.")
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
                    if scene.loss.name == "squared" and start <= 2 * scene.dim:
                        start = min(start, scene.dim)  # data terms need no model alone
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
    """The n that were simulated, once each."""

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
    n = start
    while n <= min(CEILING, FAR * start):  # beyond, it is not noise that hides the groups
        recovery = simulated.at(n).recovery
        if min(recovery.values()) >= sure:
            return
        n = math.ceil(n * STEP ** (2.0 if n > WIDE * start else 1.0))


def _refine(simulated: _Simulated, target: float) -> None:
    """A few more n where each method crosses the target."""
    between = {"kmeans": (0.35, 0.75), "convex": (0.6,)}
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


# -- from shares to an n ---------------------------------------------------------------------------


def crossing(
    n: Sequence[float],
    share: Sequence[float],
    weight: Sequence[float],
    target: float,
    *,
    like: Crossing | None = None,
) -> Crossing | None:
    """Smallest n with a probability of ``target``; None where no simulated n reaches it.

        probability(n) = exp(-f (n / n_target)^-b),    f = -log(target)

    the law if users fail independently at a rate that falls as a power of n. All n_target and b
    on a grid are weighed by the likelihood of the points near the crossing (``weight`` is the
    number of federations behind each share). The answer is where their mean curve reaches the
    target, and its interval holds 95 % of the n_target.
    Failures are expected to fall nearly as fast as on the curve ``like``.
    """
    order = np.argsort(n, kind="stable")
    at, p, w = (np.asarray(x, dtype=np.float64)[order] for x in (n, share, weight))
    # One point off by chance must not move the crossing: shares are first put in order. The last
    # of them may fall short of the target by chance as well.
    rising = np.asarray(isotonic_regression(p, sample_weight=w))
    top = float(rising[-1])
    short = 2 * math.sqrt(target * (1 - target) / float(w[rising == top].sum()))
    if top < target - short:
        return None
    reached = int(np.argmax(rising >= min(target, top) - 1e-9))
    first, below = float(at[reached]), float(at[max(reached - 1, 0)])
    # Few runs without a failure do not show a chance of the target: then the prior speaks too.
    if reached == 0 and top >= target and w[0] * (1 - target) >= SHOWN:
        return Crossing(math.ceil(first), math.ceil(first), math.ceil(first), target)
    near = (at >= below / NEAR) & (at <= NEAR * first)
    log_n = np.linspace(math.log(below / NEAR), math.log(first * NEAR), FINE)
    usual, doubt = (USUAL, DOUBT) if like is None else (FLATTER * like.power, ALIKE)
    log_weight = np.tile(-0.5 * (np.log(POWERS / usual) / doubt) ** 2, (FINE, 1))
    for x, hit, count in zip(np.log(at[near]), p[near], w[near], strict=True):
        fail = _failures(x - log_n, target)
        log_weight += count * ((1 - hit) * np.log(-np.expm1(-fail)) - hit * fail)
    joint = np.exp(log_weight - log_weight.max())
    joint /= joint.sum()
    each = joint.sum(axis=1)
    low, high = np.interp([0.025, 0.975], np.cumsum(each), log_n)
    some = log_n[::5]
    curve = [_chance(x, log_n, joint, target) for x in some]
    middle = math.ceil(math.exp(float(np.interp(target, curve, some))) - 1e-9)
    ends = max(math.floor(math.exp(low)), math.ceil(at[0])), math.ceil(math.exp(high))
    return Crossing(middle, min(ends[0], middle), max(ends[1], middle), target, log_n, joint)


def _chance(x: float, log_n: Floats, weight: Floats, target: float) -> float:
    """The mean curve at log n = x."""
    return float((weight * np.exp(-_failures(x - log_n, target))).sum())


def _failures(log_ratio: Floats | float, target: float) -> Floats:
    """f (n / n_target)^-b for all b, (..., len(POWERS))."""
    exponent = np.clip(-np.asarray(log_ratio)[..., None] * POWERS, -60.0, 8.0)
    return np.asarray(-math.log(target) * np.exp(exponent))


# -- a wanted error --------------------------------------------------------------------------------


def _rows_for_error(simulated: _Simulated, error: float) -> dict[str, int | None]:
    """n at which the relative squared error falls to ``error``, by combiner; None: never.

    Larger n are simulated until every error is small enough, or more rows no longer help.
    """
    names, last = combiners(simulated.scene), simulated.points[-1]
    while last.n < CEILING and max(last.error[name] for name in names) > error:
        before, last = last, simulated.at(min(LONG_STEP * last.n, CEILING))
        if all(last.error[name] > FLOORED * before.error[name] for name in names):
            break
    return {name: _rows(simulated.points, name, error) for name in names}


def _rows(points: list[Point], name: str, error: float) -> int | None:
    """n for one combiner, on a log-log line between the points around it."""
    values = [p.error[name] for p in points]
    if values[-1] > error:
        return None
    at = max((i for i, v in enumerate(values) if v > error), default=-1)
    if at < 0:
        return points[0].n
    (n0, e0), (n1, e1) = ((points[i].n, values[i]) for i in (at, at + 1))
    share = math.log(e0 / error) / math.log(e0 / e1)
    return math.ceil(n0 * (n1 / n0) ** share)
