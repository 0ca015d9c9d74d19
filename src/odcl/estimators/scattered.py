"""A fit of a table in pieces: the groups are an estimator, the users' models stay in files.

``fit_pieces`` is to a table beyond memory what ``ODCLEstimator.fit_federation`` is to one in
memory. The estimator holds the groups, a few of the users as examples, and where all others are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from sklearn.utils import check_random_state

from odcl.data.address import Address
from odcl.data.federation import Federation
from odcl.data.roles import Roles
from odcl.data.schema import TableSchema
from odcl.data.summary import TableSummary
from odcl.data.unusual import SAMPLE
from odcl.engines.dask.round import (
    DaskChunks,
    FirstPass,
    LastSteps,
    UploadFiles,
    finish_users,
    gather_uploads,
    measure,
    n_buckets,
    shuffle,
    summarize,
)
from odcl.engines.dask.table import first_users, rows_of
from odcl.engines.pieces import FitPlan, counted, mixed_groups
from odcl.errors import InputError
from odcl.estimators.base import own_rows
from odcl.estimators.settings import check_n_groups, check_settings, check_several, fitting_method
from odcl.exchange.buckets import EXAMPLES, UserFiles
from odcl.exchange.upload import Uploads
from odcl.fitted.columns import UserColumns
from odcl.fitted.value import Fitted, InputColumns, Newcomers
from odcl.local.predict import residual_scale
from odcl.risk.loss import Loss
from odcl.risk.losses import Huber
from odcl.server.result import StreamedStep
from odcl.server.step import stream_step

if TYPE_CHECKING:
    from odcl.engines.dask.cluster import Cluster
    from odcl.engines.dask.table import PiecedTable
    from odcl.estimators.base import ODCLEstimator
    from odcl.report.progress import Silent


@dataclass(frozen=True, eq=False)
class ScatteredFit:
    """What a fit of a table in pieces gave, beside the estimator itself."""

    model: ODCLEstimator
    summary: TableSummary
    step: StreamedStep
    uploads: UploadFiles
    finished: LastSteps
    passes: int
    plan: FitPlan


def fit_pieces(
    model: ODCLEstimator,
    table: PiecedTable,
    roles: Roles,
    cluster: Cluster,
    work: Address,
    out: Address,
    *,
    buckets: int | None = None,
    first: FirstPass | None = None,
    progress: Silent | None = None,
) -> ScatteredFit:
    """Fit an estimator to a table in pieces; the users' models are files of ``out``.

    ``work`` is a folder for what is needed meanwhile, ``first`` the first pass over the
    table, where it was made already.
    """
    from odcl.report.progress import Silent

    shown = Silent() if progress is None else progress
    check_settings(model)
    if first is None:
        shown.stage("looking at the columns", table.n_pieces, "pieces")
        first = summarize(table, roles, cluster, shown.advance)
    schema = TableSchema.of(first.summary, roles)
    columns = InputColumns.of_schema(schema, model.users)
    method = fitting_method(model)
    if not (isinstance(model.solver, str) and model.solver == "exact"):
        text = "Beyond memory users are fitted by the exact solver, and not by another one: leave "
        raise InputError(f"{text}the solver out, or fit in memory.")
    shown.stage("measuring the columns", first.moments.count(None), "pieces")
    moments = measure(table, schema, first, cluster, shown.advance)

    @cache
    def some_rows() -> Federation:
        shown.stage("looking at some users for units")
        users = first_users(table, schema, cluster, SAMPLE + 1)
        return schema.encode(rows_of(table, schema, users, cluster), piece=True).federation()

    scaling, usual = model._units(method, columns, moments, some_rows)
    if isinstance(model.loss, str) and model.loss == "huber" and columns.classes is None:
        scaled = some_rows().with_X(scaling.apply(some_rows().X))  # rows tell Huber's unit
        loss: Loss = Huber(1.345 * residual_scale(scaled, bool(model.fit_intercept)))
    else:
        nobody = Federation(np.zeros((1, 1)), np.zeros(1), np.array([0, 1]), np.zeros(1, np.int64))
        loss = model._loss(nobody, columns.classes)
    risk, scaling = model._risk(loss, method, scaling, usual, schema.columns, moments)
    n_rows, lines = first.summary.usable, replace(scaling, curves=())
    risk, scaling = model._at_first_sight(
        risk, scaling, method, lambda: own_rows(some_rows(), lines), n_rows
    )
    dim = risk.dim(scaling.width)
    resolved = method.resolved(risk, dim)
    seed = int(check_random_state(model.random_state).randint(2**31 - 1))  # as in memory
    unsigned = pa.types.is_uint64(table.schema.field(schema.user).type)
    plan = FitPlan(schema, scaling, risk, resolved, seed, unsigned)
    n = buckets or n_buckets(table, len(roles.columns), cluster)
    shown.stage("bringing rows together by user", table.n_pieces, "pieces")
    shuffled = shuffle(table, plan, n, work, cluster, shown.advance)
    shown.stage("fitting users", n, "files of uploads")
    uploads = gather_uploads(shuffled, plan, work, cluster, EXAMPLES, shown.advance)
    check_n_groups(resolved, uploads.n_users, True)
    check_several(uploads.n_users)
    shown.stage("finding groups")
    chunks = DaskChunks(uploads, plan, cluster)
    plan, step = plan.without_closed(stream_step(chunks, resolved, seed=plan.seed))
    shown.stage("every user's last step", n, "files of models")
    finished = finish_users(uploads, plan, step, out, cluster, shown.advance)
    some, users = _examples(finished, plan)
    groups = counted(step.found.centers, finished.sizes, finished.rows)
    pooled = mixed_groups(plan, step)[1] if step.sums is None else step.sums.pooled
    fitted = Fitted.of_step(
        step.found,
        columns,
        plan.scaling,
        risk=plan.risk,
        method=resolved,
        users=users,
        uploads=some,
        newcomers=Newcomers.of(groups, pooled),
        files=UserFiles(out, schema.user_kind, finished.parts),
        weighed=step.alternatives(users.users),
        bytes_up=uploads.n_bytes,
        bytes_down=finished.bytes_down,
        settings=model.get_params(deep=False),
    )
    model._hold(fitted)
    return ScatteredFit(model, first.summary, step, uploads, finished, step.passes, plan)


def _examples(finished: LastSteps, plan: FitPlan) -> tuple[Uploads, UserColumns]:
    """The users drawn by their ids, in canonical order: their uploads and models."""
    found = plan.from_arrow(finished.uploads)
    columns = UserColumns.from_arrow(finished.models, plan.dim)
    order = found.canonical_order()
    return found.take(order), columns.take(order)
