"""A deployment to try things on: tables to hand out to its nodes, one run, what came of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Array, Ints
from odcl.artifact.arrays import id_from_json
from odcl.data.schema import check_columns
from odcl.data.synthetic import store_tables
from odcl.data.tables import read_column_names, read_table
from odcl.data.write import write_table
from odcl.engines.files.names import check_site
from odcl.engines.flower.app import app_folder
from odcl.engines.flower.deployment import STATE, Deployment, DeploymentError
from odcl.errors import InputError
from odcl.files import check_folder

# What stands in the folder of a trial; whatever else does, is somebody's own.
OWN = (
    *(STATE, "certs/", "data/", "home/", "logs/", "models/", "result/", "result.arrived/"),
    *(f"superlink.db{ending}" for ending in ("", "-shm", "-wal", "-journal")),
)


@dataclass(frozen=True, eq=False)
class Trial:
    """A run on a deployment that is up, and the models that its nodes were sent."""

    deployment: Deployment
    sites: tuple[str, ...]
    run_id: int
    users: Array  # (n_users,)
    labels: Ints  # (n_users,), each user's group
    n_rows: Ints  # (n_users,)
    result: Path

    @property
    def reason(self) -> str:
        """How the groups came about."""
        report = json.loads((self.result / "report.json").read_text(encoding="utf-8"))
        return str(report["reason"])


def check_place(folder: Path, *, force: bool) -> None:
    """Refuse a folder that is in use, or that holds what a trial did not write."""
    if (folder / STATE).is_file() and Deployment.read(folder).processes():
        raise ValueError(f"{folder} is up already: say `odcl flower down {folder}` first.")
    check_folder(folder, force=force, own=OWN)


def tables_of(files: Sequence[Path]) -> dict[str, Path]:
    """A site per table, named as its file is."""
    found: dict[str, Path] = {}
    for path in files:
        site = check_site(path.name.partition(".")[0])
        if site in found:
            raise ValueError(f"{path} and {found[site]} would both be site {site!r}: rename one.")
        if not path.is_file():
            raise ValueError(f"There is no file {path}.")
        found[site] = path.resolve()
    return found


def check_tables(tables: Mapping[str, Path], columns: Sequence[str]) -> None:
    """Refuse tables that lack a column before anything is started for them."""
    for path in tables.values():
        try:
            check_columns(columns, read_column_names(path))
        except InputError as error:
            raise error.of_file(path.name, 0) from None


def made_tables(folder: Path, n_sites: int, *, seed: int = 0) -> dict[str, Path]:
    """60 made stores, handed out to so many sites by turns: a file per site."""
    stores = store_tables(seed)[0]
    names, owner = np.unique(stores["store"], return_inverse=True)
    if n_sites > len(names):
        raise ValueError(f"{n_sites} nodes are more than the {len(names)} made stores: name fewer.")
    folder.mkdir(mode=0o700)
    found = {}
    for i in range(n_sites):
        path = folder / f"site-{i + 1}.csv"
        rows = owner % n_sites == i
        write_table(path, {name: column[rows] for name, column in stores.items()})
        found[f"site-{i + 1}"] = path
    return found


def try_out(
    deployment: Deployment,
    tables: Mapping[str, Path],
    config: Mapping[str, Any],
    *,
    app: Path | None = None,
    timeout: float = 600.0,
    stage: Callable[[str], None] = lambda _: None,
) -> Trial:
    """Start everything, run the app once and read what its nodes were sent.

    The deployment is up when this returns; if anything goes wrong, or the user interrupts, all of
    it is ended.
    """
    models, result = deployment.folder / "models", deployment.folder / "result"
    try:
        models.mkdir(mode=0o700)
        nodes = {
            site: {"site": site, "data": str(path), "models": str(models / f"{site}.csv")}
            for site, path in tables.items()
        }
        deployment.up(nodes, stage)
        stage("one round")
        n = len(nodes)
        told = {"min-replies": n, "nodes": n, "result-dir": str(result), **config}
        run_id = deployment.run(app or app_folder("table"), told)
        status = deployment.wait(run_id, timeout)
        (deployment.logs / "run.log").write_text(deployment.run_log(run_id), encoding="utf-8")
        if not status.is_good:
            why = status.details or f"it is {status.status} after {timeout:g} s"
            error = DeploymentError(f"the run failed: {why} (see {deployment.logs / 'run.log'})")
            site_of = {number: site for site, number in deployment.registered.items()}
            for line in _set_aside(deployment.logs / "run.log", site_of):
                error.add_note(line)
            raise error
        found = _models(deployment, tables, config["user"])
        return Trial(deployment, tuple(tables), run_id, *found, result)
    except BaseException:
        deployment.down()
        raise


def _models(up: Deployment, sites: Iterable[str], user: str) -> tuple[Array, Ints, Ints]:
    """Users and groups as every node kept them, and the rows that each user's model is of.

    The server may know users by digests: it names those of a node in the node's own order.
    """
    result = up.folder / "result"
    kept = [read_table(up.folder / "models" / f"{site}.csv", text=(user,)) for site in sites]
    users = np.array([name for own in kept for name in own[user].to_pylist()])
    labels = np.array([label for own in kept for label in own["group"].to_pylist()])
    listed = read_table(result / "assignment.csv", text=(user,))
    rows = dict(zip(listed[user].to_pylist(), listed["rows"].to_pylist(), strict=True))
    nodes = json.loads((result / "nodes.json").read_text(encoding="utf-8"))["nodes"]
    called = [id_from_json(one) for site in sites for one in nodes[up.registered[site]]["users"]]
    order = np.argsort(users, kind="stable")
    return users[order], labels[order], np.array([rows[str(one)] for one in called])[order]


def _set_aside(log: Path, site_of: Mapping[str, str], most: int = 5) -> list[str]:
    """What a run's log says of nodes that were set aside, the first few, by their sites."""
    lines = log.read_text(encoding="utf-8").splitlines()
    found = (re.search(r"Node (\d+) (is set aside: .*)", line) for line in lines)
    named = (f"{site_of.get(one[1], f'node {one[1]}')} {one[2]}" for one in found if one)
    return list(dict.fromkeys(named))[:most]
