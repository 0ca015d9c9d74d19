"""The server's step for mixed groups: the users' data terms -> groups, and differences inside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtrc

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.local.receive import Received, receive
from odcl.method import Method
from odcl.mixed.em import Fit
from odcl.mixed.house import model_map, plain_coordinates
from odcl.mixed.mixture import Quadratics, moments
from odcl.mixed.posterior import Download as Mixture
from odcl.mixed.posterior import download_of, posterior
from odcl.mixed.search import search
from odcl.mixed.terms import Coordinates, DataTerms, coordinates, merge, quadratics
from odcl.risk.loss import symmetric
from odcl.risk.risk import Risk
from odcl.server.assign import STRANGE, Assignment

if TYPE_CHECKING:
    from odcl.server.step import ServerStep


def mixed_step(uploads: Uploads, method: Method) -> ServerStep:
    """Find groups and differences by evidence; every user takes part with what its rows say."""
    from odcl.server.step import ServerStep

    assert uploads.risk is not None
    q, at = user_quadratics(uploads)
    most = int(dict(method.clusterer.params).get("max_groups", 50))
    fit = search(q, [str(user) for user in uploads.users.tolist()], max_groups=most)
    fit, labels = _numbered(fit)
    mixture = download_of(fit, at)
    offset, change = model_map(mixture, uploads.risk)
    centers = offset + mixture.centers @ change.T
    T = change @ mixture.spread.matrix @ change.T
    sure = fit.responsibilities[np.arange(len(labels)), labels]
    return ServerStep(
        uploads.users,
        labels,
        centers,
        centers[labels],
        "mixed groups",
        _reason(fit),
        "posterior mean of the groups' models",
        sure,
        float(np.diag(T).mean()),
        None,
        None,
        "evidence",
        mixture,
    )


def user_quadratics(
    uploads: Uploads, at: Coordinates | None = None
) -> tuple[Quadratics, Coordinates]:
    """The users' data terms as quadratics, in coordinates given or read off the summed terms."""
    risk = uploads.risk
    assert risk is not None
    if uploads.factor is not None and uploads.means is not None:
        terms = DataTerms(uploads.n_samples, uploads.means, uploads.factor)
        at = coordinates(terms, intercept=risk.intercept) if at is None else at
        return quadratics(terms, at), at
    if uploads.site_curvature is None or uploads.site_slope is None:
        raise ValueError(
            "Mixed groups need the users' data terms, and these uploads hold none: fit the users "
            "with the same method, or use clusterer='auto' for bare models."
        )
    from odcl.mixed.sites import prior_precision

    D, dim = risk.n_outputs, uploads.dim
    nothing = np.zeros(len(uploads))
    anchor = np.diag(prior_precision(dim // D, D, intercept=risk.intercept))
    assert uploads.site_constant is not None
    q = Quadratics(
        uploads.site_curvature,
        uploads.site_slope,
        uploads.site_constant,
        uploads.n_samples,
        nothing,
        nothing,
        False,
        uploads.site_ceiling,
        anchor,
    )
    at = plain_coordinates(dim // D - risk.intercept, risk.intercept, dim) if at is None else at
    return q, at


def _numbered(fit: Fit) -> tuple[Fit, Ints]:
    """Groups numbered by their first user; a group that is nobody's likeliest comes last."""
    likeliest = fit.responsibilities.argmax(axis=1)
    first = {int(k): i for i, k in reversed(list(enumerate(likeliest.tolist())))}
    order = sorted(range(fit.n_groups), key=lambda k: (first.get(k, len(likeliest)), k))
    labels = np.argsort(order)[likeliest]
    return replace(
        fit,
        weights=fit.weights[order],
        centers=fit.centers[order],
        covariances=fit.covariances[order],
        responsibilities=fit.responsibilities[:, order],
    ), labels.astype(np.intp)


def _reason(fit: Fit) -> str:
    """How many groups, and how users of a group differ, in a sentence."""
    k = fit.n_groups
    found = f"{k} groups found from what the users' rows say" if k > 1 else "No groups"
    inside = "users of a group" if k > 1 else "users"
    if not fit.spread.matrix.any():
        return f"{found}: {inside} differ only by noise."
    n, dim = int((np.diag(fit.spread.matrix) > 0).sum()), len(fit.spread.open)
    where = "every coefficient" if n == dim else f"{n} of {dim} coefficients"
    return f"{found}: {inside} differ gradually, in {where}."


# -- users who come later ----------------------------------------------------------------------


def assign_mixed(X: Floats, y: Floats, risk: Risk, mixture: Mixture, method: Method) -> Assignment:
    """A new user's posterior over groups, and its model, from its first row on."""
    one = Federation(X, y, np.array([0, len(y)]), np.zeros(1, dtype=int))
    upload = fit_users(one, risk, method.sends, terms=True).uploads
    downloads = Downloads(
        upload.users, np.zeros((1, upload.dim)), np.zeros(1, int), np.ones(1, int), mixture=mixture
    )
    return _assignment(upload, mixture, receive(one, risk, upload, downloads))


def with_more_terms(old: Uploads, more: Uploads) -> Uploads:
    """One user's data term after other rows came on top: exact for squared loss."""
    n = old.n_samples + more.n_samples
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
        return replace(old, n_samples=n, means=both.mean, factor=both.factor)
    names = ("site_curvature", "site_slope", "site_constant", "site_ceiling")
    return replace(
        old, n_samples=n, **{name: getattr(old, name) + getattr(more, name) for name in names}
    )


def place_mixed(upload: Uploads, mixture: Mixture) -> Assignment:
    """A user's place and model from its data term alone."""
    assert upload.risk is not None
    q, _ = user_quadratics(upload, mixture.coordinates)
    found = posterior(q, mixture)
    offset, change = model_map(mixture, upload.risk)
    received = Received(
        offset + found.mean() @ change.T,
        np.full(1, np.nan),
        "",
        symmetric(change @ found.covariance() @ change.T),
        *((found.s2 * mixture.coordinates.target_scale**2, found.dof) if q.noisy else ()),
    )
    return _assignment(upload, mixture, received)


def _assignment(upload: Uploads, mixture: Mixture, received: Received) -> Assignment:
    q, _ = user_quadratics(upload, mixture.coordinates)
    found = posterior(q, mixture)
    p = found.responsibilities[0]
    label = int(p.argmax())
    m = moments(q, mixture.spread, found.s2)
    # The score of a member is noise of covariance W: its size in that metric is chi-squared.
    z = m.w[0] - m.W[0] @ mixture.centers[label]
    values, vectors = np.linalg.eigh(m.W[0])
    seen = values > 1e-10 * max(float(values[-1]), 1e-300)
    square = float(((vectors.T @ z)[seen] ** 2 / values[seen]).sum())
    rank = int(seen.sum())
    strange = bool(rank and chdtrc(rank, square) < STRANGE)
    return Assignment(
        -1 if strange else label,
        float(p[label]),
        p,
        float(np.sqrt(square / rank)) if rank else float("nan"),
        strange,
        received.models[0],
        upload,
        received=received,
    )
