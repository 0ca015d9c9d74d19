"""The shell and Python write and read one artifact: what one side fits, the other uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

from odcl import ODCLClassifier, ODCLRegressor
from odcl.data.source import read_table
from tests.helpers import (
    NO_HOLDOUT,
    model_of,
    models_of,
    people,
    people_in_classes,
    save_csv,
)

COLUMNS = ["c", "user", "a", "town", "b"]  # in another order than in the fit


def with_towns(frame):
    return frame.assign(town=np.resize(["Ulm", "Ulm", "Bonn", "Köln"], len(frame)))


@pytest.fixture
def fitted(command, fit_once):
    """Commands beside a run with a categorical column, and its table."""
    frame = with_towns(people())
    fit_once(save_csv(frame), *NO_HOLDOUT, "--categorical", "town")
    return command, frame


def predicted(command, *words):
    """The column of predictions that a command gives."""
    assert command("predict", *words, "--out", "p.parquet", "--force").code == 0
    return read_table("p.parquet")["prediction"].to_numpy()


# -- fitted in the shell ---------------------------------------------------------------------------

FRAMES = {"pandas": lambda f: f, "polars": pl.from_pandas, "arrow": pa.Table.from_pandas}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_loaded_run_takes_the_commands_table_with_columns_in_any_order(fitted, kind):
    command, frame = fitted
    expected = predicted(command, "run", "table.csv")
    model, table = ODCLRegressor.load("run"), FRAMES[kind](frame[COLUMNS].assign(extra="x"))
    assert_array_equal(model.predict(table), expected)
    assert_array_equal(model.predict(table, users=frame.user), expected)
    without = FRAMES[kind](frame[["town", "c", "b", "a"]])
    assert_array_equal(model.predict(without, users=frame.user), expected)
    with pytest.raises(ValueError, match="'b' is not in the table"):
        model.predict(FRAMES[kind](frame[["c", "user", "a", "town"]]))


def test_a_loaded_run_assigns_adds_and_updates_by_the_names_of_columns(fitted):
    command, _ = fitted
    new = with_towns(people(n_users=2, seed=9)).assign(user=lambda f: "new-" + f.user)
    assert command("assign", "run", save_csv(new, "new.csv"), "--add").code == 0
    assert command("update", "run", "new.csv", "--again").code == 0
    by_command = ODCLRegressor.load("run")
    command("fit", "table.csv", *NO_HOLDOUT, "--categorical", "town", "--out", "fresh")
    model, fresh = ODCLRegressor.load("fresh"), ODCLRegressor.load("fresh")
    for user, rows in new.groupby("user"):
        without = rows[["b", "town", "a", "c"]]
        assert_array_equal(
            model_of(model.assign(rows[COLUMNS], rows.y)), model_of(fresh.assign(without, rows.y))
        )
        model.add_user(user, rows[COLUMNS], rows.y)
        model.update_user(user, without, rows.y, again=True)
    assert_array_equal(models_of(model), models_of(by_command))
    with pytest.raises(ValueError, match="rows of 2 users"):
        model.assign(new[COLUMNS], new.y)


@pytest.mark.parametrize(
    "target",
    [lambda f: f.y, lambda f: f.y == "mid", lambda f: f.y.map({"low": 3, "mid": 1, "top": 2})],
    ids=["text", "booleans", "integers"],
)
def test_classes_come_back_as_the_tables_labels(command, fit_once, target):
    frame = people_in_classes(3)
    frame["y"] = target(frame)
    roles = (*NO_HOLDOUT, "--loss", "logistic")
    fit_once(save_csv(frame), *roles)
    model = ODCLClassifier.load("run")
    assert model.classes_.tolist() == sorted(set(frame.y))
    answer = model.predict(frame[["c", "user", "b", "a"]])
    assert set(answer) <= set(frame.y)
    assert np.mean(answer == frame.y.to_numpy()) > 0.7
    assert_array_equal(answer, predicted(command, "run", "table.csv"))


def test_a_loaded_run_saved_again_is_the_run(fitted):
    command, frame = fitted
    expected = predicted(command, "run", "table.csv")
    ODCLRegressor.load("run").save("again")
    assert_array_equal(predicted(command, "again", "table.csv"), expected)
    assert_array_equal(ODCLRegressor.load("again").predict(frame[COLUMNS]), expected)
    new = save_csv(with_towns(people(n_users=1, seed=9)).assign(user="new"), "new.csv")
    assert command("assign", "again", new, "--add").code == 0
    assert command("predict", "again", "new.csv").code == 0
    assert command("diagnose", "again").out == command("diagnose", "again").out != ""


def test_a_run_remembers_the_columns_that_a_new_fit_needs(fitted):
    command, frame = fitted
    run, features = ODCLRegressor.load("run"), frame.drop(columns="y")
    assert (run.users, run.categorical) == ("user", ["town"])
    again = clone(run).fit(features, frame.y)
    assert_array_equal(again.predict(features), predicted(command, "run", "table.csv"))
    again.save("saved")
    assert_array_equal(predicted(command, "saved", "table.csv"), again.predict(features))
    loaded = ODCLRegressor.load("saved")
    assert_array_equal(loaded.predict(features[COLUMNS]), again.predict(features))
    assert loaded.differences_ == again.differences_ == run.differences_


# -- fitted in Python ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ODCLRegressor, ODCLClassifier])
def test_a_model_fitted_on_a_frame_serves_the_command_line(command, kind):
    frame = people() if kind is ODCLRegressor else people_in_classes(3)
    table = frame[["b", "user", "a", "c"]].rename(columns={"user": "store"})
    model = kind(users="store").fit(table, frame.y)
    model.save("saved")
    later = frame.rename(columns={"user": "store"})  # columns in another order, and the target
    assert_array_equal(predicted(command, "saved", save_csv(later)), model.predict(table))
    new = later[later.store.isin(["u0", "u1"])].assign(store=lambda f: "new-" + f.store)
    said = command("assign", "saved", save_csv(new, "new.csv"), "--add")
    assert said.out.count("joins") == 2
    place = model.labels_[1]
    said = command("update", "saved", "new.csv", "--again")
    assert said.out.endswith(f"new-u1,{place},{place},14,28\n")
    for user, rows in new.groupby("store"):
        model.add_user(user, rows[["b", "a", "c"]], rows.y)
        model.update_user(user, rows[["b", "store", "a", "c"]], rows.y, again=True)
    assert_array_equal(models_of(kind.load("saved")), models_of(model))
    assert_array_equal(predicted(command, "saved", "new.csv"), model.predict(new[table.columns]))
    for words in (("diagnose", "saved"), ("diagnose", "saved", "table.csv")):
        assert command(*words).code == 0
    assert not Path("saved/assignment.csv").exists()


def test_a_model_that_knows_no_columns_says_what_to_do(command):
    frame = people()
    features = frame[["a", "b", "c"]]
    ODCLRegressor().fit(features.to_numpy(), frame.y, users=frame.user).save("arrays")
    ODCLRegressor(users="user").fit(frame.drop(columns="y"), frame.y.tolist()).save("nameless")
    said = command("predict", "arrays", save_csv(frame))
    assert (said.code, said.out) == (2, "")
    assert "fit it on a frame with users=COLUMN" in said.err
    assert command("predict", "nameless", "table.csv").code == 0
    said = command("assign", "nameless", "table.csv")
    assert said.code == 2
    assert "does not know the name of its target's column" in said.err


def test_ids_that_look_like_formulas_go_through_fit_predict_assign_and_python(command, fit_once):
    ids = {"u0": "=1+1", "u1": "+x", "u2": "@y", "u3": "-2"}
    frame = people(n_users=4).assign(user=lambda f: f.user.map(ids))
    fit_once(save_csv(frame), *NO_HOLDOUT)
    new = frame[frame.user == "=1+1"].assign(user='=HYPERLINK("x")')
    said = command("assign", "run", save_csv(new, "new.csv"), "--add", "--out", "a.csv")
    assert said.code == 0
    known = {*ids.values(), '=HYPERLINK("x")'}
    assert set(ODCLRegressor.load("run").users_) == known
    assert set(read_table("run/assignment.csv", text=("user",))["user"].to_pylist()) == known
    assert read_table("a.csv", text=("user",))["user"].to_pylist() == ['=HYPERLINK("x")']
    both = save_csv(pd.concat([frame, new]), "both.csv")
    command("predict", "run", both, "--out", "p.csv")
    answer = read_table("p.csv", text=("user",))
    assert answer["user"].to_pylist() == [*frame.user, *new.user]
    for name in ("a.csv", "p.csv", "run/assignment.csv"):
        first = {line.lstrip('"')[0] for line in Path(name).read_text().splitlines()}
        assert not first & set("=+@")
