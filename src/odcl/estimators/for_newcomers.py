"""What a fit knows for users who were not in it, worked out when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.data.scaling import Scaling
from odcl.engines.in_process import Result
from odcl.local.predict import one_for_all
from odcl.local.terms import pooled_model
from odcl.server.assign_models import GroupStatistics, groups_of

MANY = 5_000  # users: then one model for all is read off their data terms


@dataclass(frozen=True, eq=False)
class Known:
    """All of it at hand, as a saved model has it."""

    groups: GroupStatistics
    pooled_theta: Floats  # (dim,), one model for all rows

    @property
    def known(self) -> Known:
        return self


@dataclass(frozen=True, eq=False)
class OnRequest:
    """The same from the rows of a fit, each once. Copies and pickles hold no rows."""

    rows: Federation  # scaled, and nobody else's to change
    result: Result

    @cached_property
    def groups(self) -> GroupStatistics:
        result = self.result
        return groups_of(self.rows, result.risk, result.local, result.step, result.method)

    @cached_property
    def pooled_theta(self) -> Floats:
        uploads, risk = self.result.uploads, self.result.risk
        told = uploads.observations is None and risk.loss.name == "squared"
        if self.rows.n_users > MANY and uploads.factor is not None and told:
            return pooled_model(uploads)
        return one_for_all(self.rows, risk)

    @property
    def known(self) -> Known:
        return Known(self.groups, self.pooled_theta)

    def __reduce__(self) -> tuple[Any, ...]:
        known = self.known
        return Known, (known.groups, known.pooled_theta)


def own_rows(federation: Federation, scaling: Scaling, *, in_place: bool = False) -> Federation:
    """Scaled rows that stay as they are, whatever the caller does with its arrays later.

    ``in_place``: the caller has handed them over, and they are scaled where they are.
    """
    if in_place:
        return replace(federation, X=scaling.apply(federation.X, in_place=True))
    X, weight = scaling.apply(federation.X), federation.weight
    return replace(
        federation,
        X=X.copy() if X is federation.X else X,
        y=federation.y.copy(),
        weight=None if weight is None else weight.copy(),
    )
