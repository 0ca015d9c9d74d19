"""The paper's linear federation on Flower's simulation engine: a node per user, one round."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcl._typing import Floats, Ints
from odcl.engines.flower.app import app_folder
from odcl.engines.flower.deployment import Deployment, DeploymentError


@dataclass(frozen=True, eq=False)
class Simulated:
    """What the nodes of a simulation were sent, and how long it took."""

    models: Floats  # (n_users, dim)
    labels: Ints  # (n_users,)
    reason: str  # how the groups came about
    n_clusters: int
    bytes_up: int  # of all users
    bytes_down: int
    seconds: float  # of the round alone
    total: float  # with the start and the end of Flower's programs, in seconds


def simulate(
    n_nodes: int,
    *,
    n_samples: int = 100,
    seed: int = 0,
    timeout: float = 600.0,
    folder: str | os.PathLike[str] | None = None,
) -> Simulated:
    """Run it on a SuperLink of its own, in a folder that goes away unless one is given.

    ``timeout`` bounds each of the two rounds, in seconds. No process outlives the call.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="odcl-") as temporary:
        place = Path(folder or temporary) / "simulation"
        with Deployment.make(place, simulation=True) as deployment:
            out = place / "out"
            out.mkdir()
            deployment.start_superlink()
            words = {"n-users": n_nodes, "n-samples": n_samples, "seed": seed}
            config = {**words, "timeout": timeout, "out": str(out)}
            run_id = deployment.run(app_folder("paper"), config, nodes=n_nodes)
            status = deployment.wait(run_id, 2 * timeout + 120)
            if not status.is_good:
                log = " | ".join(deployment.run_log(run_id).splitlines()[-5:])
                raise DeploymentError(f"the simulation is {status.status}: {status.details} {log}")
        nodes = [np.load(out / f"{i}.npz") for i in range(n_nodes)]
        said = json.loads((out / "said.json").read_text(encoding="utf-8"))
        return Simulated(
            np.concatenate([node["models"] for node in nodes]),
            np.concatenate([node["labels"] for node in nodes]),
            **said,
            total=time.monotonic() - began,
        )
