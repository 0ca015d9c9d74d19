"""JSON files have limits, and ids, classes and numbers come back as they were."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from odcl.artifact import arrays as codecs
from odcl.data.federation import as_ids

IDS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(IDS)
def test_an_id_comes_back_with_its_type(user):
    back = codecs.id_from_json(json.loads(json.dumps(codecs.id_to_json(user), allow_nan=False)))
    assert back == user
    assert repr(back) == repr(user)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([3, 1], dtype=np.int8),
        np.array([2**63 + 1], dtype=np.uint64),
        np.array([True, False]),
        np.array(["b", "\u00fc\ud800"]),
        as_ids([0.5, float("inf")]),
        as_ids([None, ("a", 1)]),
    ],
    ids=lambda ids: str(ids.dtype),
)
def test_ids_come_back_as_a_list_or_as_an_array(ids):
    listed = codecs.parse_json(codecs.json_bytes(codecs.ids_to_json(ids)))
    back = codecs.ids_from_json(listed, ids if listed is None else None)
    assert back.dtype == ids.dtype
    assert back.tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("listed", "stored", "reason"),
    [
        (None, None, "not there"),
        ("ab", None, "a list, or an array"),
        (["a"], np.arange(1), "a list, or an array"),
        (["a", "a"], None, "a user is there twice"),
        (None, np.zeros(2, dtype=int), "a user is there twice"),
        ([[1]], None, "an id is a list"),
        ([{}], None, "an id is {}"),
        ([{"tuple": 1}], None, "an id is {'tuple': 1}"),
        ([{"float": "1_0"}], None, "an id is {'float': '1_0'}"),
    ],
)
def test_ids_that_are_none_are_refused(listed, stored, reason):
    with pytest.raises(ValueError, match=reason):
        codecs.ids_from_json(listed, stored)


def test_an_id_that_cannot_be_written_is_named():
    with pytest.raises(ValueError, match=r"User b'a' cannot be written.*their text"):
        codecs.id_to_json(b"a")


@pytest.mark.parametrize(
    "classes",
    [
        np.array(["no", "yes"]),
        np.array(["no", "yes, certainly"], dtype=object),
        np.array([False, True]),
        np.array([-1, 1], dtype=np.int8),
        np.array([0.0, 2.5]),
    ],
    ids=lambda classes: str(classes.dtype),
)
def test_classes_come_back_with_their_type(classes):
    back = codecs.classes_from_json(
        codecs.parse_json(codecs.json_bytes(codecs.classes_to_json(classes)))
    )
    assert_array_equal(back, classes)
    assert back.dtype == classes.dtype


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"dtype": "V8", "values": [1, 2]}, "classes of type"),
        ({"dtype": "<U1", "values": ["a"]}, "two classes or more"),
        ({"dtype": "<U1", "values": "ab"}, "two classes or more"),
        ({"dtype": "<U1", "values": ["a", None]}, "a class is no label"),
        ({"dtype": "<U1", "values": ["a", "a"]}, "a class is there twice"),
        ({"dtype": "<i8", "values": ["1", "2"]}, "not of their type"),
        ({"dtype": "<i8", "values": list(range(5001))}, "more than 5000"),
    ],
)
def test_classes_that_are_none_are_refused(words, reason):
    with pytest.raises(ValueError, match=reason):
        codecs.classes_from_json(words)


def test_a_type_of_a_billion_letters_takes_no_memory():
    words = {"dtype": "<U500000000", "values": ["a", "b"]}
    assert codecs.classes_from_json(words).dtype == "<U1"


@given(st.floats())
def test_a_number_comes_back_finite_or_not(value):
    back = codecs.number_from_json(json.loads(json.dumps(codecs.number_to_json(value))))
    assert repr(back) == repr(value)


@pytest.mark.parametrize("value", [None, True, "1", "infinity", [1], {}])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="and not a number"):
        codecs.number_from_json(value)


def nested(depth):
    value = "deep"
    for _ in range(depth):
        value = [value]
    return value


def test_json_that_is_nested_too_deep_is_neither_read_nor_written():
    """Its depth is limited, so that functions which walk through it cannot run out of stack."""
    assert codecs.parse_json(codecs.json_bytes(nested(32))) == nested(32)
    for content in (json.dumps(nested(33)).encode(), b"[" * 10**6, b'{"a":' * 10**6):
        with pytest.raises(ValueError, match="nested more than 32 deep"):
            codecs.parse_json(content)
    with pytest.raises(ValueError, match="nested more than 32 deep"):
        codecs.json_bytes(nested(33))


@pytest.mark.parametrize("content", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b"9" * 5000])
def test_what_is_no_json_is_a_value_error(content):
    with pytest.raises(ValueError, match=r"."):
        codecs.parse_json(content)
