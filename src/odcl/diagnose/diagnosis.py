"""Is one shot enough? The diagnosis of one fitted federation, and what can be asked of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import same_partition
from odcl.data.federation import Federation
from odcl.diagnose.measure import (
    Apart,
    Distance,
    Errors,
    MeasuredGroups,
    Stability,
    measure,
    of_some,
    stability,
    usual_users,
)
from odcl.diagnose.noise import (
    Membership,
    ModelNoise,
    estimated_noise,
    of_bare_models,
    of_wide_users,
)
from odcl.diagnose.own_models import OwnModels, has_own_models, in_common_units, own_models
from odcl.diagnose.verdict import (
    Facts,
    Verdict,
    decide,
    of_wide_groups,
    scattered,
    untold_by_models,
)
from odcl.errors import InputError
from odcl.evaluate import Comparison
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.method import Method
from odcl.mixed.differences import differing, listed, named_differences
from odcl.mixed.layout import model_spread
from odcl.mixed.posterior import Mixture, posterior
from odcl.server.columns import overdispersion
from odcl.server.mixed import user_quadratics
from odcl.server.models import average_by_cluster, user_weights
from odcl.server.result import ServerStep
from odcl.server.step import server_step
from odcl.theory import Separation, separation
from odcl.wide.moments import WideGroups, mixed_only

if TYPE_CHECKING:
    from odcl.engines.in_process import Result
    from odcl.fitted.value import Fitted

BORDER = 0.05  # probability of belonging elsewhere from which a user is named
UNLIKELY = 0.01  # chance that any member of a group is taken for a user of none
UNSURE = 0.25  # share of users with hardly more rows than parameters that hide whole groups
SPARE = 3  # rows beyond the parameters that a user needs to tell its noise
FAR_NOISIER = 1e4  # times the median user's noise variance
TRUSTED = 3  # users that a group needs: the model of a pair may be a coincidence


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """What the uploads of one round say about the groups of a result.

    ``print(diagnosis)`` is the report, ``diagnosis.verdict`` the conclusion,
    ``diagnosis.columns()`` one row per user. Where too few users know their noise to say anything
    (``informative`` is False), ``distance``, ``stability`` and ``errors`` are None; of wide users
    (more than 100 parameters, 40 of classes) the verdict and ``membership`` are told, of models
    without rows or data terms only the paper's ``separation``.
    """

    verdict: Verdict
    found_by: str  # the method that found the judged groups
    users: Array  # (n_users,)
    labels: Ints  # (n_users,), the judged groups
    visible: Ints  # (n_users,), the groups that the users' noise shows
    n_samples: Floats  # (n_users,)
    dim: int
    noise: ModelNoise
    membership: Membership
    tau2: float = 0.0  # variance between users of a group, per coordinate
    tau2_in_noise: float = 0.0  # in units of a typical user's noise
    combine: str | None = None  # how models in hand were made of their groups; None: in another way
    distance: Distance | None = None  # D; None with one group
    separation: Separation | None = None  # alpha of Eq. (4), what it guarantees; None with one
    stability: Stability | None = None
    errors: Errors | None = None  # in units of the local models' error
    visible_error: float = np.nan  # of models of the visible groups' pooled rows
    noisy: Ints = field(default_factory=lambda: np.zeros(0, np.intp))  # far noisier than others
    of_users: int = 0  # users that a sample was drawn from for the diagnosis; 0: no sample
    apart: Apart | None = None  # users who are not judged
    numbers: Ints | None = None  # what groups are called in the result, where others are set apart

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_clusters(self) -> int:
        return int(self.labels.max()) + 1

    def named(self, groups: Ints) -> Ints:
        """What groups are called in the result; -1 stays."""
        return groups if self.numbers is None else np.append(self.numbers, -1)[groups]

    @property
    def n_visible(self) -> int:
        """Groups that the users' noise shows."""
        return int(self.visible.max()) + 1

    @property
    def informative(self) -> bool:
        """Do enough users know their noise for anything to be said about groups?"""
        return self.errors is not None

    @property
    def misplaced(self) -> float:
        """Expected number of users in a wrong group."""
        return float(np.nansum(self.membership.elsewhere))

    @property
    def border(self) -> Ints:
        """Users near a border, the least sure first: positions in ``users``."""
        chance = np.nan_to_num(self.membership.elsewhere)
        some = np.flatnonzero(chance >= BORDER)
        return some[np.argsort(-chance[some], kind="stable")]

    @property
    def outliers(self) -> Ints:
        """Users who fit no group: alone in theirs, or too far from it. Positions in ``users``.

        Distances are judged where users sent their curvature: with one variance for all directions
        they have tails of no known law.
        """
        alone = np.bincount(self.labels)[self.labels] == 1
        far = np.nan_to_num(self.membership.tail, nan=1.0) < UNLIKELY / max(self.n_users, 100)
        told = self.noise.source == "curvature"
        return np.flatnonzero((far & told) | (alone & (self.n_clusters > 1)))

    @property
    def too_small(self) -> Ints:
        """Groups of fewer than three users, whose models rest on a coincidence of one or two."""
        return np.flatnonzero((np.bincount(self.labels) < TRUSTED) & (self.n_clusters > 1))

    def columns(self) -> dict[str, Any]:
        """One row per user, as columns: ``pandas.DataFrame(diagnosis.columns())``.

        user, group, rows; elsewhere: probability of belonging to another group; rival: the
        likeliest of the others (-1: there is none); distance: from the own group, in units of what
        its members' noise explains (about 1); remark. NaN for users of unknown noise or set apart.
        """
        remark = np.full(self.n_users, "", dtype=object)
        remark[self.border] = "near a border"
        if self.informative:
            remark[self.outliers] = "far from all" if self.n_clusters == 1 else "fits no group"
        if self.noise.source != "held out":
            remark[~self.noise.known] = "noise unknown"
            remark[self.noisy] = "far noisier than others"
        told = {
            "user": self.users,
            "group": self.named(self.labels),
            "rows": self.n_samples,
            "elsewhere": np.round(self.membership.elsewhere, 6),
            "rival": self.named(self.membership.rival),
            "distance": np.round(self.membership.distance, 4),
            "remark": remark,
        }
        told = told if self.apart is None else self.apart.among(told)
        return told | {"remark": told["remark"].astype(str)}

    def __repr__(self) -> str:
        size = f"{self.n_users} user{'s' * (self.n_users > 1)}"
        groups = f"{self.n_clusters} group{'s' * (self.n_clusters > 1)}"
        return f"<Diagnosis {self.verdict.advice!r}: {size}, {groups}>"

    def __str__(self) -> str:
        from odcl.report.diagnosis import diagnosis_text

        return diagnosis_text(self)


def diagnose(result: Result, federation: Federation | None = None, **how: Any) -> Diagnosis:
    """Diagnose a fitted federation, or the result of a baseline; ``how``: :func:`diagnose_step`.

    The groups of ``result`` are judged by what its users' rows say. In the paper's setting, and in
    iterated methods, users send their models alone: ``federation``, the one that ``result`` was
    fitted on, has their rows (unused where users sent data terms).
    """
    uploads = result.uploads
    if federation is not None and not uploads.has_terms:
        uploads = _with_terms(result, federation)
    return diagnose_step(uploads, result.step, result.method, **how)


def _with_terms(result: Result, federation: Federation) -> Uploads:
    """The result's own models with the data terms of the users' rows, where there are such."""
    known, risk = result.uploads, result.risk
    if not Method().resolved(risk, known.dim).clusterer.uses_terms:
        return known
    again = fit_users(federation, risk, terms=True)
    same = again.theta.shape == known.models.shape and again.users.tolist() == known.users.tolist()
    if same and isinstance(result.solver, str) and result.solver == "exact":
        scale = float(np.abs(again.theta).max())
        same = bool(np.abs(again.theta - known.models).max() <= 1e-6 * scale)
    if not same:
        raise ValueError(
            "The federation's rows give other users or other local models than this result has, "
            "so they say nothing of its models: give the federation that it was fitted on."
        )
    return replace(again.uploads, theta=known.theta)


def diagnose_fitted(fitted: Fitted, **how: Any) -> Diagnosis:
    """Diagnose a fit from what its users sent; of a table in pieces, the users it holds.

    ``how``: see :func:`diagnose_step`.
    """
    if not fitted.whole:
        raise ValueError(
            "This model holds the users of one site, and groups were found with those of "
            f"others: they were diagnosed in the round. It said: {fitted.reason}"
        )
    if fitted.uploads is None:
        raise ValueError(
            "This model was written without its users' uploads, which were too large to keep, "
            "and they are what is diagnosed: fit again on its rows (`odcl diagnose RUN TABLE`)."
        )
    kept = np.flatnonzero(fitted.users.group >= 0)  # added users that fit no group are in none
    labels = fitted.users.group[kept]
    step = ServerStep(
        fitted.users.users[kept],
        labels,
        fitted.centers,
        fitted.centers[labels],
        fitted.rule,
        fitted.reason,
        "",
        fitted.users.probability[kept],
        tau2=fitted.tau2,
        mixture=fitted.mixture,
    )
    sent = fitted.uploads.take(kept)
    found = diagnose_step(sent, step, fitted.method, features=fitted.units, **how)
    total = fitted.n_users
    return replace(found, of_users=total) if total > len(fitted.users) else found


def diagnose_step(
    uploads: Uploads,
    step: ServerStep,
    method: Method | None = None,
    *,
    found_by: str | None = None,
    features: Mapping[str, float] | None = None,
    comparison: Comparison | None = None,
    resamples: int = 20,
    seed: int = 0,
) -> Diagnosis:
    """Diagnose what the server found, from the uploads alone.

    Of bare models nothing is known but how far they lie apart. With data terms, the groups and
    models of ``step`` are judged, and compared with the groups that the default finds: a method
    that is given K cannot say that there are no groups. Where the default's groups would serve
    users better, or there are none, the verdict says so. ``method`` says how the groups' models
    were combined; without it, or where the models are others, they are judged as they are.
    ``found_by`` is a name for the report, ``features`` are the names of the features and the scale
    that each was divided by; ``resamples`` federations are drawn for the stability. Where the
    uploads do not show how good the models are, a ``comparison`` on held-out rows decides.
    """
    if resamples < 1:
        raise ValueError(f"resamples={resamples!r} federations show no stability: draw 1 or more.")
    if uploads.private:
        raise InputError("Private uploads hide what a diagnosis looks at: there is none of them.")
    if not has_own_models(uploads):
        return _without_noise(uploads, step, method, found_by, comparison)
    shown = step if step.mixture is not None else server_step(uploads, seed=seed)
    usual, apart, numbers = usual_users(shown), None, None
    if not usual.all():
        at, some, same = np.flatnonzero(~usual), np.flatnonzero(usual), shown is step
        apart = Apart(at, uploads.users[at], step.labels[at], uploads.n_samples[at])
        uploads, (step, numbers) = uploads.take(some), of_some(step, some)
        shown = step if same else of_some(shown, some)[0]
    mixed, combine = mixed_only(shown.mixture), "mixed" if shown is step else None
    if shown is not step:
        combine = _combined_by(own_models(uploads), step, method)
    where = "" if mixed is None else _where_users_differ(uploads, mixed, features)
    if mixed is not None and shown is step:
        uploads, mixed = in_common_units(uploads, mixed)
        shown = step = replace(step, mixture=mixed)
    own = own_models(uploads, mixed)
    users = _without_mistakes(own)
    labels = shown.labels
    same = same_partition(labels, step.labels)
    noise = estimated_noise(users)
    visible = _measured(users, shown, noise, combine)
    found = visible if same else _measured(users, step, noise, combine)
    if not same or combine is None:
        found = replace(found, errors=_measured_errors(users, step, found, visible))
        visible = found if same else visible
    facts = _facts(visible, None if same else found, combine, where)
    if mixed is not None:
        facts = replace(facts, curves=_shared_curves(users, mixed))
    verdict, scatter = decide(facts, comparison), scattered(overdispersion(uploads))
    known = Diagnosis(
        verdict=replace(verdict, reason=f"{verdict.reason} {scatter}") if scatter else verdict,
        found_by=found_by or step.rule,
        users=uploads.users,
        labels=step.labels,
        visible=visible.labels,
        n_samples=uploads.n_samples,
        dim=users.dim,
        noise=noise,
        tau2=found.tau2,
        tau2_in_noise=found.tau2_in_noise,
        membership=found.membership,
        combine=combine,
        noisy=np.flatnonzero(own.knows_noise & ~users.knows_noise),
        apart=apart,
        numbers=numbers,
    )
    if facts.silent:
        return known
    return replace(
        known,
        distance=found.distance,
        separation=separation(users.theta, step.labels) if step.n_clusters > 1 else None,
        stability=stability(visible, found, resamples=resamples, seed=seed),
        errors=found.errors,
        visible_error=visible.errors.pooled,
    )


def _without_noise(
    uploads: Uploads,
    step: ServerStep,
    method: Method | None,
    found_by: str | None,
    comparison: Comparison | None,
) -> Diagnosis:
    """Of wide users: how surely they belong. Of bare models: how far groups lie apart (Eq. 4)."""
    noise, belong = of_bare_models(uploads.n_users)
    verdict, apart, shown = untold_by_models(comparison), None, step
    if step.mixture is None and uploads.has_terms:
        shown = server_step(uploads)
    if isinstance(shown.mixture, WideGroups) and shown.probabilities is not None:
        same, k = shown is step, shown.n_clusters
        noise, wide = of_wide_users(shown.labels, shown.probabilities, k)
        belong = wide if same else belong
        verdict = of_wide_groups(
            k,
            uploads.n_users,
            float(np.nansum(wide.elsewhere)),
            alike=shown.mixture.alike and not shown.mixture.level,
            asked=same and method is not None and "n_groups" in dict(method.clusterer.params),
            moved=None if same else _moved(step.labels, shown.labels),
            held=comparison,
        )
    if step.n_clusters > 1 and uploads.theta is not None:
        apart = separation(uploads.theta, step.labels)
    return Diagnosis(
        verdict=verdict,
        found_by=found_by or step.rule,
        users=uploads.users,
        labels=step.labels,
        visible=shown.labels,
        n_samples=uploads.n_samples,
        dim=uploads.dim,
        noise=noise,
        membership=belong,
        separation=apart,
    )


def _facts(
    visible: MeasuredGroups,
    judged: MeasuredGroups | None,
    combine: str | None,
    where: str,
) -> Facts:
    """What the verdict rests on: the groups that the noise shows, and those in hand if others."""
    users = visible.users
    n, dim, rows = users.n_samples, users.dim, float(np.median(users.n_samples))
    blind = ~users.knows_noise
    if users.risk.loss.has_dispersion:  # a noise read off one or two spare rows may be anything
        blind = blind | (n < dim + SPARE)
    unsure, distance = float(np.mean(blind)), visible.distance
    silent = unsure > UNSURE or not visible.noise.known.any()
    return Facts(
        n_users=users.n_users,
        dim=dim,
        n=rows,
        k=visible.n_clusters,
        judged=None if judged is None else judged.n_clusters,
        moved=0 if judged is None else _moved(judged.labels, visible.labels),
        errors=visible.errors,
        used=(judged or visible).errors.used,
        in_noise=math.nan if silent or distance is None else distance.in_noise,
        misplaced=visible.misplaced,
        crowded=visible.crowded,
        rows_needed=visible.rows_needed() if visible.crowded and not silent else None,
        tau2=visible.tau2_in_noise,
        unsure=unsure,
        silent=silent,
        curved=users.risk.loss.curvature_varies,
        combine=combine,
        where=where,
    )


def _moved(judged: Ints, visible: Ints) -> int:
    """Users who are elsewhere in the other partition, with groups matched at their best."""
    together = np.zeros((int(judged.max()) + 1, int(visible.max()) + 1), dtype=np.intp)
    np.add.at(together, (judged, visible), 1)
    return len(judged) - int(together[linear_sum_assignment(-together)].sum())


def _without_mistakes(users: OwnModels) -> OwnModels:
    """Users far noisier than the median (a mistyped target) tell nothing of groups' models."""
    phi, H = users.dispersion, users.curvature
    if not np.isfinite(phi).any():
        return users
    far = phi > FAR_NOISIER * np.median(phi[np.isfinite(phi)])
    H = np.where(far[:, None, None], 1e-9 * H, H)
    return replace(users, dispersion=np.where(far, np.inf, phi), curvature=H)


def _combined_by(users: OwnModels, step: ServerStep, method: Method | None) -> str | None:
    """The method's way to combine, if the models that users were sent are made that way."""
    if method is None:
        return None
    weights = user_weights(users.terms, method.combine)
    made = average_by_cluster(users.theta, step.labels, weights)[step.labels]
    scale = max(float(np.abs(made).max()), 1e-300)
    return method.combine if np.abs(made - step.models).max() <= 1e-6 * scale else None


def _measured(
    users: OwnModels, step: ServerStep, noise: ModelNoise, combine: str | None
) -> MeasuredGroups:
    """The groups of a step; of a mixture, users are where it puts them, and as surely."""
    mixture = mixed_only(step.mixture)
    if mixture is None:
        return measure(users, step.labels, None, noise, combine)
    found = measure(users, step.labels, _own_spread(mixture, users), noise, combine)
    (q,), _ = user_quadratics(users.terms, mixture)
    chance, own = posterior(q, mixture).responsibilities.copy(), step.labels[:, None]
    sure = step.probabilities  # what users are told; of a mixture alone, the same again
    sure = np.take_along_axis(chance, own, 1)[:, 0] if sure is None else sure
    np.put_along_axis(chance, own, -1, 1)
    rival = chance.argmax(axis=1) if chance.shape[1] > 1 else np.full(len(chance), -1)
    at = replace(found.membership, elsewhere=np.maximum(1 - sure, 0), rival=rival)
    return replace(found, membership=at)


def _own_spread(mixture: Mixture, users: OwnModels) -> Floats:
    """How users of a group differ in what is each one's own, beside what all share, (dim, dim)."""
    T, own = model_spread(mixture, users.risk), users.own
    rest = np.setdiff1d(np.arange(len(T)), own)
    through = T[np.ix_(own, rest)]
    taken = through @ np.linalg.pinv(T[np.ix_(rest, rest)], hermitian=True) @ through.T
    return np.asarray(T[np.ix_(own, own)] - taken)


def _shared_curves(users: OwnModels, mixture: Mixture) -> str:
    """The curves that users' own models are beside, in words; empty: there are none."""
    kept = np.setdiff1d(mixture.coordinates.kept, users.own)
    names = [c.name for c in users.risk.curves if np.isin(c.columns, kept).any()]
    return f"curve{'s' * (len(names) > 1)} of {listed(names)}" if names else ""


def _where_users_differ(
    uploads: Uploads, mixture: Mixture, features: Mapping[str, float] | None
) -> str:
    """The coefficients that users of a group differ in, in words; empty: in none."""
    assert uploads.risk is not None
    if features is None:
        features = {
            f"x{j}": 1.0 for j in range(uploads.risk.n_lines(mixture.coordinates.n_features))
        }
    return differing(named_differences(mixture, uploads.risk, features))


def _measured_errors(
    users: OwnModels, step: ServerStep, found: MeasuredGroups, visible: MeasuredGroups
) -> Errors:
    """Errors of the models in hand, seen from the groups that the users' noise shows."""
    models = step.models[:, users.own]
    alone = models.shape == users.theta.shape and np.allclose(models, users.theta)
    return replace(
        found.errors,
        one=visible.errors.one,
        used=1.0 if alone else visible.error_of(models),
        pooled=visible.error_of(found.groups.models[found.labels]),
    )
