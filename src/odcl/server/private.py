"""The server's step for private uploads: noise is part of every term, the rest is as always."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import ndtri

from odcl._typing import Floats
from odcl.errors import InputError
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.mixed.em import MixtureFit
from odcl.mixed.layout import Coordinates
from odcl.mixed.mixture import (
    Centers,
    Quadratics,
    Spread,
    misfits,
    moments,
    responsibilities,
)
from odcl.mixed.posterior import mixture_of, posterior
from odcl.mixed.search import search
from odcl.privacy.guarantee import Bounds
from odcl.privacy.looks import BINS, curvature_sd
from odcl.privacy.terms import LEAST, Curvature, PrivateTerms, Sent, denoised
from odcl.risk.risk import Risk
from odcl.server.chunks import Chunks, Parties, Survey
from odcl.server.mixed import _numbered, _server_step, forbidden_text, found_text, held_by_enough
from odcl.server.result import StreamedStep, of_fits
from odcl.server.robust import private_screened

TURNS = 3  # of the search: what A's noise does depends on where the models are
BEYOND = 4.0 ** np.arange(-4, 1)  # of the variance that public bounds allow for
NOTHING = 0.5  # probability, before uploads are looked at, that users differ no more than was found


def private_step(
    looked: Survey, method: Method, chunks: Chunks | None, parties: Parties | None
) -> StreamedStep:
    """Groups of private uploads, all at hand: :func:`odcl.server.mixed.mixed_step` for them."""
    uploads, risk, privacy = looked.sample, looked.sample.risk, method.privacy
    if chunks is not None:
        raise InputError(
            f"{looked.n_users:,} users sent private uploads, and groups of these are found on all "
            f"of them at once: up to {len(uploads):,} users."
        )
    if risk is None or privacy is None:
        raise InputError("These uploads are private, and the method does not say how: privacy.")
    uploads, odd = private_screened(uploads) if method.robust else (uploads, ())
    n_features = uploads.dim - risk.intercept
    bounds = privacy.bounds(risk, n_features)
    at = _coordinates(uploads, bounds, risk)
    sent = _sent(uploads, at.target_scale, curvature_sd(privacy, risk, n_features))
    wide = bounds.wide / at.target_scale**2
    fit, terms, extra = _search(uploads, sent, wide, at, method, parties)
    fit, labels = _numbered(fit)
    mixture = replace(
        mixture_of(fit, at),
        covariances=fit.covariances + extra,
        beyond=_beyond(terms, uploads.n_samples, fit, np.asarray(wide * BEYOND, np.float64)),
    )
    forbidden = forbidden_text(fit.groups_forbidden, method.smallest_group, parties is not None)
    reason = found_text(fit.n_groups, alike=not fit.spread.matrix.any()) + forbidden
    reason += f" Every upload is private for its rows: {privacy}."
    step = _server_step(uploads, mixture, reason, bool(forbidden))
    sure = fit.responsibilities[np.arange(len(labels)), labels]
    step = replace(
        step.with_users(uploads.users, labels, sure),
        weighed=of_fits([fit], fit, labels),
        own_curvature=terms.J,
        own_slope=terms.h,
        outliers=odd,
    )
    k = step.n_clusters
    rows = np.bincount(labels, weights=uploads.n_samples, minlength=k).astype(np.float64)
    return StreamedStep(step, len(uploads), np.bincount(labels, minlength=k), rows)


def _search(
    uploads: Uploads,
    sent: Sent,
    wide: float,
    at: Coordinates,
    method: Method,
    parties: Parties | None,
) -> tuple[MixtureFit, PrivateTerms, Floats]:
    """Groups, the terms that they were found on, and what a common curvature's noise adds to C."""
    n, d, one = uploads.n_samples, uploads.dim, np.ones(len(uploads))
    shape, shape_sd = _pooled_shape(sent, n)
    curvature = _curvatures(sent, method, n, shape)
    asked: dict[str, Any] = dict(method.clusterer.params)

    def admissible(q: Quadratics, fit: MixtureFit) -> bool:
        r = fit.responsibilities
        if parties is not None:
            m = moments(q, fit.spread, fit.s2)
            return held_by_enough(m, r, parties.of, n, method.smallest_group)
        held = np.bincount(r.argmax(axis=1), minlength=fit.n_groups).min()
        return bool(held >= method.smallest_group)

    second = sent.spread(sent.offset, np.tile(wide * np.eye(d), (len(n), 1, 1)))
    terms = sent.terms(curvature, one, second)
    second = sent.spread(*terms.under(np.full(d, 1 / wide)))
    for _ in range(TURNS):
        terms = sent.terms(curvature, one, second)
        none = np.zeros(len(n))
        q = Quadratics(terms.J, terms.h, terms.uu, n, none, none, False)
        fit = search(q, uploads.users, admissible=partial(admissible, q), **asked)
        own = posterior(q, mixture_of(fit, at))
        second = sent.spread(own.mean(), own.covariance())
    return fit, terms, _shape_noise(shape, shape_sd, second.mean(axis=0))


def _beyond(terms: PrivateTerms, n: Floats, fit: MixtureFit, variances: Floats) -> Floats:
    """Variances by which users may differ more than was found, zero first, and probabilities.

    Noise hides differences: where uploads are as likely with more of them, more may be there.
    """
    none, stack = np.zeros(len(n)), Centers.of(fit.centers, fit.covariances)
    q = Quadratics(terms.J, terms.h, terms.uu, n, none, none, False)
    every, eye = np.append(0.0, variances), np.eye(q.dim)
    open_ = np.ones(q.dim, np.bool_)
    logs = []
    for variance in every:
        spread = Spread("full", fit.spread.matrix + variance * eye, open_)
        misfit = misfits(moments(q, spread, fit.s2), stack)
        logs.append(float(responsibilities(misfit, fit.weights)[1].sum()))
    prior = np.append(NOTHING, np.full(len(variances), (1 - NOTHING) / len(variances)))
    likely = prior * np.exp(np.array(logs) - max(logs))
    return np.stack([every, likely / likely.sum()])


def _coordinates(uploads: Uploads, bounds: Bounds, risk: Risk) -> Coordinates:
    """Public ones: those of the bounds. Targets are in units of the users' noise."""
    p, unit = len(bounds.shift), 1.0
    if uploads.private_residuals is not None:
        unit = _noise_sd(uploads.private_residuals.sum(axis=0), bounds.reach)
    columns = np.arange(p), bounds.shift, bounds.scale
    reference = np.zeros(p + bounds.intercept)
    return Coordinates(
        *(bounds.intercept, *columns, bounds.origin, unit, reference, p), factors=risk.factors
    )


def _noise_sd(sizes: Floats, reach: float) -> float:
    """The noise of all users, from the edge that about half of their residuals are below.

    It is no smaller than the rows' own, since the models that residuals are taken from are rough.
    """
    edges = reach / 2.0 ** np.arange(BINS - 1)
    total = max(float(sizes.sum()), 1.0)
    share = np.clip(sizes[:0:-1].cumsum()[::-1] / total, 0.5 / total, 1 - 0.5 / total)
    j = int(np.argmin(np.abs(share - 0.5)))
    return float(edges[j] / ndtri((1 + min(max(share[j], 0.1), 0.95)) / 2))


def _sent(uploads: Uploads, unit: float, sd: float) -> Sent:
    A, b, offset = uploads.private_curvature, uploads.private_slope, uploads.private_offset
    assert A is not None
    assert b is not None
    assert offset is not None
    assert uploads.private_sd is not None
    return Sent(A, b / unit, offset / unit, uploads.private_sd / unit, sd)


def _pooled_shape(sent: Sent, n: Floats) -> tuple[Floats, float]:
    """A row's share of the curvature, the same for all users (d, d), and its own noise.

    What is not on the diagonal is drawn to zero, by how far it is more than noise.
    """
    S, sd = sent.A.sum(axis=0) / n.sum(), sent.curvature_sd * np.sqrt(len(n)) / n.sum()
    d = len(S)
    other = ~np.eye(d, dtype=np.bool_)
    if other.any():
        true = max(float((S[other] ** 2).mean()) - sd**2 / 2, 0.0)
        S = np.where(other, S * true / (true + sd**2 / 2), S)
    values, vectors = np.linalg.eigh(S)
    least = max(0.05 * float(np.trace(S)) / d, sd / np.sqrt(d), LEAST**2)
    return _symmetric((vectors * np.maximum(values, least)) @ vectors.T), float(sd)


def _curvatures(sent: Sent, method: Method, n: Floats, shape: Floats) -> Curvature:
    """The users' curvatures; their size is told by their number of rows and by themselves."""
    square = float((shape**2).sum())
    by_shape = (sent.A * shape).sum(axis=(1, 2)) / square
    assert method.privacy is not None
    rows_sd = 1 / (method.privacy.mu * np.sqrt(0.02))
    a, b = rows_sd**-2, square / sent.curvature_sd**2
    size = np.maximum((a * n + b * by_shape) / (a + b), 1.0)
    return denoised(sent.A, sent.curvature_sd, size, shape, alone=False)


def _shape_noise(S: Floats, sd: float, second: Floats) -> Floats:
    """What the noise of a shape that all users share adds to every center's covariance."""
    d = len(S)
    B = sd**2 / 2 * second
    B[np.arange(d), np.arange(d)] = sd**2 / 2 * (np.trace(second) + np.diag(second))
    inverse = np.linalg.inv(S)
    return _symmetric(inverse @ B @ inverse)


def _symmetric(matrix: Floats) -> Floats:
    return (matrix + matrix.T) / 2
