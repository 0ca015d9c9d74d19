"""Tables beside a model: each user's group, and each group's model in the table's units."""

from __future__ import annotations

from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.artifact.folder import Extra
from odcl.data.tables import beside, write_table
from odcl.fitted.value import Fitted

ASSIGNMENT, GROUPS = "assignment.csv", "groups.csv"


def run_tables(fitted: Fitted, sizes: Ints | None = None) -> dict[str, Extra]:
    """The run's CSV files; ``sizes`` are the users of each group, where the model does not tell.

    Of a table in pieces all users are in files already, with their groups.
    """
    groups: Extra = lambda path: write_table(path, group_columns(fitted, sizes))  # noqa: E731
    if fitted.files is not None:
        return {GROUPS: groups}
    return {GROUPS: groups, ASSIGNMENT: lambda p: write_table(p, assignment_columns(fitted))}


def assignment_columns(fitted: Fitted) -> dict[str, Any]:
    """user, group, rows, and how sure the group is."""
    columns = {"group": fitted.users.group, "rows": fitted.users.rows}
    if np.isfinite(fitted.users.probability).any():
        columns["probability"] = np.round(fitted.users.probability, 6)
    name = fitted.columns.user_name if fitted.schema is None else fitted.schema.user
    return beside({str(name): fitted.users.users}, columns)


def group_sizes(fitted: Fitted) -> tuple[Ints, Floats]:
    """Users of each group, (K,), and their rows; of a table in pieces all, and not the examples."""
    k, files = fitted.n_clusters, fitted.files
    first = 0 if files is None else files.n_examples  # those after them were added later
    labels, rows = fitted.users.group[first:], fitted.users.rows[first:]
    inside = labels >= 0
    users = np.bincount(labels[inside], minlength=k)
    each = np.bincount(labels[inside], weights=rows[inside], minlength=k).astype(np.float64)
    if files is None:
        return users, each
    return fitted.newcomers.groups.members + users, fitted.newcomers.groups.samples + each


def group_columns(fitted: Fitted, sizes: Any = None) -> dict[str, Any]:
    """Each group's model in the table's units, one row per group (and class)."""
    coef, intercept = fitted.in_table_units(fitted.centers)
    k = len(coef)
    users = group_sizes(fitted)[0] if sizes is None else sizes
    columns: dict[str, Any] = {"group": np.arange(k), "users": users}
    if coef.ndim == 3:
        columns = {name: np.repeat(v, coef.shape[1]) for name, v in columns.items()}
        assert fitted.columns.classes is not None
        columns["class"] = np.tile(np.array([str(c) for c in fitted.columns.classes]), k)
        coef, intercept = coef.reshape(-1, coef.shape[2]), intercept.reshape(-1)
    values = dict(zip(fitted.feature_names, coef.T, strict=True))
    if fitted.risk.intercept:
        values["(intercept)"] = intercept
    return beside(values, columns, first=True)
