"""What is measured of a method, and local models that several methods share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.data.synthetic import linear_federation
from odcl.local.fit import Solution, solve_users
from odcl.paper.baselines import METHODS, BaselineResult, run
from odcl.paper.experiments.definition import Measured, Task
from odcl.paper.partition import ImageFederation
from odcl.risk.risk import Risk


class Fitted:
    """Local models that are there already: a ``solver`` for the one-shot methods of one run."""

    def __init__(self, federation: Federation, risk: Risk) -> None:
        self.federation, self.risk = federation, risk
        self.solution = solve_users(federation, risk)

    def solve_users(self, federation: Federation, risk: Risk, *, seed: int) -> Solution:
        if federation.X is self.federation.X and risk == self.risk:
            return self.solution
        return solve_users(federation, risk)  # other rows, such as centred ones

    def __repr__(self) -> str:
        return "exact"


class Bench:
    """One federation, one risk, one seed, and the methods that are run on it.

    The local models are fitted once and belong to ``local``'s time; the seconds of other one-shot
    methods are those of the server. ``public_mean`` is for the methods that are told one.
    """

    def __init__(
        self, federation: Federation, risk: Risk = Risk(), *, seed: int, public_mean: Any = None
    ) -> None:
        self.federation, self.seed, self.public_mean = federation, seed, public_mean
        self.call = {"risk": risk, "seed": seed}
        start = time.perf_counter()
        self.solver = Fitted(federation, risk)
        self.fit_seconds = time.perf_counter() - start

    def run(self, name: str, **options: Any) -> Timed:
        """A method of the registry."""
        if METHODS[name].starts_from_local_models:
            options = {"solver": self.solver, **options}
        options |= {"groups": getattr(self.federation, "groups", None)}
        options |= {"public_mean": self.public_mean}
        start = time.perf_counter()
        result = run(name, self.federation, **{**self.call, **options})
        seconds = time.perf_counter() - start + self.fit_seconds * (name == "local")
        return Timed(self.federation, name, result, seconds)


def linear_bench(task: Task, data: Path | None) -> Bench:
    """The paper's linear federation of a task's setting."""
    s = task.setting
    federation = linear_federation(s["m"], s["n"], n_clusters=s["K"], dim=s["d"], seed=task.seed)
    return Bench(federation, seed=task.seed)


@dataclass(frozen=True, eq=False)
class Timed:
    """A method's result, and the numbers it gives."""

    federation: Federation
    method: str
    result: BaselineResult
    seconds: float

    def rows(self, metrics: Sequence[str]) -> Iterator[Measured]:
        for metric in metrics:
            yield Measured(self.method, metric, self.value(metric), self.seconds)

    def value(self, metric: str) -> float:
        if metric == "nmse":
            return self.result.nmse()
        if metric == "accuracy":
            return float(self.user_accuracy().mean())
        return float(getattr(self.result, "n_rounds" if metric == "rounds" else metric))

    def user_accuracy(self) -> Floats:
        """Share of the withheld images that each user's model gets right, (n_users,)."""
        federation, result = self.federation, self.result
        assert isinstance(federation, ImageFederation)
        X = federation.test_X if result.shift is None else federation.test_X - result.shift
        p = X.shape[1]
        score = X @ result.models[:, :p].T + result.models[:, p:].sum(axis=1)
        return (score * federation.test_y[federation.groups].T > 0).mean(axis=0)

    def curve(self, rounds: Sequence[int]) -> Iterator[Measured]:
        """The error after these rounds."""
        errors = self.result.history.error
        assert errors is not None
        for t in rounds:
            error = float(errors[min(t, len(errors) - 1)])
            yield Measured(self.method, "nmse", error, self.seconds, {"round": int(t)})
