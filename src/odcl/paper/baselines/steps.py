"""Rounds: how users answer a broadcast, and how their answers become the next models.

Every user answers to models with a gradient, or with a model after some steps of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.data.federation import Federation
from odcl.paper.baselines.blocks import Block, Draws, RowBlock, blocks_of
from odcl.risk.risk import Risk

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

    def batches(self, n_steps: int, batch_size: int) -> Iterator[RowBlock]:
        """``n_steps`` times all users with ``batch_size`` of their rows, drawn with replacement."""
        users = np.arange(self.n_users)
        rows = self.draws.take(n_steps * batch_size)
        even = np.full((self.n_users, batch_size), 1.0 / batch_size)
        pen = self.risk.penalty(self.federation.n_features)
        for now in np.split(rows, n_steps, axis=1):
            design = self.risk.design(self.federation.X[now])
            yield RowBlock(users, self.risk.loss, design, self.y[now], even, pen)

    def smoothness(self, radius: float, batch_size: int | None = None) -> Floats:
        """L_i of every user, (n_users,), over the ball of this radius (:func:`ball_around`).

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


def ball_around(start: Floats) -> float:
    """Radius of the ball in which descent from these models, (..., dim), is at home: twice as large
    as theirs."""
    return 2.0 * float(np.linalg.norm(start, axis=-1).max(initial=0.0)) + 1.0


@dataclass(frozen=True)
class Work:
    """What a user does with a model before it answers: one gradient, or a model after tau steps."""

    average: Average
    step_size: float
    n_steps: int = 1  # the paper's tau
    batch_size: int | None = None  # None: all rows

    def on(self, block: Block, theta: Floats) -> Floats:
        """Full-batch answers of a block of users, (b, 1, dim)."""
        if self.average == "gradients":
            return block.gradient(theta)
        return block.descend(theta, self.step_size, self.n_steps)

    def on_batches(self, problem: FederatedProblem, theta: Floats) -> Floats:
        """Answers of all users from rows drawn at random, (n_users, 1, dim)."""
        assert self.batch_size is not None
        for batch in problem.batches(self.n_steps, self.batch_size):
            gradient = batch.gradient(theta)
            if self.average == "gradients":
                return gradient
            theta = theta - self.step_size * gradient
        return theta


@dataclass(frozen=True, eq=False)
class Answers:
    """What came back on a broadcast."""

    labels: Ints  # (n_users,), the model each user works on
    picked: Floats  # (n_users, dim), that model
    risk: Floats  # (n_users,), of that model
    replies: Floats  # (n_users, dim)


def answer(problem: FederatedProblem, models: Floats, work: Work, labels: Ints | None) -> Answers:
    """All users' answers to ``models``, (n_models, dim).

    Each user picks the model with the least risk on its rows (lowest number in a tie), or works on
    that of ``labels``, (n_users,). A block is read once: it is in the cache when it is used again.
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
        if work.batch_size is None:
            replies[i] = work.on(block, own)[:, 0]
    if work.batch_size is not None:
        replies = work.on_batches(problem, picked[:, None])[:, 0]
    return Answers(mine, picked, risk, replies)


def check_average(average: Average, local_steps: int | None) -> None:
    if average not in ("gradients", "models"):
        raise ValueError(f"average={average!r} is neither 'gradients' nor 'models'.")
    if average == "gradients" and local_steps not in (None, 1):
        raise ValueError(
            f"local_steps={local_steps} with average='gradients': a user answers with one "
            "gradient, so there is one step per round. Use average='models' for local steps."
        )


def resolve_step(step_size: StepSize, L: Callable[[], float]) -> float:
    """A step by name or number: ``"auto"`` is 1 / L."""
    if isinstance(step_size, str):
        if step_size != "auto":
            raise ValueError(f"step_size={step_size!r} is neither 'auto' nor a number > 0.")
        largest = L()
        return 1.0 / largest if largest > 0 else 1.0
    if not step_size > 0:
        raise ValueError(f"step_size={step_size!r} must be > 0, or 'auto'.")
    return float(step_size)


# -- the server's side -----------------------------------------------------------------------------


def combine_gradients(models: Floats, answers: Answers, step: float) -> Floats:
    """IFCA's option I: the sum over the users of a model, divided by all users."""
    m = len(answers.labels)
    return models - step / m * _sums(answers, len(models))


def combine_models(models: Floats, answers: Answers, step: float) -> Floats:
    """IFCA's option II: the mean over the users of a model; a model without users stays."""
    counts = np.bincount(answers.labels, minlength=len(models))[:, None]
    return np.where(counts > 0, _sums(answers, len(models)) / np.maximum(counts, 1.0), models)


def _sums(answers: Answers, n_models: int) -> Floats:
    """Sum of the users' replies for each model, (n_models, dim)."""
    total = np.zeros((n_models, answers.replies.shape[1]))
    found = sum_by_cluster(answers.replies, answers.labels)
    total[: len(found)] = found
    return total
