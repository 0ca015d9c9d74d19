"""What leaves a node tells neither who its users are nor what a cell of its table holds."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from flwr.app import Context, Message

from odcl._typing import Array
from odcl.data.federation import as_ids
from odcl.engines.files.envelope import Refused
from odcl.engines.files.keys import write_new
from odcl.engines.flower.request import ids_to_text
from odcl.errors import InputError
from odcl.files import locked, read_regular

Answer = Callable[[Message, Context], Message]  # of a ClientApp
KEY, _BYTES = "odcl-names.key", 32
_DIGITS = 16  # of a digest: of ten million users, two share one with a chance of 3e-6


def outside(users: Array, context: Context) -> Array:
    """Users' ids as they leave their node: digests, or ``names = "plain"`` in the run's config.

    The key stays in the node's Flower home: its users have the same digests in every run, and
    nobody else can try out names.
    """
    how = context.run_config.get("names", "digests")
    if how == "plain":
        return users
    if how != "digests":
        raise Refused(f"names = {how!r} in the run's config is neither 'digests' nor 'plain'.")
    path = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / KEY
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path):
        if not path.exists():
            write_new(path, secrets.token_bytes(_BYTES), 0o600)
        key = read_regular(path, most=_BYTES)
    if len(key) < _BYTES:  # anybody could try out names under it
        raise ValueError(f"{path} is cut off: put it back from a copy, or remove it.")
    texts = (ids_to_text(users[i : i + 1]).encode() for i in range(len(users)))
    return as_ids([hmac.digest(key, text, "sha256").hex()[:_DIGITS] for text in texts])


def no_values(answer: Answer) -> Answer:
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
