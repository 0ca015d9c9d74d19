"""Names and units of the columns: how a table becomes the rows that users fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odcl._typing import Array
from odcl.data.columns import kind_of
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.data.source import task_of
from odcl.engines.files.task import Task
from odcl.local.terms import n_classes
from odcl.risk.risk import Risk


@dataclass(frozen=True)
class Columns:
    """What a result has to know of tables, so that ``odcl predict`` takes them.

    With a ``task``, the card that sites agreed on, columns, categories and scales are the card's.
    """

    features: tuple[str, ...] | None = None  # x0, x1, ... unless named
    user: str = "user"
    target: str = "y"
    classes: tuple[Any, ...] | None = None  # of the target; 0, 1, ... unless named
    task: Task | None = None

    def schema(self, risk: Risk, n_features: int, users: Array) -> TableSchema:
        """How a table is read."""
        kind = kind_of(users.tolist())
        if self.task is not None:
            return self.task.schema(self.user, kind)
        names = self.features or tuple(f"x{j}" for j in range(n_features))
        what, classes = task_of(risk.loss.name), self.classes
        if what == "classification" and classes is None:
            classes = tuple(range(n_classes(risk)))
        return TableSchema(
            user=self.user,
            target=self.target,
            features=names,
            levels={},
            fill=dict.fromkeys(names, 0.0),
            missing="error",
            task=what,
            classes=classes,
            user_kind=kind,
        )

    def scaling(self, n_features: int) -> Scaling:
        """From the table's units to those that models are fitted in: the same, without a card."""
        if self.task is not None:
            return self.task.scaling
        every = np.arange(n_features)
        return Scaling(np.zeros(n_features), np.ones(n_features), every, n_features)


def checked_columns(
    features: Sequence[str] | None, user: str, target: str, classes: Sequence[Any] | None
) -> Columns:
    """Columns by name, each of which is there once."""
    names = None if features is None else tuple(map(str, features))
    every = [user, target, *(names or ())]
    if len(set(every)) < len(every) or names == ():
        raise ValueError(
            f"The columns are {', '.join(map(repr, every))}: each needs a name of its own, and "
            "there is at least one feature."
        )
    return Columns(names, user, target, None if classes is None else tuple(classes))
