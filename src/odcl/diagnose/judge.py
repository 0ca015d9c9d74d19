"""Is one shot enough? The diagnosis of one fitted federation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.labels import nearest_center, number_by_first_user, same_partition
from odcl.data.federation import Federation
from odcl.diagnose.diagnosis import TRUSTED, Diagnosis
from odcl.diagnose.look import case_of, judged_beside, look, measured_errors
from odcl.diagnose.noise import estimated_noise, guessed_noise
from odcl.diagnose.stability import stability
from odcl.diagnose.verdict import BLIND, decide
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.server.combine import combine_clusters
from odcl.server.step import ServerStep, server_step

if TYPE_CHECKING:
    from odcl.engines.in_process import ODCLResult
    from odcl.theory import Separation

MIXTURE_RULES = ("noise", "scaled-noise", "shared-variance")  # of the mixture that chose K itself


def diagnose(
    result: ODCLResult,
    federation: Federation | None = None,
    *,
    resamples: int = 20,
    seed: int = 0,
) -> Diagnosis:
    """Diagnose a fitted federation, or the result of a baseline: see :func:`diagnose_step`.

    The groups that ``result`` has are judged, by its users' own models (``result.local``). In the
    paper's setting, and in iterated methods, users say nothing about the noise of these:
    ``federation``, the one that ``result`` was fitted on, lets it be read off their rows (it is
    not looked at where the users said it themselves).
    """
    uploads = result.local.uploads()
    if federation is not None and uploads.dispersion is None:
        uploads = _with_noise(result, federation)
    return diagnose_step(
        uploads,
        result.step,
        combine=str(result.settings.get("combine", "other")),
        method=getattr(result, "method", "") or None,
        resamples=resamples,
        seed=seed,
    )


def _with_noise(result: ODCLResult, federation: Federation) -> Uploads:
    """The result's own models, with curvature and noise as the users' rows have them."""
    shift = getattr(result, "shift", None)
    rows = federation if shift is None else federation.with_X(federation.X - shift)
    again = fit_users(
        rows,
        result.loss,
        l2=float(result.settings.get("l2", 0.0)),
        fit_intercept=bool(result.settings.get("fit_intercept", False)),
    )
    same = again.theta.shape == result.local.theta.shape
    same = same and again.users.tolist() == result.local.users.tolist()
    if same and result.settings.get("solver", "exact") == "exact":
        scale = float(np.abs(again.theta).max())
        same = bool(np.abs(again.theta - result.local.theta).max() <= 1e-6 * scale)
    if not same:
        raise ValueError(
            "The federation's rows give other users or other local models than this result has, "
            "so their noise is not that of its models: give the federation that it was fitted on."
        )
    known = result.local.uploads()
    return replace(known, curvature=again.curvature, dispersion=again.dispersion, noise=again.noise)


def diagnose_step(
    uploads: Uploads,
    step: ServerStep,
    *,
    combine: str = "precision",
    method: str | None = None,
    resamples: int = 20,
    seed: int = 0,
) -> Diagnosis:
    """Diagnose what the server found, from the uploads alone.

    Judged are the groups and the groups' models that ``step`` has. Beside them are set the groups
    that the mixture with known noise finds by itself, for no method that is told K can say that
    there are no groups: where these would serve users better, or there are none, the verdict says
    so. ``combine`` is how the groups' models were made ("other": not by one of
    the ``COMBINERS``), ``method`` a name for the report; ``resamples`` federations
    are drawn for the stability.
    """
    if resamples < 1:
        raise ValueError(f"resamples={resamples!r} federations show no stability: draw 1 or more.")
    seen_labels, seen_tau2 = step.labels, step.tau2
    if step.rule not in MIXTURE_RULES:
        seen_labels, seen_tau2 = _visible(uploads, seed)
    same = same_partition(seen_labels, step.labels)
    # Users who say nothing about their noise show it as the spread inside groups: inside those
    # that the mixture sees, for groups that lump others together would seem all noise.
    noise = estimated_noise(uploads, seen_labels)
    visible = look(uploads, seen_labels, seen_tau2, noise, combine)
    found = visible if same else look(uploads, step.labels, step.tau2, noise, combine)
    if not same or not _as_combined(uploads, step, combine):
        found = replace(found, errors=measured_errors(uploads, step, found, visible))
        visible = found if same else visible
    judged = None if same else judged_beside(step, visible, found)
    case = case_of(uploads, visible, combine, judged)
    sighted = case.blind <= BLIND and bool(noise.known.any())
    drawn = None
    if sighted:
        means = visible.centers.models[visible.labels]
        drawn = stability(
            means,
            found.centers.models,
            step.labels,
            noise,
            visible.tau2,
            resamples=resamples,
            seed=seed,
        )
    return Diagnosis(
        verdict=decide(case),
        method=method or step.rule,
        users=uploads.users,
        labels=step.labels,
        visible=visible.labels,
        n_samples=uploads.n_samples,
        dim=uploads.dim,
        noise=noise,
        tau2=found.tau2,
        distance=found.distance if sighted else None,
        separation=_separation(uploads, step.labels) if sighted else None,
        stability=drawn,
        places=found.places,
        errors=found.errors if sighted else None,
        visible_error=visible.errors.precision if sighted else np.nan,
    )


def _visible(uploads: Uploads, seed: int) -> tuple[Ints, float | None]:
    """The groups that the noise mixture finds by itself, and its tau2."""
    noise = guessed_noise(uploads)
    if noise is not None:
        from odcl.clustering.mixture.noise_mixture import noise_mixture

        found = noise_mixture(uploads.theta, noise=noise, seed=seed)
        return _without_small(uploads.theta, found.labels, found.centers), None
    step = server_step(uploads, "auto", "precision", seed=seed)
    return step.labels, step.tau2


def _without_small(theta: Floats, labels: Ints, centers: Floats) -> Ints:
    """Users of groups too small to trust join the nearest of the others, if there are any.

    Guessed noise has tails of no known law: one user far from all others is no group.
    """
    large = np.flatnonzero(np.bincount(labels) >= TRUSTED)
    if len(large) in (0, len(centers)):
        return labels
    small = ~np.isin(labels, large)
    joined = labels.copy()
    joined[small] = large[nearest_center(theta[small], centers[large])]
    return number_by_first_user(joined)


def _as_combined(uploads: Uploads, step: ServerStep, combine: str) -> bool:
    """Are the models that users were sent what ``combine`` makes of their groups?"""
    if combine == "shrink":
        return True
    if combine == "other":
        return False
    made = combine_clusters(uploads, step.labels, combine).centers[step.labels]
    scale = max(float(np.abs(made).max()), 1e-300)
    return bool(np.abs(made - step.models).max() <= 1e-6 * scale)


def _separation(uploads: Uploads, labels: Ints) -> Separation | None:
    from odcl.theory import separation

    return separation(uploads.theta, labels) if labels.max() > 0 else None
