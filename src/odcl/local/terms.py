"""Mixed groups at the user: what its rows say (its data term), and its last step.

The term is exact for squared loss, a Gaussian site for others.
"""

from __future__ import annotations

import numpy as np

from odcl._typing import Array, Floats
from odcl.data.federation import Federation
from odcl.local.receive import Received
from odcl.mixed.house import model_map
from odcl.mixed.mixture import Quadratics, by_row
from odcl.mixed.posterior import Download as Mixture
from odcl.mixed.posterior import posterior
from odcl.mixed.sites import site_posterior, sites
from odcl.mixed.terms import Levels, data_terms, quadratics
from odcl.risk.loss import symmetric
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk


def user_terms(federation: Federation, risk: Risk) -> dict[str, Array]:
    """The fields of an upload that hold the users' data terms."""
    if risk.loss.name == "squared":
        y, owner = risk.loss.encode(federation.y), federation.row_user
        found = data_terms(federation.X, y, owner, federation.n_users, federation.weight)
        return {"means": found.mean, "factor": found.factor}
    q = user_sites(federation, risk)
    assert q.ceiling is not None
    # References of factors follow from the other columns: they are not sent.
    width, own = q.dim // risk.n_outputs, risk.n_inputs(federation.n_features)
    sent = np.flatnonzero(np.arange(q.dim) % width < own)
    return {
        "site_curvature": q.A[:, sent[:, None], sent],
        "site_slope": q.b[:, sent],
        "site_constant": q.uu,
        "site_ceiling": q.ceiling,
    }


def user_sites(federation: Federation, risk: Risk) -> Quadratics:
    """The users' sites, for losses that are not quadratic, in all levels of factors."""
    return sites(
        risk.loss.name,
        site_design(federation.X, risk),
        site_target(risk, federation.y),
        federation.row_user,
        federation.n_users,
        federation.weight,
        n_classes=n_classes(risk),
        intercept=risk.intercept,
    )


def site_design(X: Floats, risk: Risk) -> Floats:
    """Rows with the intercept's column first and factors' references last, as sites have it."""
    X = Levels.of(risk.factors, X.shape[1]).rows(X)
    return np.column_stack([np.ones(len(X)), X]) if risk.intercept else X


def site_target(risk: Risk, y: Array) -> Floats:
    """Targets as sites take them: 0 and 1 for two classes."""
    encoded = risk.loss.encode(y)
    return (encoded > 0).astype(np.float64) if risk.loss.name == "logistic" else encoded


def n_classes(risk: Risk) -> int:
    return risk.loss.n_classes if isinstance(risk.loss, Multinomial) else 2


def last_step(federation: Federation, risk: Risk, mixture: Mixture) -> Received:
    """Mixed groups: the posterior of each user's model, from its own rows."""
    m, rows = federation.n_users, federation.row_user
    how = "posterior mean under every group, from the user's own rows"
    offset, change = model_map(mixture, risk)
    if risk.loss.name == "squared":
        y = risk.loss.encode(federation.y)
        terms = data_terms(federation.X, y, rows, m, federation.weight)
        found = posterior(quadratics(terms, mixture.coordinates), mixture)
        theta, V = found.mean(), found.covariance()
        scales = {"noise": found.s2 * mixture.coordinates.target_scale**2, "dof": found.dof}
    else:
        scales = {}
        site = site_posterior(
            risk.loss.name,
            site_design(federation.X, risk),
            site_target(risk, federation.y),
            rows,
            m,
            mixture,
            federation.weight,
            n_classes=n_classes(risk),
        )
        theta, V = site.mean(), site.covariance()
    covariance = symmetric(change @ V @ change.T)
    models = offset + by_row(theta, change.T)
    return Received(models, np.full(m, np.nan), how, covariance, **scales)
