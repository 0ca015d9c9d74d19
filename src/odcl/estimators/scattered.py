"""A fit of a table in pieces: the groups are an estimator, the users' models stay in files.

``fit_pieces`` is to a table beyond memory what ``ODCLEstimator.fit_federation`` is to one in
memory. The estimator holds the groups, a few of the users as examples, and where all others are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from sklearn.utils import check_random_state

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation, as_ids
from odcl.data.roles import Roles
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.data.summary import TableSummary
from odcl.data.unusual import SAMPLE, sample_moments
from odcl.engines.dask.address import Address
from odcl.engines.dask.buckets import EXAMPLES, UserFiles
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
from odcl.engines.pieces import FitPlan, UserColumns
from odcl.errors import InputError
from odcl.estimators.for_newcomers import Known
from odcl.estimators.settings import check_n_groups, check_settings
from odcl.exchange.upload import Uploads
from odcl.local.predict import residual_scale
from odcl.method import Method
from odcl.mixed.differences import inside_text
from odcl.mixed.layout import without_rows
from odcl.risk.losses import Huber
from odcl.risk.risk import Risk
from odcl.server.assign_models import GroupStatistics, groups_of_stream
from odcl.server.result import StreamedStep
from odcl.server.step import stream_step

if TYPE_CHECKING:
    from odcl.engines.dask.cluster import Cluster
    from odcl.engines.dask.table import PiecedTable
    from odcl.report.progress import Silent


@dataclass(frozen=True, eq=False)
class ScatteredFit:
    """What a fit of a table in pieces gave, beside the estimator itself."""

    model: Any
    summary: TableSummary
    step: StreamedStep
    uploads: UploadFiles
    finished: LastSteps
    passes: int
    plan: FitPlan


def fit_pieces(
    model: Any,
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
    _declare(model, schema)
    method = Method.of(model.method, clusterer=model.clusterer)
    if not (isinstance(model.solver, str) and model.solver == "exact"):
        text = "Beyond memory users are fitted by the exact solver, and not by another one: leave "
        raise InputError(f"{text}the solver out, or fit in memory.")
    shown.stage("measuring the columns", first.moments.count(None), "pieces")
    moments = measure(table, schema, first, cluster, shown.advance)
    scaling = Scaling.of(
        moments,
        center=bool(model.fit_intercept),
        standardize=method.standardize,
        copies=not method.clusterer.uses_terms,
        factors=model._factors(method),
    )
    intercept, usual = bool(model.fit_intercept), method.standardize
    usual = usual and not model._server_finds_units(method, scaling)
    loss = _loss(model)
    if usual or _unit_of_rows(model):
        shown.stage("looking at some users for units")
        few = rows_of(table, schema, first_users(table, schema, cluster, SAMPLE + 1), cluster)
        rows = schema.encode(few, piece=True).federation()
        if usual:
            scaling = scaling.of_usual(sample_moments(rows), rows.n_users, center=intercept)
        if _unit_of_rows(model):
            scaled = rows.with_X(scaling.apply(rows.X))
            loss = Huber(1.345 * residual_scale(scaled, intercept))
    risk = Risk(loss, model.l2, intercept, scaling.factors)
    dim = risk.dim(len(scaling.used))
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
    if uploads.n_users == 1:
        raise ValueError(
            "The table has one user, and groups need several. Check the column that names the "
            "user, or fit an ordinary model."
        )
    shown.stage("finding groups")
    chunks = DaskChunks(uploads, plan, cluster)
    step = stream_step(chunks, resolved, seed=plan.seed)
    shown.stage("every user's last step", n, "files of models")
    finished = finish_users(uploads, plan, step, out, cluster, shown.advance)
    files = UserFiles(out, schema.user_kind, finished.parts)
    some, columns = _examples(finished, plan)
    mixed = step.found.mixture is not None
    later = _mixed_groups(plan, step) if mixed else groups_of_stream(step, some, resolved)
    later = _counted(later[0], finished.sizes, finished.rows), later[1]
    group_estimator(model, plan, step, later)
    _hold(model, columns)
    model.uploads_, model.user_files_ = some, files
    return ScatteredFit(model, first.summary, step, uploads, finished, step.passes, plan)


def _declare(model: Any, schema: Any) -> None:
    """As if a frame with these columns had been fitted."""
    model.schema_, model.design_ = schema, schema.design
    owner = () if model.users is None else (model.users,)
    model.feature_names_in_ = np.array([*owner, *schema.features], dtype=object)
    model.n_features_in_ = len(model.feature_names_in_)
    model._target_name = schema.target
    if schema.classes is not None:
        model.classes_ = np.array(schema.classes)


def _loss(model: Any) -> Any:
    """The loss; Huber's, whose unit the rows tell, in any unit for the time being."""
    if _unit_of_rows(model):
        return Huber()
    nobody = Federation(np.zeros((1, 1)), np.zeros(1), np.array([0, 1]), np.zeros(1, np.int64))
    return model._loss(nobody)


def _unit_of_rows(model: Any) -> bool:
    """Is it Huber's loss in a unit that only all rows tell?"""
    by_name = isinstance(model.loss, str) and model.loss == "huber"
    return by_name and not hasattr(model, "classes_")


def _examples(finished: LastSteps, plan: FitPlan) -> tuple[Uploads, UserColumns]:
    """The users drawn by their ids, in canonical order: their uploads and models."""
    found = plan.from_arrow(finished.uploads)
    columns = UserColumns.from_arrow(finished.models, plan.dim)
    order = found.canonical_order()
    return found.take(order), columns.take(order)


def group_estimator(
    model: Any,
    plan: FitPlan,
    step: StreamedStep,
    later: tuple[GroupStatistics, Floats] | None = None,
) -> Any:
    """The estimator of a step's groups, which holds no users: :func:`with_users` gives it some.

    ``later`` is what :func:`groups_of_stream` found; mixed groups say it themselves.
    """
    if later is None:
        later = _mixed_groups(plan, step)
    _declare(model, plan.schema)
    model._has_users, model._whole = True, True  # examples of all groups are in it
    model.scaling_, model.risk_ = plan.scaling, plan.risk
    found = step.found
    model.method_, model.mixture_, model.tau2_ = plan.method, found.mixture, found.tau2
    model.rule_, model.n_clusters_ = found.rule, found.n_clusters
    model.cluster_theta_, model.theta_ = found.centers, np.empty((0, plan.dim))
    model._for_newcomers = Known(*later)
    inside = inside_text(model.mixture_, model.risk_, model._units)
    model.reason_ = f"{found.reason} {inside}".rstrip()
    return model


def _mixed_groups(plan: FitPlan, step: StreamedStep) -> tuple[GroupStatistics, Floats]:
    """Mixed groups as they are told to newcomers, and one model for everybody."""
    found = step.found
    if found.mixture is None:
        raise ValueError(
            f"Groups of {plan.method.clusterer} are not mixed groups, which alone say what users "
            "who come later need: give what groups_of_stream found."
        )
    pull, tau2 = np.ones(found.n_clusters), float(found.tau2 or 0.0)
    groups = GroupStatistics(found.centers, step.sizes, step.rows, pull, tau2, tau2, np.nan, 0.0)
    return _counted(groups, step.sizes, step.rows), without_rows(found.mixture, plan.risk)[0][-1]


def _counted(groups: GroupStatistics, sizes: Ints, rows: Floats) -> GroupStatistics:
    """GroupStatistics of so many users and rows; one that lost all its users counts as one."""
    return replace(groups, members=np.maximum(sizes, 1), samples=np.maximum(rows, 1.0))


def _hold(model: Any, columns: UserColumns) -> None:
    model.users_, model.theta_ = columns.users, columns.model
    model.labels_, model.probability_ = columns.group, columns.probability
    model.n_rows_ = columns.rows
    model.covariance_, model.noise_, model.dof_ = columns.covariance, columns.noise, columns.dof


def with_users(model: Any, users: pa.Table) -> Any:
    """The estimator of the same groups that holds the models of these users.

    Those who were added to a run in pieces are in no file but in the estimator, after its
    examples: they are held as well.
    """
    found, columns = copy.copy(model), UserColumns.from_arrow(users, model.cluster_theta_.shape[1])
    files = model.user_files_
    if files is not None and len(model.users_) > files.n_examples:
        columns = _joined(columns, _held(model, np.arange(files.n_examples, len(model.users_))))
    _hold(found, columns)
    found.uploads_ = found.user_files_ = None
    return found


def _held(model: Any, at: Ints) -> UserColumns:
    """What the estimator itself knows of some users."""
    every = (model.users_, model.labels_, model.probability_, model.n_rows_, model.theta_)
    sure = (model.covariance_, model.noise_, model.dof_)
    return UserColumns(*every, *sure).take(at)


def with_users_of(model: Any, ids: Array) -> Any:
    """The estimator that holds the models of these users, as far as they are known."""
    if model.user_files_ is None:
        return model
    return with_users(model, model.user_files_.models(ids))


def _joined(one: UserColumns, more: UserColumns) -> UserColumns:
    rest = vars(more)
    own = {name: values for name, values in vars(one).items() if values is not None}
    users = as_ids([*one.users.tolist(), *more.users.tolist()])
    joined = {name: np.concatenate([values, rest[name]]) for name, values in own.items()}
    return UserColumns(**{**joined, "users": users})
