"""What n rows per user give, by simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.kmeans.kmeanspp import kmeans_pp
from odcl.clustering.labels import number_by_first_user, sum_by_cluster
from odcl.plan.recovery import (
    convex_guaranteed,
    convex_path,
    fusing_lambdas,
    kmeans_expected,
    kmeans_surplus,
    moments,
)
from odcl.plan.scenario import Scenario
from odcl.plan.uploads import Trials, draw_trials
from odcl.server.combine import average_by_cluster, solve_symmetric

TRIALS, FEWEST_TRIALS = 300, 12
NUMBERS = 12_000_000  # users drawn for one n, times dim^2: 300 trials of 100 with 20 parameters
CONVEX_TRIALS = 100  # trials that are looked at for convex clustering
CONVEX_PAIRS = 20_000_000  # pairs of users of a group in them
UNSEEN = 3.0  # times the variance of independent trials, where all share their curvatures
SLIGHTLY = 1.02  # above the least lambda that fuses the groups
ERROR_NUMBERS = 400_000  # users of the trials whose models are combined, times dim^2


@dataclass(frozen=True)
class Point:
    """What n rows per user give."""

    n: int
    trials: dict[str, int]  # federations drawn, by method
    recovery: dict[str, float]  # probability that a method finds exactly the true groups
    spread: dict[str, float]  # standard error of it
    # Squared error of the users' models by the models' squared size, in the median federation:
    error: dict[str, float]  # "local"; mean, precision, refit in the groups K-means++ finds
    misplaced: float = 0.0  # share of users whose rows look more like another group's

    def dependence(self, method: str) -> float | None:
        """How many times the variance of independent trials the share has; None: it shows none."""
        p = self.recovery[method]
        alone = p * (1 - p) / self.trials[method]
        return self.spread[method] ** 2 / alone if alone > 0 else None


def evaluate(scene: Scenario, n: int, *, seed: int = 0, most: int = TRIALS) -> Point:
    """Simulate federations with ``n`` rows per user. Each n has a random stream of its own."""
    real = 4 if scene.n_users * scene.n_clusters * scene.dim <= 200_000 else 3  # runs of K-means++
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(n,)))
    n_trials = max(FEWEST_TRIALS, min(most, NUMBERS // (scene.n_users * scene.dim**2)))
    trials = draw_trials(scene, n, n_trials, rng)
    at = moments(trials.theta, scene.sizes)
    expected = kmeans_expected(at)
    more, doubt = kmeans_surplus(trials.theta, at, expected, real=real, seed=seed)
    pairs = int(np.square(scene.sizes).sum())
    count = min(max(4, min(CONVEX_TRIALS, CONVEX_PAIRS // pairs)), n_trials)
    some = np.arange(count) * n_trials // count
    lam = fusing_lambdas(trials.theta[some], scene.sizes)
    found = {
        "kmeans": expected.would,
        "convex": convex_path(SLIGHTLY * lam.least, at.take(some)),
        "convex-13": convex_guaranteed(lam.sure, at.take(some)),
    }
    recovery = {name: float(values.mean()) for name, values in found.items()}
    spread = {
        name: _spread(values, trials.block if name == "kmeans" else trials.block[some])
        for name, values in found.items()
    }
    recovery["kmeans"] = min(max(recovery["kmeans"] + more, 0.0), 1.0)
    spread["kmeans"] = math.hypot(spread["kmeans"], doubt)
    errors, misplaced = _errors(scene, n, trials, expected.would, seed)
    numbers = {name: len(values) for name, values in found.items()}
    return Point(n, numbers, recovery, spread, errors, misplaced)


def _spread(found: Bools, block: Ints) -> float:
    """Standard error of a share: from the blocks that share no curvature, where there are some."""
    plain = float(found.var()) / len(found)
    _, which = np.unique(block, return_inverse=True)
    size = np.bincount(which)
    if len(size) < 2:
        return math.sqrt(UNSEEN * plain)
    means = np.bincount(which, found) / size
    return math.sqrt(max(plain, float(means.var(ddof=1)) / len(size)))


def combiners(scene: Scenario) -> tuple[str, ...]:
    """Ways to a user's model; the refit at the user differs only where users of a group do."""
    return ("mean", "precision", "refit") if scene.tau > 0 else ("mean", "precision")


def _errors(
    scene: Scenario, n: int, trials: Trials, right: Bools, seed: int
) -> tuple[dict[str, float], float]:
    """Relative squared error of every way to a user's model, and the share of misplaced users.

    Errors are those of the median federation: with few rows one user's model can be any distance
    off, and a mean over federations would be ruled by it.
    """
    some = min(max(2, ERROR_NUMBERS // (scene.n_users * scene.dim**2)), 60, len(trials.theta))
    errors: dict[str, list[float]] = {name: [] for name in (*combiners(scene), "local")}
    misplaced = 0
    for t in range(some):
        theta, optima, labels = trials.theta[t], trials.optima[t], scene.groups
        rows = _Rows(scene, n, theta, trials.curvature(t))
        centers = rows.combined(labels)
        misplaced += int((rows.likeliest(centers) != labels).sum())
        if not right[t]:
            labels = number_by_first_user(kmeans_pp(theta, scene.n_clusters, seed=seed).labels)
            centers = rows.combined(labels)
        around = centers[labels]
        models = {
            "mean": average_by_cluster(theta, labels)[labels],
            "precision": around,
            "local": theta,
        }
        if scene.tau > 0:
            models["refit"] = rows.refit(around)
        for name, model in models.items():
            off, size = np.square(model - optima).sum(), np.square(optima).sum()
            errors[name].append(float(off / size))
    typical = {name: float(np.median(values)) for name, values in errors.items()}
    return typical, misplaced / (some * scene.n_users)


class _Rows:
    """What the users' rows say of a model: theta' A theta / 2 - theta' b, in units of phi."""

    def __init__(self, scene: Scenario, n: int, theta: Floats, A: Floats) -> None:
        self.scene, self.A = scene, A
        self.once = np.zeros(scene.dim)
        H = A
        if scene.penalty is not None:
            self.once = n * scene.penalty
            H = A + np.diag(self.once)
        self.b = np.matmul(H, theta[..., None])[..., 0]

    def combined(self, labels: Ints) -> Floats:
        """Pooled quadratic models of each cluster, the penalty counted once, (n_clusters, dim)."""
        curvature = sum_by_cluster(self.A, labels) + np.diag(self.once)
        return solve_symmetric(curvature, sum_by_cluster(self.b, labels))

    def likeliest(self, centers: Floats) -> Ints:
        """The group that explains each user's rows best, as the server decides, (n_users,)."""
        A, b = self.A, self.b[..., None]
        if self.scene.tau > 0:
            S = self.scene.dispersion * np.eye(self.scene.dim) + self.scene.tau**2 * A
            both = np.linalg.solve(S, np.concatenate([A, b], axis=2))
            A, b = both[..., :-1], both[..., -1:]
        curved = (np.matmul(A, centers.T) * centers.T).sum(axis=1)
        return np.asarray((0.5 * curved - np.matmul(centers, b)[..., 0]).argmin(axis=1))

    def refit(self, around: Floats) -> Floats:
        """Users' models drawn to their group's as far as users are alike, (n_users, dim)."""
        strength = self.scene.dispersion / self.scene.tau**2
        system = self.A + strength * np.eye(self.scene.dim)
        return np.linalg.solve(system, (self.b + strength * around)[..., None])[..., 0]
