"""What is measured of one partition of the users."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Floats, Ints
from odcl.diagnose.facts import (
    Distance,
    Errors,
    bend,
    closest,
    expected_errors,
    group_centers,
    in_typical_noise,
    measured_error,
    rows_for,
    surplus,
)
from odcl.diagnose.noise import Centers, Noise, without_penalty
from odcl.diagnose.places import Places, places
from odcl.diagnose.verdict import Case, Judged
from odcl.exchange.upload import Uploads
from odcl.server.combine import combine_clusters
from odcl.server.dispersion import evidence_tau2, pooled_dispersion
from odcl.server.step import ServerStep

SPARE = 3  # rows beyond the parameters that a user needs to tell its noise
DIFFER = 3.0  # standard deviations of more than noise, before users of a group are said to differ


@dataclass(frozen=True, eq=False)
class Look:
    """A partition, its groups' models, and how they lie."""

    labels: Ints
    noise: Noise
    tau2: float
    centers: Centers
    distance: Distance | None
    places: Places
    errors: Errors


def look(uploads: Uploads, labels: Ints, tau2: float | None, noise: Noise, combine: str) -> Look:
    models = combine_clusters(uploads, labels, "precision").centers
    # Around plain means, noisy themselves, users would seem to differ more than they do.
    around = evidence_tau2(uploads, labels, models, pooled_dispersion(uploads))
    tau2 = float(tau2 or 0.0) if around is None else around
    theta, bare = without_penalty(uploads, noise)
    centers = group_centers(uploads, labels, noise, 0.0)
    # Noise read off the spread inside groups has the users' real differences in it already.
    told = noise.source != "spread"
    if told and tau2 > 0 and surplus(uploads, theta, labels, bare, centers) >= DIFFER:
        centers = group_centers(uploads, labels, noise, tau2)
    else:
        tau2 = 0.0
    return Look(
        labels,
        noise,
        tau2,
        centers,
        closest(centers, noise, tau2),
        places(theta, labels, bare, centers, tau2),
        expected_errors(uploads, labels, noise, centers, tau2, combine),
    )


def case_of(uploads: Uploads, seen: Look, combine: str, judged: Judged | None) -> Case:
    n, dim = float(np.median(uploads.n_samples)), uploads.dim
    told = seen.noise.source != "spread"
    # Bare models come with one sample each: nothing is known of their rows.
    bare = uploads.dispersion is None and bool((uploads.n_samples == 1).all())
    blind = ~uploads.founders if uploads.dispersion is not None else uploads.n_samples <= dim
    if uploads.has_dispersion:  # a noise read off one or two spare rows may be anything
        blind = blind | (uploads.n_samples < dim + SPARE)
    # Without curvature, averages of least squares have n / (n - dim - 1) times the pooled error.
    rows = n / max(n - dim - 1, 1e-300)
    lossy = rows if not uploads.full and not bare and n > dim + 1 else 1.0
    return Case(
        n_users=uploads.n_users,
        n_clusters=len(seen.centers.models),
        judged=judged,
        dim=dim,
        n=n,
        blind=0.0 if bare else float(np.mean(blind)),
        known=told,
        own=in_typical_noise(seen.tau2, seen.noise, dim),
        misplaced=float(np.nansum(seen.places.elsewhere)),
        errors=seen.errors,
        distance=seen.distance,
        combine=combine,
        full=uploads.full,
        varies=uploads.curvature_varies,
        bend=bend(uploads, seen.labels, seen.centers),
        lossy=lossy,
        wanted=rows_for(uploads, seen.labels, seen.noise, seen.centers, seen.tau2),
    )


def measured_errors(uploads: Uploads, step: ServerStep, found: Look, visible: Look) -> Errors:
    """Errors of the models in hand, seen from the groups that the users' noise shows."""

    def error(models: Floats) -> float:
        off = measured_error(models, visible.labels, visible.centers, visible.noise)
        return off + visible.errors.precision

    alone = step.models.shape == uploads.theta.shape and np.allclose(step.models, uploads.theta)
    used = 1.0 if alone else error(step.models)
    precision = error(found.centers.models[found.labels])
    return replace(found.errors, one=visible.errors.one, used=used, precision=precision)


def judged_beside(step: ServerStep, visible: Look, found: Look) -> Judged:
    from scipy.optimize import linear_sum_assignment

    together = np.zeros((found.labels.max() + 1, visible.labels.max() + 1), dtype=np.intp)
    np.add.at(together, (found.labels, visible.labels), 1)
    kept = together[linear_sum_assignment(-together)].sum()
    return Judged(step.n_clusters, int(len(step.labels) - kept), found.errors.used)
