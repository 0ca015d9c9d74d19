"""What columns, groups and users' own differences do to predictions: curves, shares of variance.

A prediction is a sum over columns, given its user: a column adds its coefficient times the column
and, where it acts in a curve, its bends. Both are measured from their averages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.curves import KNOTS, misfit, with_bends
from odcl.data.federation import owner_ids, positions
from odcl.errors import InputError, did_you_mean, show
from odcl.exchange.upload import Uploads
from odcl.fitted.predict import average_user, curve_heights
from odcl.fitted.value import Fitted
from odcl.local.predict import by_class
from odcl.mixed.layout import model_map
from odcl.mixed.posterior import Mixture

GROUPS, USERS = "(groups)", "(users)"  # what they add to what all have in common
ROUNDING = 1e-12  # shares of variance below this are none


def averages(mixture: Mixture | None, width: int) -> Floats:
    """The average of each column of a model, (width,); of classes and counts its zero."""
    mean = np.zeros(width)
    if mixture is not None:
        at = mixture.coordinates
        own = at.kept < len(mean)
        mean[at.kept[own]] = at.shift[own]
    return mean


@dataclass(frozen=True, eq=False)
class Effect:
    """What a column adds to predictions, at some of its values and relative to its average."""

    x: Floats  # (points,), in the table's units
    own: Ints  # columns of the model: the line and its bends
    rows: Floats  # (points, len(own))
    turn: Floats  # (shown, n_outputs)
    misfit: Floats  # (points,), variances of what bends cannot follow

    @classmethod
    def of(cls, fitted: Fitted, column: int, points: int, *, own: bool = False) -> Effect:
        """Of a column in use, over the values that were seen; of a line, two deviations around.

        ``own``: it is to be that of a user.
        """
        scaling, left = fitted.scaling, np.zeros(points)
        heights = {c.of: (c, height) for c, height in curve_heights(fitted, own)}
        curve, height = heights.get(column, (None, 0.0))
        ends = KNOTS[0], KNOTS[-1]
        if curve is not None:
            ends = curve.ends or tuple(curve.center + curve.unit * KNOTS[[0, -1]])
            if curve.period is not None:  # all of it, from the first value that was seen
                first = curve.center if curve.ends is None else ends[0]
                ends = first, first + curve.period
        grid = np.linspace(*ends, points)
        X = np.zeros((points, len(scaling.used)))
        X[:, column] = grid
        if curve is not None:
            left = height * misfit(grid, curve)
        at = np.array([column, *(() if curve is None else curve.columns)], np.intp)
        rows = with_bends(X, scaling.curves)[:, at] - averages(fitted.mixed, scaling.width)[at]
        turn = by_class(fitted.risk)  # of two classes log-odds
        turn = turn[1:] - turn[:1] if len(turn) == 2 else turn
        return cls(scaling.shift[column] + grid * scaling.scale[column], at, rows, turn, left)

    def values(self, theta: Floats) -> Floats:
        """Of models (m, dim), as (m, points, shown)."""
        model = theta.reshape(len(theta), -1, self.turn.shape[1])[:, self.own]
        return self.rows @ model @ self.turn.T

    def errors(self, cov: Floats | None) -> Floats:
        """Standard errors of a model of this covariance, (points, shown); NaN: not known."""
        shown, q = self.turn.shape
        if cov is None:
            return np.full((len(self.x), shown), np.nan)
        p = len(cov) // q
        V = cov.reshape(p, q, p, q)[self.own][:, :, self.own]
        S = np.einsum("nj,jqkr,nk,sq,sr->ns", self.rows, V, self.rows, self.turn, self.turn)
        return np.sqrt(np.maximum(S, 0.0) + np.outer(self.misfit, (self.turn**2).sum(axis=1)))


def common_model(fitted: Fitted, group: int | None = None) -> tuple[Floats, Floats | None]:
    """The groups' mean by their shares, or one group's model, (1, dim), and how surely it is known.

    Groups are told by different users, but for what all of them share.
    """
    theta = average_user(fitted)[0] if group is None else fitted.centers[[group]]
    mixture = fitted.mixed
    if mixture is None:
        return theta, None
    shares = mixture.weights if group is None else np.eye(fitted.n_clusters)[group]
    C, change = mixture.covariances, model_map(mixture, fitted.risk)[1]
    V = np.tensordot(shares**2, C, 1)
    if mixture.spread.fixed is not None:
        both = np.outer(mixture.spread.fixed, mixture.spread.fixed)
        V = np.where(both, np.tensordot(shares, C, 1), V)
    return theta, change @ V @ change.T


def column_in_use(fitted: Fitted, column: Any) -> int:
    """The place of a column of numbers among those in use."""
    names, design = fitted.feature_names, fitted.columns.design
    place: dict[Any, int] = {name: j for j, name in enumerate(names)}
    place = {j: j for j in range(len(names))} | place
    if design is not None and column in design.levels:
        raise InputError(f"{show(column)} is a category: a curve is of a column of numbers.")
    if column not in place:
        raise InputError(f"{show(column)} is none of the columns{did_you_mean(column, names)}")
    j = place[column]
    if j not in fitted.scaling.used:
        raise InputError(
            f"{show(column)} has no part in predictions: it does not vary, or repeats another one."
        )
    return int(np.flatnonzero(fitted.scaling.used == j)[0])


def user_model(fitted: Fitted, user: Any) -> tuple[Floats, Floats | None]:
    """The model of a user, (1, dim), and its covariance."""
    ids = owner_ids([user])
    fitted = fitted.holding(ids)
    at = positions(fitted.users.users, ids)
    if at[0] < 0:
        known = fitted.users.users.tolist()
        raise InputError(f"{show(user)} is not a user of the fit{did_you_mean(user, known)}")
    cov = fitted.users.covariance
    return fitted.users.model[at], None if cov is None else cov[at[0]]


# -- shares of variance ----------------------------------------------------------------------------


def importance(fitted: Fitted) -> dict[str, float] | None:
    """Whose doing the variance of predictions over all rows is, in shares; None: nothing tells.

    Predictions (of classes log-odds, of counts log-rates) are what all users' models have in
    common, column by column, plus what groups add, plus what users' own differences add. A part's
    share is its covariance with the prediction over the variance of the prediction: shares add up
    to one, and a part below zero works against the others. Exact for squared loss; other losses'
    terms tell how columns go together by rows that count by their curvature.
    """
    q, p, group = fitted.risk.n_outputs, fitted.scaling.width, fitted.users.group
    models = fitted.users.model.reshape(len(group), -1, q)
    told = None if fitted.uploads is None else _moments(fitted.uploads, models[:, :p])
    if told is None:
        return None
    mean, inside = told
    assert fitted.uploads is not None
    weight = fitted.uploads.seen / fitted.uploads.seen.sum()
    level = (mean[:, None] @ models[:, :p])[:, 0] + models[:, p:].sum(axis=1)
    level = weight[:, None] * (level - weight @ level)
    # The covariance of any part with the predictions is the part's models times this.
    slope = np.zeros_like(models)
    slope[:, :p] = weight[:, None, None] * inside + mean[:, :, None] * level[:, None]
    slope[:, p:] = level[:, None]
    common = average_user(fitted)[0].reshape(-1, q)
    centers = fitted.centers[group].reshape(models.shape)
    centers[group < 0] = common
    each = (common * slope.sum(axis=0)).sum(axis=1)
    parts = {name: float(each[own].sum()) for name, own in _columns(fitted).items()}
    parts = dict(sorted(parts.items(), key=lambda one: -one[1]))
    parts[GROUPS] = float(((centers - common) * slope).sum())
    parts[USERS] = float(((models - centers) * slope).sum())
    total = sum(parts.values())
    shares = {name: value / total if total > 0 else 0.0 for name, value in parts.items()}
    return {name: share if abs(share) > ROUNDING else 0.0 for name, share in shares.items()}


def _columns(fitted: Fitted) -> dict[str, list[int]]:
    """Columns of a model by the feature that they belong to: levels, and bends beside a line."""
    design, names = fitted.columns.design, fitted.feature_names
    levels = {} if design is None else design.factors
    whose = {names[j]: feature for feature, own in levels.items() for j in own}
    found: dict[str, list[int]] = {}
    for j, name in enumerate(fitted.units):
        bends = (curve.columns for curve in fitted.risk.curves if curve.of == j)
        found.setdefault(whose.get(name, name), []).extend([j, *(k for own in bends for k in own)])
    return found


def _moments(sent: Uploads, coef: Floats) -> tuple[Floats, Floats] | None:
    """Averages of users' columns, (m, p), and their covariances times ``coef`` (m, p, q)."""
    p, rows = coef.shape[1], np.maximum(sent.seen, 1e-300)[:, None, None]
    if sent.factor is not None and sent.means is not None:
        root = np.ascontiguousarray(sent.factor[..., :p])
        return sent.means[:, :p], root.transpose(0, 2, 1) @ (root @ coef) / rows
    if sent.gaussian_curvature is None or sent.gaussian_means is None or sent.gaussian_sds is None:
        return None
    if sent.risk is None or not sent.risk.intercept:  # nothing tells means from deviations
        return None
    A = sent.gaussian_curvature[:, -1, : p + 1, : p + 1]  # of the widest prior, the first logit's
    A = A / np.maximum(A[:, :1, :1], 1e-300)
    A = A[:, 1:, 1:] - A[:, 1:, :1] * A[:, :1, 1:]
    unit = np.sqrt(np.maximum(np.diagonal(A, axis1=1, axis2=2), 1e-300))
    scale = sent.gaussian_sds[:, :p, None] / unit[..., None]
    return sent.gaussian_means[:, :p], scale * (A @ (scale * coef))
