"""The server's step for mixed groups: the users' data terms -> groups, and differences inside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from warnings import catch_warnings

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.clustering.spec import MixedGroups
from odcl.data.unusual import Limits, unusual_users
from odcl.errors import NotAdmissible, count
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.mixed.em import MixtureFit
from odcl.mixed.layout import (
    Coordinates,
    coordinates,
    from_own_units,
    gaussian_coordinates,
    model_map,
    model_spread,
)
from odcl.mixed.mixture import MixtureMoments, Quadratics, moments
from odcl.mixed.posterior import APART, Mixture, mixture_of, posterior
from odcl.mixed.robust import STRANGE, Judgement, believed, heard, judge, usual_terms
from odcl.mixed.search import search, search_sample
from odcl.mixed.select import evidence
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
from odcl.risk.risk import GAUSSIAN_WIDTHS, MIDDLE_WIDTH, Curve
from odcl.server.chunks import (
    HALF,
    Chunks,
    Parties,
    Survey,
    Tally,
    added,
    parties_behind,
    tallied,
)
from odcl.server.columns import (
    all_terms,
    gaussian_columns,
    gaussian_parts,
    lie_apart,
    line_numbers,
    shared_coordinates,
    user_columns,
)
from odcl.server.result import ServerStep, StreamedStep, of_fits
from odcl.server.robust import Outlier, Screen, even_users, outlier_lines, screened
from odcl.threads import one_thread

ALIKE = 0.9  # share of users whose terms are the same under two widths: one need not be looked at
MOST = 1e12  # of a number of such a group, in canonical coordinates: everybody computes with it


def mixed_step(
    looked: Survey, method: Method, chunks: Chunks | None = None, parties: Parties | None = None
) -> StreamedStep:
    """Find groups and differences by evidence; every user takes part with what its rows say.

    Without ``chunks`` all users are in the sample, in canonical order; else groups are found on the
    sample, and everybody takes part in what they are. Users whose features lie where nobody else's
    do take no part in what others are sent: they are placed afterwards, in groups of their own
    where these may be.
    """
    if looked.sample.private:
        from odcl.server.private import private_step

        return private_step(looked, method, chunks, parties)
    if chunks is None:
        return _of_all(looked.sample, method, parties)
    return _of_sample(looked, method, chunks, parties)


def _of_all(uploads: Uploads, method: Method, parties: Parties | None) -> StreamedStep:
    party = None if parties is None else parties.of
    told, odd = uploads, dict[int, Outlier]()
    if method.robust:
        told, odd, screen = screened(uploads, party)
        uploads = screen.harmless(uploads)
        outside = np.isin(np.arange(len(uploads)), [i for i in odd if odd[i].set_aside])
    else:
        outside = lie_apart(uploads)
    if 2 * outside.sum() >= len(uploads):
        outside, odd = np.zeros_like(outside), {}
    inside = np.flatnonzero(~outside)
    usual = told.take(inside) if outside.any() else told
    refuse_silence(len(usual), int((usual.seen > 0).sum()))
    at, candidates = _candidates(
        usual, common_coordinates(usual, all_terms(usual), robust=method.robust)
    )
    if parties is not None:  # who hold lines and curves
        candidates = [replace(q, beside=None) for q in candidates]

    def find(some: Bools) -> list[MixtureFit | None]:
        """The best mixture of some users, under each width; None: there is no admissible one."""
        all_ = bool(some.all())
        own = party if party is None else party[inside[some]]
        return _fits(
            candidates if all_ else [_some(q, some) for q in candidates],
            usual if all_ else usual.take(some),
            method,
            own,
        )

    if method.robust:
        candidates = [heard(q) for q in candidates]
        even = even_users(len(usual), None if party is None else party[inside])
        try:
            found = believed(candidates, find, even)
        except NotAdmissible as error:
            aside = outlier_lines([one for one in odd.values() if one.set_aside], (), "")
            raise NotAdmissible(
                f"{error} {' '.join(f'{one}.' for one in aside)}".rstrip()
            ) from None
        found_fits, fit = found.fits, found.fit
        more_odd = _implausible(found.kept, found.judgement, usual.users, at)
        odd |= {int(inside[i]): one for i, one in more_odd.items()}
        outside[inside[~found.kept]] = True
    else:
        found_fits = find(np.ones(len(usual), np.bool_))
        fit = min(filter(None, found_fits), key=evidence)
    fits = [*filter(None, found_fits)]
    smallest = method.smallest_group
    fit, labels = _numbered(fit)
    sure = fit.responsibilities[np.arange(len(labels)), labels]
    mixture, weighed = mixture_of(fit, at), of_fits(fits, fit, labels)
    forbidden = forbidden_text(fit.groups_forbidden, smallest, parties is not None)
    reason = found_text(fit.n_groups, alike=not fit.spread.matrix.any()) + forbidden
    if outside.any():
        mixture, placed, more = _with_outside(mixture, uploads.take(outside), method)
        reason += outside_text(int(outside.sum()), more, method.robust)
        labels = _merged(outside, placed.argmax(axis=1), labels)
        sure = _merged(outside, placed.max(axis=1), sure)
        order = by_first_user(labels, len(mixture.weights))
        labels, mixture = np.argsort(order)[labels], mixture.take(order)
        weighed = weighed.spread(np.where(outside, -1, np.cumsum(~outside) - 1))
    step = _server_step(uploads, mixture, reason, bool(forbidden))
    step = replace(step.with_users(uploads.users, labels, sure), weighed=weighed)
    step = replace(step, outliers=tuple(odd[i] for i in sorted(odd)))
    k = step.n_clusters
    sizes = np.bincount(labels, minlength=k)
    rows = np.bincount(labels, weights=uploads.n_samples, minlength=k).astype(np.float64)
    return StreamedStep(step, len(uploads), sizes, rows)


def _fits(
    candidates: list[Quadratics], usual: Uploads, method: Method, party: Ints | None
) -> list[MixtureFit | None]:
    """The mixture of best evidence under each candidate; None where none is admissible."""
    smallest, spoke = method.smallest_group, usual.seen > 0

    def admissible(q: Quadratics, fit: MixtureFit) -> bool:
        """Is every group the likeliest of enough users who said something?"""
        r = fit.responsibilities
        if party is not None:
            m = moments(q, fit.spread, fit.s2)
            return held_by_enough(m, r, party, usual.seen, smallest)
        return bool(np.bincount(r[spoke].argmax(axis=1), minlength=fit.n_groups).min() >= smallest)

    asked = dict(method.clusterer.params)  # max_groups, n_groups, spread

    def look(q: Quadratics) -> MixtureFit:
        return search(q, usual.users, admissible=partial(admissible, q), **asked)

    return _looked_at(candidates, look)


def _some(q: Quadratics, users: Bools) -> Quadratics:
    """The terms of some users, lines beside common curves among them."""
    beside = None if q.beside is None else q.beside[users]
    return replace(q[users], beside=beside)


def _with_outside(mixture: Mixture, some: Uploads, method: Method) -> tuple[Mixture, Floats, int]:
    """The mixture with groups of users outside, these users' shares, and how many groups.

    A group of their own to which none of them is likeliest to belong is none.
    """
    (q,), _ = user_quadratics(some, mixture)
    before, more = len(mixture.weights), 0
    # Whatever they sent, others have their groups: theirs are made where they can be.
    with suppress(np.linalg.LinAlgError, ValueError, IndexError), catch_warnings(action="ignore"):
        mixture, more = _with_own_groups(mixture, some, method)
    r = posterior(q, mixture).responsibilities
    held = np.bincount(r.argmax(axis=1), minlength=len(mixture.weights)) > 0
    held[:before] = True
    if not held.all():
        mixture, more = mixture.take(np.flatnonzero(held)), int(held[before:].sum())
        r = posterior(q, mixture).responsibilities
    return mixture, r, more


def _implausible(
    kept: Bools, verdict: Judgement, users: Array, at: Coordinates
) -> dict[int, Outlier]:
    """Users who are not kept because their models fit no group, by position, and why."""
    odd = {}
    for i in np.flatnonzero(~kept).tolist():
        user = users[[i]].tolist()[0]
        j = int(verdict.stands_out[i]) % (len(at.kept) + at.intercept) - int(at.intercept)
        odd[i] = Outlier(
            user, "model", None if j < 0 else int(at.kept[j]), float(verdict.distance[i])
        )
        if verdict.alike[i]:
            odd[i] = Outlier(user, "alike")
    return odd


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


def _candidates(usual: Uploads, at: Coordinates) -> tuple[Coordinates, list[Quadratics]]:
    """Coordinates without closed curves, and the usual users' data terms in them.

    Of losses that are not quadratic they come once for each width of the Gaussian terms' prior.
    """
    dispersion = 1.0
    if usual.gaussian_curvature is not None:
        from odcl.server.columns import DISPERSED, overdispersion

        dispersion = overdispersion(usual, DISPERSED)

    def terms(at: Coordinates, pure: bool, width: int) -> Quadratics:
        q = seen_quadratics(usual, at, width, pure=pure)
        return replace(q, fixed=shared_coordinates(usual, at), dispersion=dispersion)

    if at.bends is not None:
        from odcl.mixed.curves import open_curves

        return open_curves(terms, at, _widths(usual))
    return at, [terms(at, True, width) for width in _widths(usual)]


def curves_that_show(uploads: Uploads, *, robust: bool = False) -> tuple[Curve, ...]:
    """The columns that act in curves, as far as these users can tell."""
    outside = lie_apart(uploads)
    usual = uploads.take(np.flatnonzero(~outside)) if 2 * outside.sum() < len(uploads) else uploads
    at = common_coordinates(usual, all_terms(usual), robust=robust)
    return _candidates(usual, at)[0].opened


def _looked_at(
    candidates: list[Quadratics], look: Callable[[Quadratics], MixtureFit]
) -> list[MixtureFit | None]:
    """The best fit of each width; None where none is admissible, or nearly all terms are alike.

    Where nine of ten users have the terms of the middle width, it is that: others tell too little.
    """
    fits = list[MixtureFit | None]([None] * len(candidates))
    middle = candidates[min(MIDDLE_WIDTH, len(candidates) - 1)]
    for i, q in enumerate(candidates):
        alike = (q.A == middle.A).all(axis=(1, 2)) & (q.b == middle.b).all(axis=1)
        if q is not middle and q.beside is None and alike.mean() >= ALIKE:
            continue
        with suppress(NotAdmissible):
            fits[i] = look(q)
    return fits if any(fits) else [look(candidates[-1])]  # which says why


def _widths(uploads: Uploads) -> range:
    return range(1 if uploads.factor is not None else len(GAUSSIAN_WIDTHS))


def held_by_enough(
    m: MixtureMoments, r: Floats, party: Ints, weight: Floats, smallest: int
) -> bool:
    """Has every center enough parties, and none with more than half of its information?

    ``r`` (n_users, K) are the users' groups, :func:`parties_behind` says who counts. A party's
    share of a center's information M_k = sum r W is tr(M_k^+ M_party) / rank, the mean over all
    directions.
    """
    if (parties_behind(r, party, weight) < smallest).any():
        return False
    W, n = m.W, int(party.max()) + 1
    for k in range(r.shape[1]):
        inverse = np.linalg.pinv(np.tensordot(r[:, k], W, axes=1), rcond=1e-10, hermitian=True)
        each = r[:, k] * (W.reshape(len(W), -1) @ inverse.ravel())
        own = np.bincount(party, weights=each, minlength=n)
        if own.max() > HALF * own.sum():
            return False
    return True


# -- groups found on a sample ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Belief:
    """Who takes part in what others are sent, as a sample of the users tells it."""

    screen: Screen
    core: Parameters  # of the most plausible users
    usual: float  # what their distances from it are divided by
    least: float  # users whom fewer members than this share would be like are set aside
    terms: tuple[float, float]  # what of a term is believed, see ``usual_terms``


@dataclass(frozen=True, eq=False)
class MixedRule:
    """The likeliest group of every user, from its data term."""

    coordinates: Coordinates
    width: int  # of the Gaussian terms' prior
    parameters: Parameters
    limits: Limits  # users outside are placed, and take no part in what others are sent
    belief: Belief | None = None  # who else takes no part, and how much users may count

    def labels(self, uploads: Uploads) -> Ints:
        return self._shares(uploads).argmax(axis=1)

    def place(self, uploads: Uploads, found: ServerStep) -> ServerStep:
        r = self._shares(uploads)
        labels = r.argmax(axis=1)
        return found.with_users(uploads.users, labels, r[np.arange(len(r)), labels])

    def _shares(self, uploads: Uploads) -> Floats:
        if self.belief is not None:
            uploads = self.belief.screen.harmless(uploads)
        with one_thread():
            return shares_of(self.quadratics(uploads), self.parameters)

    def usual(self, uploads: Uploads) -> Bools:
        if self.belief is not None:
            return ~np.isin(np.arange(len(uploads)), [*self._odd(uploads)])
        return ~lie_apart(uploads, self.limits)

    def sums(self, uploads: Uploads) -> PassSums:
        some = uploads.take(self.usual(uploads))
        if self.belief is not None:
            some = self.belief.screen.capped(some)[0]
        with one_thread():
            return pass_sums(self.quadratics(some), self.parameters)

    def outliers(self, uploads: Uploads) -> tuple[Outlier, ...]:
        """Who takes no part in what others are sent."""
        found = self._odd(uploads)
        return tuple(found[i] for i in sorted(found))

    def _odd(self, uploads: Uploads) -> dict[int, Outlier]:
        assert self.belief is not None
        screen, at = self.belief.screen, self.belief.core
        odd, told = screen.outliers(uploads), screen.capped(screen.harmless(uploads))[0]
        verdict = judge(self.quadratics(told), at, usual=self.belief.usual, stands_out=True)
        strange = verdict.tail < self.belief.least
        return _implausible(~strange, verdict, uploads.users, self.coordinates) | odd

    def held_by(self, parties: Parties, smallest: int) -> bool:
        """Has every group enough parties behind it?"""
        usual, at = self.usual(parties.users), self.parameters
        some = parties.users.take(usual)
        r, _, _, m = e_step(self.quadratics(some), at)
        return held_by_enough(m, r, parties.of[usual], some.seen, smallest)

    def quadratics(self, uploads: Uploads) -> Quadratics:
        own = not self.parameters.noise.common
        if self.belief is None:
            return seen_quadratics(uploads, self.coordinates, self.width, pure=own)
        return heard(seen_quadratics(uploads, self.coordinates, self.width), self.belief.terms)


def _of_sample(
    looked: Survey, method: Method, chunks: Chunks, parties: Parties | None
) -> StreamedStep:
    like, smallest, total_term = looked.sample, method.smallest_group, looked.total
    refuse_silence(looked.n_users, looked.speaking)
    asked = dict(method.clusterer.params)  # max_groups, n_groups, spread
    belief = None
    if method.robust:
        told, odd, screen = screened(like, None)
        limits, outside = screen.limits, np.isin(np.arange(len(like)), [*odd])
        apart, like = screen.harmless(like).take(outside), told.take(~outside)
        total_term = all_terms(like)  # a sum of all terms may be anybody's
    else:
        limits = Limits.of(user_columns(like))
        outside = lie_apart(like, limits)
        apart, like = like.take(outside), like.take(~outside)
    at, candidates = _candidates(like, common_coordinates(like, total_term, robust=method.robust))

    def find(some: Bools) -> list[MixtureFit | None]:
        few = candidates if some.all() else [_some(q, some) for q in candidates]
        return _looked_at(few, partial(search_sample, ids=like.users[some], **asked))

    every = np.ones(len(like), np.bool_)
    if method.robust:
        limits_of_terms = usual_terms(candidates[0])
        candidates = [heard(q, limits_of_terms) for q in candidates]
        found = believed(candidates, find, np.arange(len(like)))
        by_width, every, best = found.fits, found.kept, found.best
        belief = Belief(screen, found.core, found.usual, STRANGE / looked.n_users, limits_of_terms)
    else:
        by_width = find(every)
        best = min(filter(None, by_width), key=evidence)
    fits = [*filter(None, by_width)]
    width = by_width.index(best)
    basis = candidates[width] if every.all() else candidates[width][every]
    counted: list[Tally] = []

    def allowed(parameters: Parameters) -> bool:
        """Is every group the likeliest of enough users who said something?"""
        rule = MixedRule(at, width, parameters, limits, belief)
        counted.append(tallied(chunks, rule, parameters.n_groups))
        if parties is not None:
            return rule.held_by(parties, smallest)
        return bool(counted[-1].speaking.min() >= smallest)

    def total(parameters: Parameters) -> PassSums:
        rule = MixedRule(at, width, parameters, limits, belief)
        found: PassSums = added(chunks, rule.sums)
        return found

    with one_thread():
        fit, passes = fit_everybody(basis, best, total, allowed)
    same, mixture = fit.n_groups == best.n_groups, mixture_of(fit, at)
    forbidden = forbidden_text(not same, smallest, parties is not None)
    reason = found_text(fit.n_groups, alike=not fit.spread.matrix.any()) + forbidden
    if len(apart):
        mixture, _, more = _with_outside(mixture, apart, method)
        allowed(mixture.parameters)
        reason += f" Of a sample,{outside_text(len(apart), more, method.robust)}"
    counts = counted[-1]
    mixture = mixture.take(counts.order)
    rule = MixedRule(at, width, mixture.parameters, limits, belief)
    step = rule.place(like.take(every), _server_step(like, mixture, reason, bool(forbidden)))
    if belief is not None:
        step = replace(step, outliers=added(chunks, rule.outliers) or ())
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
    centers = (offset - there) @ inverse.T + own.centers @ turn.T
    covariances = symmetric(turn @ own.covariances @ turn.T)
    if not (np.abs(centers).max() < MOST and np.abs(covariances).max() < MOST):
        return mixture, 0
    return replace(
        mixture,
        weights=np.append((1 - APART) * mixture.weights, APART * own.weights),
        centers=np.vstack([mixture.centers, centers]),
        covariances=np.concatenate([mixture.covariances, covariances]),
    ), own.n_groups


def outside_text(n_users: int, n_groups: int, robust: bool) -> str:
    one = n_users == 1
    text = f" {n_users:,} user{'' if one else 's'} "
    if robust:
        text += f"who {'takes' if one else 'take'} no part in others' models"
    else:
        text += "with columns unlike everybody else's"
    if n_groups:
        own = "makes up a group of its own" if one else f"make up {count(n_groups, 'group')}"
        return f"{text} {own}{' of their own' * (not one)}."
    if robust:
        return f"{text} {'was' if one else 'were'} placed in the nearest group."
    return f"{text} did not affect others' models."


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


def common_coordinates(
    some: Uploads, terms: DataTerms | None, *, robust: bool = False
) -> Coordinates:
    """The coordinates of all users, whose terms or whose summed term is given.

    Units are read off the usual ones among ``some`` users: all, or a sample of them; if ``robust``,
    no user moves them by more than is usual.
    """
    risk, own = some.risk, all_terms(some)
    assert risk is not None
    usual = unusual_users(user_columns(some)).others
    if terms is None or own is None:
        columns = gaussian_columns(some)
        columns = columns.tamed() if robust else columns
        return gaussian_coordinates(*columns.pooled(usual), risk, risk.factors, risk.curves)
    units = own[usual] if len(terms) != len(own) or not usual.all() else None
    return coordinates(
        terms, units, intercept=risk.intercept, factors=risk.factors, curves=risk.curves
    )


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
    lines = not at.opened and uploads.gaussian_line_curvature is not None
    A, b, constant = gaussian_parts(uploads, lines=lines)
    if A is None or b is None or constant is None:
        raise ValueError(
            "Mixed groups need the users' data terms, and these uploads hold none: fit the users "
            "with the same method, or cluster their models (clusterer='silhouette')."
        )
    from odcl.mixed.gaussian import prior_sd

    D, none, columns = risk.n_outputs, np.zeros(len(uploads)), gaussian_columns(uploads)
    P = from_own_units(columns.mean, columns.sd, at, D)
    if lines:
        P = P[..., line_numbers(risk, at.n_features)]
    sd = prior_sd(at.dim // D, D, intercept=risk.intercept, width=width)
    return Quadratics(
        symmetric(P @ A[:, width] @ P.transpose(0, 2, 1)),
        (P @ b[:, width, :, None])[..., 0],
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
    return fit.take(order), np.argsort(order)[likeliest].astype(np.intp)


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
        held = (
            f"{smallest} sites (minimum_group) with users in it, none of them with more than half "
            "of what is known of it"
        )
    return f" More groups were seen, and were not allowed: each needs at least {held}."
