"""Rounds: the risk that users share, how they answer a broadcast, and the loop around that.

One round is the broadcast and the answers to it (Appendix D.3). History counts both as sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation
from odcl.evaluate.scores import nmse, whole_optima
from odcl.exchange.ledger import Exchange, Ledger
from odcl.paper.baselines.risks import Block, Draws, RowBlock, blocks_of
from odcl.risk.risk import Risk

StepSize = float | Literal["auto"]
Average = Literal["gradients", "models"]
# Descent with a step below 2/L never raises the risk. Stochastic steps and averaged models may, a
# little. A risk so many times that of the start, and above that of the zero model, is no noise.
_RISEN = 2.0
# A risk that the last tenth of the rounds still lowered by more than this share is on its way.
_FALLING = 1e-3


@dataclass(frozen=True, eq=False)
class FederatedProblem:
    """A federation and the risk that everybody minimises."""

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

    def smoothness(self, start: Floats, batch_size: int | None = None) -> Floats:
        """L_i of every user, (n_users,), over a ball twice as large as the start's.

        With batches the step must also bear the steepest single row: L_i + max_j L_ij / batch_size
        (expected smoothness of sampling with replacement).
        """
        radius = 2.0 * float(np.linalg.norm(start, axis=-1).max(initial=0.0)) + 1.0
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


def problem_of(
    federation: Federation, risk: Risk, seed: int = 0, optima: Any = None
) -> FederatedProblem:
    """The problem of a call; the truth is the federation's own unless given."""
    known = getattr(federation, "optima", None) if optima is None else optima
    dim = risk.dim(federation.n_features)
    whole = None if known is None else whole_optima(known, dim, risk.n_outputs)
    return FederatedProblem(federation, risk, seed, whole)


@dataclass(frozen=True)
class Work:
    """What a user does with a model before it answers: one gradient, or a model after tau steps."""

    average: Average
    step_size: float
    n_steps: int = 1  # the paper's tau
    batch_size: int | None = None  # None: all rows

    def on(self, block: Block, theta: Floats) -> Floats:
        """Full-batch answers of a block of users, (b, starts, dim)."""
        if self.average == "gradients":
            return block.gradient(theta)
        return block.descend(theta, self.step_size, self.n_steps)

    def on_batches(self, problem: FederatedProblem, theta: Floats) -> Floats:
        """Answers of all users from rows drawn at random, (n_users, starts, dim)."""
        assert self.batch_size is not None
        for batch in problem.batches(self.n_steps, self.batch_size):
            gradient = batch.gradient(theta)
            if self.average == "gradients":
                return gradient
            theta = theta - self.step_size * gradient
        return theta


@dataclass(frozen=True, eq=False)
class Answers:
    """What came back on a broadcast; several starts run side by side."""

    labels: Ints  # (n_users, starts), the model each user works on
    picked: Floats  # (n_users, starts, dim), that model
    risk: Floats  # (n_users, starts), of that model
    replies: Floats  # (n_users, starts, dim)

    @cached_property
    def mean_risk(self) -> Floats:
        """(starts,); infinite where a start has left the numbers."""
        mean = self.risk.mean(axis=0)
        return np.where(np.isfinite(mean), mean, np.inf)

    @property
    def lead(self) -> int:
        """The start with the least training risk: the method's answer at this point."""
        return int(self.mean_risk.argmin())


def answer(problem: FederatedProblem, models: Floats, work: Work, labels: Ints | None) -> Answers:
    """All users' answers to ``models``, (starts, n_models, dim).

    Each user picks the model with the least risk on its rows (lowest number in a tie), or works on
    that of ``labels``, (n_users,). A block is read once: it is in the cache when it is used again.
    """
    starts, k, dim = models.shape
    m = problem.n_users
    mine = np.zeros((m, starts), dtype=np.intp)
    picked, replies = np.empty((m, starts, dim)), np.empty((m, starts, dim))
    risk = np.empty((m, starts))
    for block in problem.blocks:
        i = block.users
        if labels is None:
            seen = block.risk(models.reshape(1, starts * k, dim)).reshape(-1, starts, k)
            mine[i], risk[i] = seen.argmin(axis=2), seen.min(axis=2)
        else:
            mine[i] = labels[i, None]
        own = models[np.arange(starts), mine[i]]
        if labels is not None:
            risk[i] = block.risk(own)
        if work.batch_size is None:
            replies[i] = work.on(block, own)
        picked[i] = own
    if work.batch_size is not None:
        replies = work.on_batches(problem, picked)
    return Answers(mine, picked, risk, replies)


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


def check_groups(groups: Any, n_users: int) -> Ints:
    """The true groups as 0..K-1 in the order of their names, so that user order is no matter."""
    given: Array = np.asarray(groups)
    if given.shape != (n_users,):
        raise ValueError(
            f"groups has shape {given.shape}, and {n_users} users need one group each: this method "
            "is told the true groups."
        )
    return np.unique(given, return_inverse=True)[1].reshape(-1).astype(np.intp)


# -- the loop -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class History:
    """Round by round: how good the users' models were and what was sent.

    ``risk`` and ``error`` have one entry more than there were rounds: the first is the start.
    """

    risk: Floats  # (n_rounds + 1,), mean over users of f_i at their models
    error: Floats | None  # (n_rounds + 1,), NMSE; None: the optima are not known
    ledger: Ledger
    reached: bool | None = None  # the stop rule; None: there was none
    diverged: bool = False  # the models ran away

    @classmethod
    def of_one_shot(
        cls, ledger: Ledger, models: Floats, optima: Floats | None, n_outputs: int = 1
    ) -> History:
        """A method without iterations: users have models after its last round only."""
        unknown = np.full(ledger.n_rounds + 1, np.nan)
        if optima is None:
            return cls(unknown, None, ledger)
        return cls(unknown, np.append(unknown[1:], nmse(models, optima, n_outputs)), ledger)

    def then(self, after: History) -> History:
        """These rounds and others after them; what the others start from is known twice."""
        error = None
        if self.error is not None and after.error is not None:
            error = np.append(self.error[:-1], after.error)
        risk, ledger = np.append(self.risk[:-1], after.risk), self.ledger.then(after.ledger)
        return replace(after, risk=risk, error=error, ledger=ledger)

    @property
    def unfinished(self) -> bool:
        """Did the last tenth of the rounds still lower the risk, so that more rounds would help?"""
        risk = self.risk[np.isfinite(self.risk)]
        before = risk[-1 - max(1, len(risk) // 10) :][:1]
        return not self.diverged and bool((before - risk[-1:] > _FALLING * abs(before)).any())


@dataclass(frozen=True, eq=False)
class Run:
    """Where a loop ended."""

    models: Floats  # (starts, n_models, dim), the last that were numbers
    answers: Answers  # on these models
    history: History
    options: dict[str, Any]  # how it was run, to be read by people


# What a method says of its rounds; the rest of what the loop takes is its caller's to say.
SET_BY_METHOD = ("models", "average", "combine", "exchange", "labels", "n_steps", "size")


def iterate(
    problem: FederatedProblem,
    models: Floats,
    average: Average,
    combine: Callable[[Floats, Answers, float], Floats],
    exchange: Exchange,
    *,
    labels: Ints | None = None,
    n_steps: int = 1,
    size: float = 1.0,
    step_size: StepSize = "auto",
    rounds: int = 200,
    batch_size: int | None = None,
    stop_at: float | None = None,
) -> Run:
    """Broadcast, answers (:func:`answer`), combination with the step; at most ``rounds`` times.

    ``step_size="auto"`` is 1 / max L_i, divided by ``size``. Stops at the first round after which
    the NMSE is ``stop_at`` or less (Section 5, "matches this error"). Models that leave the numbers
    end the loop, with a warning: the last models that were numbers are kept, and ``diverged`` is
    True.
    """
    if rounds < 0:
        raise ValueError(f"rounds={rounds} must be 0 or more.")
    if n_steps < 1 or (batch_size is not None and batch_size < 1):
        raise ValueError(
            f"A round needs a step and a row at least, got {n_steps} local steps with "
            f"batch_size={batch_size}."
        )
    _check(problem, models, stop_at)
    step = resolve_step(step_size, lambda: size * problem.smoothness(models, batch_size).max())
    work = Work(average, step, n_steps, batch_size)
    risk: list[float] = []
    error: list[float] = []
    reached = None if stop_at is None else False
    finite = True
    with np.errstate(over="ignore", invalid="ignore"):
        latest = models
        for t in range(rounds + 1):
            answers = answer(problem, latest, work, labels)
            lead = answers.lead
            risk.append(float(answers.mean_risk[lead]))
            finite = bool(np.isfinite(risk[-1]))
            if problem.optima is not None:
                now = nmse(answers.picked[:, lead], problem.optima)
                error.append(now if finite else np.inf)
            if finite or t == 0:
                models, last = latest, answers
            if not finite:
                break
            if stop_at is not None and error[-1] <= stop_at:
                reached = True
            if reached or t == rounds:
                break
            latest = combine(models, answers, step)
    tame = finite and (risk[-1] <= _RISEN * risk[0] or risk[-1] <= problem.risk_of_zero())
    if not tame:
        now_is = f"{risk[-1]:.3g}, from {risk[0]:.3g} at the start" if finite else "not a number"
        warnings.warn(
            f"The users' mean risk is {now_is} after {len(risk) - 1} rounds: the step is too long "
            "(at 2/L or more, descent runs away). Lower step_size, or use step_size='auto'.",
            ConvergenceWarning,
            stacklevel=3,
        )
    errors = np.array(error) if error else None
    history = History(np.array(risk), errors, exchange.over(len(risk) - 1), reached, not tame)
    options = {"step_size": step, "local_steps": n_steps, "batch_size": batch_size}
    return Run(models, last, history, {**options, "rounds": rounds, "stop_at": stop_at})


def _check(problem: FederatedProblem, models: Floats, stop_at: float | None) -> None:
    if models.shape[-1] != problem.dim or not np.isfinite(models).all():
        raise ValueError(
            f"The start has shape {models.shape}: it must be finite numbers, {problem.dim} to a "
            "model (features, and the intercept where there is one, times outputs)."
        )
    if stop_at is not None and problem.optima is None:
        raise ValueError(
            f"stop_at={stop_at:g} compares with the error of the users' models, and their optima "
            "are not known. Give optima=, or leave stop_at out."
        )
