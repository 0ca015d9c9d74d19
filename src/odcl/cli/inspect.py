"""``odcl inspect``: what a file of a federation holds."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt

_ABOUT = """\
Show everything that a file of a federation holds, in plain words and numbers.

For uploads before anyone sends them, and for downloads when they come: each
field with what it tells and its size, what was withheld, and who signed it.

examples:
  odcl inspect north.upload
  odcl inspect north.upload --card task.toml --numbers"""


def add(some: Any) -> opt.Parser:
    arguments = {"file": "an upload or a download"}
    parser, group = opt.described(some, "inspect", "FILE [options]", _ABOUT, arguments)
    more = {
        "--card CARD": (Path, "the task card, to see whose keys signed it [default: none]"),
        "--numbers": "every number, one after the other",
    }
    opt.add_options(group, more)
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    from odcl.engines.files.task import Task
    from odcl.report.by_file import inspect_file

    task = None if options.card is None else Task.read(options.card)
    print(inspect_file(options.file, task, every_number=options.numbers))
