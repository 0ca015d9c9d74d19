"""Predictions of rows, each by the model of its own user, and fits of the whole table at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betainc, pdtr

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.local.fit import solve_users
from odcl.risk.loss import Loss
from odcl.risk.losses import Huber, Multinomial, Squared
from odcl.risk.risk import Curve, Risk

if TYPE_CHECKING:
    from odcl.data.scaling import Scaling

# Rows and their models in one chunk stay in a core's cache: three times as fast at 100 features
# as all at once, and a million rows need no copy of a million models.
_CHUNK_BYTES = 1 << 20


def linear_predictors(
    X: Floats, theta: Floats, where: Ints, risk: Risk, scaling: Scaling | None = None
) -> Floats:
    """z_j = x_j theta[where_j], (n_rows, n_outputs); with ``scaling``, X is in the table's units.

    One product per row: a row's number is the same alone and among others.
    """
    z = np.empty((len(X), risk.n_outputs))
    for part, x in _designs(X, risk, scaling, max(theta.shape[1], X.shape[1])):
        model = theta[where[part]].reshape(len(x), x.shape[1], risk.n_outputs)
        z[part] = np.matmul(x[:, None, :], model)[:, 0]
    return z


def predictor_covariances(
    X: Floats,
    covariance: Floats,
    where: Ints,
    risk: Risk,
    scaling: Scaling | None = None,
) -> Floats:
    """Covariance of each row's predictor, (n_rows, n_outputs, n_outputs), by its user's model's."""
    q, dim = risk.n_outputs, covariance.shape[1]
    S = np.empty((len(X), q, q))
    for part, x in _designs(X, risk, scaling, dim * dim):
        V = covariance[where[part]].reshape(len(x), -1, q, len(x[0]) * q)
        half = np.matmul(x[:, None, :], V.reshape(len(x), x.shape[1], -1))
        half = half.reshape(len(x), q, x.shape[1], q)
        S[part] = np.einsum("nj,nqjr->nqr", x, half)
    return S


def _designs(
    X: Floats, risk: Risk, scaling: Scaling | None, width: int
) -> Iterator[tuple[slice, Floats]]:
    """Designs of some rows at a time, whose models have ``width`` numbers each."""
    step = max(1, _CHUNK_BYTES // (8 * width))
    for start in range(0, len(X), step):
        part = slice(start, start + step)
        x = np.ascontiguousarray(X[part])  # the same bits for a frame, which lies by columns
        yield part, risk.design(x if scaling is None else scaling.apply(x))


def in_table_units(theta: Floats, risk: Risk, scaling: Scaling) -> tuple[Floats, Floats]:
    """Coefficients and intercepts of models, (m, n_features) and (m,).

    Multinomial: (m, n_classes, n_features) and (m, n_classes).
    """
    p = scaling.width
    model = theta.reshape(len(theta), risk.n_inputs(p), risk.n_outputs)
    coef, intercept = scaling.undo(model[:, :p], model[:, p:].sum(axis=1))
    loss = risk.loss
    if not isinstance(loss, Multinomial):
        return coef[:, :, 0], intercept[:, 0]
    return np.matmul(coef, loss.basis.T).swapaxes(1, 2), np.matmul(intercept, loss.basis.T)


def by_class(risk: Risk) -> Floats:
    """From outputs to the scores of several classes, (n_classes, n_outputs); else as they are."""
    return risk.loss.basis if isinstance(risk.loss, Multinomial) else np.eye(risk.n_outputs)


def named_coefficients(
    theta: Floats, names: Sequence[str], risk: Risk, scaling: Scaling, curves: Sequence[Curve]
) -> dict[str, Floats]:
    """:func:`in_table_units` by name, classes below one another; then bends, and the intercept.

    Bends of ``curves`` have numbers as they are, under the column's name: "price~1", ...
    """
    coef, intercept = in_table_units(theta, risk, scaling)
    found = dict(zip(names, coef.reshape(-1, coef.shape[-1]).T, strict=True))
    model = theta.reshape(len(theta), risk.n_inputs(scaling.width), risk.n_outputs)
    turn = by_class(risk).T
    for curve in curves:
        for at, j in enumerate(curve.columns, 1):
            found[f"{names[scaling.used[curve.of]]}~{at}"] = (model[:, j] @ turn).reshape(-1)
    return found | ({"(intercept)": intercept.reshape(-1)} if risk.intercept else {})


def predicted_means(z: Floats, S: Floats | None, loss: Loss) -> Floats:
    """Expected target, or class probabilities, at predictors N(z, S); None: known exactly."""
    if S is None or loss.has_data_terms:
        return loss.mean(z)
    from odcl.mixed.layout import reference_logits
    from odcl.mixed.variational import predicted

    basis = getattr(loss, "basis", None)
    m, V = reference_logits(z, S, basis)
    mean = predicted(loss.name, m[:, None], V[:, None])  # row by row, as the predictors
    return mean[:, 0] if basis is not None else mean


def count_std(z: Floats, S: Floats, times: float = 1.0) -> Floats:
    """Standard deviation of new counts whose log-rates are N(z, S), by the lognormal's moments."""
    rate = np.exp(z + S / 2)
    return np.sqrt(times * rate + rate**2 * np.expm1(S))


def count_interval(
    z: Floats, S: Floats, coverage: float, times: float = 1.0
) -> tuple[Floats, Floats]:
    """Central interval of new counts whose log-rates are N(z, S): ends are counts themselves.

    Counts that scatter ``times`` as much as Poisson's are negative binomial, of that variance.
    """
    nodes, masses = np.polynomial.hermite_e.hermegauss(20)
    rates = np.exp(z[:, None] + np.sqrt(np.maximum(S, 0.0))[:, None] * nodes)

    def reached(most: Floats) -> Floats:
        """The chance of at most so many, (n,)."""
        if times > 1:
            below = betainc(rates / (times - 1), np.maximum(most, 0)[:, None] + 1, 1 / times)
            below *= (most >= 0)[:, None]
        else:
            below = pdtr(most[:, None], rates)
        return below @ (masses / masses.sum())

    def smallest(p: float) -> Floats:
        """The smallest count at which the distribution function reaches p."""
        low, high = np.full(len(z), -1.0), 10 * times + 20 * rates.max(axis=1, initial=0.0)
        while (high - low > 1 + 1e-9 * high).any():
            middle = np.floor((low + high) / 2)
            enough = reached(middle) >= p
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.floor(high)

    return smallest((1 - coverage) / 2), smallest((1 + coverage) / 2)


def predicted_rows(
    X: Floats,
    theta: Floats,
    where: Ints,
    risk: Risk,
    scaling: Scaling | None = None,
    covariance: Floats | None = None,
) -> Floats:
    """What each row's model expects: numbers (n_rows,), or class shares (n_rows, n_classes)."""
    z = linear_predictors(X, theta, where, risk, scaling)
    S = None
    if covariance is not None:
        S = predictor_covariances(X, covariance, where, risk, scaling)
    mean = predicted_means(z, S, risk.loss)
    if not risk.loss.classification:
        return mean[:, 0]
    return mean if mean.shape[1] > 1 else np.column_stack([1 - mean, mean])


def one_for_all(federation: Federation, risk: Risk) -> Floats:
    """One model on all users' rows, (dim,)."""
    return solve_users(_as_one_user(federation), risk).theta[0]


def _as_one_user(federation: Federation) -> Federation:
    everything = np.array([0, len(federation.y)])
    return Federation(
        federation.X, federation.y, everything, np.zeros(1, dtype=int), federation.weight
    )


def residual_scale(federation: Federation, intercept: bool) -> float:
    """Robust scale of the residuals of the users' own models: the unit of Huber's delta.

    Least squares first, which outliers pull at, then Huber around that scale, until the scale
    stays. A user's residuals are swollen by n_i / (n_i - dim), as it has fitted dim of its rows;
    users who have no more rows than that do not count. If no user has more, one model for all gives
    the residuals. Of many users, a sample drawn by their ids is used.
    """
    from odcl.data.unusual import SAMPLE

    few = federation.some_users(SAMPLE)
    federation = federation if len(few) == federation.n_users else federation.take(few)
    dim = federation.n_features + intercept
    able = np.flatnonzero(federation.n_samples > dim)
    part = federation
    if len(able) < federation.n_users:
        part = federation.take(able) if len(able) else _as_one_user(federation)
    weight = np.ones(len(part.y)) if part.weight is None else part.weight
    size = _median(np.abs(part.y - _median(part.y, weight)), weight) or float(np.ptp(part.y))
    return _come_to_scale(
        lambda loss: _median(_swollen_residuals(part, intercept, loss), weight), size
    )


def _swollen_residuals(federation: Federation, intercept: bool, loss: Loss) -> Floats:
    """Sizes of the residuals of users' own models, (n_rows,), each sqrt(n_i / (n_i - dim)) fold."""
    n, risk = federation.n_samples, Risk(loss, intercept=intercept)
    swell = np.sqrt(n / np.maximum(n - federation.n_features - intercept, 0.5))
    theta = solve_users(federation, risk).theta
    z = linear_predictors(federation.X, theta, federation.row_user, risk)
    return np.asarray(np.abs(federation.y - z[:, 0]) * swell[federation.row_user])


def _come_to_scale(median_with: Callable[[Loss], float], size: float) -> float:
    """The scale that stays; ``median_with`` gives the median residual of a loss.

    ``size`` is that of the targets around their median. Rows that the models meet to six digits of
    it have no noise: any delta above rounding will do.
    """
    floor = 1e-6 * size or 1.0
    scale = math.inf
    loss: Loss = Squared()
    for _ in range(10):
        found = max(1.4826 * median_with(loss), floor)
        if found > 0.9 * scale:
            break
        scale, loss = found, Huber(1.345 * found)
    return min(scale, found)


def _median(values: Floats, weight: Floats) -> float:
    """Median of values that count ``weight`` times each."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    half = 0.5 * reached[-1]
    low = values[order][np.searchsorted(reached, half, side="left")]
    high = values[order][min(np.searchsorted(reached, half, side="right"), len(values) - 1)]
    return float(0.5 * (low + high))
