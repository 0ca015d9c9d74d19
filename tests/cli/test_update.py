"""`odcl update` gives known users more rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from odcl import ODCLRegressor
from odcl.diagnose.own_models import own_models
from tests.helpers import NO_HOLDOUT, files_below, models_of, people, save_csv


@pytest.fixture
def tables():
    """Old and new rows of eight users in two groups, of whom u2 and u5 get more rows."""
    frame = people(n=30, seed=2)
    own = 0.5 * np.random.default_rng(0).normal(size=8)  # users of a group differ
    frame["y"] += frame.a * own[frame.user.str[1:].astype(int)]
    later = frame.user.isin(["u2", "u5"]) & (frame.groupby("user").cumcount() >= 12)
    return frame, frame[~later], frame[later]


@pytest.mark.parametrize("words", [(), ("--l2", "0.1"), ("--clusters", "2")])
def test_more_rows_of_a_user_give_what_all_its_rows_give(command, fit_once, tables, words):
    frame, old, new = tables
    fit_once(save_csv(old), *NO_HOLDOUT, *words)
    fit_once("table.csv", *NO_HOLDOUT, *words, out="other")
    before = ODCLRegressor.load("run")
    said = command("update", "run", save_csv(new, "new.csv"))
    assert said.err == ""
    assert said.out == "user,group,before,new_rows,rows\nu2,0,0,18,30\nu5,1,1,18,30\n"
    everything = save_csv(frame[frame.user.isin(["u2", "u5"])], "all.csv")
    assert command("update", "other", everything, "--all-rows").code == 0
    one, other = ODCLRegressor.load("run"), ODCLRegressor.load("other")
    assert_allclose(models_of(one), models_of(other), rtol=1e-9, atol=1e-9)
    assert_allclose(one.probability_, other.probability_, rtol=1e-9)
    for name in ("theta", "dispersion"):
        told = [getattr(own_models(model.uploads_), name) for model in (one, other)]
        assert_allclose(*told, rtol=1e-9, atol=1e-9)
    assert one.n_rows_.tolist() == other.n_rows_.tolist() == [30] * 8
    changed = np.isin(one.users_, ["u2", "u5"])
    assert_allclose(models_of(one)[~changed], models_of(before)[~changed], rtol=0)
    assert_allclose(models_of(one, groups=True), models_of(before, groups=True), rtol=0)
    assert (models_of(one)[changed] != models_of(before)[changed]).any(axis=1).all()


def test_the_runs_tables_follow_and_its_other_files_stay(command, fit_once, tables):
    _, old, new = tables
    fit_once(save_csv(old), *NO_HOLDOUT)
    before = files_below("run")
    assert pd.read_csv("run/assignment.csv")["rows"].tolist() == [30, 30, 12, 30, 30, 12, 30, 30]
    assert command("update", "run", save_csv(new, "new.csv"), "--out", "answer.csv").code == 0
    assert pd.read_csv("run/assignment.csv")["rows"].tolist() == [30] * 8
    after = files_below("run")
    changed = {name for name in after if after[name] != before[name]}
    follow = {"models.safetensors", "uploads.safetensors", "assignment.csv", "report.html"}
    assert follow <= changed
    assert not {"schema.json", "report.json", "groups.csv"} & changed


def test_a_user_who_changes_moves_to_the_other_group_or_to_none(command, fit_once, tables):
    _, old, _ = tables
    fit_once(save_csv(old), *NO_HOLDOUT)
    like_u1 = people(n_users=2, n=400, seed=8).query("user == 'u1'").assign(user="u2")
    assert "u2,1,0,400,412\n" in command("update", "run", save_csv(like_u1, "moved.csv")).out
    strange = like_u1.assign(user="u5", y=lambda f: 50 * f.a - 80)
    assert "u5,-1,1,400,412\n" in command("update", "run", save_csv(strange, "far.csv")).out
    model = ODCLRegressor.load("run")
    assert_allclose(model.coef_[5], [50, 0, 0], atol=3)  # its own model, of old and new rows
    few = strange[:2]
    assert "u5,-1,-1,2,414\n" in command("update", "run", save_csv(few, "few.csv")).out


def test_what_cannot_be_updated_is_refused_and_nothing_is_changed(command, fit_once, tables):
    frame, old, new = tables
    fit_once(save_csv(old), *NO_HOLDOUT)
    fit_once("table.csv", *NO_HOLDOUT, "--paper", out="paper")
    save_csv(new, "new.csv")
    stranger = pd.concat([new, new[:1].assign(user="nobody")])
    save_csv(stranger, "stranger.csv")
    before = files_below()
    said = command("update", "run", "stranger.csv")
    assert (said.code, said.out) == (2, "")
    assert "1 of 3 users not in the fit (such as 'nobody')" in said.err
    assert "odcl assign RUN TABLE --add" in said.err
    said = command("update", "paper", "new.csv")
    assert (said.code, said.out) == (2, "")
    assert "'u2' sent a model, to which new rows cannot be added" in said.err
    assert "say --all-rows." in said.err
    assert said.err.count("\n") == 1
    assert files_below() == before
    everything = save_csv(frame[frame.user.isin(["u2", "u5"])], "all.csv")
    assert command("update", "paper", everything, "--all-rows").code == 0


@pytest.mark.parametrize("name", ["assign", "update"])
@pytest.mark.parametrize("column", ["y", "a"])
def test_numbers_beyond_what_can_be_squared_are_refused(command, fit_once, tables, name, column):
    _, old, new = tables
    fit_once(save_csv(old), *NO_HOLDOUT)
    new = new.reset_index(drop=True)
    new.loc[3, column] = 1e300
    save_csv(new if name == "update" else new.assign(user="new"), "new.csv")
    before = files_below()
    said = command(name, "run", "new.csv", *(("--add",) if name == "assign" else ()))
    assert (said.code, said.out) == (2, "")
    told = {"y": "Target 'y' reaches 1e+300 in row 4,", "a": "Feature 'a' reaches 1e+300 times"}
    assert said.err.startswith(f"odcl: {told[column]}")
    assert said.err.count("\n") == 1
    assert files_below() == before


def test_classes_and_categories_are_read_as_in_the_fit(command, fit_once):
    frame = people(n=30).assign(y=lambda f: np.where(f.y > 3, "yes", "no"))
    frame["town"] = np.tile(["Ulm", "Ulm", "Bonn"], 80)
    fit_once(save_csv(frame), *NO_HOLDOUT, "--categorical", "town")
    more = frame[frame.user == "u1"][["town", "y", "c", "b", "a", "user"]]
    said = command("update", "run", save_csv(more, "more.csv"), "--again")
    assert said.out.endswith("u1,1,1,30,60\n")
    said = command("update", "run", save_csv(more.assign(y="perhaps"), "odd.csv"))
    assert said.code == 2
    assert "none of the classes" in said.err


def test_a_run_whose_uploads_were_not_kept_needs_all_rows(command, tables, monkeypatch):
    frame, old, new = tables
    monkeypatch.setattr("odcl.fitted.persist.MOST_UPLOADS", 100)
    command("fit", save_csv(old), *NO_HOLDOUT, "--out", "run")
    assert not Path("run/uploads.safetensors").exists()
    said = command("update", "run", save_csv(new, "new.csv"))
    assert said.code == 2
    assert "say --all-rows." in said.err
    everything = save_csv(frame[frame.user == "u2"], "all.csv")
    assert command("update", "run", everything, "--all-rows").out.endswith("u2,0,0,30,30\n")


@pytest.mark.parametrize(
    "words", [(), ("--clusters", "2"), ("--loss", "logistic"), ("--no-short-terms",)]
)
def test_rows_that_were_given_before_are_refused_unless_asked_for(command, fit_once, tables, words):
    _, old, new = tables
    if "logistic" in words:
        old, new = (part.assign(y=(part.y > 0).astype(int)) for part in (old, new))
    fit_once(save_csv(old), *NO_HOLDOUT, *words)
    fit_once("table.csv", *NO_HOLDOUT, *words, out="other")
    save_csv(new, "new.csv")
    save_csv(new.sample(frac=1, random_state=0), "shuffled.csv")
    save_csv(old.sample(frac=1, random_state=0), "fitted.csv")
    before = files_below("run")
    said = command("update", "run", "fitted.csv")  # the table of the fit
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "odcl: User 'u0' has had just these rows (30) before: they would count twice. "
        "Leave them out, or say --again if they are new and only look the same.\n"
    )
    assert files_below("run") == before
    assert command("update", "run", "new.csv").code == 0
    before = files_below("run")
    for name in ("new.csv", "shuffled.csv"):
        said = command("update", "run", name)
        assert (said.code, said.out) == (2, "")
        assert "User 'u2' has had just these rows (18) before" in said.err
    assert files_below("run") == before
    said = command("update", "run", "new.csv", "--again")
    assert [line.split(",")[-1] for line in said.out.splitlines()] == ["rows", "48", "48"]
    # Other rows, other users' rows and all rows of a user are what they are.
    assert command("update", "other", save_csv(new[new.user == "u2"], "one.csv")).code == 0
    swapped = new[new.user == "u2"].assign(user="u5")
    assert command("update", "other", save_csv(swapped, "swapped.csv")).code == 0
    part = save_csv(new[new.user == "u2"].iloc[1:], "part.csv")
    assert command("update", "other", part).code == 0
    assert command("update", "run", "new.csv", "--all-rows").code == 0
    assert command("update", "run", "new.csv", "--all-rows").code == 0


def test_python_refuses_rows_of_a_user_that_was_just_added(tables):
    _, old, _ = tables
    X, y = old[["a", "b", "c"]].to_numpy(), old.y.to_numpy()
    rest, last = (old.user != "u7").to_numpy(), (old.user == "u7").to_numpy()
    model = ODCLRegressor().fit(X[rest], y[rest], users=old.user[rest].to_numpy())
    model.add_user("u7", X[last], y[last])
    with pytest.raises(ValueError, match=r"User 'u7' .* these rows \(30\) before.* again=True"):
        model.update_user("u7", X[last], y[last])
    model.update_user("u7", X[last], y[last], again=True)
    assert model.n_rows_[-1] == 60
    model.fit(X, y, users=old.user.to_numpy())
    assert model.fitted_.batches == frozenset()
