"""The last step at a site: members by their groups, users who took no part placed first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.receive import Received, receive
from odcl.method import Method
from odcl.risk.risk import Risk


@dataclass(frozen=True, eq=False)
class Placed:
    """Users where their last step has put them."""

    labels: Ints  # (n_users,), -1: none of the groups
    probability: Floats  # (n_users,), how surely they belong there
    received: Received


def last_step(
    rows: Federation,
    risk: Risk,
    method: Method,
    uploads: Uploads,
    downloads: Downloads,
    *,
    members: Bools | None = None,
) -> Placed:
    """Every user's model, from its own rows, upload and download.

    ``members`` (n_users,) are the users whose ``downloads`` these are, all unless given. With mixed
    groups, other users (who sent nothing, or came late) are placed in the groups by their rows.
    """
    if downloads.mixture is None:
        received = receive(rows, risk, uploads, downloads)
        sure = downloads.probability
        return Placed(downloads.group, np.ones(rows.n_users) if sure is None else sure, received)
    return _mixed(rows, risk, method, uploads, downloads, members)


def _mixed(
    rows: Federation,
    risk: Risk,
    method: Method,
    uploads: Uploads,
    downloads: Downloads,
    members: Bools | None,
) -> Placed:
    from odcl.server.assign import assign_mixed

    assert downloads.mixture is not None
    inside = np.ones(rows.n_users, dtype=bool) if members is None else members
    labels, sure = np.full(rows.n_users, -1), np.ones(rows.n_users)
    parts: list[tuple[Ints, Received]] = []
    if inside.any():
        who = np.flatnonzero(inside)
        labels[who] = downloads.group
        if downloads.probability is not None:
            sure[who] = downloads.probability
        mine = rows if inside.all() else rows.take(who)
        own = receive(mine, risk, uploads.take(who), downloads)
        if own.group is not None and own.sure is not None:
            labels[who], sure[who] = own.group, own.sure
        parts.append((who, own))
    for i in np.flatnonzero(~inside).tolist():
        part = rows.rows(i)
        y = risk.loss.encode(rows.y[part])
        found = assign_mixed(rows.X[part], y, risk, downloads.mixture, method)
        labels[i], sure[i] = found.label, found.probability
        assert found.received is not None
        parts.append((np.array([i]), found.received))
    return Placed(labels, sure, _in_order(parts))


def _in_order(parts: list[tuple[Ints, Received]]) -> Received:
    """The last steps of all users, put together in the order of users."""
    back = np.argsort(np.concatenate([who for who, _ in parts]))

    def stacked(name: str) -> Any:
        values = [getattr(received, name) for _, received in parts]
        return None if values[0] is None else np.concatenate(values)[back]

    names = ("covariance", "noise", "dof")
    how = parts[0][1].how
    return Received(stacked("models"), how, *(stacked(name) for name in names))
