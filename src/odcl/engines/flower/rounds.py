"""Rounds with nodes: models go out, each user answers to one of them, and the next models follow.

What users compute is :mod:`odcl.rounds.steps`, how answers become models :mod:`odcl.rounds.steps`;
both serve the rounds of one process as well. Questions travel as ``train.rounds``, the last models
as ``evaluate.rounds``, beside the one shot's own messages: one ClientApp answers to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from odcl._typing import Array, Floats, Ints
from odcl.artifact.arrays import ArraySpec, expect, json_bytes, parse_json
from odcl.data.federation import as_ids, group_rows, positions
from odcl.declared import Count, Size, fields_from_json, fields_to_json
from odcl.engines.files.envelope import refusing
from odcl.engines.flower.messages import (
    TooFewReplies,
    arrays_of,
    ask,
    config_of,
    content,
    expect_replies,
    log,
    message_to,
    metrics_of,
)
from odcl.engines.flower.node import own_ids, same_tables, within_nodes
from odcl.engines.flower.request import Request, ids_from_text, ids_to_text
from odcl.engines.wire import MOST_SIZE, SetAside, expect_users, nodes_aside
from odcl.exchange.ledger import Exchange, Ledger
from odcl.rounds.steps import (
    Answers,
    Average,
    Work,
    ball_around,
    descend_in_clusters,
    steps_in_clusters,
)
from odcl.server.combine import average_by_cluster
from odcl.server.result import ServerStep

ACTION = "rounds"
RUN_AWAY = 1e20  # a model with larger numbers has left its descent: the step was too long


@dataclass(frozen=True)
class Round:
    """What users are asked to do with the models that come."""

    number: Count
    average: Average = "gradients"
    step_size: Size = 1.0  # of local steps
    n_steps: Count = 1
    radius: Size | None = None  # of the ball over which they tell how smooth their risk is
    replies: bool = True  # False: they only choose a model

    def work(self) -> Work:
        return Work(self.average, self.step_size, self.n_steps if self.replies else 0)

    def words(self) -> str:
        return json_bytes(fields_to_json(self), indent=None).decode()

    @classmethod
    def from_words(cls, text: Any) -> Round:
        expect(isinstance(text, str), "it holds no round")
        return fields_from_json(cls, parse_json(text.encode()), "round")

    def specs(self, dim: int) -> dict[str, ArraySpec]:
        """The arrays of a node's answer."""
        specs = {"labels": ArraySpec(("users",), ("int64",)), "risk": ArraySpec(("users",))}
        if self.replies:
            specs["replies"] = ArraySpec(("users", dim))
        if self.radius is not None:
            specs["smoothness"] = ArraySpec(("users",))
        return specs

    def exchange(self, n_users: int, n_models: int, dim: int, *, chosen: bool) -> Exchange:
        """What each user sends and receives; the number of a model only where users choose it."""
        sends: tuple[tuple[int, ...], ...] = ((dim,),) * self.replies + ((),)
        sends += ((),) * chosen + ((),) * (self.radius is not None)
        return Exchange(n_users, sends=sends, receives=n_models * ((dim,),))


@dataclass(frozen=True, eq=False)
class RoundAnswers:
    """The answers of all users to one question, in the order of their ids."""

    users: Array  # (n_users,), ids
    answers: Answers  # of one start
    smoothness: Floats | None  # (n_users,)
    nodes: Mapping[int, tuple[Any, ...]]  # node -> the ids of its users
    metrics: Mapping[int, Mapping[str, float]]  # node -> what it said of the models


@dataclass(frozen=True, eq=False)
class _NodeAnswer:
    users: Array
    arrays: dict[str, Array]  # as Round.specs declares them
    metrics: Mapping[str, float]

    @property
    def table(self) -> tuple[str, ...]:
        """A key that nodes share if they hold one table."""
        numbers = (array for name, array in self.arrays.items() if name != "labels")
        return ids_to_text(self.users), *(array.tobytes().hex() for array in numbers)


class RoundServer:
    """Asks nodes round after round.

    A node that is set aside is not asked again: however it fails, it costs one timeout.
    """

    def __init__(self, grid: Grid, request: Request, timeout: float, min_replies: int) -> None:
        self.grid, self.request = grid, request
        self.timeout, self.min_replies = timeout, min_replies
        self.aside: dict[int, str] = {}  # by node, why

    def ask(
        self,
        question: Round,
        models: Floats,
        groups: Mapping[int, tuple[Array, Ints]] | None = None,
        *,
        last: bool = False,
    ) -> RoundAnswers:
        """All users' answers to ``models`` (n_models, dim), or :class:`TooFewReplies`.

        ``groups``: node -> (its users' ids, their models' numbers), where users do not choose. Such
        a node is sent the models of these groups and no other. ``last``: nodes keep what comes.
        """
        there = sorted(set(self.grid.get_node_ids()) - self.aside.keys())
        kind = f"{MessageType.EVALUATE if last else MessageType.TRAIN}.{ACTION}"
        words = {**self.request.config(), "round": question.words()}
        sent: dict[int, Floats] = {}
        own: dict[int, Ints] = {}  # each user's model among those sent to its node
        messages = []
        for node in there if groups is None else sorted(groups.keys() & set(there)):
            arrays: dict[str, Array] = {"models": models}
            more = {}
            if groups is not None:
                users, labels = groups[node]
                used, places = np.unique(labels, return_inverse=True)
                own[node] = places.reshape(-1)
                arrays = {"models": models[used], "labels": own[node].astype(np.int64)}
                more = {"users": ids_to_text(own_ids(users))}
            sent[node] = arrays["models"]
            records = content(arrays, {**words, **more})
            messages.append(message_to(node, kind, records, self.timeout, question.number))

        def read(node: int, message: Message) -> _NodeAnswer:
            with refusing():
                one = _read_answer(self.request, question, sent[node].shape, message)
                if groups is None:
                    return one
                users, labels = groups[node]
                expect(one.users.tolist() == own_ids(users).tolist(), "it answers for other users")
                same = np.array_equal(one.arrays["labels"], own[node])
                expect(same, "it answers to other models than its users' own")
                return replace(one, users=users, arrays={**one.arrays, "labels": labels})

        found, aside = ask(self.grid, messages, self.timeout, read)
        twins = same_tables({node: one.table for node, one in found.items()})
        for node, why in twins.items():
            log.warning("Node %d is set aside: %s", node, why)
        self.aside |= aside | twins
        found = {node: found[node] for node in sorted(found.keys() - twins.keys())}
        expect_replies(len(found), self.min_replies, self.aside, f" in round {question.number}")
        if groups is None:
            named = within_nodes({node: one.users for node, one in found.items()})
            found = {node: replace(one, users=named[node]) for node, one in found.items()}
        return _joined(found, models)


def _read_answer(
    request: Request, question: Round, shape: tuple[int, ...], message: Message
) -> _NodeAnswer:
    """A node's answer to models of this shape; a ValueError says why it is not taken."""
    k, dim = shape
    words = config_of(message)
    request.check(words)
    expect(words.get("number") == question.number, "it answers another round than this one")
    ids = ids_from_text(words.get("users"))
    expect_users(len(ids))
    arrays = arrays_of(message, question.specs(dim), users=len(ids))
    labels = arrays["labels"]
    expect(bool(((labels >= 0) & (labels < k)).all()), "it names a model that is not there")
    for name in arrays.keys() - {"labels", "risk"}:  # a risk is only looked at
        inside = bool((np.abs(arrays[name]) < MOST_SIZE).all())
        expect(inside, f"{name} holds numbers beyond {MOST_SIZE:g}")
    smooth = arrays.get("smoothness")
    expect(smooth is None or bool((smooth >= 0).all()), "a smoothness below zero")
    return _NodeAnswer(ids, arrays, dict(metrics_of(message)))


def _joined(found: Mapping[int, _NodeAnswer], models: Floats) -> RoundAnswers:
    parts = list(found.values())
    users = as_ids([user for part in parts for user in part.users.tolist()])
    order = np.argsort(group_rows(users)[1], kind="stable")
    arrays = {
        name: np.concatenate([part.arrays[name] for part in parts])[order]
        for name in parts[0].arrays
    }
    labels = arrays["labels"].astype(np.intp)
    picked = models[labels]
    each: list[Any] = [labels, picked, arrays["risk"], arrays.get("replies", picked)]
    return RoundAnswers(
        users[order],
        Answers(*(array[:, None] for array in each)),
        arrays.get("smoothness"),
        {node: tuple(one.users.tolist()) for node, one in found.items()},
        {node: one.metrics for node, one in found.items()},
    )


# -- rounds inside the groups after the one shot ---------------------------------------------------


@dataclass(frozen=True, eq=False)
class Refined:
    """The groups' models after some rounds."""

    step: ServerStep  # with the new models
    ledger: Ledger  # of these rounds
    risk: Floats  # (n_rounds,), mean over users of the risk of their group's model before each
    set_aside: tuple[SetAside, ...]  # nodes that fell silent on the way

    @property
    def n_rounds(self) -> int:
        return self.ledger.n_rounds


def refine(
    server: RoundServer, step: ServerStep, nodes: Mapping[int, Iterable[Any]], *, rounds: int
) -> Refined:
    """Improve each group's own model; ``nodes``: node -> its users' ids.

    Users of odcl's risks answer with a gradient at their group's model, which then takes a step of
    1 / mean L_i: in a few rounds that is the pooled fit of the group. Bare models are trained
    further by each user and averaged. A node that fails is set aside and the others go on; where
    fewer than ``min_replies`` are left the rounds end early, and what they reached is the result.
    """
    average: Average = "models" if server.request.bare else "gradients"
    place = {user: i for i, user in enumerate(step.users.tolist())}
    groups = {}
    for node, users in nodes.items():
        at = np.array([place[user] for user in users], dtype=np.intp)
        groups[node] = step.users[at], step.labels[at]
    centers, L = step.centers, np.full(len(step.users), np.nan)
    radius = ball_around(centers) if average == "gradients" else None
    risk: list[float] = []
    ledger = Exchange(0).over(0)
    for t in range(1, rounds + 1):
        question = Round(t, average, radius=radius if t == 1 else None)
        try:
            heard = server.ask(question, centers, groups)
        except TooFewReplies as error:
            log.warning("Rounds inside groups end after %d of %d: %s", t - 1, rounds, error)
            break
        at = positions(step.users, heard.users)
        if heard.smoothness is not None:
            L[at] = heard.smoothness
        used, members = np.unique(step.labels[at], return_inverse=True)
        replies, members, new = heard.answers.replies[:, 0], members.reshape(-1), centers.copy()
        if average == "models":
            new[used] = average_by_cluster(replies, members)
        else:
            steps = steps_in_clusters(L[at], members)
            new[used] = descend_in_clusters(centers[used], replies, members, steps)
        if not bool((np.abs(new) < RUN_AWAY).all()):
            log.warning("Rounds inside groups end after %d: the models run away.", t - 1)
            break
        centers = new
        risk.append(float(heard.answers.mean_risk[0]))
        exchange = question.exchange(len(at), 1, centers.shape[1], chosen=False)
        ledger = ledger.then(exchange.over(1))
    done = replace(step, centers=centers, models=centers[step.labels])
    if ledger.n_rounds:
        log.info("%d rounds inside the groups.", ledger.n_rounds)
        done = replace(done, combined=f"{step.combined}, then {ledger.n_rounds} rounds in groups")
    return Refined(done, ledger, np.array(risk), nodes_aside(server.aside))
