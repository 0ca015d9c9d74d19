"""Runs of tables in pieces: beyond memory, or on a Dask cluster.

``fit_pieces`` is to such a table what ``ODCLEstimator.fit_federation`` is to one in memory: the
estimator holds the groups, a few of the users as examples, and where all others are.
"""

from __future__ import annotations

import errno
import glob
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sklearn.base import clone
from sklearn.utils import check_random_state

from odcl.data import notices
from odcl.data.address import Address
from odcl.data.columns import times
from odcl.data.federation import Federation, positions
from odcl.data.roles import Roles, check_columns
from odcl.data.schema import TableSchema
from odcl.data.source import guess_loss, task_of
from odcl.data.summary import TableSummary
from odcl.data.unusual import SAMPLE
from odcl.engines.dask.cluster import Cluster, connected, local_cluster, this_process
from odcl.engines.dask.predict import predict_pieces
from odcl.engines.dask.round import (
    DaskChunks,
    FirstPass,
    LastSteps,
    UploadFiles,
    finish_users,
    gather_uploads,
    measure,
    n_buckets,
    settled,
    shuffle,
    summarize,
)
from odcl.engines.dask.table import (
    PiecedTable,
    TableFiles,
    first_users,
    rows_of,
    table_bytes,
    table_files,
)
from odcl.engines.pieces import FitPlan, PredictOptions, counted, mixed_groups
from odcl.errors import InputError
from odcl.estimators.attributes import (
    check_n_groups,
    check_settings,
    check_several,
    fitting_method,
)
from odcl.estimators.base import own_rows
from odcl.evaluate import Comparison
from odcl.exchange.buckets import EXAMPLES, UserFiles
from odcl.exchange.upload import Uploads
from odcl.files import atomic_folder, locked
from odcl.fitted.value import Fitted, InputColumns, Newcomers, UserColumns
from odcl.runs import fit as fitting
from odcl.runs.evidence import Evidence
from odcl.runs.fit import compare_quietly, other_loss
from odcl.runs.folder import OpenRun, Written
from odcl.runs.run import GroupSizes, Run
from odcl.runs.settings import Engine, FitSettings, Silent
from odcl.server.columns import unusual_uploads
from odcl.server.result import StreamedStep
from odcl.server.step import stream_step

if TYPE_CHECKING:
    from odcl.estimators.base import ODCLEstimator

SMALL = 2**27  # bytes of a table for which workers take longer to start than they save


# -- where the work is done ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Workplace:
    """A cluster, and a folder for what is needed meanwhile."""

    cluster: Cluster
    folder: Address


@contextmanager
def workplace(
    engine: Engine, table: Any, beside: Any, say: Callable[[str], None]
) -> Iterator[Workplace]:
    """A place to work on a table; the files there, and a cluster of our own, go at the end."""
    out = Address.of(beside)
    parent = Address.of(engine.work) if engine.work else Address(out.text.rsplit("/", 1)[0])
    if not parent.kind() and parent.is_local:
        raise ValueError(f"There is no folder {parent} for files that are needed meanwhile.")
    work = parent / f".odcl-work-{secrets.token_hex(4)}-{out.name}"
    with ExitStack() as stack:
        if work.is_local:
            stack.enter_context(locked(work.text))
            _sweep(Path(parent.text), out.name)
        stack.callback(work.remove)
        stack.enter_context(_naming_full(work, parent))
        work.make()
        if engine.scheduler is not None:
            cluster = connected(engine.scheduler)
        elif engine.workers is None and _is_small(table):
            cluster = this_process()
        else:
            cluster = local_cluster(engine.workers)
        with cluster as own:
            if own.started:
                say(own.started)
            yield Workplace(own, work)


def _is_small(table: Any) -> bool:
    """Is a table on this disk done with before workers have started?"""
    return "://" not in str(table) and table_bytes(table) <= SMALL


def _sweep(parent: Path, name: str) -> None:
    """Remove working files of killed runs of the same OUT: no process holds their lock."""
    for left in parent.glob(f".odcl-work-????????-{glob.escape(name)}"):
        with suppress(TimeoutError), locked(left, timeout=0):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _naming_full(work: Address, folder: Address) -> Iterator[None]:
    """Where no space is left for working files, say how to have them elsewhere."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC or not str(error.filename).startswith(work.text):
            raise
        text = "No space left for working files: name a folder with more room by --work"
        raise OSError(errno.ENOSPC, text, str(folder)) from None


# -- fit -------------------------------------------------------------------------------------------


def fit_in_pieces(
    files: TableFiles, settings: FitSettings, place: Workplace, shown: Silent, *, shell: bool
) -> Run:
    """Fit a table in pieces; the users' models stay in the ``place`` until the run is saved."""
    cluster, names = place.cluster, files.names
    columns, target = settings.columns, settings.columns.target
    check_columns(columns.named, names)
    table = files.table(cluster, columns=columns)
    loss = settings.loss
    if loss == "auto":
        first = table.pieces[0].read([target])
        loss = guess_loss(_typed(first, table.schema), target)
    roles = replace(columns, task=task_of(loss)).roles(names)
    roles = settled(table, roles, cluster)
    model = settings.estimator(loss, roles.categorical)
    users = (place.folder / "users").make()
    found = fit_pieces(model, table, roles, cluster, place.folder, users, progress=shown)
    lines = _notices(found, roles)
    summary = found.summary
    if settings.loss == "auto" and roles.task == "regression" and summary.whole:
        lines += other_loss(target, sorted(summary.targets), summary.usable, shell=shell)
    comparison = None
    if settings.holdout.share > 0:
        shown.stage("comparing on held-out rows")
        comparison = _compared(found, table, cluster, settings)
        if comparison is None:
            lines.append(fitting.NO_ROW_OUT)
    table.check_unchanged(cluster)
    step, finished = found.step, found.finished
    evidence = Evidence.of(
        model.fitted_,
        comparison,
        table={"name": table.name, "rows": found.uploads.n_rows},
        holdout=str(settings.holdout),
        notices=tuple(lines),
    )
    sizes = GroupSizes(finished.sizes, finished.rows)
    return Run(model, evidence, sizes, "dask", step.found.combined, passes=step.passes)


def _compared(
    found: ScatteredFit, table: PiecedTable, cluster: Cluster, settings: FitSettings
) -> Comparison | None:
    """The comparison of a table in pieces, on the users it would be made on in memory."""
    schema, total, time = found.plan.schema, found.uploads.n_users, settings.columns.time
    rows = rows_of(table, schema, found.uploads.sample.first(fitting.COMPARED), cluster, time)
    encoded = schema.encode(rows, piece=True)
    order = None if time is None else encoded.by_user(times(rows, time, encoded.rows))
    federation = encoded.federation()
    compared = compare_quietly(clone(found.model), federation, settings, time=order, schema=schema)
    if compared is None:
        return None
    held = compared.held
    if held is not None:  # positions among the users that the estimator holds
        at = positions(found.model.users_, federation.users)
        held = replace(held, users=at[held.users], owner=at[held.owner])
    of_users = total if federation.n_users < total else compared.of_users
    return replace(compared, held=held, of_users=of_users)


def _typed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The first piece with categories as the files have them."""
    for at, name in enumerate(table.column_names):
        if pa.types.is_dictionary(schema.field(name).type):
            table = table.set_column(at, name, table[at].dictionary_encode())
    return table


def _notices(found: ScatteredFit, roles: Roles) -> list[str]:
    """Everything odd about a table that the fit took as it is."""
    summary, model = found.summary, found.model
    gaps = {name: gap.rows for name, gap in summary.gaps.items()}
    lines = notices.about_gaps(roles, summary.rows - summary.usable, gaps, roles.missing)
    lines += notices.about_users(found.uploads.single)
    lines += notices.about_classes(roles.target, summary.classes)
    lines += notices.about_columns(
        found.plan.schema, summary.spread, model.scaling_, standardize=model.method_.standardize
    )
    goal = "" if roles.task == "classification" else roles.target
    sample = model.uploads_
    assert sample is not None
    if model.method_.robust:
        return lines + model.fitted_.outlier_lines
    return lines + unusual_uploads(
        sample, model.scaling_, [*model.fitted_.units], goal, sample.users
    )


# -- predict ---------------------------------------------------------------------------------------


def predict_in_pieces(
    run: OpenRun,
    table: Any,
    options: PredictOptions,
    engine: Engine,
    out: Path | str,
    *,
    force: bool,
    shown: Silent,
    say: Callable[[str], None],
) -> Written:
    """Predict a table in pieces: a folder of Parquet files, in the table's order."""
    schema = run.schema
    with _folder(out, force=force) as folder, workplace(engine, table, out, say) as place:
        shown.stage("opening the table")
        files, wanted = table_files(table, place.cluster), (schema.user, *schema.features)
        check_columns(wanted, files.names)
        pieces = files.table(place.cluster, columns=wanted)
        found = predict_pieces(
            *(
                run.fitted,
                schema,
                pieces,
                options,
                place.cluster,
                place.folder,
                Address.of(folder),
            ),
            stage=shown.stage,
            told=shown.advance,
        )
        pieces.check_unchanged(place.cluster)
    left = notices.about_gaps(run.schema, found.left_out, {}, "drop")
    return Written(found.rows, left + notices.about_strangers(found.strangers), len(found.files))


@contextmanager
def _folder(out: Path | str, *, force: bool) -> Iterator[Any]:
    """The folder of the answer, which appears whole; an address is written as it comes."""
    if "://" in str(out):
        place = Address.of(out)
        if place.kind() and not force:
            raise ValueError(f"{place} exists already: say --force, or name another place.")
        try:
            yield place.make().text
        except BaseException:
            place.remove()
            raise
        return
    own = [file.name for file in Path(out).glob("part-*.parquet")] if force else None
    with atomic_folder(out, force=force, own=own) as folder:
        yield folder


# -- the fit itself --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScatteredFit:
    """What a fit of a table in pieces gave, beside the estimator itself."""

    model: ODCLEstimator
    summary: TableSummary
    step: StreamedStep
    uploads: UploadFiles
    finished: LastSteps
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
    from odcl.runs.settings import Silent

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
    lines = scaling
    scaled = cache(lambda: own_rows(some_rows(), lines))
    n_rows = first.summary.usable
    risk, scaling = model._risk(method, columns, scaling, usual, moments, scaled, n_rows)
    dim = risk.dim(scaling.width)
    resolved = method.resolved(risk, dim)
    seed = int(check_random_state(model.random_state).randint(2**31 - 1))  # as in memory
    unsigned = pa.types.is_uint64(table.schema.field(schema.user).type)
    plan = FitPlan(schema, scaling, risk, resolved, unsigned)
    n = buckets or n_buckets(table, len(roles.columns), cluster)
    shown.stage("bringing rows together by user", table.n_pieces, "pieces")
    shuffled = shuffle(table, plan, n, work, cluster, shown.advance)
    shown.stage("fitting users", n, "files of uploads")
    uploads = gather_uploads(shuffled, plan, work, cluster, EXAMPLES, shown.advance)
    check_n_groups(resolved, uploads.n_users, True)
    check_several(uploads.n_users)
    shown.stage("finding groups")
    chunks = DaskChunks(uploads, plan, cluster)
    plan, step = plan.without_closed(stream_step(chunks, resolved, seed=seed))
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
    return ScatteredFit(model, first.summary, step, uploads, finished, plan)


def _examples(finished: LastSteps, plan: FitPlan) -> tuple[Uploads, UserColumns]:
    """The users drawn by their ids, in canonical order: their uploads and models."""
    found = plan.from_arrow(finished.uploads)
    columns = UserColumns.from_arrow(finished.models, plan.dim)
    order = found.canonical_order()
    return found.take(order), columns.take(order)
