"""The result on disk: the artifact that ``odcl fit`` writes, and what became of each node.

``nodes.json`` beside the model says which node held which users, what was set aside and why, which
node confirmed its download, and the bytes beside FedAvg's and IFCA's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl.artifact.arrays import expect, id_from_json, id_to_json, json_bytes, parse_json
from odcl.artifact.folder import StoredArtifact, open_artifact
from odcl.artifact.manifest import blaming
from odcl.engines.arrivals import SetAside
from odcl.engines.flower.bare import BareResult, write_bare
from odcl.engines.flower.columns import Columns
from odcl.engines.flower.request import Request
from odcl.server.assign import Assignment

if TYPE_CHECKING:
    from odcl.engines.flower.outcome import Outcome

FORMAT = 1
NODES, REPORT = "nodes.json", "report.json"


def write_result(outcome: Outcome, columns: Columns, folder: Path, *, force: bool) -> Any:
    """Write a run, whole or not at all; the estimator that was written."""
    from odcl.estimators.federated import server_estimator
    from odcl.estimators.persist import save_estimator
    from odcl.runs.run import RunReport, finite
    from odcl.runs.tables import run_tables

    request, uploads = outcome.request, outcome.uploads
    if request.bare:
        step = outcome.step
        found = (request.config(), step.users, step.labels, step.centers, step.reason)
        write_bare(BareResult(*found), folder, finite(nodes_json(outcome)), force=force)
        return None
    model = server_estimator(
        *(uploads, outcome.step, request.method, request.agreed(outcome.n_features).method),
        schema=columns.schema(request.risk, outcome.n_features, uploads.users),
        scaling=columns.scaling(outcome.n_features),
    )
    extras = {
        REPORT: RunReport.of(model, **_facts(outcome)).to_bytes(),
        NODES: json_bytes(finite(nodes_json(outcome))),
        **run_tables(model),
    }
    save_estimator(model, folder, force=force, extras=extras)
    return model


def _facts(outcome: Outcome) -> dict[str, Any]:
    """What report.json says beside the model."""
    step, ledger, sizes = outcome.step, outcome.ledger, np.bincount(outcome.step.labels)
    return {
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
        "set_aside": [{"node": one.name, "reason": one.reason} for one in outcome.set_aside],
        "undelivered": [{"node": one.name, "reason": one.reason} for one in outcome.undelivered],
        "bytes": {
            name: {"rounds": one.n_rounds, "up": one.total_up, "down": one.total_down}
            for name, one in ledgers.items()
        },
    }


def _node_json(
    users: Sequence[Any], confirmed: bool, metrics: Mapping[str, float]
) -> dict[str, Any]:
    ids = [id_to_json(user) for user in users]
    return {"users": ids, "confirmed": confirmed, "metrics": dict(metrics)}


# -- a result, and who comes after it --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A result on disk: the model, and which nodes have theirs."""

    model: Any
    request: Request
    n_features: int
    confirmed: frozenset[int]  # nodes that have their models
    owner: Mapping[Any, int]  # user -> the node that sent for it
    late_users: list[Any]  # ids of users who came after the run
    n_members: int  # users of the run itself, who stand first


def open_result(folder: Path) -> SavedRun:
    """Read what :func:`write_result` wrote."""
    from odcl.estimators.persist import KIND, load_estimator

    with open_artifact(folder, kind=KIND) as stored:
        words = _nodes_of(stored)
    model = load_estimator(None, folder)
    with blaming(folder / NODES):
        nodes = words["nodes"]
        late = [id_from_json(user) for user in words["late"]]
        confirmed = frozenset(int(node) for node, one in nodes.items() if one["confirmed"])
        owner = {id_from_json(u): int(node) for node, one in nodes.items() for u in one["users"]}
        request = Request.from_config(words["request"])
        return SavedRun(
            *(model, request, int(words["features"]), confirmed, owner, late),
            len(model.users_) - len(late),
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
    from odcl.estimators.persist import update_estimator
    from odcl.runs.run import finite
    from odcl.runs.tables import run_tables

    def changed(model: Any, stored: StoredArtifact) -> dict[str, Any]:
        words = _nodes_of(stored)
        if placed:
            model._add_assigned(list(placed), list(placed.values()))
        words["late"] += [id_to_json(user) for user in placed]
        for node, own in nodes.items():
            words["nodes"][str(node)] = _node_json(own, node in confirmed, confirmed.get(node, {}))
        served = {f"node {node}" for node in nodes}
        for name, more in (("set_aside", set_aside), ("undelivered", ())):
            left = [one for one in words[name] if one["node"] not in served]
            words[name] = left + [{"node": one.name, "reason": one.reason} for one in more]
        return {NODES: json_bytes(finite(words)), **run_tables(model)}

    update_estimator(folder, changed)
