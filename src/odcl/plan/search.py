"""Which n to look at: few, and where something happens."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from odcl.plan.point import TRIALS, Point, combiners, evaluate
from odcl.plan.scenario import Scenario

STEP = 1.6  # between the n of the first look
CEILING = 10_000_000  # rows per user: nobody has more
FAR = 1000  # times the first guess: where the search for the groups ends
WIDE = 10  # times the first guess: from here on steps are longer
GUARANTEE = 60  # times the first guess: how far Eq. (13) is followed
FLOORED = 1.05  # an error within this of where it stops falling is not reached
DONE_TRIALS = 60  # where only Eq. (13) is still open
SETTLED = 10  # rows a parameter from which errors fall like 1 / n


class Looks:
    """The n that were looked at, each simulated once."""

    def __init__(
        self, scene: Scenario, seed: int, progress: Callable[[str], None] | None = None
    ) -> None:
        self.scene, self.seed, self.progress = scene, seed, progress
        self.points: dict[int, Point] = {}

    def at(self, n: int, most: int = TRIALS) -> Point:
        if n not in self.points:
            if self.progress is not None:
                self.progress(f"simulating n = {n:,}")
            self.points[n] = evaluate(self.scene, n, seed=self.seed, most=most)
        return self.points[n]

    @property
    def ordered(self) -> list[Point]:
        return [self.points[n] for n in sorted(self.points)]


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
    wanted = 50 * scene.dispersion / max(power * D**2, 1e-300)
    return max(least, round(scene.dim + min(wanted, 1e300)))


def scan(looks: Looks, target: float) -> None:
    """Look at n in steps of 1.6, from one that fails up to one that is beyond doubt."""
    scene = looks.scene
    least, start = scene.dim + 2, first_guess(scene)
    if start > CEILING:
        for share in (100, 10, 1):
            looks.at(CEILING // share)
        return
    if scene.n_clusters == 1:
        for n in (start, 2 * start, 4 * start):
            looks.at(n)
        return
    n = start
    while n > least and looks.at(n).recovery["kmeans"] > 0.5 * target:
        n = max(least, int(n / STEP))
    looks.at(n)
    _upwards(looks, start, 1 - (1 - target) / 3)


def _upwards(looks: Looks, start: int, sure: float) -> None:
    """From ``start`` until every method is sure, or more rows no longer help."""
    n, done = start, False
    while n <= min(CEILING, FAR * start):  # beyond, it is not noise that hides the groups
        recovery = looks.at(n, DONE_TRIALS if done else TRIALS).recovery
        done = min(recovery[name] for name in ("kmeans", "convex")) >= sure
        # Eq. (13) asks for far more than the methods need: longer steps, and not for ever.
        if done and (recovery["convex-13"] >= sure or n > GUARANTEE * start):
            return
        power = 2.5 if done else 2.0 if n > WIDE * start else 1.0
        n = math.ceil(n * STEP**power)


def refine(looks: Looks, target: float) -> None:
    """A few more n where each method crosses the target."""
    between = {"kmeans": (0.35, 0.75), "convex": (0.6,), "convex-13": (0.5,)}
    for method, shares in between.items():
        below = [n for n, p in looks.points.items() if p.recovery[method] < target]
        above = [n for n, p in looks.points.items() if p.recovery[method] >= target]
        if not below or not above or min(above) <= max(below):
            continue
        low, high = max(below), min(above)
        for share in shares:
            looks.at(round(low * (high / low) ** share), TRIALS if method == "kmeans" else 100)


# -- a wanted error --------------------------------------------------------------------------------


def rows_for_error(looks: Looks, error: float) -> dict[str, int | None]:
    """n at which the relative squared error falls to ``error``, by combiner; None: never.

    Where the groups are found, an error is floor + c / n: the floor is zero unless users of a
    group differ or a penalty draws their models in. Beyond the curve it is taken from this law.
    """
    scene = looks.scene
    last = max(looks.points)
    while last < SETTLED * scene.dim:
        last = 4 * last
        looks.at(last)
    names = combiners(scene)
    floors = dict.fromkeys(names, 0.0)
    if scene.tau > 0 or scene.penalty is not None:
        floors = _floors(looks, last)
    last = max(looks.points)
    found = {name: _rows(looks.ordered, name, error, floors[name]) for name in names}
    for n in [n for n in found.values() if n is not None and last < n <= CEILING]:
        looks.at(n)  # so that the curve ends where it was asked for
    return found


def _floors(looks: Looks, last: int) -> dict[str, float]:
    """Where errors stop falling, from the last two n: e = floor + c / n."""
    far = looks.at(20 * last)
    near = looks.points[last]
    shrink = near.n / far.n
    floors = {}
    for name in combiners(looks.scene):
        e0, e1 = near.error[name], far.error[name]
        floor = (e1 - shrink * e0) / (1 - shrink)
        floors[name] = floor if floor > 0.1 * e1 else 0.0  # less is chance
    return floors


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
