"""What uploads tell of the users' columns: who lies outside, and what all users share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Array, Bools
from odcl.data.unusual import ColumnMoments, unusual_users
from odcl.exchange.upload import Uploads
from odcl.mixed.layout import Coordinates
from odcl.mixed.terms import DataTerms

if TYPE_CHECKING:
    from odcl.data.scaling import Scaling

HARDLY = 0.1  # of the users with two rows or more: a column that varies in no more is shared by all


def all_terms(uploads: Uploads) -> DataTerms | None:
    """The users' data terms of squared loss; None of other losses."""
    if uploads.factor is None or uploads.means is None:
        return None
    return DataTerms(uploads.seen, uploads.means, uploads.factor)


def user_columns(uploads: Uploads) -> ColumnMoments:
    """Means and standard deviations of the users' columns, as their uploads tell them.

    Gaussian terms tell them of rows weighted by their curvature, and nothing of the target.
    """
    A, rows = uploads.gaussian_curvature, np.maximum(uploads.seen, 1e-300)[:, None]
    factor = uploads.factor if uploads.thin_factor is None else uploads.thin_factor
    if factor is not None and uploads.means is not None:
        sd = np.sqrt((factor.astype(np.float64) ** 2).sum(axis=1) / rows)
        return ColumnMoments(uploads.seen, uploads.means, sd)
    if uploads.class_means is not None:
        return _class_columns(uploads)
    assert A is not None
    assert uploads.risk is not None
    inputs = A.shape[-1] // uploads.risk.n_outputs
    if not uploads.risk.intercept:  # nothing tells means from deviations
        nothing = np.zeros((len(A), inputs + 1))
        return ColumnMoments(uploads.seen, nothing, nothing)
    own = A[:, -1, :inputs, :inputs]  # under the widest prior, the first logit's
    weight = np.maximum(own[:, 0, 0], 1e-300)[:, None]
    mean, square = own[:, 0, 1:] / weight, np.diagonal(own, axis1=1, axis2=2)[:, 1:] / weight
    # A square minus a square: of a column that does not vary rounding leaves 1e-8 of its mean.
    sd, none = np.sqrt(np.maximum(square - mean**2, 0.0)), np.zeros((len(A), 1))
    sd = np.where(sd > 1e-6 * (1 + np.abs(mean)), sd, 0.0)
    return ColumnMoments(uploads.seen, np.hstack([mean, none]), np.hstack([sd, none]))


def _class_columns(uploads: Uploads) -> ColumnMoments:
    """Moments of the columns from those of the classes; the target is none of them."""
    assert uploads.class_means is not None
    assert uploads.scatter is not None
    n, draws = uploads.told_rows, uploads.scatter.astype(np.float64)
    share = n / np.maximum(n.sum(axis=1, keepdims=True), 1e-300)
    mean = (share[:, None] @ uploads.class_means)[:, 0]
    square = (share[:, None] @ (uploads.class_means - mean[:, None]) ** 2)[:, 0]
    classes = np.arange(n.shape[1])[:, None, None]
    of = np.asarray(uploads.scatter_class)[None] == classes  # (n_classes, n_users, draws)
    weight = (share.T / np.maximum(of.sum(axis=2), 1))[..., None] * of
    square += (weight.sum(axis=0)[:, None] @ draws**2)[:, 0]
    none = np.zeros((len(mean), 1))
    return ColumnMoments(n.sum(axis=1), np.hstack([mean, none]), np.hstack([np.sqrt(square), none]))


def shared_columns(uploads: Uploads) -> Bools:
    """Features, then factors, that vary within hardly any user, (n_features + n_factors,).

    A user's own coefficient of such a column cannot be told from its level, nor a group's.
    """
    assert uploads.risk is not None
    columns, factors = user_columns(uploads), uploads.risk.factors
    varies = columns.varies[:, :-1]
    levels = [varies[:, list(one.columns)].any(axis=1, keepdims=True) for one in factors]
    for one, any_level in zip(factors, levels, strict=True):
        varies[:, list(one.columns)] = any_level
    varies = np.hstack([varies, *levels])
    able = columns.rows >= 2
    return (
        varies[able].mean(axis=0) <= HARDLY if able.any() else np.zeros(varies.shape[1], np.bool_)
    )


def shared_coordinates(uploads: Uploads, at: Coordinates) -> Bools | None:
    """Coordinates whose coefficient all users and groups share, (dim,); None: there are none."""
    assert uploads.risk is not None
    if not at.intercept:  # then such a column is what tells users' levels
        return None
    shared = shared_columns(uploads)[at.kept]
    fixed = np.tile(np.append(False, shared), uploads.risk.n_outputs)
    return fixed if fixed.any() else None


def unusual_uploads(
    uploads: Uploads, scaling: Scaling, names: Sequence[str], target: str, users: Array
) -> list[str]:
    """What is odd about some users' columns, as their data terms tell it, under ``users``' names.

    ``names`` are those of the columns in use, whose units ``scaling`` has; "" for a ``target`` that
    is a class.
    """
    from odcl.data.notices import unusual_lines

    if not uploads.has_terms or uploads.risk is None:
        return []
    levels = {j for factor in uploads.risk.factors for j in factor.columns}
    shown = ["" if j in levels else name for j, name in enumerate(names)]
    columns = user_columns(uploads).in_units(scaling.shift, scaling.scale)
    return unusual_lines(unusual_users(columns), users, [*shown, target])
