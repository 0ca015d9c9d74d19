"""What a statistician would try first: one model whose users have an intercept of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation

MOST_USERS = 5_000  # beyond, a column per user takes too long
Predict = Callable[[Floats, Ints], Array]


def own_intercepts(federation: Federation, loss: str) -> Predict | None:
    """Slopes for all and an intercept per user (dummies), as (X, positions of users) -> targets.

    Least squares in closed form for numbers, ridge-penalized fits on sparse dummies for classes
    and counts; classes are predicted by their codes. None for more users than that is good for, and
    for losses that have no such fit.
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
        return np.asarray(fitted.predict(design(X, who)))

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
