"""Arrays are written in the safetensors layout and read only if they are those declared."""

from __future__ import annotations

import io
import json
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal

from odcl.artifact.arrays import WHOLE, ArraySpec, read_arrays, write_arrays

DTYPES = [*WHOLE, "float32", "float64", ">f8", ">i2"]
ARRAYS = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=5),
    hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)),
    max_size=4,
)


def written(arrays):
    stream = io.BytesIO()
    write_arrays(stream, arrays)
    return stream.getvalue()


def read(content, specs, **sizes):
    return read_arrays(np.frombuffer(bytearray(content), np.uint8), specs, sizes)


def spec_of(array):
    return ArraySpec(array.shape, (array.dtype.name,), finite=False)


@settings(max_examples=100, deadline=None)
@given(ARRAYS)
def test_safetensors_and_we_read_the_same_arrays_from_what_we_write(arrays):
    content = written(arrays)
    ours = read(content, {name: spec_of(a) for name, a in arrays.items()})
    theirs = safetensors.numpy.load(content)
    assert ours.keys() == theirs.keys() == arrays.keys()
    for name, array in arrays.items():
        assert_array_equal(ours[name], array)
        assert_array_equal(theirs[name], array)
        assert ours[name].dtype == array.dtype.newbyteorder("=")
        assert ours[name].shape == array.shape
        assert ours[name].flags.writeable
        assert ours[name].flags.aligned


def test_we_read_what_safetensors_writes():
    arrays = {"b": np.arange(3, dtype=np.int8), "a": np.eye(2), "c": np.array([True, False])}
    content = safetensors.numpy.save(arrays)
    back = read(content, {name: spec_of(a) for name, a in arrays.items()})
    for name, array in arrays.items():
        assert_array_equal(back[name], array)


def test_the_same_arrays_give_the_same_bytes():
    a, b = np.arange(6.0).reshape(2, 3), np.array([True])
    assert written({"a": a, "b": b}) == written({"b": b, "a": np.asfortranarray(a)})


@pytest.mark.parametrize("dtype", ["O", "U3", "c16", "M8[s]"])
def test_arrays_of_other_types_are_not_written(dtype):
    with pytest.raises(ValueError, match="x cannot be written"):
        written({"x": np.zeros(2, dtype=dtype)})


MODEL = {
    "theta": ArraySpec(("m", "dim")),
    "labels": ArraySpec(("m",), ("int64",)),
    "used": ArraySpec((2,), ("bool",)),
    "pooled": ArraySpec(("dim",), optional=True),
}


def model(**changed):
    arrays = {
        "theta": np.ones((3, 4)),
        "labels": np.zeros(3, dtype=np.int64),
        "used": np.array([True, False]),
    }
    return {name: a for name, a in (arrays | changed).items() if a is not None}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"theta": None}, "theta is not there"),
        ({"more": np.zeros(1)}, "more should not be there"),
        ({"theta": np.ones((3, 4), dtype=np.float32)}, "theta has type float32, not float64"),
        ({"theta": np.ones(12)}, r"theta has shape \(12,\), not \('m', 'dim'\)"),
        ({"theta": np.ones((3, 5))}, r"theta has shape \(3, 5\), not \(3, 4\)"),
        ({"labels": np.zeros(2, dtype=np.int64)}, r"labels has shape \(2,\), not \(3,\)"),
        ({"used": np.ones(3, dtype=bool)}, r"used has shape \(3,\), not \(2,\)"),
        ({"pooled": np.ones(3)}, r"pooled has shape \(3,\), not \(4,\)"),
        ({"theta": np.full((3, 4), np.nan)}, "theta holds numbers that are not finite"),
    ],
)
def test_arrays_that_were_not_declared_so_are_refused(changed, reason):
    assert read(written(model()), MODEL, dim=4).keys() == {"theta", "labels", "used"}
    assert "pooled" in read(written(model(pooled=np.ones(4))), MODEL, dim=4)
    with pytest.raises(ValueError, match=reason):
        read(written(model(**changed)), MODEL, dim=4)


def with_header(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def line(shape, places, dtype="F64"):
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": places}}


HOSTILE = {
    "nothing": (b"", "claims 0 bytes"),
    "a header beyond the file": ((2**62).to_bytes(8, "little") + b"{}", "header claims"),
    "a header of a gigabyte": ((2**30).to_bytes(8, "little") + b"{}", "header claims"),
    "a header that is a list": (with_header([1]), "not a table of arrays"),
    "a header without end": (with_header(b"[" * 10**5), "nested"),
    "a header that is no text": (with_header(b"\xff\xfe"), "decode"),
    "a line that is text": (with_header({"x": "y"}), "x is 'y', and not a table"),
    "a type of lists": (with_header(line([1], [0, 8], dtype=[])), r"x.dtype is \[\], and not text"),
    "an unknown type": (
        with_header(line([1], [0, 8], dtype="F8")),
        "x.dtype is 'F8', and",
    ),
    "a negative shape": (with_header(line([-1, -1], [0, 8])), r"x.shape\[0\] is -1"),
    "a shape of truths": (with_header(line([True], [0, 8])), r"x.shape\[0\] is True"),
    "a shape of text": (with_header(line("11", [0, 8])), "x.shape is '11', and not a list"),
    "three places": (with_header(line([1], [0, 8, 9])), "x.data_offsets is .* not a list of 2"),
    "an enormous shape": (with_header(line([2**40, 2**40], [0, 8]), bytes(8)), "needs"),
    "an enormous place": (with_header(line([2**40], [0, 2**43]), bytes(8)), "and 8 are there"),
    "a gap": (with_header(line([1], [8, 16]), bytes(16)), "does not begin where"),
    "bytes at the end": (with_header(line([1], [0, 8]), bytes(9)), "and 9 are there"),
    "a truth of 2": (with_header(line([1], [0, 1], dtype="BOOL"), b"\2"), "neither 0 nor 1"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_header_is_refused_before_memory_is_taken(kind):
    content, reason = HOSTILE[kind]
    specs = {"x": ArraySpec(("n",), ("float64", "bool")), "y": ArraySpec((1,), optional=True)}
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=reason):
            read(content, specs)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_two_arrays_cannot_share_their_numbers():
    header = line([2], [0, 16]) | {"y": {"dtype": "F64", "shape": [1], "data_offsets": [8, 16]}}
    with pytest.raises(ValueError, match="y does not begin where"):
        read(with_header(header, bytes(16)), {"x": ArraySpec((2,)), "y": ArraySpec((1,))})


def test_arrays_that_lie_askew_are_copied_into_line():
    header = line([1], [0, 1], dtype="BOOL")
    header |= {"y": {"dtype": "F64", "shape": [2], "data_offsets": [1, 17]}}
    content = with_header(header, b"\1" + np.array([1.5, 2.5]).tobytes())
    y = read(content, {"x": ArraySpec((1,), ("bool",)), "y": ArraySpec((2,))})["y"]
    assert y.flags.aligned
    assert_array_equal(y, [1.5, 2.5])
