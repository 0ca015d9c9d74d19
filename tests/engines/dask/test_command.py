"""``odcl fit`` and ``odcl predict`` of tables in pieces, and what is left when they fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose

from odcl import ODCLRegressor
from odcl.data.federation import id_keys
from odcl.data.tables import write_table
from odcl.engines.dask import cluster as at_work
from odcl.engines.dask import table as tables
from odcl.runs import fit as fitting
from odcl.runs import pieces
from odcl.runs import settings as run_settings
from tests.engines.dask.tables import NAMED, cut, fitted_pieces, sales

PLACES = pytest.mark.parametrize("words", [(), ("--engine", "dask")], ids=["memory", "pieces"])


def read(folder):
    return pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("*.parquet")))


def test_fit_and_predict_in_pieces_and_in_memory_agree(command, fit_once, tmp_path, table, engine):
    fit_once(table, *NAMED, *engine, "--holdout", 0)
    assert command("predict", "run", table, *engine, "--out", "answers").code == 0
    whole = command("fit", table, *NAMED, "--out", "whole", "--holdout", 0)
    assert whole.code == 0
    assert command("predict", "whole", table, "--out", "whole.parquet").code == 0
    mine, theirs = read(tmp_path / "answers"), pq.read_table(tmp_path / "whole.parquet")
    assert_allclose(mine["prediction"].to_numpy(), theirs["prediction"].to_numpy(), rtol=1e-8)
    assert mine["store"].to_pylist() == theirs["store"].to_pylist()
    assert mine["file"].to_pylist()[99:101] == ["part-000.parquet", "part-001.parquet"]
    assert mine["row"].to_pylist()[99:101] == [100, 1]
    # A run of pieces serves small tables in memory, and pieces are served by any run.
    some = sales(text=True).slice(0, 40)
    write_table(tmp_path / "some.csv", {n: some[n].to_numpy() for n in some.column_names})
    assert command("predict", "run", "some.csv", "--out", "some.parquet").code == 0
    found = pq.read_table(tmp_path / "some.parquet")["prediction"].to_numpy()
    assert_allclose(found, theirs["prediction"].to_numpy()[:40], rtol=1e-8)
    assert command("predict", "whole", table, *engine, "--out", "direct").code == 0
    assert_allclose(read(tmp_path / "direct")["prediction"].to_numpy(), theirs["prediction"])
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith(".")}
    assert not left


def test_force_replaces_what_odcl_wrote_and_nothing_beside_it(command, tmp_path, table, engine):
    fit = ("fit", table, *NAMED, *engine, "--holdout", 0, "--out", "run", "--force")
    predict = ("predict", "run", table, *engine, "--out", "answers", "--force")
    for _ in range(2):
        assert command(*fit).code == command(*predict).code == 0
    (tmp_path / "run/users/.DS_Store").touch()
    users = sorted((tmp_path / "run/users").glob("part-*"))
    for words, place, foreign in (
        (fit, "run", "users/notes.txt"),
        (fit, "run", f"users/{users[0].name}/mine"),
        (predict, "answers", "notes.txt"),
    ):
        mine = tmp_path / place / foreign
        if "part-" in foreign:
            mine.parent.unlink()
            mine.parent.mkdir()
        mine.touch()
        said = command(*words)
        assert (said.code, said.out) == (2, "")
        shown = foreign.removesuffix("/mine")
        assert f"holds what odcl did not write (such as {shown!r})" in said.err
        assert mine.exists()
        mine.unlink()


def test_a_run_of_pieces_assigns_and_diagnoses(command, fit_once, tmp_path, table, engine):
    fit_once(table, *NAMED, *engine, "--holdout", 0)
    new = sales(m=1, n=8, text=True).set_column(0, "store", pa.array(["new one"] * 8))
    write_table(tmp_path / "new.csv", {n: new[n].to_numpy() for n in new.column_names})
    assert command("assign", "run", "new.csv", "--add").code == 0
    assert command("predict", "run", "new.csv").code == 0
    assert command("predict", "run", table, "--out", "all.parquet").code == 0
    assert command("diagnose", "run").code == 0


def test_users_who_were_added_are_predicted_in_pieces_as_well(
    command, fit_once, tmp_path, table, engine
):
    """Two of them beside all others, in a table in pieces: every answer is that in memory."""
    fit_once(table, *NAMED, *engine, "--holdout", 0)
    new = sales(m=2, n=8, seed=1, text=True)
    owner = [user.replace("store", "new") for user in new["store"].to_pylist()]
    new = new.set_column(0, "store", pa.array(owner))
    write_table(tmp_path / "new.csv", {n: new[n].to_numpy() for n in new.column_names})
    assert command("assign", "run", "new.csv", "--add").code == 0
    place = cut(pa.concat_tables([new, sales(text=True)]), tmp_path / "all", [9, 200])
    assert command("predict", "run", place, *engine, "--out", "answers").code == 0
    assert command("predict", "run", place, "--out", "all.parquet").code == 0
    mine, theirs = read(tmp_path / "answers"), pq.read_table(tmp_path / "all.parquet")
    assert mine["store"].to_pylist()[:16] == owner
    assert_allclose(mine["prediction"].to_numpy(), theirs["prediction"].to_numpy(), rtol=1e-12)
    model = ODCLRegressor.load("run")
    own = model.predict(new.drop_columns(["sales"]).to_pandas())  # held by the estimator itself
    assert_allclose(mine["prediction"].to_numpy()[:16], own, rtol=1e-12)


def test_a_number_that_no_file_knows_is_a_new_user(command, fit_once, tmp_path, engine):
    place = cut(sales(), tmp_path / "numbers", [100])
    fit_once(place, *NAMED, *engine, "--holdout", 0)
    new = sales(m=1, n=8).set_column(0, "store", pa.array([1000] * 8))
    write_table(tmp_path / "new.csv", {n: new[n].to_numpy() for n in new.column_names})
    said = command("predict", "run", "new.csv")
    assert said.code == 2
    assert "not in the fit (such as 1000)" in said.err
    assert command("assign", "run", "new.csv", "--add").code == 0
    assert command("predict", "run", "new.csv").code == 0


@pytest.mark.parametrize("words", [("--clusters", "3"), ("--paper",)], ids=["3", "paper"])
def test_a_run_of_another_clusterer_serves_as_any(
    command, fit_once, tmp_path, table, engine, words
):
    fit_once(table, *NAMED, *engine, *words, "--holdout", 0)
    fit_once(table, *NAMED, *words, "--holdout", 0, out="whole")
    assert command("predict", "run", table, *engine, "--out", "answers").code == 0
    assert command("predict", "whole", table, "--out", "whole.parquet").code == 0
    mine, theirs = read(tmp_path / "answers"), pq.read_table(tmp_path / "whole.parquet")
    assert_allclose(mine["prediction"].to_numpy(), theirs["prediction"].to_numpy(), rtol=1e-8)
    new = sales(m=1, n=8, text=True).set_column(0, "store", pa.array(["new one"] * 8))
    write_table(tmp_path / "new.csv", {n: new[n].to_numpy() for n in new.column_names})
    placed = [command("assign", run, "new.csv", "--add") for run in ("run", "whole")]
    assert [one.code for one in placed] == [0, 0]
    mine, theirs = (one.out.splitlines()[1].split(",")[:2] for one in placed)
    assert mine == theirs  # user and group
    assert command("predict", "run", "new.csv").code == 0
    assert command("predict", "run", table, *engine, "--out", "again").code == 0
    assert command("diagnose", "run").code == 0


def test_users_models_are_a_table_in_its_own_units(command, fit_once, tmp_path, table, engine):
    fit_once(table, *NAMED, *engine, "--holdout", 0)
    users = read(tmp_path / "run" / "users")
    assert users.num_rows == 60
    rows = sales(text=True)
    at = {user: i for i, user in enumerate(users["user"].to_pylist())}
    order = np.array([at[user] for user in rows["store"].to_pylist()])
    coef = {name: users[name].to_numpy()[order] for name in users.column_names if "coef" in name}
    own = coef["coef_(intercept)"] + sum(
        coef[f"coef_{name}"] * rows[name].to_numpy() for name in ("price", "ads")
    )
    kinds = np.array(rows["kind"].to_pylist())
    own += sum(
        coef[name] * (kinds == name.removeprefix("coef_kind="))
        for name in coef
        if name.startswith("coef_kind=")
    )
    assert command("predict", "run", table, *engine, "--out", "answers").code == 0
    assert_allclose(own, read(tmp_path / "answers")["prediction"].to_numpy(), rtol=1e-9)


def test_a_file_of_users_that_was_cut_is_refused(command, fit_once, tmp_path, table, engine):
    fit_once(table, *NAMED, *engine, "--holdout", 0)
    for file in (tmp_path / "run" / "users").iterdir():
        file.write_bytes(file.read_bytes()[:-10])
    said = command("predict", "run", table, *engine, "--out", "answers")
    assert said.code == 2
    assert "damaged or was changed" in said.err
    assert not (tmp_path / "answers").exists()


def test_a_file_of_users_with_another_byte_is_refused(command, fit_once, tmp_path, table, engine):
    """It has its size, and Parquet would read it: the digest tells."""
    fit_once(table, *NAMED, *engine, "--holdout", 0)
    for file in (tmp_path / "run" / "users").iterdir():
        content = bytearray(file.read_bytes())
        content[len(content) // 4] ^= 1
        file.write_bytes(content)
    said = command("predict", "run", table, *engine, "--out", "answers")
    assert said.code == 2
    assert "is not the file that was written" in said.err
    assert not (tmp_path / "answers").exists()
    with pytest.raises(ValueError, match="is not the file that was written"):
        ODCLRegressor.load("run").save("copy")
    assert not (tmp_path / "copy").exists()


def comparison_of(run):
    return json.loads((run / "report.json").read_text())["comparison"]


def test_the_comparison_of_pieces_is_that_in_memory(command, tmp_path, table, engine, monkeypatch):
    """On all users, and on some of them: drawn by their ids, they are the same ones."""
    for most in (2000, 25):
        monkeypatch.setattr(fitting, "COMPARED", most)
        said = command("fit", table, *NAMED, *engine, "--holdout", 0.3, "--out", f"run{most}")
        whole = command("fit", table, *NAMED, "--holdout", 0.3, "--out", f"whole{most}")
        assert (said.code, whole.code) == (0, 0)
        mine, theirs = (comparison_of(tmp_path / f"{name}{most}") for name in ("run", "whole"))
        assert [row["method"] for row in mine["table"]] == [r["method"] for r in theirs["table"]]
        for a, b in zip(mine.pop("table"), theirs.pop("table"), strict=True):
            for name in ("mean", "median", "worst"):
                assert_allclose(a[name], b[name], rtol=1e-8)
        assert mine == theirs
        assert mine["users"] == min(most, 60)
        lines = [line for line in whole.out.splitlines() if "odcl" in line][:1]
        assert lines[0] in said.out


def test_classes_in_pieces_have_the_log_loss_and_the_words_of_memory(command, tmp_path, engine):
    place = cut(sales(m=30, n=12, loss="logistic", text=True), tmp_path / "classes", [200])
    outs = []
    for run, words in (("run", engine), ("whole", ())):
        said = command("fit", place, *NAMED, *words, "--out", run)
        table = comparison_of(tmp_path / run)
        found = {row["method"]: row for row in table["log_loss"]}
        assert list(found) == [row["method"] for row in table["table"]]
        line = next(line for line in said.out.splitlines() if line.startswith("odcl "))
        assert line.split()[4] == f"{found['odcl']['mean']:.3f}"
        outs.append(said.out.partition("accuracy on ")[2].partition("\n\n")[0])
    assert outs[0] == outs[1]
    assert "accuracy: mean user  median  worst  log-loss: mean user" in outs[0]


def test_a_very_long_user_makes_the_comparison_one_of_fewer(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MOST_BYTES", 8 * 5 * 8 * 10)  # ten users of eight rows
    place = cut(sales(m=12, text=True), tmp_path / "sales", [50])
    found, table = fitted_pieces(place, tmp_path, cluster=cluster, buckets=40)  # many without users
    ids = np.unique(sales(m=12, text=True)["store"].to_numpy(zero_copy_only=False).astype(str))
    by_key = ids[np.argsort(id_keys(ids))].tolist()
    for most, drawn in ((2000, 10), (4, 4)):
        few = found.uploads.sample.first(most)
        rows = tables.rows_of(table, found.plan.schema, few, cluster)
        assert set(rows["store"].to_pylist()) == set(by_key[:drawn])  # from all files
        assert rows.num_rows == 8 * drawn
    monkeypatch.setattr(tables, "MOST_BYTES", 1)  # the first one comes, however long it is
    rows = tables.rows_of(table, found.plan.schema, found.uploads.sample, cluster)
    assert rows["store"].to_pylist() == by_key[:1] * 8


def test_no_comparison_is_made_where_none_is_asked_for(command, fit_once, tmp_path, table, engine):
    fit_once(table, *NAMED, *engine, "--holdout", 0)
    assert comparison_of(tmp_path / "run") is None


def test_the_last_rows_of_users_are_held_out_as_in_memory(command, fit_once, tmp_path, engine):
    """Days are text, in no order, and no feature; they are in one file and the other."""
    rows = sales(text=True)
    days = np.random.default_rng(1).permutation(rows.num_rows)
    rows = rows.append_column("day", pa.array([f"2024-{d:03d}" for d in days]))
    place = cut(rows, tmp_path / "days", [100, 250])
    last = ("--holdout", "last:0.3", "--time", "day")
    fit_once(place, *NAMED, *engine, *last)
    fit_once(place, *NAMED, *last, out="whole")
    mine, theirs = (comparison_of(tmp_path / name) for name in ("run", "whole"))
    for a, b in zip(mine["table"], theirs["table"], strict=True):
        assert_allclose(a["mean"], b["mean"], rtol=1e-8)
    for run in ("run", "whole"):
        assert "day" not in ODCLRegressor.load(run).feature_names_
    said = command("fit", place, *NAMED, *engine, *last[:3], "store", "--out", "no")
    assert said.code == 2
    assert "'store' is the user" in said.err


def test_a_row_without_a_time_is_named_with_its_file(command, tmp_path, table, engine):
    rows = sales(text=True)
    day = pa.array([None if i == 260 else i for i in range(rows.num_rows)])
    place = cut(rows.append_column("day", day), tmp_path / "days", [100, 250])
    last = ("--holdout", "last", "--time", "day")
    said = command("fit", place, *NAMED, *engine, *last, "--out", "run")
    assert said.code == 2
    assert "'day' orders the rows, and has no value in row 11 of part-002.parquet" in said.err
    assert not (tmp_path / "run").exists()


@PLACES
@pytest.mark.parametrize("sales", [[1.0, 2.5, 0.0], ["a", "b", "c"]], ids=["number", "class"])
def test_two_users_of_one_row_each_are_fitted(command, tmp_path, sales, words):
    """So are one and two rows, of which one is held out."""
    for n in (2, 3):
        few = {"store": [0, 1, 1], "price": [1.5, 0.3, 2.0], "sales": sales}
        pq.write_table(pa.table(few).slice(0, n), tmp_path / "few.parquet")
        said = command("fit", "few.parquet", *NAMED[:4], *words, "--out", "run", "--force")
        assert said.code == 0, said.err
        assert ("no comparison" in said.err) == (n == 2 or sales[0] == "a")


def test_a_diagnosis_says_whom_it_looked_at(command, tmp_path, table, engine, few_examples):
    assert command("fit", table, *NAMED, *engine, "--holdout", 0, "--out", "run").code == 0
    said = command("diagnose", "run")
    assert said.code == 0
    assert "Diagnosed on 40 of 60 users, drawn by their ids." in said.out
    assert "the diagnosis is of the 40 of 60 users whose uploads the run keeps" in said.err
    again = command("diagnose", "run", table)
    assert again.code == 0
    assert "Diagnosed on" not in again.out
    assert "not in the run" not in again.err  # all 60 are, most of them in its files


def test_users_in_files_are_known_to_whoever_adds_or_updates(
    command, tmp_path, table, engine, few_examples
):
    assert command("fit", table, *NAMED, *engine, "--holdout", 0, "--out", "run").code == 0
    held = set(ODCLRegressor.load("run").users_.tolist())
    rows = sales(text=True)
    away = pa.array([user not in held for user in rows["store"].to_pylist()])
    some = rows.filter(away)
    write_table(tmp_path / "away.csv", {n: some[n].to_numpy() for n in some.column_names})
    said = command("assign", "run", "away.csv", "--add")
    assert said.code == 2
    assert "20 users of these (such as" in said.err
    said = command("update", "run", "away.csv")
    assert said.code == 2
    assert "20 users of these" in said.err


def test_an_update_changes_predictions_or_is_refused(command, fit_once, tmp_path, table, engine):
    """Models of the fit are in files, which stay; those of users who came later can change."""
    fit_once(table, *NAMED, *engine, "--holdout", 0)
    some = sales(m=2, n=8, seed=1, text=True)  # the estimator holds all users, these as well
    write_table(tmp_path / "old.csv", {n: some[n].to_numpy() for n in some.column_names})
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    for more in ((), ("--all-rows",)):
        said = command("update", "run", "old.csv", *more)
        assert said.code == 2
        assert "2 users of these (such as 'store 0') cannot be updated" in said.err
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    own = some.slice(0, 1)
    with pytest.raises(ValueError, match=r"lie in files.*Fit again"):
        ODCLRegressor.load("run").update_user(own["store"][0].as_py(), own.to_pandas(), [1.0])
    new = some.set_column(0, "store", pa.array(["new one"] * 16))
    write_table(tmp_path / "new.csv", {n: new[n].to_numpy() for n in new.column_names})
    assert command("assign", "run", "new.csv", "--add").code == 0
    was = command("predict", "run", "new.csv").out
    assert command("update", "run", "new.csv", "--again").code == 0
    assert command("predict", "run", "new.csv").out != was


def test_unknown_users_are_named_or_pooled(command, fit_once, tmp_path, table, engine):
    fit_once(table, *NAMED, *engine, "--holdout", 0)
    other = sales(m=2, n=5)
    cut(other.set_column(0, "store", pa.array(["x", "y"] * 5)), tmp_path / "new", [3])
    said = command("predict", "run", "new", *engine, "--out", "answers")
    assert said.code == 2
    assert "not in the fit" in said.err
    assert "--unknown pooled" in said.err
    assert command("predict", "run", "new", *engine, "--unknown", "pooled", "--out", "a").code == 0
    assert read(tmp_path / "a").num_rows == 10


@PLACES
def test_a_bad_row_is_named_and_leaves_nothing(command, tmp_path, table, words):
    before = set(tmp_path.iterdir())
    assert command("fit", table, *NAMED, *words, "--holdout", 0, "--out", "fine").code == 0
    last = sorted(table.iterdir())[-1]
    rows = pq.read_table(last)
    price = rows["price"].to_pylist()
    price[4] = None
    pq.write_table(rows.set_column(1, "price", pa.array(price)), last)
    said = command("fit", table, *NAMED, *words, "--holdout", 0, "--out", "run")
    assert said.code == 2
    assert f"'price' has no value in row 5 of {last.name}" in said.err
    out = "answers" if words else "answers.parquet"
    said = command("predict", "fine", table, *words, "--out", out)
    assert f"'price' has no value in row 5 of {last.name}" in said.err
    assert set(tmp_path.iterdir()) == {*before, tmp_path / "fine"}


@PLACES
def test_types_and_columns_of_an_empty_file_do_not_count(command, tmp_path, table, words):
    """pandas writes text columns without a value as numbers."""
    fit = ("fit", table, *NAMED, *words, "--holdout", 0, "--out")
    assert command(*fit, "before").code == 0
    for name in ("a", "z"):  # the first file of the folder, and the last
        empty = pa.table({"store": pa.array([], pa.float64()), "more": pa.array([], pa.null())})
        pq.write_table(empty, table / f"{name}.parquet")
    assert command(*fit, "run").code == 0
    read = [(tmp_path / run / "groups.csv").read_bytes() for run in ("before", "run")]
    assert read[0] == read[1]
    out = "answers" if words else "answers.parquet"
    assert command("predict", "run", table, *words, "--out", out).code == 0


@pytest.fixture
def odd_file(tmp_path, table):
    """A folder whose second file has text for prices, a column more, and lacks one."""
    for file in sorted(table.iterdir()):
        rows = pq.read_table(file)
        whole = pa.array(np.arange(rows.num_rows) % 7)
        changed = rows.append_column("day", whole)
        if file.name == "part-001.parquet":
            text = pa.array([f"{price} EUR" for price in rows["price"].to_pylist()])
            changed = rows.set_column(1, "price", text).append_column("extra", whole)
        elif file.name == "part-002.parquet":
            changed = changed.set_column(1, "price", whole)
        pq.write_table(changed, file)
    return table


@PLACES
def test_the_odd_file_is_named_with_what_to_do(command, odd_file, words):
    fit = ("fit", odd_file, *NAMED, *words, "--holdout", 0, "--out", "run")
    said = command(*fit)
    assert said.code == 2
    assert "part-001.parquet lacks day and adds extra, compared with part-000.parquet" in said.err
    assert "Mend the file, or do without the columns: --drop day,extra." in said.err
    said = command(*fit, "--drop", "day,extra")
    assert said.code == 2
    told = "Column 'price' is string in part-001.parquet, and double or int64 in the other files"
    assert told in said.err
    assert "do without the column: --drop price." in said.err
    said = command(*fit, "--features", "price,ads,kind")
    assert said.err.endswith("Mend the file.\n")


@PLACES
@pytest.mark.parametrize("columns", [("--drop", "price,day,extra"), ("--features", "ads,kind")])
def test_a_bad_column_that_nobody_uses_does_not_matter(command, odd_file, words, columns):
    fit = ("fit", odd_file, *NAMED, *words, "--holdout", 0, "--out", "run")
    assert command(*fit, *columns).code == 0
    out = "answers" if words else "answers.parquet"
    assert command("predict", "run", odd_file, *words, "--out", out).code == 0
    said = command(*fit, "--force", "--drop", "pirce")
    assert "did you mean 'price'?" in said.err


def test_what_is_odd_is_said_as_in_memory(command, tmp_path, table, engine):
    """A constant column in all pieces, one in a single piece, users with one row, strangers."""
    for i, file in enumerate(sorted(table.iterdir())):
        rows = pq.read_table(file)
        n, here = rows.num_rows, 2 if i == 1 else 1  # files of 100, 150 and 230 rows
        rows = rows.append_column("year", pa.array([2024] * n))
        rows = rows.append_column("shop", pa.array([here] * n))
        if i == 2:
            rows = pa.concat_tables([rows, rows.slice(0, 1).set_column(0, "store", [["lonely"]])])
        pq.write_table(rows, file)
    fit = ("fit", table, *NAMED, "--holdout", 0, "--out")
    whole, mine = command(*fit, "whole"), command(*fit, "run", *engine)
    assert (whole.code, mine.code) == (0, 0)
    assert "1 constant column (year)" in mine.err
    assert "1 user with a single row" in mine.err
    assert set(whole.err.splitlines()) <= set(mine.err.splitlines())
    for file in sorted(table.iterdir())[:2]:
        rows = pq.read_table(file)
        pq.write_table(
            rows.set_column(
                0, "store", pa.array(["new", "newer"] * 25 + ["store 1"] * (rows.num_rows - 50))
            ),
            file,
        )
    for run in ("whole", "run"):
        asked = ("predict", run, table, "--unknown", "pooled", "--out", f"answers of {run}")
        assert "2 users not in the fit, predicted as average users" in command(*asked, *engine).err


def test_a_scheduler_that_is_not_there_is_said(command, table, monkeypatch):
    monkeypatch.setattr(at_work, "PATIENCE", "200ms")
    gone = ("--engine", "dask", "--scheduler", "tcp://127.0.0.1:1")
    said = command("fit", table, *NAMED, *gone, "--out", "run")
    assert said.code == 2
    assert "No Dask scheduler answers" in said.err


def test_a_small_table_starts_no_workers(command, tmp_path, table, monkeypatch):
    def started(*given, **more):
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(pieces, "local_cluster", started)
    said = command("fit", table, *NAMED, "--engine", "dask", "--holdout", 0, "--out", "run")
    assert said.code == 0
    assert "no workers are started" in said.err
    assert command("predict", "run", table, "--engine", "dask", "--out", "answers").code == 0
    assert command("predict", "run", table, "--out", "whole.parquet").code == 0
    mine, theirs = read(tmp_path / "answers"), pq.read_table(tmp_path / "whole.parquet")
    assert_allclose(mine["prediction"].to_numpy(), theirs["prediction"].to_numpy(), rtol=1e-12)
    with pytest.raises(AssertionError, match="a cluster was started"):
        command("fit", table, *NAMED, "--engine", "dask", "--workers", 1, "--out", "other")
    monkeypatch.setattr(pieces, "SMALL", 10)
    with pytest.raises(AssertionError, match="a cluster was started"):
        command("fit", table, *NAMED, "--engine", "dask", "--out", "other")


def test_a_table_beyond_a_share_of_memory_goes_in_pieces(command, table, monkeypatch):
    monkeypatch.setattr(run_settings, "MEMORY_SHARE", 1e-9)
    asked: list[object] = []

    def workplace(engine, *_):
        asked.append(engine.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(pieces, "workplace", workplace)
    said = command("fit", table, *NAMED, "--out", "run")
    assert asked == ["auto"]
    assert "fitted in pieces" in said.err
    assert command("fit", table, *NAMED, "--engine", "memory", "--out", "run").code == 0


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (("sales", "--scheduler", "tcp://127.0.0.1:1"), "--scheduler"),
        (("memory://sales",), "an address"),
    ],
    ids=["scheduler", "address"],
)
def test_memory_has_no_scheduler_and_reads_no_address(command, where, what):
    said = command("fit", *where, *NAMED, "--engine", "memory", "--out", "run")
    assert said.code == 2
    assert f"--engine memory and {what} do not go together" in said.err


def left_of(group):
    """Processes of a group that still run."""
    import psutil

    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(one.pid) == group and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one.pid)
    return found


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("when", ["start", "work"])
def test_a_fit_that_is_interrupted_leaves_nothing(tmp_path, when):
    """Its own cluster ends with it as well; as from a terminal, all processes get the signal."""
    cut(sales(m=2500, n=5), tmp_path / "sales", [6000])
    words = ("fit", "sales", *NAMED, "--engine", "dask", "--workers", "1", "--out", "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "odcl", *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        deadline = time.monotonic() + 60
        while not (
            len(left_of(process.pid)) > 2  # the command, its tracker of resources, a worker
            if when == "start"
            else list(tmp_path.glob(".odcl-work-*/uploads-*.parquet"))
        ):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 130, said.decode()
    lines = [line for line in said.decode().splitlines() if "1 worker on this" not in line]
    assert lines == ["odcl: interrupted."]
    while left_of(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [path.name for path in tmp_path.iterdir()] == ["sales"]
