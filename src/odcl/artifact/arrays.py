"""What artifacts are made of: JSON with words for ids, classes and numbers, and arrays.

Arrays lie in a file of the safetensors layout: 8 bytes that say how long the header is, a JSON
header with the type, shape and place of each array, and then their numbers. We write it ourselves
because safetensors' writer needs all arrays a second time in memory and reports a full disk as an
error of its own, and read it ourselves because its reader opens a path (which may be a pipe) and
maps it (which may be cut short later). Whatever is read is checked against a declaration first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, NoReturn, Protocol

import numpy as np

from odcl._typing import Array
from odcl.data.federation import as_ids

MOST_DEPTH = 32  # of lists in lists; functions that walk through a value may recurse
# The multinomial loss keeps a basis of n_classes^2 numbers: no file may ask for more than 200 MB.
MOST_CLASSES = 5000
_NOT_FINITE = ("inf", "-inf", "nan")


def expect(holds: bool, why: str) -> None:
    """Refuse a value that was read from a file."""
    if not holds:
        raise ValueError(why)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_size(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


# -- files -----------------------------------------------------------------------------------------


def json_bytes(value: Any, *, indent: int | None = 1) -> bytes:
    """The contents of a JSON file: the same value always gives the same bytes.

    Without ``indent`` it stands in one line, and is written many times as fast.
    """
    _check_depth(value)
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
        return (text + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from a file name that is no text
        return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def parse_json(content: bytes) -> Any:
    """The value of a JSON file that may come from anyone; the caller has limited its size."""
    try:
        value = json.loads(content.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_DEPTH} deep") from None
    if content.count(b"[") + content.count(b"{") > MOST_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        lists = [v.values() if isinstance(v, dict) else v for v in level if _holds_more(v)]
        if not lists:
            return
        level = [inner for one in lists for inner in one if _holds_more(inner)]
    raise ValueError(f"it is nested more than {MOST_DEPTH} deep")


def _holds_more(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


# -- numbers ---------------------------------------------------------------------------------------


def number_to_json(value: float) -> float | str:
    """A number; infinity and NaN as text, for JSON has no word for them."""
    return float(value) if math.isfinite(value) else repr(float(value))


def number_from_json(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    expect(is_number or value in _NOT_FINITE, f"{value!r} is not a number")
    return float(value)


# -- ids -------------------------------------------------------------------------------------------


def ids_to_json(ids: Array) -> list[Any] | None:
    """Users' ids as a list; None where they are whole numbers, which are stored as an array."""
    return None if ids.dtype.kind in "iub" else [id_to_json(user) for user in ids.tolist()]


def ids_from_json(listed: Any, stored: Array | None) -> Array:
    """Users' ids from the list or from the array, whichever was written."""
    if listed is None:
        expect(stored is not None, "the ids are not there")
        ids = stored
    else:
        expect(isinstance(listed, list) and stored is None, "ids are a list, or an array")
        ids = as_ids([id_from_json(user) for user in listed])
        expect(len(ids) == len(listed), "an id is not one value")
    assert ids is not None
    expect(len(set(ids.tolist())) == len(ids), "a user is there twice")
    return ids


def id_to_json(user: Any) -> Any:
    """Text, numbers, None and tuples of these, so that they come back as they were."""
    if isinstance(user, tuple):
        return {"tuple": [id_to_json(part) for part in user]}
    if isinstance(user, float) and not math.isfinite(user):
        return {"float": repr(user)}
    if isinstance(user, str | int | float | bool | None):
        return user
    raise ValueError(
        f"User {user!r} cannot be written: ids on disk are text, numbers, None, or tuples of "
        "these. Fit with such ids, e.g. with their text."
    )


def id_from_json(value: Any) -> Any:
    expect(not isinstance(value, list), "an id is a list")
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()), (None, None))
    if kind == "tuple" and isinstance(content, list):
        return tuple(id_from_json(part) for part in content)
    expect(kind == "float" and content in _NOT_FINITE, f"an id is {value!r}")
    return float(content)  # type: ignore[arg-type]


# -- classes ---------------------------------------------------------------------------------------


def classes_to_json(classes: Array) -> dict[str, Any]:
    """The labels of a classifier, with their type."""
    values = classes.tolist()
    if not all(_is_label(v) for v in values):
        raise ValueError(
            f"Class {values[0]!r} cannot be written: classes on disk are text or numbers. Fit with "
            "such labels, e.g. with their text."
        )
    expect(len(values) <= MOST_CLASSES, f"Models of {MOST_CLASSES} classes are the largest.")
    return {"dtype": classes.dtype.str, "values": values}


def classes_from_json(words: Any) -> Array:
    values, dtype = words["values"], np.dtype(str(words["dtype"]))
    expect(dtype.kind in "biufUO", f"classes of type {dtype}")
    expect(isinstance(values, list) and len(values) >= 2, "a classifier has two classes or more")
    expect(len(values) <= MOST_CLASSES, f"more than {MOST_CLASSES} classes")
    expect(all(_is_label(v) for v in values), "a class is no label")
    if dtype.kind == "U":  # a type of 10^9 letters would take as many bytes per class
        dtype = np.dtype(f"U{max(len(str(v)) for v in values)}")
    classes = np.array(values, dtype=dtype)
    expect(classes.tolist() == values, "the classes are not of their type")
    expect(len(set(values)) == len(values), "a class is there twice")
    return classes


def _is_label(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


MOST_HEADER = 2**20  # bytes
_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
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


# Names of arrays in files of earlier versions.
EARLIER = {f"site_{of}": f"gaussian_{of}" for of in ("curvature", "slope", "constant", "ceiling")}
METADATA = "__metadata__"  # texts that the layout allows beside the arrays


@dataclass(frozen=True)
class Header:
    """What a file of arrays says of itself, before anything else of it is read."""

    metadata: Mapping[str, str]
    stored: Mapping[str, _Stored]
    n_bytes: int  # of the numbers

    @property
    def contents(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of each array, by name."""
        return {name: (_type_name(one.dtype), one.shape) for name, one in self.stored.items()}


# -- writing ---------------------------------------------------------------------------------------


def write_arrays(
    stream: BinaryIO, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays one after the other: wide types first, so that all are aligned, then by name.

    The same arrays always give the same bytes.
    """
    stream.write(header_bytes(contents_of(arrays), metadata))
    for piece in number_bytes(arrays):
        stream.write(piece)


def contents_of(arrays: Mapping[str, Array]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each array, by name."""
    return {name: (_type_name(array.dtype), array.shape) for name, array in arrays.items()}


@cache
def _type_name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # which NumPy works out anew each time


def header_bytes(
    contents: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The beginning of a file of such arrays, up to their numbers."""
    header: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
    end = 0
    for name, (dtype, _) in contents.items():
        if dtype not in _CODES:
            raise ValueError(f"{name} cannot be written: arrays of type {dtype} are not.")
    for name in _in_order(contents):
        dtype, shape = contents[name]
        begin, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def number_bytes(arrays: Mapping[str, Array]) -> Iterator[Any]:
    """The numbers of arrays, one array after the other."""
    for name in _in_order(contents_of(arrays)):
        little = np.ascontiguousarray(arrays[name], dtype=arrays[name].dtype.newbyteorder("<"))
        yield little.reshape(-1).view(np.uint8).data


def _in_order(contents: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    return sorted(contents, key=lambda name: (-np.dtype(contents[name][0]).itemsize, name))


# -- reading ---------------------------------------------------------------------------------------


def read_arrays(
    source: Source, size: int, specs: Mapping[str, ArraySpec], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The arrays of a file of ``size`` bytes that are just those declared.

    ``sizes`` are the meanings of words in the shapes that are known beforehand. Types and shapes
    are checked before memory is taken, and it is never more than the file has bytes.
    """
    header = read_header(source, size)
    expect(not header.metadata, f"{METADATA} should not be there")
    check_declared(header, specs, sizes)
    return arrays_of(header, read_numbers(source, header), specs)


def read_header(source: Source, size: int) -> Header:
    """The header of a file of ``size`` bytes, whose arrays fill it without a gap."""
    length = int.from_bytes(source.read(8), "little")
    n_bytes = size - 8 - length
    expect(length <= MOST_HEADER and n_bytes >= 0, f"its header claims {length} bytes")
    header = parse_json(source.read(length))
    expect(isinstance(header, dict), "its header is not a table of arrays")
    metadata = header.pop(METADATA, {})
    texts = isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
    expect(texts, f"{METADATA} holds no texts")
    stored = {EARLIER.get(name, str(name)): _stored(name, line) for name, line in header.items()}
    _check_places(stored, n_bytes)
    return Header(metadata, stored, n_bytes)


def read_numbers(source: Source, header: Header) -> Array:
    """The bytes behind a header, (n_bytes,)."""
    numbers = np.empty(header.n_bytes, dtype=np.uint8)
    expect(source.readinto(numbers) == header.n_bytes, "it ends too early")
    return numbers


def arrays_of(header: Header, numbers: Array, specs: Mapping[str, ArraySpec]) -> dict[str, Array]:
    """The declared arrays that are there; those that must be finite are."""
    stored = header.stored
    arrays = {name: _array(numbers, stored[name]) for name in specs if name in stored}
    check_finite(arrays, specs)
    return arrays


def check_finite(arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec]) -> None:
    """Refuse NaN and infinity where they are not declared."""
    for name, array in arrays.items():
        finite = array.dtype.kind != "f" or not specs[name].finite or np.isfinite(array).all()
        expect(bool(finite), f"{name} holds numbers that are not finite")


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


def check_declared(
    header: Header, specs: Mapping[str, ArraySpec], sizes: Mapping[str, int]
) -> None:
    """Refuse arrays that are not declared so; words in shapes that are not in ``sizes`` get one."""
    check_contents(header.contents, specs, sizes)


def check_contents(
    contents: Mapping[str, tuple[str, tuple[int, ...]]],
    specs: Mapping[str, ArraySpec],
    sizes: Mapping[str, int],
) -> None:
    """The same of arrays that did not come in a file: type and shape of each, by name."""
    sizes = dict(sizes)
    unknown = sorted(contents.keys() - specs.keys())
    expect(not unknown, f"{', '.join(unknown)} should not be there")
    for name, spec in specs.items():
        if name not in contents:
            expect(spec.optional, f"{name} is not there")
            continue
        dtype, shape = contents[name]
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
