"""What a statistician would try first: an intercept per user, or a ridge regression per user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation, folds
from odcl.local.fit import solve_users
from odcl.local.predict import linear_predictors
from odcl.risk.risk import Risk

PENALTIES = (0.0, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)  # of own models, standardised features
FOLDS, MANY_ROWS = 5, 50_000
MOST_USERS = 5_000  # beyond, a column per user takes too long
Predict = Callable[[Floats, Ints], Array]


def own_intercepts(federation: Federation, loss: str) -> Predict | None:
    """Slopes for all and an intercept per user (dummies), as (X, positions of users) -> targets.

    Least squares in closed form for numbers, ridge-penalized fits on sparse dummies for classes
    and counts; of classes the answer is their shares. None for more users than that is good for,
    and for losses that have no such fit.
    """
    if loss == "squared":
        return _least_squares(federation)
    if loss not in ("logistic", "multinomial", "poisson") or federation.n_users > MOST_USERS:
        return None
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression, PoissonRegressor

    middle, scale = federation.X.mean(axis=0), federation.X.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    one_hot = sparse.eye_array(federation.n_users, format="csr")

    def design(X: Floats, who: Ints) -> Any:
        return sparse.hstack([sparse.csr_array((X - middle) / scale), one_hot[who]], format="csr")

    counts = loss == "poisson"
    model = PoissonRegressor(alpha=1 / len(federation.y)) if counts else LogisticRegression()
    model.set_params(max_iter=1000)
    rows = design(federation.X, federation.row_user)
    fitted = model.fit(rows, federation.y, sample_weight=federation.weight)

    def predict(X: Floats, who: Ints) -> Array:
        return np.asarray((fitted.predict if counts else fitted.predict_proba)(design(X, who)))

    return predict


def _least_squares(federation: Federation) -> Predict:
    """The within estimator: slopes from what varies inside users, levels from their means."""
    X, y, starts = federation.X, federation.y, federation.offsets[:-1]
    w = np.ones(len(y)) if federation.weight is None else federation.weight
    both = np.column_stack([X, y])
    total = np.add.reduceat(w, starts)[:, None]
    means = np.add.reduceat(w[:, None] * both, starts) / total
    inside = np.sqrt(w)[:, None] * (both - means[federation.row_user])
    slopes = np.linalg.lstsq(inside[:, :-1], inside[:, -1], rcond=1e-10)[0]
    level = means[:, -1] - means[:, :-1] @ slopes

    def predict(X: Floats, who: Ints) -> Array:
        return X @ slopes + level[who]

    return predict


def own_models(federation: Federation, risk: Risk, *, seed: int = 0) -> tuple[float, Floats]:
    """One model per user, each alone: (l2, models). The penalty is the one that serves them best.

    Chosen by five-fold cross-validation (one fold of large tables) among ``PENALTIES`` and the
    risk's own, one for all users: more rows tell it than any user has.
    """
    fold = folds(federation, FOLDS, seed)
    fold[federation.n_rows[federation.row_user] == 1] = -1  # a user's only row is never held out
    parts = range(FOLDS if len(fold) <= MANY_ROWS else 1)
    free = 0.0 if risk.loss.name in ("squared", "huber") else 1e-3  # classes need some penalty
    tried = [l2 for l2 in sorted({risk.l2, *PENALTIES}) if l2 >= free]

    def cost(l2: float) -> float:
        own, total = Risk(risk.loss, l2, risk.intercept), 0.0
        for part in parts:
            out = fold == part
            theta = solve_users(federation.select_rows(~out), own).theta
            z = linear_predictors(federation.X[out], theta, federation.row_user[out], own)
            loss = risk.loss.value(z, federation.y[out])
            total += float(np.where(np.isfinite(loss), loss, np.inf).sum())
        return total

    best = min(tried, key=cost) if (fold >= 0).any() else risk.l2
    return best, solve_users(federation, Risk(risk.loss, best, risk.intercept)).theta
