"""``odcl site keys``: a pair of keys."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from odcl.cli import parser as opt

_ABOUT = """\
Make the keys with which a site, or the coordinator, signs its files.

SITE.key is private: it stays where it is, readable by its owner alone, and is
never overwritten. SITE.pub goes to whoever keeps the task card."""

_EXAMPLES = """\
examples:
  odcl site keys --site north --out keys
  odcl site keys --site coordinator --out keys"""


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "site keys", "--site NAME --out FOLDER", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("options")
    text = "the site's name, or coordinator (required)"
    group.add_argument("--site", metavar="NAME", required=True, help=text)
    opt.path(group, "--out", "FOLDER", "folder for the keys (required)", required=True)
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    from odcl.engines.files.keys import make_keys, read_public

    private, public = make_keys(options.site, options.out)
    print(f"Private key, stays here: {private}")
    print(f"Public key, goes onto the task card: {public}")
    print(read_public(public)[1])
