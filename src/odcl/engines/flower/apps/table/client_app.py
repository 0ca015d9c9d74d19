"""A node: the rows of its own users, and their models, which stay here.

A node of a deployment is started with `--node-config 'data="/path/rows.csv"'`, and with
`models="/path/models.csv"` where it is to keep its users' models. A node of a simulation has no
file of its own: it gets its share of the users of the table that the run's `data` names, or of some
made stores, so that `flwr run` has something to show at once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Context

from odcl.data.federation import Federation
from odcl.data.source import federation_from_table
from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from odcl.engines.files.envelope import Refused
from odcl.engines.flower import NodeData, NodeModels, make_client_app
from odcl.errors import InputError, Rule, Setting


def load(context: Context) -> NodeData:
    """The node's rows, and the rows that are held out."""
    config = context.run_config
    rows = rows_of(context)
    first = np.arange(len(rows.y)) - rows.offsets[:-1][rows.row_user]  # place among the user's own
    test = first >= np.ceil((1 - config["holdout"]) * rows.n_rows)[rows.row_user]
    if not test.any():
        return NodeData(rows)
    return NodeData(rows.select_rows(~test), rows.select_rows(test))


def rows_of(context: Context) -> Federation:
    config, node = context.run_config, context.node_config
    if "data" in node:
        return read(node["data"], config)
    if "partition-id" not in node:
        raise Refused("This node has no rows: start it with --node-config 'data=\"FILE\"'.")
    everybody = read(config["data"] or store_tables(0)[0], config)
    mine = np.arange(node["partition-id"], everybody.n_users, node["num-partitions"])
    if len(mine) == 0:
        raise Refused(f"There are more nodes than the {everybody.n_users} users of the table.")
    return everybody.take(mine)


def read(table: Any, config: Mapping[str, Any]) -> Federation:
    """A table's users. Every node would number categories in its own way: numbers only."""
    features = config["features"].split(",")
    roles = {"user": config["user"], "target": config["target"], "features": features}
    # Private uploads hide a row that is left out; not a node that stops because of one.
    missing = "drop" if config["epsilon"] else "error"
    try:
        rows, schema = federation_from_table(table, **roles, missing=missing)
    except InputError as error:
        if not any(isinstance(part, Setting) and part.name == "categorical" for part in error.args):
            raise
        rule, advice = error.rule, "Write categories as columns of 0 and 1, at all nodes."
        raise InputError(Rule(f"{rule}. {advice}")) from error
    if list(schema.columns) != features:
        raise Refused(
            "A column holds categories, which every node would number in its own way: write them "
            "as columns of 0 and 1 that all nodes agree on."
        )
    return rows


def keep(found: NodeModels, context: Context) -> None:
    """The node's models: a row per user, with the group that it belongs to."""
    path = context.node_config.get("models")
    if path is None:
        return
    bends = [name for curve in found.request.risk.curves for name in curve.bends]
    names = [*context.run_config["features"].split(","), *bends, "intercept"]
    columns = dict(zip(names, found.models.T, strict=True))
    write_table(path, {context.run_config["user"]: found.users, "group": found.labels, **columns})


app = make_client_app(load, on_model=keep)
