"""``odcl report``: the page of a run, for people."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import check_file_place, check_replace, open_page

_ABOUT = """\
Make the page of a run: one file that a browser opens.

Shows how many groups there are and what they are worth, every user on a map
and what it gains, the groups side by side, what else was weighed, the
diagnosis, what would leave a user, and where all of it comes from. The file
loads nothing and sends nothing. `odcl fit` writes it into RUN by itself; this
makes it again, elsewhere, or without the users' names."""

_EXAMPLES = """\
examples:
  odcl report run --open
  odcl report run --anonymous --out for-the-partner.html"""


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "report", "RUN [--out FILE] [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("run", metavar="RUN", type=Path, help="folder that `odcl fit` wrote")
    more = parser.add_argument_group("options")
    opt.path(
        more,
        "--out",
        "FILE",
        "the page, in the folder you are in and not in RUN",
        default="report.html",
    )
    options = {
        "--anonymous": "users have numbers in place of their names, in no order; the table and the "
        "command are not named: for pages that leave the house",
        "--open": "show it in the browser",
        "--force": "replace FILE if it exists",
    }
    opt.add_options(more, options)
    opt.quiet(more)
    return parser


def run(options: Namespace) -> None:
    from odcl.runs.folder import page_of_run
    from odcl.runs.page import write_page

    check_file_place(options.out)
    check_replace(options.out, options.force)
    if options.out.resolve().parent == options.run.resolve():
        raise ValueError(f"{options.out} would lie in the run itself: name a file elsewhere.")
    write_page(options.out, page_of_run(options.run, anonymous=options.anonymous))
    print(f"Report: {shlex.quote(str(options.out))}")
    if options.open:
        open_page(options.out)
