"""What a user's rows say, as its data term: exact for squared loss, a Gaussian site for others."""

from __future__ import annotations

import numpy as np

from odcl._typing import Array, Floats
from odcl.data.federation import Federation
from odcl.mixed.mixture import Quadratics
from odcl.mixed.sites import sites
from odcl.mixed.terms import data_terms
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
    return {
        "site_curvature": q.A,
        "site_slope": q.b,
        "site_constant": q.uu,
        "site_ceiling": q.ceiling,
    }


def user_sites(federation: Federation, risk: Risk) -> Quadratics:
    """The users' sites, for losses that are not quadratic."""
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
    """Rows with the intercept's column first, as sites have it."""
    return np.column_stack([np.ones(len(X)), X]) if risk.intercept else X


def site_target(risk: Risk, y: Array) -> Floats:
    """Targets as sites take them: 0 and 1 for two classes."""
    encoded = risk.loss.encode(y)
    return (encoded > 0).astype(np.float64) if risk.loss.name == "logistic" else encoded


def n_classes(risk: Risk) -> int:
    return risk.loss.n_classes if isinstance(risk.loss, Multinomial) else 2
