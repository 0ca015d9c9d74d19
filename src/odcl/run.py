"""``odcl fit``: from a table to a folder with groups, models and what they are worth."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcl import __version__
from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.encoding import Encoded, TableSchema
from odcl.data.federation import Federation
from odcl.data.tables import read_table, write_table
from odcl.estimators import ODCLClassifier, ODCLRegressor
from odcl.exchange.files import atomic_folder
from odcl.persist import load_estimator, read_words, write_estimator
from odcl.report.compare import Comparison, compare, hold_out

SCHEMA, REPORT, ASSIGNMENT, GROUPS, PICTURE = (
    "schema.json",
    "report.json",
    "assignment.csv",
    "groups.csv",
    "picture.png",
)


@dataclass(frozen=True, eq=False)
class Run:
    """A fitted table: the model on all rows, the comparison on rows held out."""

    schema: TableSchema
    encoded: Encoded
    model: Any
    comparison: Comparison | None
    notices: list[str]

    @property
    def n_rows(self) -> Ints:
        """Rows of each user, (n_users,)."""
        return np.bincount(self.encoded.codes, minlength=len(self.encoded.ids))


def task_of(loss: str) -> str:
    tasks = {"logistic": "classification", "multinomial": "classification", "poisson": "count"}
    return tasks.get(loss, "regression")


def guess_loss(table: Any, target: str) -> str:
    """Classes where the target is text or true/false, a number otherwise."""
    import pyarrow.types as types

    if target not in table.column_names:
        return "squared"
    kind = table.schema.field(target).type
    words = types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)
    return "logistic" if words or types.is_boolean(kind) else "squared"


def fit_table(
    table: Any,
    schema: TableSchema,
    loss: str,
    *,
    holdout: float,
    seed: int,
    settings: dict[str, Any],
    stage: Callable[[str], None],
) -> Run:
    """Fit all rows; before that, with ``holdout`` > 0, compare methods on rows held out."""
    encoded = schema.encode(table)
    federation = encoded.federation()
    _check_users(federation, settings.get("clusterer"))
    comparison = None
    if holdout > 0 and (federation.n_rows > 1).any():
        stage("comparing on held-out rows")
        comparison = _compare(federation, hold_out(federation, holdout, seed), loss, seed, settings)
    stage("fitting all rows")
    model = _fitted(federation, loss, seed, settings | {"unknown": "pooled"})
    model.unknown = "error"
    model.users_ = encoded.ids
    return Run(schema, encoded, model, comparison, _notices(federation, encoded, model))


def _check_users(federation: Federation, clusterer: Any) -> None:
    wanted = getattr(clusterer, "n_clusters", clusterer)
    if isinstance(wanted, int) and wanted > federation.n_users:
        raise ValueError(
            f"The table has {federation.n_users} user(s) and {wanted} groups were asked for: a "
            "group needs at least one user. Ask for fewer, or check the user column."
        )
    if federation.n_users == 1:
        raise ValueError(
            "The table has one user, and groups need several. Check the column that names the "
            "user, or fit an ordinary model."
        )


def _estimator(loss: str, seed: int, settings: dict[str, Any]) -> Any:
    kind = ODCLClassifier if task_of(loss) == "classification" else ODCLRegressor
    return kind(loss=loss, random_state=seed, **settings)


def _fitted(federation: Federation, loss: str, seed: int, settings: dict[str, Any]) -> Any:
    return _estimator(loss, seed, settings).fit(
        federation.X, federation.y, users=federation.row_user
    )


def _compare(
    federation: Federation, out: Bools, loss: str, seed: int, settings: dict[str, Any]
) -> Comparison:
    """local / one model for all / the paper's setting / ours, each fitted on the rows kept."""
    X, y, owner = federation.X[~out], federation.y[~out], federation.row_user[~out]
    ours = _estimator(loss, seed, settings | {"unknown": "pooled"}).fit(X, y, users=owner)
    is_paper = settings.get("method") == "paper"
    paper = ours
    if not is_paper:
        plain = settings | {"method": "paper"}
        paper = _estimator(loss, seed, plain).fit(X, y, users=owner)
    methods = {
        "local": _with_models(ours, ours.result_.local.theta),
        "pooled": lambda rows, _: ours.predict(rows),
        "paper": lambda rows, who: paper.predict(rows, users=who),
    }
    if not is_paper:
        methods["odcl"] = lambda rows, who: ours.predict(rows, users=who)
    return compare(federation, out, methods, ours.loss_)


def _with_models(model: Any, theta: Floats) -> Callable[[Floats, Ints], Array]:
    """The predictions of a fitted estimator with other models for its users."""
    import copy

    other = copy.copy(model)
    other.theta_ = theta
    return lambda rows, who: other.predict(rows, users=who)


def _notices(federation: Federation, encoded: Encoded, model: Any) -> list[str]:
    """What was accepted all the same, counted."""
    local = model.result_.local
    counted = {
        "rows left out for want of a value": encoded.n_dropped,
        "users with one row": int((federation.n_rows == 1).sum()),
        "users without a finite model of their own (one class, separable, no counts), "
        "given a small prior": int(local.prior.sum()),
        "users whose local fit did not converge": int((~local.converged).sum()),
        "columns constant over the whole table": int(
            (federation.X.min(axis=0) == federation.X.max(axis=0)).sum()
        ),
        "rows that stand more than once": _repeated_rows(federation),
    }
    return [f"{count:,} {what}" for what, count in counted.items() if count]


def _repeated_rows(federation: Federation) -> int:
    """Rows equal to another row of the same user, by a hash of their bytes."""
    parts = [federation.X, federation.y.astype(float)[:, None], federation.row_user[:, None] * 1.0]
    rows = np.ascontiguousarray(np.hstack(parts))
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    return len(keys) - len(np.unique(keys))


# -- files -----------------------------------------------------------------------------------


def write_run(run: Run, folder: str | Path, *, force: bool, settings: dict[str, Any]) -> None:
    """All files of a run, in a folder that appears whole or not at all."""
    with atomic_folder(folder, force=force) as place:
        write_estimator(run.model, place)
        _write_json(place / SCHEMA, run.schema.to_json())
        _write_json(place / REPORT, _report(run, settings))
        write_table(place / ASSIGNMENT, assignment_columns(run))
        write_table(place / GROUPS, group_columns(run.model, run.schema))
        _draw(run, place / PICTURE)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _report(run: Run, settings: dict[str, Any]) -> dict[str, Any]:
    step = run.model.result_.step
    return {
        "version": __version__,
        "settings": {k: str(v) if v is not None else None for k, v in settings.items()},
        "users": len(run.encoded.ids),
        "rows": len(run.encoded.codes),
        "groups": run.model.n_clusters_,
        "rule": step.rule,
        "reason": step.reason,
        "combined": step.combined,
        "refit": run.model.result_.refit.how,
        "rounds": 1,
        "bytes_up": run.model.result_.bytes_up,
        "bytes_down": run.model.result_.bytes_down,
        "notices": run.notices,
        "comparison": None if run.comparison is None else run.comparison.to_json(),
    }


def assignment_columns(run: Run) -> dict[str, Any]:
    """user, group, rows, and how sure the group is."""
    step = run.model.result_.step
    columns = {
        run.schema.user: run.encoded.ids,
        "group": run.model.labels_,
        "rows": run.n_rows,
    }
    if step.probabilities is not None:
        columns["probability"] = np.round(step.probabilities, 6)
    return columns


def group_columns(model: Any, schema: TableSchema) -> dict[str, Any]:
    """Each group's model in the table's units, one row a group (and class)."""
    names = [*schema.columns, *(["(intercept)"] if model.fit_intercept else [])]
    models = model.cluster_models_
    labels = np.arange(len(models))
    columns: dict[str, Any] = {
        "group": labels,
        "users": np.bincount(model.labels_, minlength=len(models)),
    }
    if models.ndim == 3:
        classes = np.array([str(c) for c in schema.classes or ()])
        columns = {k: np.repeat(v, models.shape[1]) for k, v in columns.items()}
        columns["class"] = np.tile(classes, len(labels))
        models = models.reshape(-1, models.shape[2])
    return columns | {name: models[:, j] for j, name in enumerate(names)}


def _draw(run: Run, path: Path) -> None:
    from odcl.report import pictures
    from odcl.report.text import NAMES

    if not pictures.available():
        return
    fig, axes = pictures.figure(columns=2 if run.comparison else 1)
    result = run.model.result_
    pictures.draw_models(axes[0], result.local.theta, result.centers, result.labels)
    if run.comparison is not None:
        named = {NAMES.get(k, k): v for k, v in run.comparison.scores.items()}
        pictures.draw_users(axes[1], named, run.comparison.metric)
    pictures.save(fig, path)


# -- a run that exists -------------------------------------------------------------------------


def open_run(folder: str | Path) -> tuple[Any, TableSchema]:
    """The model and the schema of a run."""
    words = read_words(folder)
    kind = ODCLClassifier if words["estimator"] == "ODCLClassifier" else ODCLRegressor
    path = Path(folder) / SCHEMA
    if not path.is_file():
        raise ValueError(f"{folder} was not written by `odcl fit`: it has no {SCHEMA}.")
    schema = TableSchema.from_json(json.loads(path.read_text(encoding="utf-8")))
    return load_estimator(kind, folder), schema


def predict_table(
    folder: str | Path, path: str | Path, *, unknown: str, unseen: str
) -> dict[str, Any]:
    """Columns of predictions, one row a row of the table."""
    model, schema = open_run(folder)
    model.unknown = unknown
    encoded = schema.encode(read_table(path, text=schema.text), with_target=False, unseen=unseen)
    if unknown == "error":
        _refuse_unknown(model, encoded.ids, folder)
    columns: dict[str, Any] = {"row": encoded.rows + 1, schema.user: encoded.users}
    predicted = model.predict(encoded.X, users=encoded.users)
    if schema.classes is None:
        return columns | {"prediction": predicted}
    columns["prediction"] = schema.labels(predicted)
    p = model.predict_proba(encoded.X, users=encoded.users)
    return columns | {f"p({c})": p[:, j] for j, c in enumerate(schema.classes)}


def _known(model: Any, ids: Array) -> Bools:
    users = set(model.users_.tolist())
    return np.array([u in users for u in ids.tolist()], dtype=bool)


def _refuse_unknown(model: Any, ids: Array, folder: str | Path) -> None:
    strange = ids[~_known(model, ids)].tolist()
    if strange:
        raise ValueError(
            f"{len(strange)} of {len(ids)} users were not in the fit (such as {strange[0]!r}). Say "
            "--unknown pooled (one model for all) or --unknown nearest (the group with the most "
            f"similar features), or first add them with `odcl assign {folder} TABLE --add`."
        )


def assign_table(folder: str | Path, path: str | Path, *, add: bool) -> dict[str, Any]:
    """Groups of new users, one row a user; with ``add`` the run remembers them."""
    model, schema = open_run(folder)
    federation = schema.encode(read_table(path, text=schema.text)).federation()
    if add and _known(model, federation.users).any():
        old = federation.users[_known(model, federation.users)].tolist()
        raise ValueError(
            f"{len(old)} of {federation.n_users} users are in {folder} already (such as {old[0]!r}): "
            "leave their rows out, or say `odcl assign` without --add to see their groups."
        )
    found = []
    for user, X, y in federation:
        found.append(model.add_user(user, X, y) if add else model.assign(X, y))
    if add:
        _replace_model(model, Path(folder))
    return {
        schema.user: federation.users,
        "group": np.array([f.label for f in found]),
        "probability": np.round([f.probability for f in found], 6),
        "distance": np.round([f.distance for f in found], 4),
        "rows": federation.n_rows,
        "verdict": np.array(["none of these" if f.none_of_these else "joins" for f in found]),
    }


def _replace_model(model: Any, folder: Path) -> None:
    """Write the model again beside the other files of its run; the run changes as a whole."""
    import shutil

    with atomic_folder(folder, force=True) as place:
        for file in folder.iterdir():
            if file.is_file():
                shutil.copy2(file, place / file.name)
        write_estimator(model, place)
