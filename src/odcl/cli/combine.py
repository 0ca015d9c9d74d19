"""``odcl combine``: uploads in, one download per site out."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import say, watched

_ABOUT = """\
Find the groups of a federation from its sites' uploads.

Reads all uploads of a folder, names and sets aside what it cannot take, and
writes a round: one download per site, which holds no other site's name, and a
report for the coordinator. Run it again with more uploads, and the round is
replaced as a whole.

examples:
  odcl combine task.toml uploads --out round
  odcl combine task.toml uploads --key keys/coordinator.key --out round
  odcl combine task.toml uploads --without north --out round"""


def add(some: Any) -> opt.Parser:
    arguments = {"card": "the task card", "uploads": "folder of the sites' uploads"}
    usage = "CARD UPLOADS --out ROUND [options]"
    parser, group = opt.described(some, "combine", usage, _ABOUT, arguments)
    opt.path(group, "--out", "ROUND", "folder of the round (required)", required=True)
    text = "leave this site out, which has withdrawn; once per site"
    group.add_argument("--without", metavar="SITE", action="append", default=[], help=text)
    more = {
        "--key FILE": (
            Path,
            "the coordinator's private key, where the card lists keys [default: none]",
        ),
        "--min-sites N": (opt.positive, "fewest sites that make a round [default: 2]"),
    }
    opt.add_options(group, more)
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    from odcl.engines.files.combine import combine_uploads

    with watched(options) as shown:
        combined = combine_uploads(
            options.card,
            options.uploads,
            out=options.out,
            key=options.key,
            min_sites=options.min_sites,
            without=options.without,
            progress=shown,
        )
    for text in (*map(str, combined.set_aside), *combined.notices):
        say(text, options)
    print(combined)
    out = shlex.quote(str(options.out))
    print(f"Report: {shlex.quote(str(options.out / 'report.html'))}")
    print(f"Downloads, one per site, and this report: {out}")
