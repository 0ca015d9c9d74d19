"""The server's step for mixed groups: the users' data terms -> groups, and differences inside."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import chdtrc, fdtrc

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.mixed import MixedGroups
from odcl.data.federation import Federation
from odcl.data.unusual import unusual_users
from odcl.errors import InputError, NotAdmissible, Setting
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.local.receive import Received, receive
from odcl.method import Method
from odcl.mixed.coordinates import Coordinates, coordinates
from odcl.mixed.em import Fit
from odcl.mixed.gaussian import prior_sd
from odcl.mixed.layout import gaussian_expansion, model_map, model_spread, plain_coordinates
from odcl.mixed.mixture import Centers, Quadratics, Spread, by_row, misfits, moments
from odcl.mixed.noise import CAUTION, Noise
from odcl.mixed.posterior import Mixture, mixture_of, posterior
from odcl.mixed.search import search
from odcl.mixed.terms import DataTerms, merge, quadratics
from odcl.risk.loss import symmetric
from odcl.risk.risk import GAUSSIAN_WIDTHS, Risk
from odcl.server.alternatives import of_fits
from odcl.server.assign import STRANGE, Assignment
from odcl.server.columns import all_terms, shared_coordinates, user_columns
from odcl.server.dispersion import DISPERSED, overdispersion
from odcl.server.parties import held_by_enough

if TYPE_CHECKING:
    from odcl.server.step import ServerStep

# The weight of groups of users whose features lie apart: only such users are drawn there.
APART = 1e-6
# Variances, in canonical coordinates, that the model of a user who fits no group may have.
WIDER = 10.0 ** np.arange(7)


def mixed_step(uploads: Uploads, method: Method, party: Ints | None = None) -> ServerStep:
    """Find groups and differences by evidence; every user takes part with what its rows say.

    ``party`` (n_users,): who stands behind each user, see :mod:`odcl.server.parties`. Users whose
    features lie where nobody else's do take no part in what others are sent: they are placed
    afterwards, in groups of their own where these may be.
    """
    outside = unusual_users(user_columns(uploads)).in_features
    if not outside.any() or 2 * outside.sum() >= len(uploads):
        return _step_of_usual(uploads, method, party)
    usual = np.flatnonzero(~outside)
    step = _step_of_usual(uploads.take(usual), method, None if party is None else party[usual])
    return _with_outside(step, uploads, outside, method)


def _with_outside(step: ServerStep, uploads: Uploads, outside: Bools, method: Method) -> ServerStep:
    """The step of the usual users, with the others placed."""
    assert step.mixture is not None
    assert uploads.risk is not None
    some = uploads.take(outside)
    (q,), _ = user_quadratics(some, step.mixture)
    mixture, more = with_own_groups(step.mixture, some, method)
    placed = posterior(q, mixture).responsibilities
    labels, sure = np.empty(len(uploads), np.intp), np.empty(len(uploads))
    labels[~outside], sure[~outside] = step.labels, step.probabilities
    labels[outside], sure[outside] = placed.argmax(axis=1), placed.max(axis=1)
    order = _by_first_user(labels, len(mixture.weights))
    labels, mixture = np.argsort(order)[labels], mixture.take(order)
    offset, change = model_map(mixture, uploads.risk)
    centers = offset + mixture.centers @ change.T
    weighed = None
    if step.weighed is not None:
        at = np.cumsum(~outside) - 1
        weighed = step.weighed.take(np.maximum(at, 0)).where(~outside)
    return replace(
        step,
        users=uploads.users,
        labels=labels,
        centers=centers,
        models=centers[labels],
        probabilities=sure,
        mixture=mixture,
        reason=step.reason + outside_text(len(some), more),
        weighed=weighed,
    )


def with_own_groups(mixture: Mixture, outside: Uploads, method: Method) -> tuple[Mixture, int]:
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
    ids = [str(user) for user in outside.users.tolist()]
    fits = [search(q, ids, spread="zero", max_groups=most) for q in candidates]
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


def outside_text(n_users: int, n_groups: int) -> str:
    one = n_users == 1
    text = f" {n_users:,} user{'' if one else 's'} with features unlike everybody else's"
    if not n_groups:
        return f"{text} {'was' if one else 'were'} placed in the nearest of them."
    return f"{text} {'has' if one else 'have'} {n_groups} group{'s' * (n_groups > 1)} apart."


def _step_of_usual(uploads: Uploads, method: Method, party: Ints | None) -> ServerStep:
    from odcl.server.step import ServerStep

    assert uploads.risk is not None
    refuse_silence(len(uploads), int((uploads.seen > 0).sum()))
    candidates, at = user_quadratics(uploads)
    fixed = shared_coordinates(uploads, at)
    dispersion = overdispersion(uploads, DISPERSED)
    candidates = [replace(q, fixed=fixed, dispersion=dispersion) for q in candidates]
    asked = dict(method.clusterer.params)  # max_groups, n_groups, spread
    smallest, spoke = method.smallest_group, uploads.seen > 0

    def admissible(q: Quadratics, fit: Fit) -> bool:
        """Is every group the likeliest of enough users who said something?"""
        if party is not None:
            return held_by_enough(q, fit, party, uploads.seen, smallest)
        place = fit.responsibilities[spoke].argmax(axis=1)
        return bool(np.bincount(place, minlength=fit.n_groups).min() >= smallest)

    ids = [str(user) for user in uploads.users.tolist()]
    fits: list[Fit] = []
    for q in candidates:
        try:
            fits.append(search(q, ids, admissible=partial(admissible, q), **asked))
        except NotAdmissible:
            if q is candidates[-1] and not fits:
                raise
    fit, labels = _numbered(min(fits, key=lambda fit: fit.evidence))
    mixture = mixture_of(fit, at)
    offset, change = model_map(mixture, uploads.risk)
    centers = offset + mixture.centers @ change.T
    T = model_spread(mixture, uploads.risk)
    sure = fit.responsibilities[np.arange(len(labels)), labels]
    curbed = curbed_text(fit, smallest, party is not None)
    return ServerStep(
        uploads.users,
        labels,
        centers,
        centers[labels],
        "mixed groups",
        found_text(fit) + curbed,
        "posterior mean of the groups' models",
        sure,
        float(np.diag(T).mean()),
        None,
        None,
        "evidence",
        mixture,
        bool(curbed),
        of_fits(fits, fit, labels),
    )


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
    found = [seen_quadratics(uploads, at, width) for width in range(len(GAUSSIAN_WIDTHS))]
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
    """The users' data terms as quadratics; of Gaussian terms those of one width of their prior.

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
            "with the same method, or use clusterer='mixture' for bare models."
        )
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
    """Sites of the prior under which the models of a mixture are likeliest."""
    square = np.diag(mixture.inside) + mixture.weights @ mixture.centers**2
    priors = np.stack([q.anchor for q in widths if q.anchor is not None])
    return widths[int(np.argmin((square * priors - np.log(priors)).sum(axis=1)))]


def _numbered(fit: Fit) -> tuple[Fit, Ints]:
    """Groups numbered by their first user; a group that is nobody's likeliest comes last."""
    likeliest = fit.responsibilities.argmax(axis=1)
    order = _by_first_user(likeliest, fit.n_groups)
    labels = np.argsort(order)[likeliest]
    return replace(
        fit,
        weights=fit.weights[order],
        centers=fit.centers[order],
        covariances=fit.covariances[order],
        responsibilities=fit.responsibilities[:, order],
    ), labels.astype(np.intp)


def _by_first_user(labels: Ints, n_groups: int) -> Ints:
    """Groups in the order of their first users, those of nobody last."""
    first = {int(k): i for i, k in reversed(list(enumerate(labels.tolist())))}
    order = sorted(range(n_groups), key=lambda k: (first.get(k, len(labels)), k))
    return np.array(order, np.intp)


def found_text(fit: Fit) -> str:
    """How many groups, and how users of a group differ, in a sentence."""
    k = fit.n_groups
    found = f"{k} groups found from what the users' rows say" if k > 1 else "No groups"
    inside = "users of a group" if k > 1 else "users"
    if not fit.spread.matrix.any():
        return f"{found}: {inside} differ only by noise."
    return f"{found}: {inside} differ gradually."


def curbed_text(fit: Fit, smallest: int, parties: bool) -> str:
    """What was seen and may not be told, in a sentence; empty: nothing."""
    if not fit.curbed or (smallest == 1 and not parties):
        return ""
    held = (
        f"{smallest} sites, none with more than half of what is known of it"
        if parties
        else (f"{smallest} users")
    )
    return f" More groups were seen, and were not allowed: each needs at least {held}."


# -- users who come later ----------------------------------------------------------------------


def assign_mixed(X: Floats, y: Floats, risk: Risk, mixture: Mixture, method: Method) -> Assignment:
    """A new user's posterior over groups, and its model, from its first row on."""
    one = Federation(X, y, np.array([0, len(y)]), np.zeros(1, dtype=int))
    local = fit_users(one, risk, method.sends, terms=True, short_terms=method.short_terms)
    upload = local.uploads
    found, around = _place(upload, mixture)
    nowhere = np.zeros((1, upload.dim)), np.zeros(1, int), np.ones(1, int)
    downloads = Downloads(upload.users, *nowhere, mixture=around)
    received = receive(one, risk, upload, downloads)
    return replace(found, theta=received.models[0], received=received)


def with_more_terms(old: Uploads, more: Uploads) -> Uploads:
    """One user's data term after other rows came on top: exact for squared loss."""
    n = old.n_samples + more.n_samples
    if any(u.observations is not None and u.observations[0] < u.n_samples[0] for u in (old, more)):
        raise InputError(
            f"User {old.users.tolist()[0]!r} keeps the data term of few rows to itself, so its old "
            "rows cannot be added to the new ones: give all its rows, old and new, and say ",
            *(Setting("all_rows", True), "."),
        )
    told: dict[str, Any] = {} if old.observations is None else {"observations": n}
    if old.factor is not None and old.means is not None:
        assert more.means is not None
        assert more.factor is not None
        both = merge(
            DataTerms(
                np.concatenate([old.n_samples, more.n_samples]),
                np.concatenate([old.means, more.means]),
                np.concatenate([old.factor, more.factor]),
            )
        )
        return replace(old, n_samples=n, means=both.mean, factor=both.factor, **told)
    names = ("gaussian_curvature", "gaussian_slope", "gaussian_constant", "gaussian_ceiling")
    told |= {name: getattr(old, name) + getattr(more, name) for name in names}
    return replace(old, n_samples=n, **told)


def place_mixed(upload: Uploads, mixture: Mixture) -> Assignment:
    """A user's place and model from its data term alone."""
    found, around = _place(upload, mixture)
    received = models_by_terms(upload, mixture, around)
    return replace(found, theta=received.models[0], received=received)


def models_by_terms(uploads: Uploads, mixture: Mixture, around: Mixture | None = None) -> Received:
    """Users' models from their data terms alone: all that a server can know of them.

    For squared loss they are the users' own; elsewhere a user's last step looks at its rows again.
    ``around`` is the mixture that they are drawn to, in the same coordinates, if another.
    """
    assert uploads.risk is not None
    (q,), at = user_quadratics(uploads, mixture)
    last = posterior(q, mixture if around is None else around)
    offset, change = model_map(mixture, uploads.risk)
    return Received(
        offset + by_row(last.mean(), change.T),
        np.full(len(uploads), np.nan),
        "posterior mean under every group, from the data terms",
        symmetric(change @ last.covariance() @ change.T),
        *((last.s2 * at.target_scale**2, last.dof) if q.noisy else ()),
    )


def _place(upload: Uploads, mixture: Mixture) -> tuple[Assignment, Mixture]:
    """Where one user belongs, still without a model, and the mixture that its last step takes."""
    (q,), _ = user_quadratics(upload, mixture)
    p = posterior(q, mixture).responsibilities[0]
    label = int(p.argmax())
    distance, strange = _distance(q, mixture, label)
    found = Assignment(
        *(-1 if strange else label, float(p[label]), p, distance, strange),
        theta=np.zeros(0),
        upload=upload,
    )
    return found, _wider(q, mixture, label) if strange else mixture


def _pure_noise(q: Quadratics, noise: Noise) -> tuple[Floats, float]:
    """A user's noise from its own pure error, whatever its group, and the degrees of freedom."""
    if noise.common or not q.noisy:
        return np.full(1, noise.s0), noise.dof
    return (noise.nu * noise.s0 + q.pure) / (noise.nu + q.dof), noise.nu / CAUTION + float(q.dof[0])


def _distance(q: Quadratics, mixture: Mixture, label: int) -> tuple[float, bool]:
    """Distance to a group in noise units, and whether a member would hardly ever be so far.

    The score of a member, z = w - W c, is noise of covariance W + W C W, C the center's own: its
    size in that metric is chi-squared, over the scales that members have.
    """
    s2, dof = _pure_noise(q, mixture.noise)
    # A user whose own rows scatter more than others' do is judged by its own scatter.
    own = q.pure / np.maximum(q.dof, 1.0) if q.noisy else s2
    s2 = np.where(q.dof > 0, np.maximum(s2, own), s2)
    tail, distance = 0.0, np.inf
    for scale, share in zip(mixture.scales, mixture.shares, strict=True):
        spread = replace(mixture.spread, matrix=scale * mixture.spread.matrix)
        m = moments(q, spread, s2)
        W, z = m.W[0], m.w[0] - m.W[0] @ mixture.centers[label]
        beyond, away = far_out(z, W + W @ mixture.covariances[label] @ W, dof)
        if np.isnan(away):
            return np.nan, False
        tail, distance = tail + share * beyond, min(distance, away)
    return distance, tail < STRANGE


def far_out(z: Floats, C: Floats, dof: float) -> tuple[float, float]:
    """Chance that N(0, C), its scale known by ``dof``, lies as far out as z, and z's distance.

    The distance is in units of what C explains, about 1; NaN where C is zero.
    """
    values, vectors = np.linalg.eigh(C)
    seen = values > 1e-10 * max(float(values[-1]), 1e-300)
    square, rank = float(((vectors.T @ z)[seen] ** 2 / values[seen]).sum()), int(seen.sum())
    if rank == 0:
        return np.nan, np.nan
    beyond = chdtrc(rank, square) if np.isinf(dof) else fdtrc(rank, dof, square / rank)
    return float(beyond), float(np.sqrt(square / rank))


def _wider(q: Quadratics, mixture: Mixture, label: int) -> Mixture:
    """For a user that fits no group: one center, the nearest, and the spread that it asks for."""
    s2, dim = _pure_noise(q, mixture.noise)[0], q.dim
    spreads = [
        Spread("full", mixture.spread.matrix + wide * np.eye(dim), np.ones(dim, np.bool_))
        for wide in WIDER
    ]
    c, C = mixture.centers[[label]], mixture.covariances[[label]]
    costs = [misfits(moments(q, spread, s2), Centers.of(c, C)).sum() for spread in spreads]
    one = np.ones(1)
    spread = spreads[int(np.argmin(costs))]
    return replace(
        mixture, weights=one, centers=c, covariances=C, spread=spread, scales=one, shares=one
    )
