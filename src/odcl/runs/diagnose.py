"""The diagnosis of a run, of a table fitted anew, or of a run's models on new rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sklearn.base import clone

from odcl.data.design import DesignRows
from odcl.data.federation import Federation
from odcl.data.tables import beside
from odcl.diagnose import Diagnosis, Drift
from odcl.method import Method
from odcl.report.progress import Silent
from odcl.runs.folder import OpenRun, comparison_of
from odcl.runs.run import Run

if TYPE_CHECKING:
    from odcl.estimators.base import ODCLEstimator


@dataclass(frozen=True, eq=False)
class TableDiagnosis:
    """A diagnosis, with the name of the users' column and notices about the table."""

    found: Diagnosis | Drift
    user: str
    notices: list[str]

    def columns(self) -> dict[str, Any]:
        """One row per user."""
        columns = self.found.columns()
        return beside({self.user: columns.pop("user")}, columns)


def diagnose_fit(run: Run, seed: int) -> TableDiagnosis:
    """A run that was just fitted and kept its rows: they tell the noise in any setting."""
    found = _with_rows(run.model, run.rows, seed)
    return TableDiagnosis(found, run.model.schema_.user, [*run.notices])


def _with_rows(model: ODCLEstimator, rows: Federation, seed: int) -> Diagnosis:
    """The diagnosis of a fit, with its scaled rows at hand."""
    return model.result_.diagnose(rows, features=model.fitted_.units, seed=seed)


def diagnose_drift(run: OpenRun, new: Path, missing: str | None) -> TableDiagnosis:
    """Do the models of a run still hold on new rows?"""
    rows, notices = run.rows_of(new, missing)
    users = rows.users[rows.row_user] if run.schema.user else None
    found = run.model.drift(DesignRows(rows.X), rows.y, users)
    return TableDiagnosis(found, run.schema.user, notices)


def diagnose_run(run: OpenRun, seed: int) -> TableDiagnosis:
    """A run from what its users sent."""
    model, sent, n_users = run.model, run.model.uploads_, run.model.n_users_
    again = f"`odcl diagnose {run.folder} TABLE`"
    if sent is None:
        raise ValueError(
            f"{run.folder} does not hold its users' uploads, which were too large to keep, so "
            f"there is nothing to diagnose. {again} fits the table again."
        )
    notices = []
    if n_users > len(model.users_):
        notices.append(
            f"the diagnosis is of the {len(model.users_):,} of {n_users:,} users whose uploads "
            f"the run keeps. For others say {again}"
        )
    ours = Method().resolved(model.risk_, sent.dim)
    if not sent.has_terms and ours.clusterer.uses_terms:
        notices.append(f"the run's users sent their models alone: {again} looks at their rows too")
    found = model.diagnose(seed=seed, comparison=comparison_of(run.folder, n_users))
    return TableDiagnosis(found, run.schema.user, notices)


def diagnose_again(
    run: OpenRun, table: Path, missing: str | None, seed: int, shown: Silent
) -> TableDiagnosis:
    """A table fitted again with the columns and settings of a run."""
    model, n_users = run.model, run.model.n_users_
    rows, notices = run.rows_of(table, missing)
    strange = int((~model.fitted_.knows(rows.users)).sum())
    if strange or rows.n_users < n_users:
        notices.append(
            f"{table} has {rows.n_users} users ({strange} not in the run of {n_users}): the "
            "diagnosis is of the table, with the run's settings"
        )
    again = clone(model).fit_federation(rows, schema=run.schema, progress=shown.advance)
    shown.stage("diagnosing")
    rows = replace(rows, X=again.scaling_.apply(rows.X), y=again._encode_known(rows.y))
    return TableDiagnosis(_with_rows(again, rows, seed), run.schema.user, notices)
