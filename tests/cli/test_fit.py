"""`odcl fit` keeps its promises: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Method, ODCLRegressor
from odcl.data.source import read_table
from odcl.fitted.persist import save_fitted
from tests.helpers import (
    NO_HOLDOUT,
    ROLES,
    Said,
    features_of,
    files_below,
    models_of,
    people,
    people_in_classes,
    save_csv,
)

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


# -- fit -------------------------------------------------------------------------------------------


def test_fit_writes_models_assignment_and_a_closing_table(command):
    frame = people()
    said = command("fit", save_csv(frame), *ROLES, "--out", "run")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("8 users, 112 rows, 3 features, squared loss, 1 round. 2 groups")
    names = ("one model per user (ridge)", "one model for all", "one for all, own intercepts")
    names += ("mixed model without groups", "the paper's setting", "odcl")
    rows = {
        n: re.search(rf"^{re.escape(n)} +([\d.]+) +([\d.]+) +([\d.]+)$", said.out, re.M)
        for n in names
    }
    report = json.loads(Path("run/report.json").read_text())
    for name, entry in zip(names, report["comparison"]["table"], strict=True):
        numbers = [entry["mean"], entry["median"], entry["worst"]]
        assert_allclose([float(x) for x in rows[name].groups()], numbers, rtol=5e-3)
    assert report["comparison"]["rows_held_out"] == 8 * 3
    assert report["risk"]["intercept"] is True
    expected = {"models.safetensors", "mixture.safetensors", "model.json", "uploads.safetensors"}
    expected |= {"schema.json"}
    expected |= {"manifest.json", "report.json", "report.html"}
    expected |= {"evidence.json", "evidence.safetensors"}
    assert set(files_below("run")) == expected | {"assignment.csv", "groups.csv"}
    assignment = pd.read_csv("run/assignment.csv")
    assert assignment.user.tolist() == [f"u{i}" for i in range(8)]
    assert assignment.group.tolist() == [0, 1] * 4
    assert assignment["rows"].tolist() == [14] * 8
    groups = pd.read_csv("run/groups.csv")
    assert_allclose(groups[["a", "b", "c"]], [[3, -2, 1], [-3, 2, 4]], atol=0.3)


def test_the_command_fits_what_the_estimator_fits(command):
    frame = people()
    command(
        "fit", save_csv(frame), *NO_HOLDOUT, "--out", "run", "--clusters", "kmeans:2", "--seed", "3"
    )
    model = ODCLRegressor(clusterer="kmeans:2", random_state=3)
    model.fit(features_of(frame), frame.y.to_numpy(), users=frame.user)
    loaded = ODCLRegressor.load("run")
    assert_array_equal(models_of(loaded), models_of(model))
    assert_array_equal(loaded.users_, model.users_)


@pytest.mark.parametrize(
    ("words", "method", "settings"),
    [
        (("--clusters", "3"), Method(3), {}),
        (("--clusters", "kmeans:3"), Method("kmeans:3"), {}),
        (("--clusters", "convex"), Method("convex"), {}),
        (("--clusters", "spectral:2"), Method("spectral:2"), {}),
        (("--clusters", "gradient:2"), Method("gradient:2"), {}),
        (("--no-short-terms",), Method(short_terms=False), {}),
        (("--no-intercept",), Method(), {"fit_intercept": False}),
        (("--l2", "0.5"), Method(), {"l2": 0.5}),
        (("--no-curves",), Method(), {"curves": False}),
        (("--curves", "a", "--curves", "b,c"), Method(), {"curves": ["a", "b", "c"]}),
        (("--periodic", "a=2.5,b=12"), Method(), {"periodic": {"a": 2.5, "b": 12}}),
        (("--loss", "huber"), Method(), {"loss": "huber"}),
        (("--seed", "7"), Method(), {"random_state": 7}),
        (("--jobs", "2"), Method(), {"n_jobs": 2}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_option_reaches_the_estimator_and_the_report(command, words, method, settings):
    assert command("fit", save_csv(people()), *NO_HOLDOUT, "--out", "run", *words).code == 0
    model = ODCLRegressor.load("run")
    assert model.method == method
    assert model.method_ == method.resolved(model.risk_, 4)
    assert settings.items() <= model.get_params().items()
    report = json.loads(Path("run/report.json").read_text())
    assert Method.from_json(report["method"]) == model.method_
    assert report["risk"] == model.risk_.to_json()
    assert report["risk"]["intercept"] == settings.get("fit_intercept", True)
    assert report["risk"]["l2"] == settings.get("l2", 0.0)
    assert report["risk"]["loss"]["name"] == settings.get("loss", "squared")
    assert report["seed"] == settings.get("random_state", 0)


def test_the_papers_setting_is_reported_as_what_it_is(command):
    said = command("fit", save_csv(people()), *ROLES, "--out", "run", "--paper", "--clusters", "2")
    assert said.code == 0
    assert re.search(r"^With the paper's setting \d of 8 users", said.out, flags=re.MULTILINE)
    report = json.loads(Path("run/report.json").read_text())
    assert Method.from_json(report["method"]) == Method.paper(2)
    assert [row["method"] for row in report["comparison"]["table"]] == [
        *("local", "pooled", "intercepts", "mixed", "paper", "odcl")
    ]


def test_columns_are_named_one_by_one_or_with_commas_and_may_hold_commas(command):
    frame = people().rename(columns={"a": "size, cm", "b": "größe b", "user": "the user"})
    frame["size"], frame["note"] = 1.5, "text"
    roles = ("--user", "the user", "--target", "y", "--holdout", "0", "--out", "run", "--force")

    def features(*words):
        assert command("fit", save_csv(frame), *roles, *words).code == 0
        return json.loads(Path("run/schema.json").read_text())["features"]

    assert features("--features", "size, cm", "--features", "c,größe b") == [
        "size, cm",
        "c",
        "größe b",
    ]
    assert features("--drop", "note, size") == ["size, cm", "größe b", "c"]
    assert features("--drop", "size, cm", "--categorical", "note")[:2] == ["größe b", "c"]


def test_a_category_with_a_comma_in_its_name_leaves_a_number_a_number(command):
    frame = people().assign(**{"a,b": np.tile(["x", "y"], 56)})
    assert (
        command("fit", save_csv(frame), *NO_HOLDOUT, "--categorical", "a,b", "--out", "run").code
        == 0
    )
    schema = json.loads(Path("run/schema.json").read_text())
    assert list(schema["levels"]) == ["a,b"]
    assert {"a", "b"} <= set(schema["fill"])


@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".tsv", ".parquet", "folder"])
def test_tables_of_every_kind_give_the_same_fit(command, kind):
    frame = people()
    command("fit", save_csv(frame), *NO_HOLDOUT, "--out", "run")
    path = Path(f"other{kind}")
    if kind == "folder":
        path.mkdir()
        frame[:50].to_csv(path / "1.csv", index=False)
        frame[50:].to_parquet(path / "2.parquet", index=False)
    elif kind == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if kind == ".tsv" else ",")
    assert command("fit", path, *NO_HOLDOUT, "--out", "other").code == 0
    assert files_below("other")["models.safetensors"] == files_below("run")["models.safetensors"]


@pytest.mark.parametrize(
    ("target", "words", "loss"),
    [
        (lambda y: y, (), "squared"),
        (lambda y: y > y.median(), (), "logistic"),
        (lambda y: np.where(y > y.median(), "ja", "nein"), (), "logistic"),
        (lambda y: pd.qcut(y, 3, labels=["lo", "mid", "hi"]).astype(str), (), "multinomial"),
        (lambda y: pd.qcut(y, 3, labels=[0, 1, 2]).astype(int), (), "squared"),
        (lambda y: pd.qcut(y, 3, labels=[0, 1, 2]).astype(int), "logistic", "multinomial"),
        (lambda y: (y - y.min()).round().astype(int), "poisson", "poisson"),
    ],
    ids=["number", "bool", "text", "three", "integers", "classes", "counts"],
)
def test_the_target_decides_on_the_loss_unless_one_is_named(command, target, words, loss):
    frame = people()
    frame["y"] = target(frame.y)
    words = ("--loss", words) if words else ()
    said = command("fit", save_csv(frame), *NO_HOLDOUT, *words, "--out", "run")
    assert said.code == 0
    assert f" {loss} loss" in said.out
    predicted = command("predict", "run", "table.csv")
    assert predicted.code == 0
    if loss in ("logistic", "multinomial"):
        rows = pd.read_csv("table.csv").y.astype(str).str.lower()
        guess = [line.split(",")[2] for line in predicted.out.splitlines()[1:]]
        assert np.mean(np.array(guess) == rows.to_numpy()) > 0.7
        assert predicted.out.splitlines()[0].count("p(") == rows.nunique()


def test_a_column_with_a_comma_in_its_name_may_bend_and_begin_anew(command):
    frame = people().rename(columns={"a": "size, cm", "b": "hour=h"})
    named = ("--curves", "size, cm", "--periodic", "hour=h=0.5")
    said = command("fit", save_csv(frame), *ROLES, *named, "--out", "run")
    assert said.code == 0  # the comparison with methods that know no curves is made all the same
    settings = ODCLRegressor.load("run").get_params()
    assert settings["curves"] == ["size, cm"]
    assert settings["periodic"] == {"hour=h": 0.5}


# -- refused ---------------------------------------------------------------------------------------

STORES = people()


def changed(column, row, value):
    frame = STORES.copy()
    frame[column] = frame[column].astype(object)
    frame.loc[row, column] = value
    return frame


REFUSED = {
    "missing column": (STORES, ("--drop", "z"), "'z' is not in the table"),
    "near column": (STORES.rename(columns={"a": "price"}), ("--drop", "Pirce"), "mean 'price'?"),
    "empty table": (STORES[:0], (), "a table needs a line of column names, then rows"),
    "text": (
        changed("b", 4, "abc"),
        (),
        "'b' holds text where numbers are needed: row 5 has 'abc'",
    ),
    "text options": (changed("b", 4, "abc"), (), "--categorical b to use it as categories, or --"),
    "slip": (changed("y", 9, "abc"), (), "'y' holds text where numbers are needed: row 10 has"),
    "missing": (changed("c", 7, None), (), "'c' has no value in row 8"),
    "missing options": (changed("c", 7, None), (), "--missing drop (leave these rows out), --miss"),
    "infinite": (changed("a", 2, "inf"), (), "'a' is infinite in row 3"),
    "one user": (STORES[:14], (), "The table has one user, and groups need several"),
    "few users": (STORES[:28], ("--clusters", "3"), "asks for 3 groups, and there are 2 users"),
    "few for K-means": (
        STORES[:28],
        ("--clusters", "kmeans:9"),
        "asks for 9 groups, and there are 2 users",
    ),
    "no such curve": (STORES, ("--curves", "a,z"), "'z' is to act in a curve, and is none of"),
    "no such period": (
        STORES,
        ("--periodic", "a=0"),
        "'a=0' is not COLUMN=PERIOD, the period above 0",
    ),
    "no classes": (STORES, ("--loss", "logistic"), "112 distinct values"),
    "names": (STORES.assign(y=[f"n{i}" for i in range(112)]), (), "labels that are not classes"),
    "one class": (STORES.assign(y="yes"), (), "needs two classes or more"),
    "missing id": (
        changed("user", 3, None),
        (),
        "'user' names no user in row 4 (incomplete rows: 1",
    ),
    "negative counts": (STORES, ("--loss", "poisson"), "counts are 0, 1, 2, ..."),
    "huge target": (STORES.assign(y=STORES.y * 1e200), (), "express it in another unit"),
    "no feature": (STORES[["user", "y"]], (), "No feature is left"),
}


@pytest.mark.parametrize(("frame", "words", "told"), REFUSED.values(), ids=REFUSED)
def test_a_table_that_cannot_be_fitted_is_refused_in_one_line(command, frame, words, told):
    said = command("fit", save_csv(frame), *ROLES, *words, "--out", "run")
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert re.fullmatch(r"odcl: [^\n]+\n", said.err)
    assert list(files_below()) == ["table.csv"]


def test_a_user_column_that_is_not_there_is_refused_with_the_nearest(command):
    said = command("fit", save_csv(STORES), "--user", "usr", "--target", "y", "--out", "run")
    assert said.code == 2
    assert "Column 'usr' is not in the table; did you mean 'user'?" in said.err


@pytest.mark.parametrize(
    ("out", "words", "told"),
    [
        ("old", (), "old exists already"),
        ("none/run", ("--force",), "there is no folder none"),
        ("table.csv", ("--force",), "table.csv is a file"),
        ("thesis", ("--force",), "holds what odcl did not write (such as 'chapter.txt')"),
        (".", ("--force",), "the folder you work in"),
    ],
)
def test_an_output_folder_is_refused_before_the_work(command, monkeypatch, out, words, told):
    save_csv(people())
    Path("old").mkdir()
    Path("thesis").mkdir()
    Path("thesis/chapter.txt").write_text("years of work")
    monkeypatch.setattr("odcl.runs.fit.read_source", None)
    before = files_below()
    said = command("fit", "table.csv", *NO_HOLDOUT, "--out", out, *words)
    assert said.code == 2
    assert told in said.err
    assert files_below() == before


def test_force_replaces_a_run_as_a_whole(command):
    save_csv(people())
    command("fit", "table.csv", *NO_HOLDOUT, "--out", "run", "--seed", "1")
    old = ODCLRegressor.load("run")
    save_fitted(old.fitted_, "run", force=True, extras={"picture.png": b"of an earlier version"})
    assert "picture.png" in files_below("run")  # a file of ours that the new run lacks
    assert_array_equal(ODCLRegressor.load("run").theta_, old.theta_)
    said = command("fit", "table.csv", *NO_HOLDOUT, "--out", "run", "--paper", "--force")
    assert said.code == 0
    assert "picture.png" not in files_below("run")
    assert ODCLRegressor.load("run").method_ == Method.paper()
    assert [name for name in os.listdir() if name.startswith(".")] == []


# -- accepted, with a notice -----------------------------------------------------------------------


def one_class(frame):
    rng = np.random.default_rng(0)
    frame = frame.assign(y=np.where(frame.a + rng.normal(size=len(frame)) > 0, "yes", "no"))
    frame.loc[frame.user.isin(["u1", "u2"]), "y"] = "yes"
    return frame


TAKEN = {
    "one row": (
        lambda f: pd.concat([f, f[:1].assign(user="solo"), f[1:2].assign(user="duo")]),
        ["2 users with a single row"],
    ),
    "one class": (one_class, ["2 users with a single class"]),
    "constant": (
        lambda f: f.assign(k=1.0, zero=0, only="same"),
        ["3 constant columns (k, zero, only)"],
    ),
    "repeated": (
        lambda f: pd.concat([f, f[:3], f[:3], f[20:21].assign(user="u5")]),
        ["6 rows repeat another row of the same user"],
    ),
    "repeated once": (lambda f: pd.concat([f, f[:1]]), ["1 row repeats another row of the same"]),
    "scales": (
        lambda f: f.assign(a=f.a * 1e12, b=f.b * 1e-12),
        ["2 columns at an extreme scale (a, b), brought to a common scale"],
    ),
    "no id": (
        lambda f: f.assign(user=f.user.where(f.user != "u3")),
        ["14 rows with missing values left out, 14 of them without a user's id"],
    ),
    "dropped": (
        lambda f: f.assign(a=f.a.where(f.index != 4), y=f.y.where(f.index > 2)),
        ["4 rows with missing values left out"],
    ),
    "two values": (
        lambda f: f.assign(y=(f.y > 5).astype(int)),
        ["'y' has two values: for classes say --loss logistic"],
    ),
    "a target that never varies": (
        lambda f: f.assign(y=2.5),
        ["'y' is 2.5 in every row: there is nothing to predict"],
    ),
    "counts": (
        lambda f: f.assign(y=(f.y - f.y.min()).round().astype(int)),
        ["'y' holds whole numbers from 0 on: for counts say --loss poisson"],
    ),
    "ratings": (
        lambda f: f.assign(y=pd.qcut(f.y, 5, labels=False) + 1),
        ["'y' holds 5 whole numbers: for classes say --loss multinomial"],
    ),
    "few counts": (
        lambda f: f.assign(y=pd.qcut(f.y, 5, labels=False)),
        ["'y' holds whole numbers from 0 on: for counts say --loss poisson, for classes say"],
    ),
    "a class mistyped": (
        lambda f: f.assign(y=np.where(f.index == 3, "yse", np.where(f.y > 2, "yes", "no"))),
        [
            "2 users with a single class",
            "1 row with y 'yse', a class of its own: mistyped for 'yes'? If so, correct such rows",
        ],
    ),
    "classes that differ in spaces": (
        lambda f: f.assign(y=np.where(f.y > 5, "no", np.where(f.y > 2, " Yes", "yes"))),
        [
            "1 user with a single class",
            "15 rows with y ' Yes', a class of its own: mistyped for 'yes'? If so, correct such",
        ],
    ),
    "nothing": (lambda f: f, []),
}


@pytest.mark.parametrize(("change", "told"), TAKEN.values(), ids=TAKEN)
def test_what_is_odd_is_fitted_all_the_same_and_counted(command, change, told):
    frame = change(people())
    words = ("--categorical", "only") if "only" in frame else ()
    words += ("--missing", "drop") if frame.isna().any(axis=None) else ()
    said = command("fit", save_csv(frame), *NO_HOLDOUT, *words, "--out", "run")
    assert said.code == 0
    lines = said.err.splitlines()
    assert len(lines) == len(told)
    for line, text in zip(lines, told, strict=True):
        assert line.startswith(f"odcl: {text}")
    assert json.loads(Path("run/report.json").read_text())["notices"] == [x[6:] for x in lines]
    missing = ("--missing", "drop") if "drop" in words else ()
    assert command("predict", "run", "table.csv", *missing).code == 0


def test_missing_values_are_filled_in_and_counted(command):
    frame = people()
    frame.loc[[3, 50], "a"] = np.nan
    frame.loc[8, "b"] = np.nan
    said = command("fit", save_csv(frame), *NO_HOLDOUT, "--missing", "mean", "--out", "run")
    assert said.err == "odcl: 3 missing values filled in (a: 2, b: 1)\n"


def test_text_needs_no_option_and_ids_are_left_out(command):
    """The models are those of --categorical and --drop, and one notice says what was done."""
    frame = people()
    n = len(frame)
    frame = frame.assign(town=np.resize(["Ulm", "Bonn", "Rom"], n), id=range(n))
    frame["name"] = [f"person {i}" for i in range(n)]
    named = ("--categorical", "town", "--drop", "id,name")
    assert command("fit", save_csv(frame), *NO_HOLDOUT, *named, "--out", "named").err == ""
    said = command("fit", "table.csv", *NO_HOLDOUT, "--out", "run")
    assert said.code == 0
    assert said.err == (
        "odcl: Columns of text are taken as categories: town. Left out: 'id' (it counts the rows), "
        f"'name' ({n} levels in {n} rows). Ask for a column by its name to keep it.\n"
    )
    assert files_below("run")["groups.csv"] == files_below("named")["groups.csv"]
    assert command("predict", "run", "table.csv") == command("predict", "named", "table.csv")
    asked = command("fit", "table.csv", *NO_HOLDOUT, "--features", "a,id,town", "--out", "asked")
    assert asked.err == "odcl: Columns of text are taken as categories: town.\n"
    assert "id" in files_below("asked")["groups.csv"].decode()


def test_decimal_commas_are_read_with_a_notice(command):
    frame = people()
    command("fit", save_csv(frame), *NO_HOLDOUT, "--out", "run")
    frame.to_csv("german.csv", sep=";", decimal=",", index=False)
    said = command("fit", "german.csv", *NO_HOLDOUT, "--out", "other")
    assert said.code == 0
    assert said.err == "odcl: german.csv has decimal commas in a, b, c, y: 3,14 is read as 3.14.\n"
    assert files_below("other")["groups.csv"] == files_below("run")["groups.csv"]


def test_quiet_says_nothing_but_errors(command):
    frame = pd.concat([people(), people()[:3]]).assign(k=1)
    said = command("fit", save_csv(frame), *NO_HOLDOUT, "--out", "run", "--quiet")
    assert (said.code, said.err) == (0, "")
    assert "2 groups" in said.out
    assert command("predict", "run", "table.csv", "--out", "p.csv", "-q") == Said(0, "", "")
    assert command("fit", "table.csv", *NO_HOLDOUT, "--out", "run", "--quiet").err.count("\n") == 1


def test_all_users_with_one_row_are_fitted_without_a_comparison(command):
    frame = people(n_users=30, n=1)
    said = command("fit", save_csv(frame), *ROLES, "--out", "run")
    assert said.code == 0
    assert "odcl: no comparison: no row can be held out" in said.err
    assert "held-out" not in said.out


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
@pytest.mark.parametrize("rows", [(1, 1), (1, 1, 1), (2, 2), (1, 2), (12, 1)], ids=str)
def test_a_handful_of_rows_is_fitted(command, rows, loss):
    """As few rows as parameters, of all users together, tell nothing of the noise."""
    frame = pd.DataFrame({"user": np.repeat(np.arange(len(rows)), rows)})
    x = np.random.default_rng(0).normal(size=len(frame))
    y = np.arange(len(frame)) % 2 if loss == "logistic" else 2 * x + np.arange(len(frame)) % 3
    save_csv(frame.assign(x=x, y=y))
    said = command("fit", "table.csv", *ROLES, "--loss", loss, "--out", "run")
    assert said.code == 0, said.err
    assert said.out.startswith(f"{len(rows)} users, {sum(rows)} rows")
    words = () if loss == "logistic" else ("--interval", ".9")
    assert command("predict", "run", "table.csv", *words, "--out", "p.csv").code == 0
    found = pd.read_csv("p.csv")
    assert np.isfinite(found.drop(columns="user").astype(float)).all(axis=None)
    if rows == (1, 1) and loss == "squared":  # the line through both of them
        assert_allclose(found.prediction, y, rtol=1e-12)


def test_a_class_with_one_row_is_never_held_out_as_a_whole(command):
    for row in range(5):  # with half of the rows held out, some are
        frame = people(n_users=4, n=5).assign(y="no")
        frame.loc[row, "y"] = "yes"
        words = ("--holdout", "0.5", "--out", "run", "--force")
        assert command("fit", save_csv(frame), *ROLES, *words).code == 0


@pytest.mark.parametrize(("how", "held"), [("last", 3), ("last:0.5", 7)])
def test_the_last_rows_by_time_are_held_out(command, how, held):
    """Rows of the last days are far off the models: held out, they are an error of 1000."""
    frame = people()
    frame["day"] = frame.groupby("user").cumcount()
    frame["y"] += 1000.0 * (frame.day >= 14 - held)
    frame["day"] = (pd.Timestamp("2024-02-26") + pd.to_timedelta(frame.day, "D")).dt.date
    frame = frame.sample(frac=1.0, random_state=0)
    words = ("--holdout", how, "--time", "day", "--out", "run")
    assert command("fit", save_csv(frame), *ROLES, *words).code == 0
    report = json.loads(Path("run/report.json").read_text())
    assert report["holdout"] == ("last:0.2" if how == "last" else how)
    assert report["comparison"]["rows_held_out"] == 8 * held
    assert min(row["mean"] for row in report["comparison"]["table"]) > 900
    assert json.loads(Path("run/schema.json").read_text())["features"] == ["a", "b", "c"]
    assert command("predict", "run", save_csv(people(), "without-days.csv")).code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--time", "c"), "--holdout last and --time COLUMN go together"),
        (("--time", "c", "--holdout", "0.3"), "--holdout last and --time COLUMN go together"),
        (("--holdout", "last"), "--holdout last and --time COLUMN go together"),
        (("--holdout", "last:2", "--time", "c"), "neither a share of the rows"),
        (("--holdout", "lastly", "--time", "c"), "neither a share of the rows"),
        (("--holdout", "last", "--time", "day"), "'day' is not in the table"),
        (("--holdout", "last", "--time", "user"), "'user' is the user, and cannot order"),
    ],
)
def test_a_time_that_cannot_be_used_is_refused(command, words, told):
    said = command("fit", save_csv(people()), *ROLES, "--out", "run", *words)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert said.err.count("\n") == 1


def test_a_shuffled_table_gives_the_same_models_and_the_same_rows_held_out(command):
    frame = people(n=20, seed=3)
    first = command("fit", save_csv(frame), *ROLES, "--out", "run")
    expected = ODCLRegressor.load("run")
    for seed in range(3):
        other = save_csv(frame.sample(frac=1.0, random_state=seed), "other.csv")
        said = command("fit", other, *ROLES, "--out", "other", "--force")
        assert said.out.replace("other", "run") == first.out
        model = ODCLRegressor.load("other")
        assert_array_equal(model.users_, expected.users_)
        assert_array_equal(model.labels_, expected.labels_)
        # Sums over a user's rows in another order.
        assert_allclose(models_of(model), models_of(expected), rtol=1e-11, atol=1e-12)


def test_two_users_are_enough(command):
    assert command("fit", save_csv(people(n_users=2)), *ROLES, "--out", "run").code == 0
    assert command("fit", "table.csv", *ROLES, "--paper", "--out", "other").code == 0


def test_a_warning_becomes_a_notice_of_one_line(command, monkeypatch):
    def warn(*_, **__):
        warnings.warn("two\nlines", UserWarning, stacklevel=2)
        warnings.warn("overflow encountered in matmul", RuntimeWarning, stacklevel=1)
        raise ValueError("and an error")

    monkeypatch.setattr("odcl.runs.fit.read_source", warn)
    said = command("fit", save_csv(people()), *NO_HOLDOUT, "--out", "run")
    assert said.err == "odcl: two lines\nodcl: and an error\n"


# -- ids and names ---------------------------------------------------------------------------------

IDS = {
    "text": ["u0", "u1", "u2", "u3"],
    "integers": [3, 1, 20, 100],
    "leading zeros": ["007", "7", "07", "0"],
    "mixed": ["7", "u7", "7.5", "-1"],
    "odd text": ["a,b", 'say "no"', "two\nlines", "Zürich 北京"],
    "formulas": ["=1+1", "'=1+1", "-x", "@y"],
    "large": [2**53, 2**53 + 1, 2**60, 5],
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_of_every_kind_come_back_as_they_were(command, ids, kind):
    frame = people(n_users=4)
    owner = frame.user.str[1:].astype(int)
    given = pd.Series(ids)
    frame["user"] = given[owner].to_numpy()
    path = save_csv(frame) if kind == "csv" else Path("table.parquet")
    frame.to_parquet("table.parquet")
    assert command("fit", path, *NO_HOLDOUT, "--out", "run").code == 0
    assigned = read_table("run/assignment.csv", text=("user",))["user"].to_pylist()
    assert sorted(map(str, assigned)) == sorted(map(str, ids))
    said = command("predict", "run", path, "--out", f"p.{kind}")
    assert said.code == 0
    predicted = read_table(f"p.{kind}", text=("user",))["user"].to_pylist()
    assert predicted == frame.user.tolist()


def test_columns_called_as_ours_keep_their_names_and_ours_give_way(command):
    frame = people().rename(columns={"user": "group", "a": "users", "b": "rows", "c": "row"})
    roles = ("--user", "group", "--target", "y", "--holdout", "0")
    assert command("fit", save_csv(frame), *roles, "--out", "run").code == 0
    assignment = pd.read_csv("run/assignment.csv")
    assert assignment.columns.tolist()[:3] == ["group", "odcl_group", "rows"]
    assert assignment.group.tolist() == [f"u{i}" for i in range(8)]
    groups = pd.read_csv("run/groups.csv")
    assert groups.columns[:2].tolist() == ["group", "odcl_users"]
    assert_allclose(groups[["users", "rows", "row"]], [[3, -2, 1], [-3, 2, 4]], atol=0.3)
    newcomer = frame[frame.group == "u0"].assign(group="new")
    assert command("assign", "run", save_csv(newcomer, "new.csv"), "--add").code == 0
    assert pd.read_csv("run/assignment.csv").tail(1).to_numpy().tolist()[0][:3] == ["new", 0, 14]
    frame = people().rename(columns={"user": "row", "a": "prediction"})
    command(
        "fit", save_csv(frame), "--user", "row", "--target", "y", "--out", "run2", "--holdout", "0"
    )
    header = command("predict", "run2", "table.csv").out.splitlines()[0]
    assert header == "row,odcl_row,prediction"


# -- what comes out --------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_output_and_the_same_files(command):
    save_csv(people_in_classes(3))
    first = command("fit", "table.csv", *ROLES, "--out", "run", "--seed", "5")
    before = files_below("run")
    second = command("fit", "table.csv", *ROLES, "--out", "run", "--seed", "5", "--force")
    assert first == second
    assert files_below("run") == before
    other = command("fit", "table.csv", *ROLES, "--out", "run", "--seed", "6", "--force")
    assert other.out != first.out


def test_a_pipe_gets_neither_colours_nor_control_characters(command):
    frame = people(n_users=3)
    frame["user"] = frame.user.map({"u0": "\x1b[31mred", "u1": "bell\a", "u2": "u2" * 40})
    save_csv(frame)
    for words in (("fit", "table.csv", *ROLES, "--out", "run"), ("fit", "--help")):
        said = command(*words)
        assert not CONTROL.search(said.out + said.err)
        assert max(map(len, said.out.splitlines())) < 200


@pytest.mark.parametrize("factor", [1e6, 1e-6, 2.0**40])
def test_the_unit_of_a_column_changes_neither_groups_nor_predictions(command, factor):
    """Features are standardised first; powers of two change not even a bit of the models."""
    frame = people(seed=4)
    command("fit", save_csv(frame), *NO_HOLDOUT, "--out", "run")
    command(
        "fit",
        save_csv(frame.assign(b=frame.b * factor), "scaled.csv"),
        *NO_HOLDOUT,
        "--out",
        "scaled",
    )
    assert files_below("run")["assignment.csv"] == files_below("scaled")["assignment.csv"]
    command("predict", "run", "table.csv", "--out", "p.csv")
    command("predict", "scaled", "scaled.csv", "--out", "q.csv")
    p, q = (read_table(name).to_pandas() for name in ("p.csv", "q.csv"))
    # The sums that give means and scales are rounded in other places: some hundreds of ulps.
    assert_allclose(p.prediction, q.prediction, rtol=1e-12, atol=1e-12)
