"""``ODCL(...)`` where ``FedAvg(...)`` stood: one train round, one delivery, a model per user.

It carries uploads and downloads through :func:`odcl.server.step.server_step` and computes nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from odcl.artifact.folder import check_artifact_place
from odcl.engines.arrivals import SetAside, joined, naming_set_aside, nodes_aside
from odcl.engines.files.envelope import Refused
from odcl.engines.files.task import Task
from odcl.engines.flower.arrived import Arrival, Arrived, arrived_folder, confirmation
from odcl.engines.flower.bare import expect_bare
from odcl.engines.flower.columns import Columns, checked_columns
from odcl.engines.flower.outcome import Delivery, Outcome, count, mean_metrics
from odcl.engines.flower.records import array_record, content
from odcl.engines.flower.request import Request
from odcl.engines.flower.result import write_result
from odcl.engines.flower.transport import Reply, message_to, replies, reply_of, wait_for_nodes
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.server.result import ServerStep
from odcl.server.step import server_step

log = logging.getLogger("flwr")  # Flower's own: it goes where `flwr log` looks


class ODCL(Strategy):
    """One-shot clustered federated learning as a Flower strategy.

    risk : what every user minimises: a :class:`~odcl.risk.risk.Risk`, or the name of a loss. None
        where nodes send bare models of another kind, such as a network's parameters.
    method : how groups are found, combined and used; ``Method()`` unless given, or "paper".
    min_replies : nodes whose uploads must arrive; with fewer the run fails, and says why.
    nodes : nodes to wait for before the round begins; ``min_replies`` unless given. Nodes that
        connect while the round is open are asked as well.
    wait : seconds to wait for them. After that the round begins with those that are there, if they
        are enough.
    timeout : seconds that each of the two rounds may take. Who has not answered by then is set
        aside; no fault lasts longer.
    refine_rounds : rounds inside the groups after the one shot; 0 is one shot.
    result_dir : folder for the result, which ``odcl predict``, ``assign`` and ``diagnose`` take, as
        ``odcl.ODCLRegressor.load`` does; None writes nothing. Uploads lie in RESULT_DIR.arrived as
        they come: a run that was interrupted goes on from them.
    force : replace a result that is there already.
    features, user, target, classes : names of the columns, for tables that the result will predict.
        Features are x0, x1, ... unless named; with names, nodes with another number of features
        are set aside.
    """

    def __init__(
        self,
        risk: Risk | str | None = "squared",
        method: Method | str = "default",
        *,
        min_replies: int = 2,
        nodes: int | None = None,
        wait: float = 60.0,
        timeout: float = 600.0,
        refine_rounds: int = 0,
        result_dir: str | os.PathLike[str] | None = None,
        force: bool = False,
        seed: int = 0,
        features: Sequence[str] | None = None,
        user: str = "user",
        target: str = "y",
        classes: Sequence[Any] | None = None,
    ) -> None:
        if min_replies < 1 or refine_rounds < 0:
            raise ValueError(
                f"min_replies={min_replies} and refine_rounds={refine_rounds}: at least one reply "
                "is needed, and rounds are counted from 0 on."
            )
        if refine_rounds and Method.of(method).clusterer.uses_terms:
            raise ValueError(
                f"refine_rounds={refine_rounds} improves one model per group, and mixed groups "
                "are the pooled fit already, with differences between users beside it: give a "
                "method with one model per group, such as Method.paper(n_clusters=4)."
            )
        if not (wait >= 0 and timeout > 0):
            raise ValueError(f"wait={wait} and timeout={timeout} are no times in seconds.")
        self.columns = checked_columns(features, user, target, classes)
        self.request = Request(
            risk if isinstance(risk, Risk) else Risk(risk or "squared"),
            Method.of(method),
            seed,
            self.columns.features,
            bare=risk is None,
        )
        if self.request.bare:
            expect_bare(self.request.method, "risk=None")
        self.min_replies, self.nodes = min_replies, max(nodes or min_replies, min_replies)
        self.wait, self.timeout, self.refine_rounds = wait, timeout, refine_rounds
        self.result_dir = None if result_dir is None else Path(result_dir).absolute()
        self.force = force
        self.outcome: Outcome | None = None
        self._arrived = Arrived(self.request)
        self._asked: list[Message] = []

    @classmethod
    def from_result(cls, result_dir: str | os.PathLike[str], **settings: Any) -> ODCL:
        """The strategy that serves nodes which come after a run, from its saved result.

        Nodes that have their models are not asked. A node that never confirmed its download gets
        it; users who are new are placed in the groups, and added to the result; nobody else
        changes. ``settings`` are nodes, wait, timeout and min_replies (1 unless given).
        """
        from odcl.engines.flower.late import LateODCL

        return LateODCL(result_dir, **settings)

    @classmethod
    def from_task(cls, task: Task, *, user: str = "site", **settings: Any) -> Self:
        """The strategy of a task card: its risk and method, columns, categories and scales.

        Nodes read their tables by the same card, :func:`odcl.engines.files.site.read_site`;
        ``user`` is the column that names users in tables that the result will predict.
        """
        made = cls(task.risk, task.method, features=task.columns, **settings)
        made.columns = Columns(task.columns, user, task.target, task.classes, task)
        return made

    def summary(self) -> None:
        """Log what will be done."""
        risk, method = self.request.risk, self.request.method
        what = f"{risk.loss.name} loss, l2 = {risk.l2:g}"
        log.info("\t├── Risk: %s", "the nodes' own (bare models)" if self.request.bare else what)
        log.info("\t├── Method: %s, then %s", method.clusterer, method.refit or "the group's model")
        log.info("\t├── At least %d replies, within %g s", self.min_replies, self.timeout)
        log.info("\t└── Result: %s", self.result_dir or "not written (no result_dir)")

    # -- the run -------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run it: one train round, one delivery.

        Called as other strategies are. Initial arrays are not needed (every user starts from its
        own rows), and one round is enough, whatever ``num_rounds`` says. The answer's ``arrays``
        are the groups' models; :attr:`outcome` has the rest.
        """
        log.info("Starting %s strategy:", type(self).__name__)
        self.summary()
        began, self.timeout = time.monotonic(), timeout or self.timeout
        self.check_place()
        result = Result()
        config = ConfigRecord() if train_config is None else train_config
        asked = list(self.configure_train(1, ArrayRecord(), config, grid))
        for reply in replies(grid, asked, self.timeout, lambda: self._newcomers(config, grid)):
            self._hear(reply)
        result.arrays, metrics = self._combined()
        result.train_metrics_clientapp[1] = metrics
        if self.refine_rounds:
            result.arrays = self._refined(grid)
        config = ConfigRecord() if evaluate_config is None else evaluate_config
        messages = list(self.configure_evaluate(1, result.arrays, config, grid))
        found = self._delivered(replies(grid, messages, self.timeout))
        if found is not None:
            result.evaluate_metrics_clientapp[1] = found
        if evaluate_fn is not None and (own := evaluate_fn(1, result.arrays)) is not None:
            result.evaluate_metrics_serverapp[1] = own
        self.finish()
        log.info("Finished in %.1f s.", time.monotonic() - began)
        return result

    def check_place(self) -> None:
        """Refuse at once a place that the result could not be written to, after all the work."""
        if self.result_dir is not None:
            check_artifact_place(self.result_dir, force=self.force)

    def finish(self) -> None:
        """Write the result, whole, and let go of what was kept for it."""
        assert self.outcome is not None
        if self.result_dir is not None:
            write_result(self.outcome, self.columns, self.result_dir, force=self.force)
            self._arrived.sweep()
            log.info("Models, groups and what became of each node: %s", self.result_dir)

    # -- train: what nodes send ----------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A request to every node that has not been heard, once enough are connected."""
        folder = None if self.result_dir is None else arrived_folder(self.result_dir, self.request)
        self._arrived, self._asked = Arrived(self.request, folder), []
        self._arrived.read()
        heard = set(self._arrived.taken)
        if heard:
            log.info("%s of an interrupted run are there: it goes on.", count(heard, "upload"))
        limits: Any = {"least": self.min_replies, "heard": heard, "known": self._known()}
        there = wait_for_nodes(grid, self.nodes, self.wait, **limits)
        self._arrived.gone = frozenset(heard - set(there))
        known = len(heard | set(there))
        if known < self.nodes:
            log.warning("%d of %d nodes are there after %g s.", known, self.nodes, self.wait)
        asked = self._requests([node for node in there if node not in heard], config)
        log.info("[ROUND 1/1] asking %s for their users' uploads", count(asked, "node"))
        return asked

    def _known(self) -> Iterable[int]:
        """Nodes that need not be asked."""
        return ()

    def _requests(self, nodes: Iterable[int], config: ConfigRecord) -> list[Message]:
        words = {**config, **self.request.config()}
        new = [message_to(n, MessageType.TRAIN, content(config=words), self.timeout) for n in nodes]
        self._asked += new
        return new

    def _newcomers(self, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Requests to nodes that connected while the round is open."""
        asked = {message.metadata.dst_node_id for message in self._asked}
        new = set(grid.get_node_ids()) - asked - set(self._arrived.taken) - set(self._known())
        return self._requests(sorted(new), config)

    def _hear(self, reply: Reply) -> None:
        if reply.message is None:
            self._arrived.set_aside(reply.node, reply.why)
        else:
            self._arrived.take(reply.node, reply.message)
        if reply.node in self._arrived.aside:
            log.warning("Node %d is set aside: %s", reply.node, self._arrived.aside[reply.node])

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Groups of all that was sent, where this strategy's own :meth:`start` is not used."""
        for reply in answers_of(self._asked, replies):
            self._hear(reply)
        return self._combined()

    def _combined(self) -> tuple[ArrayRecord, MetricRecord]:
        """Algorithm 1, step 2, of all that has arrived."""
        arrived = self._arrived
        before = set(arrived.aside)
        arrived.settle()
        for node in set(arrived.aside) - before:
            log.warning("Node %d is set aside: %s", node, arrived.aside[node])
        nodes = arrived.taken
        with naming_set_aside(nodes_aside(arrived.aside)):
            if len(nodes) < self.min_replies:
                raise ValueError(
                    f"{count(nodes, 'reply', 'replies')} can be taken, and {self.min_replies} are "
                    f"needed ({count(arrived.aside, 'node')} set aside): see why they were, and "
                    "run it again, which goes on from those taken."
                )
            uploads = in_order(nodes.values())
            log.info("%s of %s arrived.", count(uploads.users, "user"), count(nodes, "node"))
            step = self.combine(uploads)
        log.info("%s", step.reason)
        told = (self._n_features(), self._receivers(), uploads, step, nodes_aside(arrived.aside))
        self.outcome = Outcome(self.request, *told, {})
        rows = {"num-examples": int(uploads.n_samples.sum()), "num-users": len(uploads)}
        rows |= {"num-groups": step.n_clusters, "nodes-set-aside": len(arrived.aside)}
        return array_record({"centers": step.centers}), MetricRecord(rows)

    def combine(self, uploads: Uploads) -> ServerStep:
        """The one place where groups are found and combined."""
        if len(uploads) == 1:
            raise ValueError("One user sent something, and nobody is there to be compared with.")
        request = self.request
        agreed = request.agreed(self._n_features())
        return server_step(uploads, agreed.method, seed=request.seed)

    def _refined(self, grid: Grid) -> ArrayRecord:
        """Rounds inside the groups that were found."""
        from odcl.engines.flower.refine import refine

        assert self.outcome is not None
        old = self.outcome
        limits: Any = {"min_replies": self.min_replies, "timeout": self.timeout}
        limits["average"] = "models" if self.request.bare else "gradients"
        done = refine(grid, self.request, old.step, old.nodes, rounds=self.refine_rounds, **limits)
        self.outcome = replace(old, step=done.step, refined=done)
        return array_record({"centers": done.step.centers})

    def _n_features(self) -> int:
        return next(iter(self._arrived.taken.values())).n_features

    # -- evaluate: what nodes receive ----------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Each node's own download; nodes of an earlier run that are gone receive none."""
        there = set(grid.get_node_ids())
        nodes = {node: users for node, users in self._receivers().items() if node in there}
        log.info("Delivering to %s.", count(nodes, "node"))
        self._asked = [
            message_to(node, MessageType.EVALUATE, content(own, {**config, **words}), self.timeout)
            for node, own, words in self._delivery().by_node(self.request, nodes)
        ]
        return self._asked

    def _delivery(self) -> Delivery:
        """What goes to users."""
        assert self.outcome is not None
        return Delivery.of(self.outcome.step)

    def _receivers(self) -> Mapping[int, tuple[Any, ...]]:
        """The nodes that it goes to, and the users of each."""
        return {n: tuple(a.uploads.users.tolist()) for n, a in sorted(self._arrived.taken.items())}

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """What nodes said of their models, where :meth:`start` is not used."""
        return self._delivered(answers_of(self._asked, replies))

    def _delivered(self, replies: Iterable[Reply]) -> MetricRecord | None:
        """Who has its models, and what nodes say of them."""
        got: dict[int, Mapping[str, float]] = {}
        lost: dict[int, str] = {}
        for reply in replies:
            try:
                got[reply.node] = confirmation(self.request, reply)
            except Refused as error:
                lost[reply.node] = str(error)
        for node in self._receivers().keys() - got.keys() - lost.keys():
            lost[node] = "it was not connected any more"
        for node, why in sorted(lost.items()):
            log.warning("Node %d did not confirm its download: %s", node, why)
        self._confirmed(got, nodes_aside(lost))
        metrics = mean_metrics(got.values())
        if "loss" in metrics:
            log.info("Loss on held-out rows: %s", losses_in_words(metrics))
        return MetricRecord(metrics) if metrics else None

    def _confirmed(
        self, got: Mapping[int, Mapping[str, float]], lost: tuple[SetAside, ...]
    ) -> None:
        assert self.outcome is not None
        self.outcome = replace(self.outcome, delivered=got, undelivered=lost)


# -- pieces ----------------------------------------------------------------------------------------


def losses_in_words(metrics: Mapping[str, float]) -> str:
    """The losses of the models that users could have."""
    names = {"loss": "their models", "loss-group": "their groups'", "loss-local": "their own rows'"}
    return ", ".join(f"{metrics[k]:.4g} by {text}" for k, text in names.items() if k in metrics)


def in_order(arrivals: Iterable[Arrival]) -> Uploads:
    """All uploads as one message, in the order of the users' own ids."""
    uploads = joined([one.uploads for one in arrivals])
    return uploads.take(uploads.canonical_order())


def answers_of(asked: Sequence[Message], replies: Iterable[Message]) -> Iterator[Reply]:
    """Replies by the node that was asked; a node without one is named as well."""
    waiting = {one.metadata.message_id: one.metadata.dst_node_id for one in asked}
    for message in replies:
        node = waiting.pop(message.metadata.reply_to_message_id, None)
        if node is not None:
            yield reply_of(node, message)
    for node in waiting.values():
        yield Reply(node, None, "it did not answer in time")
