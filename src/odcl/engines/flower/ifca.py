"""IFCA as a Flower strategy: K models to every node, each user works on the one it likes best.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning". Nothing
is computed here: users answer by :func:`odcl.rounds.users.answer`, answers are combined by
:mod:`odcl.rounds.server`, as in :func:`odcl.paper.baselines.ifca`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from odcl._typing import Array, Floats, Ints
from odcl.artifact.arrays import id_to_json
from odcl.artifact.folder import check_artifact_place
from odcl.engines.arrivals import SetAside, naming_set_aside, nodes_aside
from odcl.engines.flower.bare import BareResult, write_bare
from odcl.engines.flower.outcome import mean_metrics
from odcl.engines.flower.records import array_record
from odcl.engines.flower.request import Request
from odcl.engines.flower.rounds import Round
from odcl.engines.flower.strategy import answers_of
from odcl.engines.flower.talk import RUN_AWAY, Heard, NodeAnswer, Talk
from odcl.engines.flower.transport import Reply, replies, wait_for_nodes
from odcl.exchange.ledger import Exchange, Ledger
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.rounds.server import combine_gradients, combine_models, random_models
from odcl.rounds.users import Average, StepSize, ball_around, check_average, resolve_step

log = logging.getLogger("flwr")
INITIAL = ("random", "zeros")


@dataclass(frozen=True, eq=False)
class IFCAOutcome:
    """What the rounds gave, as the server knows it. Users stand in the order of their own ids."""

    request: Request
    nodes: Mapping[int, tuple[Any, ...]]  # node -> the ids of its users, of those that answered
    users: Array  # (n_users,), ids
    labels: Ints  # (n_users,), the model that each chose of the last ones
    centers: Floats  # (n_clusters, dim), the last models
    risk: Floats  # (n_rounds + 1,), mean over users of the risk of their models, from the start on
    step_size: float
    ledger: Ledger  # bytes of the numbers that users sent and received
    set_aside: tuple[SetAside, ...]
    metrics: Mapping[int, Mapping[str, float]]  # node -> what it said of the last models
    diverged: bool = False  # the models ran away: the last that were numbers are kept

    @property
    def models(self) -> Floats:
        """Each user's model, (n_users, dim)."""
        return self.centers[self.labels]

    @property
    def n_rounds(self) -> int:
        """Rounds that users took part in."""
        return self.ledger.n_rounds

    def write(self, folder: Path, *, force: bool = False) -> None:
        """Models, choices and what became of each node, whole or not at all."""
        used = len(np.unique(self.labels))
        reason = (
            f"{used} of {len(self.centers)} models in use after {self.n_rounds} rounds of IFCA."
        )
        given = (self.request.config(), self.users, self.labels, self.centers, reason)
        nodes = {
            "nodes": {
                str(node): [id_to_json(user) for user in users]
                for node, users in self.nodes.items()
            },
            "set_aside": [{"node": one.name, "reason": one.reason} for one in self.set_aside],
            "rounds": self.n_rounds,
            "bytes": {"up": self.ledger.total_up, "down": self.ledger.total_down},
            "step_size": self.step_size,
            "risk": self.risk.tolist(),
            "diverged": self.diverged,
        }
        write_bare(BareResult(*given), folder, nodes, force=force)


class IFCA(Strategy):
    """Iterative federated clustering as a Flower strategy.

    risk : what every user minimises: a :class:`~odcl.risk.risk.Risk`, or the name of a loss. None
        for modules of PyTorch (:class:`~odcl.engines.flower.networks.ModuleFit`): then ``initial``
        holds models, ``average`` is "models", and each user's own training is the local steps.
    n_clusters : how many models are broadcast.
    n_features : features of the nodes' rows; not needed where ``initial`` holds models.
    average : "gradients" (option I: one step per round, divided by all users) or "models" (option
        II: ``local_steps`` steps of each user, then the mean over a model's users).
    step_size : a number, or "auto", 1 / max L_i, which users tell in their first answer.
    initial : "random" (N(0, 1) from ``seed``), "zeros", or models, (n_clusters, dim).
    min_replies, nodes, wait, timeout : as for :class:`~odcl.engines.flower.ODCL`, each round; a
        node that was set aside is not asked again, and one that connects after the first round
        takes part from the next one on.
    result_dir, force : folder for the models and the users' choices, written whole at the end
        (:func:`~odcl.engines.flower.read_bare` reads it), and whether it may replace one.

    ``start(grid, num_rounds=100)`` runs it. The models are those of
    :func:`odcl.paper.baselines.ifca` with all rows in every step, up to rounding.
    """

    def __init__(
        self,
        risk: Risk | str | None = "squared",
        n_clusters: int = 2,
        *,
        n_features: int | None = None,
        average: Average = "gradients",
        step_size: StepSize = "auto",
        local_steps: int | None = None,
        initial: Any = "random",
        min_replies: int = 2,
        nodes: int | None = None,
        wait: float = 60.0,
        timeout: float = 600.0,
        result_dir: str | os.PathLike[str] | None = None,
        force: bool = False,
        seed: int = 0,
    ) -> None:
        check_average(average, local_steps)
        if risk is None and (average != "models" or isinstance(step_size, str)):
            raise ValueError(
                "risk=None is for models whose gradients odcl does not know: give average='models' "
                "and any number as step_size, which their own training does not look at."
            )
        if min_replies < 1 or n_clusters < 1 or not (wait >= 0 and timeout > 0):
            raise ValueError(
                f"min_replies={min_replies}, n_clusters={n_clusters}, wait={wait} and timeout="
                f"{timeout}: there is at least one reply and one model, and times are in seconds."
            )
        named = risk if isinstance(risk, Risk) else Risk(risk or "squared")
        bare = risk is None
        self.request = Request(named, Method.paper(n_clusters), seed, name="ifca", bare=bare)
        self.n_clusters, self.average = n_clusters, average
        self.local_steps = local_steps or (1 if average == "gradients" else 10)
        self.step_size: StepSize = step_size
        self.initial = self._first_models(initial, n_features)
        self.min_replies, self.nodes = min_replies, max(nodes or min_replies, min_replies)
        self.wait, self.timeout = wait, timeout
        self.result_dir = None if result_dir is None else Path(result_dir).absolute()
        self.force = force
        self.outcome: IFCAOutcome | None = None
        self._begin()

    def _first_models(self, initial: Any, n_features: int | None) -> Floats:
        """Models of round 0, (n_clusters, dim)."""
        risk, named = self.request.risk, isinstance(initial, str)
        if named and initial not in INITIAL:
            raise ValueError(f"initial={initial!r} is not one of {', '.join(INITIAL)}, nor models.")
        if named and n_features is None:
            raise ValueError(
                f"initial={initial!r} needs to know how long a model is: give n_features, or the "
                "models themselves."
            )
        if named:
            shape = (self.n_clusters, risk.dim(n_features or 0))
            seed = self.request.seed
            return np.zeros(shape) if initial == "zeros" else random_models(shape, seed)
        models = np.array(initial, dtype=np.float64)
        fits = models.ndim == 2 and len(models) == self.n_clusters and np.isfinite(models).all()
        if not fits or (n_features is not None and models.shape[1] != risk.dim(n_features)):
            raise ValueError(
                f"initial has shape {models.shape}: give {self.n_clusters} models of finite "
                "numbers, features and intercept times outputs."
            )
        return models

    def _begin(self) -> None:
        self._talk = Talk(self.request, self.timeout)
        self._asked: list[Message] = []
        self._ask = Round(0)
        self._step: float | None = None
        self._models, self._risk = self.initial, list[float]()
        self._ledger = Ledger(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp))
        self._ahead: Exchange | None = None  # of a question before the first round
        self._diverged = False

    def summary(self) -> None:
        risk = self.request.risk
        what = f"{risk.loss.name} loss, l2 = {risk.l2:g}"
        log.info("\t├── Risk: %s", "the nodes' own (bare models)" if self.request.bare else what)
        log.info("\t├── %d models, averaging of %s", self.n_clusters, self.average)
        log.info("\t└── At least %d replies a round, within %g s", self.min_replies, self.timeout)

    # -- the run -------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 100,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """So many rounds, then the last models to every node; see :attr:`outcome`.

        ``initial_arrays`` may hold the first models under the name "models".
        """
        log.info("Starting %s strategy:", type(self).__name__)
        self.summary()
        began, self.timeout = time.monotonic(), timeout or self.timeout
        if self.result_dir is not None:
            check_artifact_place(self.result_dir, force=self.force)
        if initial_arrays is not None:
            self.initial = self._first_models(initial_arrays["models"].numpy(), None)
        self._begin()
        result = Result()
        config = ConfigRecord() if train_config is None else train_config
        arrays = array_record({"models": self.initial})
        for t in range(1, num_rounds + 1):
            asked = self.configure_train(t, arrays, config, grid)
            new, metrics = self._combined(t, replies(grid, asked, self.timeout))
            result.train_metrics_clientapp[t] = metrics
            if new is None:
                break
            arrays = new
            if evaluate_fn is not None and (own := evaluate_fn(t, arrays)) is not None:
                result.evaluate_metrics_serverapp[t] = own
        result.arrays = arrays
        config = ConfigRecord() if evaluate_config is None else evaluate_config
        asked = self.configure_evaluate(num_rounds, arrays, config, grid)
        found = self._delivered(replies(grid, asked, self.timeout))
        if found is not None:
            result.evaluate_metrics_clientapp[num_rounds] = found
        if self.result_dir is not None:
            assert self.outcome is not None
            self.outcome.write(self.result_dir, force=self.force)
            log.info("Models, groups and what became of each node: %s", self.result_dir)
        log.info("Finished in %.1f s.", time.monotonic() - began)
        return result

    # -- train: a round ------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The models to every node that is there and was not set aside."""
        self._models = arrays["models"].numpy()
        there = sorted(set(grid.get_node_ids()))
        if server_round == 1:
            there = wait_for_nodes(grid, self.nodes, self.wait, least=self.min_replies)
        if self._step is None and not isinstance(self.step_size, str):
            self._step = resolve_step(self.step_size, float)
        radius = ball_around(self._models) if self._step is None else None
        if self._step is None and self.average == "models":
            # Users need the step before they take one: a question ahead of the first round.
            self._ask = Round(0, self.average, radius=radius, replies=False)
            asked = self._talk.messages(self._ask, self._models, there)
            heard = self._heard(replies(grid, asked, self.timeout))
            self._find_step(heard)
            self._ahead, radius = self._exchange(len(heard.users)), None
        self._ask = Round(server_round, self.average, self._step or 1.0, self.local_steps, radius)
        self._asked = self._talk.messages(self._ask, self._models, there, more=config)
        log.info(
            "[ROUND %d] %d models to %d nodes", server_round, self.n_clusters, len(self._asked)
        )
        return self._asked

    def _heard(self, got: Iterable[Reply]) -> Heard:
        """Everybody's answers to the question that is open."""
        found = self._talk.heard(got)
        with naming_set_aside(nodes_aside(self._talk.aside)):
            if len(found) < self.min_replies:
                raise ValueError(
                    f"{len(found)} answers of round {self._ask.number} can be taken, and "
                    f"{self.min_replies} are needed ({len(self._talk.aside)} nodes set aside)."
                )
        self._parts: dict[int, NodeAnswer] = found
        return Heard.of(found.values(), self._models)

    def _exchange(self, n_users: int) -> Exchange:
        """What a user sends and receives in the round that is asked for."""
        model = (self._models.shape[1],)
        sends: tuple[tuple[int, ...], ...] = ((), ())  # the number of its model, and its risk
        sends += (model,) * self._ask.replies + ((),) * (self._ask.radius is not None)
        return Exchange(n_users, sends=sends, receives=self.n_clusters * (model,))

    def _find_step(self, heard: Heard) -> None:
        assert heard.smoothness is not None
        L = heard.smoothness
        self._step = resolve_step("auto", lambda: float(L.max()))
        log.info("step size %.3g, one over the largest L", self._step)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next models, where this strategy's own :meth:`start` is not used."""
        return self._combined(server_round, answers_of(self._asked, replies))

    def _combined(
        self, server_round: int, got: Iterable[Reply]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """The next models; None where they would be no numbers any more."""
        heard = self._heard(got)
        if self._step is None:
            self._find_step(heard)
        assert self._step is not None
        m, answers = len(heard.users), heard.answers
        self._risk.append(float(answers.mean_risk[0]))
        self._ledger = self._ledger.then(self._exchange(m).over(1))
        if self._ahead is not None:
            self._ledger, self._ahead = self._ledger.with_first(self._ahead), None
        combine = combine_gradients if self.average == "gradients" else combine_models
        models = combine(self._models[None], answers, self._step)[0]
        metrics = {"num-users": m, "risk": self._risk[-1]}
        metrics |= {"nodes-set-aside": len(self._talk.aside)}
        self._diverged = not bool((np.abs(models) < RUN_AWAY).all())
        if self._diverged:
            log.warning("The models run away: the step is too long. Lower step_size.")
            return None, MetricRecord(metrics)
        return array_record({"models": models}), MetricRecord(metrics)

    # -- evaluate: the last models -------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The last models to every node, of which each user takes the best."""
        self._models = arrays["models"].numpy()
        self._ask = Round(server_round, self.average, replies=False)
        there = sorted(set(grid.get_node_ids()))
        more: Any = {"last": True, "more": config}
        self._asked = self._talk.messages(self._ask, self._models, there, **more)
        return self._asked

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """What users chose, where :meth:`start` is not used."""
        return self._delivered(answers_of(self._asked, replies))

    def _delivered(self, got: Iterable[Reply]) -> MetricRecord | None:
        heard = self._heard(got)
        m, K, dim = len(heard.users), self.n_clusters, self._models.shape[1]
        down = Exchange(m, receives=K * ((dim,),)).over(1)
        metrics = {node: one.metrics for node, one in self._parts.items()}
        self.outcome = IFCAOutcome(
            self.request,
            {node: tuple(one.users.tolist()) for node, one in self._parts.items()},
            heard.users,
            heard.answers.labels[:, 0],
            self._models,
            np.array([*self._risk, float(heard.answers.mean_risk[0])]),
            self._step or 0.0,
            replace(self._ledger, delivery=down.total_down),
            nodes_aside(self._talk.aside),
            metrics,
            self._diverged,
        )
        told = mean_metrics(metrics.values())
        return MetricRecord(told) if told else None
