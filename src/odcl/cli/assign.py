"""``odcl assign``: which group new users belong to."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli.console import check_out_file, watched, write_answer
from odcl.cli.parser import RUN_HELP, Parser, command, missing, out_file, quiet

_ABOUT = """\
Tell which group new users belong to, how surely, or that they fit none.

Answers one row per user: its group, the probability of that group among the
groups, its distance from it in units of noise (about 1 for a member), and
whether it joins or is none of these."""

_EXAMPLES = """\
examples:
  odcl assign run new-stores.csv
  odcl assign run new-stores.csv --add && odcl predict run tomorrow.csv"""


def add(some: Any) -> Parser:
    parser = command(some, "assign", "RUN TABLE [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("run", metavar="RUN", type=Path, help=RUN_HELP)
    group.add_argument(
        "table", metavar="TABLE", type=Path, help="rows of the new users, with the target"
    )
    group = parser.add_argument_group("options")
    group.add_argument(
        "--add", action="store_true", help="remember the users in RUN: predict knows them then"
    )
    out_file(group)
    missing(group, None)
    quiet(group)
    return parser


def run(options: Namespace) -> None:
    check_out_file(options, run=options.run, table=options.table)
    with watched(options) as progress:
        progress.stage("assigning")
        columns, notices = assign_table(
            options.run, options.table, add=options.add, missing=options.missing
        )
    write_answer(columns, notices, options)


def assign_table(
    folder: Path, path: Path, *, add: bool, missing: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Groups of new users, one row per user; with ``add`` the run remembers them."""
    import numpy as np

    from odcl.cli.run_folder import change_run, open_run, rows_by_user
    from odcl.data.tables import beside

    model, schema = open_run(folder, with_target=True)
    federation, notices = rows_by_user(path, schema, missing)

    def assign(model: Any) -> list[Any]:
        if add:
            _refuse_known(model, federation.users, folder)
        found = [model.assign(X, y) for _, X, y in federation]
        if add:
            model.add_assigned(federation.users, found)
        return found

    found = change_run(folder, assign) if add else assign(model)
    columns = {
        "group": np.array([f.label for f in found]),
        "probability": np.round([f.probability for f in found], 6),
        "distance": np.round([f.distance for f in found], 4),
        "rows": federation.n_rows,
        "verdict": np.array(["none of these" if f.none_of_these else "joins" for f in found]),
    }
    return beside({schema.user: federation.users}, columns), notices


def _refuse_known(model: Any, users: Any, folder: Path) -> None:
    from odcl.data.federation import positions
    from odcl.errors import show
    from odcl.report.text import count

    old = users[positions(model.users_, users) >= 0].tolist()
    if old:
        was = "was" if len(old) == 1 else "were"
        raise ValueError(
            f"{count(len(old), 'user')} of the table {was} in {folder} before (such as "
            f"{show(old[0])}): give their new rows to `odcl update`, leave them out, or say "
            "`odcl assign` without --add to see their groups."
        )
