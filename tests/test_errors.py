"""Errors advise in the reader's language: keywords in Python, options on the command line."""

from __future__ import annotations

import math
import pickle

import pytest

from odcl.cli.main import run_command
from odcl.errors import InputError, Setting, did_you_mean, listing, number

ADVICE = [
    (Setting("missing", "drop"), "missing='drop'", "--missing drop"),
    (Setting("drop", ["unit price"]), "drop=['unit price']", "--drop 'unit price'"),
    (Setting("task", "regression"), "task='regression'", "--loss squared"),
    (Setting("force", True), "force=True", "--force"),
]


@pytest.mark.parametrize(("setting", "python", "option"), ADVICE)
def test_a_setting_is_a_keyword_in_python_and_an_option_in_the_shell(
    setting, python, option, monkeypatch, capsys
):
    error = InputError("There is a\ngap. Say ", setting, " to go on.")
    assert str(error) == f"There is a gap. Say {python} to go on."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # from another process

    def refuse(_):
        raise error

    monkeypatch.setattr("odcl.cli.paper.run_demo", refuse)
    assert run_command(["demo"]) == 2
    assert capsys.readouterr().err == f"odcl: There is a gap. Say {option} to go on.\n"


def test_near_names_are_offered_whatever_their_case_and_type():
    assert did_you_mean("Pirce", ["store", "price"]) == "; did you mean 'price'?"
    assert did_you_mean("10", [100, 7]) == "; did you mean '100'?"
    assert did_you_mean("zzz", ["store"]) == "."
    for other, known in (("region", "reason"), ("width", "weight"), ("cost", "store")):
        assert did_you_mean(other, [known]) == "."  # names that are not meant


def test_a_long_list_is_cut_and_counted():
    assert listing(["a", "b c", 3]) == "a, 'b c', 3"
    assert listing(range(20), 2) == "0, 1, ... (20 in all)"


@pytest.mark.parametrize(
    ("value", "more", "shown"),
    [
        (9.51234, {"digits": 2}, "9.5"),
        (12.3, {"digits": 1}, "10"),
        (1234.5, {}, "1,230"),
        (-0.012345, {}, "-0.0123"),
        (999.6, {}, "1,000"),
        (44.0, {}, "44"),
        (1.0005, {"step": 0.0005}, "1.0005"),  # ticks of an axis
        (1e6 + 0.25, {"step": 0.0064}, "1,000,000.25"),  # ± 0.0064
        (0.000209, {"step": 0.64}, "0"),  # ± 0.64
        (2.5e16, {}, "2.50e+16"),
        (math.nan, {}, "unknown"),
    ],
)
def test_numbers_for_people_are_plain_and_have_three_digits(value, more, shown):
    assert number(value, **more) == shown
