"""The node's side: ``make_client_app(load)`` is a ClientApp that fits, sends and receives.

train     the request (risk, method, digest) -> the uploads of the node's users
evaluate  their downloads -> their last step, on the node's own rows; metrics go back
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from odcl._typing import Array, Bools
from odcl.artifact.arrays import ArraySpec, expect, is_count, parse_json
from odcl.data.federation import Federation
from odcl.engines.arrivals import Agreed
from odcl.engines.deliveries import MIXTURE_SPECS, download_specs, downloads_of, mixture_of
from odcl.engines.files.envelope import Refused, refusing
from odcl.engines.flower.fits import Fit, RiskFit
from odcl.engines.flower.node import NodeData, NodeModels
from odcl.engines.flower.private import no_values, outside
from odcl.engines.flower.records import array_record, arrays_of, config_of, content
from odcl.engines.flower.request import Request, ids_from_text, ids_to_text
from odcl.engines.flower.rounds import MESSAGE, add_rounds
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.risk.risk import Risk

Load = Callable[[Context], Any]
OnModel = Callable[[NodeModels, Context], None]
_STATE = "odcl"  # of the node's own memory


def make_client_app(
    load: Load,
    *,
    risk: Risk | str | None = None,
    method: Method | str | None = None,
    fit: Fit | None = None,
    on_model: OnModel | None = None,
) -> ClientApp:
    """A ClientApp for a node's own data.

    load : ``load(context)`` gives the node's rows: (X, y) of one user, whose id is ``user``,
        ``site`` or ``partition-id`` of the node's config; {user: (X, y)}; (X, y, X_test, y_test)
        in place of (X, y), for rows held out; a Federation; or NodeData(train, test).
    risk, method : what this node agrees to. A server that asks for something else is refused; None
        does what the server asks for.
    fit : how users fit their models; odcl's own exact fit unless given. See
        :class:`~odcl.engines.flower.fits.Fit`.
    on_model : called with the node's :class:`NodeModels` and the context, to keep or use them.

    Users leave the node as digests under a key of its own, unless the run's config has
    ``names = "plain"``; ``on_model`` knows them by their names. Of an error, no value leaves.
    """
    fit = RiskFit() if fit is None else fit
    wanted = Risk(risk) if isinstance(risk, str) else risk
    how = None if method is None else Request(method=Method.of(method)).method
    app = ClientApp()

    def asked(message: Message) -> Request:
        with refusing(MESSAGE):
            request = Request.from_config(config_of(message))
        for name, own, theirs in (("risk", wanted, request.risk), ("method", how, request.method)):
            if own is not None and own != theirs:
                raise Refused(
                    f"The server asks for the {name} {theirs}, and this node agreed to {own}: "
                    "nothing was sent."
                )
        return request

    def rows_of(context: Context, request: Request) -> tuple[NodeData, Agreed, Array]:
        data = NodeData.of(load(context), context.node_config)
        n = _length(fit) if request.bare else data.train.n_features
        if request.n_features not in (None, n):
            raise Refused(
                f"The rows have {n} features, and {request.n_features} are agreed on: "
                f"{', '.join(request.columns or ())}."
            )
        return data, request.agreed(n), outside(data.train.users, context)

    @app.train()
    @no_values
    def train(message: Message, context: Context) -> Message:
        request = asked(message)
        data, agreed, called = rows_of(context, request)
        uploads = fit.uploads(data.train, agreed, seed=request.seed)
        arrays = uploads.to_arrays()
        _remember(context, request, data.train, arrays)
        words = {
            "task": request.digest,
            "users": ids_to_text(called),
            "n-features": agreed.n_features,
        }
        sizes = {"num-examples": len(data.train.y), "num-users": len(uploads)}
        return Message(content(arrays, words, sizes), reply_to=message)

    @app.evaluate()
    @no_values
    def evaluate(message: Message, context: Context) -> Message:
        request = asked(message)
        data, agreed, called = rows_of(context, request)
        words = config_of(message)
        with refusing(MESSAGE):
            downloads, late = _delivered(message, words, agreed, called)
        uploads = _recalled(context, request, data.train, agreed)
        if uploads is None:
            uploads = fit.uploads(data.train, agreed, seed=request.seed)
        placed = fit.last_step(data.train, agreed, uploads, downloads, late=late, seed=request.seed)
        if on_model is not None:
            own, reason = placed.received, str(words.get("reason", ""))
            found = (own.models, placed.labels, placed.probability, reason, own, uploads, late)
            on_model(NodeModels(request, data.train.users, *found), context)
        metrics: dict[str, float] = {"num-examples": len(data.train.y), "num-users": len(uploads)}
        if data.test is not None:
            metrics["num-examples"] = len(data.test.y)
            metrics |= fit.losses(data.test, data.train, agreed, placed, downloads)
        answer = {"task": request.digest, "received": True}
        return Message(content(None, answer, metrics), reply_to=message)

    add_rounds(app, fit, asked, rows_of, on_model)
    return app


def _length(fit: Fit) -> int:
    """How many numbers a model has that odcl does not know."""
    found = getattr(fit, "n_parameters", None)
    if found is None:
        raise Refused(
            f"The server asks for bare models (risk=None), and {type(fit).__name__} fits a risk: "
            "give make_client_app a fit of its own, such as ModuleFit, or the server a risk."
        )
    return int(found)


def _delivered(
    message: Message, words: Mapping[str, Any], agreed: Agreed, users: Array
) -> tuple[Downloads, Bools]:
    """The downloads of a node's users, checked, and whether these came after the round."""
    named = ids_from_text(words.get("users"))
    expect(named.tolist() == users.tolist(), "the download is for other users than this node's")
    late, n_groups = words.get("late"), words.get("groups")
    expect(isinstance(late, bool) and is_count(n_groups), "the download lacks words")
    text = words.get("mixture", "")
    mixed = None if text == "" else parse_json(str(text).encode())
    specs: dict[str, ArraySpec] = download_specs(agreed.dim)
    if mixed is not None:
        specs |= MIXTURE_SPECS
    if late:
        specs["late"] = ArraySpec(("users",), ("bool",))
    arrays = arrays_of(message, specs, users=len(users))
    mixture = mixture_of(agreed, mixed, arrays)
    own = {name: arrays[name] for name in download_specs(agreed.dim) if name in arrays}
    downloads = downloads_of(agreed, users, own, int(n_groups or 0), mixture)
    return downloads, arrays.get("late", np.zeros(len(users), dtype=bool))


# -- the node's own memory: what it sent need not be worked out again ------------------------------


def _remember(
    context: Context, request: Request, rows: Federation, arrays: Mapping[str, Array]
) -> None:
    context.state[f"{_STATE}-arrays"] = array_record(arrays)
    told = {"task": request.digest, "users": ids_to_text(rows.users), "rows": len(rows.y)}
    context.state[f"{_STATE}-config"] = ConfigRecord(told)


def _recalled(
    context: Context, request: Request, rows: Federation, agreed: Agreed
) -> Uploads | None:
    """What the node sent, if it remembers: another process may have sent it."""
    from dataclasses import replace

    told = context.state.config_records.get(f"{_STATE}-config")
    found = context.state.array_records.get(f"{_STATE}-arrays")
    now = {"task": request.digest, "users": ids_to_text(rows.users), "rows": len(rows.y)}
    if told is None or found is None or dict(told) != now:
        return None
    arrays = {name: one.numpy() for name, one in found.items()}
    return replace(Uploads.from_arrays(rows.users, arrays), risk=agreed.risk)
