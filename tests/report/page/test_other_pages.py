"""The same page for rounds and diagnoses; and who is told of what."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose

from odcl.engines.files import combine_uploads
from tests.engines.files import world
from tests.report.page.browser import number


@pytest.fixture
def round_folder(tmp_path):
    given = world.task()
    uploads = world.send(given, world.frames(6), tmp_path / "uploads")
    return combine_uploads(given, uploads, out=tmp_path / "round"), tmp_path / "round"


def test_the_page_of_a_round_has_the_numbers_of_its_report(round_folder, browser):
    combined, folder = round_folder
    words = json.loads((folder / "report.json").read_text())
    page = browser.open(folder / "report.html")
    assert (
        page.text("h1")
        == "2 groups among 6 sites with 6 users; users of a group differ only by noise."
    )
    rows = {row[0]: row[1:] for row in page.rows("#groups")}
    for site, one in words["sites"].items():
        users, rows_of, where = rows[site][:3]
        assert (int(users), int(rows_of)) == (one["users"], one["rows"])
        assert where == ", ".join(map(str, sorted(set(one["groups"]))))
    mixture = combined.groups.mixture
    shown = {row[0]: [number(cell) for cell in row[1:]] for row in page.rows("#coefficients")}
    at = combined.step.centers  # features a and b are not scaled on this card
    assert_allclose(shown["a"], at[:, 0], rtol=6e-3)
    assert_allclose(shown["b"], at[:, 1], rtol=6e-3)
    assert len(mixture.centers) == 2
    assert {row[0]: row[1] for row in page.rows("#privacy")} == {
        name.replace("_", " "): tells for name, tells in combined.task.leaves.items()
    }
    assert page.problems() == []


def test_the_page_of_a_round_holds_no_user_and_nothing_that_a_user_sent(round_folder):
    """Numbers of the uploads, of any user's model or term, stand nowhere in it."""
    combined, folder = round_folder
    html = (folder / "report.html").read_text()
    assert "<script type=" not in html  # no facts beside what is shown
    told = set(re.findall(r"-?\d+\.\d+", html))
    for one in combined.taken.values():
        for values in one.uploads.to_arrays().values():
            for value in np.unique(values)[:40]:
                if value != int(value):
                    assert f"{value:.6g}" not in told


def test_a_round_is_replaced_with_its_page(tmp_path):
    given = world.task()
    uploads = world.send(given, world.frames(4), tmp_path / "uploads")
    combine_uploads(given, uploads, out=tmp_path / "round")
    world.send(given, world.frames(6), tmp_path / "uploads", created=world.time(9))
    combine_uploads(given, uploads, out=tmp_path / "round")
    assert "6 sites" in (tmp_path / "round" / "report.html").read_text()


def test_the_page_of_a_run_has_the_diagnosis_that_the_command_prints(stores, command, browser):
    said = command("diagnose", stores / "run").out.splitlines()
    page = browser.open(stores / "run" / "report.html")
    assert said[0] in page.text("#diagnosis")
    assert said[1] in page.text("#diagnosis")
    measured = {row[0]: row[1] for row in page.rows("#diagnosis")}
    for line in said[4:8]:
        name, value = re.split(r"\s{2,}", line)[:2]
        assert measured[name] == value
