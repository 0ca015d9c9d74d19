"""``odcl diagnose``: is one shot enough for this table, and if not, what is?"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import check_out_file, say, watched, write_answer
from odcl.cli.fit import METHOD, settings_of

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis, Drift
    from odcl.report.progress import Silent

# The diagnosis, the users' column, and notices about the table.
Found = tuple["Diagnosis | Drift", str, list[str]]

_ABOUT = """\
Tell whether one shot is enough for a table, and if not, what to do.

Looks at the users' models, of a run or of a table fitted as `odcl fit` does:
how noisy they are compared with the distances between groups, whether the
groups would be found again, which users are near a border or fit no group.
Begins with one of: one shot is enough; use precision combining; add refinement
rounds; collect more rows; there is no group structure, use one model; no
groups, users differ gradually; users do as well with models of their own; not
known. Where the models alone do not tell, a run's held-out rows decide."""

_EXAMPLES = """\
examples:
  odcl diagnose sales.csv --user store --target sales
  odcl diagnose run --out users.csv
  odcl diagnose run --table this-month.csv
  odcl diagnose sales.csv --user store --target sales --paper

A RUN keeps what its users uploaded (2,000 of them for a table in pieces) and is
diagnosed from that. With TABLE it is fitted again on the table's rows, with its
own columns and settings. That tells more about a run of --paper, whose users do
not send their noise.

--table asks another question: do the models still hold on new rows? Errors are
compared with those that the models promise, user by user and group by group.
The answer: the models hold; update some users; or refit."""


def add(some: Any) -> opt.Parser:
    """The command's options."""
    parser = opt.command(some, "diagnose", "RUN [TABLE] | TABLE [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument(
        "source", metavar="RUN|TABLE", type=Path, help="folder that `odcl fit` wrote, or a table"
    )
    group.add_argument("table", metavar="TABLE", type=Path, nargs="?", help=opt.TABLE_HELP)
    new = parser.add_argument_group("a table without a run")
    opt.table_columns(new)
    opt.add_options(new, METHOD)
    more = parser.add_argument_group("options")
    about = "CSV or Parquet file with one row per user: group, chance of belonging elsewhere"
    out = (Path, f"{about} [default: none]")
    force = "replace FILE if it exists"
    text = "new rows of RUN's users: do its models still hold? [default: none]"
    opt.path(more, "--table", "NEW", text, dest="new")
    opt.add_options(more, {"--out FILE": out, "--force": force})
    opt.missing(more, None)
    opt.seed(more)
    opt.quiet(more)
    return parser


def run(options: Namespace) -> None:
    from odcl.data.write import beside

    table = options.new or options.table or options.source
    check_out_file(options, run=options.source, table=table)
    if options.new is not None and options.table:
        raise opt.UsageError("--table NEW takes no TABLE beside it.", "odcl diagnose")
    with watched(options) as progress:
        progress.stage("reading the table")
        found, user, notices = _diagnosed(options, progress)
    for text in notices:
        say(text, options)
    print(found)
    if options.out is not None:
        columns = found.columns()
        write_answer(beside({user: columns.pop("user")}, columns), (), options)


def _diagnosed(options: Namespace, progress: Silent) -> Found:
    """Diagnose what the options name: a run from its uploads, or a table after a fit."""
    from odcl.artifact.manifest import MANIFEST

    if not options.source.exists():
        raise ValueError(f"There is no file or folder {options.source}.")
    if not (options.source / MANIFEST).exists() and not (options.source / "model.json").exists():
        return _of_table(options, progress)
    _refuse_settings(options)
    return _of_run(options, progress)


def _of_table(options: Namespace, progress: Silent) -> Found:
    """Fit a table and diagnose the fit; its rows tell the noise in the paper's setting too."""
    if options.table or options.new:
        more = options.table or options.new
        text = f"{options.source} is not a run of `odcl fit`, so there is no use for {more}."
        raise opt.UsageError(text, "odcl diagnose")
    for name in ("user", "target"):
        if getattr(options, name) is None:
            text = f"{options.source} is not a run of `odcl fit`, and a table needs --{name}"
            raise opt.UsageError(f"{text}, a column of it.", "odcl diagnose")
    settings_of(options)
    from odcl.runs.fit import fit, open_source

    source, names = open_source(options.source, None)
    command = ("odcl", *options.arguments)
    settings = settings_of(options, names)
    run = fit(source, settings, progress=progress, command=command, keep_rows=True)
    progress.stage("diagnosing")
    return _with_rows(run.model, run.rows, options.seed), options.user, [*run.notices]


def _with_rows(model: Any, rows: Any, seed: int) -> Diagnosis:
    """The diagnosis of a fit, with its scaled rows at hand."""
    return model.result_.diagnose(rows, features=model.fitted_.units, seed=seed)


def _of_run(options: Namespace, progress: Silent) -> Found:
    """A run as it is, from what its users sent, or fitted again on a table's rows."""
    from sklearn.base import clone

    from odcl.data.design import DesignRows
    from odcl.runs.folder import comparison_of, open_run

    table = options.table or options.new
    run = open_run(options.source, with_target=table is not None)
    model, schema = run.model, run.schema
    if options.new is not None:
        rows, notices = run.rows_of(options.new, options.missing)
        users = rows.users[rows.row_user] if schema.user else None
        return model.drift(DesignRows(rows.X), rows.y, users), schema.user, notices
    if options.table is None and model.uploads_ is None:
        raise ValueError(
            f"{options.source} does not hold its users' uploads, which were too large to keep, so "
            f"there is nothing to diagnose. `odcl diagnose {options.source} TABLE` fits the table "
            "again."
        )
    n_users = model.n_users_
    if options.table is None:
        progress.stage("diagnosing")
        notices = []
        sent = model.uploads_
        if n_users > len(model.users_):
            notices.append(
                f"the diagnosis is of the {len(model.users_):,} of {n_users:,} users whose uploads "
                f"the run keeps. For others say `odcl diagnose {options.source} TABLE`"
            )
        if sent.dispersion is None and not sent.has_terms:
            notices.append(
                "the run's users did not send their noise: `odcl diagnose "
                f"{options.source} TABLE` reads it off their rows and can say more"
            )
        found = model.diagnose(seed=options.seed, comparison=comparison_of(options.source, n_users))
        return found, schema.user, notices
    rows, notices = run.rows_of(options.table, options.missing)
    strange = int((~model.fitted_.knows(rows.users)).sum())
    if strange or rows.n_users < n_users:
        notices.append(
            f"{options.table} has {rows.n_users} users ({strange} not in the run of {n_users}): "
            "the diagnosis is of the table, with the run's settings"
        )
    again = clone(model).fit_federation(rows, schema=schema, progress=progress.advance)
    progress.stage("diagnosing")
    rows = replace(rows, X=again.scaling_.apply(rows.X), y=again._encode_known(rows.y))
    return _with_rows(again, rows, options.seed), schema.user, notices


def _refuse_settings(options: Namespace) -> None:
    """Columns and settings are part of a run."""
    named = ("user", "target", "loss", "clusters", "combine", "l2")
    for name in (*named, "features", "drop", "categorical", "no_intercept", "paper"):
        if getattr(options, name) not in (None, False, []):
            text = f"--{name.replace('_', '-')} is part of the run {options.source}: leave it out."
            raise opt.UsageError(text, "odcl diagnose")
