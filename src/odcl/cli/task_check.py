"""``odcl task check``: does a site's table fit the card?"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import say

_ABOUT = """\
Tell whether a card can be used, and whether a site's table fits it.

Nothing is fitted and nothing is written: columns that are missing or of
another type, categories and classes that the card does not list, cells and
users too small to leave are named."""

_EXAMPLES = """\
examples:
  odcl task check task.toml
  odcl task check task.toml visits.csv
  odcl task check task.toml visits.csv --user ward"""


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "task check", "CARD [TABLE] [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("card", metavar="CARD", type=Path, help="the task card")
    group.add_argument("table", metavar="TABLE", type=Path, nargs="?", help=opt.TABLE_HELP)
    group = parser.add_argument_group("options")
    text = "column that names the user of each row, if the site holds several [default: one user]"
    opt.add_options(group, {"--user COLUMN": (str, text)})
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    from odcl.engines.files.task import Task

    task = Task.read(options.card)
    signed = "not signed: it lists no keys"
    if task.signed:
        signed = f"signed by {len(task.sites)} sites, digest of the keys {task.keys_digest[:16]}"
    print(f"{options.card}: task {task.name!r}, round {task.round}, digest {task.digest[:16]}.")
    size = f"{len(task.columns)} columns, {task.dim} parameters, {task.risk.loss.name} loss"
    print(f"{size}. Files are {signed}.")
    if task.minimum_group < 3:
        say(
            f"minimum_group = {task.minimum_group}: in a group of two each site can work "
            "out the other's term from its download; from 3 on it takes two that share theirs",
            options,
        )
    if options.table is not None:
        _check(task, options)


def _check(task: Any, options: Namespace) -> None:
    from odcl.data.notices import about_values
    from odcl.engines.files.site import read_site, release
    from odcl.errors import count

    site = read_site(task, options.table, options.user)
    released = release(site)
    rows = site.rows
    print(f"{options.table} fits: {count(len(rows.y), 'row')}, {count(rows.n_users, 'user')}.")
    sent = count(len(released.users), "user")
    print(f"{sent} with {count(len(released.rows.y), 'row')} would enter the upload.")
    told = about_values(site.schema, site.counts, task.missing)
    for text in (*told, *released.sentences(task.smallest_cell)):
        print(f"{text[0].upper()}{text[1:]}.")
    for text in _scale_notes(task, rows):
        say(text, options)


def _scale_notes(task: Any, rows: Any) -> list[str]:
    """Losses that are not quadratic want features of about one spread at all sites."""
    if task.risk.loss.has_data_terms:
        return []
    spread = dict(zip(task.columns, rows.X.std(axis=0), strict=True))
    odd = [one.name for one in task.features if one.levels is None]
    odd = [name for name in odd if not 0.05 <= spread[name] <= 20]
    if not odd:
        return []
    return [
        f"{', '.join(odd)}: in the card's scale the spread is far from 1; agree on other scales"
    ]
