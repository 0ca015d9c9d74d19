"""The paper's linear federation: a node per user, whose number is the node's, and one round."""

from functools import lru_cache

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from odcl.data.federation import Federation
from odcl.data.synthetic import linear_federation
from odcl.engines.flower import ODCL, make_client_app

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    limits = {"min_replies": config["n-users"], "timeout": config["timeout"]}
    ODCL(seed=config["seed"], result_dir=config["result-dir"], **limits).start(grid)


@lru_cache(maxsize=1)
def federation(n_users: int, seed: int) -> Federation:
    return linear_federation(n_users, 100, n_clusters=10, seed=seed)


def load(context: Context) -> Federation:
    whole = federation(context.run_config["n-users"], context.run_config["seed"])
    return whole.take(np.array([context.node_config["partition-id"]]))


client = make_client_app(load)
