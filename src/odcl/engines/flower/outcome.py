"""What a run gives: the outcome as the server knows it, and what goes to each node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Bools
from odcl.artifact.arrays import json_bytes
from odcl.engines.arrivals import SetAside
from odcl.engines.deliveries import mixture_parts, plain
from odcl.engines.flower.node import own_ids
from odcl.engines.flower.request import Request, ids_to_text
from odcl.exchange.download import Downloads
from odcl.exchange.ledger import Ledger, fedavg_exchange, ifca_exchange
from odcl.exchange.upload import Uploads
from odcl.mixed.posterior import Mixture
from odcl.server.result import ServerStep

if TYPE_CHECKING:
    from odcl.engines.flower.refine import Refined


@dataclass(frozen=True, eq=False)
class Delivery:
    """What goes to users: their downloads, and what everybody is told of the groups."""

    downloads: Downloads
    n_groups: int
    reason: str
    mixture: Mixture | None
    late: Bools  # (n_users,), users who came after the round

    @classmethod
    def of(cls, step: ServerStep) -> Delivery:
        """Of a round, to those who took part in it."""
        late = np.zeros(len(step.users), dtype=bool)
        return cls(step.downloads, step.n_clusters, step.reason, step.mixture, late)

    def by_node(
        self, request: Request, nodes: Mapping[int, Iterable[Any]]
    ) -> Iterator[tuple[int, dict[str, Array], dict[str, Any]]]:
        """Each node with the arrays and words of its users, in the node's own order."""
        place = {user: i for i, user in enumerate(self.downloads.users.tolist())}
        mixture, mixed = mixture_parts(self.mixture)
        shared = {
            **request.config(),
            "groups": self.n_groups,
            "reason": self.reason,
            "mixture": "" if mixture is None else json_bytes(mixture, indent=None).decode(),
        }
        for node, users in nodes.items():
            at = np.array([place[user] for user in users], dtype=np.intp)
            own, late = self.downloads.take(at), self.late[at]
            arrays = {name: plain(array) for name, array in own.to_arrays().items()} | mixed
            if late.any():
                arrays["late"] = late
            words = {"users": ids_to_text(own_ids(own.users)), "late": bool(late.any())}
            yield node, arrays, {**shared, **words}


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
    compared_rounds: int = 100  # of FedAvg and IFCA, beside which bytes are shown
    refined: Refined | None = None  # rounds inside the groups, where there were any

    @property
    def ledger(self) -> Ledger:
        """Bytes of the numbers that users sent and received."""
        one = Ledger.of(self.uploads, self.step.downloads)
        return one if self.refined is None else one.then(self.refined.ledger)

    @property
    def others(self) -> dict[str, Ledger]:
        """What methods of many rounds would send for the same task: every user is a client."""
        m, dim, R = len(self.uploads), self.uploads.dim, self.compared_rounds
        return {
            "FedAvg": fedavg_exchange(m, dim).over(R),
            "IFCA": ifca_exchange(m, dim, self.step.n_clusters).over(R),
        }


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


def count(some: Any, one: str, many: str | None = None) -> str:
    """How many there are, in words."""
    n = len(some)
    return f"{n:,} {one if n == 1 else many or one + 's'}"
