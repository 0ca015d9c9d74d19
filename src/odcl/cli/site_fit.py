"""``odcl site fit``: one file out."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import check_file_place, check_replace, say, unsigned, watched

_ABOUT = """\
Fit a site's users on its own rows, and write the one file that leaves.

Rows stay here. `odcl inspect FILE` shows everything that the file holds before
anyone sends it."""

_EXAMPLES = """\
examples:
  odcl site fit task.toml visits.csv --site north --out north.upload
  odcl site fit task.toml visits.csv --site north --user ward \\
      --key keys/north.key --out north.upload"""


def add(some: Any) -> opt.Parser:
    usage = "CARD TABLE --site NAME --out FILE [options]"
    parser = opt.command(some, "site fit", usage, _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("card", metavar="CARD", type=Path, help="the task card")
    group.add_argument("table", metavar="TABLE", type=Path, help=opt.TABLE_HELP)
    group = parser.add_argument_group("options")
    group.add_argument("--site", metavar="NAME", required=True, help="the site's name (required)")
    opt.path(group, "--out", "FILE", "the upload, SITE.upload (required)", required=True)
    more = {
        "--user COLUMN": (
            str,
            "column that names the user of each row, if the site holds several "
            "[default: the site is one user]",
        ),
        "--key FILE": (Path, "the site's private key, where the card lists keys [default: none]"),
        "--force": "replace FILE if it exists",
    }
    opt.add_options(group, more)
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    from odcl.data.notices import about_values
    from odcl.engines.files.keys import belongs_to, check_site
    from odcl.engines.files.site import ENDING, fit_site
    from odcl.engines.files.task import Task
    from odcl.report.text import count, in_bytes

    out: Path = options.out
    if out.suffix != ENDING or not belongs_to(out.stem, check_site(options.site)):
        raise ValueError(
            f"{out} does not say whose upload it is: name it {options.site}{ENDING}, by which the "
            "coordinator knows it."
        )
    check_file_place(out)
    check_replace(out, options.force)
    task = Task.read(options.card)
    with watched(options) as shown:
        shown.stage("fitting")
        sent = fit_site(task, options.table, site=options.site, user=options.user, key=options.key)
        sent.write(out)
    told = about_values(sent.table.schema, sent.table.counts, task.missing)
    for text in (*told, *sent.released.sentences(task.smallest_cell), *unsigned(task)):
        say(text, options)
    n, rows = len(sent.uploads), int(sent.uploads.n_samples.sum())
    file, size = shlex.quote(str(out)), in_bytes(len(sent.content))
    print(f"{count(n, 'user')} of {options.site}, {count(rows, 'row')}: {size} in {file}")
    print(f"Next: odcl inspect {file}")
