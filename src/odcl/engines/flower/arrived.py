"""What has arrived: each node's uploads, checked, and kept on disk as they come.

A run that was interrupted after uploads arrived goes on from them. They lie beside the result, in
``RESULT.arrived/DIGEST``, as files of the same kind that sites send, and are read with the same
distrust; once the result is written they are removed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from flwr.app import Message

from odcl.artifact.arrays import expect, is_count
from odcl.engines.arrivals import expect_users, from_wire
from odcl.engines.files.envelope import (
    Refused,
    envelope_bytes,
    read_envelope,
    refusing,
    write_envelope,
)
from odcl.engines.flower.node import alike, within_nodes
from odcl.engines.flower.records import arrays_of, config_of, metrics_of
from odcl.engines.flower.request import Request, check_digest, ids_from_text, ids_to_text
from odcl.engines.flower.transport import Reply
from odcl.exchange.upload import Uploads

ENDING = ".upload"
_NODE = re.compile(r"node-(\d{1,20})")


@dataclass(frozen=True, eq=False)
class Arrival:
    """The uploads of a node's users."""

    node: int
    uploads: Uploads
    n_features: int

    @property
    def table(self) -> str:
        """A digest that nodes share if they hold one table; of few rows, under the same ids.

        Fewer rows of coarse columns may be alike by chance.
        """
        few = self.uploads.n_samples.sum() < NO_CHANCE
        told = hashlib.sha256(ids_to_text(self.uploads.users).encode() if few else b"")
        for array in self.uploads.to_arrays().values():
            told.update(array.tobytes())
        return told.hexdigest()


NO_CHANCE = 50  # rows of a node
MALFORMED = "its reply is malformed"


def read_reply(request: Request, node: int, message: Message) -> Arrival:
    """The uploads of a reply; :class:`Refused` says why it is not taken."""
    with refusing(MALFORMED):
        words = config_of(message)
        check_digest(request, words)
        ids, n_features = ids_from_text(words.get("users")), words.get("n-features")
        expect(is_count(n_features), "it does not say how many features it has")
        assert isinstance(n_features, int)
        expect(request.n_features in (None, n_features), f"it has {n_features} features")
        agreed = request.agreed(n_features)
        expect_users(len(ids))
        arrays = arrays_of(message, agreed.specs, users=len(ids))
        return Arrival(node, from_wire(agreed, ids, arrays), n_features)


def confirmation(request: Request, reply: Reply) -> dict[str, float]:
    """The metrics of a node that has its models; :class:`Refused` says why it has not."""
    if reply.message is None:
        raise Refused(reply.why)
    with refusing(MALFORMED):
        words = config_of(reply.message)
        check_digest(request, words)
        expect(words.get("received") is True, "it does not say that it received it")
        return dict(metrics_of(reply.message))


@dataclass
class Arrived:
    """All that has arrived in a round, and all that was set aside."""

    request: Request
    folder: Path | None = None  # where uploads are kept
    taken: dict[int, Arrival] = field(default_factory=dict)  # by node
    aside: dict[int, str] = field(default_factory=dict)  # by node, why
    resumed: frozenset[int] = frozenset()  # nodes heard in a run before this one
    gone: frozenset[int] = frozenset()  # those of them that are not connected any more

    # -- taking --------------------------------------------------------------------------------

    def take(self, node: int, message: Message) -> None:
        """Check a reply, and keep it or set it aside."""
        try:
            one = read_reply(self.request, node, message)
        except Refused as error:
            self.set_aside(node, str(error))
            return
        self.aside.pop(node, None)
        self.taken[node] = one
        if self.folder is not None:
            _write(self.folder, self.request, one)

    def set_aside(self, node: int, why: str) -> None:
        """Do without a node in this run; the next one asks it again."""
        self._forget(node)
        self.aside[node] = why

    def settle(self) -> None:
        """Set aside what disagrees, and tell the users of different nodes apart."""
        self._make_way()
        sizes = Counter(one.n_features for one in self.taken.values())
        common = max(sizes, key=lambda n: (sizes[n], -n), default=0)
        for node, one in list(self.taken.items()):
            if one.n_features != common:
                self.set_aside(
                    node, f"it has {one.n_features} features, and most nodes have {common}"
                )
        for node, why in alike({node: one.table for node, one in self.taken.items()}):
            self.set_aside(node, why)
        called = within_nodes({node: one.uploads.users for node, one in self.taken.items()})
        for node, one in self.taken.items():
            self.taken[node] = replace(one, uploads=replace(one.uploads, users=called[node]))

    def _make_way(self) -> None:
        """Drop uploads whose node is gone and whose users nodes of this run have all sent.

        Such a node has come back under other ids: those of a simulation are new in every run.
        """
        new = (one for node, one in self.taken.items() if node not in self.resumed)
        named = {user for one in new for user in one.uploads.users.tolist()}
        for node in self.gone:
            if named.issuperset(self.taken[node].uploads.users.tolist()):
                self._forget(node)

    # -- the disk ------------------------------------------------------------------------------

    def read(self) -> None:
        """Take what an earlier run has left; what cannot be read is asked for again."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            with suppress(Refused, OSError):
                one = _read(path, self.request)
                self.taken[one.node] = one
        self.resumed = frozenset(self.taken)

    def _forget(self, node: int) -> None:
        self.taken.pop(node, None)
        if self.folder is not None:
            _path(self.folder, node).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what was kept; that of other requests stays."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):
                self.folder.parent.rmdir()


def arrived_folder(result_dir: Path, request: Request) -> Path:
    """Where uploads for a result are kept until it is written."""
    return result_dir.with_name(f"{result_dir.name}.arrived") / request.digest[:16]


def _path(folder: Path, node: int) -> Path:
    return folder / f"node-{node}{ENDING}"


def _write(folder: Path, request: Request, one: Arrival) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    users = one.uploads.users
    words = {"users": len(users), "ids": ids_to_text(users), "features": one.n_features}
    arrays = one.uploads.to_arrays()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    content = envelope_bytes("upload", request, f"node-{one.node}", arrays, words, created=now)
    write_envelope(_path(folder, one.node), content)


def _read(path: Path, request: Request) -> Arrival:
    file = read_envelope(path, "upload")
    file.check_task(request)
    with refusing():
        found, words = _NODE.fullmatch(file.site), file.words
        expect(found is not None and path.name == f"{file.site}{ENDING}", "it was renamed")
        assert found is not None
        ids, n_features = ids_from_text(words["ids"]), words["features"]
        expect(is_count(n_features), "it does not say how many features it has")
        agreed = request.agreed(n_features)
        arrays = file.arrays(agreed.specs, users=len(ids))
        return Arrival(int(found[1]), from_wire(agreed, ids, arrays), n_features)
