"""Users who come after the round, where groups are of models: the one that loses least on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from odcl._typing import Floats, Ints
from odcl.clustering.labels import nearest_center
from odcl.data.federation import Federation
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.risk.risk import Risk
from odcl.server.assign import Assignment
from odcl.server.result import ServerStep

LOOK_AT = 300  # users whose rows tell the noise around their groups' models


@dataclass(frozen=True, eq=False)
class GroupStatistics:
    """What a fit knows of its groups, for users who come later. In standardised units."""

    centers: Floats  # (n_clusters, dim)
    members: Ints  # (n_clusters,), users
    samples: Floats  # (n_clusters,), weight of their rows
    noise: float = np.nan  # scale of the targets around groups' models; NaN: not known, or none


def groups_of(federation: Federation, risk: Risk, step: ServerStep) -> GroupStatistics:
    """The groups of a fit, with the noise of some users' rows around their groups' models."""
    labels, k = step.labels, step.n_clusters
    members = np.bincount(labels, minlength=k)
    samples = np.bincount(labels, weights=federation.n_samples, minlength=k).astype(np.float64)
    noise = np.nan
    if step.mixture is None and risk.loss.has_data_terms:
        some = np.unique(np.linspace(0, federation.n_users - 1, LOOK_AT).astype(int))
        rows, around = federation.take(some), step.centers[labels[some]][:, None]
        lost = sum(
            float(_losses(X, y, risk, center)[0])
            for (_, X, y), center in zip(rows, around, strict=True)
        )
        noise = 2.0 * lost / len(rows.y)
    return GroupStatistics(step.centers, members, samples, noise)


def groups_of_uploads(uploads: Uploads, step: ServerStep) -> GroupStatistics:
    """The groups as a server knows them that sees no rows."""
    labels, k = step.labels, step.n_clusters
    members = np.bincount(labels, minlength=k)
    samples = np.bincount(labels, weights=uploads.n_samples, minlength=k).astype(np.float64)
    # A group may be nobody's likeliest.
    return GroupStatistics(step.centers, np.maximum(members, 1), np.maximum(samples, 1.0))


def assign_rows(X: Floats, y: Floats, risk: Risk, groups: GroupStatistics) -> Assignment:
    """The group whose model loses least on the user's rows, which takes that model.

    Probabilities are those of the rows under the groups' models, exp(-loss / phi): phi is 1 for
    classes and counts, and for numbers the groups' pooled noise (where it is not known, that of
    these rows around the best group's model).
    """
    one = Federation(X, y, np.array([0, len(y)]), np.zeros(1, dtype=int))
    lost = _losses(X, y, risk, groups.centers)
    phi = 1.0
    if risk.loss.has_data_terms:
        phi = 2.0 * float(lost.min()) / len(y) if np.isnan(groups.noise) else groups.noise
    p = softmax(-(lost - lost.min()) / max(phi, 1e-300))
    label = int(lost.argmin())
    sent = fit_users(one, risk).uploads
    return Assignment(label, float(p[label]), p, np.nan, False, groups.centers[label], sent)


def place_upload(upload: Uploads, groups: GroupStatistics) -> Assignment:
    """Where a user belongs by its model alone: the nearest group, nobody knows how surely."""
    label = int(nearest_center(upload.models, groups.centers)[0])
    p = np.zeros(len(groups.centers))
    p[label] = 1.0
    return Assignment(label, np.nan, p, np.nan, False, groups.centers[label], upload)


def _losses(X: Floats, y: Floats, risk: Risk, models: Floats) -> Floats:
    """What each of the models loses on the rows in all, (n_models,)."""
    design = risk.design(X)
    each = (design @ theta.reshape(design.shape[1], -1) for theta in models)
    return np.array([float(risk.loss.value(z, y).sum()) for z in each])
