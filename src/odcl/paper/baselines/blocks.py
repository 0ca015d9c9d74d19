"""The users' risks side by side: value, gradient and local steps of many users at once.

Users are held in blocks. ``theta`` is (users, models, dim) everywhere: each user of a block looks
at several models at a time (the K models of a broadcast, or its own). A
first axis of length 1 means that all users look at the same models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation, user_rng
from odcl.local.problem import Stack, stacks
from odcl.risk.loss import Loss, symmetric, weighted_gram
from odcl.risk.losses import Squared
from odcl.risk.risk import Risk

# A block of rows is read two or three times per round: of this size, the core's cache holds it.
_BLOCK_BYTES = 1 << 20
# Random rows are drawn for at least this many steps at a time: a call costs more than a row.
_AHEAD = 1 << 10


class Block(ABC):
    """Some users and their empirical risks, f_i of Eq. (1)."""

    users: Ints  # (b,), positions in the federation

    @abstractmethod
    def risk(self, theta: Floats) -> Floats:
        """f_i at each model, (b, models)."""

    @abstractmethod
    def gradient(self, theta: Floats) -> Floats:
        """Gradient of f_i at each model, (b, models, dim)."""

    @abstractmethod
    def smoothness(self, radius: float) -> Floats:
        """L_i over the ball of this radius (Assumption 3), (b,): L of ``Risk.constants``."""

    def descend(self, theta: Floats, step_size: float, n_steps: int) -> Floats:
        """``n_steps`` full-batch gradient steps from each model, (b, models, dim)."""
        for _ in range(n_steps):
            theta = theta - step_size * self.gradient(theta)
        return theta


@dataclass(frozen=True, eq=False)
class RowBlock(Block):
    """f_i(theta) = sum_j weight_j loss(x_j theta, y_j) + 1/2 sum_c pen_c theta_c^2."""

    users: Ints
    loss: Loss
    D: Floats  # (b, n, n_inputs), padded rows are zero
    y: Floats  # (b, n)
    weight: Floats  # (b, n), sums to 1 per user
    pen: Floats  # (dim,)

    def risk(self, theta: Floats) -> Floats:
        rows = self.loss.value(self._predict(theta), self.y[:, None])
        total: Floats = (rows * self.weight[:, None]).sum(axis=2) + 0.5 * (theta**2 @ self.pen)
        return total

    def gradient(self, theta: Floats) -> Floats:
        return self._pull(self._slope(self._predict(theta))) + self.pen * theta

    def smoothness(self, radius: float) -> Floats:
        _, most = self.loss.curve_bounds(self.y, radius * np.linalg.norm(self.D, axis=2))
        B = self.D * np.sqrt(most * self.weight)[..., None]
        Bt = B.transpose(0, 2, 1)
        # The smaller Gram matrix has the same largest eigenvalue: images have few rows per user.
        gram = np.matmul(B, Bt) if B.shape[1] < B.shape[2] else np.matmul(Bt, B)
        largest: Floats = np.linalg.eigvalsh(gram)[:, -1] + self.pen.max(initial=0.0)
        return largest

    def _predict(self, theta: Floats) -> Floats:
        """x_j theta, (b, models, n, n_outputs)."""
        b, n, p = self.D.shape
        q = self.loss.n_outputs
        T = theta.reshape(*theta.shape[:2], p, q).transpose(0, 2, 1, 3).reshape(len(theta), p, -1)
        same = len(theta) == 1
        z = self.D.reshape(b * n, p) @ T[0] if same else np.matmul(self.D, T)
        return z.reshape(b, n, -1, q).transpose(0, 2, 1, 3)

    def _slope(self, z: Floats) -> Floats:
        return self.loss.slope(z, self.y[:, None]) * self.weight[:, None, :, None]

    def _pull(self, slope: Floats) -> Floats:
        """D^T slope as models: (b, models, n, n_outputs) to (b, models, dim)."""
        b, models, n, q = slope.shape
        flat = slope.transpose(0, 2, 1, 3).reshape(b, n, models * q)
        pulled = np.matmul(self.D.transpose(0, 2, 1), flat)
        return pulled.reshape(b, -1, models, q).transpose(0, 2, 1, 3).reshape(b, models, -1)


@dataclass(frozen=True, eq=False)
class WideBlock(RowBlock):
    """No more rows than inputs: local steps are taken in the span of the rows, which is exact.

    A gradient step adds a combination of the user's rows and shrinks what was there, so that
    after t steps theta_t = s_t theta_0 + D^T a_t and D theta_t = s_t D theta_0 + D D^T a_t: steps
    cost n^2, not n dim. The penalty must be the same on all coordinates.
    """

    kernel: Floats  # (b, n, n), D D^T

    def descend(self, theta: Floats, step_size: float, n_steps: int) -> Floats:
        shrink = 1.0 - step_size * float(self.pen[0])
        z = self._predict(theta)
        a = np.zeros_like(z)
        for _ in range(n_steps):
            move = step_size * self._slope(z)
            a = shrink * a - move
            z = shrink * z - np.matmul(self.kernel[:, None], move)
        return shrink**n_steps * theta + self._pull(a)


@dataclass(frozen=True, eq=False)
class QuadraticBlock(Block):
    """Squared loss with more rows than inputs: the rows are summed up once, which is exact.

    f_i(theta) = 1/2 theta^T A theta - h^T theta + c
    """

    users: Ints
    A: Floats  # (b, dim, dim), penalty included
    h: Floats  # (b, dim)
    c: Floats  # (b,)

    @classmethod
    def of(cls, block: RowBlock) -> QuadraticBlock:
        Dt = block.D.transpose(0, 2, 1)
        A = symmetric(weighted_gram(Dt, block.weight[..., None, None])) + np.diag(block.pen)
        h = np.matmul(Dt, (block.weight * block.y)[..., None])[..., 0]
        return cls(block.users, A, h, 0.5 * (block.weight * block.y**2).sum(axis=1))

    @classmethod
    def joined(cls, parts: list[QuadraticBlock]) -> QuadraticBlock:
        """Many users in one call: what is left of them is small."""
        names = ("users", "A", "h", "c")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def risk(self, theta: Floats) -> Floats:
        inner = (0.5 * self._times(theta) - self.h[:, None]) * theta
        total: Floats = np.add(inner.sum(axis=2), self.c[:, None])
        return total

    def gradient(self, theta: Floats) -> Floats:
        return self._times(theta) - self.h[:, None]

    def smoothness(self, radius: float) -> Floats:
        return np.asarray(np.linalg.eigvalsh(self.A)[:, -1], dtype=np.float64)

    def _times(self, theta: Floats) -> Floats:
        """A theta, (b, models, dim). A is symmetric: theta^T A is the same, and rows stay rows."""
        if len(theta) == len(self.A):
            return np.matmul(theta, self.A)
        b, dim, _ = self.A.shape
        return (self.A.reshape(b * dim, dim) @ theta[0].T).reshape(b, dim, -1).transpose(0, 2, 1)


def blocks_of(federation: Federation, y: Floats, risk: Risk) -> list[Block]:
    """The federation in blocks, each user in the form in which its steps are cheapest."""
    loss, pen = risk.loss, risk.penalty(federation.n_features)
    uniform = risk.l2 == 0 or not risk.intercept
    blocks: list[Block] = []
    tall: list[QuadraticBlock] = []
    for part in _parts(federation, y):
        block = RowBlock(part.users, loss, part.design(risk.intercept), part.y, part.weight, pen)
        _, n, p = block.D.shape
        if isinstance(loss, Squared) and n > p:
            tall.append(QuadraticBlock.of(block))
        elif uniform and n <= p:
            kernel = np.matmul(block.D, block.D.transpose(0, 2, 1))
            blocks.append(WideBlock(**vars(block), kernel=kernel))
        else:
            blocks.append(block)
    return [*blocks, QuadraticBlock.joined(tall)] if tall else blocks


def _parts(federation: Federation, y: Floats) -> Iterator[Stack]:
    for stack in stacks(federation, y):
        length = max(1, _BLOCK_BYTES // max(1, stack.X[0].nbytes))
        for start in range(0, len(stack.users), length):
            yield from stacks(federation, y, stack.users[start : start + length])


class Draws:
    """Rows for stochastic steps, with replacement and in proportion to their weight.

    Each user draws from its own stream of (seed, user): among other users it draws the same.
    """

    def __init__(self, federation: Federation, seed: int) -> None:
        self.federation = federation
        self.streams = [user_rng(seed, user) for user in federation.users]
        self.ahead: Ints = np.empty((federation.n_users, 0), dtype=np.intp)

    def take(self, size: int) -> Ints:
        """The next ``size`` rows of every user, (n_users, size)."""
        short = size - self.ahead.shape[1]
        if short > 0:
            n, draw = max(short, _AHEAD), self.federation.drawn_rows
            more = [draw(user, n, rng) for user, rng in enumerate(self.streams)]
            self.ahead = np.concatenate([self.ahead, np.stack(more)], axis=1)
        now, self.ahead = self.ahead[:, :size], self.ahead[:, size:]
        return now
