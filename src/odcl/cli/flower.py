"""``odcl flower``: an app to start from, and certificates of a deployment."""

from __future__ import annotations

import shlex
from argparse import Namespace

from odcl.cli import parser as opt

# -- new -------------------------------------------------------------------------------------------

NEW = opt.Command(
    "DIR [options]",
    """\
Write a small app folder that `flwr run` takes.

Its nodes read the rows of their users from a CSV file each; its server finds
the groups and sends every node its users' models, in one round. Without files,
in a simulation, nodes share some made stores, so that it runs at once. Short
files, to be read and changed: pyproject.toml, client_app.py, server_app.py,
README.md, and deploy.sh, which starts a whole deployment on this machine.

examples:
  odcl flower new my-app""",
    {
        "arguments": {"dir": "folder to write; names the app"},
        "options": {**opt.FORCE, **opt.QUIET},
    },
)


def run_new(options: Namespace) -> None:
    from odcl.engines.flower.template import write_app

    write_app(options.dir, force=options.force)
    place = shlex.quote(str(options.dir))
    print(f"App: {place}")
    print(f"Simulate it: flwr run {place} --stream")
    print(f"Try it on this machine with nodes, certificates and keys: {place}/deploy.sh")


# -- certs -----------------------------------------------------------------------------------------

CERTS = opt.Command(
    "DIR --sites a,b,c [--host NAME ...]",
    """\
Make the certificates and node keys of a Flower deployment.

DIR gets a certificate authority of its own (ca.crt, ca.key), the SuperLink's
certificate (server.pem, server.key) and a pair of keys per site (nodes/). The
private files are readable by their owner alone. ca.crt and a site's own .key go
to that site; its .pub is registered at the SuperLink; ca.key stays where it is.

examples:
  odcl flower certs certs --sites north,south,west --host flower.example.org
  odcl flower certs my-key --sites north --keys-only""",
    {
        "arguments": {"dir": "folder to write"},
        "options": {
            "--sites NAMES": "names of the sites: a,b,c, or the option once per site (required)",
            "--host HOST": "name or address under which nodes reach the SuperLink; once per "
            "name [default: none but this machine's own, localhost]",
            "--days N": opt.defaulting(opt.positive, 365, "days for which the certificates hold"),
            "--keys-only": "node keys and no certificates: for a site that makes its own",
            **opt.FORCE,
            **opt.QUIET,
        },
    },
)


def run_certs(options: Namespace) -> None:
    from odcl.engines.flower.certs import make_certificates

    sites, folder = opt.column_names(options.sites, ()), options.dir
    how = {"days": options.days, "keys_only": options.keys_only, "force": options.force}
    make_certificates(folder, sites, options.host, **how)
    if not options.keys_only:
        print(f"For every site: {folder / 'ca.crt'}")
        print(f"For the SuperLink alone: {folder / 'server.pem'}, {folder / 'server.key'}")
        print(f"Signs certificates, stays here: {folder / 'ca.key'}")
    for site in sites:
        own = folder / "nodes" / site
        print(f"{site}: {own}.key goes to the site, {own}.pub is registered")
