"""From a table to a run: compare on rows held out, fit all rows, say what is odd about them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from odcl._typing import Floats
from odcl.data import notices
from odcl.data.columns import as_names
from odcl.data.federation import Federation, check_owners, hold_out
from odcl.data.notices import TableCheck
from odcl.data.roles import ColumnOptions, is_dask_frame
from odcl.data.schema import TableSchema
from odcl.data.source import TableSource, read_column_names, read_source, release_memory
from odcl.diagnose.verdict import scattered
from odcl.errors import InputError, count, number
from odcl.estimators.attributes import check_several
from odcl.estimators.base import ODCLEstimator
from odcl.evaluate import Comparison, keep_every_class, own_intercepts, own_models
from odcl.evaluate import compare as score
from odcl.fitted.value import InputColumns
from odcl.local.fit import LocalModels
from odcl.local.predict import predicted_rows
from odcl.method import Method
from odcl.runs.evidence import Evidence
from odcl.runs.run import GroupSizes, Run, group_sizes
from odcl.runs.settings import SHARE, FitSettings, HoldOut, Silent
from odcl.server.columns import overdispersion

if TYPE_CHECKING:
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
    robust: bool = False,
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
    those that begin anew ({"hour": 24}), ``robust`` sets users aside who would bend others' models,
    and ``holdout`` is the share of each user's rows that methods are compared on (0: no comparison;
    "last" or "last:0.3": the last rows by the column ``time``).

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
        method=Method.of(method, clusterer=clusters, robust=robust or None),
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
        some = values.tolist() if whole or len(values) == 1 else []
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
    lines += notices.about_classes(schema.target, check.classes)
    lines += _local_fits(model.result_.local, check, classes=schema.classes is not None)
    lines += notices.about_columns(
        schema, check.spread, model.scaling_, standardize=model.method_.standardize
    )
    lines += check.unusual + model.fitted_.outlier_lines + check.repeated
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
    if len(values) == 1:
        return [f"{target!r} is {number(values[0])} in every row: there is nothing to predict"]
    if len(values) == 2 and n_rows > 10:
        return [f"{target!r} has two values: for classes say {say.format('logistic')}"]
    kinds = {"counts": "poisson"} if len(values) > 2 and values[0] == 0 else {}
    if 2 < len(values) <= MOST_CLASSES:
        kinds["classes"] = "multinomial"
    told = ", ".join(f"for {kind} say {say.format(loss)}" for kind, loss in kinds.items())
    what = "whole numbers from 0 on" if "counts" in kinds else f"{len(values)} whole numbers"
    return [f"{target!r} holds {what}: {told}"] * bool(told)


# -- what it is worth on rows held out -------------------------------------------------------------


def compare(
    estimator: ODCLEstimator,
    X: Any,
    y: Any,
    users: Any = None,
    *,
    holdout: float = 0.2,
    seed: int = 0,
) -> Comparison:
    """Hold a share of each user's rows out and score an estimator's settings beside its rivals.

    Rivals: one model per user (ridge), one for all, one with an intercept per user, the mixed
    model without groups, the paper's setting, odcl's default and, where that has curves, the same
    on lines; the first three are on lines. ``print`` the answer for the table and a sentence on who
    gained; ``.scores`` has a number per method and user. ``estimator`` is not changed, and need not
    be fitted.
    """
    if not 0 < holdout < 1:
        raise ValueError(f"holdout={holdout!r} is a share of each user's rows: above 0, below 1.")
    if is_dask_frame(X):
        raise TypeError(
            "A comparison fits each rival in memory, and a Dask frame may not fit there: give a "
            "frame of some users, such as X[X.store.isin(ids)].compute(), or `odcl fit TABLE "
            "--engine dask`, which compares on users drawn by their ids."
        )
    one = clone(estimator)
    rows, y, ids, _, design = one._checked_rows(X, y, users)
    if ids is None:
        raise ValueError("A comparison is of users: say whose rows these are, with users=...")
    federation = Federation.from_arrays(rows, one._encode(y)[0], check_owners(ids, len(rows)))
    found = compare_users(estimator, federation, holdout, seed, columns=one._seen_columns(design))
    if found is None:
        raise ValueError(f"There is {NO_ROW_OUT}.")
    return found


COMPARED = 2_000  # users at most that methods are compared on
MOST_CLASSES = 10  # whole numbers of a target that may be classes
NO_ROW_OUT = "no comparison: no row can be held out, as each user and each class keeps one"


def compare_users(
    estimator: ODCLEstimator,
    federation: Federation,
    holdout: float,
    seed: int,
    *,
    time: Floats | None = None,
    schema: TableSchema | None = None,
    columns: InputColumns | None = None,
    progress: Callable[[int], None] | None = None,
) -> Comparison | None:
    """The comparison of rows grouped by user; of many users, on some drawn by their ids.

    Classes are coded from 0 on. None where no row can be held out. ``time`` (n_rows,): a user's
    last rows are.
    """
    few, total = federation.some_users(COMPARED), federation.n_users
    if len(few) < total:
        time = None if time is None else time[federation.rows_of(few)]
        federation = federation.take(few)
    out = hold_out(federation, holdout, seed, time=time)
    if hasattr(estimator, "predict_proba"):
        out = keep_every_class(out, federation)
    if not out.any():
        return None
    kept = federation.select_rows(~out)

    def fitted(
        method: Method, progress: Callable[[int], None] | None = None, *, curves: bool = True
    ) -> Any:
        model = clone(estimator).set_params(method=method, clusterer="auto")
        if not (curves and method.clusterer.uses_terms):
            model.set_params(curves=False, periodic=None)
        return model.fit_federation(kept, schema=schema, columns=columns, progress=progress)

    asked = estimator._method
    papers = asked == Method.of("paper", clusterer=asked.clusterer)
    ours = "odcl" if asked == Method() else "paper" if papers else "asked"
    settings = {"odcl": Method(), "paper": Method.paper(), ours: asked}
    models = {name: fitted(method, progress) for name, method in settings.items()}
    plain = models["odcl"]
    alike = plain if plain.n_clusters_ == 1 else fitted(Method("auto:1"))
    lines = fitted(Method(), curves=False) if plain.risk_.curves else plain
    l2, theta = own_models(kept.with_X(lines.scaling_.apply(kept.X)), lines.risk_)
    methods = {"local": _by(lines, theta), "pooled": _by(lines, lines.pooled_theta_[None])}
    own = own_intercepts(kept, plain.risk_.loss.name) if plain.fit_intercept else None
    if own is not None:
        methods["intercepts"] = own
    methods["mixed"] = _by(alike, alike.theta_)
    if lines is not plain:
        models["lines"] = lines
    last = [name for name in ("paper", "lines", "asked", "odcl") if name in models]
    methods |= {name: _by(models[name], models[name].theta_) for name in last}
    found = replace(score(federation, out, methods, plain.risk_.loss), ours=ours, l2=l2)
    if len(few) == total or found.held is None:
        return found
    held = replace(found.held, users=few[found.held.users], owner=few[found.held.owner])
    return replace(found, held=held, of_users=total)


def _by(model: ODCLEstimator, theta: Floats) -> Callable[[Any, Any], Any]:
    """Predictions of a model whose users have these parameters; one row serves everybody."""

    def predict(rows: Any, who: Any) -> Any:
        at = who if len(theta) > 1 else np.zeros(len(rows), dtype=np.intp)
        V = model.covariance_ if theta is model.theta_ else None
        return predicted_rows(rows, theta, at, model.risk_, model.scaling_, V)

    return predict
