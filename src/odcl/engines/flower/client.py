"""The node's side: ``make_client_app(load)`` is a ClientApp that fits, sends and receives.

train     the request (risk, method, digest) -> the uploads of the node's users
evaluate  their downloads -> their last step, on the node's own rows; metrics go back

What leaves a node tells neither who its users are nor what a cell of its table holds.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from odcl._typing import Array, Bools
from odcl.artifact.arrays import ArraySpec, expect, is_count, parse_json
from odcl.data.federation import as_ids
from odcl.engines.files.envelope import Refused, refusing
from odcl.engines.files.keys import write_new
from odcl.engines.flower.fits import Fit, NodeData, NodeModels
from odcl.engines.flower.messages import array_record, arrays_of, config_of, content, log
from odcl.engines.flower.request import Request, ids_from_text, ids_to_text
from odcl.engines.flower.spent import NodeLedger, flower_home
from odcl.engines.wire import MIXTURE_SPECS, Agreed, downloads_of, mixture_of
from odcl.errors import InputError
from odcl.exchange.message import Downloads
from odcl.exchange.upload import Uploads
from odcl.files import locked, read_regular
from odcl.local.fit import fit_users
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.server.assign import Placed

Load = Callable[[Context], Any]
OnModel = Callable[[NodeModels, Context], None]
MESSAGE = "the server's message cannot be used"
_STATE = "odcl"  # of the node's own memory
_Given = tuple[Uploads, Downloads, Bools]  # of a node's users, and which of them are late


class _Node(NamedTuple):
    """A node's side of one message."""

    request: Request
    data: NodeData
    agreed: Agreed
    called: Array  # (n_users,), ids as they leave the node

    @property
    def sizes(self) -> dict[str, float]:
        return {"num-examples": len(self.data.train.y), "num-users": self.data.train.n_users}


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

    With private uploads no number of rows and no loss leaves either, and what is spent is noted in
    a ledger: ``epsilon`` of the node's config is the most that all of them may come to, and
    ``ledger`` its place. ``load`` is to treat each row by itself.
    """
    wanted = Risk(risk) if isinstance(risk, str) else risk
    agreed = None if method is None else replace(Method.of(method), standardize=False)
    side = _Side(load, Fit() if fit is None else fit, wanted, agreed, on_model)
    app = ClientApp()
    app.train()(no_values(side.train))
    app.evaluate()(no_values(side.evaluate))
    return app


@dataclass(frozen=True)
class _Side:
    """The node's side of both messages.

    With private uploads an answer depends on what the server sent, on the ledger and on who the
    users are, beside what has noise: whatever rows do to a fit or a last step is for the node's own
    log.
    """

    load: Load
    fit: Fit
    risk: Risk | None  # that the node agrees to
    method: Method | None
    on_model: OnModel | None

    def train(self, message: Message, context: Context) -> Message:
        request = self._request(message, context)
        if request.method.privacy is not None:
            return self._private_train(message, context, request)
        node = self._node(request, context)
        arrays = self.fit.uploads(node.data.train, node.agreed, seed=request.seed).to_arrays()
        context.state[f"{_STATE}-arrays"] = array_record(arrays)
        context.state[f"{_STATE}-config"] = ConfigRecord(_sent(node))
        words = {"task": request.digest, "users": ids_to_text(node.called)}
        lines = node.agreed.risk.n_lines(node.agreed.n_features)
        return Message(content(arrays, words | {"n-features": lines}, node.sizes), reply_to=message)

    def evaluate(self, message: Message, context: Context) -> Message:
        request = self._request(message, context)
        if request.method.privacy is not None:
            return self._private_evaluate(message, context, request)
        node = self._node(request, context)
        data, agreed, words = node.data, node.agreed, config_of(message)
        with refusing(MESSAGE):
            downloads, late = _delivered(message, words, agreed, node.called)
        uploads = _recalled(context, node)
        if uploads is None:
            uploads = self.fit.uploads(data.train, agreed, seed=request.seed)
        placed = self._models(node, message, context, (uploads, downloads, late))
        metrics = node.sizes
        if data.test is not None:
            alone = uploads.theta
            if alone is None:
                alone = fit_users(data.train, agreed.risk).theta
            each = {"": placed.received.models, "-local": alone, "-group": downloads.model}
            for name, theta in each.items():
                metrics[f"loss{name}"] = self.fit.loss(data.test, data.train, agreed, theta)
            metrics["num-examples"] = len(data.test.y)
        return _received(message, request, metrics)

    def _request(self, message: Message, context: Context) -> Request:
        """What the server asks for, if this node agrees to it."""
        with refusing(MESSAGE):
            request = Request.from_config(config_of(message))
        NodeLedger.of(context).check(request.method.privacy)
        theirs_of = request.method
        if self.method is not None:  # how bad uploads are met is the server's: no more leaves
            theirs_of = replace(theirs_of, robust=self.method.robust)
        asked = (("risk", self.risk, request.risk), ("method", self.method, theirs_of))
        for name, own, theirs in asked:
            if own is not None and own != theirs:
                raise Refused(
                    f"The server asks for the {name} {theirs}, and this node agreed to {own}: "
                    "nothing was sent."
                )
        if request.method.privacy is not None and type(self.fit).uploads is not Fit.uploads:
            name = type(self.fit).__name__
            raise Refused(f"Private uploads are odcl's own, and {name} would send others.")
        return request

    def _node(self, request: Request, context: Context) -> _Node:
        """The node's rows, as the request has them."""
        given = NodeData.of(self.load(context), context.node_config)
        data = given.bent(request.risk.curves)
        lines = request.risk.n_lines(data.train.n_features)
        n = _length(self.fit) if request.bare else lines
        if request.n_features not in (None, n):
            raise Refused(
                f"The rows have {given.train.n_features} features, and {request.n_features} are "
                f"agreed on: {', '.join(request.columns or ())}."
            )
        return _Node(request, data, request.agreed(n), _digests(data.train.users, context))

    def _models(self, node: _Node, message: Message, context: Context, given: _Given) -> Placed:
        """The last step of the node's users, whose models stay here."""
        rows, (uploads, downloads, late) = node.data.train, given
        placed = self.fit.last_step(rows, node.agreed, uploads, downloads, late=late)
        if self.on_model is not None:
            own, reason = placed.received, str(config_of(message).get("reason", ""))
            found = (own.models, placed.labels, placed.probability, reason, own, uploads, late)
            self.on_model(NodeModels(node.request, rows.users, *found), context)
        return placed

    # -- private uploads -----------------------------------------------------------------------

    def _private_train(self, message: Message, context: Context, request: Request) -> Message:
        """What has noise, and who the users are; who they are alone, if they come too late."""
        ledger = NodeLedger.of(context)
        late = config_of(message).get("late") is True and ledger.sent(request) is None
        if late:
            with telling_nothing():
                users = self._node(request, context).called
        else:
            sent = ledger.once(request, lambda: self._looked(request, context))
            users = sent.users
        words = {"task": request.digest, "users": ids_to_text(users), "late": late}
        words["n-features"] = request.n_features
        arrays = None if late else sent.to_arrays()
        return Message(content(arrays, words), reply_to=message)

    def _looked(self, request: Request, context: Context) -> Uploads:
        """Private uploads of the node's users, by the ids under which they leave."""
        with telling_nothing():
            node = self._node(request, context)
        if node.data.test is not None:
            raise Refused(
                "Rows are held out at this node, which other rows have chosen, and private uploads "
                "would not hide that: load all of them as (X, y)."
            )
        with telling_nothing():
            sent = self.fit.uploads(node.data.train, node.agreed, seed=request.seed)
            return replace(sent, users=node.called)

    def _private_evaluate(self, message: Message, context: Context, request: Request) -> Message:
        """That the download came: a server could make its last step fail for some rows alone."""
        words, agreed = config_of(message), request.agreed(request.n_features or 0)
        with refusing(MESSAGE):
            users = ids_from_text(words.get("users"))
            downloads, late = _delivered(message, words, agreed, users)
        try:
            node = self._node(request, context)
            expect(node.called.tolist() == users.tolist(), "the table has other users by now")
            uploads = NodeLedger.of(context).sent(request)
            if uploads is None:
                uploads = fit_users(node.data.train, agreed.risk, terms=True).uploads
            self._models(node, message, context, (uploads, downloads, late))
        except Exception:
            log.exception("The users of this node have no models; the server is not told:")
        return _received(message, request)


def _received(
    message: Message, request: Request, metrics: Mapping[str, float] | None = None
) -> Message:
    answer = {"task": request.digest, "received": True}
    return Message(content(None, answer, metrics), reply_to=message)


@contextmanager
def telling_nothing() -> Iterator[None]:
    """Whatever is wrong with rows, the server learns that something is, and no more."""
    try:
        yield
    except Exception as error:
        raise Refused("its rows cannot be used, for a reason that its own log has") from error


def _length(fit: Fit) -> int:
    """How many numbers a bare model has."""
    found = getattr(fit, "n_parameters", None)
    if found is None:
        raise Refused(
            f"The server asks for bare models (risk=None), and {type(fit).__name__} fits a risk: "
            "give make_client_app a fit of its own, such as ModuleFit, or the server a risk."
        )
    return int(found)


# -- messages from the server ----------------------------------------------------------------------


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
    own = Downloads.specs({"dim": agreed.dim})
    specs = own | (MIXTURE_SPECS if mixed is not None else {})
    if late:
        specs["late"] = ArraySpec(("users",), ("bool",))
    arrays = arrays_of(message, specs, users=len(users))
    mixture = mixture_of(agreed, mixed, arrays)
    given = {name: arrays[name] for name in own if name in arrays}
    downloads = downloads_of(agreed, users, given, int(n_groups or 0), mixture)
    return downloads, arrays.get("late", np.zeros(len(users), dtype=bool))


# -- the node's memory: what it sent need not be worked out again ----------------------------------


def _sent(node: _Node) -> dict[str, Any]:
    """What an upload belongs to, so that the node knows it again."""
    rows = node.data.train
    return {"task": node.request.digest, "users": ids_to_text(rows.users), "rows": len(rows.y)}


def _recalled(context: Context, node: _Node) -> Uploads | None:
    """What the node sent, if it remembers: another process may have sent it."""
    config = context.state.config_records.get(f"{_STATE}-config")
    found = context.state.array_records.get(f"{_STATE}-arrays")
    if config is None or found is None or dict(config) != _sent(node):
        return None
    arrays = {name: one.numpy() for name, one in found.items()}
    return replace(Uploads.from_arrays(node.data.train.users, arrays), risk=node.agreed.risk)


# -- what may leave the node -----------------------------------------------------------------------

KEY, _BYTES = "odcl-names.key", 32
_DIGITS = 16  # of a digest: of ten million users, two share one with a chance of 3e-6


def _digests(users: Array, context: Context) -> Array:
    """Users' ids as they leave their node: digests, or ``names = "plain"`` in the run's config.

    The key stays in the node's Flower home: its users have the same digests in every run, and
    only the node can try out names.
    """
    how = context.run_config.get("names", "digests")
    if how == "plain":
        return users
    if how != "digests":
        raise Refused(f"names = {how!r} in the run's config is neither 'digests' nor 'plain'.")
    path = flower_home() / KEY
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path):
        if not path.exists():
            write_new(path, secrets.token_bytes(_BYTES), 0o600)
        key = read_regular(path, most=_BYTES)
    if len(key) < _BYTES:  # names could be tried out under it
        raise ValueError(f"{path} is cut off: put it back from a copy, or remove it.")
    texts = (ids_to_text(users[i : i + 1]).encode() for i in range(len(users)))
    return as_ids([hmac.digest(key, text, "sha256").hex()[:_DIGITS] for text in texts])


def no_values(answer: Callable[[Message, Context], Message]) -> Any:
    """Let the rule that rows broke leave the node, and no more; its own log has all of it.

    A :class:`Refused` speaks of what the server sent or how the app is set up, and may leave.
    """

    @wraps(answer)
    def guarded(message: Message, context: Context) -> Message:
        try:
            return answer(message, context)
        except Refused:
            raise
        except Exception as error:
            rule = error.rule if isinstance(error, InputError) else ""
            seen = f"{type(error).__name__}, which the node's log explains"
            raise Refused(rule or seen) from error

    return guarded
