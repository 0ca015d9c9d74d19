"""Help, versions and usage errors: what the command line says before any work."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest

from odcl import __version__
from odcl.cli import main as cli
from odcl.cli import parser
from tests.helpers import ROLES, Said, run_python

# -- help and start --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *cli.EVERY])
def test_help_explains_every_option_within_80_columns(command, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = command(*name.split(), "--help")
    assert (said.code, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 80
    assert said.out.startswith(f"usage: odcl {name}".strip())
    _, commands = cli._parsers(cli.COMMANDS)
    for action in commands[name]._actions if name else ():
        if action.dest != "help":
            shown = action.option_strings[-1] if action.option_strings else action.metavar
            assert shown in said.out
            assert action.help
            needs_default = action.option_strings and action.nargs != 0 and not action.required
            is_list = action.dest in ("drop", "categorical", "category", "without")
            assert not needs_default or is_list or "[default: " in action.help


def test_the_commands_and_a_first_example_stand_in_the_help(command):
    text = command("--help").out
    assert all(f"    {name} " in text for name in cli.COMMANDS)
    assert "odcl fit sales.csv --user store --target sales --out run" in text


def test_the_help_says_where_pages_lie_and_whom_they_show(command):
    said = " ".join(command("report", "--help").out.split())
    assert "the page, in the folder you are in and not in RUN [default: report.html]" in said
    said = " ".join(command("fit", "--help").out.split())
    assert "its page shows 2,000 users, drawn by their ids" in said


def test_the_examples_in_the_help_can_be_parsed():
    parsers = cli._parsers()[1]
    for text in (cli._START, *(parsers[name].epilog for name in cli.EVERY if name != "demo")):
        lines = re.findall(r"^  odcl (.*)$", text.replace("\\\n", ""), flags=re.MULTILINE)
        assert lines
        for line in lines:
            cli.parse(shlex.split(re.split(r"[|&]", line)[0]))


def test_version(command):
    assert command("--version") == Said(0, f"odcl {__version__}\n", "")


def test_help_and_import_load_nothing_heavy():
    heavy = ["numpy", "scipy", "sklearn", "pyarrow", "matplotlib", "pandas", "rich", "typer"]
    for lines in (
        "import odcl",
        "from odcl.cli.main import parse\ntry: parse(['fit', '--help'])",
    ):
        if "parse" in lines:
            lines += "\nexcept SystemExit: pass"
        tell = f"\nprint('@', [name for name in {heavy} if name in sys.modules])"
        assert run_python(f"import sys\n{lines}{tell}")[-1] == "@ []"


def test_the_choices_of_the_options_are_those_of_the_library():
    from odcl.data.roles import MISSING
    from odcl.data.schema import UNSEEN
    from odcl.estimators.attributes import UNKNOWN
    from odcl.risk.losses import as_loss

    assert (parser.MISSING, parser.UNSEEN) == (MISSING, UNSEEN)
    assert parser.UNKNOWN == UNKNOWN
    for loss in parser.LOSSES[1:]:
        assert as_loss(loss, np.array([0, 1])).name == loss


USAGE = [
    ((), "name a command: demo, fit, report, predict, assign, update, diagnose, plan, reproduce"),
    (("ft",), "no command: 'ft'"),
    (("fit",), "required: TABLE, --user, --target, --out"),
    (("fit", "t.csv", *ROLES), "required: --out"),
    (("fit", "t.csv", "--user"), "--user: expected one argument"),
    (("fit", "t.csv", *ROLES, "--out", "r", "--los", "x"), "did you mean '--loss'?"),
    (("fit", "t.csv", *ROLES, "--out", "r", "--epsilon", "2"), "private by task card"),
    (("fit", "t.csv", *ROLES, "--out", "r", "--drop", "a", "b"), "columns are written a,b,c"),
    (("predict", "r"), "required: TABLE"),
    *(
        (("predict", "r", "t", "--engine", "dask", "--out", out), f"and {out} names one file")
        for out in ("p.csv", "p.parquet", "p.csv.gz")
    ),
    (("predict", "r", "t.csv", "--unknown", "poled"), "did you mean 'pooled'?"),
    (("predict", "r", "t.csv", "--unseen", "x"), "none of error, reference"),
]
VALUES = [
    ("--loss", "logistc", "none of auto, squared, huber, poisson, logistic, multinomial"),
    ("--loss", "logistc", "did you mean 'logistic'?"),
    ("--clusters", "few", "none of auto, convex, elbow, silhouette, a number"),
    ("--clusters", "0", "none of auto, convex, elbow, silhouette, a number"),
    ("--clusters", "spectral:0", "spectral:K"),
    ("--clusters", "dbscan:3", "gradient:K"),
    ("--missing", "guess", "none of error, drop, mean"),
    ("--holdout", "1", "share of the rows, from 0 to below 1"),
    ("--holdout", "20%", "share of the rows, from 0 to below 1"),
    ("--l2", "-1", "number >= 0"),
    ("--seed", "-1", "whole number from 0"),
    ("--jobs", "0", "one per core"),
]


@pytest.mark.parametrize(("words", "told"), USAGE)
def test_a_usage_error_is_one_line_with_a_way_to_the_help(command, words, told):
    said = command(*words)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert re.fullmatch(r"odcl: .*[.?] See odcl( \w+)? --help\.\n", said.err)


@pytest.mark.parametrize(("option", "value", "told"), VALUES)
def test_a_value_that_an_option_does_not_know_is_refused_with_the_choices(
    command, option, value, told
):
    said = command("fit", "t.csv", *ROLES, "--out", "r", option, value)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"odcl: {option}: {value!r} ")
    assert told in said.err
    assert said.err.count("\n") == 1
