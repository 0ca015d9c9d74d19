"""RUN, the folder that ``odcl fit`` writes: the model's artifact with tables and a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from odcl import __version__
from odcl.artifact.arrays import json_bytes
from odcl.artifact.folder import Extra, open_artifact
from odcl.data.federation import Federation
from odcl.data.schema import TableSchema
from odcl.data.source import check_target
from odcl.data.tables import read_table
from odcl.data.write import write_table
from odcl.estimators.evidence import Evidence, evidence_files, evidence_of, read_evidence
from odcl.estimators.persist import KIND, load_estimator, save_estimator, update_estimator
from odcl.estimators.report import PAGE, page_of
from odcl.estimators.run_tables import GROUPS, finite, group_columns, run_tables
from odcl.report.text import about_values

if TYPE_CHECKING:
    from odcl.cli.fit import FittedTable
    from odcl.estimators.scattered import ScatteredFit
    from odcl.evaluate.scores import Comparison

REPORT = "report.json"
T = TypeVar("T")


# -- writing ---------------------------------------------------------------------------------------


def write_run(
    fitted: FittedTable, folder: Path, *, force: bool, command: Sequence[str] = ()
) -> None:
    """All files of a run, in a folder that appears whole or not at all.

    ``command``: the words that give it again.
    """
    extras: dict[str, Extra] = {
        REPORT: json_bytes(finite(_report(fitted))),
        **run_tables(fitted.model),
        **evidence_files(_evidence(fitted, command)),
    }
    save_estimator(fitted.model, folder, force=force, extras=extras, derived={PAGE: page_of})


def write_pieces(
    found: ScatteredFit,
    table: str,
    notices: list[str],
    folder: Path,
    *,
    comparison: Comparison | None = None,
    holdout: str = "",
    command: Sequence[str] = (),
    force: bool,
) -> None:
    """The run of a table in pieces: its groups, a report, and the files of all users' models.

    Users on the page are the few that the model holds.
    """
    model, step, uploads = found.model, found.step, found.uploads
    report = {
        "version": __version__,
        "table": {"name": table, "sha256": None},
        "engine": "dask",
        "risk": model.risk_.to_json(),
        "method": model.method_.to_json(described=True),
        "seed": model.random_state,
        "holdout": holdout,
        "users": uploads.n_users,
        "rows": uploads.n_rows,
        "groups": model.n_clusters_,
        "sizes": found.finished.sizes.tolist(),
        "rule": model.rule_,
        "reason": model.reason_,
        "combined": step.combined,
        "rounds": 1,
        "passes": step.passes,
        "bytes_up": uploads.n_bytes,
        "bytes_down": found.finished.bytes_down,
        "notices": notices,
        "comparison": None if comparison is None else comparison.to_json(),
    }
    extras: dict[str, Extra] = {
        REPORT: json_bytes(finite(report)),
        GROUPS: lambda path: write_table(path, group_columns(model, found.finished.sizes)),
        **evidence_files(
            Evidence(
                table={"name": table, "rows": uploads.n_rows},
                command=tuple(command),
                holdout=holdout,
                notices=tuple(notices),
                bytes_up=uploads.n_bytes,
                bytes_down=found.finished.bytes_down,
                weighed=step.alternatives(model.users_),
                comparison=comparison,
            )
        ),
    }
    save_estimator(model, folder, force=force, extras=extras, derived={PAGE: page_of})


def change_run(folder: Path, change: Callable[[Any], T]) -> T:
    """Change the model of a run while nobody else can; its tables follow."""
    answers: list[T] = []

    def changed(model: Any, stored: Any) -> Mapping[str, Extra]:
        answers.append(change(model))
        return {name: make for name, make in run_tables(model).items() if name in stored}

    update_estimator(folder, changed, derived={PAGE: page_of})
    return answers[0]


def _report(fitted: FittedTable) -> dict[str, Any]:
    model, result, source = fitted.model, fitted.model.result_, fitted.source
    return {
        "version": __version__,
        "table": {"name": source.name, "sha256": source.digest},
        "risk": model.risk_.to_json(),
        "method": model.method_.to_json(described=True),
        "seed": model.random_state,
        "holdout": str(fitted.holdout),
        "users": len(model.users_),
        "rows": int(model.n_rows_.sum()),
        "groups": model.n_clusters_,
        "rule": model.rule_,
        "reason": model.reason_,
        "combined": result.step.combined,
        "refit": result.received.how,
        "rounds": 1,
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "notices": fitted.notices,
        "comparison": None if fitted.comparison is None else fitted.comparison.to_json(),
    }


def _evidence(fitted: FittedTable, command: Sequence[str]) -> Evidence:
    """What the report needs beside the model."""
    source = fitted.source
    table = {"name": source.name, "rows": int(fitted.model.n_rows_.sum())}
    return evidence_of(
        fitted.model,
        fitted.comparison,
        table=table | ({} if source.digest is None else {"sha256": source.digest}),
        command=tuple(command),
        holdout=str(fitted.holdout),
        notices=tuple(fitted.notices),
    )


# -- reading ---------------------------------------------------------------------------------------


def open_run(folder: Path, *, with_target: bool = False) -> tuple[Any, TableSchema]:
    """The model of a run, and how its tables are read."""
    model = load_estimator(None, folder)
    schema = model.schema_ or model._schema_of_names()
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
    return model, schema


def comparison_of(folder: Path, n_users: int) -> Comparison | None:
    """What a run's fit was worth on held-out rows; None where none were held out."""
    with open_artifact(folder, kind=KIND) as stored:
        return read_evidence(stored, n_users).comparison


def owners(schema: TableSchema, users: Any) -> dict[str, Any]:
    """The users' column of an answer; none where all rows are one user's."""
    return {schema.user: users} if schema.user else {}


def rows_by_user(
    path: Path, schema: TableSchema, missing: str | None
) -> tuple[Federation, list[str]]:
    """A table's rows user by user, targets as the model takes them, and what is said of them."""
    encoded = schema.encode(read_table(path, text=schema.text), missing=missing)
    check_target(schema, encoded)
    federation = encoded.federation()
    if schema.classes is not None:
        federation = federation.with_y(schema.labels(federation.y.astype(int)))
    return federation, about_values(schema, encoded, missing or schema.missing)
