"""`odcl predict` gives what the saved model gives, and refuses what it cannot use."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from odcl import ODCLClassifier, ODCLRegressor
from odcl.data.source import read_table
from tests.helpers import (
    NO_HOLDOUT,
    Said,
    features_of,
    files_below,
    people,
    people_in_classes,
    save_csv,
)


def test_predict_gives_exactly_what_the_loaded_estimator_gives(command, fit_once):
    frame = people()
    fit_once(save_csv(frame), *NO_HOLDOUT)
    expected = ODCLRegressor.load("run").predict(features_of(frame), users=frame.user)
    said = command("predict", "run", "table.csv")
    assert said.err == ""
    Path("stdout.csv").write_text(said.out)
    for name in ("p.csv", "p.parquet", "p.tsv"):
        told = command("predict", "run", "table.csv", "--out", name)
        assert told == Said(0, "", f"odcl: 112 rows written to {name}\n")
    for name in ("stdout.csv", "p.csv", "p.parquet", "p.tsv"):
        answer = read_table(name)
        assert answer.column_names == ["user", "row", "prediction"]
        assert_array_equal(answer["prediction"].to_numpy(), expected)
        assert answer["row"].to_pylist() == list(range(1, 113))
    assert Path("p.csv").read_text() == said.out


def test_probabilities_are_those_of_the_loaded_classifier(command, fit_once):
    frame = people_in_classes(3)
    fit_once(save_csv(frame), *NO_HOLDOUT)
    model = ODCLClassifier.load("run")
    command("predict", "run", "table.csv", "--out", "p.csv")
    answer = read_table("p.csv")
    assert answer.column_names[3:] == ["p(low)", "p(mid)", "p(top)"]
    p = np.column_stack([answer[name].to_numpy() for name in answer.column_names[3:]])
    assert_array_equal(p, model.predict_proba(features_of(frame), users=frame.user))
    names = np.array(["low", "mid", "top"])
    assert_array_equal(answer["prediction"].to_pylist(), names[p.argmax(axis=1)])


def test_predict_needs_no_target_and_ignores_order_and_other_columns(command, fit_once):
    frame = people()
    fit_once(save_csv(frame), *NO_HOLDOUT)
    expected = command("predict", "run", "table.csv")
    frame = frame.drop(columns="y").assign(extra="x")[["c", "extra", "user", "b", "a"]]
    assert command("predict", "run", save_csv(frame, "other.csv")) == expected


def test_a_run_can_be_moved(command, fit_once):
    fit_once(save_csv(people()), *NO_HOLDOUT)
    expected = command("predict", "run", "table.csv")
    Path("elsewhere").mkdir()
    shutil.move("run", "elsewhere/moved")
    assert command("predict", "elsewhere/moved", "table.csv") == expected


def test_a_user_that_was_not_in_the_fit_is_refused_with_the_options(command, fit_once):
    frame = people()
    fit_once(save_csv(frame[frame.user != "u6"]), *NO_HOLDOUT)
    save_csv(frame, "all.csv")
    said = command("predict", "run", "all.csv")
    assert (said.code, said.out) == (2, "")
    assert "1 of 8 users was not in the fit (such as 'u6')" in said.err
    for option in ("--unknown pooled", "odcl assign run TABLE --add"):
        assert option in said.err
    known = command("predict", "run", "table.csv").out.splitlines()
    said = command("predict", "run", "all.csv", "--unknown", "pooled")
    assert said.err == "odcl: 1 user not in the fit, predicted as average users\n"
    lines = said.out.splitlines()
    assert lines[: 6 * 14 + 1] == known[: 6 * 14 + 1]
    assert len(lines) == 8 * 14 + 1


def test_a_category_that_was_not_in_the_fit_is_refused_or_read_as_the_commonest(command, fit_once):
    frame = people().assign(town=np.tile(["Ulm", "Ulm", "Bonn", "Köln"], 28))
    fit_once(save_csv(frame), *NO_HOLDOUT, "--categorical", "town")
    frame.loc[frame.index < 5, "town"] = "Rom"
    save_csv(frame, "new.csv")
    said = command("predict", "run", "new.csv")
    assert said.code == 2
    assert "'town' has level 'Rom' in row 1" in said.err
    assert "--unseen reference" in said.err
    said = command("predict", "run", "new.csv", "--unseen", "reference")
    assert said.err == "odcl: 5 rows with a new level of 'town' (Rom), read as 'Ulm'\n"
    frame.loc[frame.index < 5, "town"] = "Ulm"
    assert command("predict", "run", save_csv(frame, "ulm.csv")).out == said.out


def test_missing_values_at_prediction_are_refused_dropped_or_filled(command, fit_once):
    frame = people()
    fit_once(save_csv(frame), *NO_HOLDOUT)
    frame.loc[4, "a"] = np.nan
    save_csv(frame, "gap.csv")
    said = command("predict", "run", "gap.csv")
    assert said.code == 2
    assert "'a' has no value in row 5" in said.err
    assert "--drop" not in said.err
    dropped = command("predict", "run", "gap.csv", "--missing", "drop")
    assert dropped.err == "odcl: 1 row with missing values left out\n"
    rows = [int(line.split(",")[1]) for line in dropped.out.splitlines()[1:]]
    assert rows == [i for i in range(1, 113) if i != 5]
    assert command("predict", "run", "gap.csv", "--missing", "mean").err.endswith("in (a: 1)\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("predict", "nowhere", "table.csv"), "There is no folder nowhere"),
        (("predict", "empty", "table.csv"), "empty is not the folder of a fit"),
        (("predict", "run", "nothing.csv"), "no file or folder nothing.csv"),
        (("predict", "run", "tabel.csv"), "did you mean 'table.csv'?"),
        (("predict", "run", "table.csv", "--out", "p.xlsx"), "must end in one of .csv"),
        (("assign", "run", "table.csv", "--out", "p.txt", "--add"), "must end in one of .csv"),
        (("predict", "run", "table.csv", "--out", "no/p.csv"), "there is no folder no"),
        (("predict", "run", "table.csv", "--out", "./table.csv"), "where table.csv is read from"),
        (("assign", "run", "table.csv", "--out", "run/groups.csv"), "would lie in the run itself"),
        (("assign", "run", "without.csv"), "'y' is not in the table"),
        (("predict", "damaged", "table.csv"), "schema.json is damaged"),
    ],
)
def test_a_run_or_table_that_cannot_be_used_is_refused_in_one_line(command, fit_once, words, told):
    save_csv(people().drop(columns="y"), "without.csv")
    fit_once(save_csv(people()), *NO_HOLDOUT)
    Path("empty").mkdir()
    shutil.copytree("run", "damaged")
    Path("damaged/schema.json").write_text("{")
    before = files_below()
    said = command(*words)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert said.err.count("\n") == 1
    assert files_below() == before


@pytest.fixture
def short_pieces(monkeypatch):
    """Tables are long from a few rows on."""
    from odcl.data import source as pieces

    monkeypatch.setattr(pieces, "ROWS", 30)


@pytest.mark.parametrize("kind", ["table.csv", "table.parquet", "folder"])
def test_a_long_table_is_predicted_as_a_short_one_is(command, fit_once, kind, request):
    frame = people().sample(frac=1, random_state=0)
    fit_once(save_csv(frame), *NO_HOLDOUT)
    frame.to_parquet("table.parquet", index=False)
    Path("folder").mkdir()
    for i in range(2):
        frame[i * 50 : (i + 1) * 50 if i == 0 else None].to_parquet(f"folder/{i}.parquet")
    command("predict", "run", kind, "--out", "whole.parquet")
    request.getfixturevalue("short_pieces")
    for name in ("pieces.parquet", "pieces.csv"):
        told = command("predict", "run", kind, "--out", name)
        assert told == Said(0, "", f"odcl: 112 rows written to {name}\n")
        answer, whole = read_table(name, text=["user"]), read_table("whole.parquet")
        assert answer.column_names == whole.column_names
        assert answer["row"].to_pylist() == whole["row"].to_pylist()
        assert answer["user"].to_pylist() == whole["user"].to_pylist()
        assert_array_equal(answer["prediction"].to_numpy(), whole["prediction"].to_numpy())
    assert command("predict", "run", kind).out == Path("pieces.csv").read_text()


def test_what_is_odd_in_a_piece_is_told_of_the_table(command, fit_once, short_pieces):
    frame = people()
    fit_once(save_csv(frame), *NO_HOLDOUT)
    frame.loc[[3, 70], "a"] = np.nan
    save_csv(frame)
    said = command("predict", "run", "table.csv", "--out", "p.csv")
    assert said.code == 2
    assert "row 4 (incomplete rows: 2 of 112)" in said.err
    assert not Path("p.csv").exists()
    said = command("predict", "run", "table.csv", "--out", "p.csv", "--missing", "drop")
    assert "2 rows with missing values left out" in said.err
    assert "110 rows written" in said.err
    frame = people().assign(user=lambda f: f.user.where(f.index < 100, "stranger"))
    save_csv(frame)
    said = command("predict", "run", "table.csv", "--out", "p.csv", "--force")
    assert said.code == 2
    assert "stranger" in said.err
    said = command(
        "predict", "run", "table.csv", "--out", "p.csv", "--force", "--unknown", "pooled"
    )
    assert "1 user not in the fit" in said.err


def odd_cells() -> pd.DataFrame:
    """Truth values, decimal commas, ids like formulas, categories like numbers, a late fraction."""
    frame = people()
    user = frame.user.map(lambda u: f"'={u}" if u == "u3" else u)
    late = np.where(np.arange(len(frame)) == 100, "1.5", (np.arange(len(frame)) % 3).astype(str))
    more = {"open": np.where(frame.index % 3, "true", "false"), "late": late, "user": user}
    town = np.where(frame.index % 4, "007", "Ulm; old")
    return frame.assign(town=[f'"{one}"' for one in town], **more).astype(object)


def save_odd(frame: pd.DataFrame, separator: str, names: str | None = None) -> None:
    """As a spreadsheet of the continent writes it, or as others do."""
    comma = separator == ";"
    rows = frame.map(lambda v: f"{v:.3f}".replace(".", "," * comma or ".") if v != str(v) else v)
    if comma:
        rows["late"] = rows.late.str.replace(".", ",")
    lines = [names or separator.join(frame.columns), *rows.agg(separator.join, axis=1)]
    Path("odd.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("separator", [",", ";"])
def test_cells_mean_the_same_in_a_table_of_any_length(command, separator, request):
    frame = odd_cells()
    save_odd(frame, separator)
    words = (*NO_HOLDOUT, "--categorical", "town", "--out", "run")
    assert command("fit", "odd.csv", *words).code == 0
    frame.loc[[5, 90], "a"] = "NA"
    save_odd(frame.drop(columns="y"), separator)
    asked = ("predict", "run", "odd.csv", "--missing", "mean", "--out")
    short = command(*asked, "short.csv")
    assert short.code == 0, short.err
    assert "2 missing values filled in (a: 2)" in short.err
    assert ("decimal commas" in short.err) == (separator == ";")
    request.getfixturevalue("short_pieces")
    long = command(*asked, "long.csv")
    assert long == Said(0, "", short.err.replace("short.csv", "long.csv"))
    assert Path("long.csv").read_text() == Path("short.csv").read_text()
    assert "\n'=u3,43," in Path("long.csv").read_text()


@pytest.mark.parametrize("what", ["text", "date", "gap", "doubled", "level", "stranger", "empty"])
def test_a_table_of_any_length_is_refused_in_the_same_words(command, fit_once, what, request):
    frame = odd_cells()
    save_odd(frame, ",")
    fit_once("odd.csv", *NO_HOLDOUT, "--categorical", "town")
    wrong = {"text": ("late", "ten"), "date": ("late", "2024-01-01"), "gap": ("a", "NA")}
    wrong |= {"level": ("town", "Rom"), "stranger": ("user", "nobody")}
    if what in wrong:
        name, value = wrong[what]
        rows = slice(None) if what == "date" else [70, 95]
        frame.loc[rows, name] = value
    words = ()
    if what == "empty":
        frame["a"], words = "NA", ("--missing", "drop")
    names = ",".join(frame.columns)
    save_odd(frame, ",", names.replace("y,", "a,") if what == "doubled" else names)
    short = command("predict", "run", "odd.csv", *words, "--out", "p.csv")
    assert short.code == 2
    assert not Path("p.csv").exists()
    told = {"text": "row 71 has 'ten'", "gap": "row 71 (incomplete rows: 2 of 112)"}
    told |= {"date": "2024-01-01", "doubled": "two columns called 'a'", "level": "'Rom' in row 71"}
    told |= {"stranger": "1 of 9 users was not in the fit", "empty": "Not one of 112 rows"}
    assert told[what] in short.err
    assert "--drop" not in short.err  # which is no option here
    request.getfixturevalue("short_pieces")
    assert command("predict", "run", "odd.csv", *words, "--out", "p.csv") == short
    assert not Path("p.csv").exists()


def test_an_interval_of_counts_with_too_many_parameters_is_refused_with_their_number(command):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((60, 110))).add_prefix("x")
    save_csv(frame.assign(user=np.repeat(np.arange(6), 10), y=rng.poisson(2.0, 60)))
    fit = ("fit", "table.csv", *NO_HOLDOUT, "--loss", "poisson", "--out", "run", "-q")
    assert command(*fit).code == 0
    said = command("predict", "run", "table.csv", "--interval", 0.9, "--out", "p.csv")
    assert said.code == 2
    assert "Intervals need at most 100 parameters; this model has 111." in said.err
