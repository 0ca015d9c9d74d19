"""More rows of a user that is known: its upload grows, and its place and model follow.

The old rows are gone; their upload is a quadratic model of what they say. For the squared loss
that is everything, and the update equals a fit of all rows; elsewhere it is second order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import softmax

from odcl._typing import Floats
from odcl.exchange.download import Refit
from odcl.exchange.upload import Uploads
from odcl.risk.risk import Risk
from odcl.server.assign import Groups
from odcl.server.combine import solve_symmetric
from odcl.server.settle import misfit

MOST_STEPS = 50


def with_more_rows(old: Uploads, X: Floats, y: Floats, risk: Risk) -> Uploads:
    """The upload of one user after rows (X, y), encoded targets, came on top of ``old``.

    With A_0 = H_0 - n_0 P the old rows' curvature and b_0 = H_0 theta_0 their linear term, theta is
    the minimiser of  sum loss(x theta, y) + 1/2 theta' (A_0 + n P) theta - b_0' theta.
    """
    if not old.full or not old.sent[0]:
        raise ValueError(
            f"User {old.users.tolist()[0]!r} sent no curvature, so its old rows cannot be added to "
            "the new ones: give all its rows, old and new, and say so (all_rows=True)."
        )
    assert old.curvature is not None
    n, pen, bare = float(old.n_samples[0]) + len(y), old.penalty, replace(risk, l2=0.0)
    H, start = old.curvature[0], old.theta[0]
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
    left, known = float(old.n_samples[0]) - old.dim, bool(np.isfinite(old.dispersion[0]))
    before = old.dispersion[0] * left if known and left > 0 else 0.0
    moved = theta - old.theta[0]
    # Twice the old rows' loss from theta_0 on: its slope there is minus the penalty's.
    more = moved @ (A @ moved - 2.0 * old.n_samples[0] * old.penalty * old.theta[0])
    z = risk.design(X) @ theta.reshape(-1, risk.n_outputs)
    ones = np.ones((1, len(y)))
    added = loss.dispersion(z[None], y[None], ones, np.array([len(y)]))[0] * len(y)
    spare = float(old.n_samples[0]) + len(y) - old.dim
    return float((before + more + added) / spare) if spare > 0 else np.inf


def place(upload: Uploads, groups: Groups, refit: Refit) -> tuple[int, Floats, float]:
    """The group that explains an upload best, the user's model from the two, and how surely."""
    phi = 1.0
    if upload.has_dispersion and upload.dispersion is not None:
        known = bool(np.isfinite(upload.dispersion[0]))
        own, dof = (upload.dispersion[0], upload.n_samples[0] - upload.dim) if known else (0.0, 0.0)
        phi = max(groups.drawn_up(own, dof), 1e-300) if dof + groups.phi_dof > 0 else 1.0
    only = np.array([0])
    cost = misfit(upload, np.array([phi]), groups.tau2, groups.centers, only)[0]
    # With tau2 the terms are divided by phi already.
    cost = cost if groups.tau2 > 0 else cost / phi
    p = softmax(np.log(groups.members) - cost)
    label = int(np.argmax(p))
    center = groups.centers[label]
    strength = phi / groups.tau2 if groups.tau2 > 0 else np.inf
    if refit is None:
        strength = np.inf
    elif not isinstance(refit, str):
        strength = float(refit) * float(upload.n_samples[0])
    if np.isinf(strength) or strength == 0:
        return label, center if strength else upload.theta[0], float(p[label])
    assert upload.curvature is not None
    H = upload.curvature[0]
    A = H - np.diag(upload.n_samples[0] * upload.penalty) + strength * np.eye(upload.dim)
    theta = solve_symmetric(A[None], (H @ upload.theta[0] + strength * center)[None])[0]
    return label, theta, float(p[label])
