"""The library's default method, run on simulated uploads: few runs, each a real one.

The mixture with known noise has no shortcut that would tell its answer, so that it runs on uploads
with everything that users send; around the n where it begins to succeed, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from odcl.clustering.labels import same_partition
from odcl.clustering.mixture.noise_mixture import NoiseMixture
from odcl.exchange.upload import Uploads
from odcl.plan.scenario import Scenario
from odcl.plan.uploads import Trials, draw_trials
from odcl.server.step import server_step

MOST_RUNS, FEWEST_RUNS = 40, 10
BEYOND = 4  # more than the true number of groups
BATCH = 5  # runs for one n; all five succeed half of the time where 87 in 100 do
SECONDS = 2.6  # for all runs, roughly
MOST_PARAMETERS = 100  # users send their curvature up to here
STEP, LEAST_STEP, MOST_STEP = math.log(1.3), math.log(1.06), math.log(3.0)


@dataclass(frozen=True)
class Batch:
    """Some rounds of the default method with n rows per user."""

    n: int
    runs: int
    found: int  # times it gave exactly the true groups


def runs_for(scene: Scenario) -> int:
    """How many rounds of the default method can be simulated in a few seconds; 0: too few."""
    if scene.n_clusters == 1 or scene.dim > MOST_PARAMETERS:
        return 0
    each = 0.045 + 4e-4 * scene.n_users * max(1.0, scene.dim / 20)  # seconds, measured
    runs = min(MOST_RUNS, int(SECONDS / each))
    return runs if runs >= FEWEST_RUNS else 0


def default_batches(
    scene: Scenario,
    start: int,
    *,
    least: int,
    most: int,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Batch]:
    """Batches of runs up and down around the n where the method begins to succeed.

    n goes down after a batch without a failure and up after one with, in steps that halve when the
    direction changes: most batches then lie where success is likely and not yet certain.
    """
    made: list[Batch] = []
    n, step, way = min(max(start, least), most), STEP, 0
    for number in range(runs_for(scene) // BATCH):
        if progress is not None:
            progress(f"simulating the default method, n = {n:,}")
        found = _runs(scene, n, number, seed)
        made.append(Batch(n, BATCH, found))
        before, way = way, -1 if found == BATCH else 1
        if before:
            step = min(1.5 * step, MOST_STEP) if way == before else max(step / 2, LEAST_STEP)
        after = min(max(round(n * math.exp(way * step)), least), most)
        if after == n and n in (least, most) and number > 1:
            break
        n = after
    return made


def _runs(scene: Scenario, n: int, number: int, seed: int) -> int:
    """Rounds with exactly the true groups, of one batch."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(n, 1, number)))
    trials = draw_trials(scene, n, BATCH, rng, most=8 * scene.n_users)
    # As clusterer="auto", but for numbers of groups far beyond the true one: they win nothing.
    method = NoiseMixture(max_clusters=scene.n_clusters + BEYOND, random_state=seed)
    found = 0
    for t in range(BATCH):
        step = server_step(simulated_uploads(scene, n, trials, t, rng), method)
        found += same_partition(step.labels, scene.groups)
    return found


def simulated_uploads(
    scene: Scenario, n: int, trials: Trials, t: int, rng: np.random.Generator
) -> Uploads:
    """Everything that the users of one trial send."""
    m, freedom = scene.n_users, n - scene.dim
    phi = np.full(m, scene.dispersion)
    if scene.loss.has_dispersion:
        phi = phi * rng.chisquare(freedom, m) / freedom if freedom > 0 else np.full(m, np.inf)
    phi[trials.blind(t)] = np.inf
    H = trials.curvature(t)
    if scene.penalty is not None:
        H = H + n * np.diag(scene.penalty)
    return Uploads(
        np.arange(m),
        trials.theta[t],
        np.full(m, float(n)),
        curvature=H,
        dispersion=phi,
        l2=scene.penalty,
        has_dispersion=scene.loss.has_dispersion,
        curvature_varies=scene.loss.curvature_varies,
    )
