"""The user's last step: from its own rows, its own upload and its download to its model.

    minimise  mean loss_i(theta) + lam_i/2 ||theta - c_(i)||^2

around the model c_(i) that it received. The l2 term is replaced by this one, not added to it. No
communication: still one round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.cross_validation import cross_validated
from odcl.local.fit import Penalty, solve_users
from odcl.risk.risk import Risk
from odcl.threads import one_thread


@dataclass(frozen=True, eq=False)
class Received:
    """The users' final models and how far each was drawn to its group's."""

    models: Floats  # (n_users, dim)
    strength: Floats  # (n_users,), lam_i: 0 is the local model, infinity the group's
    how: str  # in words
    covariance: Floats | None = None  # (n_users, dim, dim), of the models, where it is known
    noise: Floats | None = None  # (n_users,), variance of the target around the model
    dof: Floats | None = None  # (n_users,), degrees of freedom behind it
    # Where a user's own rows say more of its group than what it sent did:
    group: Ints | None = None  # (n_users,), the likeliest
    sure: Floats | None = None  # (n_users,), its probability


def receive(
    federation: Federation,
    risk: Risk,
    uploads: Uploads,
    downloads: Downloads,
    *,
    seed: int = 0,
    n_jobs: int | None = None,
) -> Received:
    """Every user's last step. A user's model depends on its own rows and messages alone.

    ``downloads.refit`` is None (the paper: take the group's model), ``"evidence"`` (lam_i = phi_i /
    (n_i tau^2), the posterior mode when users of a group differ by tau^2; cross-validation where
    tau^2 is not known), ``"cv"`` (lam_i from the user's own rows), or a number for all.
    """
    with one_thread(federation.n_features):
        if downloads.mixture is not None:
            from odcl.local.terms import last_step

            return last_step(federation, risk, downloads.mixture, uploads)
        return _refit(federation, risk, uploads, downloads, seed, n_jobs)


def _refit(
    federation: Federation,
    risk: Risk,
    uploads: Uploads,
    downloads: Downloads,
    seed: int,
    n_jobs: int | None,
) -> Received:
    """Own models drawn to the groups', as ``downloads.refit`` says."""
    m, refit = len(downloads), downloads.refit
    if refit is None:
        return Received(downloads.model, np.full(m, np.inf), "none")
    alone = downloads.group_size == 1
    around = downloads.model
    if refit == "cv" or (refit == "evidence" and downloads.tau2 is None):
        around = downloads.model if downloads.others is None else downloads.others
        models, strength = downloads.model.copy(), np.full(m, np.inf)
        models[alone], strength[alone] = uploads.models[alone], 0.0
        able = np.flatnonzero(~alone & (federation.n_rows > 1))  # one row: the group's model
        if len(able):
            part = federation.take(able)
            ends = downloads.model[able], uploads.models[able]
            found = cross_validated(part, risk, around[able], *ends, seed, n_jobs)
            models[able], strength[able] = found
        how = "strengths weighed by cross-validation on each user's own rows"
        how += " (tau^2 is not known)" * (refit == "evidence")
        return Received(models, strength, how)
    if refit == "evidence":
        strength = _from_evidence(uploads, downloads)
        how = f"strength from the evidence, tau^2 = {downloads.tau2:.3g}"
    else:
        strength, how = np.full(m, float(refit)), f"strength {refit:g}"
    strength = np.where(alone, 0.0, strength)
    models = np.where((strength == 0)[:, None], uploads.models, downloads.model)
    between = np.flatnonzero((strength > 0) & np.isfinite(strength))
    if len(between):
        part = federation if len(between) == m else federation.take(between)
        penalty = Penalty(strength[between], around[between], free=False)
        models[between] = solve_users(part, risk, penalty, n_jobs=n_jobs).theta
    return Received(models, strength, how)


def _from_evidence(uploads: Uploads, downloads: Downloads) -> Floats:
    """lam_i = phi_i / (n_i tau^2); tau = 0 is the group's model itself."""
    phi = downloads.dispersion
    phi = np.ones(len(downloads)) if phi is None else phi
    tau2 = np.float64(downloads.tau2 or 0.0)
    with np.errstate(divide="ignore"):
        return np.where(tau2 > 0, phi / (uploads.n_samples * tau2), np.inf)
