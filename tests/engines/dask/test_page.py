"""The page of a table in pieces: some users one by one, groups of all."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose

from odcl import ODCLRegressor
from odcl.data.federation import id_keys
from odcl.data.tables import write_table
from odcl.runs.run import PAGE
from tests.engines.dask.tables import NAMED, cut, sales
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


def group_counts(place):
    """Users of each group in groups.csv."""
    content = pacsv.read_csv(place / "groups.csv")
    return dict(zip(content["group"].to_pylist(), content["users"].to_pylist(), strict=True))


def test_groups_are_counted_as_users_own_last_steps_placed_them(command, tmp_path, engine):
    """With classes the rows say more than the uploads: here two users move in the last step."""
    table = cut(sales(loss="logistic", seed=4), tmp_path / "sales", [100])
    said = command("fit", table, *NAMED, *engine, "--holdout", 0, "--out", "run")
    whole = command("fit", table, *NAMED, "--holdout", 0, "--out", "whole")
    assert (said.code, whole.code) == (0, 0)
    files = sorted((tmp_path / "run" / "users").iterdir())
    own = pa.concat_tables(map(pq.read_table, files))["group"].to_numpy()
    counts = dict(enumerate(np.bincount(own).tolist()))
    assert counts == group_counts(tmp_path / "whole")
    assert counts == group_counts(tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert dict(enumerate(report["sizes"])) == counts
    mine, theirs = (facts_of(tmp_path / run / PAGE) for run in ("run", "whole"))
    assert mine["groups"] == theirs["groups"]
    lines = [[x for x in one.out.splitlines() if x.startswith("group ")] for one in (said, whole)]
    assert lines[0] == lines[1]
    assert len(lines[0]) == len(counts) == 3


def test_users_who_were_added_are_counted_beside_all_others(
    command, tmp_path, table, engine, few_examples
):
    """The estimator holds 40 of the 60 users; groups stay those of all, and gain the new one."""
    assert command("fit", table, *NAMED, *engine, "--holdout", 0, "--out", "run").code == 0
    before = group_counts(tmp_path / "run")
    new = sales(m=1, n=8, text=True).set_column(0, "store", pa.array(["new one"] * 8))
    write_table(tmp_path / "new.csv", {n: new[n].to_numpy() for n in new.column_names})
    said = command("assign", "run", "new.csv", "--add")
    assert said.code == 0
    joined = int(said.out.splitlines()[1].split(",")[1])
    after = {group: n + (group == joined) for group, n in before.items()}
    assert group_counts(tmp_path / "run") == after
    assert sum(after.values()) == 61
    assert [users for users, _ in facts_of(tmp_path / "run" / PAGE)["groups"]] == [*after.values()]


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
    monkeypatch.setattr("odcl.server.chunks.MIXED_SAMPLE", 40)
    assert command("fit", table, *NAMED, *engine, "--holdout", 0, "--out", "run").code == 0
    assert command("fit", table, *NAMED, "--holdout", 0, "--out", "whole").code == 0
    for run in ("run", "whole"):
        facts = facts_of(tmp_path / run / PAGE)
        options = facts["options"]["list"]
        chosen = options[facts["options"]["chosen"]]
        assert chosen["groups"] == 3
        assert len(options) > 4
        for one in options:
            seen = int((unpacked(one["labels"], "<i2") >= 0).sum())
            assert seen == (60 if one is chosen else 40)
        assert "weighed on 40 of 60 users" in (tmp_path / run / PAGE).read_text()
