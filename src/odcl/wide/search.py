"""Groups of wide users: class moments -> directions -> groups -> a classifier for each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Floats, Ints
from odcl.mixed.em import MixtureFit
from odcl.mixed.mixture import Centers, misfits, moments, responsibilities
from odcl.mixed.search import search
from odcl.wide.classifiers import (
    Calibration,
    GroupScores,
    calibrate,
    class_shares,
    fit_scores,
    logistic_scores,
    score_sums,
    share_concentration,
)
from odcl.wide.directions import (
    Directions,
    common_terms,
    find_directions,
    how_many,
    look_at,
    noise_ratio,
    placed_terms,
)
from odcl.wide.moments import (
    FOLDS,
    ClassMoments,
    Folds,
    Span,
    WideGroups,
    at_least_usual,
    user_folds,
)

NEAR = 20.0  # in -2 log evidence: numbers of groups that rows are asked about
Admissible = Callable[[Floats], bool]  # are groups allowed, by users' shares in them, (m, K)?


@dataclass(frozen=True, eq=False)
class Placing:
    """Where users belong by their class moments alone."""

    directions: Directions
    ratio: Floats  # (C, q), the noise along them
    fit: MixtureFit  # in these directions

    def shares(self, data: ClassMoments) -> Floats:
        """Shares in the groups of users who took no part, (m, K)."""
        fit = self.fit
        q = placed_terms(self.directions, data, self.ratio, fit.centers.shape[1])
        at = moments(q, fit.spread, np.ones(len(q)))
        stack = Centers.of(fit.centers, fit.covariances)
        return responsibilities(misfits(at, stack), fit.weights)[0][0]

    def take(self, order: Ints) -> Placing:
        """The groups in another order."""
        return replace(self, fit=self.fit.take(order))


@dataclass(frozen=True, eq=False)
class FoundGroups:
    """Groups of wide users."""

    shares: Floats  # (m, K), of the users in the groups, by terms held out
    placing: Placing | None  # None: users do not differ

    @property
    def alike(self) -> bool:
        """Do users of a group differ only by noise?"""
        return self.placing is None or not self.placing.fit.spread.matrix.any()


def find_groups(
    data: ClassMoments,
    admissible: Admissible,
    cost: Callable[[Floats], float],
    *,
    max_groups: int = 50,
    n_groups: int | None = None,
    spread: str | None = None,
) -> FoundGroups:
    """Groups, and how users of a group differ, in the directions that held-out users differ in.

    ``cost`` is what groups with these shares of users lose on users held out, in nats: where
    moments hardly tell one number of groups from another, rows may.
    """
    folds, nobody = Folds(user_folds(data.users)), np.ones((len(data.users), 1))
    if len(folds.members) < 2 or not len(data.draws):
        return FoundGroups(nobody, None)
    x = data.inside
    learned = folds.learned(x, lambda part, _: find_directions(part))
    terms = folds.held_out(x, learned, look_at)
    q, most = how_many(terms), min(part.b0.shape[1] for part in terms.parts)
    if n_groups is not None:
        q = min(max(q, n_groups - 1), most)
    if not q:
        return FoundGroups(nobody, None)
    every = find_directions(x)
    common = common_terms(terms, learned, every, q)

    def fitted(most: int, k: int | None) -> MixtureFit:
        return search(
            common,
            data.users,
            max_groups=most,
            n_groups=k,
            spread=spread,
            admissible=lambda fit: admissible(fit.responsibilities),
        )

    best = fitted(max_groups, n_groups)
    if n_groups is None:
        near = {one.n_groups for one in best.weighed if one.evidence < best.evidence + NEAR}
        fits = [best, *(fitted(k, k) for k in sorted(near - {best.n_groups}))]
        if len(fits) > 1:
            best = min(fits, key=lambda fit: _price(fit) + cost(fit.responsibilities))
    directions = _outside(every, data.span, q)
    return FoundGroups(best.responsibilities, Placing(directions, noise_ratio(terms)[:, :q], best))


def _price(fit: MixtureFit) -> float:
    """Half of the evidence, and what users who may choose a group gain by chance."""
    return 0.5 * fit.evidence + len(fit.responsibilities) * float(np.log(fit.n_groups))


def _outside(found: Directions, span: Span, q: int) -> Directions:
    """The first directions as functions of vectors as users sent them."""
    slopes = found.slopes[:, :, :q]
    wide = slopes if span.basis is None else span.basis @ slopes
    return replace(
        found,
        axes=found.axes[:, :, :q],
        slopes=wide,
        level=found.level[:, :q] + span.middle @ wide,
        metric=found.metric[:, :q, :q],
    )


def _calibrated(x: ClassMoments, folds: Folds, r: Floats) -> tuple[list[GroupScores], Calibration]:
    """Classifiers without each fold of users, and what held-out users make of them.

    They say, too, whether groups have a scatter of their own: one for all is known better.
    """

    def tried(common: bool) -> tuple[list[GroupScores], Calibration]:
        fitted = folds.learned(x, lambda part, some: fit_scores(part, r[some], common=common))
        return fitted, _held_out(x, folds, r, fitted)

    kinds = (True,) if r.shape[1] == 1 else (True, False)
    return min((tried(common) for common in kinds), key=lambda pair: pair[1].loss)


def _held_out(x: ClassMoments, folds: Folds, r: Floats, fitted: list[GroupScores]) -> Calibration:
    """What held-out users make of classifiers without each fold of users."""
    sums = folds.held_out(
        x, fitted, lambda one, part, some: score_sums(one, part, r[some]), added=True
    )
    return calibrate(sums, class_shares(x, r), intercept=x.intercept)


def _beside(calibration: Calibration, one: GroupScores, logistic: GroupScores) -> GroupScores:
    """The discriminant, and its averages with logistic models: each errs in its own way."""
    w, o = calibration.applied(one)
    weights, offsets = (w + logistic.weights) / 2, (o + logistic.offsets) / 2
    return GroupScores(np.concatenate([w[None], weights]), np.concatenate([o[None], offsets]))


def classifier_cost(data: ClassMoments, r: Floats) -> float:
    """What groups' classifiers lose on users held out, in nats."""
    folds = Folds(user_folds(data.users))
    return float(data.counts.sum()) * _calibrated(data.inside, folds, r)[1].loss


def group_classifiers(data: ClassMoments, found: FoundGroups) -> WideGroups:
    """Each group's calibrated classifier, from everybody and without each fold of users."""
    folds, r = Folds(user_folds(data.users)), found.shares
    parts = folds if len(folds.members) > 1 else Folds(np.arange(len(r)) % 2)
    span, x = data.span, data.inside
    fitted, calibration = _calibrated(x, parts, r)
    shares = class_shares(x, r)
    whole = fit_scores(x, r, common=fitted[0].common)
    logistic = parts.learned(x, lambda part, some: logistic_scores(part, r[some]))
    fitted = [_beside(calibration, *pair) for pair in zip(fitted, logistic, strict=True)]
    whole = _beside(calibration, whole, logistic_scores(x, r))
    calibration = _held_out(x, parts, r, fitted)
    scores = np.tile(span.outside(*calibration.applied(whole)), (1 + FOLDS, 1, 1, 1))
    if len(folds.members) < 2:  # there is nobody else
        scores[1:] = 0.0
    else:
        for fold, one in zip(np.unique(folds.of), fitted, strict=True):
            scores[1 + fold] = span.outside(*calibration.applied(one))
    sd = np.sqrt((data.draws**2).mean(axis=0)) if len(data.draws) else np.ones(data.width)
    return WideGroups(
        weights=r.mean(axis=0),
        scores=scores,
        shares=shares,
        concentration=share_concentration(x, r, shares),
        unit=at_least_usual(sd),
        alike=found.alike,
    )
