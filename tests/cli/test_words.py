"""What people are told: notices, who is set aside, and advice that a command can follow."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import odcl
from odcl.cli.main import run_command
from odcl.data.notices import about_classes


@pytest.fixture
def table(tmp_path, monkeypatch):
    """24 stores x 20 rows; the target of store 3 is in another unit."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    store = np.repeat(np.arange(24), 20)
    frame = pd.DataFrame({"store": store, "price": rng.normal(size=480)})
    frame["kind"] = rng.choice(["a", "b"], 480)
    frame["sales"] = 2 * frame["price"] + rng.normal(size=480)
    frame.loc[store == 3, "sales"] *= 1000
    frame.to_csv("sales.csv", index=False)
    return frame


def test_who_is_set_aside_is_named_on_stderr_on_the_page_and_in_print(table, capsys):
    words = ("sales.csv", "--user", "store", "--target", "sales", "--holdout", "0")
    assert run_command(("fit", *words, "--robust", "--out", "run")) == 0
    said = "user 3 takes no part in others' models: sales varies"
    assert said in capsys.readouterr().err
    with open("run/report.html", encoding="utf-8") as page:
        assert "ser 3 takes no part in others&#x27; models: sales varies" in page.read()
    run = odcl.fit_table("sales.csv", user="store", target="sales", robust=True, holdout=0)
    assert said in str(run)
    assert "takes no part in others&#x27; models: sales" in run.page().decode()
    assert "models: sales varies" not in run.page(anonymous=True).decode()
    assert run_command(("diagnose", "run", "--out", "users.csv")) == 0
    told = capsys.readouterr().out
    assert "too few rows" not in told  # it has as many as everybody else
    odd = "1 user with columns unlike everybody else's is not judged"
    assert f"{odd} (another unit, or a mistyped value?): 3" in told
    assert pd.read_csv("users.csv").remark[3] == "set apart"


def test_a_user_far_noisier_than_others_is_named(table, capsys):
    noise = np.random.default_rng(1).normal(size=len(table))
    table["sales"] = 2 * table["price"] + np.where(table["store"] == 3, 0.5, 1e-3) * noise
    table.to_csv("sales.csv", index=False)
    words = ("sales.csv", "--user", "store", "--target", "sales", "-q", "--out", "users.csv")
    assert run_command(("diagnose", *words)) == 0
    noisy = "1 user is far noisier than others and is not judged"
    assert f"{noisy} (another unit, or a mistyped target?): 3" in capsys.readouterr().out
    assert pd.read_csv("users.csv").remark[3] == "far noisier than others"


def test_advice_is_left_out_where_a_command_has_no_option_for_it(table, capsys):
    words = ("sales.csv", "--user", "store", "--target", "sales", "--holdout", "0", "-q")
    assert run_command(("fit", *words, "--out", "run")) == 0
    table.assign(price="high").to_csv("new.csv", index=False)
    for command in (("update", "run"), ("predict", "run"), ("diagnose", "run", "--table")):
        assert run_command((*command, "new.csv")) == 2
        said = capsys.readouterr().err
        assert "'high' (numbers are written 1234.5, without separators; a missing value" in said
        assert said.endswith(". Correct these rows, or leave them out.\n")
    table.assign(price=table["price"].where(table.index > 0)).to_csv("gap.csv", index=False)
    assert run_command(("update", "run", "gap.csv")) == 2
    advice = "Say --missing drop (leave these rows out) or --missing mean (fill in the mean).\n"
    assert capsys.readouterr().err.endswith(advice)


def test_python_is_advised_what_a_fitted_model_can_do(table):
    X = table[["store", "price", "kind"]]
    model = odcl.ODCLRegressor(users="store").fit(X, table["sales"])
    with pytest.raises(ValueError, match=r"\)\. Correct these rows, or leave them out\.$"):
        model.predict(X.assign(price="high"))
    plain = odcl.ODCLRegressor(users="store").fit(X[["store", "price"]], table["sales"])
    doubled = pd.concat([X, X[["price"]]], axis=1)
    for call in (plain.predict, model.predict, lambda X: model.fit(X, table["sales"])):
        with pytest.raises(ValueError, match=r"two columns called 'price', .* rename one"):
            call(doubled)
    with pytest.raises(ValueError, match=r"NaN in row 3: leave such rows out, or fit with missing"):
        odcl.ODCLRegressor(users="store").fit(X, table["sales"].where(table.index != 2))
    unseen = X.assign(kind="z")
    with pytest.raises(ValueError, match=r"Say set_params\(unseen='reference'\) to read new"):
        model.predict(unseen)
    assert np.isfinite(model.set_params(unseen="reference").predict(unseen)).all()


def test_python_warns_of_a_class_that_looks_mistyped(table):
    answer = np.where(table.index == 3, "yse", np.where(table["price"] > 0, "yes", "no"))
    with pytest.warns(UserWarning, match="1 row with the target 'yse', .* mistyped for 'yes'"):
        odcl.ODCLClassifier(users="store").fit(table[["store", "price"]], answer)


def test_rare_events_and_classes_of_their_own_are_not_called_mistyped():
    assert about_classes("ill", {"no": 4000, "yes": 2}) == []  # two classes: a rare event
    assert about_classes("kind", {"a": 30, "b": 12, "c": 4}) == []
    assert about_classes("kind", {1: 30, 2: 50, 3: 1}) == [
        "1 row with kind 3, a class of its own: if that is a mistake, correct such rows, or leave "
        "them out"
    ]
    assert len(about_classes("kind", {"a": 30, "b": 50} | dict.fromkeys("cdefgh", 1))) == 3
