"""RUN, the folder that ``odcl fit`` and ``Run.save`` write: read, given more users, asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl.artifact.folder import MANIFEST, Content, StoredArtifact, open_artifact
from odcl.data.design import DesignRows
from odcl.data.federation import Federation, positions
from odcl.data.notices import about_beyond, about_strangers, about_values
from odcl.data.roles import check_columns
from odcl.data.schema import Encoded, TableSchema
from odcl.data.source import Piece, read_column_names, read_pieces, read_table, rows_of_files
from odcl.data.tables import beside
from odcl.engines.pieces import Predictions, PredictOptions, predicted
from odcl.errors import InputError
from odcl.evaluate import Comparison
from odcl.fitted.persist import KIND, MODEL, read_fitted, update_fitted
from odcl.fitted.value import Fitted
from odcl.method import Method
from odcl.runs.evidence import WORDS, evidence_files, read_evidence
from odcl.runs.run import PAGE, Run, run_tables
from odcl.runs.settings import Silent

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis
    from odcl.diagnose.drift import Drift
    from odcl.estimators.base import ODCLEstimator


Answer = tuple[dict[str, Any], list[str]]  # columns of a table, and what is to be said of it


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LaterRows:
    """A table of rows that come after the fit, and how they are read."""

    table: Path
    missing: str | None = None  # None: as in the fit
    unseen: str = "error"
    command: tuple[str, ...] = ()  # the words of the shell that gave them


@dataclass(frozen=True, eq=False)
class OpenRun:
    """The fit of a run, and how its tables are read."""

    folder: Path
    fitted: Fitted
    schema: TableSchema

    @cached_property
    def model(self) -> ODCLEstimator:
        """The estimator that shows the fit, which loads scikit-learn."""
        from odcl.estimators.public import estimator_with

        return estimator_with(self.fitted)

    def owners(self, users: Any) -> dict[str, Any]:
        """The users' column of an answer; none where all rows are one user's."""
        return {self.schema.user: users} if self.schema.user else {}

    def rows_of(self, later: LaterRows) -> tuple[Federation, list[str]]:
        """A table's rows user by user, targets as the model takes them, and notices about them."""
        schema, missing = self.schema, later.missing
        table = read_table(later.table, text=schema.text)
        try:
            with rows_of_files(later.table):
                encoded = schema.encode(table, missing=missing, unseen=later.unseen)
        except InputError as error:  # columns are those of the fit
            raise error.where(lambda one: one.name in ("missing", "unseen")) from None
        federation = encoded.federation()
        if schema.classes is not None:
            federation = federation.with_y(schema.labels(federation.y.astype(int)))
        return federation, about_values(schema, encoded, missing or schema.missing)


def is_run(folder: Path) -> bool:
    """Does it hold a model, of this version or of an older one?"""
    return any((folder / name).exists() for name in (MANIFEST, MODEL))


def open_run(folder: Path, *, with_target: bool = False) -> OpenRun:
    """Read the fit of a run; ``with_target``: tables will be given that hold the target."""
    with open_artifact(folder, kind=KIND) as stored:
        fitted = read_fitted(stored)
    return _opened(folder, fitted, with_target=with_target)


def _opened(folder: Path, fitted: Fitted, *, with_target: bool) -> OpenRun:
    schema = fitted.schema
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
    return OpenRun(folder, fitted, schema)


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


def assign_users(folder: Path, later: LaterRows, *, add: bool) -> Answer:
    """Groups of new users, one row per user; with ``add`` the run remembers them."""

    def assign(run: OpenRun) -> Answer:
        rows, notices = run.rows_of(later)
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

    return _change_run(folder, later, assign) if add else assign(open_run(folder, with_target=True))


def update_users(folder: Path, later: LaterRows, *, all_rows: bool, again: bool) -> Answer:
    """Give known users more rows: one row per user, its group now and before."""

    def update(run: OpenRun) -> Answer:
        rows, notices = run.rows_of(later)
        model = run.model
        at = positions(model.users_, rows.users)
        before = model.labels_[at]
        given = ((user, DesignRows(X), y) for user, X, y in rows)
        model._update_users(given, all_rows=all_rows, again=again)
        after, n_rows = model.labels_[at], model.n_rows_[at]
        columns = {"group": after, "before": before, "new_rows": rows.n_rows, "rows": n_rows}
        return beside(run.owners(rows.users), columns), notices

    return _change_run(folder, later, update)


def _change_run(folder: Path, later: LaterRows, change: Callable[[OpenRun], Answer]) -> Answer:
    """Change the model of a run under its lock; its tables and its page follow."""
    from odcl.runs.page import fit_page_of

    answers: list[Answer] = []

    def changed(fitted: Fitted, stored: StoredArtifact) -> tuple[Fitted, Mapping[str, Content]]:
        run = _opened(folder, fitted, with_target=True)
        answers.append(change(run))
        new = run.model._to_save()
        files = {name: make for name, make in run_tables(new).items() if name in stored}
        if PAGE in stored:
            found = read_evidence(stored, len(new.users))
            found = replace(found, later=(*found.later, later.command))
            files |= {PAGE: fit_page_of(new, found), WORDS: evidence_files(found)[WORDS]}
        return new, files

    update_fitted(folder, changed)
    return answers[0]


__all__ = ["PredictOptions", "Written", "predict"]


# -- predictions: a piece at a time, in and out; a table in memory is one --------------------------


@dataclass(frozen=True)
class Written:
    """Predictions that were written."""

    rows: int
    notices: list[str]
    files: int = 1


def predict(
    run: OpenRun, table: Path, options: PredictOptions, write: Callable[[dict[str, Any]], object]
) -> Written:
    """Predict a table piece by piece; ``write`` takes the columns of each."""
    names = [name for name in (run.schema.user, *run.schema.features) if name]
    check_columns(names, read_column_names(table))
    total: Encoded | None = None
    strange, n_rows, beyond = set[Any](), 0, 0
    for piece in read_pieces(table, names, text=run.schema.text):
        found = _of_piece(piece, run, options, table)
        columns = found.columns | {"row": found.columns["row"] + piece.before + 1}
        write(beside(run.owners(found.encoded.users), columns))
        n_rows, beyond = n_rows + len(found.encoded.rows), beyond + found.beyond
        strange.update(found.strange.tolist())
        total = found.encoded.counts(total)
    if not n_rows and piece.whole is not None:
        _of_piece(replace(piece, table=piece.whole), run, options, table)
    notices = []
    if total is not None:
        notices = about_values(run.schema, total, options.missing or run.schema.missing)
    return Written(n_rows, notices + about_strangers(len(strange)) + about_beyond(beyond))


def _of_piece(piece: Piece, run: OpenRun, options: PredictOptions, table: Path) -> Predictions:
    """The predictions of a piece; errors about a table in memory are about all of its rows."""
    how = run.fitted, run.schema, options
    if piece.whole is None:
        with piece.place.naming_rows():
            return predicted(piece.table, *how)
    with rows_of_files(table):
        if piece.table.num_rows == piece.whole.num_rows:
            return predicted(piece.whole, *how, piece=False)
        try:
            return predicted(piece.table, *how)
        except ValueError:
            predicted(piece.whole, *how, piece=False)
            raise


# -- diagnoses: of a run, of a table fitted anew, of models on new rows ----------------------------


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


def diagnose_drift(run: OpenRun, new: LaterRows) -> TableDiagnosis:
    """Do the models of a run still hold on new rows?"""
    rows, notices = run.rows_of(new)
    users = rows.users[rows.row_user] if run.schema.user else None
    found = run.model.drift(DesignRows(rows.X), rows.y, users)
    return TableDiagnosis(found, run.schema.user, notices)


def diagnose_run(run: OpenRun, seed: int) -> TableDiagnosis:
    """A run from what its users sent."""
    model, n_users = run.model, run.model.n_users_
    found = model.diagnose(seed=seed, comparison=comparison_of(run.folder, n_users))
    again, notices = f"`odcl diagnose {run.folder} TABLE`", list[str]()
    if n_users > len(model.users_):
        notices.append(
            f"the diagnosis is of the {len(model.users_):,} of {n_users:,} users whose uploads "
            f"the run keeps. For others say {again}"
        )
    ours = Method().resolved(model.risk_, model.theta_.shape[1])
    if not model.uploads_.has_terms and ours.clusterer.uses_terms:
        notices.append(f"the run's users sent their models alone: {again} looks at their rows too")
    return TableDiagnosis(found, run.schema.user, notices)


def diagnose_again(run: OpenRun, later: LaterRows, seed: int, shown: Silent) -> TableDiagnosis:
    """A table fitted again with the columns and settings of a run."""
    model, n_users = run.model, run.model.n_users_
    rows, notices = run.rows_of(later)
    strange = int((~model.fitted_.knows(rows.users)).sum())
    if strange or rows.n_users < n_users:
        notices.append(
            f"{later.table} has {rows.n_users} users ({strange} not in the run of {n_users}): the "
            "diagnosis is of the table, with the run's settings"
        )
    from sklearn.base import clone

    again = clone(model).fit_federation(rows, schema=run.schema, progress=shown.advance)
    shown.stage("diagnosing")
    rows = replace(rows, X=again.scaling_.apply(rows.X), y=again._encode_known(rows.y))
    return TableDiagnosis(_with_rows(again, rows, seed), run.schema.user, notices)
