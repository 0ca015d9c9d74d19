"""Users whose columns lie apart: they have groups of their own, and are named and not judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.mixed.posterior import APART
from odcl.server.result import ServerStep
from odcl.wide.moments import mixed_only


@dataclass(frozen=True, eq=False)
class Apart:
    """Users whose columns are unlike everybody else's, in groups of their own, and not judged."""

    at: Ints  # among all users
    users: Array
    groups: Ints
    rows: Floats

    def among(self, told: dict[str, Any]) -> dict[str, Any]:
        """What is told of the judged users, with theirs in between."""
        own: dict[str, Any] = {"user": self.users, "group": self.groups, "rows": self.rows}
        own |= {"rival": -1, "remark": "set apart"}
        at = self.at - np.arange(len(self.at))
        return {name: np.insert(told[name], at, own.get(name, np.nan)) for name in told}


def usual_users(step: ServerStep) -> Bools:
    """Users who are not in groups made for those whose columns lie apart, (n_users,)."""
    mixture = mixed_only(step.mixture)
    if mixture is None:
        return np.ones(len(step.labels), np.bool_)
    return np.asarray(mixture.weights > APART)[step.labels]


def of_some(step: ServerStep, some: Ints) -> tuple[ServerStep, Ints]:
    """The step of some users with the groups that they are in, and the numbers these had."""
    groups, labels = np.unique(step.labels[some], return_inverse=True)
    mixture = mixed_only(step.mixture)
    return replace(
        step.take(some),
        labels=labels,
        centers=step.centers[groups],
        mixture=None if mixture is None else mixture.take(groups),
    ), groups
