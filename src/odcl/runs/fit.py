"""From a table to a run: compare on rows held out, fit all rows, say what is odd about them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl.data import notices
from odcl.data.columns import as_names
from odcl.data.federation import Federation
from odcl.data.notices import TableCheck
from odcl.data.roles import ColumnOptions, is_dask_frame
from odcl.data.source import TableSource, read_column_names, read_source, release_memory
from odcl.diagnose.verdict import scattered
from odcl.errors import InputError, count
from odcl.estimators.settings import check_several
from odcl.evaluate.scores import Comparison
from odcl.local.fit import LocalModels
from odcl.method import Method
from odcl.report.progress import Silent
from odcl.runs.compare import COMPARED, NO_ROW_OUT, compare_users
from odcl.runs.evidence import Evidence
from odcl.runs.run import GroupSizes, Run, group_sizes
from odcl.runs.settings import SHARE, FitSettings, HoldOut
from odcl.server.columns import overdispersion

if TYPE_CHECKING:
    from odcl.estimators.base import ODCLEstimator
    from odcl.runs.pieces import Workplace


def fit_table(
    source: Any,
    *,
    user: str,
    target: str,
    features: str | Iterable[str] | None = None,
    drop: str | Iterable[str] = (),
    categorical: str | Iterable[str] = (),
    missing: str = "error",
    loss: str = "auto",
    clusters: Any = None,
    method: str | Method = "default",
    l2: float | None = None,
    intercept: bool = True,
    curves: Any = "auto",
    periodic: Mapping[str, float] | None = None,
    holdout: Any = SHARE,
    time: str | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
) -> Run:
    """Fit a table as ``odcl fit`` does: groups, a model for every user, and what they are worth.

    ``source`` is a path (CSV, Parquet, or a folder of them), a pandas or Polars frame, or an Arrow
    table; ``user`` and ``target`` are columns of it. The other settings are those of the command:
    ``method`` is "default", "paper" or a :class:`Method`, ``clusters`` a number or a rule
    ("auto:1", "convex"), ``curves`` the columns that may act in curves (False: none), ``periodic``
    those that begin anew ({"hour": 24}), ``holdout`` the share of each user's rows that methods are
    compared on (0: no comparison; "last" or "last:0.3": the last rows by the column ``time``).

    Print the run for what the command prints; ``run.model`` is the fitted estimator.
    """
    if is_dask_frame(source):
        raise InputError(
            "fit_table takes files and frames in memory, and this is a Dask frame: say "
            "ODCLRegressor(users='store').fit(frame, 'sales'), or write it to Parquet for "
            "`odcl fit --engine dask`."
        )
    held = HoldOut.of(holdout)
    if (time is None) == held.last:
        raise ValueError("holdout='last' and time='COLUMN' go together.")
    settings = FitSettings(
        columns=ColumnOptions(
            user=user,
            target=target,
            features=None if features is None else as_names(features),
            drop=as_names(drop),
            categorical=as_names(categorical),
            missing=missing,
            time=time,
        ),
        loss=loss,
        method=Method.of(method, clusterer=clusters),
        l2=l2,
        intercept=intercept,
        curves=curves,
        periodic=periodic,
        holdout=held,
        seed=seed,
        n_jobs=n_jobs,
    )
    return fit(source, settings)


def open_source(table: Any, place: Workplace | None) -> tuple[Any, Sequence[str]]:
    """A table that :func:`fit` takes, and the names of its columns."""
    if place is None:
        return table, read_column_names(table)
    from odcl.engines.dask.table import table_files

    files = table_files(table, place.cluster)
    return files, files.names


def fit(
    source: Any,
    settings: FitSettings,
    *,
    place: Workplace | None = None,
    progress: Silent | None = None,
    command: Sequence[str] = (),
    keep_rows: bool = False,
) -> Run:
    """Fit a table in memory, or in pieces at a ``place``, and compare methods on rows held out.

    ``command``: the words of the shell that give the run again. ``keep_rows`` leaves the scaled
    rows in the run; without it they are let go, and scaled where they are.
    """
    shown = Silent() if progress is None else progress
    if place is not None:
        from odcl.runs.pieces import fit_in_pieces

        run = fit_in_pieces(source, settings, place, shown, shell=bool(command))
    else:
        shown.stage("reading the table")
        run = _in_memory(source, settings, shown, keep_rows=keep_rows, shell=bool(command))
    return replace(run, evidence=replace(run.evidence, command=tuple(command)))


def _in_memory(
    table: Any, settings: FitSettings, shown: Silent, *, keep_rows: bool, shell: bool
) -> Run:
    source = read_source(table, settings.columns, settings.loss)
    federation, schema = source.encoded.federation(), source.schema
    check_several(federation.n_users)
    time = None if source.time is None else source.encoded.by_user(source.time)
    row_numbers = source.encoded.by_user(source.encoded.rows)
    source = source.without_rows()
    release_memory()
    comparison = None
    if settings.holdout.share > 0:
        shown.stage("comparing on held-out rows", min(federation.n_users, COMPARED))
        comparison = compare_quietly(
            settings.estimator(source.loss, [*schema.levels]),
            federation,
            settings,
            time=time,
            schema=schema,
            progress=shown.advance,
        )
    shown.stage("fitting all rows", federation.n_users)
    check, labelled = notices.check_rows(schema, federation, row_numbers), federation
    if schema.classes is not None:
        labelled = federation.with_y(schema.labels(federation.y.astype(int)))
    model = settings.estimator(source.loss, [*schema.levels])
    model.fit_federation(labelled, schema=schema, progress=shown.advance, in_place=not keep_rows)
    lines = _notices(source, check, federation, model)
    if settings.loss == "auto" and source.loss == "squared":
        values = np.unique(federation.y)
        whole = bool((values == np.floor(values)).all())
        some = values.tolist() if whole else []
        lines += other_loss(schema.target, some, len(federation.y), shell=shell)
    if settings.holdout.share > 0 and comparison is None:
        lines.append(NO_ROW_OUT)
    rows = None
    if keep_rows:
        rows = federation.with_X(model.scaling_.apply(federation.X))
    else:
        model._forget_rows()
    table_facts: dict[str, Any] = {"name": source.name, "rows": int(model.n_rows_.sum())}
    found = Evidence.of(
        model.fitted_,
        comparison,
        table=table_facts | ({} if source.digest is None else {"sha256": source.digest}),
        holdout=str(settings.holdout),
        notices=tuple(lines),
    )
    result = model.result_
    how = {"combined": result.step.combined, "last_step": result.received.how}
    return Run(model, found, GroupSizes(*group_sizes(model.fitted_)), "memory", **how, rows=rows)


def compare_quietly(
    estimator: ODCLEstimator, federation: Federation, settings: FitSettings, **more: Any
) -> Comparison | None:
    """The comparison without its warnings: the fit of all rows says what is to be said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare_users(estimator, federation, settings.holdout.share, settings.seed, **more)


# -- what is odd about a table -------------------------------------------------------------------


def _notices(
    source: TableSource, check: TableCheck, rows: Federation, model: ODCLEstimator
) -> list[str]:
    """Everything odd about a table that the fit took as it is."""
    schema = source.schema
    lines = notices.about_values(schema, source.encoded, schema.missing)
    lines += notices.about_users(check.single_rows, int(check.single_class.sum()))
    lines += _local_fits(model.result_.local, check, classes=schema.classes is not None)
    lines += notices.about_columns(
        schema, check.spread, model.scaling_, standardize=model.method_.standardize
    )
    lines += check.unusual + model.fitted_.outlier_lines + notices.about_repeated(check)
    few = rows.some_users(notices.MOST_LOOKED_AT)
    scatter = scattered(overdispersion(model.result_.uploads.take(few)))
    return [*lines, scatter.rstrip(".")] if scatter else lines


def _local_fits(local: LocalModels, check: TableCheck, *, classes: bool) -> list[str]:
    """Users whose own rows have no finite model, or whose solver stopped early."""
    if local.solved is None:  # nobody needed a model alone
        return []
    lines = []
    lost = int((local.prior & ~check.single_class).sum())
    if lost:
        what = "separable or short of a class" if classes else "no counts"
        lines.append(
            f"{count(lost, 'user')} without a finite model alone ({what}), given a small prior"
        )
    stopped = int((~local.converged).sum())
    if stopped:
        lines.append(f"{count(stopped, 'user')} whose local fit did not converge")
    return lines


def other_loss(target: str, values: Sequence[float], n_rows: int, *, shell: bool) -> list[str]:
    """Advice where ``values`` of the target, ascending, look like classes or counts."""
    say = "--loss {}" if shell else "loss={!r}"
    if len(values) == 2 and n_rows > 10:
        return [f"{target!r} has two values: for classes say {say.format('logistic')}"]
    if len(values) > 2 and values[0] == 0:
        option = say.format("poisson")
        return [f"{target!r} holds whole numbers from 0 on: for counts say {option}"]
    return []
