"""What rounds cost: FedAvg and IFCA until their users' models are as good as one shot's.

The rounds end at the error that the one shot has reached, or after the most that are allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from odcl.data.federation import Federation
from odcl.paper.baselines.iterated import fedavg, ifca
from odcl.paper.baselines.result import BaselineResult
from odcl.risk.risk import Risk


@dataclass(frozen=True)
class Cost:
    """Rounds and bytes of a method to some error; bytes are summed over users."""

    name: str
    error: float  # NMSE of the users' models
    n_rounds: int
    bytes_up: int
    bytes_down: int
    reached: bool = True  # was the error reached within the rounds allowed?
    told: tuple[str, ...] = ()  # what the method was told of the truth

    @classmethod
    def of(cls, name: str, found: BaselineResult) -> Cost:
        sent = (found.n_rounds, found.bytes_up, found.bytes_down)
        return cls(name, found.nmse(), *sent, bool(found.history.reached), found.told)


def costs_to_error(
    federation: Federation,
    error: float,
    *,
    n_clusters: int,
    risk: Risk = Risk(),
    groups: Any = None,
    optima: Any = None,
    local_steps: Sequence[int] = (1, 10),
    rounds: int = 200,
    n_starts: int = 5,
    seed: int = 0,
) -> list[Cost]:
    """FedAvg, IFCA from random starts, and IFCA from near the truth, each until this NMSE.

    Each takes the step 1 / max L_i, which cannot run away, and of ``local_steps`` the number by
    which it needs fewer bytes: what is shown is their good side. ``groups`` and ``optima``, where
    the federation does not know them itself, measure the error and tell one of the IFCAs where to
    start: near the groups' own models, with noise of variance 1 added.
    """
    groups = getattr(federation, "groups", None) if groups is None else groups
    shared: dict[str, Any] = {"risk": risk, "optima": optima, "rounds": rounds, "seed": seed}
    shared["stop_at"] = error
    found = [
        _best("FedAvg", local_steps, lambda tau: fedavg(federation, local_steps=tau, **shared))
    ]
    shared |= {"n_clusters": n_clusters, "average": "models"}

    def clustered(tau: int, **start: Any) -> BaselineResult:
        return ifca(federation, local_steps=tau, **start, **shared)

    many = f"IFCA, {n_starts} random start{'s' * (n_starts > 1)}"
    found.append(_best(many, local_steps, lambda tau: clustered(tau, n_starts=n_starts)))
    if groups is not None and len(np.unique(groups)) == n_clusters:
        near = {"start": "oracle", "groups": groups}
        found.append(_best("IFCA near the truth", local_steps, lambda tau: clustered(tau, **near)))
    return found


def _best(name: str, local_steps: Iterable[int], run: Any) -> Cost:
    """Of several numbers of local steps the one that reaches it with the least bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        each = [Cost.of(name, run(tau)) for tau in local_steps]
    return min(each, key=lambda one: (not one.reached, one.bytes_up + one.bytes_down, one.error))


def cost_table(costs: Sequence[Cost], n_users: int, goal: str = "to the same error") -> str:
    """Costs for people, a line each; bytes per user."""
    from odcl.report.text import in_bytes, table

    lines = [
        (
            one.name,
            f"{one.n_rounds:,}" if one.reached else f"not in {one.n_rounds:,}",
            in_bytes(one.bytes_up / n_users),
            in_bytes(one.bytes_down / n_users),
            f"{one.error:.2g}",
        )
        for one in costs
    ]
    header = (goal, "rounds", "sent per user", "received per user", "NMSE")
    return table(header, lines)
