"""IFCA on Flower: K models to every node, each user works on the one with the least risk.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning". Nothing
is computed here: users answer by :func:`odcl.rounds.steps.answer`, answers are combined by
:mod:`odcl.rounds.steps`, as in :func:`odcl.paper.baselines.ifca`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from odcl._typing import Array, Floats, Ints
from odcl.artifact.arrays import id_to_json
from odcl.artifact.folder import check_artifact_place
from odcl.engines.flower.messages import array_record, log, wait_for_nodes
from odcl.engines.flower.request import Request
from odcl.engines.flower.result import BareResult, mean_metrics, set_aside_json, write_bare
from odcl.engines.flower.rounds import RUN_AWAY, Round, RoundAnswers, RoundServer
from odcl.engines.wire import SetAside, nodes_aside
from odcl.exchange.ledger import Exchange, Ledger
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.rounds.steps import (
    Average,
    StepSize,
    ball_around,
    check_average,
    combine_gradients,
    combine_models,
    random_models,
    resolve_step,
)

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
        ids = {str(n): [id_to_json(user) for user in users] for n, users in self.nodes.items()}
        nodes = {
            "nodes": ids,
            "set_aside": set_aside_json(self.set_aside),
            "rounds": self.n_rounds,
            "bytes": {"up": self.ledger.total_up, "down": self.ledger.total_down},
            "step_size": self.step_size,
            "risk": self.risk.tolist(),
            "diverged": self.diverged,
        }
        found = (self.request.config(), self.users, self.labels, self.centers, reason)
        write_bare(BareResult(*found), folder, nodes, force=force)


class IFCA:
    """Iterative federated clustering on Flower.

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

    def _first_models(self, initial: Any, n_features: int | None) -> Floats:
        """Models of round 0, (n_clusters, dim)."""
        risk, seed = self.request.risk, self.request.seed
        if isinstance(initial, str):
            if initial not in INITIAL:
                known = ", ".join(INITIAL)
                raise ValueError(f"initial={initial!r} is not one of {known}, nor models.")
            if n_features is None:
                raise ValueError(
                    f"initial={initial!r} needs to know how long a model is: give n_features, or "
                    "the models themselves."
                )
            shape = (self.n_clusters, risk.dim(n_features))
            return np.zeros(shape) if initial == "zeros" else random_models(shape, seed)
        models = np.array(initial, dtype=np.float64)
        fits = models.ndim == 2 and len(models) == self.n_clusters and np.isfinite(models).all()
        if not fits or (n_features is not None and models.shape[1] != risk.dim(n_features)):
            raise ValueError(
                f"initial has shape {models.shape}: give {self.n_clusters} models of finite "
                "numbers, features and intercept times outputs."
            )
        return models

    def start(self, grid: Grid, num_rounds: int = 100) -> Result:
        """Run ``num_rounds`` rounds, then send the last models to every node.

        The answer's ``arrays`` are the last models; :attr:`outcome` has the rest.
        """
        what = "the nodes' own risk" if self.request.bare else f"{self.request.risk.loss.name} loss"
        log.info("Starting IFCA: %s, %d models of %s", what, self.n_clusters, self.average)
        began = time.monotonic()
        if self.result_dir is not None:
            check_artifact_place(self.result_dir, force=self.force)
        wait_for_nodes(grid, self.nodes, self.wait, least=self.min_replies)
        server = RoundServer(grid, self.request, self.timeout, self.min_replies)
        combine = combine_gradients if self.average == "gradients" else combine_models
        models, risk, diverged = self.initial, list[float](), False
        (k, dim), result = models.shape, Result()
        step, ahead = self._first_step(server)
        ledger = Exchange(0).over(0)
        for t in range(1, num_rounds + 1):
            radius = ball_around(models) if step is None else None
            question = Round(t, self.average, step or 1.0, self.local_steps, radius)
            heard = server.ask(question, models)
            if step is None:
                step = self._safe_step(heard)
            risk.append(float(heard.answers.mean_risk[0]))
            exchange = question.exchange(len(heard.users), k, dim, chosen=True)
            ledger = ledger.then(exchange.over(1))
            metrics = {"num-users": len(heard.users), "risk": risk[-1]}
            metrics["nodes-set-aside"] = len(server.aside)
            result.train_metrics_clientapp[t] = MetricRecord(metrics)
            new = combine(models[None], heard.answers, step)[0]
            diverged = not bool((np.abs(new) < RUN_AWAY).all())
            if diverged:
                log.warning("The models run away: the step is too long. Lower step_size.")
                break
            models = new
        ledger = ledger if ahead is None else ledger.with_first(ahead)
        heard = server.ask(Round(num_rounds, self.average, replies=False), models, last=True)
        down = Exchange(len(heard.users), receives=k * ((dim,),)).over(1)
        self.outcome = IFCAOutcome(
            self.request,
            heard.nodes,
            heard.users,
            heard.answers.labels[:, 0],
            models,
            np.array([*risk, float(heard.answers.mean_risk[0])]),
            step or 0.0,
            replace(ledger, delivery=down.total_down),
            nodes_aside(server.aside),
            heard.metrics,
            diverged,
        )
        result.arrays = array_record({"models": models})
        if losses := mean_metrics(heard.metrics.values()):
            result.evaluate_metrics_clientapp[num_rounds] = MetricRecord(losses)
        if self.result_dir is not None:
            self.outcome.write(self.result_dir, force=self.force)
            log.info("Models, groups and what became of each node: %s", self.result_dir)
        log.info("Finished in %.1f s.", time.monotonic() - began)
        return result

    def _first_step(self, server: RoundServer) -> tuple[float | None, Exchange | None]:
        """The step size, if it is known before the first round, and what it cost to ask for it.

        Users who average models need the step before they take one: a question ahead of round 1.
        Those who send gradients tell how smooth their risk is in their first answer.
        """
        if not isinstance(self.step_size, str):
            return resolve_step(self.step_size, float), None
        if self.average == "gradients":
            return None, None
        question = Round(0, self.average, radius=ball_around(self.initial), replies=False)
        heard = server.ask(question, self.initial)
        exchange = question.exchange(len(heard.users), *self.initial.shape, chosen=True)
        return self._safe_step(heard), exchange

    def _safe_step(self, heard: RoundAnswers) -> float:
        L = heard.smoothness
        assert L is not None
        return resolve_step(self.step_size, lambda: float(L.max()))
