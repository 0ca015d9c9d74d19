"""Rows per user: what one gets for n, and the smallest n for what one wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from threadpoolctl import threadpool_limits

from odcl.plan.crossing import Crossing, crossing
from odcl.plan.default import Batch, default_batches
from odcl.plan.point import Point
from odcl.plan.scenario import Scenario, scenario
from odcl.plan.search import CEILING, FAR, Looks, first_guess, refine, rows_for_error, scan
from odcl.plan.thresholds import paper_thresholds

METHODS = {
    "default": "the default method (number of groups not given)",
    "kmeans": "K-means++ (number of groups given)",
    "convex": "convex clustering, best lambda",
    "convex-13": "convex clustering, lambda of Eq. (13)",
}
MOST_SURE = 0.99
CURVES = ("kmeans", "convex", "convex-13")  # simulated at every point


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
        from odcl.plan.text import report

        return report(self)

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
    if error is not None and not error > 0:
        raise ValueError(f"error={error!r} is a relative squared error: say one > 0.")
    looks = Looks(scene, seed, progress)
    guess = first_guess(scene)
    found: dict[str, Crossing | None] = {}
    batches: list[Batch] = []
    # Small problems one after the other: threads would only wait for each other.
    with threadpool_limits(1):
        scan(looks, target)
        if scene.pilot is not None:
            looks.at(max(scene.pilot.n, scene.dim + 2))
        if scene.n_clusters > 1:
            refine(looks, target)
            found = {method: _crossing(looks.ordered, method, target) for method in CURVES}
            if guess <= CEILING:
                batches = _batches(looks, found["kmeans"], guess, progress)
        rows = {} if error is None else rows_for_error(looks, error)
    if batches:
        found = {"default": _of_batches(batches, target, found["kmeans"])} | found
    return Plan(
        scene,
        target,
        looks.ordered,
        found,
        batches,
        paper_thresholds(scene),
        error,
        rows,
        guess if guess > CEILING else None,
    )


def _crossing(points: list[Point], method: str, target: float) -> Crossing | None:
    """The n for the target; trials that share curvatures count as fewer (see Point.dependence)."""
    seen = [x for p in points if (x := p.dependence(method)) is not None]
    dependence = max(1.0, sum(seen) / max(len(seen), 1))
    return crossing(
        [p.n for p in points],
        [p.recovery[method] for p in points],
        [p.trials[method] / dependence for p in points],
        target,
    )


def _batches(
    looks: Looks, near: Crossing | None, guess: int, progress: Callable[[str], None] | None
) -> list[Batch]:
    """Runs of the default method, from where K-means++ begins to succeed."""
    return default_batches(
        looks.scene,
        2 * guess if near is None else near.n,
        least=looks.scene.dim + 2,
        most=min(CEILING, FAR * guess),
        seed=looks.seed,
        progress=progress,
    )


def _of_batches(batches: list[Batch], target: float, like: Crossing | None) -> Crossing | None:
    return crossing(
        [b.n for b in batches],
        [b.found / b.runs for b in batches],
        [b.runs for b in batches],
        target,
        like=like,
    )
