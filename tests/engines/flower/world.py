"""A Flower federation in one process: a grid that runs the real ClientApp, and nodes to put on it.

``Message(...)`` outside a task raises unless the task's identity is set, which is done here.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from odcl.data.federation import Federation
from odcl.engines.flower import NodeModels, make_client_app
from odcl.engines.flower.template import app_folder
from tests.helpers import logistic_labels, poisson_counts

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
MODELS = np.array([[2.0, -1.0, 1.0], [-2.0, 1.0, 0.0]])  # of the two groups
SUPERLINK = 1  # the source of errors that the SuperLink makes


@dataclass
class Node:
    """A SuperNode: its app, its config, and what it does to replies."""

    app: Any
    config: dict[str, Any] = field(default_factory=dict)
    spoil: Callable[[Message], Message | None] | None = None  # None: silence
    state: RecordDict = field(default_factory=RecordDict)
    forgets: bool = False  # every message finds another process
    asked: list[str] = field(default_factory=list)  # types of the messages that came
    run_config: dict[str, Any] = field(default_factory=lambda: {"names": "plain"})

    def answer(self, node_id: int, message: Message) -> Message | None:
        self.asked.append(message.metadata.message_type)
        state = RecordDict() if self.forgets else self.state
        context = Context(1, node_id, self.config, state, self.run_config)
        try:
            reply = self.app(message, context)
        except Exception as error:
            reply = Message(
                Error(2, f"Traceback ...\n{type(error).__name__}: {error}"), reply_to=message
            )
        return reply if self.spoil is None else self.spoil(reply)


class FakeGrid(Grid):
    """Replies are there at the first look after the request, unless nodes are silent."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.online = dict(nodes)
        self.waiting: dict[str, Message] = {}
        self.looks = 0
        self.appear: dict[int, dict[int, Node]] = {}  # at a look for nodes -> who is there then

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("strategies make their messages themselves")

    def get_node_ids(self) -> list[int]:
        self.looks += 1
        self.online |= self.appear.pop(self.looks, {})
        return list(self.online)

    def push_messages(self, messages: Any) -> list[str]:
        ids = []
        for message in messages:
            own = str(uuid4())
            message.metadata.__dict__["_message_id"] = own
            node = self.online.get(message.metadata.dst_node_id)
            reply = None if node is None else node.answer(message.metadata.dst_node_id, message)
            if reply is not None:
                self.waiting[own] = reply
            ids.append(own)
        return ids

    def pull_messages(self, message_ids: Any) -> list[Message]:
        there = [self.waiting.pop(own) for own in list(message_ids) if own in self.waiting]
        random.Random(len(there)).shuffle(there)
        return there

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def federation(risk: Any = "squared", *, m: int = 12, n: int = 30, seed: int = 0) -> Federation:
    """Users u00, u01, ... in two groups by turns, with targets as the loss takes them."""
    name = risk if isinstance(risk, str) else risk.loss.name
    rng = np.random.default_rng(seed)
    X, owner = rng.normal(size=(m * n, 3)), np.repeat(np.arange(m), n)
    z = (X * MODELS[owner % 2]).sum(axis=1)
    y = z + 0.3 * rng.normal(size=m * n)
    if name == "logistic":
        y = logistic_labels(z, rng)
    elif name == "multinomial":
        y = (z > -0.5).astype(float) + (z + rng.normal(size=len(z)) > 1)
    elif name == "poisson":
        y = poisson_counts(z, rng).astype(float)
    return Federation.from_arrays(X, y, [f"u{i:02d}" for i in owner])


def parts_of(federation: Federation, n_nodes: int) -> list[Federation]:
    """The users of a federation by turns on so many nodes."""
    m = federation.n_users
    return [federation.take(np.arange(i, m, n_nodes)) for i in range(n_nodes)]


def grid_of(
    parts: Any, got: dict[Any, NodeModels] | None = None, *, seed: int = 0, **options: Any
) -> FakeGrid:
    """A grid with a node for each part, under ids in no order; ``got`` takes what nodes receive."""

    def keep(found: NodeModels, context: Context) -> None:
        if got is not None:
            for i, user in enumerate(found.users.tolist()):
                got[user] = found.models[i], found.labels[i], found

    ids = random.Random(seed).sample(range(10**15), len(parts))
    nodes = {}
    for i, (node_id, part) in enumerate(zip(ids, parts, strict=True)):
        app = make_client_app(lambda context, part=part: part, on_model=keep, **options)
        nodes[node_id] = Node(app, {"partition-id": i})
    return FakeGrid(nodes)


def models_of(got: dict[Any, Any], users: Any) -> Any:
    """Models of users in this order, (n_users, dim)."""
    return np.array([got[user][0] for user in users.tolist()])


def app_config() -> dict[str, Any]:
    """The settings of the new app's runs, before any ``flwr run -c``."""
    words = tomllib.loads((app_folder() / "pyproject.toml").read_text(encoding="utf-8"))
    return words["tool"]["flwr"]["app"]["config"]
