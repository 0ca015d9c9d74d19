"""The smallest n for what one wants: the default method is run where it begins to work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from sklearn.isotonic import isotonic_regression
from threadpoolctl import threadpool_limits

from odcl._typing import Floats
from odcl.plan.scenario import Scenario, paper_thresholds, scenario, shared_out
from odcl.plan.simulate import default_finds

MOST_SURE = 0.99
CEILING = 10_000_000  # rows per user at which a plan ends
FAR = 1000  # times the first guess: where the search for the groups ends

# Runs of the method: how many, and how n moves from batch to batch.
MOST_RUNS, FEWEST_RUNS = 40, 10
BATCH = 5  # runs for one n; all five succeed half of the time where 87 in 100 do
SECONDS, MOST_SECONDS = 6.0, 30.0  # for all runs, roughly; with more, fewer users are simulated
FIXED, EACH = 0.05, 2.5e-4  # seconds of a run, and for a user, group and 20 parameters: measured
MOST_NUMBERS = 4_000_000  # users times dim^2: 10,000 users of 20 parameters
FEWEST_USERS = 2  # of a group, where not all users are simulated
FEWEST_ROWS = 3  # of squared loss
MOST_PARAMETERS = 100  # users send their curvature up to here
FIRST_MOVE, LEAST_MOVE, MOST_MOVE = math.log(1.3), math.log(1.06), math.log(3.0)

# From shares at a few n to the smallest n for a probability.
NEAR = 2.0  # points within this factor of the crossing are fitted
FINE = 241  # values of n that are weighed against each other
# How fast failures fall, as a power of n: 6 to 13 in what we simulated. The prior says so weakly.
POWERS, USUAL, DOUBT = np.geomspace(2.0, 80.0, 41), 9.0, 0.8


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
    log_n: Floats  # (FINE,), candidates
    weight: Floats  # (FINE, len(POWERS)), their posterior

    def chance(self, n: float) -> float:
        """Probability at n on the smooth curve."""
        return _chance(math.log(n), self.log_n, self.weight, self.target)


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """How many rows per user a federation needs. ``print`` it for the whole answer."""

    scene: Scenario
    target: float  # probability of exact recovery that is wanted
    batches: list[Batch]  # runs, in their order
    simulated: int  # users of a simulated federation: all, or fewer of the same kind
    found: Crossing | None  # None: not reached, or one group
    paper: dict[str, int] = field(default_factory=dict)  # the paper's threshold, by method
    beyond: int | None = None  # about the n that is needed, where it is beyond the ceiling

    @property
    def rows(self) -> int | None:
        """What to collect; None: beyond the largest n simulated."""
        return None if self.found is None else self.found.n

    def chance(self, n: int) -> float | None:
        """Chance of exactly the true groups; None where they are out of reach."""
        return None if self.found is None else self.found.chance(n)

    def __str__(self) -> str:
        from odcl.report.plan import plan_text

        return plan_text(self)

    def __repr__(self) -> str:
        return (
            f"<Plan: {self.scene.n_users} users in {self.scene.n_clusters} group(s), target "
            f"{self.target:g}, rows={self.rows}>"
        )


def plan(
    scene: Scenario | None = None,
    *,
    target: float = 0.95,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Smallest n for exact recovery with probability ``target``, by simulation of uploads.

    Local models are drawn from their normal law around the truth, with the curvature of rows drawn
    as the scenario says (default: the paper's linear set-up); the default method, which is not told
    the number of groups, gets their data terms.
    """
    scene = scenario() if scene is None else scene
    if not isinstance(scene, Scenario):
        raise TypeError(
            f"A plan is for a scenario, not for {scene!r}: say odcl.plan.scenario(n_users=60, "
            "n_clusters=3, ...), or odcl.plan.from_pilot(result, federation)."
        )
    if not 0.5 <= target <= MOST_SURE:
        raise ValueError(
            f"target={target!r} is a probability to reach, and some dozen simulated federations "
            f"tell it up to {MOST_SURE}: say 0.5 <= target <= {MOST_SURE}."
        )
    guess, batches, simulated = first_guess(scene), list[Batch](), 0
    # Small problems one after the other: threads would only wait for each other.
    try:
        with threadpool_limits(1):
            if scene.n_clusters > 1 and guess <= CEILING:
                few = within_reach(scene)
                batches = default_batches(few, guess, seed=seed, progress=progress)
                simulated = few.n_users
    except np.linalg.LinAlgError:
        raise ValueError(
            f"Models this far apart ({scene.separation():.2g}) leave rows of the {scene.loss.name} "
            "loss without curvature, so that nothing can be simulated. Say a smaller separation."
        ) from None
    found = None
    if batches:
        shares = [batch.found / batch.runs for batch in batches]
        found = crossing([b.n for b in batches], shares, [b.runs for b in batches], target)
    proved, beyond = paper_thresholds(scene), guess if guess > CEILING else None
    return Plan(scene, target, batches, simulated, found, proved, beyond)


def first_guess(scene: Scenario) -> int:
    """n at which groups are seven standard deviations of a user's model apart, roughly."""
    D = scene.separation()
    if not math.isfinite(D):
        return 2 * scene.least_rows
    rows = scene.draw_rows(0, 2_000, np.random.default_rng(0))
    power = float(np.square(rows).mean()) * (1.0 if not scene.loss.classification else 0.2)
    wanted = 50 * scene.dispersion / max(power * D**2, 1e-300)
    return max(scene.least_rows, round(scene.dim + min(wanted, 1e300)))


# -- runs ------------------------------------------------------------------------------------------


def within_reach(scene: Scenario) -> Scenario:
    """The federation, with fewer users of the same kind where all take too long to simulate."""
    per_user = scene.n_clusters * max(0.5, scene.dim / 20)
    seconds = MOST_SECONDS / FEWEST_RUNS - FIXED
    most = min(int(seconds / (EACH * per_user)), MOST_NUMBERS // scene.dim**2)
    if most < min(FEWEST_USERS * scene.n_clusters, scene.n_users) or scene.dim > MOST_PARAMETERS:
        raise ValueError(
            f"{scene.n_clusters:,} groups with {scene.dim:,} parameters take too long to simulate. "
            "Plan with fewer of them: the n that is needed grows in proportion to the number of "
            "parameters, and with the logarithm of that of groups."
        )
    return scene if scene.n_users <= most else replace(scene, sizes=shared_out(scene.sizes, most))


def runs_for(scene: Scenario) -> int:
    """How many rounds of the default method are simulated in about SECONDS."""
    size = scene.n_users * scene.n_clusters * max(0.5, scene.dim / 20)
    return min(MOST_RUNS, max(FEWEST_RUNS, int(SECONDS / (FIXED + EACH * size))))


def default_batches(
    scene: Scenario, guess: int, *, seed: int = 0, progress: Callable[[str], None] | None = None
) -> list[Batch]:
    """Batches of runs up and down around the n where the method begins to succeed.

    n goes down after a batch without a failure and up after one with, in steps that halve when the
    direction changes: most batches then lie where success is likely and not yet certain. A pilot's
    own n is the first.
    """
    made: list[Batch] = []
    squared, most = scene.loss.name == "squared", min(CEILING, FAR * guess)
    # Data terms of squared loss say what they say with fewer rows than parameters too.
    least = FEWEST_ROWS if squared else scene.least_rows
    start = min(guess, scene.dim) if squared and guess <= 2 * scene.dim else guess
    if scene.pilot is not None:
        start = scene.pilot.n
    n, move, way = min(max(start, least), most), FIRST_MOVE, 0
    for number in range(runs_for(scene) // BATCH):
        if progress is not None:
            progress(f"simulating n = {n:,}")
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
    n: Sequence[float], share: Sequence[float], weight: Sequence[float], target: float
) -> Crossing | None:
    """Smallest n with a probability of ``target``; None where no simulated n reaches it.

        probability(n) = exp(-f (n / n_target)^-b),    f = -log(target)

    the law if users fail independently at a rate that falls as a power of n. All n_target and b
    on a grid are weighed by the likelihood of the points near the crossing (``weight`` is the
    number of federations behind each share). The answer is where their mean curve reaches the
    target, and its interval holds 95 % of the n_target.
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
    near = (at >= below / NEAR) & (at <= NEAR * first)
    log_n = np.linspace(math.log(below / NEAR), math.log(first * NEAR), FINE)
    log_weight = np.tile(-0.5 * (np.log(POWERS / USUAL) / DOUBT) ** 2, (FINE, 1))
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
