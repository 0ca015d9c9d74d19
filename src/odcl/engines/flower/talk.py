"""Rounds with nodes, the server's side: questions, answers that are checked, and who is set aside.

How answers become the next models is in :mod:`odcl.rounds.server`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, MessageType, RecordDict

from odcl._typing import Array, Floats, Ints
from odcl.artifact.arrays import ArraySpec, expect
from odcl.data.federation import as_ids, group_rows
from odcl.engines.arrivals import MOST_SIZE, expect_users
from odcl.engines.files.envelope import Refused, refusing
from odcl.engines.flower.node import alike, own_ids, within_nodes
from odcl.engines.flower.records import arrays_of, config_of, content, metrics_of
from odcl.engines.flower.request import Request, check_digest, ids_from_text, ids_to_text
from odcl.engines.flower.rounds import ACTION, Round
from odcl.engines.flower.transport import Reply, message_to
from odcl.rounds.users import Answers

log = logging.getLogger("flwr")
RUN_AWAY = 1e20  # a model with larger numbers has left its descent: the step was too long


def question(
    request: Request, ask: Round, models: Floats, labels: Ints | None = None, users: Any = None
) -> RecordDict:
    """Records of a question; ``labels`` and ``users`` say which model is whose, where that is
    settled."""
    arrays: dict[str, Array] = {"models": models}
    words = {**request.config(), "round": ask.words()}
    if labels is not None:
        arrays["labels"] = labels.astype(np.int64)
        words["users"] = ids_to_text(own_ids(users))
    return content(arrays, words)


@dataclass(frozen=True, eq=False)
class NodeAnswer:
    """What the users of a node answered."""

    node: int
    users: Array  # (n_users,), ids
    labels: Ints  # (n_users,), the model each worked on
    risk: Floats  # (n_users,), of that model
    replies: Floats | None  # (n_users, dim), gradients or models
    smoothness: Floats | None  # (n_users,)
    metrics: Mapping[str, float]

    @property
    def table(self) -> tuple[str, ...]:
        """What nodes share if they hold one table."""
        numbers = (a for a in (self.risk, self.replies, self.smoothness) if a is not None)
        return ids_to_text(self.users), *(a.tobytes().hex() for a in numbers)


def read_answer(
    request: Request,
    ask: Round,
    shape: tuple[int, int],
    node: int,
    message: Message,
    users: Sequence[Any] | None = None,
) -> NodeAnswer:
    """A node's answer to models of this shape; a Refused error says why it is not taken.

    ``users``, where they are known, are those that the question was for.
    """
    k, dim = shape
    with refusing():
        words = config_of(message)
        check_digest(request, words)
        expect(words.get("number") == ask.number, "it answers another round than this one")
        ids = ids_from_text(words.get("users"))
        expect_users(len(ids))
        expect(users is None or ids.tolist() == list(users), "it answers for other users")
        arrays = arrays_of(message, _answer_specs(ask, dim), users=len(ids))
        labels = arrays["labels"].astype(np.intp)
        expect(bool(((labels >= 0) & (labels < k)).all()), "it names a model that is not there")
        for name in arrays.keys() - {"labels", "risk"}:  # a risk is only looked at
            inside = bool((np.abs(arrays[name]) < MOST_SIZE).all())
            expect(inside, f"{name} holds numbers beyond {MOST_SIZE:g}")
        smooth = arrays.get("smoothness")
        expect(smooth is None or bool((smooth >= 0).all()), "a smoothness below zero")
        metrics = dict(metrics_of(message))
        return NodeAnswer(node, ids, labels, arrays["risk"], arrays.get("replies"), smooth, metrics)


def _answer_specs(ask: Round, dim: int) -> dict[str, ArraySpec]:
    specs = {"labels": ArraySpec(("users",), ("int64",)), "risk": ArraySpec(("users",))}
    if ask.replies:
        specs["replies"] = ArraySpec(("users", dim))
    if ask.radius is not None:
        specs["smoothness"] = ArraySpec(("users",))
    return specs


@dataclass(frozen=True, eq=False)
class Heard:
    """The answers of all users, in the order of their own ids."""

    users: Array  # (n_users,), ids
    answers: Answers  # of one start
    smoothness: Floats | None  # (n_users,)

    @classmethod
    def of(cls, parts: Iterable[NodeAnswer], models: Floats) -> Heard:
        """Answers to ``models``, (n_models, dim); no user may be there twice."""
        found = list(parts)
        users = as_ids([user for part in found for user in part.users.tolist()])
        order = np.argsort(group_rows(users)[1], kind="stable")

        def stacked(name: str) -> Any:
            values = [getattr(part, name) for part in found]
            return None if values[0] is None else np.concatenate(values)[order]

        labels = stacked("labels")
        replies = stacked("replies")
        picked = models[labels]
        replies = picked if replies is None else replies
        each = (a[:, None] for a in (labels, picked, stacked("risk"), replies))
        return cls(users[order], Answers(*each), stacked("smoothness"))


class _Open(NamedTuple):
    """A question that is open."""

    ask: Round
    shape: tuple[int, int]  # of the models that were sent
    own: tuple[Array, Ints] | None  # the node's users, and their groups, where these are settled
    places: Ints | None  # (n_users,), of their groups' models among those that were sent


class Talk:
    """Rounds with nodes: what they answer, and who was set aside on the way.

    A node that is set aside is not asked again: however it fails, it costs one timeout.
    """

    def __init__(self, request: Request, timeout: float) -> None:
        self.request, self.timeout = request, timeout
        self.aside: dict[int, str] = {}  # by node, why
        self._open: dict[int, _Open] = {}

    def messages(
        self,
        ask: Round,
        models: Floats,
        nodes: Iterable[int],
        *,
        own: Mapping[int, tuple[Array, Ints]] | None = None,
        last: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> list[Message]:
        """Questions to nodes that were not set aside.

        ``own``: node -> (its users' ids, their groups). Such a node is sent the models of these
        groups and no other. ``last``: nodes keep what comes.
        """
        kind = f"{MessageType.EVALUATE if last else MessageType.TRAIN}.{ACTION}"
        self._open, asked = {}, []
        for node in nodes:
            if node in self.aside:
                continue
            sent, places, users = models, None, None
            if own is not None:
                users, labels = own[node]
                groups, places = np.unique(labels, return_inverse=True)
                sent, places = models[groups], places.reshape(-1)
            records = question(self.request, ask, sent, places, users)
            for name, value in (more or {}).items():
                records["config"].setdefault(name, value)
            self._open[node] = _Open(ask, sent.shape, None if own is None else own[node], places)
            asked.append(message_to(node, kind, records, self.timeout, ask.number))
        return asked

    def heard(self, replies: Iterable[Reply]) -> dict[int, NodeAnswer]:
        """Answers by node, of those that can be taken."""
        found: dict[int, NodeAnswer] = {}
        for reply in replies:
            if reply.message is None:
                self._set_aside(reply.node, reply.why)
                continue
            try:
                found[reply.node] = self._read(reply.node, reply.message)
            except Refused as error:
                self._set_aside(reply.node, str(error))
        for node, why in alike({node: one.table for node, one in found.items()}):
            self._set_aside(node, why)
            del found[node]
        new = {n: one.users for n, one in found.items() if self._open[n].own is None}
        for node, users in within_nodes(new).items():
            found[node] = replace(found[node], users=users)
        return {node: found[node] for node in sorted(found)}

    def _read(self, node: int, message: Message) -> NodeAnswer:
        open_ = self._open[node]
        if open_.own is None or open_.places is None:
            return read_answer(self.request, open_.ask, open_.shape, node, message)
        users, groups = open_.own
        sent = own_ids(users).tolist()
        one = read_answer(self.request, open_.ask, open_.shape, node, message, sent)
        with refusing():
            same = np.array_equal(one.labels, open_.places)
            expect(same, "it answers to other models than its users' own")
        return replace(one, users=users, labels=groups)

    def _set_aside(self, node: int, why: str) -> None:
        self.aside[node] = why
        log.warning("Node %d is set aside: %s", node, why)
