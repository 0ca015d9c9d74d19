"""Users in stacks of equal size, what is asked of them, and the way back to their models.

A user's rows are padded with empty rows to a size that depends on that user alone, never on the
batch, and every stacked operation (matmul, LAPACK) treats the users of a stack one by one. So a
user's numbers are bit for bit the same alone, in any batch and in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.data.federation import Federation
from odcl.local.newton import Minimum, Problem
from odcl.local.stacked import PerUser
from odcl.risk.loss import Loss
from odcl.risk.risk import Risk

# Large enough to spread the cost of a call over many users, small enough for the caches to carry
# a stack from one pass of a Newton step to the next. Wide users (no more rows than features) are
# reduced to their rows at once: there, more of them in a stack saves calls.
_TALL_BYTES, _WIDE_BYTES = 1 << 21, 1 << 26


@dataclass(frozen=True, eq=False)
class Stack(PerUser):
    """Some users' rows: padded rows have ``present`` False, weight 0 and zeros in X."""

    users: Ints  # (b,), positions in the federation
    X: Floats  # (b, n, n_features)
    y: Floats  # (b, n)
    weight: Floats  # (b, n), sums to 1 per user
    present: Bools  # (b, n)
    even: bool  # do all rows of a user weigh the same?

    def design(self, intercept: bool) -> Floats:
        """X with the intercept's column, ones where a row is present: (b, n, n_inputs)."""
        if not intercept:
            return self.X
        return np.concatenate([self.X, self.present[..., None].astype(np.float64)], axis=2)


def padded_size(n: Ints) -> Ints:
    """Smallest multiple of 2^(floor(log2 n) - 5) that holds n rows: at most 3 % of padding."""
    n = np.maximum(n, 1)
    step = 2 ** np.maximum(np.floor(np.log2(n)).astype(np.intp) - 5, 0)
    return -(-n // step) * step


def stacks(federation: Federation, y: Floats, users: Ints | None = None) -> Iterator[Stack]:
    """Cut a federation into stacks of users with the same padded size."""
    users = np.arange(federation.n_users) if users is None else users
    sizes = padded_size(federation.n_rows[users])
    order = np.argsort(sizes, kind="stable")
    for size in np.unique(sizes):
        members = users[order[np.searchsorted(sizes[order], size) :][: int((sizes == size).sum())]]
        budget = _WIDE_BYTES if size <= federation.n_features else _TALL_BYTES
        length = max(1, budget // (8 * int(size) * max(federation.n_features, 1)))
        for start in range(0, len(members), length):
            yield _stack(federation, y, members[start : start + length], int(size))


def _stack(federation: Federation, y: Floats, users: Ints, size: int) -> Stack:
    counts = federation.n_rows[users]
    first = federation.offsets[users]
    p = federation.n_features
    whole = (counts == size).all()
    if whole and (np.diff(users) == 1).all():  # neighbours without padding: a view
        rows: slice | Ints = slice(int(first[0]), int(first[0]) + size * len(users))
    else:
        last = federation.offsets[users + 1] - 1
        rows = np.minimum(first[:, None] + np.arange(size), last[:, None]).ravel()
    present = np.arange(size) < counts[:, None]
    X = federation.X[rows].reshape(len(users), size, p)
    target = y[rows].reshape(len(users), size)
    if federation.weight is None:
        weight = present / counts[:, None].astype(np.float64)
    else:
        weight = federation.weight[rows].reshape(len(users), size) * present
        weight = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
    if not present.all():
        X = X * present[..., None]
    return Stack(users, X, target, weight, present, federation.weight is None)


@dataclass(frozen=True, eq=False)
class Solution:
    """Minimisers of the users' risks, one row per user."""

    theta: Floats  # (n_users, dim)
    converged: Bools  # (n_users,)
    prior: Bools  # (n_users,), no finite minimiser: solved with a small prior (see PRIOR)


@dataclass(frozen=True, eq=False)
class Penalty:
    """strength/2 ||theta||^2 per user; ``free`` leaves the intercept out of it.

    With ``intercept`` the intercept has a strength of its own.
    """

    strength: Floats  # (n_users,)
    free: bool = True
    intercept: Floats | None = None  # (n_users,); None: as the others, unless free


@dataclass(frozen=True, eq=False)
class Job(PerUser):
    """A stack of users and what is asked of them."""

    stack: Stack
    loss: Loss
    strength: Floats  # (b,)
    intercept: Floats | None  # (b,), the intercept's strength; None: no intercept
    free: bool  # is there an intercept without a penalty?

    @property
    def holds_intercept(self) -> bool:
        """Is there an intercept under the penalty, that is, one column more?"""
        return self.intercept is not None and not self.free

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
    strength, intercept = penalty.strength[stack.users], None
    if risk.intercept:
        own = penalty.intercept
        intercept = strength if own is None else own[stack.users]
        intercept = np.zeros(len(strength)) if penalty.free else intercept
    free = risk.intercept and penalty.free
    return Job(stack, risk.loss, strength, intercept, free)


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


def store(job: Job, model: Floats, found: Minimum | None, out: Solution) -> None:
    """Put the models of a job's users, (b, n_inputs, q), into the solution."""
    users = job.stack.users
    out.theta[users] = model.reshape(len(users), out.theta.shape[1])
    out.converged[users] = True if found is None else found.converged
    out.prior[users] = False if found is None else found.lost
