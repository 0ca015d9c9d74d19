"""Messages to nodes and their replies: what they hold, and one round trip with its checks.

Records are plain, so that any Flower tool can look into them. Types, shapes and sizes are checked
before memory is taken.
"""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from odcl._typing import Array
from odcl.artifact.arrays import ArraySpec, check_contents, check_finite, expect
from odcl.engines.files.envelope import Refused
from odcl.engines.wire import naming_set_aside, nodes_aside
from odcl.errors import count

T = TypeVar("T")
log = logging.getLogger("flwr")  # Flower's own: it goes where `flwr log` looks

# -- records ---------------------------------------------------------------------------------------

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
_NUMPY = "numpy.ndarray"


def array_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Arrays under their names."""
    return ArrayRecord({name: FlowerArray(np.asarray(array)) for name, array in arrays.items()})


def content(
    arrays: Mapping[str, Array] | None = None,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> RecordDict:
    """The records of a message."""
    found = RecordDict()
    if arrays is not None:
        found[ARRAYS] = array_record(arrays)
    if config is not None:
        found[CONFIG] = ConfigRecord(dict(config))
    if metrics is not None:
        found[METRICS] = MetricRecord(dict(metrics))
    return found


def config_of(message: Message) -> Mapping[str, Any]:
    """The words of a message."""
    found = message.content.config_records.get(CONFIG)
    expect(found is not None, f"it has no ConfigRecord {CONFIG!r}")
    return found


def metrics_of(message: Message) -> Mapping[str, Any]:
    """The metrics of a message; none where there are none."""
    return message.content.metric_records.get(METRICS, {})


def arrays_of(message: Message, specs: Mapping[str, ArraySpec], **sizes: int) -> dict[str, Array]:
    """The arrays of a message, which are just those declared."""
    record = message.content.array_records.get(ARRAYS)
    expect(record is not None, f"it has no ArrayRecord {ARRAYS!r}")
    contents = {str(name): (str(one.dtype), tuple(one.shape)) for name, one in record.items()}
    check_contents(contents, specs, sizes)
    arrays = {name: _decoded(name, record[name]) for name in contents}
    check_finite(arrays, specs)
    return arrays


def _decoded(name: str, one: FlowerArray) -> Array:
    """The numbers of an array, whose bytes must fit its type and shape."""
    expect(one.stype == _NUMPY, f"{name} is serialized as {one.stype!r}")
    stream = io.BytesIO(one.data)
    version = np.lib.format.read_magic(stream)
    expect(version == (1, 0), f"{name} is no plain array")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    same = shape == tuple(one.shape) and dtype.name == one.dtype and not dtype.hasobject
    expect(same, f"{name} holds another array than it says")
    numbers = one.data[stream.tell() :]
    expect(
        len(numbers) == math.prod(shape) * dtype.itemsize, f"{name} has other bytes than it says"
    )
    flat = np.frombuffer(numbers, dtype=dtype)
    array = flat.reshape(shape[::-1]).T if by_columns else flat.reshape(shape)
    return np.require(array, dtype=dtype.newbyteorder("="), requirements=["C", "A"])


# -- a round trip ----------------------------------------------------------------------------------

MOST_TEXT = 300  # characters of a reason that came from a node
PORTION = 200  # messages that are handed over at a time
_FIRST, _LAST = 0.05, 3.0  # seconds between two looks, at first and in the long run
_SLACK = 30.0  # seconds that a message stays valid beyond its round

# What Flower's error codes say of a node.
_ERRORS = {
    1: "its ClientApp could not be loaded",
    2: "its ClientApp raised an error",
    3: "its reply is no longer there",
    4: "its reply is no longer there",
    5: "the node is gone",
    8: "its ClientApp died",
}


def wait_for_nodes(
    grid: Grid,
    wanted: int,
    seconds: float,
    *,
    least: int = 0,
    heard: Iterable[int] = (),
    known: Iterable[int] = (),
) -> list[int]:
    """Ids of the connected nodes, once there are ``wanted`` or the time is up.

    Nodes that were ``heard`` count whether they are connected or not; those ``known`` do not. Fewer
    than ``least`` are an error.
    """
    end, pause = time.monotonic() + seconds, _FIRST
    heard, known = set(heard), set(known)
    while True:
        nodes = sorted(set(grid.get_node_ids()) - known)
        n, late = len(heard | set(nodes)), time.monotonic() >= end
        if n >= wanted or (n >= least and late):
            return nodes
        if late:
            raise ValueError(
                f"{count(len(nodes), 'node')} connected within {seconds:g} s, and {least} replies "
                "are needed: start more nodes, wait longer (wait), or ask for fewer (min_replies)."
            )
        time.sleep(max(0.0, min(pause, end - time.monotonic())))
        pause = min(1.5 * pause, _LAST)


def message_to(node: int, kind: str, content: RecordDict, timeout: float) -> Message:
    """A message to a node; ``kind`` is that of its function: train or evaluate."""
    return Message(content, node, kind, ttl=timeout + _SLACK, group_id="1")


def ask(
    grid: Grid,
    messages: Iterable[Message],
    timeout: float,
    read: Callable[[int, Message], T],
    more: Callable[[], Sequence[Message]] | None = None,
) -> tuple[dict[int, T], dict[int, str]]:
    """One round trip: what was read of each node's reply, and why other nodes are set aside.

    ``read(node, message)`` is called as a reply comes, and raises
    :class:`~odcl.engines.files.envelope.Refused` for one that cannot be taken. ``more`` gives
    messages to nodes that appeared meanwhile.
    """
    taken: dict[int, T] = {}
    aside: dict[int, str] = {}
    for node, message in _replies(grid, list(messages), timeout, more):
        try:
            if isinstance(message, str):
                raise Refused(message)
            if message.has_error():
                raise Refused(_error_text(message))
            taken[node] = read(node, message)
        except Refused as error:
            aside[node] = str(error)
            log.warning("Node %d is set aside: %s", node, aside[node])
    return taken, aside


def expect_replies(n: int, least: int, aside: Mapping[int, str], what: str) -> None:
    """Refuse to go on with fewer than ``least`` replies; notes say why nodes were set aside."""
    if n < least:
        plural = "replies" if n != 1 else "reply"
        with naming_set_aside(nodes_aside(aside)):
            raise ValueError(
                f"{n} {plural} can be taken{what}, and {least} are needed ({len(aside)} nodes set "
                "aside): see why they were, and run it again."
            )


def _replies(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    more: Callable[[], Sequence[Message]] | None,
) -> Iterator[tuple[int, Message | str]]:
    """Each asked node with its reply as it comes, or the reason why there is none.

    Errors made by the SuperLink carry its own id as their source: replies are known by the message
    that they answer.
    """
    waiting: dict[str, int] = {}
    yield from _push(grid, messages, waiting)
    end, pause = time.monotonic() + timeout, _FIRST
    while True:
        came = list(grid.pull_messages(list(waiting))) if waiting else []
        for message in came:
            node = waiting.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                yield node, message
        if not waiting or time.monotonic() >= end:
            break
        if more is not None:
            yield from _push(grid, more(), waiting)
        pause = _FIRST if came else min(1.5 * pause, _LAST)
        time.sleep(max(0.0, min(pause, end - time.monotonic())))
    for node in waiting.values():
        yield node, f"it did not answer within {timeout:g} s"


def _push(
    grid: Grid, messages: Sequence[Message], waiting: dict[str, int]
) -> Iterator[tuple[int, str]]:
    for start in range(0, len(messages), PORTION):
        portion = messages[start : start + PORTION]
        sent = set(grid.push_messages(portion))
        for message in portion:
            own, node = message.metadata.message_id, message.metadata.dst_node_id
            if own in sent:
                waiting[own] = node
            else:
                yield node, "the request could not be handed to the SuperLink"


def _error_text(message: Message) -> str:
    """What an error in place of a reply says of its node."""
    code, text = message.error.code, (message.error.reason or "").strip().splitlines()
    why = _ERRORS.get(code, f"Flower reports error {code}")
    return f"{why} ({text[-1].strip()[:MOST_TEXT]})" if text else why
