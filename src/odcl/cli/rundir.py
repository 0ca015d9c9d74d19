"""RUN, the folder that ``odcl fit`` writes: its files, and what is done with a run later."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from odcl import __version__
from odcl._typing import Array, Bools
from odcl.cli import uploads as kept_uploads
from odcl.cli.run import Run
from odcl.data.federation import as_ids
from odcl.data.schema import Encoded, TableSchema
from odcl.data.tables import append_csv, beside, check_ending, read_table, write_table
from odcl.errors import show
from odcl.files import atomic_folder, check_folder
from odcl.report.notices import about_values
from odcl.report.text import count

SCHEMA, REPORT, PICTURE = "schema.json", "report.json", "picture.png"
ASSIGNMENT, GROUPS = "assignment.csv", "groups.csv"
MODEL = ("models.safetensors", "model.json")
FILES = (*MODEL, kept_uploads.FILE, SCHEMA, REPORT, ASSIGNMENT, GROUPS, PICTURE)
_LITTER = (".DS_Store", "Thumbs.db")  # what file managers leave behind


@dataclass(frozen=True, eq=False)
class Answer:
    """A table that a command gives, and what is to be said about it."""

    columns: dict[str, Any]
    notices: list[str] = field(default_factory=list)


def check_place(folder: Path, *, force: bool, own: tuple[str, ...] = FILES) -> None:
    """Refuse an output folder before the work: one that exists, or with force, is not ours."""
    check_folder(folder, force=force)
    there = [p.name for p in folder.iterdir()] if folder.exists() else []
    foreign = sorted(name for name in there if name not in (*own, *_LITTER))
    if foreign:
        raise ValueError(
            f"{folder} holds what odcl did not write (such as {foreign[0]!r}), and --force would "
            "remove it: name another folder, or move that away."
        )


def check_file(out: Path, *, run: Path, table: Path) -> None:
    """Refuse an output file before the work: one of no known format, in no folder, or read."""
    check_ending(out)
    place = out.resolve()
    if out.is_dir():
        raise ValueError(f"{out} is a folder, and a file is to be written: name a file in it.")
    if not place.parent.is_dir():
        raise ValueError(f"{out} cannot be written: there is no folder {out.parent}. Make it.")
    if not os.access(place.parent, os.W_OK):
        raise ValueError(f"{out} cannot be written: folder {out.parent} is not yours to change.")
    if place == table.resolve() or place.parent == table.resolve():
        raise ValueError(f"{out} would stand where {table} is read from: name another file.")
    if place.parent == run.resolve() and out.name in FILES:
        raise ValueError(f"{out} is a file of the run itself: name another.")


# -- writing ---------------------------------------------------------------------------------------


def write_run(run: Run, folder: Path, *, force: bool) -> bool:
    """All files of a run, in a folder that appears whole or not at all. Is there a picture?"""
    from odcl.estimators.persist import write_estimator

    with atomic_folder(folder, force=force) as place:
        write_estimator(run.model, place)
        kept_uploads.write_uploads(place, run.model.result_)
        _write_json(place / SCHEMA, run.schema.to_json())
        _write_json(place / REPORT, _report(run))
        write_table(place / ASSIGNMENT, assignment_columns(run))
        write_table(place / GROUPS, group_columns(run.model, run.schema))
        return _draw(run, place / PICTURE)


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """The same with None for NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _report(run: Run) -> dict[str, Any]:
    result = run.model.result_
    return {
        "version": __version__,
        "table": run.source.name,
        "settings": run.settings,
        "users": len(run.users),
        "rows": len(run.source.encoded.codes),
        "groups": run.model.n_clusters_,
        "rule": result.step.rule,
        "reason": result.step.reason,
        "combined": result.step.combined,
        "refit": result.refit.how,
        "rounds": 1,
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "notices": run.notices,
        "comparison": None if run.comparison is None else run.comparison.to_json(),
    }


def assignment_columns(run: Run) -> dict[str, Any]:
    """user, group, rows, and how sure the group is."""
    step = run.model.result_.step
    columns = {"group": run.model.labels_, "rows": run.n_rows}
    if step.probabilities is not None:
        columns["probability"] = np.round(step.probabilities, 6)
    return beside({run.schema.user: run.users}, columns)


def group_columns(model: Any, schema: TableSchema) -> dict[str, Any]:
    """Each group's model in the table's units, one row a group (and class)."""
    names = [*schema.columns, *(["(intercept)"] if model.fit_intercept else [])]
    models = model.cluster_models_
    k = len(models)
    columns: dict[str, Any] = {
        "group": np.arange(k),
        "users": np.bincount(model.labels_, minlength=k),
    }
    if models.ndim == 3:
        columns = {name: np.repeat(v, models.shape[1]) for name, v in columns.items()}
        columns["class"] = np.tile(np.array([str(c) for c in schema.classes or ()]), k)
        models = models.reshape(-1, models.shape[2])
    coefficients = {name: models[:, j] for j, name in enumerate(names)}
    return beside(coefficients, columns, first=True)


def _draw(run: Run, path: Path) -> bool:
    from odcl.report import pictures
    from odcl.report.text import NAMES

    if not pictures.available():
        return False
    result = run.model.result_
    fig, axes = pictures.figure(columns=2 if run.comparison else 1)
    pictures.draw_models(axes[0], result.local.theta, result.centers, result.labels)
    if run.comparison is not None:
        named = {NAMES.get(k, k): v for k, v in run.comparison.scores.items()}
        pictures.draw_users(axes[1], named, run.comparison.metric)
    pictures.save(fig, path)
    return True


# -- a run that exists -----------------------------------------------------------------------------


def open_run(folder: Path) -> tuple[Any, TableSchema]:
    """The model and the schema of a run."""
    from odcl.estimators import ODCLClassifier, ODCLRegressor
    from odcl.estimators.persist import load_estimator, read_words

    kind = ODCLClassifier if read_words(folder)["estimator"] == "ODCLClassifier" else ODCLRegressor
    path = folder / SCHEMA
    if not path.is_file():
        raise ValueError(f"{folder} was not written by `odcl fit`: it has no {SCHEMA}.")
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): fit or copy the run again.") from None
    return load_estimator(kind, folder), TableSchema.from_json(words)


def predict_table(
    folder: Path, path: Path, *, unknown: str, unseen: str, missing: str | None
) -> Answer:
    """A prediction for each row of the table."""
    model, schema = open_run(folder)
    table = read_table(path, text=schema.text)
    encoded = schema.encode(table, with_target=False, unseen=unseen, missing=missing)
    notices = about_values(schema, encoded, missing or schema.missing)
    strange = encoded.ids[~_known(model, encoded.ids)].tolist()
    if strange and unknown == "error":
        raise _unknown_users(strange, encoded, folder)
    if strange:
        model.unknown = unknown
        how = {"pooled": "one model for all", "nearest": "the nearest group's model"}[unknown]
        notices.append(f"{count(len(strange), 'user')} not in the fit, predicted by {how}")
    users = encoded.users
    columns: dict[str, Any] = {"row": encoded.rows + 1}
    predicted = model.predict(encoded.X, users=users)
    if schema.classes is None:
        columns["prediction"] = predicted
    else:
        columns["prediction"] = schema.labels(predicted.astype(np.intp))
        p = model.predict_proba(encoded.X, users=users)
        columns |= {f"p({_word(c)})": p[:, j] for j, c in enumerate(schema.classes)}
    return Answer(beside({schema.user: users}, columns), notices)


def _word(label: Any) -> str:
    """A class as the prediction's column writes it."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def _known(model: Any, ids: Array) -> Bools:
    users = set(model.users_.tolist())
    return np.array([u in users for u in ids.tolist()], dtype=bool)


def _unknown_users(strange: list[Any], encoded: Encoded, folder: Path) -> ValueError:
    return ValueError(
        f"{len(strange)} of {count(len(encoded.ids), 'user')} {_was(strange)} not in the fit (such "
        f"as {show(strange[0])}) and no model is theirs. Say --unknown pooled (one model for all) "
        "or --unknown nearest (the group with the most similar features), or first add them with "
        f"`odcl assign {folder} TABLE --add`."
    )


def _was(users: list[Any]) -> str:
    return "was" if len(users) == 1 else "were"


def assign_table(folder: Path, path: Path, *, add: bool, missing: str | None) -> Answer:
    """Groups of new users, one row a user; with ``add`` the run remembers them."""
    model, schema = open_run(folder)
    encoded = schema.encode(read_table(path, text=schema.text), missing=missing)
    federation = encoded.federation()
    if add:
        check_folder(folder, force=True)
        _refuse_known(federation.users[_known(model, federation.users)].tolist(), folder)
    found = [model.assign(X, y) for _, X, y in federation]
    columns = {
        "group": np.array([f.label for f in found]),
        "probability": np.round([f.probability for f in found], 6),
        "distance": np.round([f.distance for f in found], 4),
        "rows": federation.n_rows,
        "verdict": np.array(["none of these" if f.none_of_these else "joins" for f in found]),
    }
    columns = beside({schema.user: federation.users}, columns)
    if add:
        _add(model, federation.users, found)
        _remember(model, folder, columns)
    return Answer(columns, about_values(schema, encoded, missing or schema.missing))


def _add(model: Any, users: Array, found: list[Any]) -> None:
    """``model.add_user`` of all at once: one by one, each would copy the models of all others."""
    model.users_ = as_ids([*model.users_.tolist(), *users.tolist()])
    model.labels_ = np.append(model.labels_, [f.label for f in found])
    model.theta_ = np.vstack([model.theta_, *(f.theta for f in found)])


def _refuse_known(old: list[Any], folder: Path) -> None:
    if old:
        raise ValueError(
            f"{count(len(old), 'user')} of the table {_was(old)} in {folder} before (such as "
            f"{show(old[0])}): leave their rows out, or say `odcl assign` without --add to see "
            "their groups."
        )


def _remember(model: Any, folder: Path, new: dict[str, Any]) -> None:
    """Write the model and the assignment again; all files of the run change at once."""
    from odcl.estimators.persist import write_estimator

    with atomic_folder(folder, force=True) as place:
        shutil.copytree(folder, place, dirs_exist_ok=True)
        write_estimator(model, place)
        if (place / ASSIGNMENT).is_file():
            append_csv(place / ASSIGNMENT, new)
