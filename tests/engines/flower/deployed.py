"""Deployments for tests: nodes of one made federation, real processes, and what they were sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from odcl.data.synthetic import linear_federation
from tests.engines.flower.deployment import COMPLETED, Deployment

FAULTS = Path(__file__).parent / "apps" / "faults"
N_NODES = 9  # among which 27 users are handed out by turns
SITES = [f"n{i}" for i in range(N_NODES)]


def users_of(site: str) -> np.ndarray:
    return np.arange(SITES.index(site), 27, N_NODES)


def federation(sites: list[str]) -> Any:
    """The users of these sites, as they would be in one place."""
    whole = linear_federation(27, 60, n_clusters=4, dim=6, seed=5)
    return whole.take(np.sort(np.concatenate([users_of(site) for site in sites])))


class Round(NamedTuple):
    """A run, and what it left behind."""

    run_id: int
    status: str  # as Flower says it
    folder: Path

    @property
    def is_good(self) -> bool:
        return self.status == COMPLETED

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "nodes.json").read_text())


class Federated:
    """A deployment under test."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.flags = deployment.folder / "flags"
        self.models = deployment.folder / "models"
        for folder in (self.flags, self.models):
            folder.mkdir()

    def node_config(self, site: str) -> dict[str, Any]:
        out = str(self.models / f"{site}.npz")
        return {"site": site, "partition-id": SITES.index(site), "out": out}

    def start(self, sites: list[str]) -> None:
        self.deployment.up({site: self.node_config(site) for site in sites})

    def run(self, name: str, **config: Any) -> tuple[int, Path]:
        result = self.deployment.folder / name
        words = {key.replace("_", "-"): value for key, value in config.items()}
        words |= {"result-dir": str(result), "flags": str(self.flags)}
        return self.deployment.run(FAULTS, words), result

    def finished(self, name: str, *, seconds: float = 150.0, **config: Any) -> Round:
        run_id, result = self.run(name, **config)
        return Round(run_id, self.deployment.wait(run_id, seconds)["status"], result)

    def model_of(self, site: str) -> np.ndarray:
        """The models of a site's users, as its node received them."""
        with np.load(self.models / f"{site}.npz") as stored:
            assert stored["users"].tolist() == users_of(site).tolist()
            return stored["models"]

    def why_set_aside(self, outcome: Round) -> dict[str, str]:
        """Reasons by site: a run knows nodes by Flower's own ids."""
        site_of = {f"node {number}": site for site, number in self.deployment.registered.items()}
        return {site_of[one["node"]]: one["reason"] for one in outcome.report["set_aside"]}
