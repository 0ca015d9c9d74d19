"""One row per user: what a fit knows of each of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import as_ids

if TYPE_CHECKING:
    import pyarrow as pa

    from odcl.local.receive import Received


@dataclass(frozen=True, eq=False)
class UserColumns:
    """What a fit knows of each user: the columns of a table with one row per user.

    ``model`` is in standardised units, and so is its ``covariance``.
    """

    users: Array  # (n_users,), ids
    group: Ints  # (n_users,), -1: none of the groups
    probability: Floats  # (n_users,), NaN where the method does not know
    rows: Array  # (n_users,)
    model: Floats  # (n_users, dim)
    covariance: Floats | None = None  # (n_users, dim, dim)
    noise: Floats | None = None  # (n_users,), variance of the target around the model
    dof: Floats | None = None  # (n_users,), degrees of freedom behind it

    @classmethod
    def of(
        cls, users: Array, rows: Array, received: Received, group: Ints, sure: Floats | None
    ) -> UserColumns:
        """Users after their last step; ``group`` and ``sure`` are the server's.

        Where a user's own rows say more of its group than what it sent did, they decide.
        """
        sure = sure if received.sure is None else received.sure
        return cls(
            users,
            group if received.group is None else received.group,
            np.full(len(users), np.nan) if sure is None else sure,
            rows,
            received.models,
            received.covariance,
            received.noise,
            received.dof,
        )

    def __len__(self) -> int:
        return len(self.users)

    def take(self, order: Ints) -> UserColumns:
        """Some of the users, in this order."""
        own = {name: a for name, a in vars(self).items() if a is not None}
        return replace(self, **{name: a[order] for name, a in own.items()})

    def joined(self, more: UserColumns) -> UserColumns:
        """These users, then ``more``."""
        both = {f.name: (getattr(self, f.name), getattr(more, f.name)) for f in fields(self)}
        known = {name: np.concatenate(two) for name, two in both.items() if two[0] is not None}
        return UserColumns(
            **{**known, "users": as_ids([*self.users.tolist(), *more.users.tolist()])}
        )

    def to_arrow(self, ids: pa.DataType) -> pa.Table:
        """The table, with the triangle of each covariance; ``ids`` is the type of the ids in it."""
        import pyarrow as pa

        from odcl.exchange.arrow import USER, ids_to_arrow, number_lists

        columns = {
            USER: ids_to_arrow(self.users, ids),
            "group": pa.array(self.group.astype(np.int32)),
            "probability": pa.array(self.probability),
            "rows": pa.array(self.rows.astype(np.int64)),
            "model": number_lists(self.model),
        }
        if self.covariance is not None:
            up = np.triu_indices(self.model.shape[1])
            columns["covariance"] = number_lists(self.covariance[:, up[0], up[1]])
        for name, values in {"noise": self.noise, "dof": self.dof}.items():
            if values is not None:
                columns[name] = pa.array(values)
        return pa.table(columns)

    @classmethod
    def from_arrow(cls, table: pa.Table, dim: int) -> UserColumns:
        """Read what :meth:`to_arrow` wrote; models have ``dim`` parameters."""
        from odcl.exchange.arrow import USER, ids_from_arrow, numbers_of

        known: dict[str, Floats] = {}
        if "covariance" in table.column_names:
            triangle = numbers_of(table["covariance"], (dim * (dim + 1) // 2,))
            known["covariance"] = from_triangles(triangle, dim)
        known |= {n: numbers_of(table[n]) for n in ("noise", "dof") if n in table.column_names}
        return cls(
            ids_from_arrow(table[USER]),
            numbers_of(table["group"]).astype(np.intp),
            numbers_of(table["probability"]),
            numbers_of(table["rows"]),
            numbers_of(table["model"], (dim,)),
            **known,
        )


def from_triangles(triangles: Floats, dim: int) -> Floats:
    """Symmetric matrices, (n, dim, dim), from their upper triangles."""
    rows, columns = np.triu_indices(dim)
    square = np.empty((len(triangles), dim, dim))
    square[:, rows, columns] = square[:, columns, rows] = triangles
    return square
