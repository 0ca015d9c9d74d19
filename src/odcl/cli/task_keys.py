"""``odcl task keys``: public keys onto the card."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt

_ABOUT = """\
Put public keys onto a task card: files must be signed from then on.

A site that is listed already gets one key more: files signed with either are
taken until the old one is deleted from the card. The digest of the task stays
the same, so that uploads made before stay good."""

_EXAMPLES = """\
examples:
  odcl task keys task.toml coordinator.pub north.pub south.pub"""


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "task keys", "CARD KEY ... [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("card", metavar="CARD", type=Path, help="the task card, written anew")
    text = "public keys (.pub), as `odcl site keys` wrote them"
    group.add_argument("keys", metavar="KEY", type=Path, nargs="+", help=text)
    opt.quiet(parser.add_argument_group("options"))
    return parser


def run(options: Namespace) -> None:
    from odcl.engines.files.keys import COORDINATOR, read_public
    from odcl.engines.files.task import Task

    task = Task.read(options.card)
    found = [read_public(path) for path in options.keys]
    added = []
    for site, key in sorted(found, key=lambda pair: pair[0] != COORDINATOR):
        before = task.coordinator if site == COORDINATOR else task.sites.get(site, ())
        try:
            task = task.with_keys(site, key)
        except ValueError as error:
            raise ValueError(f"The key {key} of {site} cannot be added: {error}.") from None
        if key not in before:
            more = " beside another, which is good until it is deleted from the card"
            added.append(f"added for {site}: {key}{more if before else ''}")
    task.write(options.card)
    for text in added:
        print(text)
    n = len(task.sites)
    print(f"{options.card} lists keys of {n} site{'s' * (n != 1)} and of the coordinator.")
