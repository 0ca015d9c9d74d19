"""``odcl flower``: an app, certificates, a deployment on this machine."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import watched

_MANY: dict[str, Any] = {"action": "append", "default": []}


def _parser(some: Any, name: str, usage: str, about: str, *, folder: str = "") -> tuple[Any, Any]:
    return opt.described(some, f"flower {name}", usage, about, {"dir": folder} if folder else None)


# -- new -------------------------------------------------------------------------------------------

_NEW = """\
Write a small app folder that `flwr run` takes.

Its nodes read the rows of their users from a CSV file each; its server finds
the groups and sends every node its users' models, in one round. Without files,
in a simulation, nodes share some made stores, so that it runs at once. Four
short files, to be read and changed: pyproject.toml, client_app.py,
server_app.py, README.md.

examples:
  odcl flower new my-app"""


def add_new(some: Any) -> opt.Parser:
    folder = "folder to write; names the app"
    parser, group = _parser(some, "new", "DIR [options]", _NEW, folder=folder)
    opt.force(group)
    opt.quiet(group)
    return parser


def run_new(options: Namespace) -> None:
    from odcl.engines.flower.trial import write_app

    write_app(options.dir, force=options.force)
    place = shlex.quote(str(options.dir))
    print(f"App: {place}")
    print(f"Simulate it: flwr run {place} --stream")
    print(f"Try it with nodes, certificates and keys: odcl flower up trial --app {place}")


# -- certs -----------------------------------------------------------------------------------------

_CERTS = """\
Make the certificates and node keys of a Flower deployment.

DIR gets a certificate authority of its own (ca.crt, ca.key), the SuperLink's
certificate (server.pem, server.key) and a pair of keys per site (nodes/). The
private files are readable by their owner alone. ca.crt and a site's own .key go
to that site; its .pub is registered at the SuperLink; ca.key stays where it is.

examples:
  odcl flower certs certs --sites north,south,west --host flower.example.org
  odcl flower certs my-key --sites north --keys-only"""


def add_certs(some: Any) -> opt.Parser:
    usage = "DIR --sites a,b,c [--host NAME ...]"
    parser, group = _parser(some, "certs", usage, _CERTS, folder="folder to write")
    text = "names of the sites: a,b,c, or the option once per site (required)"
    group.add_argument("--sites", metavar="NAMES", required=True, **_MANY, help=text)
    text = (
        "name or address under which nodes reach the SuperLink; once per name [default: none "
        "but this machine's own, localhost]"
    )
    group.add_argument("--host", metavar="NAME", **_MANY, help=text)
    text = "days for which the certificates hold [default: %(default)s]"
    group.add_argument("--days", metavar="N", type=opt.positive, default=365, help=text)
    text = "node keys and no certificates: for a site that makes its own"
    opt.add_options(group, {"--keys-only": text})
    opt.force(group)
    opt.quiet(group)
    return parser


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


# -- up --------------------------------------------------------------------------------------------

_UP = """\
Start a whole Flower deployment on this machine, and run an app on it.

A SuperLink with certificates, and a node per table with a key of its own that
the SuperLink knows; then one round, and what came of it. All of it listens on
this machine alone, calls nobody, and lives in DIR, with Flower's settings and
logs. It stays up for further runs until `odcl flower down DIR`. Without tables,
nodes share 60 made stores; with tables, the app's pyproject.toml says which
columns are what.

examples:
  odcl flower up trial
  odcl flower up trial --app my-app --nodes 8
  odcl flower up trial --app my-app --data north.csv --data south.csv"""


def add_up(some: Any) -> opt.Parser:
    folder = "folder for all of it, a new one"
    parser, group = _parser(some, "up", "DIR [options]", _UP, folder=folder)
    text = "folder of the app, as `odcl flower new` writes it [default: just that one]"
    group.add_argument("--app", metavar="FOLDER", type=Path, help=text)
    text = "table of one node, whose name is the file's; once per node [default: made stores]"
    group.add_argument("--data", metavar="FILE", type=Path, **_MANY, help=text)
    text = "nodes that share the made stores [default: 4]"
    group.add_argument("--nodes", metavar="N", type=opt.positive, help=text)
    opt.force(group)
    opt.quiet(group)
    return parser


def run_up(options: Namespace) -> None:
    import shutil

    from odcl.data.source import read_table
    from odcl.engines.flower import trial
    from odcl.engines.flower.deployment import Deployment, program
    from odcl.report.text import count, group_table

    program("flower-superlink")  # says what to install
    command = "odcl flower up"
    if options.data and options.nodes is not None:
        text = "--nodes is for made stores: with --data there is one per file."
        raise opt.UsageError(text, command)
    if options.data and options.app is None:
        text = "--data needs --app, whose pyproject.toml says which columns are what."
        raise opt.UsageError(text, command)
    if options.app is not None and not (options.app / "pyproject.toml").is_file():
        raise opt.UsageError(f"{options.app} holds no app: there is no pyproject.toml.", command)
    trial.check_place(options.dir, force=options.force)
    app = options.app or trial.app_folder()
    config = trial.app_config(app)
    tables = trial.tables_of(options.data, config)
    nodes: dict[str, dict[str, Any]] = {site: {"data": str(tables[site])} for site in tables}
    more = {}
    if not tables:  # made stores, which have no secrets
        n = options.nodes or 4
        parts = ({"partition-id": i, "num-partitions": n} for i in range(n))
        nodes = {f"site-{i + 1}": part for i, part in enumerate(parts)}
        more = {"names": "plain"} if "names" in config else {}
    with watched(options) as progress:
        shutil.rmtree(options.dir, ignore_errors=True)
        deployment = Deployment.make(options.dir, tuple(nodes))
        result = trial.try_out(deployment, nodes, app, more, progress.stage)
    listed = read_table(result / "assignment.csv")
    users, groups, rows = (listed[i].to_numpy() for i in range(3))
    folder, n_users = shlex.quote(str(options.dir)), count(len(users), "user")
    print(f"{count(len(nodes), 'node')} with {n_users}, at {deployment.address} by TLS.")
    print(json.loads((result / "report.json").read_text(encoding="utf-8"))["reason"])
    print()
    print(group_table(groups, rows, users))
    print()
    print(f"Result: {shlex.quote(str(options.dir / 'result'))}")
    print(f"Every node's models: {shlex.quote(str(options.dir / 'models'))}")
    print(f"What runs: odcl flower status {folder}. End it: odcl flower down {folder}")


# -- status, down ----------------------------------------------------------------------------------

_STATUS = """\
Say what of a deployment is running: SuperLink, nodes, runs.

examples:
  odcl flower status trial"""

_DOWN = """\
End every process of a deployment that `odcl flower up` started, and no other.

Logs, results and models in DIR stay.

examples:
  odcl flower down trial"""


def add_status(some: Any) -> opt.Parser:
    return _of_deployment(some, "status", _STATUS)


def add_down(some: Any) -> opt.Parser:
    return _of_deployment(some, "down", _DOWN)


def _of_deployment(some: Any, name: str, about: str) -> opt.Parser:
    parser, group = _parser(some, name, "DIR", about, folder="folder of the deployment")
    opt.quiet(group)
    return parser


def run_status(options: Namespace) -> None:
    from odcl.engines.flower.deployment import Deployment
    from odcl.report.text import table

    found = Deployment.read(options.dir)
    answers, running = found.answers(), found.running()
    online = {"superlink", *found.online()} if answers else set()
    rows = []
    for name, pid in found.pids.items():
        state = "connected" if name in online else "not connected"
        rows.append((name, str(pid), state if pid in running else "ended"))
    print(table(("process", "pid", "state"), rows))
    if answers:
        print()
        runs = [(run["run-id"], run["status"], run["status-details"]) for run in found.runs()]
        print(table(("run", "status", "details"), runs) if runs else "No runs yet.")


def run_down(options: Namespace) -> None:
    from odcl.engines.flower.deployment import Deployment
    from odcl.report.text import count

    n = Deployment.read(options.dir).down()
    print(f"{count(n, 'process')} ended." if n else "Nothing was running.")
