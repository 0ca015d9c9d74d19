"""Is one shot enough? The diagnosis of one fitted federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import same_partition
from odcl.combine import combine_clusters
from odcl.diagnose.facts import (
    Distance,
    Errors,
    bend,
    closest,
    expected_errors,
    group_centers,
    rows_for,
    surplus,
)
from odcl.diagnose.noise import Centers, Noise, estimated_noise, without_penalty
from odcl.diagnose.places import Places, places
from odcl.diagnose.stability import Stability, stability
from odcl.diagnose.verdict import Case, Verdict, decide
from odcl.exchange.upload import Uploads
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


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What the uploads of one round say about themselves. Numbers are those of the groups found.

    ``print(diagnosis)`` is the report; ``diagnosis.verdict`` the conclusion.
    """

    verdict: Verdict
    users: Array  # (n_users,)
    labels: Ints  # (n_users,)
    n_samples: Floats  # (n_users,)
    dim: int
    noise: Noise
    tau2: float  # variance between users of a group, a coordinate
    distance: Distance | None  # D; None with one group
    separation: Separation | None  # alpha of Eq. (4) and what it guarantees; None with one group
    stability: Stability | None  # None where nobody knows its noise
    places: Places
    errors: Errors  # in units of the local models' error
    n_visible: int  # groups that the users' noise shows

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_clusters(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def own(self) -> float:
        """Variance between users of a group in units of a typical user's noise."""
        known = self.noise.variance[self.noise.known]
        return self.tau2 / float(np.median(known)) if len(known) else 0.0

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

    def table(self) -> dict[str, Any]:
        """One row a user: group, rows, probability of belonging elsewhere, distance, remark."""
        remark = np.full(self.n_users, "", dtype=object)
        remark[self.border] = "near a border"
        remark[self.strangers] = "fits no group"
        remark[~self.noise.known] = "noise unknown"
        return {
            "group": self.labels,
            "rows": self.n_samples,
            "elsewhere": np.round(self.places.elsewhere, 6),
            "rival": self.places.rival,
            "distance": np.round(self.places.distance, 4),
            "remark": remark.astype(str),
        }

    def __str__(self) -> str:
        from odcl.diagnose.text import report

        return report(self)


def diagnose(result: ODCLResult, *, resamples: int = 20, seed: int = 0) -> Diagnosis:
    """Diagnose a fitted federation; see :func:`diagnose_step`."""
    return diagnose_step(
        result.local.uploads(),
        result.step,
        combine=str(result.settings.get("combine", "precision")),
        resamples=resamples,
        seed=seed,
    )


def diagnose_step(
    uploads: Uploads,
    step: ServerStep,
    *,
    combine: str = "precision",
    resamples: int = 20,
    seed: int = 0,
) -> Diagnosis:
    """Diagnose what the server found, from the uploads alone.

    Groups found by another method, or with their number given, are set beside those that the
    mixture with known noise finds by itself: the verdict is about these, for no method that is told
    K can say that there are no groups. ``resamples`` federations are drawn for the stability.
    """
    if resamples < 1:
        raise ValueError(f"resamples={resamples!r} federations show no stability: draw 1 or more.")
    seen = step
    if step.rule not in MIXTURE_RULES:
        seen = server_step(uploads, "auto", "precision", seed=seed)
    same = seen is step or same_partition(seen.labels, step.labels)
    found = _look(uploads, step.labels, step.tau2, combine)
    visible = found if same else _look(uploads, seen.labels, seen.tau2, combine)
    drawn = stability(
        found.centers.models, step.labels, found.noise, found.tau2, resamples=resamples, seed=seed
    )
    return Diagnosis(
        verdict=decide(_case(uploads, visible, combine, None if same else step.n_clusters)),
        users=uploads.users,
        labels=step.labels,
        n_samples=uploads.n_samples,
        dim=uploads.dim,
        noise=found.noise,
        tau2=found.tau2,
        distance=found.distance,
        separation=_separation(uploads, step.labels),
        stability=drawn,
        places=found.places,
        errors=found.errors,
        n_visible=seen.n_clusters,
    )


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


def _look(uploads: Uploads, labels: Ints, tau2: float | None, combine: str) -> _Look:
    noise = estimated_noise(uploads, labels)
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


def _case(uploads: Uploads, look: _Look, combine: str, asked: int | None) -> Case:
    known = look.noise.variance[look.noise.known]
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
        asked=asked,
        dim=dim,
        n=n,
        blind=0.0 if bare else float(np.mean(blind)),
        known=told,
        own=look.tau2 / float(np.median(known)) if len(known) else 0.0,
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
