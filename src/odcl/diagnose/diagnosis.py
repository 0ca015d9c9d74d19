"""Is one shot enough? The diagnosis of one fitted federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import nearest, number_by_first_user, same_partition
from odcl.combine import combine_clusters
from odcl.data.federation import Federation
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
from odcl.diagnose.noise import Centers, Noise, estimated_noise, guessed_noise, without_penalty
from odcl.diagnose.places import Places, places
from odcl.diagnose.stability import Stability, stability
from odcl.diagnose.verdict import BLIND, Case, Judged, Verdict, decide
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.noise import evidence_tau2, pooled_dispersion
from odcl.server import ServerStep, server_step

if TYPE_CHECKING:
    from odcl.method import ODCLResult
    from odcl.theory import Separation

BORDER = 0.05  # probability of belonging elsewhere from which a user is named
STRANGE = 0.01  # chance that any member of a group is taken for a user of none
DIFFER = 3.0  # standard deviations of more than noise, before users of a group are said to differ
TRUSTED = 3  # users that a group needs: the model of a pair may be a coincidence
MIXTURE_RULES = ("noise", "scaled-noise", "shared-variance")  # of the mixture that chose K itself
GUARANTEE_USERS = 5_000  # Eq. (13) takes distances between all users of a group


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """What the uploads of one round say about the groups that a result has.

    ``print(diagnosis)`` is the report, ``diagnosis.verdict`` the conclusion,
    ``diagnosis.columns()`` one row a user. Where too few users know their noise to say anything
    (``sighted`` is False), ``distance``, ``separation``, ``stability`` and ``errors`` are None.
    """

    verdict: Verdict
    method: str  # by which the judged groups were found
    users: Array  # (n_users,)
    labels: Ints  # (n_users,), the judged groups
    visible: Ints  # (n_users,), the groups that the users' noise shows
    n_samples: Floats  # (n_users,)
    dim: int
    noise: Noise
    tau2: float  # variance between users of a group, a coordinate
    distance: Distance | None  # D; None with one group
    separation: Separation | None  # alpha of Eq. (4) and what it guarantees; None with one group
    stability: Stability | None
    places: Places
    errors: Errors | None  # in units of the local models' error
    visible_error: float  # of the visible groups' models, precision combining; NaN: not known

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_clusters(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def n_visible(self) -> int:
        """Groups that the users' noise shows."""
        return int(self.visible.max()) + 1

    @property
    def sighted(self) -> bool:
        """Do enough users know their noise for anything to be said about groups?"""
        return self.errors is not None

    @property
    def own(self) -> float:
        """Variance between users of a group in units of a typical user's noise."""
        return in_typical_noise(self.tau2, self.noise, self.dim)

    @property
    def misplaced(self) -> float:
        """Expected number of users in a wrong group."""
        return float(np.nansum(self.places.elsewhere))

    @property
    def border(self) -> Ints:
        """Users near a border, the least sure first: positions in ``users``."""
        chance = np.nan_to_num(self.places.elsewhere)
        some = np.flatnonzero(chance >= BORDER)
        return some[np.argsort(-chance[some], kind="stable")]

    @property
    def strangers(self) -> Ints:
        """Users who fit no group: alone in theirs, or too far from it. Positions in ``users``.

        Distances are judged where users sent their curvature: with one variance for all directions
        they have tails of no known law.
        """
        alone = np.bincount(self.labels)[self.labels] == 1
        far = np.nan_to_num(self.places.tail, nan=1.0) < STRANGE / max(self.n_users, 100)
        told = self.noise.source == "curvature"
        return np.flatnonzero((far & told) | (alone & (self.n_clusters > 1)))

    @property
    def too_small(self) -> Ints:
        """Groups of fewer than three users, whose models rest on a coincidence of one or two."""
        if self.n_clusters == 1:
            return np.zeros(0, dtype=np.intp)
        return np.flatnonzero(np.bincount(self.labels) < TRUSTED)

    def columns(self) -> dict[str, Any]:
        """One row a user, as columns: ``pandas.DataFrame(diagnosis.columns())``.

        user, group, rows; elsewhere: probability of belonging to another group; rival: the
        likeliest of the others (-1: there is none); distance: from the own group, in units of what
        its members' noise explains (about 1); remark. NaN for users of unknown noise.
        """
        remark = np.full(self.n_users, "", dtype=object)
        if self.sighted:
            remark[self.border] = "near a border"
            remark[self.strangers] = "fits no group"
        remark[~self.noise.known] = "noise unknown"
        return {
            "user": self.users,
            "group": self.labels,
            "rows": self.n_samples,
            "elsewhere": np.round(self.places.elsewhere, 6),
            "rival": self.places.rival,
            "distance": np.round(self.places.distance, 4),
            "remark": remark.astype(str),
        }

    def __repr__(self) -> str:
        size = f"{self.n_users} user{'s' * (self.n_users > 1)}"
        groups = f"{self.n_clusters} group{'s' * (self.n_clusters > 1)}"
        return f"<Diagnosis {self.verdict.advice!r}: {size}, {groups}>"

    def __str__(self) -> str:
        from odcl.diagnose.text import report

        return report(self)


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
    :data:`odcl.combine.COMBINERS`), ``method`` a name for the report; ``resamples`` federations
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
    visible = _look(uploads, seen_labels, seen_tau2, noise, combine)
    found = visible if same else _look(uploads, step.labels, step.tau2, noise, combine)
    if not same or not _as_combined(uploads, step, combine):
        found = replace(found, errors=_measured(uploads, step, found, visible))
        visible = found if same else visible
    judged = None if same else _judged(step, visible, found)
    case = _case(uploads, visible, combine, judged)
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
        from odcl.clustering.noise_mixture import noise_mixture

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
    joined[small] = large[nearest(theta[small], centers[large])]
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


def _measured(uploads: Uploads, step: ServerStep, found: _Look, visible: _Look) -> Errors:
    """Errors of the models in hand, seen from the groups that the users' noise shows."""

    def error(models: Floats) -> float:
        off = measured_error(models, visible.labels, visible.centers, visible.noise)
        return off + visible.errors.precision

    alone = step.models.shape == uploads.theta.shape and np.allclose(step.models, uploads.theta)
    used = 1.0 if alone else error(step.models)
    precision = error(found.centers.models[found.labels])
    return replace(found.errors, one=visible.errors.one, used=used, precision=precision)


def _judged(step: ServerStep, visible: _Look, found: _Look) -> Judged:
    from scipy.optimize import linear_sum_assignment

    together = np.zeros((found.labels.max() + 1, visible.labels.max() + 1), dtype=np.intp)
    np.add.at(together, (found.labels, visible.labels), 1)
    kept = together[linear_sum_assignment(-together)].sum()
    return Judged(step.n_clusters, int(len(step.labels) - kept), found.errors.used)


@dataclass(frozen=True, eq=False)
class _Look:
    """What is measured of one partition."""

    labels: Ints
    noise: Noise
    tau2: float
    centers: Centers
    distance: Distance | None
    places: Places
    errors: Errors


def _look(uploads: Uploads, labels: Ints, tau2: float | None, noise: Noise, combine: str) -> _Look:
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
    return _Look(
        labels,
        noise,
        tau2,
        centers,
        closest(centers, noise, tau2),
        places(theta, labels, bare, centers, tau2),
        expected_errors(uploads, labels, noise, centers, tau2, combine),
    )


def _case(uploads: Uploads, look: _Look, combine: str, judged: Judged | None) -> Case:
    n, dim = float(np.median(uploads.n_samples)), uploads.dim
    told = look.noise.source != "spread"
    # Bare models come with one sample each: nothing is known of their rows.
    bare = uploads.dispersion is None and bool((uploads.n_samples == 1).all())
    blind = ~uploads.founders if uploads.dispersion is not None else uploads.n_samples <= dim
    # Without curvature, averages of least squares have n / (n - dim - 1) times the pooled error.
    rows = n / max(n - dim - 1, 1e-300)
    lossy = rows if not uploads.full and not bare and n > dim + 1 else 1.0
    return Case(
        n_users=uploads.n_users,
        n_clusters=len(look.centers.models),
        judged=judged,
        dim=dim,
        n=n,
        blind=0.0 if bare else float(np.mean(blind)),
        known=told,
        own=in_typical_noise(look.tau2, look.noise, dim),
        misplaced=float(np.nansum(look.places.elsewhere)),
        errors=look.errors,
        distance=look.distance,
        combine=combine,
        full=uploads.full,
        bend=bend(uploads, look.labels, look.centers),
        lossy=lossy,
        wanted=rows_for(uploads, look.labels, look.noise, look.centers, look.tau2),
    )


def _separation(uploads: Uploads, labels: Ints) -> Separation | None:
    from odcl.theory import separation

    return separation(uploads.theta, labels) if labels.max() > 0 else None
