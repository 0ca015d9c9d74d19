"""The last step after private uploads: the user's own exact rows, under groups seen through noise.

Groups may be wrong where the server saw little. A user may then lie further out than they say, by
variances that its own rows weigh; and where rows are predicted better by a model of the user's own
other rows than with the groups, that model counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.exchange.message import Downloads
from odcl.local.receive import Received
from odcl.local.terms import _data_terms, gaussian_target
from odcl.mixed.gaussian import NEAR
from odcl.mixed.layout import model_map
from odcl.mixed.mixture import Quadratics, by_row
from odcl.mixed.posterior import Mixture, posterior
from odcl.mixed.terms import CHUNK, by_size, quadratics
from odcl.mixed.variational import Likelihood, expected, logit_covariance, variational
from odcl.risk.loss import symmetric
from odcl.risk.risk import Risk

ELSEWHERE = 0.05, 0.2  # the share of users who may lie anywhere: the more, the less was seen
FREE = 3  # rows to spare from which a user's own residuals tell its noise
LEVEL = 4.0  # times the variance of other coefficients: levels may lie far from zero
MOST_OWN = 0.99  # of what is known of a center in any direction, at most, is one user's
# Times what bounds allow for, the variance of a model of a user's own rows: where features hardly
# vary, coefficients are large. Classes that a line separates do not say how steep it is: there, 1.
ALONE = 2.0**10
DOUBT = 0.01  # that groups mislead, where uploads told all that users differ by; at most 1/2
LEFT = 1e-3  # of a row's own variance, at least, where its other rows predict it
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class _Component:
    """Every user's model given a group and how far out it lies."""

    evidence: Floats  # (n_users,), its logarithm
    theta: Floats  # (n_users, dim)
    V: Floats  # (n_users, dim, dim)
    # What the rows said there, -(theta'A theta - 2 b'theta) / 2: where the next one may begin.
    A: Floats
    b: Floats


def private_last_step(
    federation: Federation, risk: Risk, mixture: Mixture, downloads: Downloads
) -> Received:
    """The posterior of each user's model from its rows; what it had sent is taken out before."""
    assert mixture.beyond is not None
    m, dim = federation.n_users, mixture.centers.shape[1]
    centers, covariances = _without_own(mixture, downloads, m)
    outer, likely = mixture.beyond
    first = mixture.coordinates.intercept & (np.arange(dim) % (dim // risk.n_outputs) == 0)
    wide = outer[-1] * np.where(first, LEVEL, 1.0)
    centers, covariances = _within_bounds(centers, covariances, wide)
    doubt = min(2 * (1 - likely[0]) + DOUBT, 0.5)
    elsewhere = np.clip(doubt, *ELSEWHERE)
    shares = (1 - elsewhere) * likely + elsewhere * (outer > 0) / (len(outer) - 1)
    noise, dof = np.ones(m), np.full(m, mixture.noise.dof)
    if risk.loss.has_data_terms:
        q = quadratics(_data_terms(federation, risk.loss.encode(federation.y)), mixture.coordinates)
        free = q.dof >= FREE
        own = np.maximum(q.pure, 1e-12 * q.rows) / np.maximum(q.dof, 1.0)
        noise = np.where(free, own, mixture.noise.s0)
        dof = np.where(free, q.dof, float(FREE))
    found, logits = list[_Component](), list[Floats]()
    for k, weight in enumerate(mixture.weights):
        for variance, share in zip(outer, shares, strict=True):
            prior = covariances[:, k] + mixture.inside + variance * np.eye(dim)
            if risk.loss.has_data_terms:
                one = _squared(q, noise, centers[:, k], prior)
            else:
                last = found[-1] if found else None
                one = _gaussian(federation, risk, mixture, centers[:, k], prior, last)
            found.append(one)
            logits.append(one.evidence + np.log(max(weight * share, 1e-300)))
    r = softmax(np.stack(logits, axis=1), axis=1)
    groups = r.reshape(m, len(mixture.weights), -1).sum(axis=2)
    mean, spread = _moments(r, [(one.theta, one.V) for one in found])
    nobody, anywhere, told = np.zeros((m, dim)), np.tile(np.diag(wide), (m, 1, 1)), {}
    if risk.loss.has_data_terms:
        told = {"noise": noise * mixture.coordinates.target_scale**2, "dof": dof}
        alone = _squared(q, noise, nobody, ALONE * anywhere)
    else:
        alone = _gaussian(federation, risk, mixture, nobody, anywhere, None)
    both = [(mean, spread), (alone.theta, alone.V)]
    left = [_left_out(federation, risk, mixture, noise, *one) for one in both]
    mean, spread = _moments(softmax(np.stack(left, 1) + np.log([1 - doubt, doubt]), axis=1), both)
    offset, change = model_map(mixture, risk)
    return Received(
        offset + by_row(mean, change.T),
        "posterior mean under every group and beyond it, from the user's own rows",
        symmetric(change @ spread @ change.T),
        **told,
        group=groups.argmax(axis=1),
        sure=groups.max(axis=1),
    )


def _moments(r: Floats, models: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Mean and covariance of models that are one of these with probabilities ``r``, (m, some)."""
    theta, V = (np.stack(one, axis=1) for one in zip(*models, strict=True))
    mean = (r[..., None] * theta).sum(axis=1)
    away = theta - mean[:, None]
    spread = (r[..., None, None] * V).sum(axis=1)
    return mean, spread + (r[..., None] * away).swapaxes(1, 2) @ away


def _left_out(
    federation: Federation, risk: Risk, mixture: Mixture, noise: Floats, theta: Floats, V: Floats
) -> Floats:
    """Log-density of every user's rows, each as its other rows predict it, (n_users,).

    ``theta`` and ``V`` are those of all rows: what one row adds to them is taken out again.
    """
    at, D, found = mixture.coordinates, risk.n_outputs, np.zeros(len(theta))
    Z, y = at.design(federation.X), gaussian_target(risk, federation.y)
    if risk.loss.has_data_terms:
        y = (y - at.target_shift) / at.target_scale
    values, vectors = np.linalg.eigh(V)
    roots = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None]).swapaxes(1, 2)
    for who, index in by_size(federation.row_user, len(theta), most=CHUNK // at.dim):
        x, t, s2 = Z[index].swapaxes(1, 2), y[index], noise[who, None]
        z = ((theta[who] + at.reference).reshape(len(who), D, -1) @ x).swapaxes(1, 2)
        S = logit_covariance(x, roots[who], D)
        if risk.loss.has_data_terms:
            left = np.maximum(1 - S[..., 0, 0] / s2, LEFT)
            found[who] = 0.5 * (np.log(left) - (t - z[..., 0]) ** 2 / (s2 * left)).sum(axis=1)
            continue
        seen = expected(risk.loss.name, t, z, S)
        root = np.linalg.cholesky(S + TINY * np.eye(D))
        told, turn = np.linalg.eigh(root.swapaxes(2, 3) @ seen.curvature @ root)
        root = root @ (turn / np.sqrt(np.maximum(1 - told, LEFT))[..., None, :])
        S = root @ root.swapaxes(2, 3)
        z = z - (S @ seen.slope[..., None])[..., 0]
        found[who] = expected(risk.loss.name, t, z, S).value.sum(axis=1)
    return found


def _without_own(mixture: Mixture, downloads: Downloads, m: int) -> tuple[Floats, Floats]:
    """Every user's centers (m, K, dim) and their covariances without what it had sent itself.

    A user adds r W and r w to its center's information: its rows, which are about to be seen,
    would count twice.
    """
    c, C = (np.tile(a, (m, *[1] * a.ndim)) for a in (mixture.centers, mixture.covariances))
    J, h = downloads.own_curvature, downloads.own_slope
    if J is None or h is None:
        return c, C
    none, T, eye = np.zeros(m), mixture.inside, np.eye(c.shape[2])
    q = Quadratics(J, h, none, none, none, none, False)
    r = posterior(q, mixture).responsibilities
    both = np.linalg.solve(eye + J @ T, np.concatenate([J, h[..., None]], axis=2))
    W, w = symmetric(both[..., :-1]), both[..., -1]
    for k in range(c.shape[1]):
        root = np.linalg.cholesky(mixture.covariances[k] + 1e-12 * eye * np.trace(C[0, k]))
        values, vectors = np.linalg.eigh(r[:, k, None, None] * (root.T @ W @ root))
        kept = 1 - np.clip(values, 0.0, MOST_OWN)
        turned = root @ vectors
        C[:, k] = (turned / kept[:, None]) @ turned.swapaxes(1, 2)
        pull = r[:, k, None] * (w - (W @ c[:, k, :, None])[..., 0])
        c[:, k] = c[:, k] - (C[:, k] @ pull[..., None])[..., 0]
    return c, C


def _within_bounds(c: Floats, C: Floats, wide: Floats) -> tuple[Floats, Floats]:
    """N(c, C) of centers (m, K, dim) under N(0, wide), (dim,): public bounds speak of them, too.

    What uploads did not tell of a center, or a user alone, may lie anywhere else.
    """
    kept = wide[:, None] * np.linalg.inv(C + np.diag(wide))
    near = kept @ C
    return (kept @ c[..., None])[..., 0], (near + near.swapaxes(-1, -2)) / 2


def _squared(q: Quadratics, noise: Floats, center: Floats, prior: Floats) -> _Component:
    """Rows of squared loss under N(center, prior), each user's own (m, dim) and (m, dim, dim)."""
    A, b = q.A / noise[:, None, None], q.b / noise[:, None]
    pull = b - (A @ center[..., None])[..., 0]
    grown = np.eye(q.dim) + A @ prior
    z = np.linalg.solve(grown, pull[..., None])[..., 0]
    move = (prior @ z[..., None])[..., 0]
    gain = (pull * move).sum(axis=1)
    at = (center * (2 * b - (A @ center[..., None])[..., 0])).sum(axis=1)
    evidence = 0.5 * (at + gain - np.linalg.slogdet(grown)[1])
    return _Component(evidence, center + move, symmetric(prior @ np.linalg.inv(grown)), A, b)


def _gaussian(
    federation: Federation,
    risk: Risk,
    mixture: Mixture,
    center: Floats,
    prior: Floats,
    last: _Component | None,
) -> _Component:
    """Rows of classes and counts under N(center, prior), each user's own."""
    m, dim = center.shape
    Z, y = mixture.coordinates.design(federation.X), gaussian_target(risk, federation.y)
    w = np.ones(len(y)) if federation.weight is None else federation.weight
    root, square = np.asarray(np.linalg.cholesky(prior), np.float64), (m, dim, dim)
    found = _Component(
        *(np.empty(m), np.empty((m, dim)), np.empty(square), np.empty(square), np.empty((m, dim)))
    )
    for who, index in by_size(federation.row_user, m, most=CHUNK // dim):
        given = Likelihood(risk.loss.name, Z[index], y[index], w[index], risk.n_outputs)
        mean, start = center[who], None
        if last is not None:
            start = last.A[who], last.b[who] - (last.A[who] @ mean[..., None])[..., 0]
        own = variational(given, mean, root[who], start, near=NEAR)
        found.A[who], found.b[who] = own.A, own.b + (own.A @ mean[..., None])[..., 0]
        found.evidence[who], found.theta[who], found.V[who] = own.elbo, own.mu, own.V
    return found
