"""`odcl assign` finds the groups of new users."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.testing import assert_array_equal

from odcl import ODCLRegressor
from odcl.data.source import read_table
from tests.helpers import NO_HOLDOUT, features_of, files_below, people, save_csv


def test_assign_finds_the_groups_of_new_users(command, fit_once):
    fit_once(save_csv(people()), *NO_HOLDOUT)
    before = files_below("run")
    new = people(n_users=6, seed=9).assign(user=lambda f: "new-" + f.user)
    said = command("assign", "run", save_csv(new, "new.csv"), "--out", "groups.csv")
    assert said.err == "odcl: 6 rows written to groups.csv\n"
    answer = pd.read_csv("groups.csv")
    columns = ["user", "group", "probability", "distance", "rows", "verdict"]
    assert answer.columns.tolist() == columns
    assert answer.group.tolist() == [0, 1] * 3
    assert (answer.probability > 0.99).all()
    assert (answer.verdict == "joins").all()
    strange = people(n_users=1, seed=2).assign(user="strange", y=lambda f: 50 * f.a - 80)
    said = command("assign", "run", save_csv(strange, "strange.csv"))
    assert said.out.splitlines()[1].startswith("strange,-1,")
    assert said.out.endswith("none of these\n")
    assert files_below("run") == before


def test_assign_add_makes_predict_know_the_users(command, fit_once):
    frame = people()
    fit_once(save_csv(frame), *NO_HOLDOUT)
    Path("run/notes").mkdir()
    Path("run/notes/mine.txt").write_text("kept")
    new = people(n_users=3, seed=9).assign(user=lambda f: "new-" + f.user)
    save_csv(new, "new.csv")
    model = ODCLRegressor.load("run")
    for user, rows in new.groupby("user"):
        model.add_user(user, features_of(rows), rows.y.to_numpy())
    assert command("assign", "run", "new.csv", "--add").code == 0
    assert Path("run/notes/mine.txt").read_text() == "kept"
    assert pd.read_csv("run/assignment.csv").user.tolist() == model.users_.tolist()
    assert pd.read_csv("run/assignment.csv").group.tolist() == model.labels_.tolist()
    command("predict", "run", "new.csv", "--out", "p.parquet")
    expected = model.predict(features_of(new), users=new.user)
    assert_array_equal(read_table("p.parquet")["prediction"].to_numpy(), expected)
    said = command("assign", "run", "new.csv", "--add")
    assert said.code == 2
    assert "3 users of these (such as 'new-u0') known already" in said.err


def test_the_page_tells_the_fits_users_from_those_who_came_later(command, fit_once):
    fit_once(save_csv(people()), *NO_HOLDOUT)
    new = people(n_users=4, seed=9).assign(user=lambda f: "new-" + f.user)
    sent = "on average each user would send "
    before = Path("run/report.html").read_text().split(sent)[1].split(".")[0]
    command("assign", "run", save_csv(new, "new.csv"), "--add")
    command("update", "run", save_csv(new.assign(b=1.0), "more.csv"), "--force")
    page = Path("run/report.html").read_text()
    assert page.split(sent)[1].split(".")[0] == before  # those of the fit sent what they sent
    assert "4 users came after the round and would send " in page
    again = "odcl assign run new.csv --add &amp;&amp; odcl update run more.csv<"
    assert again in page
    n, m = len(people()), len(people().user.unique())
    assert f"{m + 4} users, {n + 2 * len(new)} rows, 3 features" in page
    assert f"{m} users, {n} rows" in page
    assert command("report", "run", "--anonymous", "--out", "p.html").code == 0
    assert "new.csv" not in Path("p.html").read_text()


def test_later_rows_may_hold_categories_that_were_not_in_the_fit(command, fit_once):
    frame = people(n=30).assign(town=lambda f: np.tile(["Ulm", "Ulm", "Bonn"], len(f) // 3))
    fit_once(save_csv(frame), *NO_HOLDOUT)
    more = save_csv(frame[:60].assign(town="Rome", b=1.0), "more.csv")
    new = save_csv(frame[:60].assign(town="Rome", user="new"), "new.csv")
    asked = ("assign", "run", new), ("update", "run", more), ("diagnose", "run", "--table", more)
    for words in asked:
        said = command(*words)
        assert said.code == 2
        assert "Say --unseen reference to read new levels as 'Ulm'." in said.err
        said = command(*words, "--unseen", "reference")
        assert said.code == 0
        assert "60 rows with a new level of 'town' (Rome), read as 'Ulm'" in said.err
