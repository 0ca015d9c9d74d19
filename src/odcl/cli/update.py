"""``odcl update``: more rows of users that are known."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
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
    answer("updating", _updated, options)


def _updated(options: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Update the users of a table in a run: one row per user."""
    from odcl.data.design import DesignRows
    from odcl.data.federation import positions
    from odcl.data.write import beside
    from odcl.errors import show
    from odcl.report.text import count
    from odcl.runs.folder import change_run, open_run, owners, rows_by_user

    folder: Path = options.run
    _, schema = open_run(folder, with_target=True)
    federation, notices = rows_by_user(options.table, schema, options.missing)

    def update(model: Any) -> tuple[Any, Any, Any]:
        at = positions(model.users_, federation.users)
        away = federation.users[model._in_files(federation.users)].tolist()
        if away:
            raise ValueError(
                f"{folder} was fitted in pieces, and its files of users stay as they are: "
                f"{count(len(away), 'user')} of these (such as {show(away[0])}) cannot be updated. "
                "Fit again, with the new rows in the table, or with --engine memory, whose runs "
                "can be updated."
            )
        if (at < 0).any():
            n, of = int((at < 0).sum()), count(len(at), "user")
            such = show(federation.users[at < 0].tolist()[0])
            raise ValueError(
                f"{n} of {of} {'is' if n == 1 else 'are'} not in {folder} (such "
                f"as {such}): add them with `odcl assign {folder} TABLE --add`, and leave them out "
                "here."
            )
        before = model.labels_[at]
        for user, X, y in federation:
            model.update_user(
                user, DesignRows(X), y, all_rows=options.all_rows, again=options.again
            )
        return before, model.labels_[at], model.n_rows_[at]

    before, after, rows = change_run(folder, update)
    columns = {"group": after, "before": before, "new_rows": federation.n_rows, "rows": rows}
    return beside(owners(schema, federation.users), columns), notices
