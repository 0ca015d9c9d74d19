"""Rounds inside the groups after the one shot: each group improves its own model.

Users of odcl's risks answer with a gradient at their group's model, which then takes a step of
1 / mean L_i (:func:`odcl.rounds.server.descend_in_clusters`): in a few rounds that is the pooled
fit of the group. Models of other kinds are trained further by each user and averaged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from odcl._typing import Floats, Ints
from odcl.data.federation import positions
from odcl.engines.arrivals import SetAside, nodes_aside
from odcl.engines.flower.request import Request
from odcl.engines.flower.rounds import Round
from odcl.engines.flower.talk import RUN_AWAY, Heard, Talk
from odcl.engines.flower.transport import replies
from odcl.exchange.ledger import Exchange, Ledger
from odcl.rounds.server import descend_in_clusters, steps_in_clusters
from odcl.rounds.users import Average, ball_around
from odcl.server.combine import average_by_cluster
from odcl.server.result import ServerStep

log = logging.getLogger("flwr")


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
    grid: Grid,
    request: Request,
    step: ServerStep,
    nodes: Mapping[int, tuple[Any, ...]],
    *,
    rounds: int,
    min_replies: int,
    timeout: float,
    average: Average = "gradients",
) -> Refined:
    """So many rounds with the nodes of a one-shot result; ``nodes``: node -> its users' ids.

    A node that fails is set aside and the others go on; where fewer than ``min_replies`` are left
    the rounds end early, and what they have reached is the result.
    """
    talk = Talk(request, timeout)
    place = {user: i for i, user in enumerate(step.users.tolist())}
    own = {}
    for node, users in nodes.items():
        at = np.array([place[user] for user in users], dtype=np.intp)
        own[node] = step.users[at], step.labels[at]
    centers, L = step.centers, np.full(len(step.users), np.nan)
    radius = ball_around(centers) if average == "gradients" else None
    risk: list[float] = []
    ledger = Ledger(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp))
    for t in range(1, rounds + 1):
        ask = Round(t, average, radius=radius if t == 1 else None)
        there = set(grid.get_node_ids())
        asked = talk.messages(ask, centers, [n for n in own if n in there], own=own)
        found = talk.heard(replies(grid, asked, timeout))
        if len(found) < min_replies:
            log.warning(
                "Rounds inside groups end after %d of %d: %d nodes answered, and %d are needed.",
                *(t - 1, rounds, len(found), min_replies),
            )
            break
        heard = Heard.of(found.values(), centers)
        at = positions(step.users, heard.users)
        labels, got = step.labels[at], heard.answers.replies[:, 0]
        if heard.smoothness is not None:
            L[at] = heard.smoothness
        new = centers.copy()
        new_of, members = np.unique(labels, return_inverse=True)
        new[new_of] = _combined(centers[new_of], got, members.reshape(-1), L[at], average)
        if not bool((np.abs(new) < RUN_AWAY).all()):
            log.warning("Rounds inside groups end after %d: the models run away.", t - 1)
            break
        centers = new
        risk.append(float(heard.answers.mean_risk[0]))
        ledger = ledger.then(_exchange(len(at), centers.shape[1], ask).over(1))
    done = replace(step, centers=centers, models=centers[step.labels])
    if ledger.n_rounds:
        log.info("%d rounds inside the groups.", ledger.n_rounds)
        done = replace(done, combined=f"{step.combined}, then {ledger.n_rounds} rounds in groups")
    return Refined(done, ledger, np.array(risk), nodes_aside(talk.aside))


def _combined(
    centers: Floats, replies: Floats, labels: Ints, L: Floats, average: Average
) -> Floats:
    if average == "models":
        return average_by_cluster(replies, labels)
    return descend_in_clusters(centers, replies, labels, steps_in_clusters(L, labels))


def _exchange(n_users: int, dim: int, ask: Round) -> Exchange:
    """A model each way and its risk, and in the first round how smooth that is."""
    sends: tuple[tuple[int, ...], ...] = ((dim,), ())
    return Exchange(n_users, sends=sends + ((),) * (ask.radius is not None), receives=((dim,),))
