"""The uploads that nodes sent: checked, and kept on disk as they come.

A run that was interrupted after uploads arrived goes on from them. They lie beside the result, in
``RESULT.arrived/DIGEST``, as files of the kind that sites send, and are read with the same
distrust; once the result is written they are removed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import Message

from odcl._typing import Array
from odcl.artifact.arrays import ArraySpec, expect, is_count
from odcl.engines.files.envelope import (
    Envelope,
    Refused,
    envelope_bytes,
    now,
    read_envelope,
    refusing,
    write_envelope,
)
from odcl.engines.flower.fits import same_tables, within_nodes
from odcl.engines.flower.messages import arrays_of, config_of, log
from odcl.engines.flower.request import Request, ids_from_text, ids_to_text
from odcl.engines.wire import expect_users, from_wire
from odcl.exchange.upload import Uploads

ENDING = ".upload"
_NODE = re.compile(r"node-(\d{1,20})")
NO_CHANCE = 50  # rows of a node: fewer rows of coarse columns may be alike by chance
MALFORMED = "its reply is malformed"


@dataclass(frozen=True, eq=False)
class NodeUploads:
    """The uploads of a node's users."""

    uploads: Uploads
    n_features: int
    silent: bool = False  # late in a private run: only the ids are the node's own

    @property
    def table(self) -> Any:
        """A digest that nodes share if they hold one table; of few rows, under the same ids."""
        if self.silent:
            return id(self)
        few = self.uploads.n_samples.sum() < NO_CHANCE
        digest = hashlib.sha256(ids_to_text(self.uploads.users).encode() if few else b"")
        for array in self.uploads.to_arrays().values():
            digest.update(array.tobytes())
        return digest.hexdigest()


@dataclass
class Inbox:
    """All that has arrived in a round, and why other nodes are set aside."""

    request: Request
    folder: Path | None = None  # where uploads are kept
    taken: dict[int, NodeUploads] = field(default_factory=dict)  # by node
    aside: dict[int, str] = field(default_factory=dict)  # by node, why
    resumed: frozenset[int] = frozenset()  # nodes heard in a run before this one
    late: bool = False  # are nodes to say who their users are, where what they sent is not known?

    @classmethod
    def beside(cls, result_dir: Path | None, request: Request) -> Inbox:
        """With the uploads that an earlier run left; files that cannot be read are asked again."""
        found = cls(request)
        if result_dir is None:
            return found
        found.folder = result_dir.with_name(f"{result_dir.name}.arrived") / request.digest[:16]
        for path in sorted(found.folder.iterdir()) if found.folder.is_dir() else ():
            with suppress(Refused, OSError):
                node, one = _from_file(path, request)
                found.taken[node] = one
        found.resumed = frozenset(found.taken)
        return found

    def uploads(self) -> Uploads:
        """All uploads as one message, in the order of the users' own ids."""
        first, *others = (one.uploads for one in self.taken.values())
        every = first.joined(*others)
        return every.take(every.canonical_order())

    @property
    def users(self) -> dict[int, tuple[Any, ...]]:
        """The users of each node."""
        return {n: tuple(one.uploads.users.tolist()) for n, one in sorted(self.taken.items())}

    # -- taking --------------------------------------------------------------------------------

    def take(self, node: int, message: Message) -> None:
        """Check a reply and keep it; :class:`Refused` says why it is not taken."""
        with refusing(MALFORMED):
            words = config_of(message)
            self.request.check(words)
            ids, n_features = ids_from_text(words.get("users")), words.get("n-features")
            expect(self.request.n_features in (None, n_features), f"it has {n_features} features")
            silent = self.late and words.get("late") is True
            made_up = self.request.agreed(self.request.n_features or 0).made_up if silent else None
            read = made_up or (lambda specs, n: arrays_of(message, specs, users=n))
            one = replace(_checked(self.request, ids, n_features, read), silent=silent)
        self.taken[node] = one
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            own = f"node-{node}"
            write_envelope(self._path(node), node_file(self.request, own, one, now()))

    def set_aside(self, why: Mapping[int, str]) -> None:
        """Do without nodes in this run; the next one asks them again."""
        for node, reason in why.items():
            self._forget(node)
            self.aside[node] = reason
            log.warning("Node %d is set aside: %s", node, reason)

    def settle(self, there: Iterable[int]) -> None:
        """Set aside what disagrees, and tell the users of different nodes apart.

        Uploads of an earlier run whose node is gone make way where nodes of this run have sent all
        their users: such a node has come back under another id, as in a new simulation.
        """
        new = (one for node, one in self.taken.items() if node not in self.resumed)
        named = {user for one in new for user in one.uploads.users.tolist()}
        for node in self.resumed - set(there):
            if named.issuperset(self.taken[node].uploads.users.tolist()):
                self._forget(node)
        sizes = Counter(one.n_features for one in self.taken.values())
        common = max(sizes, key=lambda n: (sizes[n], -n), default=0)
        self.set_aside(
            {
                node: f"it has {one.n_features} features, and most nodes have {common}"
                for node, one in self.taken.items()
                if one.n_features != common
            }
        )
        self.set_aside(same_tables({node: one.table for node, one in self.taken.items()}))
        called = within_nodes({node: one.uploads.users for node, one in self.taken.items()})
        for node, one in self.taken.items():
            self.taken[node] = replace(one, uploads=replace(one.uploads, users=called[node]))

    # -- the disk ------------------------------------------------------------------------------

    def _path(self, node: int) -> Path:
        assert self.folder is not None
        return self.folder / f"node-{node}{ENDING}"

    def _forget(self, node: int) -> None:
        self.taken.pop(node, None)
        if self.folder is not None:
            self._path(node).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove what was kept; that of other requests stays."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):
                self.folder.parent.rmdir()


def _checked(
    request: Request,
    ids: Array,
    n_features: Any,
    read: Callable[[Mapping[str, ArraySpec], int], dict[str, Array]],
) -> NodeUploads:
    """Uploads of these users, from wherever ``read(specs, n_users)`` gets their arrays."""
    expect(is_count(n_features), "it does not say how many features it has")
    expect_users(len(ids))
    agreed = request.agreed(n_features)
    return NodeUploads(from_wire(agreed, ids, read(agreed.specs, len(ids))), n_features)


def node_file(request: Request, node: str, one: NodeUploads, created: str) -> bytes:
    """A node's uploads as a file of the kind that sites send."""
    users, arrays = one.uploads.users, one.uploads.to_arrays()
    words = {"ids": ids_to_text(users), "features": one.n_features}
    return envelope_bytes("upload", request.stamp, node, arrays, words, created=created)


def node_uploads(request: Request, file: Envelope) -> NodeUploads:
    """What :func:`node_file` wrote."""
    file.check_task(request.stamp)
    with refusing():
        ids = ids_from_text(file.words["ids"])
        return _checked(request, ids, file.words["features"], lambda s, n: file.arrays(s, users=n))


def _from_file(path: Path, request: Request) -> tuple[int, NodeUploads]:
    file = read_envelope(path, "upload")
    found = _NODE.fullmatch(file.site)
    if found is None or path.name != f"{file.site}{ENDING}":
        raise Refused("it was renamed")
    return int(found[1]), node_uploads(request, file)
