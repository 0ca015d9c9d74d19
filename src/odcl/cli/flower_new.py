"""``odcl flower new``: an app folder to start from."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt

_ABOUT = """\
Write a small app folder that `flwr run` takes.

Its nodes read the rows of their users from a CSV file each; its server finds
the groups and sends every node its users' models, in one round. Without files,
in a simulation, nodes share some made stores, so that it runs at once. Four
short files, to be read and changed: pyproject.toml, client_app.py,
server_app.py, README.md."""

_EXAMPLES = """\
examples:
  odcl flower new my-app"""


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "flower new", "DIR [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("dir", metavar="DIR", type=Path, help="folder to write; names the app")
    group = parser.add_argument_group("options")
    opt.force(group)
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    from odcl.engines.flower.app import write_app

    place = shlex.quote(str(write_app(options.dir, force=options.force)))
    print(f"App: {place}")
    print(f"Simulate it: flwr run {place} --stream")
    print(f"Try it with nodes, certificates and keys: odcl flower up trial --app {place}")
