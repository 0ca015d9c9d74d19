"""The result on disk: the artifact that ``odcl fit`` writes, and what became of each node.

``nodes.json`` beside the model says which node held which users, what was set aside and why, which
node confirmed its download, and the bytes beside FedAvg's and IFCA's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl import __version__
from odcl.artifact.arrays import expect, id_from_json, id_to_json, json_bytes, parse_json
from odcl.artifact.folder import StoredArtifact
from odcl.engines.flower.columns import Columns
from odcl.engines.flower.request import Request

if TYPE_CHECKING:
    from odcl.engines.flower.strategy import Outcome

FORMAT = 1
NODES, REPORT = "nodes.json", "report.json"


def write_result(outcome: Outcome, columns: Columns, folder: Path, *, force: bool) -> Any:
    """Write a run, whole or not at all; the estimator that was written."""
    from odcl.estimators.federated import server_estimator
    from odcl.estimators.persist import save_estimator
    from odcl.estimators.run_tables import finite, run_tables

    request, uploads = outcome.request, outcome.uploads
    model = server_estimator(
        *(uploads, outcome.step, request.method, request.agreed(outcome.n_features).method),
        schema=columns.schema(request.risk, outcome.n_features, uploads.users),
        scaling=columns.scaling(outcome.n_features),
    )
    extras = {
        REPORT: json_bytes(finite(_report(outcome, model))),
        NODES: json_bytes(finite(nodes_json(outcome))),
        **run_tables(model),
    }
    save_estimator(model, folder, force=force, extras=extras)
    return model


def _report(outcome: Outcome, model: Any) -> dict[str, Any]:
    request, step = outcome.request, outcome.step
    return {
        "version": __version__,
        "engine": "flower",
        "risk": request.risk.to_json(),
        "method": model.method_.to_json(),
        "seed": request.seed,
        "users": len(outcome.uploads),
        "rows": int(outcome.uploads.n_samples.sum()),
        "nodes": len(outcome.nodes),
        "groups": step.n_clusters,
        "rule": step.rule,
        "reason": model.reason_,
        "combined": step.combined,
        "rounds": 1,
        "bytes_up": outcome.ledger.total_up,
        "bytes_down": outcome.ledger.total_down,
    }


def nodes_json(outcome: Outcome) -> dict[str, Any]:
    """What became of each node."""
    ledgers = {"odcl": outcome.ledger, **outcome.others}
    return {
        "format": FORMAT,
        "request": outcome.request.config(),
        "features": outcome.n_features,
        "nodes": {
            str(node): {
                "users": [id_to_json(user) for user in users],
                "late": False,
                "confirmed": node in outcome.delivered,
                "metrics": dict(outcome.delivered.get(node, {})),
            }
            for node, users in outcome.nodes.items()
        },
        "set_aside": [{"node": one.name, "reason": one.reason} for one in outcome.set_aside],
        "undelivered": [{"node": one.name, "reason": one.reason} for one in outcome.undelivered],
        "bytes": {
            name: {"rounds": one.n_rounds, "up": one.total_up, "down": one.total_down}
            for name, one in ledgers.items()
        },
    }


# -- reading ---------------------------------------------------------------------------------------


def read_nodes(stored: StoredArtifact) -> dict[str, Any]:
    """What a result says of its nodes."""
    if NODES not in stored:
        raise ValueError(f"{stored.folder} is no result of a run on Flower: it has no {NODES}.")
    content = stored.content(NODES)
    with stored.checking(NODES):
        words = parse_json(content)
        expect(isinstance(words, dict) and words.get("format") == FORMAT, "it has another format")
        expect(isinstance(words["nodes"], dict) and isinstance(words["request"], dict), "no nodes")
    return dict(words)


def request_of(words: Mapping[str, Any]) -> Request:
    return Request.from_config(words["request"])


def users_by_node(words: Mapping[str, Any]) -> dict[int, tuple[Any, ...]]:
    """The users of each node that confirmed its download."""
    return {
        int(node): tuple(id_from_json(user) for user in one["users"])
        for node, one in words["nodes"].items()
        if one["confirmed"]
    }
