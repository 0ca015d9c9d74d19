"""One round as messages: models go to nodes, each user answers to one of them.

What users compute is :func:`odcl.rounds.users.answer`, which serves the rounds of one process as
well. Questions and answers travel as ``train.rounds``, the last models as ``evaluate.rounds``,
beside the one shot's own messages: one ClientApp answers to all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from odcl._typing import Array, Floats, Ints
from odcl.artifact.arrays import ArraySpec, expect, is_count, is_size, json_bytes, parse_json
from odcl.data.federation import Federation
from odcl.engines.arrivals import Agreed
from odcl.engines.files.envelope import Refused, refusing
from odcl.engines.flower.node import NodeData, NodeModels
from odcl.engines.flower.private import no_values
from odcl.engines.flower.records import arrays_of, config_of, content
from odcl.engines.flower.request import Request, ids_from_text, ids_to_text
from odcl.local.receive import Received
from odcl.rounds.users import Answers, Average, Work

ACTION = "rounds"
MESSAGE = "the server's message cannot be used"


@dataclass(frozen=True)
class Round:
    """What users are asked to do with the models that come."""

    number: int
    average: Average = "gradients"
    step_size: float = 1.0  # of local steps
    n_steps: int = 1
    radius: float | None = None  # of the ball over which they tell how smooth their risk is
    replies: bool = True  # False: they only choose a model

    def work(self) -> Work:
        return Work(self.average, self.step_size, self.n_steps if self.replies else 0)

    def words(self) -> str:
        return json_bytes(asdict(self), indent=None).decode()

    @classmethod
    def from_words(cls, text: Any) -> Round:
        expect(isinstance(text, str), "it holds no round")
        words = parse_json(text.encode())
        names = {f.name for f in fields(cls)}
        expect(isinstance(words, dict) and words.keys() == names, "it holds no round")
        found = cls(**words)
        expect(is_count(found.number) and is_count(found.n_steps), "numbers that are no counts")
        expect(found.average in ("gradients", "models"), "neither gradients nor models")
        expect(is_size(found.step_size) and isinstance(found.replies, bool), "no step")
        expect(found.radius is None or is_size(found.radius), "a radius that is none")
        return found


@runtime_checkable
class RoundFit(Protocol):
    """A model that can take part in rounds; odcl's risks do, and so do PyTorch modules."""

    def answer(
        self, rows: Federation, agreed: Agreed, models: Floats, labels: Ints | None, work: Work
    ) -> Answers:
        """Users' answers to ``models`` (n_models, dim): to that of ``labels`` (n_users,), or to
        the one with the least risk on their own rows."""
        ...

    def smoothness(self, rows: Federation, agreed: Agreed, radius: float) -> Floats:
        """L_i of each user over a ball, (n_users,)."""
        ...

    def loss(self, test: Federation, train: Federation, agreed: Agreed, theta: Floats) -> float:
        """Mean loss of rows held out, each by its user's model; ``theta`` is (n_users, dim)."""
        ...


# -- the node's side -------------------------------------------------------------------------------


class _Answered(NamedTuple):
    reply: Message
    users: Array
    found: Answers
    request: Request


def add_rounds(
    app: ClientApp,
    fit: Any,
    asked: Callable[[Message], Request],
    rows_of: Callable[[Context, Request], tuple[NodeData, Agreed, Array]],
    on_model: Callable[[NodeModels, Context], None] | None,
) -> None:
    """Let a ClientApp answer to rounds."""

    def answers(message: Message, context: Context, *, scored: bool) -> _Answered:
        request = asked(message)
        data, agreed, called = rows_of(context, request)
        if not isinstance(fit, RoundFit):
            raise Refused(
                f"{type(fit).__name__} fits once, on a user's own rows, and cannot go on from a "
                "model that is sent to it: ask for the one shot (refine_rounds=0)."
            )
        with refusing(MESSAGE):
            ask, models, labels = _asked(message, agreed, called)
        found = fit.answer(data.train, agreed, models, labels, ask.work())
        arrays: dict[str, Array] = {
            "labels": found.labels[:, 0].astype(np.int64),
            "risk": found.risk[:, 0],
        }
        if ask.replies:
            arrays["replies"] = found.replies[:, 0]
        if ask.radius is not None:
            arrays["smoothness"] = fit.smoothness(data.train, agreed, ask.radius)
        words = {"task": request.digest, "users": ids_to_text(called), "number": ask.number}
        sizes: dict[str, float] = {"num-examples": len(data.train.y)}
        sizes["num-users"] = data.train.n_users
        if scored and data.test is not None:
            sizes["num-examples"] = len(data.test.y)
            sizes["loss"] = fit.loss(data.test, data.train, agreed, found.picked[:, 0])
        reply = Message(content(arrays, words, sizes), reply_to=message)
        return _Answered(reply, data.train.users, found, request)

    @app.train(ACTION)
    @no_values
    def train(message: Message, context: Context) -> Message:
        return answers(message, context, scored=False).reply

    @app.evaluate(ACTION)
    @no_values
    def evaluate(message: Message, context: Context) -> Message:
        done = answers(message, context, scored=True)
        if on_model is not None:
            models, labels = done.found.picked[:, 0], done.found.labels[:, 0]
            own = Received(models, np.full(len(models), np.inf), "none")
            sure, reason = np.ones(len(models)), "the least risk on the user's own rows"
            late = np.zeros(len(models), dtype=bool)
            given = (models, labels, sure, reason, own, None, late)
            on_model(NodeModels(done.request, done.users, *given), context)
        return done.reply


def _asked(message: Message, agreed: Agreed, users: Array) -> tuple[Round, Floats, Ints | None]:
    """The round that a node is asked for, its models, and whose they are, if that is settled."""
    words = config_of(message)
    ask = Round.from_words(words.get("round"))
    specs = {
        "models": ArraySpec(("models", agreed.dim)),
        "labels": ArraySpec(("users",), ("int64",), optional=True),
    }
    arrays = arrays_of(message, specs, users=len(users))
    k, labels = len(arrays["models"]), arrays.get("labels")
    expect(k > 0, "it holds no model")
    if labels is None:
        return ask, arrays["models"], None
    named = ids_from_text(words.get("users"))
    expect(named.tolist() == users.tolist(), "the models are for other users than this node's")
    expect(bool(((labels >= 0) & (labels < k)).all()), "it names a model that is not there")
    return ask, arrays["models"], labels.astype(np.intp)
