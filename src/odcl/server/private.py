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
from odcl.local.receive import Received
from odcl.method import Method
from odcl.mixed.em import MixtureFit
from odcl.mixed.layout import Coordinates, model_map
from odcl.mixed.mixture import (
    Centers,
    Quadratics,
    Spread,
    by_row,
    misfits,
    moments,
    responsibilities,
)
from odcl.mixed.posterior import Mixture, mixture_of, posterior
from odcl.mixed.search import search
from odcl.privacy import BINS, Bounds
from odcl.privacy.terms import (
    LEAST,
    Curvature,
    PrivateTerms,
    Sent,
    TypicalRows,
    denoised,
    mean_diagonal,
    shaken,
)
from odcl.risk.loss import symmetric
from odcl.risk.risk import Risk
from odcl.server.chunks import Chunks, Parties, Survey
from odcl.server.mixed import _numbered, _server_step, forbidden_text, found_text, held_by_enough
from odcl.server.result import ServerStep, StreamedStep, of_fits
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
    uploads, odd = private_screened(uploads)
    bounds = privacy.bounds(risk, uploads.dim // risk.n_outputs - risk.intercept)
    at = _coordinates(uploads, bounds, risk)
    sent = _sent(uploads, at.target_scale)
    wide = bounds.wide / at.target_scale**2
    fit, terms, extra = _search(uploads, sent, bounds, at, method, parties)
    fit, labels = _numbered(fit)
    mixture = replace(
        mixture_of(fit, at),
        covariances=fit.covariances + extra,
        beyond=_beyond(terms, uploads, fit, np.asarray(wide * BEYOND, np.float64)),
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


def models_by_private_terms(step: ServerStep, risk: Risk) -> Received:
    """Users' models from their private uploads alone: all that a server can know of them."""
    mixture, J, h = step.mixture, step.own_curvature, step.own_slope
    assert isinstance(mixture, Mixture)
    assert J is not None
    assert h is not None
    none = np.zeros(len(J))
    last = posterior(Quadratics(J, h, none, none, none, none, False), mixture)
    offset, change = model_map(mixture, risk)
    noise = np.full(len(J), mixture.noise.s0 * mixture.coordinates.target_scale**2)
    return Received(
        offset + by_row(last.mean(), change.T),
        "posterior mean under every group, from the private uploads",
        symmetric(change @ last.covariance() @ change.T),
        *((noise, np.full(len(J), mixture.noise.dof)) if risk.loss.has_data_terms else ()),
    )


def _search(
    uploads: Uploads,
    sent: Sent,
    bounds: Bounds,
    at: Coordinates,
    method: Method,
    parties: Parties | None,
) -> tuple[MixtureFit, PrivateTerms, Floats]:
    """Groups, the terms that they were found on, and what a common curvature's noise adds to C."""
    n, d, one = uploads.n_samples, uploads.dim, np.ones(len(uploads))
    wide = bounds.wide / at.target_scale**2
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

    P = _outputs_of(uploads.risk, d)
    second = sent.spread(sent.offset, np.tile(wide * np.eye(d), (len(n), 1, 1)))
    terms = sent.terms(curvature, one, second)
    second = sent.spread(*terms.under(np.full(d, 1 / wide), sent.offset))
    straight = sent
    for _ in range(TURNS):
        terms = straight.terms(curvature, one, second).turned(P)
        none = np.zeros(len(n))
        q = Quadratics(terms.J, terms.h, terms.uu, n, none, none, False)
        fit = search(q, uploads.users, admissible=partial(admissible, q), **asked)
        own = posterior(q, mixture_of(fit, at))
        mean = own.mean() @ P.T
        second = sent.spread(mean, P @ own.covariance() @ P.T)
        shapes = _group_shapes(sent, n, fit.responsibilities, shape, shape_sd)
        curvature = _curvatures(sent, method, n, _mixed(fit.responsibilities, shapes.A))
        straight = _straight(sent, mean, curvature.A, uploads, bounds)
    back = np.linalg.inv(P)
    extra = _shape_noise(shapes, _held(second, fit.responsibilities))
    return fit, terms, back @ extra @ back.T


def _straight(sent: Sent, theta: Floats, A: Floats, uploads: Uploads, bounds: Bounds) -> Sent:
    """What users sent without what their models' way from where it was taken bends it by.

    Such bends do not average out over users. How large they are at ``theta``, rows tell that vary
    as the users' curvatures ``A`` do.
    """
    center, risk = uploads.private_center, uploads.risk
    if center is None or risk is None:
        return sent
    D = risk.n_outputs
    blocks = A.reshape(len(A), D, A.shape[1] // D, D, -1)
    inputs = np.stack([blocks[:, o, :, o] for o in range(D)]).mean(axis=0)
    usual = np.trace(inputs, axis1=1, axis2=2) / bounds.norm**2
    size = inputs[:, 0, 0] if bounds.intercept else usual
    rows = TypicalRows.of(risk.loss, bounds, inputs / size[:, None, None], np.ones(len(A)))
    weights = rows.weights(center, np.full(len(A), np.inf))
    here = rows.curvature(center, weights)
    bent = rows.change(theta, center, weights) - (here @ (theta - center)[..., None])[..., 0]
    share = mean_diagonal(A) / mean_diagonal(here)
    return replace(sent, b=sent.b - share[:, None] * bent)


def _outputs_of(risk: Risk | None, dim: int) -> Floats:
    """P, (dim, dim): what was sent is of P theta, theta in the mixture's numbers.

    Those of more than two classes are logits against the last class, and noise is added to outputs
    of an orthonormal basis, where no class is special.
    """
    basis = getattr(None if risk is None else risk.loss, "basis", None)
    if basis is None:
        return np.eye(dim)
    return np.asarray(np.kron(basis[:-1].T, np.eye(dim // basis.shape[1])), np.float64)


def _beyond(terms: PrivateTerms, uploads: Uploads, fit: MixtureFit, variances: Floats) -> Floats:
    """Variances by which users may differ more than was found, zero first, and probabilities.

    Noise hides differences: where uploads are as likely with more of them, more may be there.
    The curvatures of counts change so much with the model that what this adds to the noise is
    overstated, and users look more alike than they are: their uploads speak for differences and
    never against them.
    """
    n = uploads.n_samples
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
    if uploads.private_center is not None and uploads.private_residuals is not None:
        logs = [max(logs[0], one) for one in logs]
    likely = prior * np.exp(np.array(logs) - max(logs))
    return np.stack([every, likely / likely.sum()])


def _coordinates(uploads: Uploads, bounds: Bounds, risk: Risk) -> Coordinates:
    """Public ones: those of the bounds. Targets are in units of the users' noise."""
    p, unit = len(bounds.shift), 1.0
    if uploads.private_residuals is not None and risk.loss.name == "squared":
        unit = _noise_sd(uploads.private_residuals.sum(axis=0), bounds.reach)
    columns = np.arange(p), bounds.shift, bounds.scale
    reference = np.zeros(uploads.dim)
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


def _sent(uploads: Uploads, unit: float) -> Sent:
    A, b, offset = uploads.private_curvature, uploads.private_slope, uploads.private_offset
    sd, curvature_sd = uploads.private_sd, uploads.private_curvature_sd
    assert A is not None
    assert b is not None
    assert offset is not None
    assert sd is not None
    assert curvature_sd is not None
    return Sent(A, b / unit, offset / unit, sd / unit, curvature_sd)


def _pooled_shape(sent: Sent, n: Floats) -> tuple[Floats, float]:
    """A row's share of the curvature, the same for all users (d, d), and its own noise.

    What is not on the diagonal is drawn to zero, by how far it is more than noise.
    """
    S, sd = sent.A.sum(axis=0) / n.sum(), np.sqrt((sent.curvature_sd**2).sum()) / n.sum()
    d = len(S)
    other = ~np.eye(d, dtype=np.bool_)
    if other.any():
        true = max(float((S[other] ** 2).mean()) - sd**2 / 2, 0.0)
        S = np.where(other, S * true / (true + sd**2 / 2), S)
    values, vectors = np.linalg.eigh(S)
    least = max(0.05 * float(np.trace(S)) / d, sd / np.sqrt(d), LEAST**2)
    S = (vectors * np.maximum(values, least)) @ vectors.T
    return (S + S.T) / 2, float(sd)


def _mixed(r: Floats, of_groups: Floats) -> Floats:
    """Each user's, (n_users, d, d), of what is one matrix per group (K, d, d)."""
    return np.asarray(np.tensordot(r, of_groups, 1), np.float64)


def _group_shapes(sent: Sent, n: Floats, r: Floats, shape: Floats, sd: float) -> Curvature:
    """A row's share of the curvature in every group, drawn to that of all, (K, d, d).

    Where rows count by where the model is, or features vary otherwise in a group, its users have
    more in common than all users have: what is wrong about that does not average out.
    """
    size = np.maximum(r.T @ n, 1.0)
    sums = np.tensordot(r.T, sent.A, 1)
    noise = np.maximum(np.sqrt((r**2).T @ sent.curvature_sd**2), 1e-300)
    found = denoised(sums, noise, size, shape, alone=True)
    left = found.own / size**2 + sd**2, found.other / size**2 + sd**2 / 2
    return Curvature(found.A / size[:, None, None], *left)


def _curvatures(sent: Sent, method: Method, n: Floats, shape: Floats) -> Curvature:
    """The users' curvatures; their size is told by their number of rows and by themselves.

    ``shape`` is a row's share of them, (d, d) or each user's own (n_users, d, d).

    Rows of classes and counts count by where the model is, so that sizes may differ from the number
    of rows: by how much, moments tell.
    """
    square = (shape**2).sum(axis=(-2, -1))
    by_shape = (sent.A * shape).sum(axis=(1, 2)) / square
    assert method.privacy is not None
    rows, own = 1 / (method.privacy.mu**2 * 0.02), sent.curvature_sd**2 / square  # variances
    apart = max(float(((by_shape - n) ** 2 - rows - own).sum() / (n**2).sum()), 0.0)
    a, b = 1 / (rows + apart * n**2), 1 / own
    size = np.maximum((a * n + b * by_shape) / (a + b), 1.0)
    return denoised(sent.A, sent.curvature_sd, size, shape, alone=False)


def _held(values: Floats, r: Floats) -> Floats:
    """Means over the users of every group, (K, d, d)."""
    held = np.maximum(r.sum(axis=0), 1e-300)
    return np.asarray(np.tensordot(r.T, values, 1) / held[:, None, None], np.float64)


def _shape_noise(shapes: Curvature, second: Floats) -> Floats:
    """What the noise of shapes that groups share adds to every center's covariance, (K, d, d)."""
    B = shaken(shapes, second)
    inverse = np.linalg.inv(shapes.A)
    return symmetric(inverse @ B @ inverse)
