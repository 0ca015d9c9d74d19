"""Other local solvers: projected SGD (I-ODCL, Theorem 2), and scikit-learn's linear estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation, user_rng
from odcl.local.fit import PRIOR, solve_users
from odcl.local.problem import Penalty, Solution
from odcl.risk.loss import Loss
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

# The rows that users will visit are drawn beforehand, this many at a time.
_DRAWS = 1 << 23
# A gradient of this size is projected to the ball like any larger one, and its square is a number.
_HUGE = 1e100


@dataclass(frozen=True)
class ProjectedSGD:
    """theta <- projection of (theta - gradient of one random row / (mu_i t)) onto ||theta|| <= R.

    ``n_iter`` is the paper's T, ``radius`` its R. ``output="last"`` is the paper's last iterate,
    ``"average"`` the mean of the iterates weighted by t (Section 4.4's remark). Each user takes its
    own mu_i: the smallest over users would need another exchange.
    """

    n_iter: int = 10_000
    radius: float = 100.0
    output: Literal["last", "average"] = "last"

    def solve_users(self, federation: Federation, risk: Risk, *, seed: int) -> Solution:
        """All users side by side, each on its own stream of rows."""
        if self.output not in ("last", "average"):
            raise ValueError(f"output={self.output!r} is neither 'last' nor 'average'.")
        if self.n_iter < 1 or not self.radius > 0:
            raise ValueError("ProjectedSGD needs n_iter >= 1 and radius > 0.")
        m = federation.n_users
        y = risk.loss.encode(federation.y)
        mu = self._strong_convexity(federation, y, risk)
        theta = np.zeros((m, risk.dim(federation.n_features)))
        for part in np.array_split(np.arange(m), -(-m * self.n_iter // _DRAWS)):
            streams = [(i, user_rng(seed, federation.users[i])) for i in part]
            rows = np.stack([federation.drawn_rows(i, self.n_iter, rng) for i, rng in streams])
            theta[part] = self._descend(federation, y, risk, mu[part], rows)
        # The iterates are close to the minimiser, not at it: no user is called converged.
        no = np.zeros(m, dtype=bool)
        return Solution(theta, no, no.copy())

    def _descend(
        self, federation: Federation, y: Floats, risk: Risk, mu: Floats, draws: Ints
    ) -> Floats:
        """The loop. ``draws`` (users, n_iter) are rows of X; the answer is (users, dim)."""
        m, q = len(draws), risk.n_outputs
        inputs = risk.n_inputs(federation.n_features)
        pen = risk.penalty(federation.n_features).reshape(inputs, q)
        theta = np.zeros((m, inputs, q))
        average = np.zeros_like(theta)
        for t in range(1, self.n_iter + 1):
            rows = draws[:, t - 1]
            x = risk.design(federation.X[rows])
            z = np.matmul(x[:, None, :], theta)
            gradient = x[:, :, None] * risk.loss.slope(z, y[rows][:, None]) + pen * theta
            theta = theta - np.clip(gradient / (mu * t)[:, None, None], -_HUGE, _HUGE)
            size = np.sqrt((theta**2).reshape(m, inputs * q).sum(axis=1))
            theta *= np.minimum(1.0, self.radius / np.maximum(size, 1e-300))[:, None, None]
            average += (theta - average) * (2.0 / (t + 1))
        return (theta if self.output == "last" else average).reshape(m, inputs * q)

    def _strong_convexity(self, federation: Federation, y: Floats, risk: Risk) -> Floats:
        mu = np.zeros(federation.n_users)
        for i in range(federation.n_users):
            rows = federation.rows(i)
            X, y_i = federation.X[rows], y[rows]
            weight = None if federation.weight is None else federation.weight[rows]
            over, at_zero = (
                risk.constants(X, y_i, radius, weight) for radius in (self.radius, 0.0)
            )
            # Against the curvature at theta = 0: with log-odds in the hundreds mu is 1e-40, not 0.
            mu[i] = over.mu if over.mu > 1e-12 * at_zero.L else 0.0
        flat = mu == 0
        if flat.any():
            raise ValueError(
                f"The {risk.loss.name} risk of user {federation.users[flat].tolist()[0]!r} is not "
                f"strongly convex over the ball of radius {self.radius:g} (mu = 0), and the step "
                "1/(mu t) needs it. Set l2 > 0, or fit no intercept where only that is flat."
            )
        return mu


# -- any estimator with coef_ and intercept_ -------------------------------------------------------


def fit_with_estimator(
    estimator: BaseEstimator,
    federation: Federation,
    risk: Risk,
    *,
    seed: int = 0,
    n_jobs: int | None = None,
) -> Solution:
    """Fit a clone of ``estimator`` to each user; users it refuses get the small prior instead.

    The estimator decides what is minimised: its own penalty and stopping rule stand. One that draws
    without a ``random_state`` of its own gets each user's stream.
    """
    from joblib import Parallel, delayed

    encoded = federation.with_y(risk.loss.encode(federation.y))
    users = range(federation.n_users)
    fitted = Parallel(n_jobs=n_jobs)(
        delayed(_fit_one)(estimator, encoded.take(np.array([i])), risk.loss, seed) for i in users
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
    return Solution(theta, ~refused, refused)


def check_linear(fitted: BaseEstimator) -> None:
    """Refuse a fitted estimator that has no coefficients."""
    if not hasattr(fitted, "coef_"):
        raise ValueError(
            f"{type(fitted).__name__} has no coef_ after fit: only linear models can be "
            "averaged. Use one with coef_ and intercept_, such as Ridge or SGDClassifier."
        )


def _fit_one(
    estimator: BaseEstimator, one: Federation, loss: Loss, seed: int
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
