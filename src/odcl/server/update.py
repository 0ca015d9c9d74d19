"""More rows of a user that is known: its upload grows, and its place and model follow.

The old rows are gone; their upload is a quadratic model of what they say. For the squared loss
that is everything, and the update equals a fit of all rows; elsewhere it is second order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import softmax

from odcl._typing import Floats
from odcl.clustering.labels import nearest_center
from odcl.errors import InputError, Setting
from odcl.exchange.download import Refit
from odcl.exchange.upload import Uploads
from odcl.risk.risk import Risk
from odcl.server.assign import MOST_DIRECTIONS, Assignment, Groups, View
from odcl.server.combine import solve_symmetric

MOST_STEPS = 50


def with_more_rows(old: Uploads, X: Floats, y: Floats, risk: Risk) -> Uploads:
    """The upload of one user after rows (X, y), encoded targets, came on top of ``old``.

    With A_0 = H_0 - n_0 P the old rows' curvature and b_0 = H_0 theta_0 their linear term, theta is
    the minimiser of  sum loss(x theta, y) + 1/2 theta' (A_0 + n P) theta - b_0' theta.
    """
    if not old.sent[0]:
        raise InputError(
            f"User {old.users.tolist()[0]!r} sent no curvature, so its old rows cannot be added to "
            "the new ones: give all its rows, old and new, and say ",
            *(Setting("all_rows", True), "."),
        )
    assert old.curvature is not None
    n, pen, bare = float(old.n_samples[0]) + len(y), old.penalty, replace(risk, l2=0.0)
    H, start = old.curvature[0], old.models[0]
    A, b = H - np.diag(old.n_samples[0] * pen), H @ start
    quadratic = A + np.diag(n * pen)

    def value(theta: Floats) -> float:
        rows = len(y) * bare.value(theta, X, y)
        return rows + float(0.5 * theta @ quadratic @ theta - b @ theta)

    def slope(theta: Floats) -> Floats:
        return len(y) * bare.gradient(theta, X, y) + quadratic @ theta - b

    def curvature(theta: Floats) -> Floats:
        return len(y) * bare.hessian(theta, X, y) + quadratic

    theta = start
    for _ in range(MOST_STEPS):
        step = solve_symmetric(curvature(theta)[None], slope(theta)[None])[0]
        now, length = value(theta), 1.0
        while value(theta - length * step) > now and length > 1e-6:
            length /= 2  # a whole step may overshoot
        theta = theta - length * step
        if np.abs(step).max() <= 1e-10 * max(1.0, float(np.abs(theta).max())):
            break
    phi = _dispersion(old, X, y, theta, A, risk)
    return replace(
        old,
        theta=theta[None],
        n_samples=np.array([n]),
        curvature=curvature(theta)[None],
        dispersion=np.array([phi]),
    )


def _dispersion(old: Uploads, X: Floats, y: Floats, theta: Floats, A: Floats, risk: Risk) -> float:
    """Noise scale of all rows: old residuals, what the model has moved, and the new residuals."""
    loss = risk.loss
    if not loss.has_dispersion:
        return 1.0
    assert old.dispersion is not None
    n, start = float(old.n_samples[0]), old.models[0]
    known = bool(np.isfinite(old.dispersion[0])) and n > old.dim
    before = old.dispersion[0] * (n - old.dim) if known else 0.0
    moved = theta - start
    before += moved @ A @ moved - 2.0 * n * (old.penalty * start) @ moved  # the old model was drawn
    z = risk.design(X) @ theta.reshape(-1, risk.n_outputs)
    ones = np.ones((1, len(y)))
    added = loss.dispersion(z[None], y[None], ones, np.array([len(y)]))[0] * len(y)
    spare = n + len(y) - old.dim
    return float((before + added) / spare) if spare > 0 else np.inf


def place_of(upload: Uploads, groups: Groups, refit: Refit, was: int) -> tuple[int, Floats, float]:
    """The group that explains an upload best, the user's model from the two, and how surely.

    What :func:`~odcl.server.assign.assign_rows` reads off rows, read off their quadratic model; for
    the squared loss it is the same. A user in no group (-1) has its own model. Where curvature
    varies the quadratic model cannot tell who is far from all groups: whoever ``was``, stays so.
    """
    assert upload.curvature is not None
    H, theta, n = upload.curvature[0], upload.models[0], float(upload.n_samples[0])
    pen = n * upload.penalty
    A = H - np.diag(pen)
    a, V = np.linalg.eigh(A)
    seen = a > 1e-10 * max(float(a[-1]), 1e-300)
    a, V = a[seen], V[:, seen]
    free = theta + V @ ((pen * theta) @ V / a)  # its own model without the penalty

    def loss_above(center: Floats) -> float:
        return float(0.5 * (a * ((center - free) @ V) ** 2).sum())

    phi, dof = 1.0, np.inf
    if upload.has_dispersion and upload.dispersion is not None:
        known = bool(np.isfinite(upload.dispersion[0])) and n > upload.dim
        dof = n - upload.dim if known else 0.0
        own = upload.dispersion[0] - 2.0 * loss_above(theta) / dof if known else 0.0
        phi = 2.0 * min(map(loss_above, groups.centers)) / n
        if dof + groups.phi_dof > 0:
            phi = groups.drawn_up(max(own, 0.0), dof)
        # Rows without noise differ by rounding.
        phi, dof = max(phi, 1e-18 * loss_above(0.0 * free) / n, 1e-300), dof + groups.phi_dof
    # The user's own model is N(c_k, phi A^-1 + tau^2 I), along the directions that its rows see.
    gap2 = ((groups.centers - free) @ V) ** 2
    p = softmax(np.log(groups.members) - 0.5 * gap2 @ (a / (phi + groups.tau2 * a)))
    label = int(np.argmax(p))
    center, none = groups.centers[label], was < 0 and upload.curvature_varies
    if not upload.curvature_varies and upload.dim <= MOST_DIRECTIONS:
        slope = A @ (center - free) + groups.pull[label] * pen * center
        none = groups.distance(label, View(slope @ V, a), loss_above(center), n, phi, dof)[1]
    if none or refit == 0:
        return -1 if none else label, theta, float(p[label])
    strength = phi / groups.tau2 if groups.tau2 > 0 else np.inf
    if refit is None:
        strength = np.inf
    elif not isinstance(refit, str):
        strength = float(refit) * n
    if np.isinf(strength):
        return label, center, float(p[label])
    drawn = A + strength * np.eye(upload.dim)
    theta = solve_symmetric(drawn[None], (H @ theta + strength * center)[None])[0]
    return label, theta, float(p[label])


def place_upload(upload: Uploads, groups: Groups, refit: Refit) -> Assignment:
    """Where a user belongs by what it sent, without its rows.

    With a curvature by :func:`place_of`; a bare model goes to the nearest group, as in the paper,
    and nothing is known of how surely.
    """
    known = bool(upload.sent[0])
    if known:
        label, theta, sure = place_of(upload, groups, refit, 0)
    else:
        label, sure = int(nearest_center(upload.models, groups.centers)[0]), np.nan
        theta = upload.models[0] if refit == 0 else groups.centers[label]
    p = np.zeros(len(groups.centers))
    p[max(label, 0)] = 1.0 if np.isnan(sure) else sure
    return Assignment(label, sure, p, np.nan, label < 0, theta, upload)
