"""What people see first: plain numbers, no empty panel, tables on the whole page."""

from __future__ import annotations

import re
from contextlib import chdir

import numpy as np
import pandas as pd
import pytest

from odcl.cli.main import run_command
from odcl.errors import number as people
from odcl.report.page.svg import ticks
from tests.report.page.browser import ENTER


@pytest.fixture(scope="module")
def nobody_differs(tmp_path_factory):
    """A run without groups, of targets around a million."""
    rng = np.random.default_rng(0)
    place, X = tmp_path_factory.mktemp("alike"), rng.standard_normal((480, 2)) * [1, 1e-3]
    y = 1e6 + X @ [0.5, 2000] + 0.1 * rng.standard_normal(480)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(who=np.repeat(np.arange(24), 20), y=y)
    frame.to_csv(place / "table.csv", index=False)
    with chdir(place):
        roles = ("--user", "who", "--target", "y", "--out", "run", "-q")
        assert run_command(["fit", "table.csv", *roles]) == 0
    return place / "run" / "report.html"


def shown_numbers(page, what):
    texts = [one.text for one in page.all(what)]
    return [n for text in texts for n in re.findall(r"-?[\d,]+(?:\.\d+)?(?:e[+-]\d+)?", text)]


def test_scores_have_three_digits_and_no_exponents(browser, stores, nobody_differs):
    for file in (stores / "run" / "report.html", nobody_differs):
        page = browser.open(file)
        assert not re.search(r"\de[+-]\d", page.text("main"))
        last = "td:nth-last-child(-n+3)"  # alone, with odcl, gain
        for text in shown_numbers(page, f"#assignment {last}"):
            assert len(re.sub(r"[-,.]", "", text).lstrip("0")) <= 3, text


def test_no_two_ticks_of_an_axis_read_the_same(browser, nobody_differs):
    for low, high in [(0.9995, 1.0021), (999_999.98, 1_000_000.01), (-2, 5), (1e-7, 3e-7)]:
        texts = [text for _, text in ticks(low, high)]
        assert len(texts) > 1
        assert len(set(texts)) == len(texts)
    page = browser.open(nobody_differs)
    page.write("#find", "12" + ENTER)
    for axis in page.all(".strip, #user .plot g"):
        texts = [one.text for one in axis.find_elements("css selector", ".tick")]
        assert len(set(texts)) == len(texts), texts


def test_years_on_an_axis_have_no_separators():
    assert [text for _, text in ticks(1952, 2007)][:2] == ["1960", "1980"]
    assert ticks(1400, 2100)[0][1] == "1,400"


def test_bars_say_that_taller_is_better_and_each_number_of_groups_once(browser, stores):
    page = browser.open(stores / "run" / "report.html")
    words = page.text("#alternatives")
    assert "The taller a bar, the better." in words
    assert "smallest is best" not in words
    bars = page.all("#options .option")
    tall = [float(bar.get_attribute("height")) for bar in bars]
    chosen = [("chosen" in bar.get_attribute("class")) for bar in bars]
    assert tall[chosen.index(True)] == max(tall)
    assert [one.text for one in page.all("#options .tick")] == ["1", "2", "3"]


def test_one_user_is_there_when_one_is_selected(browser, stores):
    page = browser.open(stores / "run" / "report.html")
    assert not page.one("#user").is_displayed()
    page.write("#find", "store-12" + ENTER)
    assert page.one("#user").is_displayed()
    assert page.text("#user-title") == "One user: store-12"
    page.click("#clear")
    assert not page.one("#user").is_displayed()


def test_without_groups_nobody_is_in_group_0(browser, nobody_differs):
    page = browser.open(nobody_differs)
    names = [one.text for one in page.all("#assignment th")]
    assert names[:2] == ["who", "rows"]
    assert "group" not in " ".join(names)
    assert page.all("#map .name") == []


def test_tables_take_the_whole_width_of_the_page(browser, stores):
    browser.size(1400, 900)
    page = browser.open(stores / "run" / "report.html")
    for name in ("users", "coefficients", "worth", "diagnosis", "privacy", "provenance"):
        room, table = page.run(
            "const s = document.getElementById(arguments[0]);"
            "const shown = [...s.querySelectorAll('table')].find(t => t.offsetWidth);"
            "return [s, shown].map(e => e.getBoundingClientRect())",
            name,
        )
        assert table["width"] > 0.9 * room["width"]
        assert room["width"] < 720  # two of them side by side
    users, last = (
        page.run(f"return document.getElementById('{name}').getBoundingClientRect().left")
        for name in ("users", "provenance")
    )
    assert users < 100
    assert last > 690


def test_a_headline_does_not_set_equal_numbers_apart(browser, nobody_differs):
    page = browser.open(nobody_differs)
    words = page.text("h1")
    table = {row[0]: float(row[1]) for row in page.rows("#worth")}
    ours, own = (people(table[name]) for name in ("odcl", "one model per user (ridge)"))
    assert (ours == own) == words.endswith(f"RMSE {ours}, as with a model of its own.")
