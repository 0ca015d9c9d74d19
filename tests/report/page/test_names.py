"""Names come from outside: nothing in them is ever executed, and they can be left out."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from tests.helpers import NO_HOLDOUT, people, save_csv
from tests.report.page.browser import ENTER, facts_of, unpacked

HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "\"' onmouseover='window.hacked=1' x=\"",
    "<svg onload=window.hacked=1>",
    "{{script}} {{data}} $title %s",
    "javascript:window.hacked=1",
    "__proto__",
    "constructor",
    '=HYPERLINK("http://a")',
    "\u202egnp.exe",
    "]]><!--<script>",
    "&lt;b&gt; &amp;",
)


@pytest.fixture
def hostile(command):
    """A run whose users, columns and target have hostile names."""
    columns = store_tables(0)[0]
    users = np.array([*HOSTILE, *(f"store {i}" for i in range(60))], dtype=object)
    codes = np.unique(columns["store"], return_inverse=True)[1]
    frame = pd.DataFrame(columns).assign(store=users[codes])
    names = {"price": HOSTILE[0], "rain": HOSTILE[1], "sales": HOSTILE[3], "store": HOSTILE[2]}
    write_table("table.csv", frame.rename(columns=names).to_dict("series"))
    said = command("fit", "table.csv", "--user", HOSTILE[2], "--target", HOSTILE[3], "--out", "run")
    assert said.code == 0, said.err
    return Path("run")


def test_hostile_names_are_shown_and_never_executed(hostile, browser):
    page = browser.open(hostile / "report.html")
    for user in HOSTILE[:9]:
        page.run("document.getElementById('find').value = ''")
        page.run("document.getElementById('find').focus()")
        page.write("#find", user + ENTER)
        assert page.text("#user-title") == f"One user: {user}"
    page.click("#assignment th:nth-child(1) button")
    page.run("for (const d of document.querySelectorAll('details')) d.open = true")
    assert page.run("return window.hacked") is None
    assert not page.all("img, iframe, object, embed, [onerror], [onload], [onmouseover]")
    assert page.run("return document.scripts.length") == 2  # the facts, and the page's own
    assert page.problems() == []


def test_the_policy_refuses_scripts_that_are_not_the_pages_own(hostile, browser):
    """Were something to slip through, it would not run: the policy is tried with a real script."""
    text = (hostile / "report.html").read_text()
    Path("open.html").write_text(text.replace("<main", "<script>window.hacked=1</script><main", 1))
    page = browser.open(Path("open.html"))
    assert page.run("return window.hacked") is None
    assert any("Content Security Policy" in line for line in page.problems())
    policy = page.one("meta[http-equiv='Content-Security-Policy']").get_attribute("content")
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")


def test_names_are_text_wherever_they_stand_in_the_file(hostile):
    html = (hostile / "report.html").read_text()
    assert "<script>window" not in html
    assert "<img" not in html
    assert "onload=window" not in html.replace("&lt;svg onload=window", "").replace(
        "\\u003csvg onload=window", ""
    )
    assert "\u202e" not in html  # it would turn the line around
    assert set(HOSTILE[:9]) <= set(facts_of(hostile / "report.html")["ids"])


def test_an_anonymous_page_holds_no_name_and_no_order(hostile, command):
    said = command("report", "run", "--anonymous", "--out", "page.html")
    assert (said.code, said.out) == (0, "Report: page.html\n")
    html, words = Path("page.html").read_text(), json.dumps(facts_of(Path("page.html")))
    named = facts_of(hostile / "report.html")
    columns = {*HOSTILE[:4]}  # which are not the users' names, and stay
    for user in {*named["ids"]} - columns:
        assert json.dumps(user)[1:-1] not in words
    assert "store 1" not in html
    assert "table.csv" not in html
    facts = facts_of(Path("page.html"))
    assert facts["ids"] == [f"user {i}" for i in range(1, 61)]
    assert facts["group"] != named["group"]  # another order than that of the names
    assert facts["anonymous"]
    assert "every user's model, group and held-out targets are still here" in unescape(html)
    assert "--anonymous" not in html
    named_words = unescape((hostile / "report.html").read_text())
    assert "odcl report RUN --anonymous makes one without names" in named_words


def test_an_anonymous_page_leaves_out_what_was_odd_about_the_table(command):
    """Notices, the command and the table's name may hold names: all of them stay at home."""
    frame = people().assign(constant=3.0)
    said = command("fit", save_csv(frame, "patients.csv"), *NO_HOLDOUT, "--out", "run")
    assert "1 constant column" in said.out + said.err
    assert command("report", "run", "--anonymous", "--out", "page.html").code == 0
    named, anonymous = Path("run/report.html").read_text(), Path("page.html").read_text()
    for told in ("1 constant column", "odcl fit", "patients.csv"):
        assert told in named
        assert told not in anonymous


def test_numbers_of_an_anonymous_page_are_the_same_each_time_and_on_the_named_page(
    hostile, command
):
    command("report", "run", "--anonymous", "--out", "a.html")
    command("report", "run", "--anonymous", "--out", "b.html")
    assert Path("a.html").read_bytes() == Path("b.html").read_bytes()
    named, anonymous = facts_of(hostile / "report.html"), facts_of(Path("a.html"))
    at = unpacked(named["number"], "<i4")
    rows, other = unpacked(named["rows"], "<i4"), unpacked(anonymous["rows"], "<i4")
    assert (other[at - 1] == rows).all()
    assert sorted(at.tolist()) == list(range(1, 61))
