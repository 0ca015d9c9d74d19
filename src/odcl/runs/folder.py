"""RUN, the folder that ``odcl fit`` writes: the model's artifact with tables and a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from odcl.artifact.arrays import json_bytes
from odcl.artifact.folder import Extra, open_artifact
from odcl.data.federation import Federation
from odcl.data.notices import about_values
from odcl.data.schema import TableSchema
from odcl.data.tables import read_table
from odcl.data.write import write_table
from odcl.estimators.evidence import Evidence, evidence_files, evidence_of, read_evidence
from odcl.estimators.persist import KIND, load_estimator, save_estimator, update_estimator
from odcl.runs.page import PAGE, page_of
from odcl.runs.tables import GROUPS, finite, group_columns, run_tables

if TYPE_CHECKING:
    from odcl.data.source import Source
    from odcl.estimators.scattered import ScatteredFit
    from odcl.evaluate.scores import Comparison

REPORT = "report.json"
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class FittedTable:
    """A fitted table: the model on all rows, the comparison on rows held out."""

    source: Source
    model: Any
    comparison: Comparison | None
    notices: list[str]
    holdout: Any


# -- writing ---------------------------------------------------------------------------------------


def write_run(
    fitted: FittedTable, folder: Path, *, force: bool, command: Sequence[str] = ()
) -> Evidence:
    """All files of a run, in a folder that appears whole or not at all; what its page rests on.

    ``command``: the words that give it again.
    """
    model, source = fitted.model, fitted.source
    table = {"name": source.name, "rows": int(model.n_rows_.sum())}
    found = evidence_of(
        model,
        fitted.comparison,
        table=table | ({} if source.digest is None else {"sha256": source.digest}),
        command=tuple(command),
        holdout=str(fitted.holdout),
        notices=tuple(fitted.notices),
    )
    result, tables = model.result_, run_tables(model)
    more = {"combined": result.step.combined, "refit": result.received.how}
    _write(model, found, folder, tables, force=force, users=len(model.users_), **more)
    return found


def write_pieces(
    fitted: ScatteredFit,
    table: str,
    notices: list[str],
    folder: Path,
    *,
    comparison: Comparison | None = None,
    holdout: str = "",
    command: Sequence[str] = (),
    force: bool,
) -> Evidence:
    """The run of a table in pieces: its groups, a report, and the files of all users' models.

    Users on the page are the few that the model holds.
    """
    model, step, uploads = fitted.model, fitted.step, fitted.uploads
    found = Evidence(
        table={"name": table, "rows": uploads.n_rows},
        command=tuple(command),
        holdout=holdout,
        notices=tuple(notices),
        bytes_up=uploads.n_bytes,
        bytes_down=fitted.finished.bytes_down,
        weighed=step.alternatives(model.users_),
        comparison=comparison,
    )
    sizes = fitted.finished.sizes
    tables: dict[str, Extra] = {GROUPS: lambda path: write_table(path, group_columns(model, sizes))}
    more = {"engine": "dask", "sizes": sizes.tolist(), "passes": step.passes}
    more["combined"] = step.combined
    _write(model, found, folder, tables, force=force, users=uploads.n_users, **more)
    return found


def _write(
    model: Any,
    found: Evidence,
    folder: Path,
    tables: Mapping[str, Extra],
    *,
    force: bool,
    users: int,
    **more: Any,
) -> None:
    """A model with its tables, its page and report.json, in which ``more`` stands too."""
    report = {
        "version": found.version,
        "table": {"name": found.table["name"], "sha256": found.table.get("sha256")},
        "risk": model.risk_.to_json(),
        "method": model.method_.to_json(described=True),
        "seed": model.random_state,
        "holdout": found.holdout,
        "users": users,
        "rows": found.table["rows"],
        "groups": model.n_clusters_,
        "rule": model.rule_,
        "reason": model.reason_,
        **more,
        "rounds": 1,
        "bytes_up": found.bytes_up,
        "bytes_down": found.bytes_down,
        "notices": list(found.notices),
        "comparison": None if found.comparison is None else found.comparison.to_json(),
    }
    extras = {REPORT: json_bytes(finite(report)), **tables, **evidence_files(found)}
    save_estimator(model, folder, force=force, extras=extras, derived={PAGE: page_of})


def change_run(folder: Path, change: Callable[[Any], T]) -> T:
    """Change the model of a run while nobody else can; its tables follow."""
    answers: list[T] = []

    def changed(model: Any, stored: Any) -> Mapping[str, Extra]:
        answers.append(change(model))
        return {name: make for name, make in run_tables(model).items() if name in stored}

    update_estimator(folder, changed, derived={PAGE: page_of})
    return answers[0]


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
    federation = encoded.federation()
    if schema.classes is not None:
        federation = federation.with_y(schema.labels(federation.y.astype(int)))
    return federation, about_values(schema, encoded, missing or schema.missing)
