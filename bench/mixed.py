"""Worlds with a known truth: groups where there are groups, none where there are none.

And many users, of whom few say what all are asked about, beside a search among all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from bench.tables import cpu_seconds, progress, table
from odcl import Risk, fit
from odcl._typing import Floats, Ints
from odcl.clustering.labels import same_partition
from odcl.data.federation import Federation
from odcl.data.synthetic import linear_federation

NOTE = """Counts over seeds: 'K' found as it is, 'exact' the true groups. 'error' is ||model -
truth||^2 over users, relative to the worse of two oracles: one knows groups, the users' spread and
the noise, and fits the centers; the other knows all of these but the groups. Geometric mean over
seeds, and the worst seed. 'pooled' is one model for all. Seconds: CPU, median of a fit."""
MANY_NOTE = """A search that begins with few users, drawn by id, beside a search among all: 'same K'
and 'same groups' count seeds. 'error': the users' models', few over all, geometric mean and worst
seed. 'times': CPU seconds of the whole fit, all over few."""


class World(NamedTuple):
    """A federation of linear rows whose truth is known."""

    rows: Federation
    theta: Floats  # (n_users, dim), the intercept last if there is one
    groups: Ints  # (n_users,)
    spread: Floats  # (dim, dim), of the users of a group
    intercept: bool
    centers: Floats | None = None  # (K, dim); None: one group, whose oracle is the first


def run(*, quick: bool, data: Path) -> None:
    seeds = range(200, 202 if quick else 220)
    header = ("", "runs", "K", "exact", "error", "worst", "pooled", "s", "target", "")
    lines = [_line(name, make, goal, seeds) for name, (make, goal) in WORLDS.items()]
    table("6a. Mixed groups, squared loss", header, lines, NOTE)
    seeds = range(2 if quick else 6)
    header = ("", "same K", "same groups", "error", "worst", "few, s", "times")
    lines = [_many_line(name, make, seeds) for name, make in MANY.items()]
    table("6b. Few users first", header, lines, MANY_NOTE)


# -- worlds --------------------------------------------------------------------------------------


def _paper(n: int, k: int, tau: float = 0.0, sizes: Any = None) -> Callable[[int], World]:
    def make(seed: int) -> World:
        f = linear_federation(100, n, n_clusters=k, dim=20, tau=tau, sizes=sizes, seed=seed)
        same = linear_federation(100, n, n_clusters=k, dim=20, sizes=sizes, seed=seed)
        assert f.groups is not None
        assert f.optima is not None
        assert same.optima is not None
        centers = np.stack([same.optima[f.groups == j][0] for j in range(k)])
        return World(f, f.optima, f.groups, tau**2 * np.eye(20), False, centers)

    return make


def _alike(kind: str, m: int = 60, n: int = 30, p: int = 6) -> Callable[[int], World]:
    """One group: users who differ in some coefficients, gradually; an intercept last."""

    def make(seed: int) -> World:
        rng = np.random.default_rng(seed)
        p_ = 10 if kind == "two of ten" else p
        sd, tail = np.zeros(p_ + 1), np.ones((m, 1))
        vary = {
            "intercept": [p_],
            "slope": [0],
            "continuum": range(p_ + 1),
            "heavy tails": range(p_ + 1),
            "two of ten": [0, 1],
        }
        sd[list(vary[kind])] = 1.0
        if kind == "heavy tails":
            tail = 1 / np.sqrt(rng.chisquare(3, (m, 1)) / 3)
        theta = rng.standard_normal(p_ + 1) + tail * sd * rng.standard_normal((m, p_ + 1))
        return _rows(theta, n, np.zeros(m, np.intp), np.diag(sd**2), rng)

    return make


def _missing_level(seed: int, m: int = 60, n: int = 30) -> World:
    """One model for all with a factor of eight levels, of which each user lacks one."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(m), n)
    level = (users % 8 + 1 + rng.integers(0, 7, m * n)) % 8
    X = np.column_stack([rng.standard_normal((m * n, 3)), np.eye(8)[level][:, 1:]])
    theta = np.tile(np.append(2 * rng.standard_normal(10), 1.0), (m, 1))
    y = X @ theta[0, :-1] + theta[0, -1] + rng.standard_normal(m * n)
    rows = Federation(X, y, np.arange(m + 1) * n, np.arange(m))
    return World(rows, theta, np.zeros(m, np.intp), np.zeros((11, 11)), True)


def _rows(theta: Floats, n: int, groups: Ints, spread: Floats, rng: Any) -> World:
    m, dim = theta.shape
    X = rng.standard_normal((m * n, dim - 1))
    own = np.repeat(theta, n, axis=0)
    y = (X * own[:, :-1]).sum(axis=1) + own[:, -1] + rng.standard_normal(m * n)
    return World(Federation(X, y, np.arange(m + 1) * n, np.arange(m)), theta, groups, spread, True)


# World, and in which share of seeds K (for the paper's worlds: the groups) must be right.
WORLDS: dict[str, tuple[Callable[[int], World], float]] = {
    "paper K=4, n=15": (_paper(15, 4), 0.8),
    "paper K=10, n=15, tau=.2": (_paper(15, 10, 0.2), 0.8),
    "paper K=4, n=50": (_paper(50, 4), 0.95),
    "paper K=4, n=50, tau=.3": (_paper(50, 4, 0.3), 0.95),
    "paper K=4, n=400, tau=.03": (_paper(400, 4, 0.03), 0.95),
    "paper K=10, n=50": (_paper(50, 10), 0.95),
    "paper K=10, n=50, tau=.3": (_paper(50, 10, 0.3), 0.95),
    "paper 70/20/7/3, n=100, tau=.1": (_paper(100, 4, 0.1, (70, 20, 7, 3)), 0.95),
    "paper K=1, n=50": (_paper(50, 1), 0.95),
    "random intercept": (_alike("intercept"), 0.95),
    "random slope": (_alike("slope"), 0.95),
    "two of ten coefficients": (_alike("two of ten"), 0.95),
    "continuum": (_alike("continuum"), 0.95),
    "heavy tails": (_alike("heavy tails"), 0.0),
    "each lacks one of 8 levels": (_missing_level, 0.95),
}


def _groups(
    sizes: tuple[int, ...], n: int, p: int, tau: float = 0.0, apart: float = 1.0
) -> Callable[[int], World]:
    """Groups of these sizes; inside them users differ by ``tau`` in every coefficient."""

    def make(seed: int) -> World:
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(len(sizes)), sizes)
        centers = apart * rng.standard_normal((len(sizes), p + 1))
        theta = centers[groups] + tau * rng.standard_normal((len(groups), p + 1))
        return _rows(theta, n, groups, tau**2 * np.eye(p + 1), rng)

    return make


MANY: dict[str, Callable[[int], World]] = {
    "1000 x 200 x 20, K=4": _groups((250,) * 4, 200, 20),
    "1000 x 40 x 20, K=4": _groups((250,) * 4, 40, 20),
    "800 x 20 x 5, K=4, tau=.3": _groups((200,) * 4, 20, 5, 0.3),
    "1500 x 10 x 5, K=3": _groups((500,) * 3, 10, 5),
    "1000 x 15 x 8, 400 to 5 users": _groups((400, 250, 150, 100, 50, 30, 15, 5), 15, 8),
    "1000 x 30 x 8, 700/280/20": _groups((700, 280, 20), 30, 8),
    "1000 x 30 x 8, 990/10": _groups((990, 10), 30, 8),
    "600 x 8 x 3, K=5": _groups((200, 150, 100, 100, 50), 8, 3),
    "1000 x 30 x 10, K=20": _groups((50,) * 20, 30, 10),
    "1000 x 5 x 5, K=3, close": _groups((500, 300, 200), 5, 5, apart=0.5),
    "1000 x 30 x 5, one group": _groups((1000,), 30, 5),
    "1000 x 10 x 5, continuum": _groups((1000,), 10, 5, 0.5),
    "1000, random intercept": _alike("intercept", 1000),
    "1000, random slope": _alike("slope", 1000),
    "1000, two of ten": _alike("two of ten", 1000),
    "1000, heavy tails": _alike("heavy tails", 1000),
    "1000, a level lacks": partial(_missing_level, m=1000),
}


def _many_line(name: str, make: Callable[[int], World], seeds: range) -> tuple[Any, ...]:
    progress(name)
    same_k, same_groups, ratios, few, all_ = 0, 0, [], [], []
    for seed in seeds:
        world = make(seed)
        risk = Risk(intercept=True)
        seconds, mine = cpu_seconds(lambda w=world, r=risk: fit(w.rows, r))
        few.append(seconds)
        with patch("odcl.mixed.few.FIRST", len(world.groups)):
            seconds, full = cpu_seconds(lambda w=world, r=risk: fit(w.rows, r))
        all_.append(seconds)
        same_k += mine.n_clusters == full.n_clusters
        same_groups += same_partition(mine.labels, full.labels)
        ratios.append(_error(mine.models, world) / _error(full.models, world))
    return (
        *(name, f"{same_k} of {len(seeds)}", f"{same_groups} of {len(seeds)}"),
        *(f"{np.exp(np.log(ratios).mean()):.3f}", f"{max(ratios):.3f}"),
        *(f"{np.median(few):.3f}", f"{np.median(all_) / np.median(few):.1f}"),
    )


def _line(
    name: str, make: Callable[[int], World], goal: float, seeds: range
) -> tuple[str | int | float, ...]:
    progress(name)
    found, exact, seconds, ratios = 0, 0, [], []
    for seed in seeds:
        world = make(seed)
        risk = Risk(intercept=world.intercept)
        s, result = cpu_seconds(lambda w=world, r=risk: fit(w.rows, r))
        best = max(_error(models, world) for models in _oracles(world))
        pooled = np.linalg.lstsq(risk.design(world.rows.X), world.rows.y, rcond=None)[0]
        ratios.append([_error(x, world) / best for x in (result.models, pooled)])
        found += result.n_clusters == int(world.groups.max()) + 1
        exact += same_partition(result.labels, world.groups)
        seconds.append(s)
    share = (exact if name.startswith("paper") else found) / len(seeds)
    mean, worst = np.exp(np.log(ratios).mean(axis=0)), max(ratio[0] for ratio in ratios)
    met = share >= goal and (mean[0] <= 1.1 or not goal)
    return (
        *(name, len(seeds), found, exact, f"{mean[0]:.2f}", f"{worst:.2f}", f"{mean[1]:.2f}"),
        f"{np.median(seconds):.2f}",
        *((f">= {goal:.0%}, 1.1", "met" if met else "NOT MET") if goal else ("-", "")),
    )


def _error(models: Floats, world: World) -> float:
    return float(((models - world.theta) ** 2).sum())


def _oracles(world: World) -> list[Floats]:
    """Posterior means with groups, spread and noise known, centers fitted; and with all parameters
    known, groups not. On the rows as they are, by the formulas of the posterior themselves."""
    D = Risk(intercept=world.intercept).design(world.rows.X)
    cut = world.rows.offsets[1:-1]
    Z, y = np.split(D, cut), np.split(world.rows.y, cut)
    A = np.stack([z.T @ z for z in Z])
    b = np.stack([z.T @ t for z, t in zip(Z, y, strict=True)])
    T, K = world.spread, int(world.groups.max()) + 1
    inverse = np.linalg.inv(np.eye(len(T)) + A @ T)
    W, w = inverse @ A, (inverse @ b[..., None])[..., 0]
    own = np.eye(K)[world.groups]
    M, v = np.tensordot(own.T, W, axes=1), own.T @ w
    centers = np.stack([np.linalg.lstsq(m, x, rcond=None)[0] for m, x in zip(M, v, strict=True)])
    oracles = [_means(W, w, T, centers, own)]
    if world.centers is not None:
        c = world.centers
        logits = w @ c.T - 0.5 * ((W @ c.T) * c.T).sum(axis=1) + np.log(own.mean(axis=0))
        r = np.exp(logits - logits.max(axis=1, keepdims=True))
        oracles.append(_means(W, w, T, c, r / r.sum(axis=1, keepdims=True)))
    return oracles


def _means(W: Floats, w: Floats, T: Floats, c: Floats, r: Floats) -> Floats:
    """sum_k r_ik (c_k + T (w_i - W_i c_k)), (n_users, dim)."""
    each = c + (w[:, None] - (W @ c.T).transpose(0, 2, 1)) @ T
    return (r[..., None] * each).sum(axis=1)
