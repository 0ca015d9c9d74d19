"""What is asked of some users, in which coordinates they are solved, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.local.newton import Minimum, Problem
from odcl.local.stacks import PerUser, Stack
from odcl.risk.loss import Loss
from odcl.risk.risk import Risk


@dataclass(frozen=True, eq=False)
class Solution:
    """Minimisers of the users' risks, one row per user."""

    theta: Floats  # (n_users, dim)
    converged: Bools  # (n_users,)
    gradient_norm: Floats  # (n_users,), of the risk at theta
    n_iter: Ints  # (n_users,)
    prior: Bools  # (n_users,), no finite minimiser: solved with a small prior (see PRIOR)


@dataclass(frozen=True, eq=False)
class Penalty:
    """strength/2 ||theta - center||^2 per user; ``free`` leaves the intercept out of it.

    With ``intercept`` the intercept has a strength of its own.
    """

    strength: Floats  # (n_users,)
    center: Floats | None = None  # (n_users, dim); None: zero
    free: bool = True
    intercept: Floats | None = None  # (n_users,); None: as the others, unless free


@dataclass(frozen=True, eq=False)
class Job(PerUser):
    """A stack of users and what is asked of them."""

    stack: Stack
    loss: Loss
    strength: Floats  # (b,)
    center: Floats | None  # (b, n_inputs, q)
    intercept: Floats | None  # (b,), the intercept's strength; None: no intercept
    free: bool  # is there an intercept without a penalty?

    @property
    def holds_intercept(self) -> bool:
        """Is there an intercept under the penalty, that is, one column more?"""
        return self.intercept is not None and not self.free

    @property
    def offset(self) -> Floats | None:
        """Predictor at the penalty's centre, (b, n, q)."""
        if self.center is None:
            return None
        if self.intercept is None:
            return np.matmul(self.stack.X, self.center)
        ones = self.stack.present[..., None]
        return np.matmul(self.stack.X, self.center[:, :-1]) + ones * self.center[:, -1:]

    @property
    def reach(self) -> Floats:
        """Entry of a penalised intercept's column, (b,).

        The coefficient of that column then has the strength of all others.
        """
        assert self.intercept is not None
        own = np.where(self.intercept > 0, self.intercept, 1.0)
        return np.where(self.intercept > 0, np.sqrt(self.strength / own), 1.0)

    def problem(self, D: Floats) -> Problem:
        """These users' risks on the design D (b, n, r); a free intercept's column is added."""
        b, n, r = D.shape
        Dt = np.empty((b, r + self.free, n))
        Dt[:, :r] = D.transpose(0, 2, 1)
        penalty = np.zeros((b, r + self.free))
        penalty[:, :r] = self.strength[:, None]
        if self.free:
            Dt[:, -1] = self.stack.present
        return Problem(
            self.loss,
            Dt,
            self.stack.y,
            self.stack.weight,
            penalty,
            self.offset,
            self.strength == 0,
            self.free,
        )

    def features(self) -> Floats:
        """X, with a penalised intercept's column if there is one."""
        if not self.holds_intercept:
            return self.stack.X
        column = self.stack.present * self.reach[:, None]
        return np.concatenate([self.stack.X, column[..., None]], axis=2)


def job_of(stack: Stack, risk: Risk, penalty: Penalty) -> Job:
    b, _, p = stack.X.shape
    strength = penalty.strength[stack.users]
    center = intercept = None
    if penalty.center is not None:
        center = penalty.center[stack.users].reshape(b, risk.n_inputs(p), risk.n_outputs)
    if risk.intercept:
        own = penalty.intercept
        intercept = strength if own is None else own[stack.users]
        intercept = np.zeros(b) if penalty.free else intercept
    return Job(stack, risk.loss, strength, center, intercept, risk.intercept and penalty.free)


def model_of(job: Job, a: Floats, mean: Floats | None = None) -> Floats:
    """Coordinates of X's columns and of the intercept's as a model, (b, n_inputs, q)."""
    if job.intercept is None:
        return a
    coef, intercept = a[:, :-1], a[:, -1:]
    if not job.free:
        intercept = intercept * job.reach[:, None, None]
    if mean is not None:
        intercept = intercept - np.matmul(mean, coef)
    return np.concatenate([coef, intercept], axis=1)


def predictor_of(job: Job, model: Floats) -> Floats:
    """Predictor at the centre plus the model, (b, n, q)."""
    p, offset = job.stack.X.shape[2], job.offset
    z = np.matmul(job.stack.X, model[:, :p])
    if job.intercept is not None:
        z += job.stack.present[..., None] * model[:, p:]
    return z if offset is None else z + offset


def weighted_slope(job: Job, found: Minimum) -> Floats:
    return job.loss.slope(found.z, job.stack.y) * job.stack.weight[..., None]


def finish(
    job: Job,
    found: Minimum,
    model: Floats,
    out: Solution,
    *,
    pull: Floats | None = None,
    slope: Floats | None = None,
) -> None:
    """The gradient of the risk at the models, and both into the solution.

    ``slope`` (b, n, q) is that of the rows, weighted, and ``pull`` (b, p, q) X^T times it.
    """
    slope = weighted_slope(job, found) if slope is None else slope
    pull = np.matmul(job.stack.X.transpose(0, 2, 1), slope) if pull is None else pull
    p = pull.shape[1]
    gradient = np.empty(model.shape)
    gradient[:, :p] = pull + job.strength[:, None, None] * model[:, :p]
    if job.intercept is not None:
        ones = job.stack.present[:, None, :].astype(np.float64)
        gradient[:, p:] = np.matmul(ones, slope) + job.intercept[:, None, None] * model[:, p:]
    store(job, model, gradient, found, out)


def store(job: Job, model: Floats, gradient: Floats, found: Minimum | None, out: Solution) -> None:
    users = job.stack.users
    theta = model if job.center is None else job.center + model
    out.theta[users] = theta.reshape(len(users), out.theta.shape[1])
    out.gradient_norm[users] = np.sqrt((gradient**2).sum(axis=(1, 2)))
    out.converged[users] = True if found is None else found.converged
    out.n_iter[users] = 1 if found is None else found.n_iter
    out.prior[users] = False if found is None else found.lost
