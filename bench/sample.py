"""Groups found on a sample and then passes over everybody, beside the same fit without a sample."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.metrics import adjusted_rand_score

from bench.tables import cpu_seconds, progress, table
from odcl import Method, fit
from odcl.data.federation import Federation
from odcl.engines.in_process import Result
from odcl.mixed.layout import model_map
from odcl.risk.risk import Risk
from odcl.server.chunks import MIXED_SAMPLE

NOTE = f"""Users x 20 rows x 5 features, classes 40 rows. Groups are found on {MIXED_SAMPLE:,}
users, then all take part; the full fit looks for them among all. Centers: the largest difference,
in standard errors. Models: root mean square difference of the users' models, as a share of how far
the full fit's are from the truth. CPU: seconds of the sampled fit over the full one's."""
# Groups' shares, distance of centers, standard deviation of users inside groups (per coordinate).
WORLDS: dict[str, tuple[tuple[float, ...], float, tuple[float, ...], str]] = {
    "3 clear groups": ((1, 1, 1), 1.0, (0.0,), "squared"),
    "3 groups, users differ": ((1, 1, 1), 1.0, (0.3,), "squared"),
    "3 groups that overlap": ((1, 1, 1), 0.35, (0.15,), "squared"),
    "8 groups, the rarest 1 user in 50": ((8, 8, 8, 8, 6, 6, 5, 1), 1.0, (0.1,), "squared"),
    "no groups, some slopes differ": ((1,), 1.0, (0.5, 0.2, 0.0, 0.0, 0.0), "squared"),
    "3 groups, two classes": ((1, 1, 1), 1.0, (0.0,), "logistic"),
}


def run(*, quick: bool, data: Path) -> None:
    users = 3_000 if quick else 8_000
    header = ("", "K sampled / full", "shape", "same groups", "centers", "models", "CPU")
    rows = [_row(name, users, *world) for name, world in WORLDS.items()]
    table(f"10. {users:,} users, found on {MIXED_SAMPLE:,} and on all", header, rows, NOTE)


def _row(
    name: str,
    n_users: int,
    shares: tuple[float, ...],
    apart: float,
    differ: tuple[float, ...],
    loss: str,
) -> tuple[str, ...]:
    progress(name)
    federation, truth = _world(n_users, shares, apart, differ, loss)
    work = partial(fit, federation, Risk(loss, intercept=True), Method())
    quick, sampled = cpu_seconds(work)
    with patch("odcl.server.chunks.MIXED_SAMPLE", n_users):
        slow, full = cpu_seconds(work)
    mine, theirs = (result.step.downloads.mixture for result in (sampled, full))
    shapes = f"{_shape(mine)} / {_shape(theirs)}"
    off = np.sqrt(((sampled.models - full.models) ** 2).mean())
    error = np.sqrt(((full.models[:, :-1] - truth) ** 2).mean())
    return (
        *(name, f"{sampled.n_clusters} / {full.n_clusters}", shapes),
        f"{adjusted_rand_score(sampled.labels, full.labels):.3f}",
        *(_centers(sampled, full), f"{off / error:.0e}", f"{quick / slow:.2f}"),
    )


def _shape(mixture: Any) -> str:
    return mixture.spread.shape if mixture.spread.matrix.any() else "zero"


def _centers(mine: Result, theirs: Result) -> str:
    """The largest difference of centers, each to its nearest, in standard errors."""
    if len(mine.centers) != len(theirs.centers):
        return "-"
    apart = mine.centers[:, None] - theirs.centers
    nearest = (apart**2).sum(axis=2).argmin(axis=1)
    mixture = theirs.step.downloads.mixture
    change = model_map(mixture, theirs.risk)[1]  # coordinates are those of the fit
    covariances = change @ mixture.covariances @ change.T
    sd = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))[nearest]
    away = np.abs(apart[np.arange(len(nearest)), nearest])
    return f"{(away / sd).max():.0e}"


def _world(
    n_users: int, shares: tuple[float, ...], apart: float, differ: tuple[float, ...], loss: str
) -> tuple[Federation, Any]:
    rng, n, p = np.random.default_rng(0), 40 if loss == "logistic" else 20, 5
    centers = apart * rng.standard_normal((len(shares), p))
    group = rng.choice(len(shares), n_users, p=np.array(shares) / sum(shares))
    truth = centers[group] + np.array(differ) * rng.standard_normal((n_users, p))
    users = np.repeat(np.arange(n_users), n)
    X = rng.standard_normal((len(users), p))
    z = (X * truth[users]).sum(axis=1)
    noise = rng.logistic(size=len(z)) if loss == "logistic" else rng.standard_normal(len(z))
    y = np.where(z + noise > 0, 1.0, -1.0) if loss == "logistic" else z + noise
    return Federation.from_arrays(X, y, users), truth
