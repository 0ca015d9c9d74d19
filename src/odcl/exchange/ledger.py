"""What crosses the wire, round by round: counted from messages, or from the shapes they have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Ints
from odcl.exchange.message import Message, message_bytes

Shapes = tuple[tuple[int, ...], ...]  # of a message's fields: () is a number, (dim,) a model


@dataclass(frozen=True)
class Exchange:
    """What each of ``n_users`` sends and receives in one round, as the shapes of the fields.

    Several models are several shapes, ``((dim,),) * n_models``.
    """

    n_users: int
    sends: Shapes = ()
    receives: Shapes = ()
    delivers: bool = False  # what the last round made goes out once more, after it

    def over(self, n_rounds: int) -> Ledger:
        """The bytes of ``n_rounds`` such rounds."""
        up = np.full(n_rounds, self.n_users * message_bytes(*self.sends), dtype=np.intp)
        down = self.n_users * message_bytes(*self.receives)
        return Ledger(up, np.full(n_rounds, down, dtype=np.intp), down * self.delivers)


def fedavg_exchange(n_users: int, dim: int) -> Exchange:
    """A round of FedAvg: a model each way, and beside it the sample size that weighs it."""
    return Exchange(n_users, sends=((dim,), ()), receives=((dim,),), delivers=True)


def ifca_exchange(n_users: int, dim: int, n_models: int) -> Exchange:
    """A round of IFCA: K models come, one vector goes, with the number of its model if K > 1."""
    sends: Shapes = ((dim,), ()) if n_models > 1 else ((dim,),)
    return Exchange(n_users, sends=sends, receives=n_models * ((dim,),), delivers=True)


@dataclass(frozen=True, eq=False)
class Ledger:
    """Bytes that all users together sent and received in each round."""

    up: Ints  # (n_rounds,)
    down: Ints  # (n_rounds,)
    delivery: int = 0  # of the last download, by which users get what the rounds made

    @classmethod
    def of(cls, uploads: Message, downloads: Message) -> Ledger:
        """One round of these messages."""
        up, down = (np.array([int(m.n_bytes.sum())], dtype=np.intp) for m in (uploads, downloads))
        return cls(up, down)

    @property
    def n_rounds(self) -> int:
        return len(self.up)

    @property
    def total_up(self) -> int:
        return int(self.up.sum())

    @property
    def total_down(self) -> int:
        return int(self.down.sum()) + self.delivery

    def with_first(self, more: Exchange) -> Ledger:
        """These rounds, with more in the first of them."""
        extra = more.over(1)
        up, down = self.up.copy(), self.down.copy()
        up[:1] += extra.up
        down[:1] += extra.down
        return Ledger(up, down, self.delivery)
