"""Uploads drawn from the law of the local models: no rows of users, thousands of trials."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.plan.scenario import Scenario
from odcl.risk.loss import Loss, symmetric, weighted_gram

# Curvatures of so many users are drawn for each n and dealt out to the users of all trials. Near
# n = dim they have heavy tails, and one user in two thousand decides about a recovery of 95 %; the
# more parameters, the thinner the tails, and fewer do.
MOST_CURVATURES, ROWS, NUMBERS = 2_500, 100_000, 2_000_000
# A curvature of more rows is one of so many, scaled: n times its mean, and a user's own part of it
# has become small.
MOST_ROWS, ROWS_A_PARAMETER = 2_000, 100
POOLS = 40  # of curvatures, one a group and world
WORLDS = 4  # sets of models for which curvatures are drawn, where these depend on the model
# Trials come in blocks that share no curvature: what differs between blocks shows the chance in the
# drawing of curvatures as well. A block has at least so many curvatures for each user.
BLOCKS, CURVATURES_A_USER = 8, 5


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
    blind: Bools  # (size,), rows that leave a direction unseen


@dataclass(frozen=True, eq=False)
class Trials:
    """Uploads of many federations with one n."""

    optima: Floats  # (trials, n_users, dim)
    theta: Floats  # (trials, n_users, dim)
    drawn: Ints  # (trials, n_users), which curvature of the pool
    pools: list[Pool]  # one, or one a group
    pool_of: Ints  # (n_users,)
    block: Ints  # (trials,)

    def curvature(self, trial: int) -> Floats:
        """A of the users of one trial, (n_users, dim, dim)."""
        A = np.empty((len(self.pool_of), *self.pools[0].A.shape[1:]))
        for k, pool in enumerate(self.pools):
            own = self.pool_of == k
            A[own] = pool.A[self.drawn[trial, own]]
        return A

    def blind(self, trial: int) -> Bools:
        """Users of one trial whose rows leave a direction unseen, (n_users,)."""
        found = np.zeros(len(self.pool_of), dtype=bool)
        for k, pool in enumerate(self.pools):
            own = self.pool_of == k
            found[own] = pool.blind[self.drawn[trial, own]]
        return found


def draw_trials(
    scene: Scenario,
    n: int,
    n_trials: int,
    rng: np.random.Generator,
    *,
    most: int = MOST_CURVATURES,
) -> Trials:
    """Uploads of ``n_trials`` federations whose users have ``n`` rows each.

    ``most`` curvatures are drawn for them.
    """
    varies = scene.loss.curvature_varies
    # Many groups are many models already: one world of them will do.
    worlds = min(WORLDS, max(1, POOLS // len(scene.sizes)), n_trials) if varies else 1
    parts = [len(part) for part in np.array_split(np.arange(n_trials), worlds)]
    drawn = [_world(scene, n, part, worlds if varies else 0, rng, most) for part in parts]
    if worlds == 1:
        return drawn[0]
    # Each world has its own pools: put them behind one another, so that one index finds them.
    k = len(drawn[0].pools)
    size = len(drawn[0].pools[0].A)
    pools = [_joined([world.pools[j] for world in drawn]) for j in range(k)]
    return Trials(
        np.concatenate([w.optima for w in drawn]),
        np.concatenate([w.theta for w in drawn]),
        np.concatenate([w.drawn + i * size for i, w in enumerate(drawn)]),
        pools,
        drawn[0].pool_of,
        np.concatenate([w.block + i * BLOCKS for i, w in enumerate(drawn)]),
    )


def _world(
    scene: Scenario, n: int, n_trials: int, worlds: int, rng: np.random.Generator, most: int
) -> Trials:
    """Trials that share their curvatures and, in one of several ``worlds``, the groups' models."""
    groups, dim = scene.groups, scene.dim
    one_set = worlds > 0
    n_sets = 1 if one_set else n_trials
    centers = np.stack([scene.draw_centers(rng) for _ in range(n_sets)])
    optima = np.broadcast_to(centers[:, groups], (n_trials, len(groups), dim)).copy()
    if scene.tau > 0:
        optima += scene.tau * rng.standard_normal(optima.shape)
    split = scene.rows_differ or one_set
    size = min(most, ROWS // min(n, _rows_drawn(dim)), NUMBERS // dim**2)
    size = max(20, size // (len(scene.sizes) * max(worlds, 1) if split else 1))
    pools = [
        curvature_pool(scene, k, centers[0, k], n, size, rng)
        for k in range(len(scene.sizes) if split else 1)
    ]
    pool_of = groups if split else np.zeros_like(groups)
    crowd = int(scene.sizes.max()) if split else len(groups)  # users that share a pool
    blocks = min(max(size // (CURVATURES_A_USER * crowd), 1), BLOCKS, n_trials)
    block = np.arange(n_trials) * blocks // n_trials
    each = size // blocks
    drawn = block[:, None] * each + rng.integers(each, size=(n_trials, len(groups)))
    theta = np.empty_like(optima)
    for k, pool in enumerate(pools):
        own = np.flatnonzero(pool_of == k)
        for t in range(n_trials):  # a trial at a time stays in the cache
            theta[t, own] = _estimates(pool, drawn[t, own], optima[t, own], rng)
    return Trials(optima, theta, drawn, pools, pool_of, block)


def _estimates(pool: Pool, which: Ints, optima: Floats, rng: np.random.Generator) -> Floats:
    e = rng.standard_normal(optima.shape)
    theta = np.matmul(pool.blur[which], e[..., None])[..., 0]
    if pool.keep is None:
        return theta + optima
    return theta + np.matmul(pool.keep[which], optima[..., None])[..., 0]


def curvature_pool(
    scene: Scenario, group: int, center: Floats, n: int, size: int, rng: np.random.Generator
) -> Pool:
    """Curvatures of ``size`` users with ``n`` rows each, at the group's model."""
    dim = scene.dim
    A = _curvatures(scene, group, center, n, size, rng)
    scale = np.sqrt(scene.dispersion)
    seeing = np.zeros(size, dtype=bool)
    if scene.penalty is not None:
        A += 1e-12 * _size(A) * np.eye(dim)
        inverse = np.linalg.inv(A + n * np.diag(scene.penalty))
        blur = scale * np.matmul(inverse, np.linalg.cholesky(A))
        return Pool(blur, np.matmul(inverse, A), A, seeing)
    root = np.linalg.cholesky(A + 1e-12 * _size(A) * np.eye(dim))
    blur = scale * np.linalg.inv(root).swapaxes(1, 2)
    singular = np.square(np.diagonal(root, axis1=1, axis2=2)).min(axis=1) < 1e-9 * _size(A)[:, 0, 0]
    if not singular.any():
        return Pool(blur, None, A, singular)
    # Rows that leave a direction unseen: the local model is the one of least norm.
    keep = np.broadcast_to(np.eye(dim), A.shape).copy()
    values, vectors = np.linalg.eigh(A[singular])
    seen = values > 1e-9 * values[:, -1:]
    along = vectors * np.where(seen, 1 / np.sqrt(np.where(seen, values, 1.0)), 0.0)[:, None, :]
    blur[singular] = scale * along
    keep[singular] = np.matmul(vectors * seen[:, None, :], vectors.swapaxes(1, 2))
    return Pool(blur, keep, A, singular)


def _curvatures(
    scene: Scenario, group: int, center: Floats, n: int, size: int, rng: np.random.Generator
) -> Floats:
    """A of ``size`` users, (size, dim, dim), a few of them at a time."""
    A = np.empty((size, scene.dim, scene.dim))
    drawn = min(n, _rows_drawn(scene.dim))
    at_once = max(1, ROWS // drawn)
    for start in range(0, size, at_once):
        part = slice(start, min(start + at_once, size))
        count = part.stop - part.start
        rows = scene.draw_rows(group, count * drawn, rng).reshape(count, drawn, -1)
        A[part] = _curvature(scene.loss, rows, center)
    return A if drawn == n else A * (n / drawn)


def _rows_drawn(dim: int) -> int:
    return max(MOST_ROWS, ROWS_A_PARAMETER * dim)


def _size(A: Floats) -> Floats:
    """Mean diagonal entry of each matrix, (size, 1, 1)."""
    return np.asarray(np.trace(A, axis1=1, axis2=2)[:, None, None] / A.shape[1])


def _curvature(loss: Loss, rows: Floats, center: Floats) -> Floats:
    """Sum over rows of loss''(x theta) x x', (users, dim, dim); rows (users, n, inputs)."""
    if not loss.curvature_varies:
        return np.matmul(rows.swapaxes(1, 2), rows)
    z = np.matmul(rows, center.reshape(-1, loss.n_outputs))
    # Only Huber's curvature looks at the target: taken as predicted, every row counts.
    y = z[..., 0] if loss.name == "huber" else np.ones(z.shape[:-1])
    return symmetric(weighted_gram(rows.swapaxes(1, 2), loss.curve(z, y)))


def _joined(pools: list[Pool]) -> Pool:
    keep = None
    if any(pool.keep is not None for pool in pools):
        unit = np.broadcast_to(np.eye(pools[0].A.shape[1]), pools[0].A.shape)
        keep = np.concatenate([unit if pool.keep is None else pool.keep for pool in pools])
    return Pool(
        np.concatenate([pool.blur for pool in pools]),
        keep,
        np.concatenate([pool.A for pool in pools]),
        np.concatenate([pool.blind for pool in pools]),
    )
