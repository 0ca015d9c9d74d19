"""Rounds in one process: the loop around broadcast, answers and combination, and its history.

One round is the broadcast and the answers to it (Appendix D.3). History counts both as sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation
from odcl.evaluate.scores import nmse, whole_optima
from odcl.exchange.ledger import Exchange, Ledger
from odcl.risk.risk import Risk
from odcl.rounds.users import (
    Answers,
    Average,
    FederatedProblem,
    StepSize,
    Work,
    answer,
    ball_around,
    resolve_step,
)

# Descent with a step below 2/L never raises the risk. Stochastic steps and averaged models may, a
# little. A risk so many times that of the start, and above that of the zero model, is no noise.
_RISEN = 2.0
# A risk that the last tenth of the rounds still lowered by more than this share is on its way.
_FALLING = 1e-3


def problem_of(
    federation: Federation, risk: Risk, seed: int = 0, optima: Any = None
) -> FederatedProblem:
    """The problem of a call; the truth is the federation's own unless given."""
    known = getattr(federation, "optima", None) if optima is None else optima
    dim = risk.dim(federation.n_features)
    whole = None if known is None else whole_optima(known, dim, risk.n_outputs)
    return FederatedProblem(federation, risk, seed, whole)


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
    radius = ball_around(models)
    step = resolve_step(step_size, lambda: size * problem.smoothness(radius, batch_size).max())
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
