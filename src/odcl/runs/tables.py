"""Tables beside a model: each user's group, and each group's model in the table's units."""

from __future__ import annotations

from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.artifact.folder import Extra
from odcl.data.tables import beside, write_table

ASSIGNMENT, GROUPS = "assignment.csv", "groups.csv"


def run_tables(model: Any, sizes: Ints | None = None) -> dict[str, Extra]:
    """The run's CSV files; ``sizes`` are the users of each group, where the model does not tell.

    Of a table in pieces all users are in files already, with their groups.
    """
    groups: Extra = lambda path: write_table(path, group_columns(model, sizes))  # noqa: E731
    if model.fitted_.files is not None:
        return {GROUPS: groups}
    return {GROUPS: groups, ASSIGNMENT: lambda p: write_table(p, assignment_columns(model))}


def assignment_columns(model: Any) -> dict[str, Any]:
    """user, group, rows, and how sure the group is."""
    columns = {"group": model.labels_, "rows": model.n_rows_}
    if np.isfinite(model.probability_).any():
        columns["probability"] = np.round(model.probability_, 6)
    return beside({model.schema_.user: model.users_}, columns)


def group_sizes(model: Any) -> tuple[Ints, Floats]:
    """Users of each group, (K,), and their rows; of a table in pieces all, and not the examples."""
    k, files = model.n_clusters_, model.fitted_.files
    first = 0 if files is None else files.n_examples  # those after them were added later
    labels, rows = model.labels_[first:], model.n_rows_[first:]
    inside = labels >= 0
    users = np.bincount(labels[inside], minlength=k)
    each = np.bincount(labels[inside], weights=rows[inside], minlength=k).astype(np.float64)
    if files is None:
        return users, each
    return model.groups_.members + users, model.groups_.samples + each


def group_columns(model: Any, sizes: Any = None) -> dict[str, Any]:
    """Each group's model in the table's units, one row per group (and class)."""
    coef, intercept = model.group_coef_, model.group_intercept_
    k = len(coef)
    users = group_sizes(model)[0] if sizes is None else sizes
    columns: dict[str, Any] = {"group": np.arange(k), "users": users}
    if coef.ndim == 3:
        columns = {name: np.repeat(v, coef.shape[1]) for name, v in columns.items()}
        columns["class"] = np.tile(np.array([str(c) for c in model.classes_]), k)
        coef, intercept = coef.reshape(-1, coef.shape[2]), intercept.reshape(-1)
    values = dict(zip(model.feature_names_, coef.T, strict=True))
    if model.fit_intercept:
        values["(intercept)"] = intercept
    return beside(values, columns, first=True)
