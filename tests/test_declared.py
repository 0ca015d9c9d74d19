"""Declared values: what was written comes back, and everything else is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import pytest

from odcl.declared import (
    Check,
    Count,
    Digest,
    HasDefaults,
    Label,
    Number,
    Positive,
    Size,
    check_fields,
    from_json,
    to_json,
)
from tests.helpers import refusal


@dataclass(frozen=True)
class Part(HasDefaults):
    file: Label
    size: Count
    sha256: Digest = "0" * 64


@dataclass(frozen=True)
class Sheet:
    kind: Literal["upload", "download"]
    parts: tuple[Part, ...]
    by_name: Mapping[str, Part] = field(default_factory=dict)
    spread: Size = 0.0
    noise: Number = math.inf
    rounds: Positive = 1
    note: str | None = None
    refit: str | float | None = None
    pair: tuple[str, int] = ("a", 1)
    final: bool = False
    more: Any = None
    few: Annotated[tuple[int, ...], Check("at most 2 numbers", lambda v: len(v) <= 2)] = ()


SHEET = Sheet("upload", (Part("a", 1), Part("b", 2)), {"x": Part("c", 0)}, refit=0.5, note="n")


def test_what_was_written_comes_back():
    words = json.loads(json.dumps(to_json(SHEET), allow_nan=False))
    assert words["noise"] == "inf"
    assert from_json(Sheet, words) == SHEET
    assert from_json(Part, {"file": "a", "size": 1}) == Part("a", 1)
    assert type(from_json(Sheet, words | {"spread": 1}).spread) is int  # to the same bytes again


WRONG = {
    "kind": ("other", "kind is 'other', and not one of upload, download"),
    "parts": ({}, r"parts is {}, and not a list"),
    "by_name": ([], r"by_name is \[\], and not a table"),
    "spread": (-1, "spread is -1, and not a finite number from 0 on"),
    "noise": ("much", "noise is 'much', and not a number"),
    "rounds": (0, "rounds is 0, and not a whole number from 1 on"),
    "note": (3, "note is 3, and not text"),
    "refit": ([], r"refit is \[\], and not text or a finite number or null"),
    "pair": (["a"], r"pair is \['a'\], and not a list of 2"),
    "final": (1, "final is 1, and not true or false"),
    "few": ([1, 2, 3], "and not at most 2 numbers"),
    "kindd": ("upload", "'kindd' is not known; did you mean 'kind'?"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named_with_its_field_and_what_it_should_be(name):
    value, why = WRONG[name]
    refusal(from_json, Sheet, to_json(SHEET) | {name: value}, match=why)


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, 1e309, 10**400])
def test_a_number_is_finite_and_no_truth_value(value):
    refusal(from_json, Sheet, to_json(SHEET) | {"spread": value}, match="^spread is ")
    refusal(from_json, Part, {"file": "a", "size": 1.0}, match="size is 1.0, and not a whole")


def test_an_error_says_where_a_value_lies():
    words = to_json(SHEET)
    words["parts"][1]["size"] = -1
    refusal(from_json, Sheet, words, match=r"^parts\[1\].size is -1, and not a whole number")
    words = to_json(SHEET)
    del words["by_name"]["x"]["file"]
    refusal(from_json, Sheet, words, match="^by_name.x.file is missing: printable text")
    refusal(from_json, Sheet, [], match=r"^it is \[\], and not a table")
    refusal(from_json, Part, {"file": "a\n", "size": 1}, match="printable text")
    refusal(from_json, Part, {"file": "a", "size": 1, "sha256": "0"}, match="64 hexadecimal")


def test_a_value_made_in_python_is_checked_like_one_of_a_file():
    check_fields(SHEET)
    refusal(check_fields, replace(SHEET, rounds=0), match="^rounds is 0, and not a whole number")
    refusal(check_fields, replace(SHEET, parts=[1]), match=r"^parts\[0\] is 1, and not a table")
