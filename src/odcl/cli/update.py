"""``odcl update``: more rows of users that are known."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import answer

_ABOUT = """\
Give known users more rows: their models and groups follow.

The rows come on top of those of the fit, for which each user's upload in RUN
stands: with the squared loss the answer is that of a fit of all its rows, with
other losses it is close. Groups' models and other users stay as they are.
Answers one row per user: its group now and before, and its rows. A table given
before is refused, for its rows would count twice; a part of one is not noticed.

Users of a run that was fitted in pieces (--engine dask) cannot be updated, save
those that `odcl assign --add` added: fit again, with the new rows in the table."""

_EXAMPLES = """\
examples:
  odcl update run this-week.csv && odcl predict run tomorrow.csv
  odcl update run all-of-store-7.csv --all-rows"""


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "update", "RUN TABLE [options]", _ABOUT, _EXAMPLES)
    more = {
        "--all-rows": "the table holds all rows of its users, old ones included",
        "--again": "add rows even if they are just those that a user was given before",
    }
    opt.run_and_table(parser, "new rows of known users, with the target", more)
    return parser


def run(options: Namespace) -> None:
    from odcl.runs.folder import update_users

    how = {"all_rows": options.all_rows, "again": options.again}
    work = partial(update_users, options.run, options.table, options.missing, **how)
    answer("updating", work, options)
