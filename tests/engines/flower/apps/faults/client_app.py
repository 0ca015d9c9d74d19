"""Nodes of a made federation, some of which do wrong: ``faults`` of the run says who does what."""

import os
import signal
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from odcl.data.synthetic import linear_federation
from odcl.engines.flower import NodeModels, make_client_app

N_NODES = 9


def load(context: Context):
    """Three users of 27 per node, by turns."""
    whole = linear_federation(27, 60, n_clusters=4, dim=6, seed=5)
    return whole.take(np.arange(context.node_config["partition-id"], 27, N_NODES))


def keep(found: NodeModels, context: Context) -> None:
    np.savez(context.node_config["out"], users=found.users, models=found.models)


good = make_client_app(load, on_model=keep)
app = ClientApp()


def fault_of(context: Context) -> str:
    pairs = (pair.split(":") for pair in context.run_config["faults"].split(",") if pair)
    return dict(pairs).get(context.node_config["site"], "")


def wait_for(flag: Path) -> None:
    """Fit until a file says that it is enough; two minutes at most."""
    for _ in range(1200):
        if flag.exists():
            return
        time.sleep(0.1)


@app.train()
def train(message: Message, context: Context) -> Message:
    fault, flags = fault_of(context), Path(context.run_config["flags"])
    if context.run_config["flags"]:
        (flags / f"fitting-{context.node_config['site']}").touch()
    if fault == "raises":
        raise RuntimeError("the rows are not where they were")
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault in ("silent", "slow"):
        wait_for(flags / ("never" if fault == "silent" else "enough"))
    reply = good(message, context)
    records = reply.content
    (arrays,) = records.array_records.values()
    (words,) = records.config_records.values()
    if fault == "nan":
        _replace(arrays, lambda array: np.full_like(array, np.nan))
    if fault == "shape":
        _replace(arrays, lambda array: array[..., :-1] if array.ndim > 1 else array)
    if fault == "task":
        words["task"] = "0" * 64
    return reply


def _replace(arrays: ArrayRecord, change) -> None:
    for name, array in list(arrays.items()):
        arrays[name] = Array(np.ascontiguousarray(change(array.numpy())))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return good(message, context)
