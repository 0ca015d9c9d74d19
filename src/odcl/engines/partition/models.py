"""The last step on a piece: uploads, and rows where they say more -> places and models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation
from odcl.engines.partition.look import Job
from odcl.engines.partition.uploads import federation_of, fitted, from_arrow, stand_in
from odcl.exchange.arrow import USER, ids_from_arrow, ids_to_arrow, number_lists, numbers_of
from odcl.exchange.upload import Uploads
from odcl.local.receive import Received, receive

if TYPE_CHECKING:
    from odcl.server.result import StreamedStep

PIECE = 4_096  # users at a time: the posterior holds some matrices of each, near the processor


@dataclass(frozen=True, eq=False)
class UserColumns:
    """What a run knows of each user: the columns of a table with one row per user.

    ``model`` is in standardised units, ``covariance`` the triangle of its covariance matrix.
    """

    users: Array  # (n_users,), ids
    group: Array  # (n_users,)
    probability: Floats  # (n_users,), NaN where the method does not know
    rows: Array  # (n_users,)
    model: Floats  # (n_users, dim)
    covariance: Floats | None = None  # (n_users, dim, dim)
    noise: Floats | None = None  # (n_users,)
    dof: Floats | None = None  # (n_users,)

    def to_arrow(self, ids: pa.DataType) -> pa.Table:
        """The table; ``ids`` is the type of the ids in it."""
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

    def take(self, order: Ints) -> UserColumns:
        """Some of the users, in this order."""
        own = {name: a for name, a in vars(self).items() if a is not None}
        return replace(self, **{name: a[order] for name, a in own.items()})

    @classmethod
    def from_arrow(cls, table: pa.Table, dim: int) -> UserColumns:
        """The way back; models have ``dim`` parameters."""
        told: dict[str, Floats] = {}
        if "covariance" in table.column_names:
            rows, columns = np.triu_indices(dim)
            triangle = numbers_of(table["covariance"], (len(rows),))
            square = np.empty((len(triangle), dim, dim))
            square[:, rows, columns] = square[:, columns, rows] = triangle
            told["covariance"] = square
        told |= {n: numbers_of(table[n]) for n in ("noise", "dof") if n in table.column_names}
        return cls(
            ids_from_arrow(table[USER]),
            numbers_of(table["group"]).astype(np.intp),
            numbers_of(table["probability"]),
            numbers_of(table["rows"]),
            numbers_of(table["model"], (dim,)),
            **told,
        )


def user_models(
    uploads: pa.Table, job: Job, step: StreamedStep, rows: pa.Table | None = None
) -> pa.Table:
    """The place and the model of every user, one row each, in the order of the uploads.

    ``rows`` are those of the same users; where ``job.needs_rows`` is false nobody looks at them.
    """
    if job.needs_rows and rows is None:
        raise ValueError(
            f"The last step of the {job.risk.loss.name} loss looks at the users' rows: give them."
        )
    if not uploads.num_rows:
        nobody = stand_in(job)
        table = _models(fitted(nobody, job), job, step, nobody, np.zeros(1, np.intp)).slice(0, 0)
        return table.set_column(0, USER, pa.array([], job.id_type))
    given = from_arrow(uploads, job)
    federation = None if rows is None or not job.needs_rows else federation_of(rows, job)
    pieces = [
        _models(given.take(at), job, step, federation, at)
        for at in np.split(np.arange(len(given)), range(PIECE, len(given), PIECE))
    ]
    return pa.concat_tables(pieces)


def _models(
    uploads: Uploads, job: Job, step: StreamedStep, federation: Federation | None, at: Array
) -> pa.Table:
    m, p = len(uploads), len(job.scaling.used)
    if federation is None:  # all that the last step needs is in the upload
        rows = Federation(np.empty((0, p)), np.empty(0), np.zeros(m + 1, np.intp), uploads.users)
    else:
        rows = federation.take(at)
    placed = step.place(uploads)
    received: Received = receive(rows, job.risk, uploads, placed, seed=job.seed)
    unknown = np.full(m, np.nan)
    sure = placed.probability if received.sure is None else received.sure
    found = UserColumns(
        uploads.users,
        placed.group if received.group is None else received.group,
        unknown if sure is None else sure,
        uploads.n_samples,
        received.models,
        received.covariance,
        received.noise,
        received.dof,
    )
    return found.to_arrow(job.id_type)


def with_coefficients(models: pa.Table, job: Job) -> pa.Table:
    """The table with each user's coefficients in the table's own units, a column for each.

    Models of several classes have them in ``model`` alone.
    """
    if job.risk.n_outputs > 1:
        return models
    model, p = numbers_of(models["model"], (job.dim,)), len(job.scaling.used)
    coef, intercept = job.scaling.undo(model[:, :p, None], model[:, p:].sum(axis=1)[:, None])
    for name, values in zip(job.schema.columns, coef[..., 0].T, strict=True):
        models = models.append_column(f"coef_{name}", pa.array(np.ascontiguousarray(values)))
    if job.risk.intercept:
        models = models.append_column("coef_(intercept)", pa.array(intercept[:, 0].copy()))
    return models
