"""What a run is asked: ``odcl predict``, ``assign``, ``update``, ``report`` and ``diagnose``."""

from __future__ import annotations

import math
import shlex
import sys
from argparse import Namespace
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from odcl.cli import parser as opt
from odcl.cli.console import (
    answer,
    check_file_place,
    check_out_file,
    open_page,
    say,
    watched,
    write_answer,
)
from odcl.cli.fit import METHOD, engine_of, settings_of
from odcl.files import check_replace

if TYPE_CHECKING:
    from odcl.runs.folder import LaterRows, PredictOptions, TableDiagnosis
    from odcl.runs.settings import Silent

# -- odcl predict ----------------------------------------------------------------------------------

PREDICT = opt.Command(
    "RUN TABLE [options]",
    """\
Predict each row of a table with its own user's model.

examples:
  odcl predict run tomorrow.csv --out predictions.parquet
  odcl predict run tomorrow.csv --unknown pooled | head
  odcl predict run new/ --engine dask --out predictions/

The table needs the user's column and the features of the fit, not the target;
other columns are ignored. For classes the answer has a probability of each.""",
    {
        **opt.run_and_table(
            opt.TABLE_HELP,
            {
                "--unknown HOW": (
                    opt.one_of(opt.UNKNOWN),
                    "users that were not in the fit: error, or pooled (predicted as an average "
                    "user) [default: error]",
                ),
                "--interval COVERAGE": "also low and high: a new target is between them with "
                "this probability [default: none]",
            },
        ),
        "beyond memory": opt.ENGINE,
    },
)


def run_predict(options: Namespace) -> None:
    engine = engine_of(options)
    if engine.name == "dask" or engine.scheduler or "://" in str(options.table):
        _in_pieces(options)
    else:
        _in_memory(options)


def _later(options: Namespace, table: Path) -> LaterRows:
    """Rows of a table as the options want them to be read."""
    from odcl.runs.folder import LaterRows

    words = ("odcl", *(word for word in options.arguments if word != "--force"))
    return LaterRows(table, options.missing, options.unseen or "error", words)


def _options(options: Namespace) -> PredictOptions:
    """How the options want rows to be predicted."""
    from odcl.runs.folder import PredictOptions

    unknown, unseen = options.unknown or "error", options.unseen or "error"
    return PredictOptions(unknown, unseen, options.missing, options.interval, str(options.run))


def _in_memory(options: Namespace) -> None:
    """One answer, to a file or to stdout; a long table goes a piece at a time, in and out."""
    from odcl.data.tables import piecewise
    from odcl.errors import count
    from odcl.runs.folder import open_run, predict

    check_out_file(options, run=options.run, table=options.table)
    run = open_run(options.run)
    with ExitStack() as stack:
        if options.out is not None or not sys.stdout.isatty():  # or the bar would cross the rows
            stack.enter_context(watched(options)).stage("predicting")
        write = stack.enter_context(piecewise(options.out, sys.stdout.buffer))
        found = predict(run, options.table, _options(options), write)
    for text in found.notices:
        say(text, options)
    if options.out is not None:
        say(f"{count(found.rows, 'row')} written to {options.out}", options)


def _in_pieces(options: Namespace) -> None:
    """A folder of Parquet files."""
    from odcl.data.tables import is_csv, is_parquet
    from odcl.errors import count
    from odcl.runs.folder import open_run
    from odcl.runs.pieces import predict_in_pieces

    if options.out is None:
        raise opt.UsageError("--engine dask writes a folder: name it with --out.", "odcl predict")
    if is_csv(options.out) or is_parquet(options.out):
        text = f"--engine dask writes a folder of Parquet files, and {options.out} names one file"
        raise opt.UsageError(f"{text}: name a folder, such as predictions.", "odcl predict")
    tell = partial(say, options=options)
    with watched(options) as progress:
        found = predict_in_pieces(
            *(open_run(options.run), options.table, _options(options)),
            *(engine_of(options), options.out),
            force=options.force,
            shown=progress,
            say=tell,
        )
    for text in found.notices:
        tell(text)
    tell(f"{count(found.rows, 'row')} written to {count(found.files, 'file')} in {options.out}")


# -- odcl assign -----------------------------------------------------------------------------------

ASSIGN = opt.Command(
    "RUN TABLE [options]",
    """\
Tell which group new users belong to, how surely, or that they fit none.

Answers one row per user: its group, the probability of that group among the
groups, its distance from it in units of noise (about 1 for a member), and
whether it joins or is none of these. Where the run found no groups (users
differ gradually), all are in group 0, and "none of these" is a user far from
all others. From its first row on a user has a model: --add keeps it.

RUN may also be a round that `odcl combine` wrote, and TABLE the upload of a
site that comes late: then --out is its download, and no other site has to do
anything.

examples:
  odcl assign run new-stores.csv
  odcl assign run new-stores.csv --add && odcl predict run tomorrow.csv
  odcl assign round late.upload --out late.download""",
    opt.run_and_table(
        "rows of the new users, with the target",
        {
            "--add": "remember the users in RUN: predict knows them then",
            "--card CARD": "of a round: a newer card of the same task, which lists the late "
            "site's key [default: the round's own]",
            "--key FILE": "of a round: the coordinator's private key [default: none]",
        },
    ),
)


def run_assign(options: Namespace) -> None:
    from odcl.engines.files.round import is_round

    if is_round(options.run):
        _assign_site(options)
    elif options.card is not None or options.key is not None:
        raise ValueError(
            f"{options.run} holds no round, and only rounds have keys: leave --key out."
        )
    else:
        from odcl.runs.folder import assign_users

        later = _later(options, options.table)
        work = partial(assign_users, options.run, later, add=options.add)
        answer("assigning", work, options)


def _assign_site(options: Namespace) -> None:
    """A late site: the groups of its users, and its download."""
    from odcl.engines.files.combine import assign
    from odcl.report.text import count

    out: Path | None = options.out
    if options.add or options.missing or options.unseen:
        raise ValueError(
            "A round has neither --add nor --missing nor --unseen: its sites send files."
        )
    if out is None:
        raise ValueError("The download of a late site is a file: say --out SITE.download.")
    check_file_place(out)
    check_replace(out, options.force)
    found = assign(options.run, options.table, key=options.key, task=options.card)
    found.write(out)
    users = found.users.found
    for number, one in enumerate(users, start=1):
        who = found.site if len(users) == 1 else f"{found.site}, user {number}"
        where = f"group {one.label}, probability {one.probability:.2f}"
        where = "none of these groups" if one.none_of_these else where
        far = one.distance  # wide users have none
        away = "" if math.isnan(far) else f", distance {far:.2f} (about 1 for a member)"
        print(f"{who}: {where}{away}.")
    say(f"{count(len(users), 'user')} placed, download written to {out}", options)


# -- odcl update -----------------------------------------------------------------------------------

UPDATE = opt.Command(
    "RUN TABLE [options]",
    """\
Give known users more rows: their models and groups follow.

The rows come on top of those of the fit, for which each user's upload in RUN
stands: with the squared loss the answer is that of a fit of all its rows, with
other losses it is close. Groups' models and other users stay as they are.
Answers one row per user: its group now and before, and its rows. A table given
before is refused, for its rows would count twice; a part of one is not noticed.

Users of a run that was fitted in pieces (--engine dask) cannot be updated, save
those that `odcl assign --add` added: fit again, with the new rows in the table.

examples:
  odcl update run this-week.csv && odcl predict run tomorrow.csv
  odcl update run all-of-store-7.csv --all-rows""",
    opt.run_and_table(
        "new rows of known users, with the target",
        {
            "--all-rows": "the table holds all rows of its users, old ones included",
            "--again": "add rows even if they are just those that a user was given before",
        },
    ),
)


def run_update(options: Namespace) -> None:
    from odcl.runs.folder import update_users

    how = {"all_rows": options.all_rows, "again": options.again}
    work = partial(update_users, options.run, _later(options, options.table), **how)
    answer("updating", work, options)


# -- odcl report -----------------------------------------------------------------------------------

REPORT = opt.Command(
    "RUN [--out FILE] [options]",
    """\
Make the page of a run: one file that a browser opens.

Shows how many groups there are and what they are worth, every user on a map
and what it gains, the groups side by side, what else was weighed, the
diagnosis, what would leave a user, and where all of it comes from. The file
loads nothing and sends nothing. `odcl fit` writes it into RUN by itself; this
makes it again, elsewhere, or without the users' names.

examples:
  odcl report run --open
  odcl report run --anonymous --out for-the-partner.html""",
    {
        "arguments": {"run": "folder that `odcl fit` wrote"},
        "options": {
            "--out FILE": opt.defaulting(
                Path, "report.html", "the page, in the folder you are in and not in RUN"
            ),
            "--anonymous": "users have numbers in place of their names, in no order; the table and "
            "the command are not named: for pages that leave the house",
            "--open": "show it in the browser",
            **opt.FORCE_FILE,
            **opt.QUIET,
        },
    },
)


def run_report(options: Namespace) -> None:
    from odcl.runs.folder import page_of_run
    from odcl.runs.page import write_page

    check_file_place(options.out)
    check_replace(options.out, options.force)
    if options.out.resolve().parent == options.run.resolve():
        raise ValueError(f"{options.out} would lie in the run itself: name a file elsewhere.")
    page = page_of_run(options.run, anonymous=options.anonymous)
    write_page(options.out, page, force=options.force)
    print(f"Report: {shlex.quote(str(options.out))}")
    if options.open:
        open_page(options.out)


# -- odcl diagnose ---------------------------------------------------------------------------------


DIAGNOSE = opt.Command(
    "RUN [TABLE] | TABLE [options]",
    """\
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
The answer: the models hold; update some users; or refit.""",
    {
        "arguments": {
            "source": {"metavar": "RUN|TABLE", "help": "folder that `odcl fit` wrote, or a table"},
            "table?": opt.TABLE_HELP,
        },
        "a table without a run": {**opt.table_columns(), **METHOD, **opt.CURVES},
        "options": {
            "--table NEW": {
                "type": Path,
                "dest": "new",
                "help": "new rows of RUN's users: do its models still hold? [default: none]",
            },
            "--out FILE": "CSV or Parquet file with one row per user: group, chance of "
            "belonging elsewhere [default: none]",
            **opt.FORCE_FILE,
            **opt.LATER_ROWS,
            **opt.SEED,
            **opt.QUIET,
        },
    },
)


def run_diagnose(options: Namespace) -> None:
    table = options.new or options.table or options.source
    check_out_file(options, run=options.source, table=table)
    if options.new is not None and options.table:
        raise opt.UsageError("--table NEW and TABLE cannot be used together.", "odcl diagnose")
    if not options.source.exists():
        raise ValueError(f"There is no file or folder {options.source}.")
    with watched(options) as progress:
        progress.stage("reading the table")
        found = _diagnosis_of(options, progress)
    for text in found.notices:
        say(text, options)
    print(found.found)
    if options.out is not None:
        write_answer(found.columns(), (), options)


def _diagnosis_of(options: Namespace, progress: Silent) -> TableDiagnosis:
    """Diagnose what the options name: a run from its uploads, or a table after a fit."""
    from odcl.runs.folder import diagnose_again, diagnose_drift, diagnose_run, is_run, open_run

    if not is_run(options.source):
        return _of_table(options, progress)
    why = f"is part of the run {options.source}: leave it out."
    opt.refuse(options, DIAGNOSE.groups["a table without a run"], why)
    again = options.table or options.new
    run = open_run(options.source, with_target=again is not None)
    if options.new is not None:
        return diagnose_drift(run, _later(options, options.new))
    if options.table is not None:
        return diagnose_again(run, _later(options, options.table), options.seed, progress)
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
