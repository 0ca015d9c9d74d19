"""The server's step for wide users: moments of their rows -> groups, and a model for each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import log_softmax

from odcl._typing import Bools, Floats, Ints
from odcl.exchange.upload import MOST_RANK, Uploads
from odcl.method import Method
from odcl.mixed.differences import LEVEL, differences_text
from odcl.server.chunks import HALF, Chunks, Parties, Survey, parties_behind, tallied
from odcl.server.columns import user_columns
from odcl.server.mixed import (
    by_first_user,
    forbidden_text,
    found_text,
    outside_text,
    refuse_silence,
)
from odcl.server.result import ServerStep, StreamedStep, of_fits
from odcl.server.robust import Outlier, Screen, screened
from odcl.wide.moments import ClassMoments, WideGroups
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
TURNS = 3
FEW_ROWS, FEWEST_JUDGED = 5, 5  # below, a user is not judged; with fewer users, nobody is
BEYOND, LEAST = 6.0, 0.15  # usual spreads of a logarithm above the median, and the least of these


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
    screen: Screen | None = None  # numbers beyond it are not computed with

    def labels(self, uploads: Uploads) -> Ints:
        return self.shares(uploads).argmax(axis=1)

    def place(self, uploads: Uploads, found: ServerStep) -> ServerStep:
        r = self.shares(uploads)
        return found.with_users(uploads.users, r.argmax(axis=1), r.max(axis=1))

    def shares(self, uploads: Uploads) -> Floats:
        """Users' shares in the groups, (n_users, K)."""
        if self.screen is not None:
            uploads = self.screen.harmless(uploads)
        thin = thin_terms(uploads)
        if thin is not None:
            return thin.shares(self.groups)
        if self.placing is None:
            return np.ones((len(uploads), 1))
        return self.placing.shares(class_moments(uploads))

    def take(self, order: Ints) -> WideRule:
        """The groups in another order."""
        placing = None if self.placing is None else self.placing.take(order)
        return WideRule(placing, self.groups.take(order), self.screen)


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

    def find(usual: Uploads, who: Ints) -> tuple[FoundGroups, WideGroups]:
        def admissible(r: Floats) -> bool:
            """Is every group the likeliest of enough users who said something?"""
            if r.shape[1] == 1:
                return True
            if parties is not None:
                return _held_by_parties(r, parties.of[who], usual.seen, smallest)
            labels = r[usual.seen > 0].argmax(axis=1)
            return bool(np.bincount(labels, minlength=r.shape[1]).min() >= least)

        return _find(usual, admissible, dict(method.clusterer.params))

    odd, screen, every = dict[int, Outlier](), None, np.arange(len(like))
    if method.robust:
        party = None if parties is None or chunks is not None else parties.of
        told, odd, screen = screened(like, party)
        like = screen.harmless(like)
        found, groups, odd = _believed(told, odd, find)
    else:
        found, groups = find(like, every)
    k, rule = len(groups.weights), WideRule(found.placing, groups, screen)
    if len(found.shares) < len(like):  # users outside are placed by what they sent
        shares = rule.shares(like)
        inside = np.isin(every, _aside(odd), invert=True)
        shares[inside] = found.shares
        found = replace(found, shares=shares)
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
    said = forbidden_said = forbidden_text(forbidden, smallest, parties is not None)
    outliers = tuple(odd[i] for i in sorted(odd))
    if aside := len(_aside(odd)):
        said += f"{'' if chunks is None else ' Of a sample,'}{outside_text(aside, 0, True)}"
        step = replace(step, weighed=None)  # it is of others alone
    step = replace(step, reason=step.reason + said, outliers=outliers)
    step = replace(step, groups_forbidden=forbidden and bool(forbidden_said))
    parts = step, looked.n_users, sizes[order], rows[order]
    return StreamedStep(*parts, *(() if chunks is None else (rule, 2)))


def _aside(odd: Mapping[int, Outlier]) -> list[int]:
    return [i for i, one in odd.items() if one.set_aside]


def _believed(
    told: Uploads,
    odd: dict[int, Outlier],
    find: Callable[[Uploads, Ints], tuple[FoundGroups, WideGroups]],
) -> tuple[FoundGroups, WideGroups, dict[int, Outlier]]:
    """Groups of users whose rows are what the groups' models say, and who is set aside.

    Users on whose rows the models lose much more than on others' are set aside, twice at most.
    """
    every, users = np.arange(len(told)), told.users.tolist()
    for i in np.flatnonzero(_elsewhere(told)).tolist():
        if i not in _aside(odd):
            odd[i] = Outlier(users[i], "elsewhere")
    if 2 * len(_aside(odd)) >= len(told):
        odd = {}
    for turn in range(TURNS):
        inside = np.setdiff1d(every, _aside(odd))
        usual = told if len(inside) == len(told) else told.take(inside)
        found, groups = find(usual, inside)
        times = _lost_times(usual, groups)
        new = np.flatnonzero(times > 1)
        if not len(new) or turn == TURNS - 1 or 2 * len(new) >= len(usual):
            break
        for i in new.tolist():
            at = int(inside[i])
            odd[at] = Outlier(users[at], "rows", factor=float(times[i]))
    return found, groups, odd


def _elsewhere(uploads: Uploads) -> Bools:
    """Users whose averages lie farther out, over all columns together, than anybody's would.

    Also users whose columns, all together, vary much more or less than others' do.
    """
    columns = user_columns(uploads)
    told = columns.rows >= FEW_ROWS
    if told.sum() < FEWEST_JUDGED:
        return np.zeros(len(uploads), np.bool_)
    usual = np.median(columns.sd[told], axis=0)
    unit = np.where(usual > 0, usual, 1.0)
    logs = np.log(np.maximum(columns.sd, 1e-300) / unit)
    means = columns.mean[:, None]
    if uploads.class_means is not None:
        own = (uploads.told_rows > 0)[..., None]
        means = np.where(own, uploads.class_means, np.nan).astype(np.float64)
        unit = unit[:-1]
    with warnings.catch_warnings(action="ignore"):  # nobody may have rows of a class
        away = (means - np.nanmedian(means[told], axis=0)) / unit
        out = np.log(np.maximum(np.nanmean(away**2, axis=2), 1e-300)) / 2
    level = np.nan_to_num(np.nanmax(np.where(np.isnan(out), -np.inf, out), axis=1), neginf=-690.0)
    logs = np.where(columns.varies & (usual > 0), logs, np.nan)
    with warnings.catch_warnings(action="ignore"):  # nothing may vary in a user
        size = np.nanmean(logs, axis=1)
    other = np.abs(size - np.nanmedian(size[told]))
    far = BEYOND * max(1.4826 * float(np.nanmedian(other[told])), LEAST)
    if uploads.observations is not None:  # averages say nothing of that
        other = np.where(uploads.observations >= uploads.n_samples, other, np.nan)
    return told & ((level > _most(level[told])) | (np.nan_to_num(other) > far))


def _most(level: Floats) -> float:
    """Up to where logarithms of users' numbers are usual."""
    middle = float(np.median(level))
    return middle + BEYOND * max(1.4826 * float(np.median(np.abs(level - middle))), LEAST)


def _lost_times(uploads: Uploads, groups: WideGroups) -> Floats:
    """What the best group loses on each user's rows, over the most that is usual, (n_users,)."""
    thin = thin_terms(uploads)
    if thin is not None:
        every = np.ones(len(uploads), np.bool_)
        losses = thin.losses(every, groups.scores[0, :, :-1, 0])
        lost, own = losses.min(axis=1), losses.argmin(axis=1)
        lost, told = lost / np.maximum(thin.told, 1e-300), thin.told >= FEW_ROWS
        level = np.log(np.maximum(lost, 1e-300))
        large = np.bincount(own[told]) >= FEWEST_JUDGED
        for k in np.flatnonzero(large).tolist():  # each has its noise
            level[own == k] -= np.median(level[told & (own == k)])
    else:
        assert uploads.class_means is not None
        means, own = uploads.class_means.astype(np.float64), np.arange(groups.shares.shape[1])
        rows = uploads.told_rows
        n, worst = rows.sum(axis=1), np.full(len(uploads), np.inf)
        for k, scores in enumerate(groups.scores[0]):
            z = log_softmax(means @ scores[:-1] + scores[-1] + np.log(groups.shares[k]), axis=2)
            worst = np.minimum(worst, -(rows * z[:, own, own]).sum(axis=1))
        lost, told = worst / np.maximum(n, 1e-300), n >= FEW_ROWS
        level = lost
    if told.sum() < FEWEST_JUDGED:
        return np.zeros(len(uploads))
    middle, most = float(np.median(level[told])), _most(level[told])
    if thin is None:  # a model may not know, and must not know better than by chance the opposite
        most = max(most, float(np.log(groups.shares.shape[1])))
    return np.where(told & (level > most), np.exp(level - middle), 0.0)


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
        _found_text(rule.groups, alike=alike),
        "ridge models of the groups, their strength by users held out",
        shares.max(axis=1),
        mixture=rule.groups,
        weighed=None if placing is None else of_fits([placing.fit], placing.fit, labels),
    )


def _found_text(groups: WideGroups, *, alike: bool) -> str:
    """How many groups, and how users of a group differ: their levels too, where they have any."""
    k, sd = len(groups.weights), float(np.sqrt(groups.level))
    said = found_text(k, alike=alike and not sd)
    return f"{said} {differences_text({LEVEL: sd}, k)}" if sd else said


def _held_by_parties(r: Floats, party: Ints, rows: Floats, smallest: int) -> bool:
    """Has every group enough parties, and none with more than half of its rows?"""
    share = np.zeros((int(party.max()) + 1, r.shape[1]))
    np.add.at(share, party, rows[:, None] * r)
    enough = parties_behind(r, party, rows) >= smallest
    return bool(enough.all() and (share.max(axis=0) <= HALF * share.sum(axis=0)).all())
