"""The page of a table in pieces: some users one by one, groups of all."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from odcl import ODCLRegressor
from odcl.data.federation import id_keys
from odcl.estimators.report import PAGE
from odcl.mixed import search
from odcl.server import stream
from tests.engines.dask.tables import NAMED
from tests.report.page.browser import facts_of, unpacked


def test_the_page_shows_some_users_and_groups_of_all(
    command, tmp_path, table, engine, few_examples
):
    assert command("fit", table, *NAMED, *engine, "--out", "run").code == 0
    assert command("fit", table, *NAMED, "--out", "whole").code == 0
    model, whole = ODCLRegressor.load("run"), ODCLRegressor.load("whole")
    page = (tmp_path / "run" / PAGE).read_text()
    facts, theirs = (facts_of(tmp_path / name / PAGE) for name in ("run", "whole"))
    by_key = whole.users_[np.argsort(id_keys(whole.users_))][:40]
    assert facts["ids"] == model.users_.tolist() == sorted(by_key.tolist(), key=facts["ids"].index)
    assert facts["total"] == 60
    assert facts["groups"] == theirs["groups"]  # sizes and rows, of all users
    assert "60 users were fitted, in pieces of their table. 40 of them, drawn by their ids" in page
    assert "Compared on 30 of 60 users" in page
    # What users gain stands beside their own names.
    mine, other = (unpacked(one["gains"]["own"]) for one in (facts, theirs))
    at = [theirs["ids"].index(user) for user in facts["ids"]]
    scored = np.isfinite(mine)
    assert scored.sum() == 30
    assert_allclose(mine[scored], other[at][scored], rtol=1e-5)
    # Users' own models and their groups' are those of the fit in memory.
    for name in ("own", "user", "centers"):
        a, b = unpacked(facts[name]), unpacked(theirs[name])
        b = b if name == "centers" else b.reshape(60, -1)[at].ravel()
        assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert (tmp_path / "run" / "picture.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize("words", [("--clusters", "3"), ("--paper",)], ids=["3", "paper"])
def test_groups_of_other_clusterers_are_those_of_all(
    command, tmp_path, table, engine, few_examples, words
):
    plain = (*NAMED, *words, "--holdout", 0)
    assert command("fit", table, *plain, *engine, "--out", "run").code == 0
    assert command("fit", table, *plain, "--out", "whole").code == 0
    mine, theirs = (facts_of(tmp_path / name / PAGE) for name in ("run", "whole"))
    assert mine["groups"] == theirs["groups"]
    assert len(mine["ids"]) == 40
    assert_allclose(unpacked(mine["centers"]), unpacked(theirs["centers"]), rtol=1e-4)


def test_it_is_made_again_and_opened(command, tmp_path, table, engine, monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr("webbrowser.open", seen.append)
    assert (
        command("fit", table, *NAMED, *engine, "--open", "--holdout", 0, "--out", "run").code == 0
    )
    assert seen == [(tmp_path / "run" / PAGE).resolve().as_uri()]
    assert command("report", "run", "--out", "again.html").code == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "run" / PAGE).read_bytes()
    assert command("report", "run", "--anonymous", "--out", "nameless.html").code == 0
    assert "store 7" not in (tmp_path / "nameless.html").read_text()


def test_what_was_weighed_on_a_sample_is_on_it(command, tmp_path, table, engine, monkeypatch):
    """Of 60 users 40 search; the alternatives are theirs, whoever else is on the page."""
    for module in (search, stream):
        monkeypatch.setattr(module, "SAMPLE", 40)
    assert command("fit", table, *NAMED, *engine, "--holdout", 0, "--out", "run").code == 0
    assert command("fit", table, *NAMED, "--holdout", 0, "--out", "whole").code == 0
    for run in ("run", "whole"):
        facts = facts_of(tmp_path / run / PAGE)
        options = facts["options"]["list"]
        chosen = options[facts["options"]["chosen"]]
        assert chosen["groups"] == 3
        assert len(options) > 4
        for one in options:
            seen = int((unpacked(one["labels"]["int8"], "i1") >= 0).sum())
            assert seen == (60 if one is chosen else 40)
        assert "weighed on 40 of 60 users" in (tmp_path / run / PAGE).read_text()
