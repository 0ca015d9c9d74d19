"""Nodes that come after a run: served from its saved result, without changing other users.

Users who are new are placed in the groups by what they send; in a private run they send nothing of
their rows, and place themselves at home. Users of the run who never confirmed
their download get it now: the server's step is a pure function of the uploads in the result.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from odcl._typing import Array
from odcl.data.federation import as_ids, positions
from odcl.engines.files.envelope import Refused
from odcl.engines.flower.fits import own_ids
from odcl.engines.flower.inbox import Inbox, NodeUploads
from odcl.engines.flower.messages import expect_replies, log, wait_for_nodes
from odcl.engines.flower.result import SavedRun, add_late, mean_metrics, open_result
from odcl.engines.flower.strategy import ODCL, Delivery
from odcl.engines.wire import LateUsers, difference, nodes_aside
from odcl.errors import count
from odcl.exchange.message import Downloads
from odcl.exchange.upload import Uploads
from odcl.server.assign import Assignment, place_upload
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
        self.folder = Path(result_dir).absolute()
        self.saved: SavedRun = open_result(self.folder)
        request = self.saved.request
        limits: Any = {"min_replies": min_replies, "nodes": nodes, "wait": wait, "timeout": timeout}
        super().__init__(**limits)
        self.request = request
        self.placed: dict[Any, Assignment] = {}  # new users, and where they belong

    def _gather(self, grid: Grid) -> Inbox:
        """The uploads of nodes that have no models yet, as the result calls their users."""
        private = self.request.method.privacy is not None
        inbox, known = Inbox(self.request, late=private), self.saved.confirmed
        there = wait_for_nodes(grid, self.nodes, self.wait, known=known)
        self._ask(grid, inbox, there, known=known)
        unknown = {}
        for node, one in inbox.taken.items():
            try:
                inbox.taken[node] = replace(one, uploads=self._in_result(node, one))
            except Refused as error:
                unknown[node] = str(error)
        inbox.set_aside(unknown)
        if inbox.taken or inbox.aside:
            expect_replies(len(inbox.taken), self.min_replies, inbox.aside, " from late nodes")
        return inbox

    def _in_result(self, node: int, found: NodeUploads) -> Uploads:
        """Uploads of a late node with its users as the result calls them.

        A user with the name of another node's user there, and other rows, is a user of its own.
        :class:`Refused` where the node's own users had other rows in the run.
        """
        saved, uploads, owner = self.saved, found.uploads, self.saved.owner
        if found.n_features != saved.n_features:
            has = f"it has {found.n_features} features"
            raise Refused(f"{has}, and the result {saved.n_features}")
        called, sent = uploads.users.tolist(), saved.fitted.uploads
        place = {user: i for i, user in enumerate(saved.fitted.users.users.tolist())}
        for i, name in enumerate(own_ids(uploads.users).tolist()):
            if (node, name) in owner:
                called[i] = (node, name)
            at = place.get(called[i])
            if at is None:
                continue
            if sent is None:
                raise Refused("it is of the run, whose uploads were too large to keep: run it anew")
            same = found.silent and owner.get(called[i]) == node
            field = "" if same else difference(uploads[i], sent[at])
            if field and owner.get(called[i]) == node:
                raise Refused(
                    f"user {called[i]!r} is in the result with other rows ({field} differs): newer "
                    "rows need a new run"
                )
            if field:
                called[i] = (node, name)
        return replace(uploads, users=as_ids(called))

    # -- where users belong --------------------------------------------------------------------

    def _combine(self, inbox: Inbox) -> tuple[Delivery, dict[str, int]]:
        """Users who are new in the groups of the result, and users of the run as they were."""
        fitted = self.saved.fitted
        nothing = np.zeros(0, dtype=np.intp)
        downloads = Downloads(nothing, fitted.centers[:0], nothing, nothing)
        late = np.zeros(0, dtype=bool)
        if inbox.taken:
            uploads, before = inbox.uploads(), set(self.saved.late_users)
            users = uploads.users.tolist()
            new = positions(fitted.users.users, uploads.users) < 0
            late = new | np.array([user in before for user in users])
            parts = []
            if late.any():
                who = np.flatnonzero(late)
                if self.request.method.privacy is None:
                    found = self._late(uploads.take(who))
                    parts.append(found.downloads)
                    pairs = zip(who.tolist(), found.found, strict=True)
                    self.placed = {users[i]: one for i, one in pairs if new[i]}
                else:
                    parts.append(_unplaced(uploads.users[who], uploads.dim))
            if not late.all():
                parts.append(self._members(uploads.users[~late]))
            downloads = _joined(parts).take(np.argsort(np.argsort(~late, kind="stable")))
        delivery = Delivery(downloads, fitted.centers, fitted.reason, fitted.mixture, late)
        sizes = {"num-users": len(self.placed), "nodes-set-aside": len(inbox.aside)}
        return delivery, sizes

    def _members(self, users: Array) -> Downloads:
        """Downloads of users of the run, as they were."""
        saved, request = self.saved, self.request
        assert saved.fitted.uploads is not None  # else such a node is set aside
        sent = saved.fitted.uploads.take(np.arange(saved.n_members))
        method = request.agreed(saved.n_features).method
        step = server_step(sent, method, seed=request.seed)
        return step.downloads.take(positions(sent.users, users))

    def _late(self, uploads: Uploads) -> LateUsers:
        """Users who came after the run, placed by what they sent."""
        fitted = self.saved.fitted
        groups = fitted.newcomers.groups
        if fitted.mixture is not None:
            return LateUsers.placed(uploads, fitted.mixture, groups.members)
        found = [place_upload(one, groups) for one in uploads]
        labels = np.array([one.label for one in found], dtype=np.intp)
        return LateUsers.of(found, uploads, groups.centers[labels], groups.members[labels] + 1)

    # -- delivery ------------------------------------------------------------------------------

    def _deliver(self, grid: Grid, inbox: Inbox, delivery: Delivery) -> dict[str, float]:
        """Each late node's download; users who were placed are added to the result."""
        if not inbox.taken:
            log.info("No node is waiting for its models.")
            return {}
        confirmed, _ = self._send(grid, inbox, delivery)
        aside = nodes_aside(inbox.aside)
        add_late(self.folder, self.placed, inbox.users, confirmed, set_aside=aside)
        private = "; of this private run, at their own nodes" * inbox.late
        n = count(len(self.placed), "new user")
        log.info("%s placed in the groups of %s%s.", n, self.folder, private)
        return mean_metrics(confirmed.values())


def _unplaced(users: Array, dim: int) -> Downloads:
    """Of users about whom nothing is known: the groups, which all receive, are what they need."""
    m = len(users)
    group, size = np.full(m, -1), np.zeros(m, dtype=np.intp)
    curvature, none = np.zeros((m, dim, dim)), np.zeros((m, dim))
    return Downloads(users, none, group, size, own_curvature=curvature, own_slope=none)


def _joined(parts: list[Downloads]) -> Downloads:
    """Downloads of some users, then of others, with the fields that all of them have."""
    names = set.intersection(*(set(one.present) for one in parts))
    fields: dict[str, Any] = {
        name: np.concatenate([one.present[name] for one in parts]) for name in names
    }
    return Downloads(as_ids([user for one in parts for user in one.users.tolist()]), **fields)
