"""Messages to nodes and their replies, one by one as they come, and never beyond a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

MOST_TEXT = 300  # characters of a reason that came from a node
PORTION = 200  # messages that are handed over at a time
_FIRST, _LAST = 0.05, 3.0  # seconds between two looks, at first and in the long run
_SLACK = 30.0  # seconds that a message stays valid beyond its round

NOT_SENT = "the request could not be handed to the SuperLink"

# What Flower's error codes say of a node.
_ERRORS = {
    1: "its ClientApp could not be loaded",
    2: "its ClientApp raised an error",
    3: "its reply is no longer there",
    4: "its reply is no longer there",
    5: "the node is gone",
    8: "its ClientApp died",
}


@dataclass(frozen=True, eq=False)
class Reply:
    """A node's answer, or why there is none."""

    node: int  # that was asked: errors made by the SuperLink carry its own id as their source
    message: Message | None
    why: str = ""


def wait_for_nodes(
    grid: Grid,
    wanted: int,
    seconds: float,
    *,
    least: int = 0,
    heard: Iterable[int] = (),
    known: Iterable[int] = (),
) -> list[int]:
    """Ids of the nodes that are connected, once ``wanted`` are or the time is up.

    Nodes that were ``heard`` count whether they are connected or not; those ``known`` do not. Fewer
    than ``least`` are an error.
    """
    end, pause = time.monotonic() + seconds, _FIRST
    heard, known = set(heard), set(known)
    while True:
        nodes = sorted(set(grid.get_node_ids()) - known)
        n = len(heard | set(nodes))
        if n >= wanted or (n >= least and time.monotonic() >= end):
            return nodes
        if time.monotonic() >= end:
            raise ValueError(
                f"{len(nodes)} node{'s' * (len(nodes) != 1)} connected within {seconds:g} s, and "
                f"{least} replies are needed: start more nodes, wait longer (wait), or ask for "
                "fewer (min_replies)."
            )
        time.sleep(max(0.0, min(pause, end - time.monotonic())))
        pause = min(1.5 * pause, _LAST)


def message_to(
    node: int, kind: str, content: RecordDict, timeout: float, number: int = 1
) -> Message:
    """A message of a round to a node; ``kind`` is that of its function: train, evaluate.rounds."""
    return Message(content, node, kind, ttl=timeout + _SLACK, group_id=str(number))


def replies(
    grid: Grid,
    messages: Iterable[Message],
    timeout: float,
    more: Callable[[], Sequence[Message]] | None = None,
) -> Iterator[Reply]:
    """Each node's reply as it comes; who has not answered in time is named at the end.

    ``more`` gives messages to nodes that appeared meanwhile.
    """
    waiting: dict[str, int] = {}
    yield from _push(grid, list(messages), waiting)
    end, pause = time.monotonic() + timeout, _FIRST
    while True:
        came = list(grid.pull_messages(list(waiting))) if waiting else []
        for message in came:
            node = waiting.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                yield reply_of(node, message)
        if not waiting or time.monotonic() >= end:
            break
        if more is not None:
            yield from _push(grid, more(), waiting)
        pause = _FIRST if came else min(1.5 * pause, _LAST)
        time.sleep(max(0.0, min(pause, end - time.monotonic())))
    for node in waiting.values():
        yield Reply(node, None, f"it did not answer within {timeout:g} s")


def _push(grid: Grid, messages: Sequence[Message], waiting: dict[str, int]) -> Iterator[Reply]:
    for start in range(0, len(messages), PORTION):
        portion = messages[start : start + PORTION]
        sent = set(grid.push_messages(portion))
        for message in portion:
            own, node = message.metadata.message_id, message.metadata.dst_node_id
            if own in sent:
                waiting[own] = node
            else:
                yield Reply(node, None, NOT_SENT)


def reply_of(node: int, message: Message) -> Reply:
    """A node's reply, or what its error says."""
    if not message.has_error():
        return Reply(node, message)
    code, told = message.error.code, (message.error.reason or "").strip().splitlines()
    why = _ERRORS.get(code, f"Flower reports error {code}")
    return Reply(node, None, f"{why} ({told[-1].strip()[:MOST_TEXT]})" if told else why)
