"""A run: a fitted table, what it was worth, and what is made of it: text, page, files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl import __version__
from odcl._typing import Floats, Ints
from odcl.artifact.arrays import json_bytes
from odcl.artifact.folder import Content
from odcl.artifact.folder import check_artifact_place as check_place
from odcl.data.tables import beside, write_table
from odcl.errors import count
from odcl.evaluate import Comparison
from odcl.fitted.persist import save_fitted
from odcl.fitted.value import Fitted
from odcl.report.text import comparison_table, groups_text, in_bytes, verdict
from odcl.runs.evidence import Evidence, evidence_files
from odcl.server.robust import outliers_json

if TYPE_CHECKING:
    from odcl.estimators.base import ODCLEstimator


__all__ = ["PAGE", "REPORT", "GroupSizes", "Run", "RunReport", "check_place", "finite"]
REPORT, PAGE = "report.json", "report.html"


@dataclass(frozen=True, eq=False)
class GroupSizes:
    """Users and rows of each group, (n_clusters,), over all users of the fit."""

    users: Ints
    rows: Floats


@dataclass(frozen=True, eq=False)
class Run:
    """A fitted table: the model of all rows, and what it was worth on rows held out."""

    model: ODCLEstimator  # ODCLRegressor or ODCLClassifier
    evidence: Evidence  # where it comes from, and what speaks for it
    groups: GroupSizes
    engine: str  # "memory" or "dask"
    combined: str  # how models of a group became one
    last_step: str | None = None  # in memory: how users made their last step
    passes: int | None = None  # in pieces: how often the uploads were read
    rows: Any = None  # the Federation as the models see it, where it was kept

    @property
    def fitted(self) -> Fitted:
        """The fit, with the settings of the estimator."""
        return self.model._to_save()

    @property
    def comparison(self) -> Comparison | None:
        """Scores of odcl and of other methods on rows held out; None: no rows were."""
        return self.evidence.comparison

    @property
    def notices(self) -> Sequence[str]:
        """What is odd about the table, one line each."""
        return self.evidence.notices

    @property
    def n_users(self) -> int:
        """All users of the fit."""
        return int(self.model.n_users_ - self.model.fitted_.added)

    def __str__(self) -> str:
        return "\n".join([*(f"odcl: {line}" for line in self.notices), self.text()])

    def __repr__(self) -> str:
        users, rows = count(self.n_users, "user"), count(self.evidence.table["rows"], "row")
        groups = count(self.model.n_clusters_, "group")
        return f"<{type(self).__name__}: {users}, {rows}, {groups}>"

    def text(self, *, shell: bool = False) -> str:
        """What was found and what it is worth, with advice for the ``shell`` or for Python."""
        model, found, m = self.model, self.evidence, self.n_users
        size = f"{count(m, 'user')}, {count(found.table['rows'], 'row')}"
        size += f", {count(len(model.schema_.columns), 'feature')}"
        parts = [f"{size}, {model.risk_.loss.name} loss, 1 round. {model.reason_}"]
        if model.n_clusters_ > 1:
            sizes = self.groups
            parts.append(groups_text(sizes.users, sizes.rows, model.labels_, model.users_))
        if found.comparison is not None:
            score = comparison_table(found.comparison)
            parts.append(f"{score}\n{verdict(found.comparison, shell=shell)}")
        up, down = (in_bytes((n or 0) / m) for n in (found.bytes_up, found.bytes_down))
        parts.append(f"In a federation each user would send {up} and receive {down}.")
        return "\n\n".join(parts)

    def page(self, *, anonymous: bool = False) -> bytes:
        """The page of the run, HTML for a browser.

        ``anonymous`` gives users numbers in place of their names, and names neither the table nor
        the command.
        """
        from odcl.runs.page import fit_page_of

        return fit_page_of(self.fitted, self.evidence, anonymous=anonymous)

    def report(
        self, path: str | os.PathLike[str], *, anonymous: bool = False, force: bool = False
    ) -> None:
        """Write the :meth:`page` as a file; ``force`` replaces a file that is there already."""
        from odcl.runs.page import write_page

        write_page(path, self.page(anonymous=anonymous), force=force)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write what ``odcl fit`` writes: model, tables, report and page, whole or not at all.

        ``force`` replaces a run that is there already, and nothing else.
        """
        extras = {
            REPORT: self.summary().to_bytes(),
            **run_tables(self.fitted, self.groups.users),
            **evidence_files(self.evidence),
            PAGE: self.page(),
        }
        save_fitted(self.model.fitted_, folder, force=force, extras=extras)

    def summary(self) -> RunReport:
        """The run in numbers, as ``report.json`` has it."""
        found = self.evidence
        return RunReport.of(
            self.fitted,
            engine=self.engine,
            users=self.n_users,
            rows=found.table["rows"],
            sizes=self.groups.users.tolist(),
            combined=self.combined,
            bytes_up=found.bytes_up,
            bytes_down=found.bytes_down,
            table={"name": found.table["name"], "sha256": found.table.get("sha256")},
            holdout=found.holdout,
            notices=list(found.notices),
            comparison=None if found.comparison is None else found.comparison.to_json(),
            last_step=self.last_step,
            passes=self.passes,
        )


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """``report.json``: one schema; parts that an engine does not know are None."""

    version: str = __version__
    engine: str  # "memory", "dask" or "flower"
    table: Mapping[str, Any] | None = None  # name and sha256
    risk: Mapping[str, Any]
    method: Mapping[str, Any]
    seed: Any
    holdout: str | None = None
    users: int
    rows: int
    groups: int
    sizes: Sequence[int]  # users of each group
    rule: str
    reason: str
    combined: str
    last_step: str | None = None  # memory: how users made their last step
    passes: int | None = None  # dask: how often the uploads were read
    nodes: int | None = None  # flower
    rounds: int = 1
    bytes_up: int | None
    bytes_down: int | None
    notices: Sequence[str] = ()
    outliers: Sequence[Mapping[str, Any]]  # users who take no part in others' models, and why
    comparison: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, fitted: Fitted, **more: Any) -> RunReport:
        """The report of a fit; ``more`` is what it does not tell."""
        told: dict[str, Any] = {
            "risk": fitted.risk.to_json(),
            "method": fitted.method.to_json(described=True),
            "seed": fitted.settings.get("random_state"),
            "groups": fitted.n_clusters,
            "rule": fitted.rule,
            "reason": fitted.reason,
            "outliers": outliers_json(fitted.outliers, [*fitted.units], fitted.columns.target),
        }
        return cls(**{**told, **more})

    def to_bytes(self) -> bytes:
        return json_bytes(finite(asdict(self)))


def finite(value: Any) -> Any:
    """``value`` with None for NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- tables beside a model -------------------------------------------------------------------------


ASSIGNMENT, GROUPS = "assignment.csv", "groups.csv"


def run_tables(fitted: Fitted, sizes: Ints | None = None) -> dict[str, Content]:
    """The run's CSV files; ``sizes`` are the users of each group, where the model does not tell.

    Of a table in pieces all users are in files already, with their groups.
    """
    groups: Content = lambda path: write_table(path, group_columns(fitted, sizes))  # noqa: E731
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
    users = group_sizes(fitted)[0] if sizes is None else sizes
    key = {"group": np.arange(fitted.n_clusters), "users": users}
    columns = fitted.model_table(fitted.centers, key)
    if "class" in columns:
        columns["class"] = np.array([str(label) for label in columns["class"].tolist()])
    return columns
