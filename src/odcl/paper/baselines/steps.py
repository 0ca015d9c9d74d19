"""Rounds: how users answer a broadcast, and how their answers become the next models.

Every user answers to models with a gradient, or with a model after some steps of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.data.federation import Federation, user_rng
from odcl.local.problem import Stack, stacks
from odcl.risk.loss import Loss
from odcl.risk.losses import Squared
from odcl.risk.risk import Risk

# A block of rows is read two or three times per round: of this size, the core's cache holds it.
_BLOCK_BYTES = 1 << 20
# Random rows are drawn for at least this many steps at a time: a call costs more than a row.
_AHEAD = 1 << 10


@dataclass(frozen=True, eq=False)
class Block:
    """Some users and their empirical risks, f_i of Eq. (1), side by side.

        f_i(theta) = sum_j weight_j loss(x_j theta, y_j) + 1/2 sum_c pen_c theta_c^2

    ``theta`` is (users, models, dim) everywhere: each user of a block looks at several models at a
    time (the K models of a broadcast, or its own). A first axis of length 1 means that all users
    look at the same models.
    """

    users: Ints  # (b,), positions in the federation
    loss: Loss
    D: Floats  # (b, n, n_inputs), padded rows are zero
    y: Floats  # (b, n)
    weight: Floats  # (b, n)
    pen: Floats  # (dim,)

    def risk(self, theta: Floats) -> Floats:
        """f_i at each model, (b, models)."""
        rows = self.loss.value(self._predict(theta), self.y[:, None])
        total: Floats = (rows * self.weight[:, None]).sum(axis=2) + 0.5 * (theta**2 @ self.pen)
        return total

    def gradient(self, theta: Floats) -> Floats:
        """Gradient of f_i at each model, (b, models, dim)."""
        return self._pull(self._slope(self._predict(theta))) + self.pen * theta

    def descend(self, theta: Floats, step_size: float, n_steps: int) -> Floats:
        """``n_steps`` full-batch gradient steps from each model, (b, models, dim)."""
        for _ in range(n_steps):
            theta = theta - step_size * self.gradient(theta)
        return theta

    def smoothness(self, radius: float) -> Floats:
        """L_i over the ball of this radius (Assumption 3), (b,): L of ``Risk.constants``."""
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
class WideBlock(Block):
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


def _summed(block: Block) -> Block:
    """Squared loss with more rows than inputs: p + 1 rows, a triangle, have the same risk."""
    rows = np.sqrt(block.weight)[..., None] * np.concatenate([block.D, block.y[..., None]], axis=2)
    R: Floats = np.asarray(np.linalg.qr(rows, mode="r"))
    return replace(block, D=R[..., :-1], y=R[..., -1], weight=np.ones(R.shape[:2]))


def _joined(parts: list[Block]) -> Block:
    """Many users in one call: what is left of them is small."""
    names = ("users", "D", "y", "weight")
    own: dict[str, Any] = {n: np.concatenate([getattr(one, n) for one in parts]) for n in names}
    return replace(parts[0], **own)


def blocks_of(federation: Federation, y: Floats, risk: Risk) -> list[Block]:
    """The federation in blocks, each user in the form in which its steps are cheapest."""
    loss, pen = risk.loss, risk.penalty(federation.n_features)
    uniform = risk.l2 == 0 or not risk.intercept
    blocks: list[Block] = []
    tall: list[Block] = []
    for part in _parts(federation, y):
        block = Block(part.users, loss, part.design(risk.intercept), part.y, part.weight, pen)
        _, n, p = block.D.shape
        if isinstance(loss, Squared) and n > p:
            tall.append(_summed(block))
        elif uniform and n <= p:
            kernel = np.matmul(block.D, block.D.transpose(0, 2, 1))
            blocks.append(WideBlock(**vars(block), kernel=kernel))
        else:
            blocks.append(block)
    return [*blocks, _joined(tall)] if tall else blocks


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


# -- rounds ----------------------------------------------------------------------------------------


StepSize = float | Literal["auto"]
Average = Literal["gradients", "models"]


@dataclass(frozen=True, eq=False)
class FederatedProblem:
    """A federation and the risk that all users minimise."""

    federation: Federation
    risk: Risk
    seed: int
    optima: Floats | None  # (n_users, dim), where the truth is known

    @property
    def n_users(self) -> int:
        return self.federation.n_users

    @cached_property
    def dim(self) -> int:
        return self.risk.dim(self.federation.n_features)

    @cached_property
    def y(self) -> Floats:
        return self.risk.loss.encode(self.federation.y)

    @cached_property
    def blocks(self) -> list[Block]:
        return blocks_of(self.federation, self.y, self.risk)

    @cached_property
    def draws(self) -> Draws:
        return Draws(self.federation, self.seed)

    def batches(self, n_steps: int, batch_size: int) -> Iterator[Block]:
        """``n_steps`` times all users with ``batch_size`` of their rows, drawn with replacement."""
        users = np.arange(self.n_users)
        rows = self.draws.take(n_steps * batch_size)
        even = np.full((self.n_users, batch_size), 1.0 / batch_size)
        pen = self.risk.penalty(self.federation.n_features)
        for now in np.split(rows, n_steps, axis=1):
            design = self.risk.design(self.federation.X[now])
            yield Block(users, self.risk.loss, design, self.y[now], even, pen)

    def smoothness(self, radius: float, batch_size: int | None = None) -> Floats:
        """L_i of every user, (n_users,), over the ball of this radius.

        With batches the step must also bear the steepest single row: L_i + max_j L_ij / batch_size
        (expected smoothness of sampling with replacement).
        """
        L = np.empty(self.n_users)
        for block in self.blocks:
            L[block.users] = block.smoothness(radius)
        if batch_size is not None:
            square = (self.federation.X**2).sum(axis=1) + self.risk.intercept
            _, most = self.risk.loss.curve_bounds(self.y, radius * np.sqrt(square))
            L += np.maximum.reduceat(most * square, self.federation.offsets[:-1]) / batch_size
        return L

    def risk_of_zero(self) -> float:
        """Mean over users of f_i(0)."""
        nothing = np.zeros((1, 1, self.dim))
        return float(np.concatenate([block.risk(nothing) for block in self.blocks]).mean())


@dataclass(frozen=True, eq=False)
class Answers:
    """What came back on a broadcast."""

    labels: Ints  # (n_users,), the model each user works on
    picked: Floats  # (n_users, dim), that model
    risk: Floats  # (n_users,), of that model
    replies: Floats  # (n_users, dim)


def answer(
    problem: FederatedProblem,
    models: Floats,
    labels: Ints | None,
    *,
    average: Average,
    step_size: float,
    n_steps: int,
    batch_size: int | None,
) -> Answers:
    """All users' answers to ``models``, (n_models, dim): one gradient, or a model after n_steps.

    Each user picks the model with the least risk on its rows (lowest number in a tie), or works on
    that of ``labels``, (n_users,). A block is read once: it is in the cache when it is used again.
    ``batch_size`` rows drawn at random serve each step; None: all rows.
    """
    m, dim = problem.n_users, problem.dim
    mine = np.zeros(m, dtype=np.intp) if labels is None else labels
    picked, replies, risk = np.empty((m, dim)), np.empty((m, dim)), np.empty(m)
    for block in problem.blocks:
        i = block.users
        if labels is None:
            seen = block.risk(models[None])
            mine[i], risk[i] = seen.argmin(axis=1), seen.min(axis=1)
        picked[i] = models[mine[i]]
        own = picked[i][:, None]
        if labels is not None:
            risk[i] = block.risk(own)[:, 0]
        if batch_size is None:
            gradients = average == "gradients"
            reply = block.gradient(own) if gradients else block.descend(own, step_size, n_steps)
            replies[i] = reply[:, 0]
    if batch_size is not None:
        theta = picked[:, None]
        for batch in problem.batches(n_steps, batch_size):
            gradient = batch.gradient(theta)
            theta = gradient if average == "gradients" else theta - step_size * gradient
        replies = theta[:, 0]
    return Answers(mine, picked, risk, replies)


# -- the server's side -----------------------------------------------------------------------------


def combine_gradients(models: Floats, answers: Answers, step: float) -> Floats:
    """IFCA's option I: the sum over the users of a model, divided by all users."""
    m = len(answers.labels)
    return models - step / m * sum_by_cluster(answers.replies, answers.labels, len(models))


def combine_models(models: Floats, answers: Answers, step: float) -> Floats:
    """IFCA's option II: the mean over the users of a model; a model without users stays."""
    counts = np.bincount(answers.labels, minlength=len(models))[:, None]
    total = sum_by_cluster(answers.replies, answers.labels, len(models))
    return np.where(counts > 0, total / np.maximum(counts, 1.0), models)
