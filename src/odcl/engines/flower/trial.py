"""Apps that ``flwr run`` takes, and one run of an app on a deployment of this machine."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from odcl.data.roles import check_columns
from odcl.data.source import read_column_names
from odcl.engines.files.keys import check_site
from odcl.engines.flower.deployment import COMPLETED, STATE, Deployment, DeploymentError
from odcl.errors import InputError
from odcl.files import atomic_folder, check_folder

# All that a trial writes into its folder.
OWN = (
    *(STATE, "certs/", "data/", "home/", "logs/", "models/", "result/", "result.arrived/"),
    *(f"superlink.db{ending}" for ending in ("", "-shm", "-wal", "-journal")),
)

# -- apps ------------------------------------------------------------------------------------------

_APP = "odcl-app"  # the name in the template's pyproject.toml


def app_folder() -> Path:
    """The app whose nodes read a table each."""
    return Path(str(files("odcl.engines.flower") / "apps" / "table"))


def app_config(folder: Path) -> dict[str, Any]:
    """The settings of an app's runs, before any ``flwr run -c``."""
    words: Any = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    for name in ("tool", "flwr", "app", "config"):
        words = words.get(name, {})
    return dict(words)


def write_app(folder: Path, *, force: bool = False) -> None:
    """Write a new app folder, whole or not at all; the app is called as the folder is.

    Its modules are a package of that name: nodes of a simulation may have another app's folder on
    their path, and modules of the same name there. The result's place is an absolute path for the
    same reason: a run's working folder is the SuperLink's.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or _APP
    package = "odcl_" + name.replace("-", "_").removeprefix("odcl_")
    result = json.dumps(str(folder.resolve() / "result"))
    values = {
        f'name = "{_APP}"': f'name = "{name}"',
        'packages = ["."]': f'packages = ["{package}"]',
        '"server_app:app"': f'"{package}.server_app:app"',
        '"client_app:app"': f'"{package}.client_app:app"',
        'result-dir = "result"': f"result-dir = {result}",
        "PACKAGE/": f"{package}/",
    }
    own = ("README.md", "pyproject.toml", f"{package}/", "__pycache__/")
    with atomic_folder(folder, force=force, own=own) as new:
        (new / package).mkdir()
        (new / package / "__init__.py").touch()
        for file in ("client_app.py", "server_app.py"):
            (new / package / file).write_bytes((app_folder() / file).read_bytes())
        for file in ("README.md", "pyproject.toml"):
            text = (app_folder() / file).read_text(encoding="utf-8")
            for template, value in values.items():
                text = text.replace(template, value)
            (new / file).write_text(text, encoding="utf-8")


# -- tables of the nodes ---------------------------------------------------------------------------


def tables_of(paths: Sequence[Path], config: Mapping[str, Any]) -> dict[str, Path]:
    """A site per table, named as its file is; each must hold the columns of the app's config."""
    columns = [config[name] for name in ("user", "target") if name in config]
    columns += config["features"].split(",") if "features" in config else []
    found: dict[str, Path] = {}
    for path in paths:
        site = check_site(path.name.partition(".")[0])
        if site in found:
            raise ValueError(f"{path} and {found[site]} would both be site {site!r}: rename one.")
        if not path.is_file():
            raise ValueError(f"There is no file {path}.")
        try:
            check_columns(columns, read_column_names(path))
        except InputError as error:
            raise error.of_file(path.name, 0) from None
        found[site] = path.resolve()
    return found


# -- one run ---------------------------------------------------------------------------------------


def check_place(folder: Path, *, force: bool) -> None:
    """Refuse a folder that is in use, or that holds files a trial did not write."""
    if (folder / STATE).is_file() and Deployment.read(folder).running():
        raise ValueError(f"{folder} is up already: say `odcl flower down {folder}` first.")
    check_folder(folder, force=force, own=OWN)


def try_out(
    deployment: Deployment,
    nodes: Mapping[str, Mapping[str, Any]],
    app: Path,
    config: Mapping[str, Any],
    stage: Callable[[str], None],
) -> Path:
    """Start nodes by site, each with its config, and run the app once; the folder of its result.

    The deployment is up when this returns; on any error or interruption all of it is ended.
    """
    models, result, n = deployment.folder / "models", deployment.folder / "result", len(nodes)
    try:
        models.mkdir(mode=0o700)
        at = {site: [str(models / f"{site}.{end}") for end in ("csv", "ledger")] for site in nodes}
        own = {s: {"site": s, "models": path, "ledger": spent} for s, (path, spent) in at.items()}
        deployment.up({site: {**own[site], **nodes[site]} for site in nodes}, stage)
        stage("one round")
        told = {"min-replies": n, "nodes": n, "result-dir": str(result), **config}
        run_id = deployment.run(app, told)
        run = deployment.wait(run_id, 2 * app_config(app).get("timeout", 600.0) + 120)
        log = deployment.logs / "run.log"
        log.write_text(deployment.run_log(run_id), encoding="utf-8")
        if run["status"] != COMPLETED:
            raise DeploymentError(
                f"the run is {run['status']} ({run['status-details']}): {deployment.tail('run')}"
            )
    except BaseException:
        deployment.down()
        raise
    return result
