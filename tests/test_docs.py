"""What README promises is read off the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from odcl import Method, Risk, Uploads
from odcl.cli.demo import TABLES
from odcl.cli.main import parse
from odcl.data.stores import store_tables
from odcl.data.write import write_table
from odcl.engines.files import Feature, Task
from odcl.exchange.upload import TERM_FIELDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBERS = {
    (): "1",
    ("dim",): "p",
    ("dim", "dim"): "p (p + 1) / 2",
    ("widths",): "3",
    ("widths", "dim"): "3 p",
    ("widths", "dim", "dim"): "3 p (p + 1) / 2",
    ("width",): "d + 1",
    ("width", "width"): "(d + 1)(d + 2) / 2",
}


def test_the_readme_says_of_every_field_what_it_tells():
    section = README.split("## What leaves a user")[1].split("##")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{name}` | {NUMBERS[part.shape]} | {part.tells} |"
        for name, part in Uploads.parts().items()
    ]


def test_the_readme_says_what_the_papers_method_sends():
    sent = " and ".join(f"`{name}`" for name in Method.paper().needs)
    assert f"The paper's method sends {sent}." in README
    terms = {*TERM_FIELDS, "observations"}
    assert set(Method("mixture").needs) == set(Uploads.parts()) - terms
    assert set(Method(short_terms=False).needs) == {"n_samples", *terms}
    assert set(Method().needs) == {"n_samples", *TERM_FIELDS}


def test_the_readmes_first_screen_is_what_the_commands_print(command):
    """The demo's tables serve every command that the README goes on with."""
    for name, columns in zip(TABLES, store_tables(0), strict=True):
        write_table(Path(name), columns)
    shown = README.split("--target sales --out run\n")[1].split("```")[0]
    said = command("fit", "stores.csv", "--user", "store", "--target", "sales", "--out", "run")
    drawn = "Picture: run/picture.png\n"  # without matplotlib there is none
    assert said.out.replace(drawn, "") == shown.replace(drawn, "")
    assert command("predict", "run", "new_days.csv", "--interval", "0.9", "-q").code == 0
    assert command("assign", "run", "new_stores.csv", "--add", "-q").out.count("joins") == 4
    assert command("update", "run", "this_week.csv", "-q").code == 0
    assert command("diagnose", "run").out.startswith("One shot is enough.")


@pytest.mark.parametrize("name", ["README.md", "docs/federation-by-file.md"])
def test_the_commands_of_a_federation_by_file_can_be_parsed(name):
    text = (ROOT / name).read_text(encoding="utf-8").split("Federation by file")[1]
    lines = re.findall(r"^(?:    |\$ )odcl (.*?)(?:  +#.*)?$", text, flags=re.MULTILINE)
    lines = [line for line in lines if line.split()[0] in ("task", "site", "inspect", "combine")]
    assert len(lines) >= 5
    for line in lines:
        parse(shlex.split(line))


def test_the_page_on_federations_by_file_knows_the_cards_fields_and_defaults():
    text = (ROOT / "docs" / "federation-by-file.md").read_text(encoding="utf-8")
    plain = Task("stay", (Feature("age"),), "y")
    for name in ("minimum_rows", "smallest_cell", "minimum_group"):
        assert f"| `{name}` | {getattr(plain, name)} |" in text
    assert not plain.method.short_terms
    assert "| `short_terms` | false |" in text
    for given in (plain, Task("stay", (Feature("age"),), "y", Risk("poisson", 0.0, True))):
        assert all(f"`{name}`" in text for name in given.leaves)
