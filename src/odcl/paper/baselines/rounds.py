"""What iterative methods have in common: users answer a broadcast, the server combines, again.

One round is the broadcast and the answers to it (Appendix D.3). History counts both as sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from odcl._typing import Floats, Ints
from odcl.evaluate.nmse import nmse
from odcl.exchange.ledger import Exchange, Ledger
from odcl.paper.baselines.problem import Answers, FederatedProblem, Work, answer

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
    ledger: Ledger
    stop_at: float | None = None
    reached: bool | None = None  # the stop rule; None: there was none
    diverged: bool = False  # the models ran away

    @classmethod
    def of_one_shot(cls, ledger: Ledger, error: float | None) -> History:
        """A method without iterations: users have models after its last round only."""
        unknown = np.full(ledger.n_rounds + 1, np.nan)
        return cls(unknown, None if error is None else np.append(unknown[1:], error), ledger)

    def then(self, after: History) -> History:
        """These rounds and others after them; what the others start from is known twice."""
        error = None
        if self.error is not None and after.error is not None:
            error = np.append(self.error[:-1], after.error)
        risk, ledger = np.append(self.risk[:-1], after.risk), self.ledger.then(after.ledger)
        return History(risk, error, ledger, after.stop_at, after.reached, after.diverged)

    @property
    def n_rounds(self) -> int:
        return self.ledger.n_rounds

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


def iterate(
    problem: FederatedProblem,
    models: Floats,
    work: Work,
    combine: Callable[[Floats, Answers], Floats],
    exchange: Exchange,
    *,
    labels: Ints | None = None,
    rounds: int,
    stop_at: float | None = None,
) -> Run:
    """Broadcast, answers (:func:`answer`), combination; at most ``rounds`` times.

    Stops at the first round after which the NMSE is ``stop_at`` or less (Section 5, "matches this
    error"). Models that leave the numbers end the loop, with a warning: the last models that were
    numbers are kept, and ``diverged`` is True.
    """
    _check(problem, models, rounds, stop_at)
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
            latest = combine(models, answers)
    tame = finite and (risk[-1] <= _RISEN * risk[0] or risk[-1] <= problem.risk_of_zero())
    if not tame:
        _warn(risk, finite)
    errors = np.array(error) if error else None
    ledger = exchange.over(len(risk) - 1)
    history = History(np.array(risk), errors, ledger, stop_at, reached, not tame)
    options = {
        "step_size": work.step_size,
        "local_steps": work.n_steps,
        "batch_size": work.batch_size,
        "rounds": rounds,
        "stop_at": stop_at,
    }
    return Run(models, last, history, options)


def _check(problem: FederatedProblem, models: Floats, rounds: int, stop_at: float | None) -> None:
    if rounds < 0:
        raise ValueError(f"rounds={rounds} must be 0 or more.")
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
