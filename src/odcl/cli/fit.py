"""``odcl fit``: from a table to groups, a model for every user, and what they are worth."""

from __future__ import annotations

import warnings
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import command_of, tell_run, watched

if TYPE_CHECKING:
    from odcl.data.federation import Federation
    from odcl.data.notices import TableCheck
    from odcl.data.source import Source
    from odcl.local.fit import LocalModels
    from odcl.method import Method
    from odcl.report.progress import Silent
    from odcl.runs.folder import FittedTable

_ABOUT = """\
Find the hidden groups in a table, and fit a model for every user.

A user is whatever a column names: a store, a sensor, a patient. The closing
table compares, on rows held out of each user's data, one model per user
(ridge), one model for all, one with an intercept per user, the mixed model
without groups, the paper's setting and odcl. Where another is better, it says
so, with the option that gives it."""

_EXAMPLES = """\
examples:
  odcl fit sales.csv --user store --target sales --out run
  odcl fit visits.parquet --user patient --target ill --loss logistic \\
      --categorical ward,sex --drop date --missing mean --out run
  odcl fit sales.csv --user store --target sales --paper --out run-paper
  odcl fit sales.csv --user store --target sales --out run \\
      --holdout last --time day
  odcl fit sales/ --user store --target sales --engine dask --out run

RUN holds report.html, the page for people (`odcl report` makes it again), the
models (models.safetensors, model.json), each user's group (assignment.csv),
each group's model in the table's units (groups.csv), report.json, schema.json,
and what the page rests on (evidence.json, evidence.safetensors).
Its files are checked together: copy a table out of RUN before you edit it. Text
that a spreadsheet would run (=1+1) is written with a quote before it ('=1+1) in
CSV files, and read back without. In Python:
ODCLRegressor.load("run").predict(table), with the same columns in any order;
ODCLClassifier for classes. A RUN of a table in pieces (--engine dask) has
users/ with each user's group and model in place of assignment.csv; its page
shows 2,000 users, drawn by their ids."""


METHOD = {
    "--loss NAME": (
        opt.one_of(opt.LOSSES),
        "squared (numbers), huber (numbers with outliers), poisson (counts), logistic or "
        "multinomial (classes), or auto: classes for text and true/false, else squared "
        "[default: auto]",
    ),
    "--clusters K": (
        opt.clusters,
        "number of groups; auto: found from what the users' rows say, with how users of a group "
        "differ; auto:K: at most K (auto:1: no groups, users who differ gradually); mixture: found "
        "from the users' models and their noise; convex: by convex "
        "clustering (the paper's ODCL-CC); elbow or silhouette: chosen for K-means++ by that "
        "rule; kmeans:K, spectral:K, gradient:K: K groups by that method [default: auto]",
    ),
    "--combine HOW": (
        opt.one_of(opt.COMBINE),
        "how a group's models become one: precision (by what each user's rows tell), mean "
        "(the paper), samples (by number of rows) [default: precision]",
    ),
    "--l2 NUMBER": (
        opt.at_least_0,
        "penalty on coefficients, in standardised units [default: 0; for classes 0.01]",
    ),
    "--no-intercept": "fit no intercept",
    "--paper": "the paper's setting: K-means++ (number by silhouette unless --clusters is given), "
    "plain mean, no refit, no standardisation",
}
_MORE = {
    "--refit HOW": (
        opt.refit,
        "what a user makes of its group's model: evidence or cv (drawn to it as far as the "
        "data say), none (takes it), or a number (strength of the pull) [default: evidence]",
    ),
    "--curvature WHAT": (
        opt.one_of(opt.CURVATURE),
        "what users would send of their Hessian: full, none; auto: full up to 100 parameters "
        " [default: auto; with --paper none]",
    ),
    "--no-standardize": "leave features in their own units instead of a common scale",
    "--no-short-terms": "users with fewer rows than parameters send what the average of their rows "
    "says, which does not give the rows away",
}


def add(some: Any) -> opt.Parser:
    usage = "TABLE --user COLUMN --target COLUMN --out RUN [options]"
    parser = opt.command(some, "fit", usage, _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("the table")
    group.add_argument("table", metavar="TABLE", type=opt.address, help=opt.TABLE_HELP)
    opt.table_columns(group, required=True)
    opt.missing(group, "error")
    group = parser.add_argument_group("the method (the defaults suit most tables)")
    opt.add_options(group, METHOD | _MORE)
    run = parser.add_argument_group("the run")
    opt.path(run, "--out", "RUN", "folder for the results (required)", required=True)
    opt.force(run)
    run.add_argument(
        "--holdout",
        metavar="SHARE",
        type=opt.holdout,
        default=opt.HoldOut(0.2),
        help="share of each user's rows kept back for the comparison; 0: no comparison; last, or "
        "last:SHARE: its last rows by --time. The models in RUN are fitted on all rows "
        "[default: %(default)s]",
    )
    text = "column that orders the rows of a user [default: none]"
    opt.add_options(run, {"--time COLUMN": (str, text), "--open": "show the report in the browser"})
    opt.seed(run)
    opt.jobs(run, 1, "threads for the local models")
    opt.quiet(run)
    opt.engine(parser)
    return parser


def run(options: Namespace) -> None:
    from odcl.artifact.folder import check_artifact_place
    from odcl.cli import pieces
    from odcl.report.text import group_table
    from odcl.runs.folder import write_run

    if (options.time is None) == options.holdout.last:
        raise opt.UsageError("--holdout last and --time COLUMN go together.", "odcl fit")
    method = method_of(options)
    check_artifact_place(options.out, force=options.force)
    if pieces.chosen(options):
        pieces.fit(options, estimator_settings(options, method))
        return
    with watched(options) as progress:
        progress.stage("reading the table")
        settings = estimator_settings(options, method)
        fitted = fit_source(  # which alone holds the rows, and lets them go
            read_named(options.table, options, time=options.time),
            settings,
            options.holdout,
            options.seed,
            progress,
            handed_over=True,
        )
        progress.stage("writing")
        found = write_run(fitted, options.out, force=options.force, command=command_of(options))
    model = fitted.model
    groups = group_table(model.labels_, model.n_rows_, model.users_)
    tell_run(model, found, len(model.users_), groups, options)


# -- what the options mean -------------------------------------------------------------------------


def method_of(options: Namespace) -> Method:
    """The method that ``--paper``, ``--clusters``, ``--combine`` and others describe."""
    from odcl.method import Method

    changes = {
        "clusterer": options.clusters,
        "combine": options.combine,
        "refit": getattr(options, "refit", None),
        "curvature": getattr(options, "curvature", None),
        "standardize": False if getattr(options, "no_standardize", False) else None,
        "short_terms": False if getattr(options, "no_short_terms", False) else None,
    }
    return Method.of("paper" if options.paper else "default", **changes)


def estimator_settings(options: Namespace, method: Method) -> dict[str, Any]:
    """Arguments of the estimator."""
    settings = {
        "method": method,
        "fit_intercept": not options.no_intercept,
        "random_state": options.seed,
        "n_jobs": getattr(options, "jobs", None),
    }
    return settings if options.l2 is None else settings | {"l2": options.l2}


def read_named(path: Path, options: Namespace, *, time: str | None = None) -> Source:
    """Read a table whose columns the command line names."""
    from odcl.data.source import read_source
    from odcl.data.tables import read_column_names

    columns = read_column_names(path)
    features, drop, categorical = opt.named_columns(options, columns)
    return read_source(
        path,
        user=options.user,
        target=options.target,
        features=features or None,
        drop=drop,
        categorical=categorical,
        missing=options.missing or opt.MISSING[0],
        loss=options.loss or "auto",
        time=time,
    )


# -- the fit ---------------------------------------------------------------------------------------


def fit_source(
    source: Source,
    settings: dict[str, Any],
    held: opt.HoldOut,
    seed: int,
    progress: Silent,
    *,
    handed_over: bool = False,
) -> FittedTable:
    """Fit all rows; before that, with a share to hold out, compare methods on these rows.

    Rows that are ``handed_over`` are scaled where they are: nobody else looks at them afterwards.
    """
    from odcl.data.notices import check_rows
    from odcl.data.tables import release_memory
    from odcl.runs.compare import COMPARED, NO_ROW_OUT, compare_users
    from odcl.runs.folder import FittedTable

    federation, schema = source.encoded.federation(), source.schema
    if federation.n_users == 1:
        raise ValueError(
            "The table has one user, and groups need several. Check the column that names the "
            "user, or fit an ordinary model."
        )
    time = None if source.time is None else source.encoded.by_user(source.time)
    row_numbers = source.encoded.by_user(source.encoded.rows)
    source = source.without_rows()
    release_memory()
    comparison = None
    if held.share > 0:
        progress.stage("comparing on held-out rows", min(federation.n_users, COMPARED))
        rivals = estimator_of(source.loss, schema, schema.levels, settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit of all rows will say what is to be said
            comparison = compare_users(
                *(rivals, federation, held.share, seed),
                time=time,
                schema=schema,
                progress=progress.advance,
            )
    progress.stage("fitting all rows", federation.n_users)
    check, labelled = check_rows(schema, federation, row_numbers), federation
    if schema.classes is not None:
        labelled = federation.with_y(schema.labels(federation.y.astype(int)))
    model = estimator_of(source.loss, schema, schema.levels, settings)
    model.fit_federation(labelled, schema=schema, progress=progress.advance, given=handed_over)
    notices = _notices(source, check, federation, model)
    if source.guessed and source.loss == "squared":
        notices += _other_loss(federation, schema.target)
    if held.share > 0 and comparison is None:
        notices.append(NO_ROW_OUT)
    if handed_over:
        model._forget_rows()
    return FittedTable(source, model, comparison, notices, held)


def _notices(source: Source, check: TableCheck, rows: Federation, model: Any) -> list[str]:
    """Everything odd about a table that the fit took as it is."""
    from odcl.data import notices
    from odcl.diagnose.verdict import scattered
    from odcl.server.dispersion import overdispersion

    schema = source.schema
    lines = notices.about_values(schema, source.encoded, schema.missing)
    lines += notices.about_users(check.single_rows, int(check.single_class.sum()))
    lines += _local_fits(model.result_.local, check, classes=schema.classes is not None)
    lines += notices.about_columns(
        schema, check.spread, model.scaling_, standardize=model.method_.standardize
    )
    lines += check.unusual + notices.about_repeated(check)
    few = rows.some_users(notices.MOST_LOOKED_AT)
    scatter = scattered(overdispersion(model.result_.uploads.take(few)))
    return [*lines, scatter.rstrip(".")] if scatter else lines


def _local_fits(local: LocalModels, check: TableCheck, *, classes: bool) -> list[str]:
    """Users whose own rows have no finite model, or whose solver stopped early."""
    from odcl.errors import count

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


def _other_loss(federation: Federation, target: str) -> list[str]:
    """What numbers that look like classes or counts would rather be fitted by."""
    import numpy as np

    values = np.unique(federation.y)
    if (values != np.floor(values)).any():
        return []
    if len(values) == 2 and len(federation.y) > 10:
        return [f"{target!r} has two values: for classes say --loss logistic"]
    counts = [f"{target!r} holds whole numbers from 0 on: for counts say --loss poisson"]
    return counts if len(values) > 2 and values[0] == 0 else []


def estimator_of(loss: str, roles: Any, categorical: Any, settings: dict[str, Any]) -> Any:
    """The estimator that would be fitted to the table in Python; its columns have ``roles``."""
    from odcl.data.source import task_of
    from odcl.estimators import ODCLClassifier, ODCLRegressor

    kind = ODCLClassifier if task_of(loss) == "classification" else ODCLRegressor
    told = {"categorical": list(categorical) or None, "missing": roles.missing, **settings}
    return kind(loss=loss, users=roles.user, **told)
