"""``odcl diagnose``: is one shot enough for this table, and if not, what is?"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import check_out_file, say, watched, write_answer
from odcl.cli.fit import METHOD, settings_of

if TYPE_CHECKING:
    from odcl.report.progress import Silent
    from odcl.runs.folder import TableDiagnosis

_ABOUT = """\
Tell whether one shot is enough for a table, and if not, what to do.

Looks at what the users' rows say, of a run or of a table fitted as `odcl fit`
does: how noisy a user's model is compared with the distances between groups,
whether the groups would be found again, which users are near a border or fit no
group. Begins with one of: one shot is enough; use the default in place of means
of models; collect more rows; there is no group structure, use one model; no
groups, users differ gradually; users do as well with models of their own; not
known. Where the uploads do not tell, a run's held-out rows decide.

examples:
  odcl diagnose sales.csv --user store --target sales
  odcl diagnose run --out users.csv
  odcl diagnose run --table this-month.csv
  odcl diagnose sales.csv --user store --target sales --paper

A RUN keeps what its users uploaded (2,000 of them for a table in pieces) and is
diagnosed from that. With TABLE it is fitted again on the table's rows, with its
own columns and settings. That tells more about a run of --paper, whose users
send their models alone.

--table asks another question: do the models still hold on new rows? Errors are
compared with those that the models promise, user by user and group by group.
The answer: the models hold; update some users; or refit."""


def add(some: Any) -> opt.Parser:
    """The command's options."""
    parser = opt.command(some, "diagnose", "RUN [TABLE] | TABLE [options]", _ABOUT)
    group = parser.add_argument_group("arguments")
    group.add_argument(
        "source", metavar="RUN|TABLE", type=Path, help="folder that `odcl fit` wrote, or a table"
    )
    group.add_argument("table", metavar="TABLE", type=Path, nargs="?", help=opt.TABLE_HELP)
    new = parser.add_argument_group("a table without a run")
    opt.table_columns(new)
    opt.add_options(new, METHOD)
    opt.curves(new)
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
    table = options.new or options.table or options.source
    check_out_file(options, run=options.source, table=table)
    if options.new is not None and options.table:
        raise opt.UsageError("--table NEW and TABLE cannot be used together.", "odcl diagnose")
    if not options.source.exists():
        raise ValueError(f"There is no file or folder {options.source}.")
    with watched(options) as progress:
        progress.stage("reading the table")
        found = _diagnosed(options, progress)
    for text in found.notices:
        say(text, options)
    print(found.found)
    if options.out is not None:
        write_answer(found.columns(), (), options)


def _diagnosed(options: Namespace, progress: Silent) -> TableDiagnosis:
    """Diagnose what the options name: a run from its uploads, or a table after a fit."""
    from odcl.runs.folder import diagnose_again, diagnose_drift, diagnose_run, is_run, open_run

    if not is_run(options.source):
        return _of_table(options, progress)
    _refuse_settings(options)
    again = options.table or options.new
    run = open_run(options.source, with_target=again is not None)
    if options.new is not None:
        return diagnose_drift(run, options.new, options.missing)
    if options.table is not None:
        asked = (options.table, options.missing, options.seed)
        return diagnose_again(run, *asked, progress)
    progress.stage("diagnosing")
    return diagnose_run(run, options.seed)


def _of_table(options: Namespace, progress: Silent) -> TableDiagnosis:
    """Fit a table and diagnose the fit."""
    from odcl.runs.fit import fit, open_source
    from odcl.runs.folder import diagnose_fit

    if options.table or options.new:
        more = options.table or options.new
        text = f"{options.source} is not a run of `odcl fit`, so there is no use for {more}."
        raise opt.UsageError(text, "odcl diagnose")
    for name in ("user", "target"):
        if getattr(options, name) is None:
            text = f"{options.source} is not a run of `odcl fit`, and a table needs --{name}"
            raise opt.UsageError(f"{text}, a column of it.", "odcl diagnose")
    settings_of(options)  # what is wrong about them is said at once
    source, names = open_source(options.source, None)
    settings = settings_of(options, names)
    command = ("odcl", *options.arguments)
    found = fit(source, settings, progress=progress, command=command, keep_rows=True)
    progress.stage("diagnosing")
    return diagnose_fit(found, options.seed)


def _refuse_settings(options: Namespace) -> None:
    """Columns and settings are part of a run."""
    named = ("user", "target", "loss", "clusters", "combine", "l2")
    listed = ("features", "drop", "categorical", "curves", "periodic")
    for name in (*named, *listed, "no_intercept", "no_curves", "paper"):
        if getattr(options, name) not in (None, False, []):
            text = f"--{name.replace('_', '-')} is part of the run {options.source}: leave it out."
            raise opt.UsageError(text, "odcl diagnose")
