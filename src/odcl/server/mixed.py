"""The server's step for mixed groups: the users' data terms -> groups, and differences inside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.spec import MixedGroups
from odcl.data.unusual import Limits, unusual_users
from odcl.errors import NotAdmissible
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.mixed.em import MixtureFit
from odcl.mixed.layout import (
    Coordinates,
    coordinates,
    gaussian_expansion,
    model_map,
    model_spread,
    plain_coordinates,
)
from odcl.mixed.mixture import MixtureMoments, Quadratics, by_row, moments
from odcl.mixed.posterior import Mixture, mixture_of, posterior
from odcl.mixed.search import search, search_sample
from odcl.mixed.streaming_em import (
    Parameters,
    PassSums,
    e_step,
    fit_everybody,
    pass_sums,
    shares_of,
)
from odcl.mixed.terms import DataTerms, quadratics
from odcl.risk.loss import symmetric
from odcl.risk.risk import GAUSSIAN_WIDTHS
from odcl.server.chunks import HALF, Chunks, Parties, Survey, Tally, added, tallied
from odcl.server.columns import all_terms, shared_coordinates, user_columns
from odcl.server.result import ServerStep, StreamedStep, of_fits
from odcl.threads import one_thread

# The weight of groups of users whose features lie apart: only such users are drawn there.
APART = 1e-6


def mixed_step(
    looked: Survey, method: Method, chunks: Chunks | None = None, parties: Parties | None = None
) -> StreamedStep:
    """Find groups and differences by evidence; every user takes part with what its rows say.

    Without ``chunks`` all users are in the sample, in canonical order; else groups are found on the
    sample, and everybody takes part in what they are. Users whose features lie where nobody else's
    do take no part in what others are sent: they are placed afterwards, in groups of their own
    where these may be.
    """
    if chunks is None:
        return _of_all(looked.sample, method, parties)
    return _of_sample(looked, method, chunks, parties)


def _of_all(uploads: Uploads, method: Method, parties: Parties | None) -> StreamedStep:
    outside = unusual_users(user_columns(uploads)).in_features
    if 2 * outside.sum() >= len(uploads):
        outside = np.zeros_like(outside)
    usual = uploads.take(~outside) if outside.any() else uploads
    refuse_silence(len(usual), int((usual.seen > 0).sum()))
    at = common_coordinates(usual, all_terms(usual))
    smallest, spoke = method.smallest_group, usual.seen > 0

    def admissible(q: Quadratics, fit: MixtureFit) -> bool:
        """Is every group the likeliest of enough users who said something?"""
        r = fit.responsibilities
        if parties is not None:
            m = moments(q, fit.spread, fit.s2)
            return held_by_enough(m, r, parties.of[~outside], usual.seen, smallest)
        return bool(np.bincount(r[spoke].argmax(axis=1), minlength=fit.n_groups).min() >= smallest)

    fits: list[MixtureFit] = []
    candidates = _candidates(usual, at)
    for q in candidates:
        try:
            asked = dict(method.clusterer.params)  # max_groups, n_groups, spread
            fits.append(search(q, usual.users, admissible=partial(admissible, q), **asked))
        except NotAdmissible:
            if q is candidates[-1] and not fits:
                raise
    fit, labels = _numbered(min(fits, key=lambda fit: fit.evidence))
    sure = fit.responsibilities[np.arange(len(labels)), labels]
    mixture, weighed = mixture_of(fit, at), of_fits(fits, fit, labels)
    forbidden = forbidden_text(fit.groups_forbidden, smallest, parties is not None)
    reason = found_text(fit.n_groups, alike=not fit.spread.matrix.any()) + forbidden
    if outside.any():
        some = uploads.take(outside)
        (q,), _ = user_quadratics(some, mixture)
        mixture, more = _with_own_groups(mixture, some, method)
        reason += _outside_text(len(some), more)
        placed = posterior(q, mixture).responsibilities
        labels, sure = (
            _merged(outside, placed.argmax(axis=1), labels),
            _merged(outside, placed.max(axis=1), sure),
        )
        order = by_first_user(labels, len(mixture.weights))
        labels, mixture = np.argsort(order)[labels], mixture.take(order)
        weighed = weighed.spread(np.where(outside, -1, np.cumsum(~outside) - 1))
    step = _server_step(uploads, mixture, reason, bool(forbidden))
    step = replace(step.with_users(uploads.users, labels, sure), weighed=weighed)
    k = step.n_clusters
    sizes = np.bincount(labels, minlength=k)
    rows = np.bincount(labels, weights=uploads.n_samples, minlength=k).astype(np.float64)
    return StreamedStep(step, len(uploads), sizes, rows)


def _merged(outside: Bools, theirs: Ints | Floats, others: Ints | Floats) -> Any:
    """One array of all users from that of users outside and that of the others."""
    every = np.empty(len(outside), others.dtype)
    every[outside], every[~outside] = theirs, others
    return every


def _server_step(uploads: Uploads, mixture: Mixture, reason: str, forbidden: bool) -> ServerStep:
    """The groups of a mixture, still without users."""
    assert uploads.risk is not None
    offset, change = model_map(mixture, uploads.risk)
    nobody = np.zeros(0, np.intp)
    return ServerStep(
        nobody,
        nobody,
        offset + mixture.centers @ change.T,
        np.zeros((0, len(offset))),
        "mixed groups",
        reason,
        "posterior mean of the groups' models",
        tau2=float(np.diag(model_spread(mixture, uploads.risk)).mean()),
        mixture=mixture,
        groups_forbidden=forbidden,
    )


def _candidates(usual: Uploads, at: Coordinates) -> list[Quadratics]:
    """The usual users' data terms, once for each width of the Gaussian terms' prior."""
    fixed, dispersion = shared_coordinates(usual, at), 1.0
    if usual.gaussian_curvature is not None:
        from odcl.server.counts import DISPERSED, overdispersion

        dispersion = overdispersion(usual, DISPERSED)
    return [
        replace(seen_quadratics(usual, at, width), fixed=fixed, dispersion=dispersion)
        for width in _widths(usual)
    ]


def _widths(uploads: Uploads) -> range:
    return range(1 if uploads.factor is not None else len(GAUSSIAN_WIDTHS))


def held_by_enough(
    m: MixtureMoments, r: Floats, party: Ints, weight: Floats, smallest: int
) -> bool:
    """Has every center enough parties, and none with more than half of its information?

    ``r`` (n_users, K) are the users' groups. A party counts where at least half of its ``weight``
    (n_users,) lies. Its share of a center's information M_k = sum r W is
    tr(M_k^+ M_party) / rank, the mean over all directions.
    """
    n, n_groups = int(party.max()) + 1, r.shape[1]
    share = np.zeros((n, n_groups))
    np.add.at(share, party, weight[:, None] * r)
    total = share.sum(axis=1, keepdims=True)
    if (((share >= 0.5 * total) & (total > 0)).sum(axis=0) < smallest).any():
        return False
    W = m.W
    for k in range(n_groups):
        inverse = np.linalg.pinv(np.tensordot(r[:, k], W, axes=1), rcond=1e-10, hermitian=True)
        each = r[:, k] * (W.reshape(len(W), -1) @ inverse.ravel())
        own = np.bincount(party, weights=each, minlength=n)
        if own.max() > HALF * own.sum():
            return False
    return True


# -- groups found on a sample ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MixedRule:
    """The likeliest group of every user, from its data term."""

    coordinates: Coordinates
    width: int  # of the Gaussian terms' prior
    parameters: Parameters
    limits: Limits  # users outside are placed, and take no part in what others are sent

    def labels(self, uploads: Uploads) -> Ints:
        return self._shares(uploads).argmax(axis=1)

    def place(self, uploads: Uploads, found: ServerStep) -> ServerStep:
        r = self._shares(uploads)
        labels = r.argmax(axis=1)
        return found.with_users(uploads.users, labels, r[np.arange(len(r)), labels])

    def _shares(self, uploads: Uploads) -> Floats:
        with one_thread():
            return shares_of(self.quadratics(uploads), self.parameters)

    def usual(self, uploads: Uploads) -> Bools:
        return ~self.limits.outside(user_columns(uploads)).in_features

    def sums(self, uploads: Uploads) -> PassSums:
        with one_thread():
            return pass_sums(self.quadratics(uploads.take(self.usual(uploads))), self.parameters)

    def held_by(self, parties: Parties, smallest: int) -> bool:
        """Has every group enough parties behind it?"""
        usual, at = self.usual(parties.users), self.parameters
        some = parties.users.take(usual)
        r, _, _, m = e_step(self.quadratics(some), at)
        return held_by_enough(m, r, parties.of[usual], some.seen, smallest)

    def quadratics(self, uploads: Uploads) -> Quadratics:
        own = not self.parameters.noise.common
        return seen_quadratics(uploads, self.coordinates, self.width, pure=own)


def _of_sample(
    looked: Survey, method: Method, chunks: Chunks, parties: Parties | None
) -> StreamedStep:
    like, smallest = looked.sample, method.smallest_group
    refuse_silence(looked.n_users, looked.speaking)
    at = common_coordinates(like, looked.total)
    limits = Limits.of(user_columns(like))
    outside = limits.outside(user_columns(like)).in_features
    apart, like = like.take(outside), like.take(~outside)
    asked = dict(method.clusterer.params)  # max_groups, n_groups, spread
    candidates = _candidates(like, at)
    fits = [search_sample(q, like.users, **asked) for q in candidates]
    width = min(range(len(fits)), key=lambda width: fits[width].evidence)
    best = fits[width]
    counted: list[Tally] = []

    def allowed(parameters: Parameters) -> bool:
        """Is every group the likeliest of enough users who said something?"""
        rule = MixedRule(at, width, parameters, limits)
        counted.append(tallied(chunks, rule, parameters.n_groups))
        if parties is not None:
            return rule.held_by(parties, smallest)
        return bool(counted[-1].speaking.min() >= smallest)

    def total(parameters: Parameters) -> PassSums:
        rule = MixedRule(at, width, parameters, limits)
        found: PassSums = added(chunks, rule.sums)
        return found

    with one_thread():
        fit, passes = fit_everybody(candidates[width], best, total, allowed)
    same, mixture = fit.n_groups == best.n_groups, mixture_of(fit, at)
    forbidden = forbidden_text(not same, smallest, parties is not None)
    reason = found_text(fit.n_groups, alike=not fit.spread.matrix.any()) + forbidden
    if len(apart):
        mixture, more = _with_own_groups(mixture, apart, method)
        allowed(mixture.parameters)
        reason += f" Of a sample,{_outside_text(len(apart), more)}"
    counts = counted[-1]
    mixture = mixture.take(counts.order)
    rule = MixedRule(at, width, mixture.parameters, limits)
    step = rule.place(like, _server_step(like, mixture, reason, bool(forbidden)))
    # A mixture that has lost a group since is none of those that were looked at.
    if same:
        step = replace(step, weighed=of_fits(fits, best, step.labels))
    sizes, rows = counts.sizes[counts.order], counts.rows[counts.order]
    return StreamedStep(step, looked.n_users, sizes, rows, rule, passes)


# -- users outside, coordinates, words -------------------------------------------------------------


def _with_own_groups(mixture: Mixture, outside: Uploads, method: Method) -> tuple[Mixture, int]:
    """The mixture with groups of users who lie outside, alike inside them, and how many.

    They are found in these users' own units. None are made where K is given, or where a group of so
    few may not be told.
    """
    asked = dict(method.clusterer.params)
    most = asked.get("max_groups", MixedGroups().max_groups) - len(mixture.weights)
    if asked.get("n_groups") is not None or method.smallest_group > 1 or most < 1:
        return mixture, 0
    assert outside.risk is not None
    candidates, at = user_quadratics(outside)
    fits = [search(q, outside.users, spread="zero", max_groups=most) for q in candidates]
    own = min(fits, key=lambda fit: fit.evidence)
    (there, back), (offset, change) = (
        model_map(one, outside.risk) for one in (mixture, mixture_of(own, at))
    )
    inverse = np.linalg.pinv(back)
    turn = inverse @ change
    return replace(
        mixture,
        weights=np.append((1 - APART) * mixture.weights, APART * own.weights),
        centers=np.vstack([mixture.centers, (offset - there) @ inverse.T + own.centers @ turn.T]),
        covariances=np.concatenate(
            [mixture.covariances, symmetric(turn @ own.covariances @ turn.T)]
        ),
    ), own.n_groups


def _outside_text(n_users: int, n_groups: int) -> str:
    one = n_users == 1
    text = f" {n_users:,} user{'' if one else 's'} with features unlike everybody else's"
    if not n_groups:
        return f"{text} {'was' if one else 'were'} placed in the nearest of them."
    return f"{text} {'has' if one else 'have'} {n_groups} group{'s' * (n_groups > 1)} apart."


def refuse_silence(n_users: int, speaking: int) -> None:
    if not speaking:
        raise ValueError(
            f"None of {n_users} users sent a data term, because each of them has one row and "
            "the term would be that row: wait for more rows, or allow it (short_terms=True)."
        )


def user_quadratics(
    uploads: Uploads, mixture: Mixture | None = None
) -> tuple[list[Quadratics], Coordinates]:
    """The users' data terms as quadratics, in the coordinates of a mixture or of all terms.

    For losses that are not quadratic, one for each width of the Gaussian terms' prior; given a
    mixture, the one under whose prior its models are likeliest.
    """
    at = common_coordinates(uploads, all_terms(uploads)) if mixture is None else mixture.coordinates
    if uploads.factor is not None:
        return [seen_quadratics(uploads, at)], at
    found = [seen_quadratics(uploads, at, width) for width in _widths(uploads)]
    return (found if mixture is None else [_nearest(found, mixture)]), at


def common_coordinates(some: Uploads, terms: DataTerms | None) -> Coordinates:
    """The coordinates of all users, whose terms or whose summed term is given.

    Units are read off the usual ones among ``some`` users: all, or a sample of them.
    """
    risk, own = some.risk, all_terms(some)
    assert risk is not None
    if terms is None or own is None:
        return plain_coordinates(some.dim // risk.n_outputs - risk.intercept, risk)
    usual = unusual_users(user_columns(some)).others
    units = own[usual] if len(terms) != len(own) or not usual.all() else None
    return coordinates(terms, units, intercept=risk.intercept, factors=risk.factors)


def seen_quadratics(
    uploads: Uploads, at: Coordinates, width: int = 0, *, pure: bool = True
) -> Quadratics:
    """The users' data terms as quadratics; of Gaussian terms, one width of their prior.

    Without ``pure``, what only users' own noise is read off is left out.
    """
    risk, terms = uploads.risk, all_terms(uploads)
    assert risk is not None
    if terms is not None:
        q, n = quadratics(terms, at, pure=pure), uploads.observations
        if n is None:
            return q
        # An average is one observation, of variance s2 / n, and has no error of its own.
        few = n < uploads.n_samples
        return replace(q, rows=n, dof=np.where(few, 0, q.dof), pure=np.where(few, 0, q.pure))
    A, b, constant = uploads.gaussian_curvature, uploads.gaussian_slope, uploads.gaussian_constant
    if A is None or b is None or constant is None:
        raise ValueError(
            "Mixed groups need the users' data terms, and these uploads hold none: fit the users "
            "with the same method, or cluster their models (clusterer='silhouette')."
        )
    from odcl.mixed.gaussian import prior_sd

    D, none = risk.n_outputs, np.zeros(len(uploads))
    all_levels = gaussian_expansion(uploads.dim // D - risk.intercept, risk)
    sd = prior_sd(at.dim // D, D, intercept=risk.intercept, width=GAUSSIAN_WIDTHS[width])
    return Quadratics(
        symmetric(all_levels @ A[:, width] @ all_levels.T),
        by_row(b[:, width], all_levels.T),
        constant[:, width],
        uploads.seen,
        none,
        none,
        False,
        uploads.gaussian_ceiling,
        sd**-2.0,
    )


def _nearest(widths: list[Quadratics], mixture: Mixture) -> Quadratics:
    """Gaussian terms of the prior under which the models of a mixture are likeliest."""
    square = np.diag(mixture.inside) + mixture.weights @ mixture.centers**2
    priors = np.stack([q.anchor for q in widths if q.anchor is not None])
    return widths[int(np.argmin((square * priors - np.log(priors)).sum(axis=1)))]


def _numbered(fit: MixtureFit) -> tuple[MixtureFit, Ints]:
    """Groups numbered by their first user; a group that is nobody's likeliest comes last."""
    likeliest = fit.responsibilities.argmax(axis=1)
    order = by_first_user(likeliest, fit.n_groups)
    labels = np.argsort(order)[likeliest]
    return replace(
        fit,
        weights=fit.weights[order],
        centers=fit.centers[order],
        covariances=fit.covariances[order],
        responsibilities=fit.responsibilities[:, order],
    ), labels.astype(np.intp)


def by_first_user(labels: Ints, n_groups: int) -> Ints:
    """Groups in the order of their first users; groups without users come last."""
    first = {int(k): i for i, k in reversed(list(enumerate(labels.tolist())))}
    order = sorted(range(n_groups), key=lambda k: (first.get(k, len(labels)), k))
    return np.array(order, np.intp)


def found_text(k: int, *, alike: bool) -> str:
    """How many groups, and how users of a group differ, in a sentence."""
    found = f"{k} groups found. Within a group, users" if k > 1 else "No groups: users"
    return f"{found} differ {'only by noise' if alike else 'gradually'}."


def forbidden_text(forbidden: bool, smallest: int, parties: bool) -> str:
    """What was seen and may not be told, in a sentence; empty: nothing."""
    if not forbidden or (smallest == 1 and not parties):
        return ""
    held = f"{smallest} users"
    if parties:
        held = f"{smallest} sites, none with more than half of what is known of it"
    return f" More groups were seen, and were not allowed: each needs at least {held}."
