"""``odcl fit`` and ``odcl predict`` of tables in pieces: beyond memory, or on a Dask cluster."""

from __future__ import annotations

import errno
import glob
import secrets
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import command_of, say, tell_run, watched
from odcl.files import locked

if TYPE_CHECKING:
    from odcl.engines.dask.address import Address
    from odcl.engines.dask.cluster import Cluster
    from odcl.estimators.scattered import ScatteredFit

SHARE = 0.25  # of the memory: a table that is larger is fitted in pieces
SMALL = 2**27  # bytes of a table for which workers take longer to start than they save


def chosen(options: Namespace) -> bool:
    """Is the table to be worked on in pieces? Said in a line where nobody asked for it."""
    asked = options.engine or "auto"
    pieces = options.scheduler is not None or "://" in str(options.table)
    if asked == "memory" and pieces:
        what = "--scheduler" if options.scheduler is not None else "an address"
        raise opt.UsageError(f"--engine memory and {what} do not go together.", "odcl")
    if asked != "auto" or pieces:
        return asked != "memory"
    size = _parquet_bytes(Path(options.table))
    most = int(SHARE * _memory())
    if size <= most:
        return False
    try:
        import distributed  # noqa: F401
    except ImportError:
        text = "the table may not fit into memory; with `pip install 'odcl[dask]'` it need not"
        say(text, options)
        return False
    text = f"the table takes {size / 2**30:.1f} GiB in memory, more than {most / 2**30:.1f}: it is "
    say(text + "fitted in pieces (--engine dask)", options)
    return True


def _parquet_bytes(table: Path) -> int:
    """About the size of a table in memory; 0 for one that is not all Parquet."""
    from odcl.data.tables import is_csv, is_parquet

    if table.is_dir():
        files = [f for f in table.iterdir() if not f.name.startswith((".", "_"))]
        if any(map(is_csv, files)) or not any(map(is_parquet, files)):
            return 0
    elif not (table.is_file() and is_parquet(table)):
        return 0
    from odcl.engines.dask.table import table_bytes

    return table_bytes(table)


def _is_small(table: Any) -> bool:
    """Is a table on this disk done with before workers have started?"""
    from odcl.engines.dask.table import table_bytes

    return "://" not in str(table) and table_bytes(table) <= SMALL


def _memory() -> int:
    import os

    if not hasattr(os, "sysconf"):  # not told on this system: nobody is moved to pieces
        return 2**62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def _working(options: Namespace, beside: Any) -> Iterator[tuple[Cluster, Address]]:
    """A cluster, and a folder for what is needed meanwhile; both are gone at the end."""
    from odcl.engines.dask.address import Address
    from odcl.engines.dask.cluster import connected, local_cluster, this_process

    out = Address.of(beside)
    parent = Address.of(options.work) if options.work else Address(out.text.rsplit("/", 1)[0])
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
        if options.scheduler is not None:
            cluster = connected(options.scheduler)
        elif options.workers is None and not options.dashboard and _is_small(options.table):
            cluster = this_process()
        else:
            cluster = local_cluster(options.workers, dashboard=options.dashboard)
        with cluster as own:
            if own.started:
                say(own.started, options)
            if own.dashboard and (options.dashboard or options.scheduler):
                say(f"dashboard: {own.dashboard}", options)
            yield own, work


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


def fit(options: Namespace, settings: dict[str, Any]) -> None:
    """``odcl fit`` of a table in pieces."""
    from odcl.cli.fit import estimator_of
    from odcl.data.roles import Roles, check_columns
    from odcl.data.source import dropped_with, guess_loss, task_of
    from odcl.data.stacking import InUse
    from odcl.engines.dask.round import settled
    from odcl.engines.dask.table import table_files
    from odcl.estimators.scattered import fit_pieces
    from odcl.report.text import groups_text
    from odcl.runs.compare import NO_ROW_OUT, compare_pieces
    from odcl.runs.folder import write_pieces

    with _working(options, options.out) as (cluster, work), watched(options) as progress:
        progress.stage("opening the table")
        files = table_files(options.table, cluster)
        names = files.names
        features, drop, categorical = opt.named_columns(options, names)
        fixed = (options.user, options.target, *([options.time] if options.time else ()))
        in_use = InUse(fixed, features or None, drop, categorical)
        check_columns(in_use.named, names)
        table = files.table(cluster, columns=in_use)
        if options.time is not None:
            named = (options.user, options.target, features or None)
            drop = dropped_with(options.time, drop, names, *named)
        loss = options.loss or "auto"
        if loss == "auto":
            there = [name for name in names if name == options.target]
            loss = guess_loss(_typed(table.pieces[0].read(there), table.schema), options.target)
        roles = Roles.of(
            names,
            user=options.user,
            target=options.target,
            features=features or None,
            drop=drop,
            categorical=categorical,
            missing=options.missing or opt.MISSING[0],
            task=task_of(loss),
        )
        roles = settled(table, roles, cluster)
        model = estimator_of(loss, roles, roles.categorical, settings)
        found = fit_pieces(
            model,
            table,
            roles,
            cluster,
            work,
            (work / "users").make(),
            progress=progress,
        )
        notices = _notices(found, roles, guessed=(options.loss or "auto") == "auto")
        comparison = None
        if options.holdout.share > 0:
            progress.stage("comparing on held-out rows")
            comparison = compare_pieces(
                *(found, table, cluster, options.holdout.share, int(options.seed)),
                time=options.time,
            )
            if comparison is None:
                notices.append(NO_ROW_OUT)
        progress.stage("writing")
        table.check_unchanged(cluster)
        run = write_pieces(
            *(found, table.name, notices, options.out),
            comparison=comparison,
            holdout=str(options.holdout),
            command=command_of(options),
            force=options.force,
        )
    done = found.finished
    groups = groups_text(done.sizes, done.rows, found.model.labels_, found.model.users_)
    tell_run(found.model, run, found.uploads.n_users, groups, options)


def _typed(table: Any, schema: Any) -> Any:
    """The first piece with categories as the files have them."""
    import pyarrow as pa

    for at, name in enumerate(table.column_names):
        if pa.types.is_dictionary(schema.field(name).type):
            table = table.set_column(at, name, table[at].dictionary_encode())
    return table


def _notices(found: ScatteredFit, roles: Any, *, guessed: bool) -> list[str]:
    """Everything odd about a table that the fit took as it is."""
    from odcl.data.notices import about_columns, about_gaps, about_users
    from odcl.server.columns import unusual_uploads

    summary = found.summary
    gaps = {name: gap.rows for name, gap in summary.gaps.items()}
    lines = about_gaps(roles, summary.rows - summary.usable, gaps, roles.missing)
    lines += about_users(found.uploads.single)
    model = found.model
    lines += about_columns(
        found.job.schema, summary.spread, model.scaling_, standardize=model.method_.standardize
    )
    goal = "" if roles.task == "classification" else roles.target
    sample = model.uploads_
    lines += unusual_uploads(sample, model.scaling_, [*model._units], goal, sample.users)
    values = sorted(summary.targets)
    if guessed and roles.task == "regression" and summary.whole and values:
        if len(values) == 2:
            lines.append(f"{roles.target!r} has two values: for classes say --loss logistic")
        elif values[0] == 0:
            text = f"{roles.target!r} holds whole numbers from 0 on: for counts say --loss poisson"
            lines.append(text)
    return lines


# -- predict ---------------------------------------------------------------------------------------


def predict(options: Namespace) -> None:
    """``odcl predict`` of a table in pieces: a folder of Parquet files, in the table's order."""
    from odcl.cli.predict import wishes_of
    from odcl.data.notices import about_strangers
    from odcl.data.roles import check_columns
    from odcl.data.stacking import InUse
    from odcl.data.tables import is_csv, is_parquet
    from odcl.engines.dask.address import Address
    from odcl.engines.dask.predict import predict_pieces
    from odcl.engines.dask.table import table_files
    from odcl.errors import count
    from odcl.runs.folder import open_run

    if options.out is None:
        raise opt.UsageError("--engine dask writes a folder: name it with --out.", "odcl predict")
    if is_csv(options.out) or is_parquet(options.out):
        text = f"--engine dask writes a folder of Parquet files, and {options.out} names one file"
        raise opt.UsageError(f"{text}: name a folder, such as predictions.", "odcl predict")
    model, schema = open_run(options.run)
    with (
        _folder(options) as out,
        _working(options, options.out) as (cluster, work),
        watched(options) as progress,
    ):
        progress.stage("opening the table")
        files, wanted = table_files(options.table, cluster), (schema.user, *schema.features)
        check_columns(wanted, files.names)
        table = files.table(cluster, columns=InUse(wanted, ()))
        found = predict_pieces(
            *(model, schema, table, wishes_of(options), cluster, work, Address.of(out)),
            stage=progress.stage,
            told=progress.advance,
        )
        table.check_unchanged(cluster)
    if found.left_out:
        say(f"{count(found.left_out, 'row')} left out for want of a value", options)
    for text in about_strangers(found.strangers):
        say(text, options)
    written = count(len(found.files), "file")
    say(f"{count(found.rows, 'row')} written to {written} in {options.out}", options)


@contextmanager
def _folder(options: Namespace) -> Iterator[Any]:
    """The folder of the answer, which appears whole; an address is written as it comes."""
    from odcl.engines.dask.address import Address
    from odcl.files import atomic_folder

    if "://" in str(options.out):
        place = Address.of(options.out)
        if place.kind() and not options.force:
            raise ValueError(f"{place} exists already: say --force, or name another place.")
        try:
            yield place.make().text
        except BaseException:
            place.remove()
            raise
        return
    own = [file.name for file in options.out.glob("part-*.parquet")] if options.force else None
    with atomic_folder(options.out, force=options.force, own=own) as folder:
        yield folder
