"""Arrays in a file of the safetensors layout, checked against a declaration before they are read.

The layout: 8 bytes that say how long the header is, a JSON header with the type, shape and place
of each array, and then their numbers. We write it ourselves because safetensors' writer needs all
arrays a second time in memory and reports a full disk as an error of its own, and read it ourselves
because its reader opens a path (which may be a pipe) and maps it (which may be cut short later).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np

from odcl._typing import Array
from odcl.artifact.codecs import expect, is_count, parse_json

MOST_HEADER = 2**20  # bytes
_CODES = {
    "float64": "F64",
    "float32": "F32",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
WHOLE = tuple(name for name in _CODES if not name.startswith("float"))
_TYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items()}


@dataclass(frozen=True)
class ArraySpec:
    """What an array in a file has to be.

    Words in ``shape`` stand for sizes: the same word is the same size in all arrays of the file.
    """

    shape: tuple[int | str, ...]
    dtypes: tuple[str, ...] = ("float64",)
    optional: bool = False
    finite: bool = True  # may it hold NaN and infinity? True: no


class Source(Protocol):
    """A file that is read from its beginning to its end."""

    def read(self, size: int, /) -> bytes: ...
    def readinto(self, buffer: Array, /) -> int: ...


@dataclass(frozen=True)
class _Stored:
    """One line of the header."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


# -- writing ---------------------------------------------------------------------------------------


def write_arrays(stream: BinaryIO, arrays: Mapping[str, Array]) -> None:
    """Write arrays one after the other: wide types first, so that all are aligned, then by name.

    The same arrays always give the same bytes.
    """
    header, end = {}, 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = arrays[name]
        if array.dtype.name not in _CODES:
            raise ValueError(f"{name} cannot be written: arrays of type {array.dtype} are not.")
        begin, end = end, end + array.nbytes
        code, shape = _CODES[array.dtype.name], list(array.shape)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for name in header:
        little = np.ascontiguousarray(arrays[name], dtype=arrays[name].dtype.newbyteorder("<"))
        stream.write(little.reshape(-1).view(np.uint8).data)


# -- reading ---------------------------------------------------------------------------------------


def read_arrays(
    source: Source, size: int, specs: Mapping[str, ArraySpec], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The arrays of a file of ``size`` bytes that are just those declared.

    ``sizes`` are the meanings of words in the shapes that are known beforehand. Types and shapes
    are checked before memory is taken, and it is never more than the file has bytes.
    """
    length = int.from_bytes(source.read(8), "little")
    n_bytes = size - 8 - length
    expect(length <= MOST_HEADER and n_bytes >= 0, f"its header claims {length} bytes")
    header = parse_json(source.read(length))
    expect(isinstance(header, dict), "its header is not a table of arrays")
    stored = {str(name): _stored(name, line) for name, line in header.items()}
    _check_places(stored, n_bytes)
    _check_declared(stored, specs, dict(sizes))
    numbers = np.empty(n_bytes, dtype=np.uint8)
    expect(source.readinto(numbers) == n_bytes, "it ends too early")
    arrays = {name: _array(numbers, stored[name]) for name in specs if name in stored}
    for name, array in arrays.items():
        finite = array.dtype.kind != "f" or not specs[name].finite or np.isfinite(array).all()
        expect(bool(finite), f"{name} holds numbers that are not finite")
    return arrays


def _stored(name: str, line: Any) -> _Stored:
    expect(isinstance(line, dict), f"{name} is not described")
    code, shape, places = line.get("dtype"), line.get("shape"), line.get("data_offsets")
    expect(isinstance(code, str) and code in _TYPES, f"{name} has type {code!r}")
    expect(isinstance(shape, list) and all(map(is_count, shape)), f"{name} has shape {shape!r}")
    is_pair = isinstance(places, list) and len(places) == 2 and all(map(is_count, places))
    expect(is_pair, f"{name} lies at {places!r}")
    assert isinstance(shape, list)
    assert isinstance(places, list)
    return _Stored(_TYPES[str(code)], tuple(shape), *places)


def _check_places(stored: Mapping[str, _Stored], n_bytes: int) -> None:
    """The arrays follow each other without a gap and fill the file."""
    at = 0
    for name, one in sorted(stored.items(), key=lambda item: (item[1].begin, item[1].end)):
        wanted = math.prod(one.shape) * one.dtype.itemsize
        expect(one.begin == at, f"{name} does not begin where the last array ends")
        expect(one.end - one.begin == wanted, f"{name} of shape {one.shape} needs {wanted} bytes")
        at = one.end
    expect(at == n_bytes, f"its arrays have {at} bytes, and {n_bytes} are there")


def _check_declared(
    stored: Mapping[str, _Stored], specs: Mapping[str, ArraySpec], sizes: dict[str, int]
) -> None:
    unknown = sorted(stored.keys() - specs.keys())
    expect(not unknown, f"{', '.join(unknown)} should not be there")
    for name, spec in specs.items():
        if name not in stored:
            expect(spec.optional, f"{name} is not there")
            continue
        dtype, shape = stored[name].dtype.name, stored[name].shape
        expect(dtype in spec.dtypes, f"{name} has type {dtype}, not {' or '.join(spec.dtypes)}")
        wanted: tuple[int | str, ...] = spec.shape
        if len(shape) == len(wanted):
            pairs = zip(wanted, shape, strict=True)
            wanted = tuple(sizes.setdefault(w, n) if isinstance(w, str) else w for w, n in pairs)
        expect(shape == wanted, f"{name} has shape {shape}, not {wanted}")


def _array(numbers: Array, stored: _Stored) -> Array:
    """A view of the file's numbers; a copy only where they are not aligned or not of this order."""
    piece = numbers[stored.begin : stored.end]
    if stored.dtype.kind == "b":
        expect(bool((piece <= 1).all()), "a truth value is neither 0 nor 1")
    array = piece.view(stored.dtype).reshape(stored.shape)
    return np.require(array, dtype=stored.dtype.newbyteorder("="), requirements="A")
