"""What artifacts are made of: JSON for ids, classes and numbers, and files of arrays.

Arrays lie in a file of the safetensors layout: 8 bytes that say how long the header is, a JSON
header with the type, shape and place of each array, and then their numbers. We write it ourselves
because safetensors' writer needs all arrays a second time in memory and reports a full disk as an
error of its own, and read it ourselves because its reader opens a path (which may be a pipe) and
maps it (which may be cut short later). Whatever is read is checked against a declaration first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn

import numpy as np

from odcl._typing import Array
from odcl.data.federation import as_ids
from odcl.declared import Count, Number, from_json, one_of
from odcl.declared import expect as expect

MOST_DEPTH = 32  # of lists in lists; functions that walk through a value may recurse
# The multinomial loss keeps a basis of n_classes^2 numbers: no file may ask for more than 200 MB.
MOST_CLASSES = 5000
_NOT_FINITE = ("inf", "-inf", "nan")


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
    return float(from_json(Number, value))


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


# -- arrays ----------------------------------------------------------------------------------------

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
_Code = Annotated[str, one_of(tuple(_TYPES))]
METADATA = "__metadata__"  # texts that the layout allows beside the arrays
Contents = Mapping[str, tuple[str, tuple[int, ...]]]  # type and shape of each array, by name


@dataclass(frozen=True)
class ArraySpec:
    """What an array in a file has to be.

    Names in ``shape`` stand for sizes: one name is one size in all arrays of the file.
    """

    shape: tuple[int | str, ...]
    dtypes: tuple[str, ...] = ("float64",)
    optional: bool = False
    finite: bool = True  # neither NaN nor infinity


@dataclass(frozen=True)
class _ArrayLine:
    """What the header says of one array."""

    dtype: _Code
    shape: tuple[Count, ...]
    data_offsets: tuple[Count, Count]

    @property
    def type(self) -> np.dtype[Any]:
        return _TYPES[self.dtype]


@dataclass(frozen=True)
class Header:
    """What a file of arrays says about itself."""

    metadata: Mapping[str, str]
    lines: Mapping[str, _ArrayLine]
    start: int  # where the numbers begin

    @property
    def contents(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {name: (_type_name(one.type), one.shape) for name, one in self.lines.items()}


# -- writing ---------------------------------------------------------------------------------------


def write_arrays(stream: BinaryIO, arrays: Mapping[str, Array]) -> None:
    """Write arrays one after the other: wide types first, so that all are aligned, then by name.

    The same arrays always give the same bytes.
    """
    stream.write(header_bytes(contents_of(arrays)))
    for piece in number_bytes(arrays):
        stream.write(piece)


def array_file(arrays: Mapping[str, Array]) -> Callable[[Path], None]:
    """A function that writes arrays to a path."""

    def write(path: Path) -> None:
        with open(path, "xb") as stream:
            write_arrays(stream, arrays)

    return write


def contents_of(arrays: Mapping[str, Array]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (_type_name(array.dtype), array.shape) for name, array in arrays.items()}


@cache
def _type_name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # which NumPy works out anew each time


def header_bytes(contents: Contents, metadata: Mapping[str, str] | None = None) -> bytes:
    """The beginning of a file of such arrays, up to their numbers."""
    header: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
    end = 0
    for name, (dtype, _) in contents.items():
        if dtype not in _CODES:
            raise ValueError(f"{name} cannot be written: arrays of type {dtype} are not supported.")
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


def _in_order(contents: Contents) -> list[str]:
    return sorted(contents, key=lambda name: (-np.dtype(contents[name][0]).itemsize, name))


# -- reading ---------------------------------------------------------------------------------------


def read_arrays(
    content: Array, specs: Mapping[str, ArraySpec], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The arrays in the bytes (n,) of a file, exactly those declared.

    ``sizes`` gives the sizes that are known beforehand, by their names in the shapes.
    """
    header = read_header(content)
    expect(not header.metadata, f"{METADATA} should not be there")
    return arrays_of(content, header, specs, sizes)


def read_header(content: Array) -> Header:
    """The header of a file with these bytes (n,), which its arrays fill without a gap."""
    length = int.from_bytes(content[:8].tobytes(), "little")
    start = 8 + length
    claims = f"its header claims {length} bytes: it ends too early, or is no file of odcl"
    expect(length <= MOST_HEADER and start <= len(content), claims)
    header = parse_json(content[8:start].tobytes())
    expect(isinstance(header, dict), "its header is not a table of arrays")
    metadata = from_json(Mapping[str, str], header.pop(METADATA, {}), METADATA)
    lines = {n: from_json(_ArrayLine, line, n) for n, line in header.items()}
    _check_places(lines, len(content) - start)
    return Header(metadata, lines, start)


def _check_places(lines: Mapping[str, _ArrayLine], n_bytes: int) -> None:
    """The arrays follow each other without a gap and fill the file."""
    at = 0
    for name, one in sorted(lines.items(), key=lambda item: item[1].data_offsets):
        begin, end = one.data_offsets
        wanted = math.prod(one.shape) * one.type.itemsize
        expect(begin == at, f"{name} does not begin where the last array ends")
        expect(end - begin == wanted, f"{name} of shape {one.shape} needs {wanted} bytes")
        at = end
    expect(at == n_bytes, f"its arrays have {at} bytes, and {n_bytes} are there")


def arrays_of(
    content: Array, header: Header, specs: Mapping[str, ArraySpec], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The declared arrays of a file whose header was read."""
    check_contents(header.contents, specs, sizes)
    lines, numbers = header.lines, content[header.start :]
    arrays = {name: _array(numbers, lines[name]) for name in specs if name in lines}
    check_finite(arrays, specs)
    return arrays


def check_contents(
    contents: Contents, specs: Mapping[str, ArraySpec], sizes: Mapping[str, int]
) -> None:
    """Check types and shapes against their specs; unknown size names are bound to what is seen."""
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


def check_finite(arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec]) -> None:
    """Refuse NaN and infinity where they are not declared."""
    for name, array in arrays.items():
        finite = array.dtype.kind != "f" or not specs[name].finite or np.isfinite(array).all()
        expect(bool(finite), f"{name} holds numbers that are not finite")


def _array(numbers: Array, line: _ArrayLine) -> Array:
    """A view of the file's numbers; a copy only where they are not aligned or not of this order."""
    piece = numbers[slice(*line.data_offsets)]
    if line.type.kind == "b":
        expect(bool((piece <= 1).all()), "a truth value is neither 0 nor 1")
    array = piece.view(line.type).reshape(line.shape)
    return np.require(array, dtype=line.type.newbyteorder("="), requirements="A")
