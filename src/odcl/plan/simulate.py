"""Federations drawn from the law of users' data terms: what n rows per user give."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from odcl._typing import Floats, Ints
from odcl.clustering.labels import same_partition
from odcl.diagnose.own_models import solve_symmetric
from odcl.mixed.mixture import Quadratics
from odcl.plan.scenario import Scenario
from odcl.risk.loss import Loss, symmetric, weighted_gram

# This many curvatures are drawn for each n and dealt out to the users of all trials. Near n = dim
# they have heavy tails, and one user in two thousand decides about a recovery of 95 %. With more
# parameters the tails are thinner, and fewer curvatures are enough.
ROWS, CURVATURE_NUMBERS = 100_000, 2_000_000
# A curvature of more rows than this is one of this many, scaled: a user's own part is small then.
MOST_ROWS, ROWS_PER_PARAMETER = 2_000, 100
POOLS = 40  # of curvatures, one per group and world
WORLDS = 4  # sets of models for which curvatures are drawn, where these depend on the model
BEYOND = 4  # groups more than the true ones that the default method may find


# -- drawing data terms ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SimulatedTerms:
    """Data terms of many federations with one n: users' curvatures A and slopes b.

        b = A @ optimum + sqrt(phi) A^(1/2) @ e,   e ~ N(0, I)

    the law of X'y given X: exact for squared loss with normal noise, the asymptotic normal law
    elsewhere.
    """

    slopes: Floats  # (trials, n_users, dim)
    drawn: Ints  # (trials, n_users), which of the curvatures
    curvatures: Floats  # (size, dim, dim)

    def curvature(self, trial: int) -> Floats:
        """A of the users of one trial, (n_users, dim, dim)."""
        return np.asarray(self.curvatures[self.drawn[trial]])


def draw_trials(
    scene: Scenario, n: int, n_trials: int, rng: Generator, *, most: int
) -> SimulatedTerms:
    """Data terms of ``n_trials`` federations whose users have ``n`` rows each.

    At ``most`` so many curvatures are drawn for them.
    """
    if not scene.loss.curvature_varies:
        return _world(scene, n, n_trials, 0, rng, most)
    # Many groups are many models already: one world of them will do.
    worlds = min(WORLDS, max(1, POOLS // len(scene.sizes)), n_trials)
    parts = [len(part) for part in np.array_split(np.arange(n_trials), worlds)]
    made = [_world(scene, n, part, worlds, rng, most) for part in parts]
    for i, world in enumerate(made):  # each has curvatures of its own
        world.drawn[:] += i * len(world.curvatures)
    return SimulatedTerms(
        *map(np.concatenate, zip(*(vars(world).values() for world in made), strict=True))
    )


def _world(
    scene: Scenario, n: int, count: int, worlds: int, rng: Generator, most: int
) -> SimulatedTerms:
    """Trials that share their curvatures and, in one of several ``worlds``, the groups' models."""
    groups, dim = scene.groups, scene.dim
    n_sets = 1 if worlds else count
    centers = np.stack([scene.draw_centers(rng) for _ in range(n_sets)])
    optima = np.broadcast_to(centers[:, groups], (count, len(groups), dim)).copy()
    if scene.tau > 0:
        values, vectors = np.linalg.eigh(scene.spread)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        optima += rng.standard_normal(optima.shape) @ root.T
    split = scene.pilot is not None or worlds > 0  # a pool of curvatures for each group
    size = min(most, ROWS // min(n, _rows_drawn(dim)), CURVATURE_NUMBERS // dim**2)
    size = max(20, size // (len(scene.sizes) * max(worlds, 1) if split else 1))
    pools = [
        _curvatures(scene, k, centers[0, k], n, size, rng)
        for k in range(len(scene.sizes) if split else 1)
    ]
    pool_of = groups if split else np.zeros_like(groups)
    drawn = rng.integers(size, size=(count, len(groups)))
    slopes = np.empty_like(optima)
    for k, A in enumerate(pools):
        own = np.flatnonzero(pool_of == k)
        blur = math.sqrt(scene.dispersion) * _roots(A)
        for t in range(count):  # a trial at a time stays in the cache
            which, noise = drawn[t, own], rng.standard_normal((len(own), dim, 1))
            b = np.matmul(A[which], optima[t, own, :, None]) + np.matmul(blur[which], noise)
            slopes[t, own] = b[..., 0]
    return SimulatedTerms(slopes, drawn + size * pool_of, np.concatenate(pools))


def _roots(A: Floats) -> Floats:
    """L with L L' = A; rows that leave a direction unseen say nothing of it."""
    mean = np.trace(A, axis1=1, axis2=2) / A.shape[1]
    root = np.linalg.cholesky(A + 1e-12 * mean[:, None, None] * np.eye(A.shape[1]))
    singular = np.square(np.diagonal(root, axis1=1, axis2=2)).min(axis=1) < 1e-9 * mean
    values, vectors = np.linalg.eigh(A[singular])
    seen = values > 1e-9 * values[:, -1:]
    root[singular] = vectors * np.sqrt(np.where(seen, values, 0.0))[:, None, :]
    return root


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
    scene: Scenario, n: int, trials: SimulatedTerms, t: int, rng: Generator
) -> Quadratics:
    """The data terms of the users of one trial, as the server sees them.

    Coordinates are scaled by the summed curvature, and models are relative to the pooled one; for
    squared loss the target is in units of what that leaves, and the users' residual sums of squares
    are drawn.
    """
    A, b = trials.curvature(t), trials.slopes[t]
    m, noisy = scene.n_users, scene.loss.has_dispersion
    dof = np.full(m, float(max(n - scene.dim, 0))) if noisy else np.zeros(m)
    pure = scene.dispersion * np.where(dof > 0, rng.chisquare(np.maximum(dof, 1.0)), 0.0)
    uu = (b * solve_symmetric(A, b)).sum(axis=1) + pure
    around = solve_symmetric(A.sum(axis=0)[None], b.sum(axis=0)[None])[0]
    uu = uu - 2 * b @ around + (A @ around) @ around
    unit = math.sqrt(max(float(uu.sum()) / (m * n), 1e-300)) if noisy else 1.0
    scale = np.sqrt(np.maximum(np.diagonal(A.sum(axis=0)) / (m * n), 1e-300))
    A, b = A / np.outer(scale, scale), (b - A @ around) / (scale * unit)
    return Quadratics(A, b, uu / unit**2, np.full(m, float(n)), dof, pure / unit**2, noisy)
