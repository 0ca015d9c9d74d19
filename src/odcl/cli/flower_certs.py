"""``odcl flower certs``: certificates and node keys of a deployment."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt

_ABOUT = """\
Make the certificates and node keys of a Flower deployment.

DIR gets a certificate authority of its own (ca.crt, ca.key), the SuperLink's
certificate (server.pem, server.key) and a pair of keys per site (nodes/). The
private files are readable by their owner alone. ca.crt and a site's own .key go
to that site; its .pub is registered at the SuperLink; ca.key stays where it is."""

_EXAMPLES = """\
examples:
  odcl flower certs certs --sites north,south,west --host flower.example.org
  odcl flower certs my-key --sites north --keys-only"""


def add(some: Any) -> opt.Parser:
    usage = "DIR --sites a,b,c [--host NAME ...]"
    parser = opt.command(some, "flower certs", usage, _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("dir", metavar="DIR", type=Path, help="folder to write")
    group = parser.add_argument_group("options")
    many: dict[str, Any] = {"action": "append", "default": []}
    text = "names of the sites: a,b,c, or the option once per site (required)"
    group.add_argument("--sites", metavar="NAMES", required=True, **many, help=text)
    text = (
        "name or address under which nodes reach the SuperLink; once per name [default: none "
        "but this machine's own, localhost]"
    )
    group.add_argument("--host", metavar="NAME", **many, help=text)
    text = "days for which the certificates hold [default: %(default)s]"
    group.add_argument("--days", metavar="N", type=opt.positive, default=365, help=text)
    text = "node keys and no certificates: for a site that makes its own"
    opt.add_options(group, {"--keys-only": text})
    opt.force(group)
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    from odcl.engines.flower.certs import make_certificates

    sites = opt.column_names(options.sites, ())
    made = make_certificates(
        options.dir,
        sites,
        options.host,
        days=options.days,
        keys_only=options.keys_only,
        force=options.force,
    )
    if not options.keys_only:
        print(f"For every site: {made.authority}")
        print(f"For the SuperLink alone: {made.server}, {made.server_key}")
        print(f"For nobody else, signs certificates: {made.folder / 'ca.key'}")
    for site in sites:
        private, public = made.node_key(site), made.node_public(site)
        print(f"{site}: {private} goes to the site, {public} is registered")
