"""Bare models: users send a vector of numbers and their number of rows, and nothing else is known.

So it is with models that odcl does not fit itself: the server clusters and averages vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.artifact.arrays import ArraySpec, expect, ids_from_json, ids_to_json
from odcl.artifact.folder import Artifact, open_artifact, write_artifact
from odcl.data.federation import Federation, positions
from odcl.engines.arrivals import Agreed
from odcl.engines.deliveries import Placed
from odcl.engines.files.envelope import Refused
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.receive import Received
from odcl.method import Method

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
        raise Refused(
            f"{who} sends bare models, and the method looks at more ({method.clusterer}, combine="
            f"{method.combine!r}, refit={method.refit!r}): let the server ask for "
            "Method.paper(n_clusters=K), or Method('mixture', combine='mean', refit=None, "
            "curvature='none')."
        )


class BareFit:
    """What every :class:`~odcl.engines.flower.fits.Fit` of bare models does alike."""

    def last_step(
        self,
        rows: Federation,
        agreed: Agreed,
        uploads: Uploads,
        downloads: Downloads,
        *,
        late: Bools,
        seed: int,
    ) -> Placed:
        """Users take the models of their groups."""
        expect_bare(agreed.method, type(self).__name__)
        m, sure = rows.n_users, downloads.probability
        received = Received(downloads.model, np.full(m, np.inf), "none")
        return Placed(downloads.group, np.ones(m) if sure is None else sure, received)


# -- the result on disk ----------------------------------------------------------------------------


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


def write_bare(found: BareResult, folder: Path, nodes: Mapping[str, Any], *, force: bool) -> None:
    """Groups, their models and what became of each node, as one artifact."""
    listed = ids_to_json(found.users)
    words = {"request": dict(found.request), "users": listed, "reason": found.reason}
    arrays: dict[str, Array] = {
        "labels": found.labels.astype(np.int64),
        "centers": found.centers,
    }
    if listed is None:
        arrays["users"] = found.users.astype(np.int64)
    files = {WORDS: words, "nodes.json": dict(nodes)}
    write_artifact(folder, Artifact(KIND, files, {ARRAYS: arrays}), force=force)


def read_bare(folder: str | Path) -> BareResult:
    """What :func:`write_bare` wrote; its files may come from anyone."""
    specs = {
        "labels": ArraySpec(("users",), ("int64",)),
        "centers": ArraySpec(("groups", "parameters")),
        "users": ArraySpec(("users",), ("int64",), optional=True),
    }
    with open_artifact(folder, kind=KIND) as stored:
        words = stored.words(WORDS, ("request", "users", "reason"))
        arrays = stored.arrays(ARRAYS, specs)
        with stored.checking(WORDS):
            expect(isinstance(words["request"], dict), "it does not say what was asked for")
            users = ids_from_json(words["users"], arrays.get("users"))
            labels, centers = arrays["labels"].astype(np.intp), arrays["centers"]
            inside = bool(((labels >= 0) & (labels < len(centers))).all())
            expect(len(users) == len(labels) and inside, "users and groups do not fit together")
    return BareResult(words["request"], users, labels, centers, str(words["reason"]))
