"""A node of the paper's linear federation: one user, whose number is the node's."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import Context

from odcl.data.federation import Federation
from odcl.data.synthetic import linear_federation
from odcl.engines.flower import NodeModels, make_client_app


@lru_cache(maxsize=1)
def federation(n_users: int, n_samples: int, seed: int) -> Federation:
    return linear_federation(n_users, n_samples, n_clusters=10, seed=seed)


def load(context: Context) -> Federation:
    config = context.run_config
    whole = federation(config["n-users"], config["n-samples"], config["seed"])
    return whole.take(np.array([context.node_config["partition-id"]]))


def keep(found: NodeModels, context: Context) -> None:
    """The model stays with its node; here for whoever looks at the simulation as a whole."""
    place = Path(context.run_config["out"]) / f"{context.node_config['partition-id']}.npz"
    np.savez(place, models=found.models, labels=found.labels)


app = make_client_app(load, on_model=keep)
