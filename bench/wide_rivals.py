"""What wide users get elsewhere: penalised models of groups of users, a single user being one."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, RidgeCV

from bench.wide_worlds import World
from odcl._typing import Floats, Ints

STRENGTHS = 10.0 ** np.arange(-1, 4)  # beside rows of mean squared length one


def logistic_by_group(world: World, groups: Ints) -> Floats:
    """Probabilities of new rows, (rows, classes), by a logistic regression per group of users."""
    p = np.empty((len(world.y_new), int(world.y.max()) + 1))
    for k in range(groups.max() + 1):
        own, new = groups[world.users] == k, groups[world.users_new] == k
        p[new] = logistic(world.X[own], world.y[own], world.X_new[new], p.shape[1])
    return p


def logistic(X: Floats, y: Ints, X_new: Any, n_classes: int) -> Floats:
    """Probabilities of a logistic regression, its penalty by three folds (stratified).

    Fitted in the span of the rows, which a ridge solution never leaves. A class without rows has
    a thousandth.
    """
    center = X.mean(axis=0)
    Z, basis = X - center, None
    if len(X) < X.shape[1]:
        basis = np.linalg.qr(Z.T)[0]
        Z = Z @ basis
    scale = max(np.sqrt((Z**2).sum(axis=1).mean()), 1e-12)
    Z = Z / scale
    order = np.argsort(y, kind="stable")
    folds = np.empty(len(y), dtype=np.intp)
    folds[order] = np.arange(len(y)) % 3
    losses = np.zeros(len(STRENGTHS))
    for fold in range(3 if len(y) > 3 else 0):
        out = folds == fold
        for i, strength in enumerate(STRENGTHS):
            weights = _weights(Z[~out], y[~out], strength)
            p = _probabilities(Z[out], *weights, n_classes)
            losses[i] -= np.log(p[np.arange(len(p)), y[out]]).sum()
    strength = STRENGTHS[losses.argmin()] if losses.any() else 1.0
    seen, slopes, intercepts = _weights(Z, y, strength)
    slopes = (slopes if basis is None else basis @ slopes) / scale
    return _probabilities(X_new, seen, slopes, intercepts - center @ slopes, n_classes)


def _weights(Z: Floats, y: Ints, strength: float) -> tuple[Ints, Floats, Floats]:
    """Classes that have rows, and their slopes, (features, classes), and intercepts."""
    seen = np.unique(y)
    if len(seen) == 1:
        return seen, np.zeros((Z.shape[1], 1)), np.zeros(1)
    model = LogisticRegression(C=strength, max_iter=300, tol=1e-3).fit(Z, y)
    slopes, intercepts = model.coef_.T, model.intercept_
    if len(seen) == 2:
        zero = np.zeros_like(slopes)
        slopes, intercepts = np.hstack([zero, slopes]), np.append(0.0, intercepts)
    return seen, slopes, intercepts


def _probabilities(
    X: Any, seen: Ints, slopes: Floats, intercepts: Floats, n_classes: int
) -> Floats:
    p = np.full((len(X), n_classes), 1e-3)
    p[:, seen] = softmax(X @ slopes.astype(X.dtype) + intercepts, axis=1)
    p = np.maximum(p, 1e-6)
    return p / p.sum(axis=1, keepdims=True)


def ridge_by_group(world: World, groups: Ints) -> Floats:
    """Predictions of new rows by a ridge regression per group of users."""
    alphas = world.X.shape[1] * 10.0 ** np.linspace(-2, 2, 9)
    guess = np.empty(len(world.y_new))
    for k in range(groups.max() + 1):
        own, new = groups[world.users] == k, groups[world.users_new] == k
        model = RidgeCV(alphas=alphas).fit(world.X[own], world.y[own])
        guess[new] = model.predict(world.X_new[new])
    return guess
