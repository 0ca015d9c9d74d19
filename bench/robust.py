"""What liars and mistakes cost everybody else: the honest users' error over that without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from bench.tables import progress, table
from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.server.assign import models_by_terms
from odcl.server.step import server_step

USERS, GROUPS, ROWS = 100, 4, 100
RISK = Risk("squared", 0.0, True)
NOTE = """100 users with 100 rows each in four groups, liars among them; d features. Figures are the
honest users' mean distance from their true models, over that of the same users without the liars
and without `robust`; mean over seeds, worst seed in brackets. 'named': liars among those named, and
honest users named."""


@dataclass(frozen=True, eq=False)
class World:
    """Rows of users in groups, and who lies."""

    X: Floats  # (users, rows, d)
    y: Floats  # (users, rows)
    group: Ints
    centers: Floats  # (groups, d)
    own: Floats  # (users, d), true models
    liar: Ints  # positions
    rng: Any

    @property
    def honest(self) -> Ints:
        return np.setdiff1d(np.arange(len(self.y)), self.liar)

    def uploads(self, X: Floats, y: Floats) -> Uploads:
        m, n, d = X.shape
        rows = Federation(X.reshape(-1, d), y.ravel(), np.arange(m + 1) * n, np.arange(m))
        return fit_users(rows, RISK, terms=True).uploads

    def told(self, theta: Floats) -> Floats:
        """The liars' targets as if these were their models, (liars, d)."""
        X = self.X[self.liar]
        noise = self.rng.standard_normal(X.shape[:2])
        return (X @ theta[..., None])[..., 0] + noise

    def error(self, models: Floats) -> float:
        """Mean distance of honest users' models, (honest, d + 1), from the truth."""
        away = models[:, :-1] - self.own[self.honest]
        return float(np.sqrt((away**2).sum(axis=1) + models[:, -1] ** 2).mean())


def world(seed: int, d: int, share: float, inside: float = 0.0) -> World:
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((GROUPS, d))
    group = np.arange(USERS) % GROUPS
    X = rng.standard_normal((USERS, ROWS, d))
    own = centers[group] + inside * rng.standard_normal((USERS, d))
    y = (X @ own[..., None])[..., 0] + rng.standard_normal((USERS, ROWS))
    liar = np.sort(rng.choice(USERS, int(share * USERS), replace=False))
    return World(X, y, group, centers, own, liar, rng)


Attack = Callable[[World], Uploads]


def _models(theta: Callable[[World], Floats]) -> Attack:
    """Liars whose rows follow other models."""

    def attack(w: World) -> Uploads:
        y = w.y.copy()
        y[w.liar] = w.told(theta(w))
        return w.uploads(w.X, y)

    return attack


def _shift(errors: float, claimed: float = 1.0) -> Attack:
    """All liars of a group move their models the same way, by standard errors of one user."""

    def theta(w: World) -> Floats:
        way = w.rng.standard_normal((GROUPS, w.X.shape[2]))
        way /= np.linalg.norm(way, axis=1, keepdims=True)
        g = w.group[w.liar]
        return np.asarray(w.centers[g] + errors / np.sqrt(ROWS) * way[g])

    return _heavier(_models(theta), claimed)


def _heavier(attack: Attack, times: float) -> Attack:
    """Liars who claim more rows than they have."""

    def heavier(w: World) -> Uploads:
        told = attack(w)
        assert told.factor is not None
        n, factor = told.n_samples.copy(), told.factor.copy()
        n[w.liar] *= times
        factor[w.liar] *= np.sqrt(times)
        return replace(told, n_samples=n, factor=factor)

    return heavier


def _rows(change: Callable[[Floats, Floats], None]) -> Attack:
    """Mistakes in the rows of some users, in place."""

    def attack(w: World) -> Uploads:
        X, y = w.X.copy(), w.y.copy()
        for i in w.liar.tolist():
            change(X[i], y[i])
        return w.uploads(X, y)

    return attack


def _unit(X: Floats, y: Floats) -> None:
    X[:, 0] *= 300


def _origin(X: Floats, y: Floats) -> None:
    X[:, 0] += 273.15


def _code(X: Floats, y: Floats) -> None:
    y[0] = 99999


def _huge(X: Floats, y: Floats) -> None:
    y *= 1e9


def _shuffled(X: Floats, y: Floats) -> None:
    y[:] = y[::-1].copy()


def _overflow(w: World) -> Uploads:
    told = w.uploads(w.X, w.y)
    assert told.means is not None
    means = told.means.copy()
    means[w.liar] = 1e59
    return replace(told, means=means)


def _clique(w: World) -> Uploads:
    """Every liar sends the same made-up term."""
    told = w.uploads(w.X, w.y)
    one = w.liar[0]
    fields: dict[str, Any] = {}
    for name in ("means", "factor"):
        values = getattr(told, name).copy()
        values[w.liar] = values[one]
        fields[name] = values
    return replace(told, **fields)


ATTACKS: dict[str, Attack] = {
    "none": lambda w: w.uploads(w.X, w.y),
    "random models": _models(lambda w: 2 * w.rng.standard_normal((len(w.liar), w.X.shape[2]))),
    "sign flipped": _models(lambda w: -w.centers[w.group[w.liar]]),
    "tenfold": _models(lambda w: 10 * w.centers[w.group[w.liar]]),
    "targets shuffled": _rows(_shuffled),
    "between groups": _models(
        lambda w: (w.centers[w.group[w.liar]] + w.centers[(w.group[w.liar] + 1) % GROUPS]) / 2
    ),
    "clique": _clique,
    "weight x 1000": _heavier(lambda w: w.uploads(w.X, w.y), 1000),
    "shift 3": _shift(3),
    "shift 4": _shift(4),
    "shift 7": _shift(7),
    "shift 4, rows x 3": _shift(4, 3),
    "shift 4, rows x 1000": _shift(4, 1000),
    "x0 * 300": _rows(_unit),
    "x0 + 273.15": _rows(_origin),
    "one y = 99999": _rows(_code),
    "y * 1e9": _rows(_huge),
    "means of 1e59": _overflow,
}


def outcome(name: str, seed: int, d: int, share: float, robust: bool, inside: float = 0.0) -> Any:
    """(ratio, liars named, honest named, groups, seconds of a step over the plain one's)."""
    w = world(seed, d, share if name != "none" else 0.0, inside)
    sent = ATTACKS[name](w)
    honest = sent.take(w.honest)

    def error(uploads: Uploads, on: bool) -> tuple[float, Any, float]:
        start = process_time()
        step = server_step(uploads, Method(robust=on))
        took = process_time() - start
        assert step.mixture is not None
        return w.error(models_by_terms(honest, step.mixture).models), step, took

    base, _, plain = error(honest, False)
    try:
        got, step, took = error(sent, robust)
    except Exception as problem:  # what a round must never do
        return np.inf, 0, 0, repr(problem)[:40], np.nan
    named = {one.user for one in step.outliers}
    lie = set(w.liar.tolist())
    return got / base, len(named & lie), len(named - lie), step.n_clusters, took / plain


def run(*, quick: bool, data: Path) -> None:
    seeds = range(40, 41 if quick else 46)  # constants: 0 to 12, 50 to 61, 100 to 139
    settings = [(5, 0.1), (5, 0.2), (20, 0.1), (20, 0.2)]
    lines = []
    for name in ATTACKS:
        line = [name]
        for d, share in settings[: 2 if quick else None]:
            progress(f"{name}, d {d}, {share:.0%}")
            cells = []
            for robust in (False, True):
                found = [outcome(name, seed, d, share, robust) for seed in seeds]
                ratio = [one[0] for one in found]
                cells.append(f"{np.mean(ratio):.3g} ({max(ratio):.3g})")
            liars = int(share * USERS) * len(found) * (name != "none")
            said = f"{sum(f[1] for f in found)}/{liars}, {sum(f[2] for f in found)}"
            took = np.mean([one[4] for one in found])
            line.append(
                f"{' -> '.join(cells)} | {said} | K {[one[3] for one in found]} t {took:.1f}"
            )
        lines.append(line)
        print(*line, sep="\n    ", flush=True)
    header = ("", *(f"d {d}, {share:.0%}" for d, share in settings[: 2 if quick else None]))
    table("Liars and mistakes", header, lines, NOTE)
