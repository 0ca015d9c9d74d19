"""Coverage of intervals in worlds that break the law of noise that a fit assumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.tables import progress, table
from odcl import ODCLRegressor
from odcl._typing import Array, Bools, Floats
from odcl.fitted.tails import Tails

LEVELS = np.array([0.5, 0.8, 0.9, 0.95])
SIZES = ((200, 1), (200, 2), (60, 3), (60, 5), (11, 15), (50, 12), (30, 50))
NOTE = """Held-out rows, drawn among each user's, inside intervals of 50, 80, 90 and 95 %: mean over
users x rows of 200 x 1 to 30 x 50, each without groups, with three, and with a bend that all share.
'off': mean distance of a world's coverage from the wanted one, assumed law / found. 'width': found
over assumed. Errors: Student's t with 3 degrees of freedom; variances that differ between users;
variances that grow with a column; AR(1) in the order of the rows; shocks of a row's place (a year)
that all users share."""


def _serial(rho: float) -> Callable[[Any, int, int, Floats], Floats]:
    def errors(rng: Any, m: int, n: int, _: Floats) -> Floats:
        e = rng.standard_normal((m, n))
        for t in range(1, n):
            e[:, t] = rho * e[:, t - 1] + np.sqrt(1 - rho**2) * e[:, t]
        return np.asarray(e)

    return errors


# (rng, users, rows, a column) -> errors
ERRORS: dict[str, Callable[[Any, int, int, Floats], Floats]] = {
    "normal": lambda rng, m, n, x: rng.standard_normal((m, n)),
    "heavy tails": lambda rng, m, n, x: rng.standard_t(3, (m, n)) / 3**0.5,
    "unequal users": lambda rng, m, n, x: (
        rng.standard_normal((m, n)) * np.exp(0.5 * rng.standard_normal((m, 1)))
    ),
    "unequal rows": lambda rng, m, n, x: rng.standard_normal((m, n)) * np.exp(0.5 * x),
    "AR(1), .5": _serial(0.5),
    "AR(1), .8": _serial(0.8),
    "years": lambda rng, m, n, x: 0.7 * (rng.standard_normal((m, n)) + rng.standard_normal((1, n))),
}


def run(*, quick: bool, data: Path) -> None:
    lines = [_line(name, range(2 if quick else 10)) for name in ERRORS]
    header = ("errors", "50 %", "80 %", "90 %", "95 %", "off", "found", "width at 50", "90", "95 %")
    table("13. Intervals", header, lines, NOTE)


def _line(name: str, seeds: range) -> tuple[str, ...]:
    progress(f"intervals: {name}")
    worlds = [(size, kind) for size in SIZES for kind in ("plain", "groups", "bend")]
    found = np.array([np.mean([_covered(name, s, *w) for s in seeds], axis=0) for w in worlds])
    inside, width = found[..., 0], np.exp(np.log(found[:, 1, :, 1] / found[:, 0, :, 1]).mean(0))
    before, now = np.abs(inside - LEVELS).mean(axis=(0, 2))
    return (
        *(name, *(f"{a:.3f} / {b:.3f}" for a, b in inside.mean(axis=0).T)),
        *(f"{before:.3f}", f"{now:.3f}", *(f"{w:.2f}" for w in width[[0, 2, 3]])),
    )


def _covered(name: str, seed: int, size: tuple[int, int], kind: str) -> Floats:
    """(assumed and found law, levels, coverage and mean width)."""
    X, y, users, held = _world(name, seed, *size, kind)
    model = ODCLRegressor().fit(X[~held], y[~held], users=users[~held])
    law, out = model.fitted_.newcomers, []
    for tails in (Tails(), law.tails):
        vars(law)["tails"] = tails
        both = [model.predict_interval(X[held], level, users=users[held]) for level in LEVELS]
        out.append([(np.mean((a <= y[held]) & (y[held] <= b)), np.mean(b - a)) for a, b in both])
    return np.array(out)


def _world(name: str, seed: int, m: int, n: int, kind: str) -> tuple[Floats, Floats, Array, Bools]:
    """A quarter of each user's rows is held out, of users with one row three others."""
    rng, k = np.random.default_rng([13, seed, m, n]), max(1, round(n / 3)) if n > 1 else 3
    X = rng.standard_normal((m, n + k, 3))
    theta = rng.standard_normal(4) + rng.standard_normal((m, 4)) * [0.5, 0.3, 0, 0]
    if kind == "groups":
        theta = rng.standard_normal((3, 4))[rng.integers(0, 3, m)]
    y = theta[:, :1] + (X * theta[:, None, 1:]).sum(axis=2)
    y = y + ERRORS[name](rng, m, n + k, X[..., 0])
    if kind == "bend":
        y = y + 0.7 * np.sin(1.5 * X[..., 1]) / 0.507
    held = rng.random((m, n + k)).argsort(axis=1) < k
    return X.reshape(-1, 3), y.ravel(), np.repeat(np.arange(m), n + k), held.ravel()
