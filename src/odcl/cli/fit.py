"""``odcl fit``: from a table to groups, a model for every user, and what they are worth."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from odcl.cli import parser as opt
from odcl.cli.console import open_page, say, watched

if TYPE_CHECKING:
    from odcl.runs.settings import Engine, FitSettings

METHOD: opt.Options = {
    "--loss NAME": (
        opt.one_of(opt.LOSSES),
        "squared (numbers), huber (numbers with outliers), poisson (counts), logistic or "
        "multinomial (classes), or auto: classes for text and true/false, else squared "
        "[default: auto]",
    ),
    "--clusters K": "number of groups; auto: found from the data, with how users of a group "
    "differ; auto:K: at most K (auto:1: no groups, users who differ gradually); convex: the "
    "users' models by convex clustering (the paper's ODCL-CC); elbow or silhouette: by "
    "K-means++, with K by that rule; kmeans:K, spectral:K, gradient:K: K groups of models by "
    "that method [default: auto]",
    "--l2 PENALTY": "penalty on coefficients, in standardised units [default: 0; for classes 0.01]",
    "--no-intercept": "fit no intercept",
    "--paper": "the paper's setting: K-means++ (number by silhouette unless --clusters is given), "
    "plain mean, no standardisation",
}
FIT = opt.Command(
    "TABLE --user COLUMN --target COLUMN --out RUN [options]",
    """\
Find the hidden groups in a table, and fit a model for every user.

A user is whatever a column names: a store, a sensor, a patient. The closing
table compares, on rows held out of each user's data, one model per user
(ridge), one model for all, one with an intercept per user, the mixed model
without groups, the paper's setting and odcl. Where another is better, it says
so, with the option that gives it.

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
shows 2,000 users, drawn by their ids.""",
    {
        "the table": {
            "table": (opt.address, opt.TABLE_HELP),
            **opt.table_columns(needed=True),
            **opt.missing("error"),
        },
        "the method (the defaults suit most tables)": {
            **METHOD,
            "--robust": "no few users can bend others' models: nobody counts more than is usual, "
            "and users who fit no group take no part and are named; slower",
            "--no-short-terms": "users with fewer rows than parameters (a curve has up to five) "
            "send what the average of their rows says, which does not give the rows away; lines "
            "only, but for --curves",
            **opt.CURVES,
        },
        "the run": {
            "--out RUN": "folder for the results (required)",
            **opt.FORCE,
            "--holdout SHARE": opt.defaulting(
                opt.holdout,
                "0.2",
                "share of each user's rows kept back for the comparison; 0: no comparison; last, "
                "or last:SHARE: its last rows by --time. The models in RUN are fitted on all rows",
            ),
            "--time COLUMN": "column that orders the rows of a user [default: none]",
            "--open": "show the report in the browser",
            **opt.SEED,
            **opt.jobs(1, "threads for the local models"),
            **opt.QUIET,
        },
        "beyond memory": opt.ENGINE,
    },
)


def run_fit(options: Namespace) -> None:
    from odcl.runs.fit import fit, open_source
    from odcl.runs.run import PAGE, check_place

    settings_of(options)  # what is wrong about them is said at once
    check_place(options.out, force=options.force)
    engine = engine_of(options)
    tell = partial(say, options=options)
    with ExitStack() as stack:
        place = None
        if engine.takes_pieces(options.table, tell):
            from odcl.runs.pieces import workplace

            place = stack.enter_context(workplace(engine, options.table, options.out, tell))
        progress = stack.enter_context(watched(options))
        progress.stage("opening the table")
        table, names = open_source(options.table, place)
        found = fit(
            table,
            settings_of(options, names),
            place=place,
            progress=progress,
            command=("odcl", *(word for word in options.arguments if word != "--force")),
        )
        progress.stage("writing")
        found.save(options.out, force=options.force)
    for text in found.notices:
        tell(text)
    print(found.text(shell=True))
    out, page = shlex.quote(str(options.out)), options.out / PAGE
    print(f"Report: {shlex.quote(str(page))}")
    print(
        f"Models of all users: {out}/users"
        if place
        else f"Models (fitted on all rows) and groups: {out}"
    )
    print(f"Next: odcl predict {out} TABLE")
    if options.open:
        open_page(page)


# -- what the options mean -------------------------------------------------------------------------


def settings_of(options: Namespace, columns: Sequence[str] = ()) -> FitSettings:
    """What the options ask of a table with these columns; commands have some of them."""
    from odcl.data.roles import ColumnOptions
    from odcl.method import Method
    from odcl.runs.settings import FitSettings, HoldOut

    held, time = HoldOut.of(getattr(options, "holdout", 0)), getattr(options, "time", None)
    if (time is None) == held.last:
        raise opt.UsageError("--holdout last and --time COLUMN go together.", "odcl fit")
    changes = {
        "clusterer": getattr(options, "clusters", None),
        "short_terms": False if getattr(options, "no_short_terms", False) else None,
        "robust": getattr(options, "robust", False) or None,
    }
    named = (options.features, options.drop, options.categorical)
    features, drop, categorical = (opt.column_names(names, columns) for names in named)
    curves = opt.column_names(options.curves, columns)
    periodic = opt.periods(options.periodic, columns, f"odcl {options.command}")
    if options.no_curves and (curves or periodic):
        words = "--no-curves goes with neither --curves nor --periodic."
        raise opt.UsageError(words, f"odcl {options.command}")
    return FitSettings(
        columns=ColumnOptions(
            user=options.user,
            target=options.target,
            features=features or None,
            drop=drop,
            categorical=categorical,
            missing=options.missing or opt.MISSING[0],
            time=time,
        ),
        loss=options.loss or "auto",
        method=Method.of("paper" if getattr(options, "paper", False) else "default", **changes),
        l2=getattr(options, "l2", None),
        intercept=not getattr(options, "no_intercept", False),
        curves=not options.no_curves and (list(curves) or "auto"),
        periodic=periodic or None,
        holdout=held,
        seed=options.seed,
        n_jobs=getattr(options, "jobs", None),
    )


def engine_of(options: Namespace) -> Engine:
    """The engine that the options ask for."""
    from odcl.runs.settings import Engine

    name = options.engine or "auto"
    if name == "memory" and (options.scheduler is not None or "://" in str(options.table)):
        what = "--scheduler" if options.scheduler is not None else "an address"
        raise opt.UsageError(f"--engine memory and {what} do not go together.", "odcl")
    return Engine(name, options.scheduler, options.workers, options.work)
