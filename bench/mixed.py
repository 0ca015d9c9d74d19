"""Mixed groups by counts over seeds: groups where there are groups, none where there are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.tables import at_least, cpu_seconds, progress, table
from odcl import Method, Risk, fit
from odcl._typing import Floats, Ints
from odcl.clustering.labels import same_partition
from odcl.data.federation import Federation
from odcl.data.synthetic import linear_federation
from odcl.mixed.mixture import Spread
from odcl.mixed.noise import Noise
from odcl.mixed.posterior import Download, posterior
from odcl.mixed.terms import coordinates, data_terms, quadratics

MIXED = Method(clusterer="auto")
NOTE = """Counts over seeds: 'K' found as it is, 'exact' the true groups. 'error' is ||model -
truth||^2 over users, relative to an oracle to which groups, the users' spread and the noise are
known and only the centers are not; geometric mean over seeds. 'default' is the same for Method(),
'pooled' for one model for all. Seconds: CPU, median of a fit."""


class World(NamedTuple):
    """A federation of linear rows whose truth is known."""

    rows: Federation
    theta: Floats  # (n_users, dim), the intercept last if there is one
    groups: Ints  # (n_users,)
    spread: Floats  # (dim, dim), of the users of a group
    intercept: bool


def run(*, quick: bool, data: Path) -> None:
    seeds = range(200, 202 if quick else 220)
    header = ("", "runs", "K", "exact", "error", "default", "pooled", "s", "target", "")
    lines = [_line(name, make, goal, seeds) for name, (make, goal) in WORLDS.items()]
    table("6a. Mixed groups, squared loss", header, lines, NOTE)


# -- worlds --------------------------------------------------------------------------------------


def _paper(n: int, k: int, tau: float = 0.0, sizes: Any = None) -> Callable[[int], World]:
    def make(seed: int) -> World:
        f = linear_federation(100, n, n_clusters=k, dim=20, tau=tau, sizes=sizes, seed=seed)
        assert f.groups is not None
        assert f.optima is not None
        return World(f, f.optima, f.groups, tau**2 * np.eye(20), False)

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
    "paper K=4, n=50": (_paper(50, 4), 0.95),
    "paper K=4, n=50, tau=.3": (_paper(50, 4, 0.3), 0.95),
    "paper K=10, n=50": (_paper(50, 10), 0.95),
    "paper 70/20/7/3, n=100, tau=.1": (_paper(100, 4, 0.1, (70, 20, 7, 3)), 0.95),
    "paper K=1, n=50": (_paper(50, 1), 0.95),
    "random intercept": (_alike("intercept"), 0.95),
    "random slope": (_alike("slope"), 0.95),
    "two of ten coefficients": (_alike("two of ten"), 0.95),
    "continuum": (_alike("continuum"), 0.95),
    "heavy tails": (_alike("heavy tails"), 0.0),
    "each lacks one of 8 levels": (_missing_level, 0.95),
}


def _line(
    name: str, make: Callable[[int], World], goal: float, seeds: range
) -> tuple[str | int | float, ...]:
    progress(name)
    found, exact, seconds, ratios = 0, 0, [], []
    for seed in seeds:
        world = make(seed)
        risk = Risk(intercept=world.intercept)
        s, result = cpu_seconds(lambda w=world, r=risk: fit(w.rows, r, MIXED))
        best = _error(_oracle(world), world)
        pooled = np.linalg.lstsq(risk.design(world.rows.X), world.rows.y, rcond=None)[0]
        rivals = (result.models, fit(world.rows, risk).models, pooled)
        ratios.append([_error(models, world) / best for models in rivals])
        found += result.n_clusters == int(world.groups.max()) + 1
        exact += same_partition(result.labels, world.groups)
        seconds.append(s)
    share = (exact if name.startswith("paper") else found) / len(seeds)
    shown = np.exp(np.log(ratios).mean(axis=0))
    return (
        *(name, len(seeds), found, exact, *(f"{x:.2f}" for x in shown)),
        *(f"{np.median(seconds):.2f}", f">= {goal:.0%}" if goal else "-"),
        at_least(share, goal) if goal else "",
    )


def _error(models: Floats, world: World) -> float:
    return float(((models - world.theta) ** 2).sum())


def _oracle(world: World) -> Floats:
    """Posterior means with groups, spread and noise known, centers fitted (REML's)."""
    f, p = world.rows, world.rows.n_features
    models = np.empty_like(world.theta)
    for k in range(int(world.groups.max()) + 1):
        members = np.flatnonzero(world.groups == k)
        part = f.take(members)
        terms = data_terms(part.X, part.y, part.row_user, part.n_users)
        at = coordinates(terms, intercept=world.intercept)
        offset, change = at.raw()
        offset, change = (offset, change) if world.intercept else (offset[:-1], change[:-1])
        back = np.linalg.pinv(change)
        T = back @ world.spread @ back.T
        q = quadratics(terms, at)
        s2 = 1.0 / at.target_scale**2
        A, b = q.A / s2, q.b / s2
        W = np.linalg.solve(np.eye(q.dim) + A @ T, A)
        w = np.linalg.solve(np.eye(q.dim) + A @ T, b[..., None])[..., 0]
        C = np.linalg.pinv(W.sum(axis=0))
        known = Spread("full" if T.any() else "zero", T, np.ones(q.dim, np.bool_))
        c, one = (C @ w.sum(axis=0))[None], np.ones(1)
        download = Download(at, one, c, C[None], known, one, one, Noise(np.inf, s2, np.inf))
        models[members] = offset + posterior(q, download).mean() @ change.T
    assert models.shape[1] == p + world.intercept
    return models
