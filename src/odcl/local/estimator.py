"""Any scikit-learn estimator with ``coef_`` and ``intercept_`` as the local solver."""

from __future__ import annotations

from typing import Any

import numpy as np

from odcl._typing import Floats
from odcl.data.federation import Federation, user_rng
from odcl.local.fit import PRIOR, Penalty, Solution, solve_users
from odcl.risk.loss import Loss
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk


def fit_with_estimator(
    estimator: Any,
    federation: Federation,
    risk: Risk,
    *,
    seed: int = 0,
    n_jobs: int | None = None,
) -> Solution:
    """Fit a clone of ``estimator`` to each user; users it refuses get the small prior instead.

    The estimator decides what is minimised: its own penalty and stopping rule stand, and
    ``gradient_norm`` is not known (NaN). One that draws without a ``random_state`` of its own gets
    each user's stream.
    """
    from joblib import Parallel, delayed

    encoded = federation.with_y(risk.loss.encode(federation.y))
    everybody = range(federation.n_users)
    fitted = Parallel(n_jobs=n_jobs)(
        delayed(_fit_one)(estimator, encoded.take(np.array([i])), risk.loss, seed)
        for i in everybody
    )
    m = federation.n_users
    theta = np.zeros((m, risk.dim(federation.n_features)))
    refused = np.array([found is None for found in fitted])
    for i in np.flatnonzero(~refused):
        coef, intercept = fitted[i]
        if not risk.intercept and np.any(intercept != 0):
            raise ValueError(
                f"{type(estimator).__name__} fitted an intercept and the risk has none: set both "
                "alike, or a part of each model would be lost."
            )
        theta[i] = np.vstack([coef, intercept[None]][: 1 + risk.intercept]).ravel()
    if refused.any():
        some = federation.take(np.flatnonzero(refused))
        fallback = Penalty(PRIOR / some.n_samples, free=False)
        theta[refused] = solve_users(some, risk, fallback).theta
    return Solution(theta, ~refused, np.full(m, np.nan), np.ones(m, dtype=np.intp), refused)


def check_linear(fitted: Any) -> None:
    """Refuse a fitted estimator that has no coefficients."""
    if not hasattr(fitted, "coef_"):
        raise ValueError(
            f"{type(fitted).__name__} has no coef_ after fit: only linear models can be "
            "averaged. Use one with coef_ and intercept_, such as Ridge or SGDClassifier."
        )


def _fit_one(
    estimator: Any, one: Federation, loss: Loss, seed: int
) -> tuple[Floats, Floats] | None:
    """(coefficients (p, q), intercepts (q,)), or None where the estimator refuses the rows."""
    from sklearn.base import clone

    if loss.classification and len(np.unique(one.y)) < 2:
        return None
    model = clone(estimator)
    if model.get_params().get("random_state", 0) is None:
        model.set_params(random_state=int(user_rng(seed, one.users.tolist()[0]).integers(2**31)))
    model.fit(one.X, one.y, **({} if one.weight is None else {"sample_weight": one.weight}))
    check_linear(model)
    coef = np.atleast_2d(np.asarray(model.coef_, dtype=np.float64))
    intercept = np.broadcast_to(np.asarray(getattr(model, "intercept_", 0.0), float), len(coef))
    if not isinstance(loss, Multinomial):
        return coef[:1].T, intercept[:1]
    if len(model.classes_) < loss.n_classes:  # a class without a row leaves no finite model
        return None
    if len(coef) == 1:  # two classes: the estimator holds the difference
        coef, intercept = np.vstack([-coef, coef]) / 2, np.array([-1.0, 1.0]) * intercept[0] / 2
    return coef.T @ loss.basis, intercept @ loss.basis
