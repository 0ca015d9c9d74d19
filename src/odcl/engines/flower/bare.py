"""Bare models: users send a vector of numbers and their number of rows, and nothing else is known.

So it is with models that odcl does not fit itself: the server clusters and averages vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Floats
from odcl.artifact.arrays import ArraySpec, ids_from_json, ids_to_json
from odcl.artifact.folder import Artifact, open_artifact, write_artifact
from odcl.data.federation import Federation
from odcl.engines.arrivals import Agreed
from odcl.engines.deliveries import Placed
from odcl.exchange.download import Downloads
from odcl.local.receive import Received
from odcl.method import Method

if TYPE_CHECKING:
    from odcl.engines.flower.outcome import Outcome

MOST_BARE = 20_000_000  # parameters of a model: 160 MB of float64 per user
KIND, WORDS, ARRAYS = "flower-models", "groups.json", "groups.safetensors"


@dataclass(frozen=True)
class BareAgreed(Agreed):
    """An upload is a model of ``n_features`` numbers and the number of rows behind it."""

    @cached_property
    def specs(self) -> dict[str, ArraySpec]:
        return {"n_samples": ArraySpec(("users",)), "theta": ArraySpec(("users", self.n_features))}


def expect_bare(method: Method, who: str) -> None:
    """Refuse a method that needs more of a user than its model and its number of rows."""
    more = method.clusterer.uses_terms or method.sends != "none" or method.refit is not None
    if more:
        raise ValueError(
            f"{who} sends bare models, and the method looks at more ({method.clusterer}, combine="
            f"{method.combine!r}, refit={method.refit!r}): let the server ask for "
            "Method.paper(n_clusters=K), or Method('mixture', combine='mean', refit=None, "
            "curvature='none')."
        )


def taken(rows: Federation, downloads: Downloads) -> Placed:
    """The last step of bare models: users take the models of their groups."""
    m, sure = rows.n_users, downloads.probability
    received = Received(downloads.model, np.full(m, np.inf), "none")
    return Placed(downloads.group, np.ones(m) if sure is None else sure, received)


# -- the result on disk ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BareResult:
    """Groups of models that odcl knows no more of."""

    users: Array  # (n_users,), ids
    labels: Array  # (n_users,)
    centers: Floats  # (n_groups, n_parameters)
    n_samples: Floats  # (n_users,)
    reason: str

    def model(self, user: Any) -> Floats:
        """The model of a user's group, flat."""
        at = [i for i, known in enumerate(self.users.tolist()) if known == user]
        if not at:
            raise ValueError(f"User {user!r} took no part in this run.")
        return self.centers[self.labels[at[0]]]


def write_bare(outcome: Outcome, folder: Path, nodes: bytes, *, force: bool) -> None:
    """Groups, their models and what became of each node, as one artifact."""
    step = outcome.step
    words = {
        "request": outcome.request.config(),
        "users": ids_to_json(step.users),
        "rule": step.rule,
        "reason": step.reason,
        "combined": step.combined,
        "bytes_up": outcome.ledger.total_up,
        "bytes_down": outcome.ledger.total_down,
    }
    arrays = {
        "labels": step.labels.astype(np.int64),
        "centers": step.centers,
        "n_samples": outcome.uploads.n_samples,
    }
    if words["users"] is None:
        arrays["users"] = step.users.astype(np.int64)
    artifact = Artifact(
        KIND, words={WORDS: words}, arrays={ARRAYS: arrays}, extras={"nodes.json": nodes}
    )
    write_artifact(folder, artifact, force=force)


def read_bare(folder: str | Path) -> BareResult:
    """What :func:`write_bare` wrote; its files may come from anyone."""
    specs = {
        "labels": ArraySpec(("users",), ("int64",)),
        "centers": ArraySpec(("groups", "parameters")),
        "n_samples": ArraySpec(("users",)),
        "users": ArraySpec(("users",), ("int64",), optional=True),
    }
    with open_artifact(folder, kind=KIND) as stored:
        words = stored.words(WORDS, ("users", "reason"))
        arrays = stored.arrays(ARRAYS, specs)
        with stored.checking(WORDS):
            users = ids_from_json(words["users"], arrays.get("users"))
            labels, centers = arrays["labels"], arrays["centers"]
            inside = bool(((labels >= 0) & (labels < len(centers))).all())
            if len(users) != len(labels) or not inside:
                raise ValueError("its users and groups do not belong together")
    return BareResult(users, labels, centers, arrays["n_samples"], str(words["reason"]))
