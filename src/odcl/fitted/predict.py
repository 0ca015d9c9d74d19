"""Predictions of design rows, each by the model of its own user, and how far off they may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import stdtrit

from odcl._typing import Array, Floats, Ints
from odcl.data.curves import misfit
from odcl.data.federation import check_owners, group_rows, positions
from odcl.errors import show
from odcl.fitted.value import Fitted
from odcl.local.predict import (
    count_interval,
    count_std,
    linear_predictors,
    predicted_means,
    predictor_covariances,
)
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Curve
from odcl.wide.groups import models_without_rows

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
            return count_std(self.z[:, 0], self.S[:, 0, 0])
        return self._std()[0]

    def _std(self) -> tuple[Floats, Floats]:
        """Standard deviations, and the degrees of freedom behind them."""
        users = self.fitted.users
        if users.noise is None or users.dof is None:
            raise self.fitted.without_mixture("Intervals")
        # A user without rows of its own is taken for a typical one.
        at = np.minimum(self.where, len(users.noise))
        noise, dof = (np.append(a, np.median(a))[at] for a in (users.noise, users.dof))
        own = 0.0 if self.S is None else self.S[:, 0, 0]  # of wide users noise has it all
        return np.sqrt(own + noise), np.minimum(dof, 1e6)

    def interval(self, coverage: float) -> tuple[Floats, Floats]:
        """(low, high) between which a new target lies with probability ``coverage``."""
        if self.S is not None and self.curved:
            return count_interval(self.z[:, 0], self.S[:, 0, 0], coverage)
        std, dof = self._std()
        half = std * stdtrit(dof, 0.5 + coverage / 2)
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
        S = predictor_covariances(X, V, where, fitted.risk, fitted.scaling)
        if fitted.risk.loss.has_data_terms:
            S = S + _beyond_knots(fitted, X)[:, None, None]
    return RowPredictors(fitted, where, z, S)


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
    return f"{len(ids):,} of {n_rows:,} rows belong to {users} not in the fit ({some})"
