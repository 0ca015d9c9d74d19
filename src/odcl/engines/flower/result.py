"""The result of a run: as the server knows it, and on disk.

On disk it is the artifact that ``odcl fit`` writes, and ``nodes.json`` beside the model: which node
held which users, what was set aside and why, which node confirmed its download, and the bytes
beside FedAvg's and IFCA's. Of bare models it is the groups and their models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.artifact.arrays import (
    ArraySpec,
    array_file,
    expect,
    id_from_json,
    id_to_json,
    ids_from_json,
    ids_to_json,
    json_bytes,
    parse_json,
)
from odcl.artifact.folder import Artifact, StoredArtifact, open_artifact, write_artifact
from odcl.data.columns import kind_of
from odcl.data.federation import positions
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.data.source import task_of
from odcl.declared import to_json
from odcl.engines.files.task import Task
from odcl.engines.flower.request import Request
from odcl.engines.wire import SetAside
from odcl.exchange.message import Ledger, iterated_ledgers
from odcl.exchange.upload import Uploads
from odcl.fitted.persist import KIND, read_fitted, save_fitted, update_fitted
from odcl.fitted.users import add_users
from odcl.fitted.value import Fitted, InputColumns, Newcomers, UserColumns, settings_of
from odcl.local.receive import Received
from odcl.local.terms import n_classes
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.server.assign import Assignment, groups_of_uploads, models_by_terms
from odcl.server.models import average_by_cluster, user_weights
from odcl.server.private import models_by_private_terms
from odcl.server.result import ServerStep
from odcl.server.robust import outliers_json
from odcl.wide.moments import models_without_rows

FORMAT = 1
NODES, REPORT = "nodes.json", "report.json"
UNTOLD = "Nodes tell no losses on rows held out, and numbers of rows as they were sent, with noise."
BARE, BARE_WORDS, BARE_ARRAYS = "flower-models", "groups.json", "groups.safetensors"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run gave, as the server knows it. Users stand in the order of their own ids."""

    request: Request
    n_features: int
    nodes: Mapping[int, tuple[Any, ...]]  # node -> the ids of its users
    uploads: Uploads
    step: ServerStep
    set_aside: tuple[SetAside, ...]
    delivered: Mapping[int, Mapping[str, float]]  # node -> the metrics that it sent back
    undelivered: tuple[SetAside, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """Bytes of the numbers that users sent and received."""
        return Ledger.of(self.uploads, self.step.downloads)

    @property
    def guarantee(self) -> list[str]:
        """What is promised of private uploads, and what is therefore missing; else nothing."""
        privacy = self.request.method.privacy
        return [] if privacy is None else [*privacy.sentences, UNTOLD]

    @property
    def others(self) -> dict[str, Ledger]:
        """What methods of many rounds would send."""
        return iterated_ledgers(len(self.uploads), self.uploads.dim, self.step.n_clusters)


def mean_metrics(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Losses weighed by the rows that they are of; nothing where no node sent any."""
    given = [one for one in metrics if _is_number(one.get("num-examples"))]
    found: dict[str, float] = {"nodes": len(given)} if given else {}
    for name in sorted({name for one in given for name in one if name.startswith("loss")}):
        pairs = [(one[name], one["num-examples"]) for one in given if _is_number(one.get(name))]
        values, rows = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        kept = np.isfinite(values) & np.isfinite(rows) & (rows > 0)
        if kept.any():
            found[name] = float(np.average(values[kept], weights=rows[kept]))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- names and units of the columns ----------------------------------------------------------------


@dataclass(frozen=True)
class TableColumns:
    """Names and units of a table's columns, so that ``odcl predict`` takes the result.

    With a ``task``, the card that sites agreed on, columns, categories and scales are the card's.
    """

    features: tuple[str, ...] | None = None  # x0, x1, ... unless named
    user: str = "user"
    target: str = "y"
    classes: tuple[Any, ...] | None = None  # of the target; 0, 1, ... unless named
    task: Task | None = None

    def __post_init__(self) -> None:
        every = [self.user, self.target, *(self.features or ())]
        if len(set(every)) < len(every) or self.features == ():
            raise ValueError(
                f"The columns are {', '.join(map(repr, every))}: each needs a name of its own, and "
                "there is at least one feature."
            )

    def schema(self, risk: Risk, n_features: int, users: Array) -> TableSchema:
        """How a table is read."""
        kind = kind_of(users.tolist())
        if self.task is not None:
            return self.task.schema(self.user, kind)
        names = self.features or tuple(f"x{j}" for j in range(n_features))
        what, classes = task_of(risk.loss.name), self.classes
        if what == "classification" and classes is None:
            classes = tuple(range(n_classes(risk)))
        return TableSchema(
            user=self.user,
            target=self.target,
            features=names,
            levels={},
            fill=dict.fromkeys(names, 0.0),
            missing="error",
            task=what,
            classes=classes,
            user_kind=kind,
        )

    def scaling(self, risk: Risk, n_features: int) -> Scaling:
        """From the table's units to those that models are fitted in: the same, without a card."""
        if self.task is not None:
            return self.task.scaling
        return Scaling.none(n_features, curves=risk.curves)


# -- on disk ---------------------------------------------------------------------------------------


def write_result(outcome: Outcome, columns: TableColumns, folder: Path, *, force: bool) -> None:
    """Write a run, whole or not at all."""
    from odcl.runs.run import RunReport, finite, run_tables

    request, uploads = outcome.request, outcome.uploads
    if request.bare:
        _write_bare(outcome, folder, finite(nodes_json(outcome)), force=force)
        return
    fitted = server_fitted(
        *(uploads, outcome.step, request.method, request.agreed(outcome.n_features).method),
        columns.schema(request.risk, outcome.n_features, uploads.users),
        columns.scaling(request.risk, outcome.n_features),
    )
    extras = {
        REPORT: RunReport.of(fitted, **_facts(outcome)).to_bytes(),
        NODES: json_bytes(finite(nodes_json(outcome))),
        **run_tables(fitted),
    }
    save_fitted(fitted, folder, force=force, extras=extras)


def server_fitted(
    uploads: Uploads,
    step: ServerStep,
    method: Method,
    resolved: Method,
    schema: TableSchema,
    scaling: Scaling,
) -> Fitted:
    """The fit as the server knows it from the uploads alone.

    Models are those of the users' data terms where these were sent (for squared loss that is what
    users have themselves), else their groups'. ``schema`` and ``scaling`` say how a table becomes
    the rows that users fitted.
    """
    assert uploads.risk is not None
    risk = uploads.risk
    if step.mixture is None:
        everybody, weights = np.zeros(len(uploads), np.intp), user_weights(uploads, method.combine)
        pooled = average_by_cluster(uploads.models, everybody, weights)[0]
        received = Received(step.models, "none")
    else:
        pooled = models_without_rows(step.mixture, risk)[0][-1]
        if uploads.private:
            received = models_by_private_terms(step, risk)
        else:
            received = models_by_terms(uploads, step.mixture)
    rows = uploads.n_samples.astype(np.intp)
    return Fitted.of_step(
        step,
        InputColumns.of_schema(schema, schema.user),
        scaling,
        risk=risk,
        method=resolved,
        users=UserColumns.of(uploads.users, rows, received, step.labels, step.probabilities),
        uploads=uploads,
        newcomers=Newcomers.of(groups_of_uploads(uploads, step), pooled),
        settings=settings_of(risk, method, schema.user),
    )


def _facts(outcome: Outcome) -> dict[str, Any]:
    """What report.json says beside the model."""
    step, ledger, sizes = outcome.step, outcome.ledger, np.bincount(outcome.step.labels)
    return {
        "notices": outcome.guarantee,
        "engine": "flower",
        "seed": outcome.request.seed,
        "users": len(outcome.uploads),
        "rows": int(outcome.uploads.n_samples.sum()),
        "nodes": len(outcome.nodes),
        "sizes": sizes.tolist(),
        "combined": step.combined,
        "rounds": ledger.n_rounds,
        "bytes_up": ledger.total_up,
        "bytes_down": ledger.total_down,
    }


def nodes_json(outcome: Outcome) -> dict[str, Any]:
    """What became of each node."""
    ledgers, got = {"odcl": outcome.ledger, **outcome.others}, outcome.delivered
    return {
        "format": FORMAT,
        "request": outcome.request.config(),
        "features": outcome.n_features,
        "nodes": {
            str(node): _node_json(users, node in got, got.get(node, {}))
            for node, users in outcome.nodes.items()
        },
        "late": [],  # users who came after the run
        "set_aside": set_aside_json(outcome.set_aside),
        "outliers": _outliers_json(outcome),
        "undelivered": set_aside_json(outcome.undelivered),
        "bytes": to_json(ledgers),
        **({"guarantee": outcome.guarantee} if outcome.guarantee else {}),
    }


def _outliers_json(outcome: Outcome) -> list[dict[str, Any]]:
    """Users who take no part in others' models, with their nodes, and why."""
    owner = {user: str(node) for node, users in outcome.nodes.items() for user in users}
    names = outcome.request.columns or [f"x{j}" for j in range(outcome.n_features)]
    found = outliers_json(outcome.step.outliers, names, "the target")
    pairs = zip(found, outcome.step.outliers, strict=True)
    return [{"node": owner.get(one.user), **words} for words, one in pairs]


def set_aside_json(some: Iterable[SetAside]) -> list[dict[str, str]]:
    return [{"node": one.name, "reason": one.reason} for one in some]


def _node_json(
    users: Sequence[Any], confirmed: bool, metrics: Mapping[str, float]
) -> dict[str, Any]:
    ids = [id_to_json(user) for user in users]
    return {"users": ids, "confirmed": confirmed, "metrics": dict(metrics)}


# -- a result, and who comes after it --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A result on disk: the fit, and which nodes have their models."""

    fitted: Fitted
    request: Request
    n_features: int
    confirmed: frozenset[int]  # nodes that have their models
    owner: Mapping[Any, int]  # user -> the node that sent for it
    late_users: list[Any]  # ids of users who came after the run
    n_members: int  # users of the run itself, who stand first


def open_result(folder: Path) -> SavedRun:
    """Read what :func:`write_result` wrote."""

    with open_artifact(folder, kind=KIND) as stored:
        words, fitted = _nodes_of(stored), read_fitted(stored)
        with stored.checking(NODES):
            nodes = words["nodes"]
            late = [id_from_json(user) for user in words["late"]]
            owner = {id_from_json(u): int(n) for n, one in nodes.items() for u in one["users"]}
            return SavedRun(
                fitted,
                Request.from_config(words["request"]),
                int(words["features"]),
                frozenset(int(node) for node, one in nodes.items() if one["confirmed"]),
                owner,
                late,
                len(fitted.users) - len(late),
            )


def _nodes_of(stored: StoredArtifact) -> dict[str, Any]:
    if NODES not in stored:
        raise ValueError(f"{stored.folder} is no result of a run on Flower: it has no {NODES}.")
    content = stored.content(NODES)
    with stored.checking(NODES):
        words = parse_json(content)
        expect(isinstance(words, dict) and words.get("format") == FORMAT, "it has another format")
        expect(isinstance(words["nodes"], dict) and isinstance(words["late"], list), "no nodes")
    return dict(words)


def add_late(
    folder: Path,
    placed: Mapping[Any, Assignment],
    nodes: Mapping[int, Sequence[Any]],
    confirmed: Mapping[int, Mapping[str, float]],
    *,
    set_aside: Sequence[SetAside],
) -> None:
    """Remember users who came after the run, and which nodes have their models by now."""
    from odcl.runs.run import finite, run_tables

    def changed(fitted: Fitted, stored: StoredArtifact) -> tuple[Fitted, dict[str, Any]]:
        words = _nodes_of(stored)
        if placed:
            fitted = add_users(fitted, list(placed), list(placed.values()))
        words["late"] += [id_to_json(user) for user in placed]
        for node, own in nodes.items():
            words["nodes"][str(node)] = _node_json(own, node in confirmed, confirmed.get(node, {}))
        served = {f"node {node}" for node in nodes}
        for name, more in (("set_aside", set_aside), ("undelivered", ())):
            left = [one for one in words[name] if one["node"] not in served]
            words[name] = left + set_aside_json(more)
        tables = run_tables(fitted)
        return fitted, {NODES: json_bytes(finite(words)), **tables}

    update_fitted(folder, changed)


# -- bare models -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BareResult:
    """Groups and their models, where the server knows no more than these."""

    request: Mapping[str, Any]  # as nodes were asked: Request.from_config reads it
    users: Array  # (n_users,), ids
    labels: Ints  # (n_users,)
    centers: Floats  # (n_groups, n_parameters)
    reason: str

    def model(self, user: Any) -> Floats:
        """The model of a user's group, flat."""
        at = int(positions(self.users, np.array([user]))[0])
        if at < 0:
            raise ValueError(f"User {user!r} took no part in this run.")
        return self.centers[self.labels[at]]


def _write_bare(outcome: Outcome, folder: Path, nodes: Mapping[str, Any], *, force: bool) -> None:
    """Groups, their models and what became of each node, as one artifact."""
    request, step = outcome.request.config(), outcome.step
    listed = ids_to_json(step.users)
    arrays: dict[str, Array] = {"labels": step.labels.astype(np.int64), "centers": step.centers}
    if listed is None:
        arrays["users"] = step.users.astype(np.int64)
    words = {"request": dict(request), "users": listed, "reason": step.reason}
    files = {BARE_WORDS: json_bytes(words), NODES: json_bytes(dict(nodes))}
    everything = Artifact(BARE, {**files, BARE_ARRAYS: array_file(arrays)})
    write_artifact(folder, everything, force=force)


def read_bare(folder: str | Path) -> BareResult:
    """A result of bare models; its files may come from anyone."""
    specs = {
        "labels": ArraySpec(("users",), ("int64",)),
        "centers": ArraySpec(("groups", "parameters")),
        "users": ArraySpec(("users",), ("int64",), optional=True),
    }
    with open_artifact(folder, kind=BARE) as stored:
        words = stored.words(BARE_WORDS, ("request", "users", "reason"))
        arrays = stored.arrays(BARE_ARRAYS, specs)
        with stored.checking(BARE_WORDS):
            expect(isinstance(words["request"], dict), "it does not say what was asked for")
            users = ids_from_json(words["users"], arrays.get("users"))
            labels, centers = arrays["labels"].astype(np.intp), arrays["centers"]
            inside = bool(((labels >= 0) & (labels < len(centers))).all())
            expect(len(users) == len(labels) and inside, "users and groups do not fit together")
    return BareResult(words["request"], users, labels, centers, str(words["reason"]))
