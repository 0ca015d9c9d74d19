"""What uploads tell of the users' columns: who lies outside, and what all users share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtri

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.unusual import FAR, ColumnMoments, Limits, Unusual, unusual_users
from odcl.exchange.upload import Uploads
from odcl.mixed.layout import Coordinates
from odcl.mixed.marginal import stack_size
from odcl.mixed.terms import DataTerms
from odcl.risk.risk import Risk

if TYPE_CHECKING:
    from odcl.data.scaling import Scaling


FEW_SITES = 3, 5  # sites that are compared with one another
UNITS = 12.0  # times as much as all others a site's column varies: hours for days are 24
EXPLAINED = 0.75  # of a target's mean square, by the user's level and columns: that is no noise
HARDLY = 0.1  # of the users with two rows or more: a column that varies in no more is shared by all


def all_terms(uploads: Uploads) -> DataTerms | None:
    """The users' data terms of squared loss; None of other losses."""
    if uploads.factor is None or uploads.means is None:
        return None
    return DataTerms(uploads.seen, uploads.means, uploads.factor)


def user_columns(uploads: Uploads, *, bends: bool = False) -> ColumnMoments:
    """Means and standard deviations of the users' columns, as their uploads tell them.

    ``bends`` are among them if asked for. Beside Gaussian terms nothing is told of the target.
    """
    risk = None if bends else uploads.risk
    rows = np.maximum(uploads.seen, 1e-300)[:, None]
    factor = uploads.factor if uploads.thin_factor is None else uploads.thin_factor
    if factor is not None and uploads.means is not None:
        square = np.empty((len(factor), factor.shape[2]))
        step = stack_size(factor.shape[2])
        for first in range(0, len(factor), step):
            part = slice(first, first + step)
            square[part] = (factor[part].astype(np.float64) ** 2).sum(axis=1)
        sd = np.sqrt(square / rows)
        lines = _lines(risk, sd.shape[1])
        return ColumnMoments(uploads.seen, uploads.means[:, lines], sd[:, lines])
    if uploads.class_means is not None:
        return _class_columns(uploads)
    assert uploads.risk is not None
    columns, none = gaussian_columns(uploads), np.zeros((len(uploads), 1))
    n_features = columns.mean.shape[1] - len(uploads.risk.factors)
    own = np.flatnonzero(_lines(risk, n_features))
    # Without an intercept nothing tells means from deviations.
    known = (one[:, own] * uploads.risk.intercept for one in (columns.mean, columns.sd))
    return ColumnMoments(uploads.seen, *(np.hstack([one, none]) for one in known))


def gaussian_columns(uploads: Uploads) -> ColumnMoments:
    """Moments of the columns in whose units Gaussian terms come; references of factors are last."""
    assert uploads.gaussian_means is not None
    assert uploads.gaussian_sds is not None
    return ColumnMoments(uploads.seen, uploads.gaussian_means, uploads.gaussian_sds)


def gaussian_parts(
    uploads: Uploads, *, lines: bool = False
) -> tuple[Floats | None, Floats | None, Floats | None]:
    """Curvature, slope and constant of the users' Gaussian terms, or of those of lines alone."""
    which = "gaussian_line_" if lines else "gaussian_"
    A, b, constant = (getattr(uploads, which + one) for one in ("curvature", "slope", "constant"))
    return A, b, constant


def line_numbers(risk: Risk, n_features: int) -> Ints:
    """Where the numbers of a term of lines lie in one with bends: logits, one after the other."""
    inputs = risk.n_inputs(n_features)
    own = np.arange(risk.n_inputs(risk.n_lines(n_features)))  # an intercept comes first
    numbers: Ints = (inputs * np.arange(risk.n_outputs)[:, None] + own).ravel()
    return numbers


def _lines(risk: Risk | None, width: int) -> Bools:
    """Which of the columns are not bends of others, (width,)."""
    lines = np.ones(width, np.bool_)
    for curve in () if risk is None else risk.curves:
        lines[list(curve.columns)] = False
    return lines


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

    A user's own coefficient of such a column cannot be told from its level, nor a group's. Bends
    are as the feature that they are of, and a periodic feature, which has no line, as its bends.
    """
    assert uploads.risk is not None
    columns, factors = user_columns(uploads, bends=True), uploads.risk.factors
    varies = columns.varies[:, :-1]
    for curve in uploads.risk.curves:
        own = list(curve.columns)
        if curve.period is not None:
            varies[:, curve.of] = varies[:, own].any(axis=1)
        varies[:, own] = varies[:, [curve.of]]
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


def lie_apart(uploads: Uploads, limits: Limits | None = None) -> Bools:
    """Users who take no part in what others are sent, (n_users,): in another unit, most likely.

    Their features lie outside the ``limits``, by default those that these users set together, or
    their target varies far more than anybody else's and is no noise: its level stands out, or their
    own rows explain it. One row with a code for a missing value does neither.
    """
    columns = user_columns(uploads)
    found = (limits or Limits.of(columns)).outside(columns)
    if uploads.factor is None:
        return found.in_features
    left = uploads.factor[:, -1, -1].astype(np.float64) ** 2
    spare, about_level = uploads.seen - uploads.factor.shape[2], columns.sd[:, -1] ** 2
    noise = np.where(spare > 0, left / np.maximum(spare, 1.0), about_level)
    square = columns.mean[:, -1] ** 2 + about_level
    explained = noise < (1 - EXPLAINED) * square
    return found.in_features | ((found.wide[:, -1] > 0) & explained)


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
    columns = user_columns(uploads).in_units(scaling.shift, scaling.scale)
    return unusual_lines(unusual_users(columns), users, _shown(uploads.risk, names, target))


def unusual_sites(
    uploads: Uploads, scaling: Scaling, names: Sequence[str], target: str, sites: Array
) -> list[str]:
    """Which of three to five sites has columns that differ from all others' as another unit would.

    So few sites cannot say what is usual, and nobody is set aside: a site is told. ``sites`` are
    the users', names and target as above.
    """
    from odcl.data.notices import unusual_lines

    who = np.unique(sites)
    if not FEW_SITES[0] <= len(who) <= FEW_SITES[1] or not uploads.has_terms or not uploads.risk:
        return []
    columns = user_columns(uploads).in_units(scaling.shift, scaling.scale)
    with np.errstate(all="ignore"):  # whatever numbers they sent
        mean, sd = map(np.array, zip(*(columns.pooled(sites == one) for one in who), strict=True))
        far, wide = np.zeros_like(mean), np.zeros_like(sd)
        for i in range(len(who)):
            gap, theirs = mean[i] - np.delete(mean, i, axis=0), np.delete(sd, i, axis=0)
            least, most = theirs.min(axis=0), theirs.max(axis=0)
            times = sd[i] / np.where(sd[i] > most, most, least)
            odd = (least > 0) & ((sd[i] > UNITS * most) | ((sd[i] > 0) & (UNITS * sd[i] < least)))
            wide[i] = np.where(odd, times, 0.0)
            near = np.take_along_axis(gap, np.abs(gap).argmin(axis=0)[None], axis=0)[0]
            far[i] = np.where(np.abs(near) > FAR * np.maximum(most, sd[i]), near, 0.0)
    far[:, -1] = 0.0  # a target's level may be anywhere
    shown = _shown(uploads.risk, names, target)
    return unusual_lines(Unusual(far, wide), who, shown, called="site")


def _shown(risk: Risk, names: Sequence[str], target: str) -> list[str]:
    """Names of the columns that may be told; "" of levels, and of a ``target`` that is a class."""
    levels = {j for factor in risk.factors for j in factor.columns}
    return [*("" if j in levels else name for j, name in enumerate(names)), target]


# -- counts that scatter by more than their law allows ---------------------------------------------

DISPERSED = 1.5  # times as much as their law allows: deviances of small counts come near 1.2


def overdispersion(uploads: Uploads, least: float = 1.0) -> float:
    """How many times as much as the Poisson law allows the median user's counts scatter.

    The deviance of the user's own model, read off its Gaussian term, over the median of chi-squared
    with a degree of freedom per row beyond the parameters that it tells of. 1 below ``least``, for
    other losses, and where no user has rows to spare.
    """
    counts = uploads.risk is not None and uploads.risk.loss.name == "poisson"
    lines = uploads.gaussian_line_curvature is not None
    A, b, constant = gaussian_parts(uploads, lines=lines)
    if not counts or A is None or b is None or constant is None:
        return 1.0
    assert uploads.gaussian_ceiling is not None
    widest = -1  # nearest to the user's own model
    A, b = A[:, widest], b[:, widest, :, None]
    values = np.linalg.eigvalsh(A)
    spare = uploads.n_samples - (values > 1e-9 * values[:, -1:]).sum(axis=1)
    some = spare > 0
    fitted = (b * (np.linalg.pinv(A, 1e-9, hermitian=True) @ b)).sum(axis=(1, 2))
    deviance = 2 * uploads.gaussian_ceiling + constant[:, widest] - fitted
    times = float(np.median(deviance[some] / chdtri(spare[some], 0.5))) if some.any() else 1.0
    return times if times >= least else 1.0
