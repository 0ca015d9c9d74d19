"""``odcl update``: more rows of users that are known."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli.console import check_out_file, watched, write_answer
from odcl.cli.parser import RUN_HELP, Parser, command, missing, out_file, quiet

_ABOUT = """\
Give known users more rows: their models and groups follow.

The rows come on top of those of the fit, for which each user's upload in RUN
stands: with the squared loss the answer is that of a fit of all its rows, with
other losses it is close. Groups' models and other users stay as they are.
Answers one row per user: its group now and before, and its rows."""

_EXAMPLES = """\
examples:
  odcl update run this-week.csv && odcl predict run tomorrow.csv
  odcl update run all-of-store-7.csv --all-rows"""


def add(some: Any) -> Parser:
    parser = command(some, "update", "RUN TABLE [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("run", metavar="RUN", type=Path, help=RUN_HELP)
    group.add_argument(
        "table", metavar="TABLE", type=Path, help="new rows of known users, with the target"
    )
    group = parser.add_argument_group("options")
    group.add_argument(
        "--all-rows",
        action="store_true",
        help="the table holds all rows of its users, old ones included",
    )
    out_file(group)
    missing(group, None)
    quiet(group)
    return parser


def run(options: Namespace) -> None:
    check_out_file(options, run=options.run, table=options.table)
    with watched(options) as progress:
        progress.stage("updating")
        columns, notices = update_table(
            options.run, options.table, all_rows=options.all_rows, missing=options.missing
        )
    write_answer(columns, notices, options)


def update_table(
    folder: Path, path: Path, *, all_rows: bool, missing: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Update the users of a table in a run: one row per user."""
    import numpy as np

    from odcl.cli.run_folder import change_run, open_run, rows_by_user
    from odcl.data.ids import positions
    from odcl.data.tables import beside
    from odcl.errors import show
    from odcl.report.text import count

    _, schema = open_run(folder, with_target=True)
    federation, notices = rows_by_user(path, schema, missing)

    def update(model: Any) -> tuple[Any, Any, Any]:
        at = positions(model.users_, federation.users)
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
            model.update_user(user, X, y, all_rows=all_rows)
        return before, model.labels_[at], model.n_rows_[at]

    before, after, rows = change_run(folder, update)
    columns = {"group": after, "before": before, "new_rows": federation.n_rows, "rows": rows}
    columns = {name: np.asarray(values) for name, values in columns.items()}
    return beside({schema.user: federation.users}, columns), notices
