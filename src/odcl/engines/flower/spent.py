"""A node's private uploads: made once for a request, noted in its ledger, given back as they were.

Answers depend on rows in no other way: what was made for a request is given back whatever the rows
are by now, and rows that raise an error have spent as much as others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from flwr.app import Context

from odcl.engines.files.envelope import Refused, now, read_envelope
from odcl.engines.flower.fits import NAMES
from odcl.engines.flower.inbox import NodeUploads, node_file, node_uploads
from odcl.engines.flower.messages import log
from odcl.engines.flower.request import Request
from odcl.engines.ledger import NAME, SiteLedger, Spent
from odcl.exchange.upload import Uploads
from odcl.files import locked
from odcl.privacy import Privacy

DELTA = 1e-6  # at which a node's limit on epsilon is meant, unless it says another


def flower_home() -> Path:
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


@dataclass(frozen=True)
class NodeLedger:
    """Where a node notes what it has spent, and the most that it may spend.

    Its config says: ``ledger`` or, beside the table, ``data``; ``epsilon`` and ``delta``. Else it
    lies in the node's Flower home, under its name.
    """

    place: Path
    node: str  # a digest of its name and table, which stands for its rows, whatever they are
    most: float | None  # epsilon of all private uploads together; None: of one, whatever it is
    delta: float

    @classmethod
    def of(cls, context: Context) -> NodeLedger:
        said = context.node_config
        most, delta = said.get("epsilon"), said.get("delta", DELTA)
        name = next((f"{said[name]}-" for name in NAMES if name in said), "")
        if "ledger" in said:
            place = Path(str(said["ledger"]))
        elif "data" in said:
            place = Path(str(said["data"])).parent / NAME
        else:
            place = flower_home() / f"{quote(name, safe='')}{NAME}"
        node = hashlib.sha256(f"{name}{said.get('data', '')}".encode()).hexdigest()
        return cls(place, node, None if most is None else float(most), float(delta))

    def check(self, privacy: Privacy | None) -> None:
        """Refuse a server that asks for exact uploads where the node has a limit."""
        if privacy is None and self.most is not None:
            raise Refused(
                f"This node sends private uploads alone, of epsilon {self.most:g} at most in all "
                "(epsilon in its config), and the server asks for exact ones: nothing was sent."
            )

    def once(self, request: Request, make: Callable[[], Uploads]) -> Uploads:
        """What was sent for this request, or is made now: noted before rows are looked at."""
        privacy = request.method.privacy
        assert privacy is not None
        self.place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self.place):
            ledger = SiteLedger.read(self.place)
            one = ledger.kept(request.digest, self.node)
            if one is None:
                self._refuse_beyond(ledger, privacy)
                stamp = request.name, request.round, request.digest
                one = Spent(*stamp, self.node, privacy, now())
                ledger = ledger.noting(one)
                ledger.write(self.place)
            if not one.upload:
                made = NodeUploads(make(), request.n_features or 0)
                one = one.sending(node_file(request, "node", made, one.created))
                ledger.noting(one).write(self.place)
        return _kept(request, one)

    def sent(self, request: Request) -> Uploads | None:
        """What was sent for this request; None: nothing."""
        one = SiteLedger.read(self.place).kept(request.digest, self.node)
        return None if one is None or not one.upload else _kept(request, one)

    def _refuse_beyond(self, ledger: SiteLedger, privacy: Privacy) -> None:
        """The node's own log has the sum; the server learns that there is no more."""
        total, delta = ledger.epsilon(self.delta, privacy), self.delta
        if total <= self.most * (1 + 1e-9) if self.most is not None else not ledger.spent:
            return
        log.warning(
            f"{self.place}: {'; '.join(map(str, ledger.spent)) or 'nothing is spent yet'}. With "
            f"{privacy} more, epsilon would be {total:.3g} at delta {delta:g}: nothing is sent. If "
            "that is meant, set epsilon in the node's config to the most that all may come to."
        )
        raise Refused("Its ledger says that this is more than it allows: nothing was sent.")


def _kept(request: Request, one: Spent) -> Uploads:
    return node_uploads(request, read_envelope(one.content, "upload")).uploads
