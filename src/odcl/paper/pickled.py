"""Arrays and text from a pickle that is not run.

A pickle is a program. Restricting what it may import leaves it ways to take all memory (on the
Pythons we support a few bytes suffice: python/cpython#115952), so it is not run: pickletools reads
its steps, and those that build dicts, lists, numbers, text and arrays are followed here. A name it
asks for becomes a note of name and arguments; nothing is imported, nothing called.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

_MOST_STEPS = 100_000  # an official batch of CIFAR-10 has some 30,000
_ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_ARRAY_5 = ("numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer")  # protocol 5
_NAMES = (*_ARRAY, *_ARRAY_5, "numpy ndarray", "numpy dtype", "_codecs encode")
_VALUES = {
    *("BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE"),
    *("SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# Steps that take things off the stack: how many, or None for all above the last mark.
_TAKES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}
_TAKES |= {"EMPTY_LIST": 0, "APPEND": 1, "APPENDS": None}
_TAKES |= {"EMPTY_DICT": 0, "SETITEM": 2, "SETITEMS": None}
_TAKES |= {"STACK_GLOBAL": 2, "REDUCE": 2, "BUILD": 1}


class UnfitPickle(Exception):
    """What a pickle holds that a batch of images does not."""


@dataclass(eq=False)
class _Note:
    """A name in a pickle, what it was to be called with, and the state it was to be given."""

    name: str
    args: Any = ()
    state: Any = None


def replay(raw: bytearray) -> Any:
    """What a pickle describes, without running it: dicts, lists, tuples, values and notes."""
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks under each mark
    memo: dict[int, Any] = {}
    arg: Any
    for op, arg, _ in islice(pickletools.genops(raw), _MOST_STEPS):
        step = op.name
        if step in _VALUES:
            stack.append(arg)
        elif step in _CONSTANTS:
            stack.append(_CONSTANTS[step])
        elif step in _TAKES:
            n = _TAKES[step]
            if n is None:
                items, stack = stack, below.pop()
            else:
                items = [stack.pop() for _ in range(n)][::-1]
            _build(step, items, stack)
        elif step == "MARK":
            below.append(stack)
            stack = []
        elif step in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if arg is None else arg] = stack[-1]
        elif step in ("BINGET", "LONG_BINGET"):
            stack.append(memo[arg])
        elif step == "GLOBAL":
            stack.append(_noted(arg))
        elif step == "STOP":
            return stack.pop()
        elif step not in ("PROTO", "FRAME"):
            raise UnfitPickle(f"is a pickle with a step {step}, which arrays and text do not need")
    raise UnfitPickle(f"is a pickle of more than {_MOST_STEPS} steps")


def _build(step: str, items: list[Any], stack: list[Any]) -> None:
    """One step that makes a thing of others, or puts them into the thing on top of the stack."""
    match step:
        case "EMPTY_DICT":
            stack.append({})
        case "EMPTY_LIST":
            stack.append([])
        case "APPEND" | "APPENDS":
            list.extend(stack[-1], items)
        case "SETITEM" | "SETITEMS":
            dict.update(stack[-1], zip(map(_key, items[::2]), items[1::2], strict=True))
        case "STACK_GLOBAL":
            stack.append(_noted(" ".join(items)))
        case "REDUCE":
            note, args = items
            if not isinstance(note, _Note) or note.args:
                raise UnfitPickle("is a pickle that calls what is not a function")
            # Python 3 writes bytes for Python 2 as text to encode; here text serves for both.
            text = note.name == "_codecs encode"
            stack.append(args[0] if text else _Note(note.name, args))
        case "BUILD":
            if not isinstance(stack[-1], _Note):
                raise UnfitPickle("is a pickle that gives a state to what is not an array")
            stack[-1].state = items[0]
        case _:
            stack.append(tuple(items))


def _noted(name: str) -> _Note:
    if name not in _NAMES:
        raise UnfitPickle(
            f"is a pickle that asks for {name!r:.80}, and images need arrays and text"
        )
    return _Note(name)


def _key(key: Any) -> str:
    """A key of a dict as text: Python 2's keys are bytes."""
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if isinstance(key, str):
        return key
    raise UnfitPickle(f"is a pickle with a key of type {type(key).__name__}, not text")


def byte_array(note: Any) -> Bytes:
    """The array of bytes that a note describes; text stands for bytes as in Latin-1."""
    order: Any
    match note:
        case _Note(name, _, (_, shape, dtype, fortran, raw)) if name in _ARRAY:
            order = "F" if fortran else "C"
        case _Note(name, (raw, dtype, shape, order)) if name in _ARRAY_5:
            pass
        case _:
            raise UnfitPickle("holds data that is not an array")
    match dtype:
        case _Note("numpy dtype", ("u1" | "|u1", *_)):
            pass
        case _:
            raise UnfitPickle("holds data that is not an array of bytes")
    raw = raw.encode("latin-1") if isinstance(raw, str) else raw
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order=order)
