"""What README and the pages of the site promise is read off the code, or run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import odcl
from odcl import (
    Huber,
    Method,
    ODCLClassifier,
    ODCLRegressor,
    Privacy,
    Risk,
    Uploads,
    baselines,
)
from odcl.cli.main import parse
from odcl.cli.paper import TABLES
from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from odcl.engines import files, flower, pieces
from odcl.engines.files import Feature, Task
from odcl.exchange.upload import PRIVATE_FIELDS, TERM_FIELDS
from odcl.fitted.value import UserColumns
from tests.helpers import run_python
from tests.pages import (
    DOCS,
    all_pages,
    blocks,
    commands,
    run_elsewhere,
    run_in,
    run_page,
    same,
)

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_on_security_says_what_each_method_sends():
    text = (ROOT / "docs" / "evidence" / "security.md").read_text(encoding="utf-8")
    sent = " and ".join(f"`{name}`" for name in Method.paper().needs)
    assert f"The paper's method sends {sent}." in text
    terms = {*TERM_FIELDS, "observations"}
    private = {*PRIVATE_FIELDS}
    assert set(Method("silhouette").needs) == set(Uploads.parts()) - terms - private
    assert set(Method(privacy=Privacy()).needs) == {"n_samples", *private}
    assert all(f"`{name}`" in text for name in private)
    assert set(Method(short_terms=False).needs) == {"n_samples", *terms}
    assert set(Method().needs) == {"n_samples", *TERM_FIELDS}


def test_the_readmes_first_screen_is_what_the_commands_print(command):
    """The demo's tables serve every command that the README goes on with."""
    for name, columns in zip(TABLES, store_tables(0), strict=True):
        write_table(Path(name), columns)
    shown = README.split("--target sales --out run\n")[1].split("```")[0]
    said = command("fit", "stores.csv", "--user", "store", "--target", "sales", "--out", "run")
    assert same(shown, said.out)
    assert command("predict", "run", "new_days.csv", "--interval", "0.9", "-q").code == 0
    assert command("assign", "run", "new_stores.csv", "--add", "-q").out.count("joins") == 4
    said = command("diagnose", "run", "--table", "this_week.csv")
    assert said.out.startswith("The models hold.")
    assert command("update", "run", "this_week.csv", "-q").code == 0
    assert command("diagnose", "run").out.startswith("One shot is enough.")


def test_the_readmes_commands_can_be_parsed():
    lines = re.findall(r"^\$ odcl (.*?)(?:  +#.*)?$", README, flags=re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        parse(shlex.split(line))


@pytest.mark.filterwarnings("ignore")
def test_the_readmes_python_runs_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pandas = pytest.importorskip("pandas")
    stores, days, *_ = (pandas.DataFrame(columns) for columns in store_tables(0))
    stores.to_csv("stores.csv", index=False)
    (ran,) = run_page(
        README.split("## Which method when")[0].split("In Python")[1],
        {"table": stores, "new_rows": days},
    )
    assert "odcl" in ran.printed
    assert "3 groups" in ran.printed


def test_the_readme_is_read_in_two_minutes():
    assert len(README.splitlines()) <= 110


def test_the_page_on_security_knows_the_cards_fields_and_defaults():
    text = (ROOT / "docs" / "evidence" / "security.md").read_text(encoding="utf-8")
    plain = Task("stay", (Feature("age"),), "y")
    for name in ("minimum_rows", "smallest_cell"):
        assert f"| `{name}` | {getattr(plain, name)} |" in text
    assert f"| `minimum_group` | {plain.method.smallest_group} |" in text
    assert not plain.method.short_terms
    assert "| `short_terms` | false |" in text
    for given in (plain, Task("stay", (Feature("age"),), "y", Risk("poisson", 0.0, True))):
        assert all(f"`{name}`" in text for name in given.leaves)


def test_the_papers_page_shows_a_file_of_methods_that_stands_alone(methods_as_they_were):
    """``odcl reproduce figure-mse --methods mine.py`` loads it without the rest of the page."""
    page = blocks((DOCS / "tutorials" / "paper.md").read_text(encoding="utf-8"))
    (code,) = (b.text for b in page if "baselines.register(" in b.text and b.language == "python")
    exec(compile(code, "mine.py", "exec"), {})
    assert "ward" in baselines.METHODS


# -- the site --------------------------------------------------------------------------------------

PAGES = {page.relative_to(DOCS).as_posix(): page for page in all_pages()}
RUN = [
    name
    for name, page in PAGES.items()
    if {"python", "console"}
    & {block.language for block in blocks(page.read_text(encoding="utf-8"))}
]

# Pages that take several seconds each.
LONG = ("is-my-data-right.md", "next-month.md", "how/convex.md", "reference/plan.md")
LONG += ("reference/baselines.md", "tutorials/households.md", "tutorials/schools.md")
LONG += ("tutorials/embeddings.md",)


@pytest.fixture
def methods_as_they_were():
    """A page may register a method of its own."""
    before = dict(baselines.METHODS)
    yield
    baselines.METHODS.clear()
    baselines.METHODS.update(before)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in RUN]
)
@pytest.mark.usefixtures("methods_as_they_were")
@pytest.mark.filterwarnings("ignore")
def test_every_example_of_the_site_prints_what_its_page_says(name, tmp_path):
    """``python -m tests.pages docs/PAGE`` writes what is printed now into the page.

    A page that says <!-- needs flwr --> is run where that package is.
    """
    for package in re.findall(r"<!-- needs (\w+) -->", PAGES[name].read_text(encoding="utf-8")):
        pytest.importorskip(package, reason=f"{name} needs it")
    for example in run_in(tmp_path, PAGES[name]):
        if not same(example.said.text, example.printed):
            pytest.fail(
                f"{name}: {example.code}\nprints\n{example.printed}\nand the page says\n"
                f"{example.said.text}"
            )


@pytest.mark.parametrize("name", PAGES)
def test_examples_that_another_test_runs_name_one_that_looks_at_the_page(name):
    for test in run_elsewhere(PAGES[name].read_text(encoding="utf-8")):
        assert Path(name).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_the_site_can_be_parsed(name):
    for line in commands(PAGES[name].read_text(encoding="utf-8")):
        parse(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_the_site_leads_to_a_file(name):
    """The build looks at the places inside pages too; this needs no build."""
    text = re.sub(r"```.*?```", "", PAGES[name].read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in link:
            assert (PAGES[name].parent / link).exists(), f"{name}: {link}"


def test_the_readmes_links_lead_to_files():
    for link in re.findall(r"\]\(([^)#\s]+)", README):
        assert "://" in link or (ROOT / link).exists(), link


def test_the_package_shows_its_public_names_and_nothing_else():
    """In a process that has used them all, where modules have become attributes."""
    words = "import odcl; [getattr(odcl, name) for name in odcl.__all__]; print(*dir(odcl))"
    assert set(run_python(words)[0].split()) == {*odcl.__all__, "__version__"}


def test_estimators_show_the_names_of_the_reference_and_nothing_else():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    rows["store"] = np.repeat(np.arange(6), 10)
    models = [
        ODCLRegressor(users="store").fit(rows, rows["a"]),
        ODCLClassifier(users="store").fit(rows, rows["a"] > 0),
    ]
    text = (DOCS / "reference" / "estimators.md").read_text()
    table = text.partition("## All names")[2].partition("```")[0]
    told = set(re.findall(r"`(\w+)`", table))
    shown = [{n for n in dir(m) if n[0] != "_"} - {*m.get_params()} for m in models]
    assert shown[0] | shown[1] == told
    assert not {"predict_proba", "classes_"} & shown[0]
    assert "predict_interval" not in shown[1]


def test_every_public_name_has_an_example_in_the_reference():
    pages = (
        page.read_text(encoding="utf-8") for name, page in PAGES.items() if "reference" in name
    )
    code = "\n".join(b.text for text in pages for b in blocks(text) if b.language == "python")
    engines = [name for engine in (files, flower) for name in engine.__all__]
    names = [*odcl.__all__, *engines]
    assert not [name for name in names if not re.search(rf"\b{name}\b", code)]


def test_the_page_on_files_knows_every_entry_of_a_card():
    text = PAGES["reference/files.md"].read_text(encoding="utf-8")
    card = Task("stay", (Feature("a", ("p", "q")), Feature("b")), "y", Risk(Huber(2.0), 0.0, True))
    keys = re.findall(r"^(\w+) = ", card.to_toml(), flags=re.MULTILINE)
    assert {"delta", "levels", "shift", "minimum_group"} <= set(keys)
    assert not [key for key in keys if f"`{key}`" not in text and key not in card.leaves]


def test_an_example_that_prints_something_else_is_seen():
    assert same("a 1.5\n...\nend", "a 1.5\nb\nc\nend\n")
    assert same("0.12345678901234", "0.12345678909999")
    assert not same("1.5", "1.6")
    page = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    (example,) = run_page(page)
    assert (example.printed, example.said.text) == ("2\n", "3\n")


def test_a_site_with_a_broken_link_or_one_to_elsewhere_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("sphinx", reason="the site's generator: pip install 'odcl[docs]'")
    monkeypatch.syspath_prepend(DOCS / "extensions")
    from check_site import problems

    (tmp_path / "a.html").write_text(
        '<p id="here"></p><a href="b.html#there">x</a><a href="#here">x</a><a href="c.html">x</a>'
        '<script src="https://cdn.example/x.js"></script><img src="b.html">'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p><a href="a.html#nowhere">x</a>')
    found = problems(tmp_path)
    assert len(found) == 4
    assert sum("elsewhere" in line for line in found) == 1


def test_the_reference_shows_what_stands_beside_the_fields_of_a_value(monkeypatch):
    pytest.importorskip("sphinx", reason="the site's generator: pip install 'odcl[docs]'")
    monkeypatch.syspath_prepend(DOCS / "extensions")
    from public_names import fields_of, with_lists

    told = fields_of(UserColumns)
    assert told["model"] == "(n_users, dim)"
    assert told["users"] == "(n_users,), ids"
    assert list(fields_of(pieces.FitPlan)) == ["method", "unsigned", "left"]  # those with comments
    listed = with_lists(["What it is.", "", "wait, timeout : seconds", "    of a round."])
    assert listed[2:] == ["``wait``, ``timeout``", "    seconds", "    of a round."]
