"""Inexact local models (I-ODCL, Theorem 2): projected stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation, user_rng
from odcl.local.exact import Solution
from odcl.local.losses import Loss, penalty


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

    def solve_users(
        self,
        federation: Federation,
        y: Floats,
        loss: Loss,
        *,
        l2: float,
        fit_intercept: bool,
        seed: int,
    ) -> Solution:
        """All users side by side, each on its own stream of rows."""
        if self.output not in ("last", "average"):
            raise ValueError(f"output={self.output!r} is neither 'last' nor 'average'.")
        if self.n_iter < 1 or not self.radius > 0:
            raise ValueError("ProjectedSGD needs n_iter >= 1 and radius > 0.")
        mu = self._strong_convexity(federation, y, loss, l2, fit_intercept)
        draws = np.stack([self._rows(federation, i, seed) for i in range(federation.n_users)])
        m, q = federation.n_users, loss.n_outputs
        inputs = federation.n_features + fit_intercept
        pen = penalty(inputs, q, l2, fit_intercept).reshape(inputs, q)
        theta = np.zeros((m, inputs, q))
        average = np.zeros_like(theta)
        for t in range(1, self.n_iter + 1):
            rows = draws[:, t - 1]
            x = federation.X[rows]
            if fit_intercept:
                x = np.column_stack([x, np.ones(m)])
            z = np.matmul(x[:, None, :], theta)
            slope = loss.slope(z, y[rows][:, None])
            theta = theta - (x[:, :, None] * slope + pen * theta) / (mu * t)[:, None, None]
            size = np.sqrt((theta**2).sum(axis=(1, 2)))
            theta *= np.minimum(1.0, self.radius / np.maximum(size, 1e-300))[:, None, None]
            average += (theta - average) * (2.0 / (t + 1))
        chosen = (theta if self.output == "last" else average).reshape(m, -1)
        gradients = [
            loss.gradient(chosen[i], X, y[federation.rows(i)], l2=l2, fit_intercept=fit_intercept)
            for i, (_, X, _) in enumerate(federation)
        ]
        norm = np.linalg.norm(gradients, axis=1)
        # The iterates are close to the minimiser, not at it: no user is called converged.
        no = np.zeros(m, dtype=bool)
        return Solution(chosen, no, norm, np.full(m, self.n_iter, dtype=np.intp), no.copy())

    def _strong_convexity(
        self, federation: Federation, y: Floats, loss: Loss, l2: float, fit_intercept: bool
    ) -> Floats:
        mu = np.array(
            [
                loss.constants(
                    X, y[federation.rows(i)], self.radius, l2=l2, fit_intercept=fit_intercept
                ).mu
                for i, (_, X, _) in enumerate(federation)
            ]
        )
        flat = mu < 1e-12
        if flat.any():
            raise ValueError(
                f"The {loss.name} risk of user {federation.users[flat][0]!r} is not strongly convex "
                f"over the ball of radius {self.radius:g} (mu = 0), and the step 1/(mu t) needs it. "
                "Set l2 > 0, or fit_intercept=False where only the intercept is flat."
            )
        return mu

    def _rows(self, federation: Federation, user: int, seed: int) -> Ints:
        """The rows that one user visits, drawn with replacement in proportion to their weight."""
        rng = user_rng(seed, federation.users[user])
        rows = federation.rows(user)
        if federation.weight is None:
            return rng.integers(rows.start, rows.stop, size=self.n_iter)
        share = federation.weight[rows] / federation.weight[rows].sum()
        return rows.start + rng.choice(len(share), size=self.n_iter, p=share)
