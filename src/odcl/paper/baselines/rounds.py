"""What iterative methods have in common: users answer a broadcast, the server combines, again.

One round is the broadcast and the answers to it (Appendix D.3). History counts both as sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from odcl._typing import Floats, Ints
from odcl.engines.in_process import nmse
from odcl.paper.baselines.problem import Answers, Problem

# Descent with a step below 2/L never raises the risk. Stochastic steps and averaged models may, a
# little. A risk so many times that of the start, and above that of the zero model, is no noise.
_RISEN = 2.0
# A risk that the last tenth of the rounds still lowered by more than this share is on its way.
_FALLING = 1e-3


@dataclass(frozen=True, eq=False)
class History:
    """Round by round: how good the users' models were and what was sent.

    ``risk`` and ``error`` have one entry more than there were rounds: the first is the start.
    """

    risk: Floats  # (n_rounds + 1,), mean over users of f_i at their models
    error: Floats | None  # (n_rounds + 1,), NMSE; None: the optima are not known
    bytes_up: Ints  # (n_rounds,), sent by all users together
    bytes_down: Ints  # (n_rounds,), received by all users together
    delivery: int = 0  # bytes of the last download, by which users get what the rounds made
    stop_at: float | None = None
    reached: bool | None = None  # the stop rule; None: there was none
    diverged: bool = False  # the models ran away

    @property
    def n_rounds(self) -> int:
        return len(self.bytes_up)

    @property
    def unfinished(self) -> bool:
        """Did the last tenth of the rounds still lower the risk, so that more rounds would help?"""
        risk = self.risk[np.isfinite(self.risk)]
        before = risk[-1 - max(1, len(risk) // 10) :][:1]
        return not self.diverged and bool((before - risk[-1:] > _FALLING * abs(before)).any())

    @property
    def total_up(self) -> int:
        return int(self.bytes_up.sum())

    @property
    def total_down(self) -> int:
        return int(self.bytes_down.sum()) + self.delivery


@dataclass(frozen=True)
class Ledger:
    """Bytes that cross the wire in one round, all users together; 8 a number."""

    up: int
    down: int
    delivery: int
    once_up: int = 0  # what users send along in the first round only


@dataclass(frozen=True, eq=False)
class Run:
    """Where a loop ended."""

    models: Floats  # (starts, n_models, dim), the last that were numbers
    answers: Answers  # on these models
    history: History


def iterate(
    problem: Problem,
    models: Floats,
    ask: Callable[[Floats], Answers],
    combine: Callable[[Floats, Answers], Floats],
    ledger: Ledger,
    *,
    n_rounds: int,
    stop_at: float | None = None,
) -> Run:
    """Broadcast, answers, combination; at most ``n_rounds`` times.

    Stops at the first round after which the NMSE is ``stop_at`` or less (Section 5, "matches this
    error"). Models that leave the numbers end the loop, with a warning: the last models that were
    numbers are kept, and ``diverged`` is True.
    """
    _check(problem, models, n_rounds, stop_at)
    risk: list[float] = []
    error: list[float] = []
    reached = None if stop_at is None else False
    finite = True
    with np.errstate(over="ignore", invalid="ignore"):
        latest = models
        for t in range(n_rounds + 1):
            answers = ask(latest)
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
            if reached or t == n_rounds:
                break
            latest = combine(models, answers)
    tame = finite and (risk[-1] <= _RISEN * risk[0] or risk[-1] <= problem.risk_of_zero())
    if not tame:
        _warn(risk, finite)
    rounds = len(risk) - 1
    up = np.full(rounds, ledger.up, dtype=np.intp)
    up[:1] += ledger.once_up
    history = History(
        np.array(risk),
        np.array(error) if error else None,
        up,
        np.full(rounds, ledger.down, dtype=np.intp),
        ledger.delivery,
        stop_at,
        reached,
        not tame,
    )
    return Run(models, last, history)


def _check(problem: Problem, models: Floats, n_rounds: int, stop_at: float | None) -> None:
    if n_rounds < 0:
        raise ValueError(f"rounds={n_rounds} must be 0 or more.")
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


def _warn(risk: list[float], finite: bool) -> None:
    what = f"is {risk[-1]:.3g}, from {risk[0]:.3g} at the start" if finite else "is not a number"
    warnings.warn(
        f"The users' mean risk {what} after {len(risk) - 1} rounds: the step is too long (at "
        "2/L or more, descent runs away). Lower step_size, or use step_size='auto'.",
        ConvergenceWarning,
        stacklevel=4,
    )
