"""Predictions of design rows, each by the model of its own user, and how far off they may be.

A prediction is a sum over columns, given its user: a column adds its coefficient times the column
and, where it acts in a curve, its bends. Both are measured from their averages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.curves import KNOTS, misfit, with_bends
from odcl.data.federation import check_owners, group_rows, owner_ids, positions
from odcl.errors import InputError, count, did_you_mean, show
from odcl.exchange.upload import Uploads
from odcl.fitted.value import Fitted
from odcl.local.predict import (
    by_class,
    count_interval,
    count_std,
    linear_predictors,
    predicted_means,
    predictor_covariances,
)
from odcl.mixed.layout import model_map, without_rows
from odcl.mixed.posterior import Mixture
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Curve
from odcl.wide.moments import WideGroups, models_without_rows

MARGIN = 0.05  # of a curve's range: rows nearer to it than this are not beyond it


@dataclass(frozen=True, eq=False)
class RowPredictors:
    """Linear predictors of rows, and what they say of new targets there."""

    fitted: Fitted  # which holds the models of the rows' users
    where: Ints  # (n_rows,), positions of the owners; the number of users: not one of them
    z: Floats  # (n_rows, n_outputs)
    S: Floats | None  # (n_rows, n_outputs, n_outputs), covariances, where asked for and known

    @property
    def curved(self) -> bool:
        """Does the mean of the target depend on how surely the model is known?"""
        return not self.fitted.risk.loss.has_data_terms

    @cached_property
    def means(self) -> Floats:
        """Expected targets, (n_rows,)."""
        return predicted_means(self.z, self.S, self.fitted.risk.loss)[:, 0]

    def std(self) -> Floats:
        """Standard deviation of a new target of each row, (n_rows,)."""
        if self.curved and self.S is not None:
            return count_std(self.z[:, 0], self.S[:, 0, 0], self._times)
        return self._std()[0]

    @property
    def _times(self) -> float:
        """How many times as much as Poisson's law says counts scatter, as far as the fit saw it."""
        mixture = self.fitted.mixed
        return 1.0 if mixture is None else mixture.noise.s0

    def _std(self) -> tuple[Floats, Floats]:
        """Standard deviations, and the degrees of freedom behind them."""
        users = self.fitted.users
        if users.noise is None or users.dof is None:
            raise self.fitted.without_mixture("Intervals")
        # A user without rows of its own is taken for a typical one, whose level nobody knows.
        at, mixture = np.minimum(self.where, len(users.noise)), self.fitted.mixture
        noise, dof = (np.append(a, np.median(a)) for a in (users.noise, users.dof))
        noise[-1] += mixture.level if isinstance(mixture, WideGroups) else 0.0
        noise, dof = noise[at], dof[at]
        own = 0.0 if self.S is None else self.S[:, 0, 0]  # of wide users noise has it all
        return np.sqrt(own + noise), dof

    def interval(self, coverage: float) -> tuple[Floats, Floats]:
        """(low, high) between which a new target lies with probability ``coverage``."""
        if self.S is not None and self.curved:
            return count_interval(self.z[:, 0], self.S[:, 0, 0], coverage, self._times)
        std, dof = self._std()
        half = std * self.fitted.newcomers.tails.half_width(dof, coverage)
        return self.means - half, self.means + half

    @property
    def scores(self) -> Floats:
        """Log-odds (two classes: (n_rows,)), or one score per class, (n_rows, n_classes)."""
        loss = self.fitted.risk.loss
        if not isinstance(loss, Multinomial):
            return self.z[:, 0]
        scores = np.matmul(self.z, loss.basis.T)
        return scores[:, 1] - scores[:, 0] if loss.n_classes == 2 else scores

    @cached_property
    def probabilities(self) -> Floats:
        """Of each class, (n_rows, n_classes)."""
        loss = self.fitted.risk.loss
        p = predicted_means(self.z, self.S, loss)
        if isinstance(loss, Multinomial):
            return p
        p = p if self.S is None else p[:, 0]
        return np.column_stack([1 - p, p])

    def targets(self) -> Array:
        """The expected number of each row, or its likeliest class, (n_rows,)."""
        classes = self.fitted.columns.classes
        if classes is None:
            return self.means
        if self.S is not None:  # the mean over models need not be largest where z is
            return classes[self.probabilities.argmax(axis=1)]
        scores = self.scores
        best = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return classes[best]


def predict_rows(
    fitted: Fitted, X: Floats, users: Array | None, *, unsure: bool, unknown: str = "pooled"
) -> RowPredictors:
    """Predictors of design rows by their users' models; ``unsure`` adds their covariances.

    Users of None are allowed where the fit had none. ``unknown`` users are predicted as average
    users ("pooled") or refused ("error").
    """
    ids = None if users is None else check_owners(users, len(X))
    if ids is not None and fitted.files is not None:
        fitted = fitted.holding(group_rows(ids)[0])
    where = _owners(fitted, len(X), ids, unknown)
    theta, V = fitted.users.model, fitted.users.covariance if unsure else None
    if len(where) and where.max() == len(theta):
        average, uncertainty = average_user(fitted)
        theta = np.vstack([theta, average])
        if V is not None and uncertainty is not None:
            V = np.concatenate([V, uncertainty])
    z, S = linear_predictors(X, theta, where, fitted.risk, fitted.scaling), None
    if V is not None:
        V = _as_sure_as_told(fitted, V)
        S = predictor_covariances(X, V, where, fitted.risk, fitted.scaling)
        if fitted.risk.loss.has_data_terms:
            S = S + _beyond_knots(fitted, X)[:, None, None]
    return RowPredictors(fitted, where, z, S)


def _as_sure_as_told(fitted: Fitted, V: Floats) -> Floats:
    """The covariances of users' models; those of users without rows where everybody had just one.

    One row cannot tell its user's own model from noise, whatever likelihood makes of it.
    """
    mixture, rows = fitted.mixed, fitted.users.rows
    if mixture is None or not fitted.risk.loss.has_data_terms or not mixture.spread.matrix.any():
        return V
    if fitted.files is not None or not fitted.whole or (rows > 1).any():
        return V
    return np.tile(without_rows(mixture, fitted.risk)[1][-1], (len(V), 1, 1))


def curve_heights(fitted: Fitted, own: bool) -> list[tuple[Curve, float]]:
    """The open curves and how far they bend, R, with t for users' ``own``, in the model's units."""
    if fitted.mixed is None:
        return []
    sizes = fitted.mixed.heights(own) * fitted.mixed.coordinates.target_scale**2
    return list(zip(fitted.curves, sizes.tolist(), strict=True))


def _beyond_knots(fitted: Fitted, X: Floats) -> Floats:
    """Variances of design rows because curves are not known beyond their outer knots, (n_rows,)."""
    total, at = np.zeros(len(X)), fitted.scaling
    for curve, height in curve_heights(fitted, own=True):
        x = (X[:, at.used[curve.of]] - at.shift[curve.of]) / at.scale[curve.of]
        total += height * misfit(x, curve, inside=False)
    return total


def rows_beyond(fitted: Fitted, X: Floats) -> int:
    """How many design rows lie beyond the values that open curves were seen at, by a little more.

    Rows that were held out often lie just beyond the others.
    """
    beyond = np.zeros(len(X), np.bool_)
    for curve in fitted.curves:
        if curve.ends is not None and curve.period is None:
            shift, scale = (one[curve.of] for one in (fitted.scaling.shift, fitted.scaling.scale))
            low, high = curve.ends
            x = (X[:, fitted.scaling.used[curve.of]] - shift) / scale
            beyond |= np.abs(x - (low + high) / 2) > (0.5 + MARGIN) * (high - low)
    return int(beyond.sum())


def _owners(fitted: Fitted, n_rows: int, ids: Array | None, unknown: str) -> Ints:
    """The position of each row's user, (n_rows,); the number of users for those not known."""
    known = fitted.users.users
    if ids is None and fitted.has_users:
        raise ValueError(
            f"This model knows {len(known)} users, and was not told whose rows these are: pass "
            "users=... (a new id, for rows of a user who is not known)."
        )
    if ids is None:
        return np.zeros(n_rows, dtype=np.intp)
    if not fitted.has_users:
        raise ValueError(
            "This model was fitted without users and has one model for all rows: leave users= "
            "out, or fit with users=..."
        )
    where = positions(known, ids)
    new = where < 0
    if new.any() and unknown == "error":
        raise ValueError(
            f"{about_unknown(fitted, ids[new], n_rows)} and have no model. Add a user with "
            "add_user(id, X, y), or set unknown='pooled' to predict it as an average user."
        )
    where[new] = len(known)
    return where


def average_user(fitted: Fitted) -> tuple[Floats, Floats | None]:
    """The model of a user that is not known, (1, dim), and its covariance (None: not known).

    Of a mixture the mean over its groups, sum_k pi_k c_k; else one model for all rows.
    """
    if fitted.mixture is None:
        return fitted.newcomers.pooled[None], None
    models, V = models_without_rows(fitted.mixture, fitted.risk)
    return models[-1:], None if V is None else V[-1:]


def about_unknown(fitted: Fitted, ids: Array, n_rows: int) -> str:
    """The beginning of a sentence about rows whose users, ``ids``, have no model."""
    distinct = list(dict.fromkeys(ids.tolist()))
    some = ", ".join(map(show, distinct[:3])) + ", ..." * (len(distinct) > 3)
    first = [*fitted.users.users.tolist()[:1], distinct[0]][0]
    if type(first) is not type(distinct[0]):
        some += f"; the fit's ids look like {first!r}"
    users = "a user" if len(distinct) == 1 else f"{len(distinct):,} users"
    belong = "belongs" if len(ids) == 1 else "belong"
    return f"{len(ids):,} of {count(n_rows, 'row')} {belong} to {users} not in the fit ({some})"


# -- what columns do to predictions ----------------------------------------------------------------


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
