"""``ODCL(...)`` where ``FedAvg(...)`` stood: one train round, one delivery, a model per user.

It carries uploads and downloads through :func:`odcl.server.step.server_step` and computes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from odcl._typing import Array, Bools, Floats
from odcl.artifact.arrays import expect, json_bytes
from odcl.artifact.folder import check_artifact_place
from odcl.engines.files.envelope import refusing
from odcl.engines.files.task import Task
from odcl.engines.flower.fits import own_ids
from odcl.engines.flower.inbox import MALFORMED, Inbox
from odcl.engines.flower.messages import (
    array_record,
    ask,
    config_of,
    content,
    expect_replies,
    log,
    message_to,
    metrics_of,
    wait_for_nodes,
)
from odcl.engines.flower.request import Request, bent_risk, expect_bare, ids_to_text
from odcl.engines.flower.result import Outcome, TableColumns, mean_metrics, write_result
from odcl.engines.wire import mixture_parts, naming_set_aside, nodes_aside, plain
from odcl.errors import count
from odcl.exchange.message import Downloads
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.server.result import ServerStep
from odcl.server.robust import outlier_lines
from odcl.server.step import server_step
from odcl.wide.moments import GroupModels


class ODCL:
    """One-shot clustered federated learning as a Flower strategy.

    risk : what every user minimises: a :class:`~odcl.risk.risk.Risk`, or the name of a loss. None
        where nodes send bare models of another kind, such as a network's parameters.
    method : how groups are found, combined and used; ``Method()`` unless given, or "paper".
    min_replies : nodes whose uploads must arrive; with fewer the run fails, and says why.
    nodes : nodes to wait for before the round begins; ``min_replies`` unless given. Nodes that
        connect while the round is open are asked as well.
    wait : seconds to wait for them. After that the round begins with those that are there, if they
        are enough.
    timeout : seconds that each of the two rounds may take. Nodes that have not answered by
        then are set aside; no fault lasts longer.
    result_dir : folder for the result, which ``odcl predict``, ``assign`` and ``diagnose`` take, as
        ``odcl.ODCLRegressor.load`` does; None writes nothing. Uploads lie in RESULT_DIR.arrived as
        they come: a run that was interrupted goes on from them.
    force : replace a result that is there already.
    features, user, target, classes : names of the columns, for tables that the result will predict.
        Features are x0, x1, ... unless named; with names, nodes with another number of features
        are set aside.
    curves : features that may act in curves, each with a typical value and a typical deviation,
        between which bends have their knots: {"age": (50, 20)}. None: lines. A card has these.
    periodic : features that begin anew, with their periods: {"hour": 24}.
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
        result_dir: str | os.PathLike[str] | None = None,
        force: bool = False,
        seed: int = 0,
        features: Sequence[str] | None = None,
        user: str = "user",
        target: str = "y",
        classes: Sequence[Any] | None = None,
        curves: Mapping[str, tuple[float, float]] | None = None,
        periodic: Mapping[str, float] | None = None,
    ) -> None:
        if min_replies < 1:
            raise ValueError(f"min_replies={min_replies}: at least one reply is needed.")
        if not (wait >= 0 and timeout > 0):
            raise ValueError(f"wait={wait} and timeout={timeout} are no times in seconds.")
        named = None if features is None else tuple(map(str, features))
        self.columns = TableColumns(
            named, user, target, None if classes is None else tuple(classes)
        )
        known = risk if isinstance(risk, Risk) else Risk(risk or "squared")
        if curves or periodic:
            known = bent_risk(known, Method.of(method), named, curves or {}, periodic or {})
        self.request = Request(
            known,
            Method.of(method, robust=True if method == "default" else None),
            seed,
            named,
            bare=risk is None,
        )
        if self.request.bare:
            expect_bare(self.request.method, "risk=None")
        self.min_replies, self.nodes = min_replies, max(nodes or min_replies, min_replies)
        self.wait, self.timeout = wait, timeout
        self.result_dir = None if result_dir is None else Path(result_dir).absolute()
        self.force = force
        self.outcome: Outcome | None = None

    @classmethod
    def from_result(cls, result_dir: str | os.PathLike[str], **settings: Any) -> ODCL:
        """The strategy that serves nodes which come after a run, from its saved result.

        Nodes that have their models are not asked. A node that never confirmed its download gets
        it; new users are placed in the groups and added to the result; other users' models do
        not change. ``settings`` are nodes, wait, timeout and min_replies (1 unless given).
        """
        from odcl.engines.flower.late import LateODCL

        return LateODCL(result_dir, **settings)

    @classmethod
    def from_task(cls, task: Task, *, user: str = "site", **settings: Any) -> Self:
        """The strategy of a task card: its risk and method, columns, categories and scales.

        Nodes read their tables by the same card, :func:`odcl.engines.files.site.read_site`;
        ``user`` is the column that names users in tables that the result will predict.
        """
        names: Any = {"features": task.columns, "target": task.target, "classes": task.classes}
        made = cls(task.risk, task.method, user=user, **names, **settings)
        made.columns = replace(made.columns, task=task)
        made.request = replace(made.request, name=task.name, round=task.round)
        return made

    # -- the run -------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1,
        timeout: float | None = None,
    ) -> Result:
        """Run it: one train round, one delivery.

        Called as other strategies are. Initial arrays are not needed (every user starts from its
        own rows), and one round is enough, whatever ``num_rounds`` says. The answer's ``arrays``
        are the groups' models; :attr:`outcome` has the rest.
        """
        began, self.timeout = time.monotonic(), timeout or self.timeout
        risk, method = self.request.risk, self.request.method
        what = "the nodes' own risk" if self.request.bare else f"{risk.loss.name} loss"
        log.info("Starting %s: %s, %s", type(self).__name__, what, method.clusterer)
        if method.privacy is not None:
            log.info("%s", method.privacy.pays(risk.dim(self.request.n_features or 0)))
        if self.result_dir is not None:
            check_artifact_place(self.result_dir, force=self.force)
        result = Result()
        inbox = self._gather(grid)
        delivery, sizes = self._combine(inbox)
        result.train_metrics_clientapp[1] = MetricRecord(sizes)
        result.arrays = array_record({"centers": delivery.centers})
        metrics = self._deliver(grid, inbox, delivery)
        if metrics:
            result.evaluate_metrics_clientapp[1] = MetricRecord(metrics)
            log.info("Confirmed: %s", metrics)
        for text in [] if self.outcome is None else self.outcome.guarantee:
            log.info("%s", text)
        log.info("Finished in %.1f s.", time.monotonic() - began)
        return result

    # -- train: what nodes send ----------------------------------------------------------------

    def _gather(self, grid: Grid) -> Inbox:
        """The uploads of all nodes that answer, once enough are connected."""
        inbox = Inbox.beside(self.result_dir, self.request)
        heard = set(inbox.taken)
        if heard:
            log.info("%s of an interrupted run are there: it goes on.", count(len(heard), "upload"))
        limits: Any = {"least": self.min_replies, "heard": heard}
        there = wait_for_nodes(grid, self.nodes, self.wait, **limits)
        if len(heard | set(there)) < self.nodes:
            log.warning("Fewer than %d nodes are there after %g s.", self.nodes, self.wait)
        self._ask(grid, inbox, there, known=heard)
        expect_replies(len(inbox.taken), self.min_replies, inbox.aside, "")
        return inbox

    def _ask(
        self, grid: Grid, inbox: Inbox, there: Sequence[int], known: Iterable[int] = ()
    ) -> None:
        """Ask for uploads, also nodes that connect while the round is open, unless ``known``."""
        asked = set(known)
        records = {**self.request.config(), "late": inbox.late}

        def requests(nodes: Iterable[int]) -> list[Message]:
            new = sorted(set(nodes) - asked)
            asked.update(new)
            kind = MessageType.TRAIN
            return [message_to(n, kind, content(config=records), self.timeout) for n in new]

        first = requests(there)
        log.info("Asking %s for their users' uploads.", count(len(first), "node"))
        _, aside = ask(grid, first, self.timeout, inbox.take, lambda: requests(grid.get_node_ids()))
        inbox.aside |= aside
        inbox.settle(there)

    def _combine(self, inbox: Inbox) -> tuple[Delivery, dict[str, int]]:
        """Algorithm 1, step 2, of all that has arrived: the one place where groups are found."""
        request, uploads = self.request, inbox.uploads()
        n_features = next(iter(inbox.taken.values())).n_features
        agreed, aside = request.agreed(n_features), nodes_aside(inbox.aside)
        log.info("%s of %s arrived.", count(len(uploads), "user"), count(len(inbox.taken), "node"))
        with naming_set_aside(aside):
            if len(uploads) == 1:
                raise ValueError("Only one user sent an upload; at least two are needed.")
            parties = None
            if agreed.method.smallest_group > 1:  # nodes are counted, not their users
                owner = {user: str(n) for n, some in inbox.users.items() for user in some}
                parties = np.array([owner[user] for user in uploads.users.tolist()])
            step = server_step(uploads, agreed.method, seed=request.seed, parties=parties)
        log.info("%s", step.reason)
        names = request.columns or [f"x{j}" for j in range(n_features)]
        for text in outlier_lines(step.outliers, names, self.columns.target):
            log.warning("%s", text)
        self.outcome = Outcome(request, n_features, inbox.users, uploads, step, aside, {})
        rows = {"num-examples": int(uploads.n_samples.sum()), "num-users": len(uploads)}
        rows |= {"num-groups": step.n_clusters, "nodes-set-aside": len(aside)}
        return Delivery.of(step), rows

    # -- evaluate: what nodes receive ----------------------------------------------------------

    def _deliver(self, grid: Grid, inbox: Inbox, delivery: Delivery) -> dict[str, float]:
        """Each node's own download; then the result is written. Mean losses on held-out rows."""
        confirmed, lost = self._send(grid, inbox, delivery)
        assert self.outcome is not None
        self.outcome = replace(self.outcome, delivered=confirmed, undelivered=nodes_aside(lost))
        if self.result_dir is not None:
            write_result(self.outcome, self.columns, self.result_dir, force=self.force)
            inbox.remove()
            log.info("Models, groups and what became of each node: %s", self.result_dir)
        return mean_metrics(confirmed.values())

    def _send(
        self, grid: Grid, inbox: Inbox, delivery: Delivery
    ) -> tuple[dict[int, dict[str, float]], dict[int, str]]:
        """The metrics of nodes that confirmed their download, and why others did not."""

        def confirmed(node: int, message: Message) -> dict[str, float]:
            with refusing(MALFORMED):
                words = config_of(message)
                self.request.check(words)
                expect(words.get("received") is True, "it does not say that it received it")
                return dict(metrics_of(message))

        there = set(grid.get_node_ids())
        nodes = {node: users for node, users in inbox.users.items() if node in there}
        log.info("Delivering to %s.", count(len(nodes), "node"))
        messages = [
            message_to(node, MessageType.EVALUATE, content(arrays, words), self.timeout)
            for node, arrays, words in delivery.by_node(self.request, nodes)
        ]
        got, lost = ask(grid, messages, self.timeout, confirmed)
        for node in inbox.users.keys() - nodes.keys():
            lost[node] = "it was not connected any more"
        return got, lost


@dataclass(frozen=True, eq=False)
class Delivery:
    """What goes to users: their downloads, and what all nodes learn of the groups."""

    downloads: Downloads
    centers: Floats  # (n_groups, dim)
    reason: str
    mixture: GroupModels | None
    late: Bools  # (n_users,), users who came after the round

    @classmethod
    def of(cls, step: ServerStep) -> Delivery:
        """Of a round, to those who took part in it."""
        late = np.zeros(len(step.users), dtype=bool)
        return cls(step.downloads, step.centers, step.reason, step.mixture, late)

    def by_node(
        self, request: Request, nodes: Mapping[int, Iterable[Any]]
    ) -> Iterator[tuple[int, dict[str, Array], dict[str, Any]]]:
        """Each node with the arrays and words of its users, in the node's own order."""
        place = {user: i for i, user in enumerate(self.downloads.users.tolist())}
        mixture, mixed = mixture_parts(self.mixture)
        shared = {
            **request.config(),
            "groups": len(self.centers),
            "reason": self.reason,
            "mixture": "" if mixture is None else json_bytes(mixture, indent=None).decode(),
        }
        for node, users in nodes.items():
            at = np.array([place[user] for user in users], dtype=np.intp)
            own, late = self.downloads.take(at), self.late[at]
            arrays = {name: plain(array) for name, array in own.to_arrays().items()} | mixed
            if late.any():
                arrays["late"] = late
            words = {"users": ids_to_text(own_ids(own.users)), "late": bool(late.any())}
            yield node, arrays, {**shared, **words}
