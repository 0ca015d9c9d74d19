"""Runs of tables in pieces: beyond memory, or on a Dask cluster."""

from __future__ import annotations

import errno
import glob
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from sklearn.base import clone

from odcl.data.address import Address
from odcl.data.columns import times
from odcl.data.federation import positions
from odcl.data.notices import about_columns, about_gaps, about_strangers, about_users
from odcl.data.roles import Roles, check_columns
from odcl.data.source import guess_loss, task_of
from odcl.engines.dask.cluster import Cluster, connected, local_cluster, this_process
from odcl.engines.dask.predict import predict_pieces
from odcl.engines.dask.round import settled
from odcl.engines.dask.table import PiecedTable, TableFiles, rows_of, table_bytes, table_files
from odcl.engines.pieces import PredictOptions
from odcl.estimators.scattered import ScatteredFit, fit_pieces
from odcl.evaluate.scores import Comparison
from odcl.files import atomic_folder, locked
from odcl.report.progress import Silent
from odcl.runs import compare
from odcl.runs.evidence import Evidence
from odcl.runs.fit import compare_quietly, other_loss
from odcl.runs.folder import OpenRun, Written
from odcl.runs.run import GroupSizes, Run
from odcl.runs.settings import Engine, FitSettings
from odcl.server.columns import unusual_uploads

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
        elif engine.workers is None and not engine.dashboard and _is_small(table):
            cluster = this_process()
        else:
            cluster = local_cluster(engine.workers, dashboard=engine.dashboard)
        with cluster as own:
            if own.started:
                say(own.started)
            if own.dashboard and (engine.dashboard or engine.scheduler):
                say(f"dashboard: {own.dashboard}")
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
            lines.append(compare.NO_ROW_OUT)
    table.check_unchanged(cluster)
    step, finished = found.step, found.finished
    evidence = Evidence(
        table={"name": table.name, "rows": found.uploads.n_rows},
        holdout=str(settings.holdout),
        notices=tuple(lines),
        bytes_up=found.uploads.n_bytes,
        bytes_down=finished.bytes_down,
        weighed=step.alternatives(model.users_),
        comparison=comparison,
    )
    sizes = GroupSizes(finished.sizes, finished.rows)
    return Run(model, evidence, sizes, "dask", step.found.combined, passes=step.passes)


def _compared(
    found: ScatteredFit, table: PiecedTable, cluster: Cluster, settings: FitSettings
) -> Comparison | None:
    """The comparison of a table in pieces, on the users it would be made on in memory."""
    schema, total, time = found.plan.schema, found.uploads.n_users, settings.columns.time
    rows = rows_of(table, schema, found.uploads.sample.first(compare.COMPARED), cluster, time)
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
    lines = about_gaps(roles, summary.rows - summary.usable, gaps, roles.missing)
    lines += about_users(found.uploads.single)
    lines += about_columns(
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
    left = about_gaps(run.schema, found.left_out, {}, "drop")
    return Written(found.rows, left + about_strangers(found.strangers), len(found.files))


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
