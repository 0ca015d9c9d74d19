"""RUN, the folder that ``odcl fit`` and ``Run.save`` write: read, asked, and given more users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl.artifact.folder import Extra, StoredArtifact, open_artifact
from odcl.artifact.manifest import MANIFEST
from odcl.data.design import DesignRows
from odcl.data.federation import Federation, positions
from odcl.data.notices import about_values
from odcl.data.schema import TableSchema
from odcl.data.source import read_table
from odcl.data.tables import beside
from odcl.errors import count, show
from odcl.estimators.evidence import read_evidence
from odcl.estimators.public import estimator_with, load_estimator
from odcl.evaluate.scores import Comparison
from odcl.fitted.persist import KIND, MODEL, read_fitted, update_fitted
from odcl.fitted.value import Fitted
from odcl.runs.run import PAGE
from odcl.runs.tables import run_tables

if TYPE_CHECKING:
    from odcl.estimators.base import ODCLEstimator

Answer = tuple[dict[str, Any], list[str]]  # columns of a table, and what is to be said of it


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OpenRun:
    """The model of a run, and how its tables are read."""

    folder: Path
    model: ODCLEstimator
    schema: TableSchema

    def owners(self, users: Any) -> dict[str, Any]:
        """The users' column of an answer; none where all rows are one user's."""
        return {self.schema.user: users} if self.schema.user else {}

    def rows_of(self, table: Path, missing: str | None) -> tuple[Federation, list[str]]:
        """A table's rows user by user, targets as the model takes them, and notices about them."""
        schema = self.schema
        encoded = schema.encode(read_table(table, text=schema.text), missing=missing)
        federation = encoded.federation()
        if schema.classes is not None:
            federation = federation.with_y(schema.labels(federation.y.astype(int)))
        return federation, about_values(schema, encoded, missing or schema.missing)


def is_run(folder: Path) -> bool:
    """Does it hold a model, of this version or of an older one?"""
    return any((folder / name).exists() for name in (MANIFEST, MODEL))


def open_run(folder: Path, *, with_target: bool = False) -> OpenRun:
    """Read the model of a run; ``with_target``: tables will be given that hold the target."""
    return _opened(folder, load_estimator(folder), with_target=with_target)


def _opened(folder: Path, model: ODCLEstimator, *, with_target: bool) -> OpenRun:
    schema = model.fitted_.schema
    if schema is None:
        raise ValueError(
            f"{folder} does not know the columns of a table: it was fitted on arrays. Use it in "
            "Python, or fit it on a frame with users=COLUMN."
        )
    if with_target and not schema.target:
        raise ValueError(
            f"{folder} does not know the name of its target's column: use it in Python, or fit it "
            "with a target that has a name, such as a column of a frame."
        )
    return OpenRun(folder, model, schema)


def comparison_of(folder: Path, n_users: int) -> Comparison | None:
    """What a run's fit was worth on held-out rows; None where none were held out."""
    with open_artifact(folder, kind=KIND) as stored:
        return read_evidence(stored, n_users).comparison


def page_of_run(folder: Path, **more: Any) -> bytes:
    """The page of a run; ``more``: see :func:`odcl.runs.page.fit_page_of`."""
    from odcl.runs.page import fit_page_of

    with open_artifact(folder, kind=KIND) as stored:
        fitted = read_fitted(stored)
        return fit_page_of(fitted, read_evidence(stored, len(fitted.users)), **more)


# -- more users, more rows -------------------------------------------------------------------------


def assign_users(folder: Path, table: Path, missing: str | None, *, add: bool) -> Answer:
    """Groups of new users, one row per user; with ``add`` the run remembers them."""

    def assign(run: OpenRun) -> Answer:
        rows, notices = run.rows_of(table, missing)
        if add:
            _refuse_known(run.model, rows.users, folder)
        found = [run.model.assign(DesignRows(X), y) for _, X, y in rows]
        if add:
            run.model._add_assigned(rows.users, found)
        if run.model.n_clusters_ == 1:
            notices.append("the run found no groups: group 0 is everybody")
        columns = {
            "group": np.array([f.label for f in found]),
            "probability": np.round([f.probability for f in found], 6),
            "distance": np.round([f.distance for f in found], 4),
            "rows": rows.n_rows,
            "verdict": np.array(["none of these" if f.none_of_these else "joins" for f in found]),
        }
        return beside(run.owners(rows.users), columns), notices

    return _change_run(folder, assign) if add else assign(open_run(folder, with_target=True))


def _refuse_known(model: ODCLEstimator, users: Any, folder: Path) -> None:
    old = users[model.fitted_.knows(users)].tolist()
    if old:
        was = "was" if len(old) == 1 else "were"
        raise ValueError(
            f"{count(len(old), 'user')} of the table {was} in {folder} before (such as "
            f"{show(old[0])}): give their new rows to `odcl update`, leave them out, or say "
            "`odcl assign` without --add to see their groups."
        )


def update_users(
    folder: Path, table: Path, missing: str | None, *, all_rows: bool, again: bool
) -> Answer:
    """Give known users more rows: one row per user, its group now and before."""

    def update(run: OpenRun) -> Answer:
        rows, notices = run.rows_of(table, missing)
        model = run.model
        at = positions(model.users_, rows.users)
        _refuse_others(model, rows.users, at, folder)
        before = model.labels_[at]
        given = ((user, DesignRows(X), y) for user, X, y in rows)
        model._update_users(given, all_rows=all_rows, again=again)
        after, n_rows = model.labels_[at], model.n_rows_[at]
        columns = {"group": after, "before": before, "new_rows": rows.n_rows, "rows": n_rows}
        return beside(run.owners(rows.users), columns), notices

    return _change_run(folder, update)


def _refuse_others(model: ODCLEstimator, users: Any, at: Any, folder: Path) -> None:
    """Refuse users whose models lie in files, and users who are not in the run."""
    away = users[model.fitted_.in_files(users)].tolist()
    if away:
        raise ValueError(
            f"{folder} was fitted in pieces, and its files of users stay as they are: "
            f"{count(len(away), 'user')} of these (such as {show(away[0])}) cannot be updated. "
            "Fit again, with the new rows in the table, or with --engine memory, whose runs "
            "can be updated."
        )
    if (at < 0).any():
        n, of = int((at < 0).sum()), count(len(at), "user")
        such = show(users[at < 0].tolist()[0])
        raise ValueError(
            f"{n} of {of} {'is' if n == 1 else 'are'} not in {folder} (such "
            f"as {such}): add them with `odcl assign {folder} TABLE --add`, and leave them out "
            "here."
        )


def _change_run(folder: Path, change: Callable[[OpenRun], Answer]) -> Answer:
    """Change the model of a run under its lock; its tables and its page follow."""
    from odcl.runs.page import fit_page_of

    answers: list[Answer] = []

    def changed(fitted: Fitted, stored: StoredArtifact) -> tuple[Fitted, Mapping[str, Extra]]:
        model = estimator_with(fitted)
        answers.append(change(_opened(folder, model, with_target=True)))
        new = model._to_save()
        files = {name: make for name, make in run_tables(new).items() if name in stored}
        if PAGE in stored:
            files[PAGE] = fit_page_of(new, read_evidence(stored, len(new.users)))
        return new, files

    update_fitted(folder, changed)
    return answers[0]
