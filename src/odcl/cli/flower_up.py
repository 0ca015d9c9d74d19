"""``odcl flower up``: a whole deployment on this machine, for trying it."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import watched

_ABOUT = """\
Start a whole Flower deployment on this machine, and run an app on it.

A SuperLink with certificates, and a node per table with a key of its own that
the SuperLink knows; then one round, and what came of it. All of it listens on
this machine alone, calls nobody, and lives in DIR, with Flower's settings and
logs. It stays up for further runs until `odcl flower down DIR`. Without tables,
nodes share 60 made stores."""

_EXAMPLES = """\
examples:
  odcl flower up trial
  odcl flower up trial --data north.csv --data south.csv --user patient \\
      --target stay --features age,bmi
  odcl flower up trial --app my-app --nodes 8"""

NAME = "odcl flower up"
_STORES = {"user": "store", "target": "sales"}


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "flower up", "DIR [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("dir", metavar="DIR", type=Path, help="folder for all of it, a new one")
    group = parser.add_argument_group("options")
    text = "table of one node, whose name is the file's; once per node [default: made stores]"
    many: dict[str, Any] = {"action": "append", "default": []}
    group.add_argument("--data", metavar="FILE", type=Path, **many, help=text)
    text = "nodes that share the made stores [default: 4]"
    group.add_argument("--nodes", metavar="N", type=opt.positive, help=text)
    for name, what in {"user": "that names the user of each row", "target": "to predict"}.items():
        text = f"column of the tables {what} [default: as --app says; of made stores theirs]"
        group.add_argument(f"--{name}", metavar="COLUMN", help=text)
    text = "columns to predict from, numbers: a,b,c [default: as --app says, or all others]"
    group.add_argument("--features", metavar="COLUMNS", **many, help=text)
    text = "folder of the app, as `odcl flower new` writes it [default: just that one]"
    group.add_argument("--app", metavar="FOLDER", type=Path, help=text)
    text = "seconds that each of the two rounds may take [default: %(default)s]"
    group.add_argument("--timeout", metavar="SECONDS", type=opt.above_0, default=300.0, help=text)
    opt.force(group)
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    import shutil

    from odcl.engines.flower.deployment import Deployment, program
    from odcl.engines.flower.trial import (
        check_place,
        check_tables,
        made_tables,
        tables_of,
        try_out,
    )

    program("flower-superlink")  # says what to install
    _check(options)
    check_place(options.dir, force=options.force)
    tables = tables_of(options.data)
    if tables:
        config = _config(options, next(iter(tables.values())))
        columns = [config["user"], config["target"], *config["features"].split(",")]
        check_tables(tables, columns)
    with watched(options) as progress:
        shutil.rmtree(options.dir, ignore_errors=True)
        n = options.nodes or 4
        sites = tuple(tables) or tuple(f"site-{i + 1}" for i in range(n))
        deployment = Deployment.make(options.dir, sites)
        tables = tables or made_tables(options.dir.resolve() / "data", n)
        trial = try_out(
            deployment,
            tables,
            _config(options, next(iter(tables.values()))),
            app=options.app,
            timeout=2 * options.timeout + 120,
            stage=progress.stage,
        )
    _print(trial, options)


def _check(options: Namespace) -> None:
    """Refuse options that do not go together."""
    if options.data and options.nodes is not None:
        raise opt.UsageError("--nodes is for made stores: with --data there is one per file.", NAME)
    if options.app is not None and not (options.app / "pyproject.toml").is_file():
        raise opt.UsageError(f"{options.app} holds no app: there is no pyproject.toml.", NAME)
    known = _roles(options)
    if options.data and not (known.get("user") and known.get("target")):
        raise opt.UsageError("--data needs --user and --target.", NAME)


def _roles(options: Namespace) -> dict[str, Any]:
    """Which columns are what: as said here, else as an app of one's own says."""
    from odcl.engines.flower.app import app_config

    said = {name: getattr(options, name) for name in ("user", "target") if getattr(options, name)}
    if options.app is None:
        return said if options.data else {**_STORES, **said}
    config = app_config(options.app)
    roles: dict[str, Any] = {
        name: config[name] for name in ("user", "target", "features") if name in config
    }
    return {**(roles if not said else {}), **said}


def _config(options: Namespace, first: Path) -> dict[str, Any]:
    """What the run is told: which columns are what, and how long it may take."""
    from odcl.data.tables import read_column_names
    from odcl.engines.flower.app import app_config

    roles = {**_STORES, **_roles(options)}
    columns = read_column_names(first)
    features = opt.column_names(options.features, columns)
    others = [name for name in columns if name not in roles.values()]
    known = roles.pop("features", None) or ",".join(others)
    named = ",".join(features) if features else known
    told = {**roles, "features": named, "timeout": options.timeout}
    if not options.data and (options.app is None or "names" in app_config(options.app)):
        told["names"] = "plain"  # made stores are nobody's
    return told


def _print(trial: Any, options: Namespace) -> None:
    from odcl.report.text import count, group_table

    folder = shlex.quote(str(options.dir))
    n = count(len(trial.sites), "node")
    print(f"{n} with {count(len(trial.users), 'user')}, at {trial.deployment.address} by TLS.")
    print(trial.reason)
    print()
    print(group_table(trial.labels, trial.n_rows, trial.users))
    print()
    print(f"Result: {shlex.quote(str(options.dir / 'result'))}")
    print(f"Every node's models: {shlex.quote(str(options.dir / 'models'))}")
    print(f"What runs: odcl flower status {folder}. End it: odcl flower down {folder}")
