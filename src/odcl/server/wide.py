"""The server's step for wide users: moments of their rows -> groups, and a model for each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.exchange.upload import MOST_RANK, Uploads
from odcl.method import Method
from odcl.server.chunks import HALF, Chunks, Parties, Survey, tallied
from odcl.server.mixed import by_first_user, forbidden_text, found_text, refuse_silence
from odcl.server.result import ServerStep, StreamedStep, of_fits
from odcl.wide.groups import WideGroups
from odcl.wide.moments import ClassMoments
from odcl.wide.search import (
    Admissible,
    FoundGroups,
    Placing,
    classifier_cost,
    find_groups,
    group_classifiers,
)
from odcl.wide.squared import ThinTerms, group_regressions, held_out_cost, pooled_model

FEWEST = 2  # users of a group: a direction that sets one user apart can always be found


def class_moments(uploads: Uploads) -> ClassMoments:
    """What wide users sent."""
    means, scatter, of = uploads.class_means, uploads.scatter, uploads.scatter_class
    assert means is not None
    assert scatter is not None
    assert of is not None
    told, there = uploads.told_rows, of >= 0
    return ClassMoments(
        uploads.users,
        told,
        np.where((told > 0)[..., None], means, 0.0).astype(np.float64),
        scatter[there].astype(np.float64),
        np.nonzero(there)[0],
        of[there].astype(np.intp),
        means.shape[2],
        uploads.risk is None or uploads.risk.intercept,
    )


def thin_terms(uploads: Uploads) -> ThinTerms | None:
    """What wide users of squared loss sent; None: of classes."""
    if uploads.thin_factor is None:
        return None
    assert uploads.means is not None
    assert uploads.risk is not None
    rows, F = uploads.seen, uploads.thin_factor
    rank, free, width = F.any(axis=2).sum(axis=1), np.maximum(rows - 1, 0.0), F.shape[2]
    # A factor with a row for every column is a triangle and holds all there is.
    exact = (2 * rank > width) & (width <= MOST_RANK)
    told = np.where(exact, free, np.minimum(rank, free))
    return ThinTerms(uploads.users, rows, told, uploads.means, F, uploads.risk.intercept)


@dataclass(frozen=True, eq=False)
class WideRule:
    """The likeliest group of every user: by its class moments, or by what models lose on it."""

    placing: Placing | None
    groups: WideGroups

    def labels(self, uploads: Uploads) -> Ints:
        return self._shares(uploads).argmax(axis=1)

    def place(self, uploads: Uploads, found: ServerStep) -> ServerStep:
        r = self._shares(uploads)
        return found.with_users(uploads.users, r.argmax(axis=1), r.max(axis=1))

    def _shares(self, uploads: Uploads) -> Floats:
        thin = thin_terms(uploads)
        if thin is not None:
            return thin.shares(self.groups)
        if self.placing is None:
            return np.ones((len(uploads), 1))
        return self.placing.shares(class_moments(uploads))

    def take(self, order: Ints) -> WideRule:
        """The groups in another order."""
        placing = None if self.placing is None else self.placing.take(order)
        return WideRule(placing, self.groups.take(order))


def wide_step(
    looked: Survey, method: Method, chunks: Chunks | None, parties: Parties | None
) -> StreamedStep:
    """Find groups by held-out users' moments, and a model for each.

    Without ``chunks`` all users are in the sample, in canonical order; else groups and their models
    come from the sample, and everybody is placed.
    """
    like, smallest = looked.sample, method.smallest_group
    refuse_silence(looked.n_users, looked.speaking)
    least = max(smallest if chunks is None else 1, FEWEST)

    def admissible(r: Floats) -> bool:
        """Is every group the likeliest of enough users who said something?"""
        if r.shape[1] == 1:
            return True
        if parties is not None:
            return _held_by_parties(r, parties.of, like.seen, smallest)
        labels = r[like.seen > 0].argmax(axis=1)
        return bool(np.bincount(labels, minlength=r.shape[1]).min() >= least)

    found, groups = _find(like, admissible, dict(method.clusterer.params))
    k, rule = len(groups.weights), WideRule(found.placing, groups)
    if chunks is None:
        labels = found.shares.argmax(axis=1)
        order, sizes = by_first_user(labels, k), np.bincount(labels, minlength=k)
        rows: Floats = np.bincount(labels, like.n_samples, k).astype(np.float64)
    else:
        counts = tallied(chunks, rule, k)
        order, sizes, rows = counts.order, counts.sizes, counts.rows
    rule = rule.take(order)
    step = _server_step(like, found.shares[:, order], rule, alike=found.alike)
    forbidden = found.placing is not None and found.placing.fit.groups_forbidden
    said = forbidden_text(forbidden, smallest, parties is not None)
    step = replace(step, reason=step.reason + said, groups_forbidden=bool(said))
    told = step, looked.n_users, sizes[order], rows[order]
    return StreamedStep(*told, *(() if chunks is None else (rule, 2)))


def _find(
    like: Uploads, admissible: Admissible, asked: dict[str, Any]
) -> tuple[FoundGroups, WideGroups]:
    """Groups of the users, and their models."""
    thin = thin_terms(like)
    if thin is None:
        data = class_moments(like)
        found = find_groups(data, admissible, partial(classifier_cost, data), **asked)
        return found, group_classifiers(data, found)
    scores = thin.scores(pooled_model(thin))
    found = find_groups(scores, admissible, partial(held_out_cost, thin), **asked)
    shares, groups = group_regressions(thin, found.shares, admissible, alike=found.alike)
    return replace(found, shares=shares), groups


def _server_step(like: Uploads, shares: Floats, rule: WideRule, *, alike: bool) -> ServerStep:
    """The groups with the users of the sample in them."""
    assert like.risk is not None
    labels, placing = shares.argmax(axis=1), rule.placing
    centers = rule.groups.models(like.risk)
    return ServerStep(
        like.users,
        labels,
        centers,
        centers[labels],
        "mixed groups",
        found_text(len(centers), alike=alike),
        "ridge models of the groups, their strength by users held out",
        shares.max(axis=1),
        mixture=rule.groups,
        weighed=None if placing is None else of_fits([placing.fit], placing.fit, labels),
    )


def _held_by_parties(r: Floats, party: Ints, rows: Floats, smallest: int) -> bool:
    """Has every group enough parties, and none with more than half of its rows?

    A party counts where at least half of its rows lie.
    """
    share = np.zeros((int(party.max()) + 1, r.shape[1]))
    np.add.at(share, party, rows[:, None] * r)
    own = share.sum(axis=1, keepdims=True)
    enough = ((share >= 0.5 * own) & (own > 0)).sum(axis=0) >= smallest
    return bool(enough.all() and (share.max(axis=0) <= HALF * share.sum(axis=0)).all())
