"""A node's rows and users, and the models that it ends up with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.curves import bent_rows
from odcl.data.federation import Federation, as_ids, positions
from odcl.engines.files.envelope import Refused
from odcl.engines.flower.request import Request
from odcl.exchange.upload import Uploads
from odcl.local.receive import Received
from odcl.risk.risk import Curve

NAMES = ("user", "site", "partition-id")  # of node_config, in this order


@dataclass(frozen=True, eq=False)
class NodeData:
    """A node's rows, and rows held out of them where it has some. One node may hold many users."""

    train: Federation
    test: Federation | None = None

    def bent(self, curves: Sequence[Curve]) -> NodeData:
        """The rows with the bends of these curves."""
        test = None if self.test is None else bent_rows(self.test, curves)
        return NodeData(bent_rows(self.train, curves), test)

    @classmethod
    def of(cls, loaded: Any, node_config: Mapping[str, Any]) -> NodeData:
        """What ``load`` gave: a Federation, (X, y), (X, y, X_test, y_test), or such by user."""
        if isinstance(loaded, NodeData):
            return loaded
        if isinstance(loaded, Federation):
            return cls(loaded)
        if isinstance(loaded, Mapping):
            return cls._of_users(loaded)
        if isinstance(loaded, tuple) and len(loaded) in (2, 4):
            return cls._of_users({own_name(node_config): loaded})
        raise Refused(
            f"load(context) gave {type(loaded).__name__}: it gives (X, y), (X, y, X_test, y_test), "
            "{user: (X, y)}, a Federation, or NodeData(train, test)."
        )

    @classmethod
    def _of_users(cls, rows: Mapping[Any, Any]) -> NodeData:
        if not rows or not all(isinstance(r, tuple) and len(r) in (2, 4) for r in rows.values()):
            raise Refused(
                "load(context) gave rows of users that are neither (X, y) nor (X, y, X_test, "
                "y_test), or of no user at all."
            )
        train = _stacked({user: r[:2] for user, r in rows.items()})
        held = {user: r[2:] for user, r in rows.items() if len(r) == 4 and len(r[3])}
        return cls(train, _stacked(held) if held else None)


def own_name(node_config: Mapping[str, Any]) -> Any:
    """The id of a node's only user."""
    for name in NAMES:
        if name in node_config:
            return node_config[name]
    raise Refused(
        "Nothing says who the user of this node is: give rows by user, {user: (X, y)}, or start "
        "the node with --node-config 'user=\"north\"'."
    )


def _stacked(rows: Mapping[Any, tuple[Any, Any]]) -> Federation:
    """Rows of users as one federation."""
    parts = [(np.asarray(X, dtype=np.float64), np.asarray(y)) for X, y in rows.values()]
    for X, y in parts:
        if X.ndim != 2 or len(X) != len(y) or len(y) == 0:
            raise Refused(
                f"A user has features of shape {X.shape} and targets of shape {y.shape}: "
                "they are a matrix and as many targets as it has rows, at least one."
            )
    owner = np.empty(sum(len(y) for _, y in parts), dtype=object)
    owner[:] = [user for user, (_, y) in zip(rows, parts, strict=True) for _ in range(len(y))]
    X, y = np.vstack([X for X, _ in parts]), np.concatenate([y for _, y in parts])
    return Federation.from_arrays(X, y, owner)


@dataclass(frozen=True, eq=False)
class NodeModels:
    """The models of a node's users, after their last step."""

    request: Request
    users: Array  # (n_users,), ids
    models: Floats  # (n_users, dim)
    labels: Ints  # (n_users,), groups; -1: none of them
    probability: Floats  # (n_users,), how surely they belong there
    reason: str  # how the groups came about
    received: Received  # with how sure each model is, where the method tells
    uploads: Uploads  # what the users sent
    late: Bools  # (n_users,), who came after the round

    def model(self, user: Any) -> Floats:
        """The model of one user, (dim,): its coefficients, bends, and the intercept last."""
        at = int(positions(self.users, np.array([user]))[0])
        if at < 0:
            raise ValueError(f"User {user!r} is not one of this node.")
        return self.models[at]


# -- users of several nodes ------------------------------------------------------------------------


def within_nodes(named: Mapping[int, Array]) -> dict[int, Array]:
    """Users by node as the server calls them: (node, id) where several nodes use an id.

    Wards W0 of two nodes are two users. An id that is a tuple always gets its node, so that no node
    can name another's user.
    """
    used = Counter(user for users in named.values() for user in users.tolist())
    return {
        node: as_ids(
            [(node, u) if used[u] > 1 or isinstance(u, tuple) else u for u in users.tolist()]
        )
        for node, users in named.items()
    }


def own_ids(users: Array) -> Array:
    """Ids as the users' own node sent them: :func:`within_nodes` backwards."""
    return as_ids([user[1] if isinstance(user, tuple) else user for user in users.tolist()])


def same_tables(tables: Mapping[int, Any]) -> dict[int, str]:
    """Nodes whose tables, told apart by a digest, are the same: why each is set aside."""
    nodes_of: dict[Any, list[int]] = {}
    for node, table in tables.items():
        nodes_of.setdefault(table, []).append(node)
    found = {}
    for node, table in tables.items():
        if others := [f"node {other}" for other in nodes_of[table] if other != node]:
            found[node] = (
                f"it sends the same numbers as {' and '.join(others)}: one table on two nodes "
                "would count twice. Give each its own, and run it again"
            )
    return found
