"""Federations drawn from the law of local models: what n rows per user give. No rows of users."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.kmeans.kmeanspp import kmeans_pp
from odcl.clustering.labels import number_by_first_user, same_partition, sum_by_cluster
from odcl.diagnose.own_models import solve_symmetric
from odcl.mixed.mixture import Quadratics
from odcl.plan import recovery
from odcl.plan.scenario import Scenario
from odcl.risk.loss import Loss, symmetric, weighted_gram
from odcl.server.combine import average_by_cluster

# This many curvatures are drawn for each n and dealt out to the users of all trials. Near n = dim
# they have heavy tails, and one user in two thousand decides about a recovery of 95 %. With more
# parameters the tails are thinner, and fewer curvatures are enough.
MOST_CURVATURES, ROWS, CURVATURE_NUMBERS = 2_500, 100_000, 2_000_000
# A curvature of more rows than this is one of this many, scaled: a user's own part is small then.
MOST_ROWS, ROWS_PER_PARAMETER = 2_000, 100
POOLS = 40  # of curvatures, one per group and world
WORLDS = 4  # sets of models for which curvatures are drawn, where these depend on the model
# Trials come in blocks that share no curvature, so that differences between blocks include the
# chance in drawing curvatures. A block has at least this many curvatures for each user.
BLOCKS, CURVATURES_PER_USER = 8, 5

TRIALS, FEWEST_TRIALS = 300, 12
TRIAL_NUMBERS = 12_000_000  # users of all trials, times dim^2: 300 of 100 with 20 parameters
CONVEX_TRIALS = 100  # trials that convex clustering is simulated on
CONVEX_PAIRS = 20_000_000  # pairs of users of a group in them
UNSEEN = 3.0  # times the variance of independent trials, where all share their curvatures
SLIGHTLY = 1.02  # above the least lambda that fuses the groups
ERROR_NUMBERS = 400_000  # users of the trials whose models are combined, times dim^2
BEYOND = 4  # groups more than the true ones that the default method may find


# -- drawing uploads -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pool:
    """Users to draw from: what their rows make of a true model.

        theta = keep @ optimum + blur @ e,   e ~ N(0, I)

    the law of a local model given its rows: exact for squared loss with normal noise, the
    asymptotic normal law elsewhere. ``keep`` is H^-1 A (None: the unit matrix) and ``blur`` =
    sqrt(phi) H^-1 A^(1/2), with A the curvature of the user's data term and H that with the
    penalty; without a penalty H^-1 is the pseudo-inverse of A (the model of least norm).
    """

    blur: Floats  # (size, dim, dim)
    keep: Floats | None  # (size, dim, dim)
    A: Floats  # (size, dim, dim)


@dataclass(frozen=True, eq=False)
class SimulatedUploads:
    """Uploads of many federations with one n."""

    optima: Floats  # (trials, n_users, dim)
    theta: Floats  # (trials, n_users, dim)
    drawn: Ints  # (trials, n_users), which of the curvatures
    curvatures: Floats  # (size, dim, dim)
    block: Ints  # (trials,)

    def curvature(self, trial: int) -> Floats:
        """A of the users of one trial, (n_users, dim, dim)."""
        return np.asarray(self.curvatures[self.drawn[trial]])


def draw_trials(
    scene: Scenario, n: int, n_trials: int, rng: Generator, *, most: int = MOST_CURVATURES
) -> SimulatedUploads:
    """Uploads of ``n_trials`` federations whose users have ``n`` rows each.

    ``most`` curvatures are drawn for them.
    """
    if not scene.loss.curvature_varies:
        return _world(scene, n, n_trials, 0, rng, most)
    # Many groups are many models already: one world of them will do.
    worlds = min(WORLDS, max(1, POOLS // len(scene.sizes)), n_trials)
    parts = [len(part) for part in np.array_split(np.arange(n_trials), worlds)]
    made = [_world(scene, n, part, worlds, rng, most) for part in parts]
    for i, world in enumerate(made):  # each has curvatures and blocks of its own
        world.drawn[:] += i * len(world.curvatures)
        world.block[:] += i * BLOCKS
    return SimulatedUploads(
        *map(np.concatenate, zip(*(vars(world).values() for world in made), strict=True))
    )


def _world(
    scene: Scenario, n: int, count: int, worlds: int, rng: Generator, most: int
) -> SimulatedUploads:
    """Trials that share their curvatures and, in one of several ``worlds``, the groups' models."""
    groups, dim = scene.groups, scene.dim
    n_sets = 1 if worlds else count
    centers = np.stack([scene.draw_centers(rng) for _ in range(n_sets)])
    optima = np.broadcast_to(centers[:, groups], (count, len(groups), dim)).copy()
    if scene.tau > 0:
        values, vectors = np.linalg.eigh(scene.spread)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        optima += rng.standard_normal(optima.shape) @ root.T
    split = scene.pilot is not None or worlds > 0  # a pool for each group
    size = min(most, ROWS // min(n, _rows_drawn(dim)), CURVATURE_NUMBERS // dim**2)
    size = max(20, size // (len(scene.sizes) * max(worlds, 1) if split else 1))
    pools = [
        curvature_pool(scene, k, centers[0, k], n, size, rng)
        for k in range(len(scene.sizes) if split else 1)
    ]
    pool_of = groups if split else np.zeros_like(groups)
    crowd = int(np.bincount(pool_of).max())  # users that share a pool
    blocks = min(max(size // (CURVATURES_PER_USER * crowd), 1), BLOCKS, count)
    block = np.arange(count) * blocks // count
    each = size // blocks
    drawn = block[:, None] * each + rng.integers(each, size=(count, len(groups)))
    theta = np.empty_like(optima)
    for k, pool in enumerate(pools):
        own = np.flatnonzero(pool_of == k)
        for t in range(count):  # a trial at a time stays in the cache
            which, kept = drawn[t, own], optima[t, own]
            noise = rng.standard_normal(kept.shape)
            if pool.keep is not None:
                kept = np.matmul(pool.keep[which], kept[..., None])[..., 0]
            theta[t, own] = np.matmul(pool.blur[which], noise[..., None])[..., 0] + kept
    curvatures = np.concatenate([pool.A for pool in pools])
    return SimulatedUploads(optima, theta, drawn + size * pool_of, curvatures, block)


def curvature_pool(
    scene: Scenario, group: int, center: Floats, n: int, size: int, rng: Generator
) -> Pool:
    """Curvatures of ``size`` users with ``n`` rows each, at the group's model."""
    A = _curvatures(scene, group, center, n, size, rng)
    unit, scale = np.eye(scene.dim), np.sqrt(scene.dispersion)
    mean = np.trace(A, axis1=1, axis2=2) / scene.dim  # diagonal entry of each matrix
    ridge = 1e-12 * mean[:, None, None] * unit
    if scene.penalty is not None:
        A += ridge
        inverse = np.linalg.inv(A + n * np.diag(scene.penalty))
        blur = scale * np.matmul(inverse, np.linalg.cholesky(A))
        return Pool(blur, np.matmul(inverse, A), A)
    root = np.linalg.cholesky(A + ridge)
    blur = scale * np.linalg.inv(root).swapaxes(1, 2)
    singular = np.square(np.diagonal(root, axis1=1, axis2=2)).min(axis=1) < 1e-9 * mean
    if not singular.any():
        return Pool(blur, None, A)
    # Rows that leave a direction unseen: the local model is the one of least norm.
    keep = np.broadcast_to(unit, A.shape).copy()
    values, vectors = np.linalg.eigh(A[singular])
    seen = values > 1e-9 * values[:, -1:]
    along = vectors * np.where(seen, 1 / np.sqrt(np.where(seen, values, 1.0)), 0.0)[:, None, :]
    blur[singular] = scale * along
    keep[singular] = np.matmul(vectors * seen[:, None, :], vectors.swapaxes(1, 2))
    return Pool(blur, keep, A)


def _curvatures(
    scene: Scenario, group: int, center: Floats, n: int, size: int, rng: Generator
) -> Floats:
    """A of ``size`` users, (size, dim, dim), a few of them at a time."""
    A = np.empty((size, scene.dim, scene.dim))
    drawn = min(n, _rows_drawn(scene.dim))
    at_once = max(1, ROWS // drawn)
    for start in range(0, size, at_once):
        part = A[start : start + at_once]
        rows = scene.draw_rows(group, len(part) * drawn, rng).reshape(len(part), drawn, -1)
        part[:] = _curvature(scene.loss, rows, center)
    return A if drawn == n else A * (n / drawn)


def _rows_drawn(dim: int) -> int:
    return max(MOST_ROWS, ROWS_PER_PARAMETER * dim)


def _curvature(loss: Loss, rows: Floats, center: Floats) -> Floats:
    """Sum over rows of loss''(x theta) x x', (users, dim, dim); rows (users, n, inputs)."""
    if not loss.curvature_varies:
        return np.matmul(rows.swapaxes(1, 2), rows)
    z = np.matmul(rows, center.reshape(-1, loss.n_outputs))
    # Only Huber's curvature looks at the target: taken as predicted, every row counts.
    y = z[..., 0] if loss.name == "huber" else np.ones(z.shape[:-1])
    return symmetric(weighted_gram(rows.swapaxes(1, 2), loss.curve(z, y)))


# -- the default method: few runs, each a real one -------------------------------------------------


def default_finds(scene: Scenario, n: int, runs: int, *, seed: int, number: int = 0) -> int:
    """In how many of ``runs`` federations the library's default method finds the true groups.

    Nothing short of a run tells what mixed groups would answer: they get the users' data terms.
    ``number`` tells apart calls with the same n.
    """
    from odcl.mixed.search import search

    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(n, 1, number)))
    trials = draw_trials(scene, n, runs, rng, most=8 * scene.n_users)
    # As clusterer="auto", but for numbers of groups far beyond the true one: they win nothing.
    most = scene.n_clusters + BEYOND
    terms = (simulated_terms(scene, n, trials, t, rng) for t in range(runs))
    found = (search(q, max_groups=most).responsibilities.argmax(axis=1) for q in terms)
    return sum(same_partition(labels, scene.groups) for labels in found)


def simulated_terms(
    scene: Scenario, n: int, trials: SimulatedUploads, t: int, rng: Generator
) -> Quadratics:
    """The data terms of the users of one trial, as the server sees them.

    Coordinates are scaled by the summed curvature, and models are relative to the pooled one; for
    squared loss the target is in units of what that leaves, and the users' residual sums of squares
    are drawn.
    """
    A, m, noisy = trials.curvature(t), scene.n_users, scene.loss.has_dispersion
    once = 0.0 if scene.penalty is None else n * np.diag(scene.penalty)
    b = ((A + once) @ trials.theta[t][..., None])[..., 0]
    dof = np.full(m, float(max(n - scene.dim, 0))) if noisy else np.zeros(m)
    pure = scene.dispersion * np.where(dof > 0, rng.chisquare(np.maximum(dof, 1.0)), 0.0)
    uu = (b * solve_symmetric(A, b)).sum(axis=1) + pure
    around = solve_symmetric(A.sum(axis=0)[None], b.sum(axis=0)[None])[0]
    uu = uu - 2 * b @ around + (A @ around) @ around
    unit = math.sqrt(max(float(uu.sum()) / (m * n), 1e-300)) if noisy else 1.0
    scale = np.sqrt(np.maximum(np.diagonal(A.sum(axis=0)) / (m * n), 1e-300))
    A, b = A / np.outer(scale, scale), (b - A @ around) / (scale * unit)
    return Quadratics(A, b, uu / unit**2, np.full(m, float(n)), dof, pure / unit**2, noisy)


# -- everything else, for one n --------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """What n rows per user give."""

    n: int
    trials: dict[str, int]  # federations drawn, by method
    recovery: dict[str, float]  # probability that a method finds exactly the true groups
    spread: dict[str, float]  # standard error of it
    # Squared error of the users' models by the models' squared size, in the median federation:
    error: dict[str, float]  # "local"; mean, pooled in the groups that K-means++ finds; drawn
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
    n_trials = max(FEWEST_TRIALS, min(most, TRIAL_NUMBERS // (scene.n_users * scene.dim**2)))
    trials = draw_trials(scene, n, n_trials, rng)
    at = recovery.true_groups(trials.theta, scene.sizes)
    expected = recovery.kmeans_expected(at)
    more, doubt = recovery.kmeans_correction(trials.theta, at, expected, real=real, seed=seed)
    pairs = int(np.square(scene.sizes).sum())
    count = min(max(4, min(CONVEX_TRIALS, CONVEX_PAIRS // pairs)), n_trials)
    some = np.arange(count) * n_trials // count
    part = trials.theta[some]
    lam, at = recovery.fusing_lambda(part, scene.sizes), recovery.true_groups(part, scene.sizes)
    found = {"kmeans": expected.likely, "convex": recovery.convex_path(SLIGHTLY * lam, at)}
    share = {name: float(values.mean()) for name, values in found.items()}
    spread = {
        name: _spread(values, trials.block if name == "kmeans" else trials.block[some])
        for name, values in found.items()
    }
    share["kmeans"] = min(max(share["kmeans"] + more, 0.0), 1.0)
    spread["kmeans"] = math.hypot(spread["kmeans"], doubt)
    errors, misplaced = _errors(scene, n, trials, expected.likely, seed)
    numbers = {name: len(values) for name, values in found.items()}
    return Point(n, numbers, share, spread, errors, misplaced)


def _spread(found: Bools, block: Ints) -> float:
    """Standard error of a share, from the blocks that share no curvature if there are several."""
    plain = float(found.var()) / len(found)
    _, which = np.unique(block, return_inverse=True)
    size = np.bincount(which)
    if len(size) < 2:
        return math.sqrt(UNSEEN * plain)
    means = np.bincount(which, found) / size
    return math.sqrt(max(plain, float(means.var(ddof=1)) / len(size)))


def combiners(scene: Scenario) -> tuple[str, ...]:
    """Ways to a user's model; one between its own and its group's where users of a group differ."""
    return ("mean", "pooled", "drawn") if scene.tau > 0 else ("mean", "pooled")


def _errors(
    scene: Scenario, n: int, trials: SimulatedUploads, right: Bools, seed: int
) -> tuple[dict[str, float], float]:
    """Relative squared error of every way to a user's model, and the share of misplaced users.

    Errors are those of the median federation: with few rows a single user's model can be far off
    and would dominate a mean over federations.
    """
    some = min(max(2, ERROR_NUMBERS // (scene.n_users * scene.dim**2)), 60, len(trials.theta))
    errors: dict[str, list[float]] = {name: [] for name in (*combiners(scene), "local")}
    misplaced = 0
    for t in range(some):
        theta, optima, labels = trials.theta[t], trials.optima[t], scene.groups
        rows = _DataTerms(scene, n, theta, trials.curvature(t))
        centers = rows.combined(labels)
        nearest = rows.likeliest(centers)
        drawn_to = centers[nearest]  # as the default, which looks at what the rows say
        misplaced += int((nearest != labels).sum())
        if not right[t]:
            labels = number_by_first_user(kmeans_pp(theta, scene.n_clusters, seed=seed).labels)
            centers = rows.combined(labels)
        around = centers[labels]
        models = {"pooled": around, "local": theta}
        models["mean"] = average_by_cluster(theta, labels)[labels]
        if scene.tau > 0:
            models["drawn"] = rows.drawn(drawn_to)
        for name, model in models.items():
            off, size = np.square(model - optima).sum(), np.square(optima).sum()
            errors[name].append(float(off / size))
    typical = {name: float(np.median(values)) for name, values in errors.items()}
    return typical, misplaced / (some * scene.n_users)


class _DataTerms:
    """What the users' rows say of a model: theta' A theta / 2 - theta' b, in units of phi."""

    def __init__(self, scene: Scenario, n: int, theta: Floats, A: Floats) -> None:
        self.scene, self.A = scene, A
        self.once = np.zeros(scene.dim) if scene.penalty is None else n * scene.penalty
        self.b = np.matmul(A + np.diag(self.once), theta[..., None])[..., 0]

    def combined(self, labels: Ints) -> Floats:
        """Pooled quadratic models of each cluster, the penalty counted once, (n_clusters, dim)."""
        curvature = sum_by_cluster(self.A, labels) + np.diag(self.once)
        return solve_symmetric(curvature, sum_by_cluster(self.b, labels))

    def likeliest(self, centers: Floats) -> Ints:
        """The group that explains each user's rows best, as the server decides, (n_users,)."""
        A, b = self.A, self.b[..., None]
        if self.scene.tau > 0:
            S = self.scene.dispersion * np.eye(self.scene.dim) + A @ self.scene.spread
            both = np.linalg.solve(S, np.concatenate([A, b], axis=2))
            A, b = both[..., :-1], both[..., -1:]
        curved = (np.matmul(A, centers.T) * centers.T).sum(axis=1)
        return np.asarray((0.5 * curved - np.matmul(centers, b)[..., 0]).argmin(axis=1))

    def drawn(self, around: Floats) -> Floats:
        """Users' models drawn to their group's as far as users are alike, (n_users, dim)."""
        T = self.scene.spread
        S = self.scene.dispersion * np.eye(self.scene.dim) + self.A @ T
        score = self.b[..., None] - np.matmul(self.A, around[..., None])
        return np.asarray(around + np.matmul(T, np.linalg.solve(S, score))[..., 0])
