"""Nodes that come after a run: served from its saved result, without changing anybody else.

Users who are new are placed in the groups by what they send. Users of the run who never confirmed
their download get it now: the server's step is a pure function of the uploads in the result.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from odcl._typing import Floats, Ints
from odcl.data.federation import as_ids, positions
from odcl.engines.arrivals import SetAside, difference, naming_set_aside, nodes_aside
from odcl.engines.deliveries import LateUsers
from odcl.engines.flower.arrived import Arrival, Arrived
from odcl.engines.flower.node import own_ids
from odcl.engines.flower.outcome import Delivery, count
from odcl.engines.flower.records import array_record
from odcl.engines.flower.result import SavedRun, add_late, open_result
from odcl.engines.flower.strategy import ODCL, in_order, log
from odcl.engines.flower.transport import wait_for_nodes
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.server.assign import Assignment
from odcl.server.assign_models import place_upload
from odcl.server.step import server_step


class LateODCL(ODCL):
    """Serves nodes that come after a run; see :meth:`ODCL.from_result`."""

    def __init__(
        self,
        result_dir: str | os.PathLike[str],
        *,
        min_replies: int = 1,
        nodes: int | None = None,
        wait: float = 60.0,
        timeout: float = 600.0,
    ) -> None:
        self.saved: SavedRun = open_result(Path(result_dir))
        request = self.saved.request
        super().__init__(
            *(request.risk, request.method),
            min_replies=min_replies,
            nodes=nodes,
            wait=wait,
            timeout=timeout,
            result_dir=result_dir,
            seed=request.seed,
        )
        self.request = request
        self.placed: dict[Any, Assignment] = {}  # new users, and where they belong
        self._to_deliver: Delivery | None = None
        self._got: Mapping[int, Mapping[str, float]] = {}

    def check_place(self) -> None:
        """The result is there: it was read."""

    def _known(self) -> Iterable[int]:
        return self.saved.confirmed

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A request to every node that has no model yet."""
        self._arrived, self._asked = Arrived(self.request), []
        new = wait_for_nodes(grid, self.nodes, self.wait, known=self._known())
        log.info("%s after the run: asking for their users' uploads", count(new, "node"))
        return self._requests(new, config)

    def _combined(self) -> tuple[ArrayRecord, MetricRecord]:
        """Users of these nodes in the groups of the result."""
        arrived, model = self._arrived, self.saved.model
        arrived.settle()
        for node, one in list(arrived.taken.items()):
            why = f"it has {one.n_features} features, and the result {self.saved.n_features}"
            if one.n_features == self.saved.n_features:
                arrived.taken[node] = replace(one, uploads=self._named(node, one.uploads))
                why = self._not_of_this_result(arrived.taken[node].uploads)
            if why:
                arrived.set_aside(node, why)
                log.warning("Node %d is set aside: %s", node, why)
        if self._asked and len(arrived.taken) < self.min_replies:
            with naming_set_aside(nodes_aside(arrived.aside)):
                raise ValueError(
                    f"{count(arrived.taken, 'late node')} can be served, and {self.min_replies} "
                    "should be: see why the others were set aside."
                )
        self._to_deliver = self._placed(arrived.taken.values())
        sizes = {"num-users": len(self.placed), "nodes-set-aside": len(arrived.aside)}
        return array_record({"centers": model.cluster_theta_}), MetricRecord(sizes)

    def _named(self, node: int, uploads: Uploads) -> Uploads:
        """Users of a late node as the result calls them.

        Who has the name of another node's user there, and other rows, is a user of its own.
        """
        known, sent, called = self.saved.owner, self.saved.model.uploads_, uploads.users.tolist()
        place = positions(self.saved.model.users_, uploads.users)
        for i, (name, at) in enumerate(zip(own_ids(uploads.users).tolist(), place, strict=True)):
            other = at >= 0 and sent is not None and known.get(called[i]) != node
            if (node, name) in known or (other and difference(uploads[i], sent[at])):
                called[i] = (node, name)
        return replace(uploads, users=as_ids(called))

    def _not_of_this_result(self, uploads: Uploads) -> str:
        """Why a node's uploads have no place in the result, or an empty string."""
        sent, at = self.saved.model.uploads_, positions(self.saved.model.users_, uploads.users)
        if (at >= 0).any() and sent is None:
            return "it is of the run, whose uploads were too large to keep: run it anew"
        for i in np.flatnonzero(at >= 0).tolist():
            name = difference(uploads[i], sent[at[i]])
            if name:
                return (
                    f"user {uploads.users.tolist()[i]!r} is in the result with other rows "
                    f"({name} differs): newer rows need a new run"
                )
        return ""

    def _placed(self, arrivals: Collection[Arrival]) -> Delivery | None:
        """Downloads of users who are new, and of those who have been in the run."""
        if not arrivals:
            return None
        model, uploads = self.saved.model, in_order(arrivals)
        new = positions(model.users_, uploads.users) < 0
        before = set(self.saved.late_users)
        late = new | np.array([user in before for user in uploads.users.tolist()])
        given: list[tuple[Downloads, Ints]] = []
        if late.any():
            who = np.flatnonzero(late)
            found = self._late(uploads.take(who))
            given.append((found.downloads, who))
            ids = uploads.users.tolist()
            pairs = zip(who.tolist(), found.found, strict=True)
            self.placed = {ids[i]: one for i, one in pairs if new[i]}
            log.info("%s placed in the groups.", count(self.placed, "new user"))
        if not late.all():
            given.append((self._members(uploads.users[~late]), np.flatnonzero(~late)))
        return Delivery(
            _in_order(given, uploads),
            *(model.n_clusters_, model.reason_, model.mixture_, late),
        )

    def _members(self, users: Any) -> Downloads:
        """Downloads of users of the run, as they were."""
        saved, request = self.saved, self.request
        sent = saved.model.uploads_.take(np.arange(saved.n_members))
        method = request.agreed(saved.n_features).method
        step = server_step(sent, method, seed=request.seed)
        centers = saved.model.cluster_theta_
        if not np.array_equal(step.centers, centers):  # rounds inside the groups came after it
            step = replace(step, centers=centers, models=centers[step.labels])
        return step.downloads.take(positions(sent.users, users))

    def _late(self, uploads: Uploads) -> LateUsers:
        """Users who came after the run, placed by what they sent."""
        model = self.saved.model
        groups = model.groups_
        if model.mixture_ is not None:
            return LateUsers.placed(uploads, model.mixture_, groups.members)
        refit = model.method_.refit
        found = [place_upload(one, groups, refit) for one in uploads]
        labels = np.array([one.label for one in found], dtype=np.intp)
        alone = labels < 0  # such a user keeps its own model
        models = np.where(alone[:, None], uploads.models, groups.centers[labels])
        sizes = np.where(alone, 1, groups.members[labels] + 1)
        more: dict[str, Any] = {"others": models}  # which it had no part in
        if refit == "evidence" and model.tau2_ is not None:
            more = {"tau2": model.tau2_, "dispersion": self._noise(uploads)}
        elif refit != "cv" and refit != "evidence":
            more = {}
        return LateUsers.of(found, uploads, models, sizes, **more)

    def _noise(self, uploads: Uploads) -> Floats:
        """Noise scales of late users: their own, drawn up to the federation's."""
        if not uploads.has_dispersion:
            return np.ones(len(uploads))
        groups, phi = self.saved.model.groups_, uploads.dispersion
        own = np.full(len(uploads), np.inf) if phi is None else phi
        dof = uploads.n_samples - uploads.dim
        typical = 1.0 if np.isnan(groups.phi) else groups.phi
        known = np.isfinite(own) & (dof > 0)
        pairs = zip(own[known].tolist(), dof[known].tolist(), strict=True)
        noise = np.full(len(uploads), typical)
        noise[known] = [groups.drawn_up(p, d) for p, d in pairs]
        return noise

    # -- delivery ------------------------------------------------------------------------------

    def _delivery(self) -> Delivery:
        assert self._to_deliver is not None
        return self._to_deliver

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Each late node's download."""
        if self._to_deliver is None:
            log.info("No node is waiting for its models.")
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)

    def _confirmed(
        self, got: Mapping[int, Mapping[str, float]], lost: tuple[SetAside, ...]
    ) -> None:
        self._got = got

    def finish(self) -> None:
        """Add who was placed to the result; everybody else stays as it was."""
        if self._to_deliver is None:
            return
        assert self.result_dir is not None
        add_late(
            *(self.result_dir, self.placed, self._receivers(), self._got),
            set_aside=nodes_aside(self._arrived.aside),
        )
        log.info("%s in %s now.", count(self.placed, "new user"), self.result_dir)


def _in_order(given: list[tuple[Downloads, Ints]], uploads: Uploads) -> Downloads:
    """Downloads of some and of others as one message, in the order of the uploads."""
    where = np.concatenate([who for _, who in given])
    names = set.intersection(*(set(one.present) for one, _ in given))
    first = given[0][0]
    shared = {name for name in names if Downloads.parts()[name].shared}
    rows: dict[str, Any] = {
        name: np.concatenate([one.present[name] for one, _ in given])[np.argsort(where)]
        for name in names - shared
    }
    told: dict[str, Any] = {name: getattr(first, name) for name in shared}
    return Downloads(uploads.users, **rows, **told)
