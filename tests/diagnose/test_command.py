"""``odcl diagnose`` and the estimators' diagnose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from odcl import ODCLRegressor
from tests.diagnose.cases import Case
from tests.helpers import NO_HOLDOUT, ROLES, save_csv


def table(n_users: int = 30, n: int = 30, seed: int = 700) -> pd.DataFrame:
    f = Case("", (n_users // 2, n_users - n_users // 2), 3, 4, n).federation(seed)
    frame = pd.DataFrame(f.X, columns=list("abc"))
    return frame.assign(user=[f"u{i}" for i in f.row_user], y=f.y)


@pytest.fixture
def run(command):
    """Run a command beside the file table.csv."""
    save_csv(table())
    return command


def test_an_estimator_diagnoses_its_fit_and_so_does_a_loaded_one(tmp_path):
    frame = table()
    model = ODCLRegressor(random_state=0).fit(frame[list("abc")], frame.y, users=frame.user)
    assert model.diagnose().verdict == model.result_.diagnose().verdict
    model.save(tmp_path / "m")
    assert str(ODCLRegressor.load(tmp_path / "m").diagnose()) == str(model.diagnose())


def test_the_command_begins_with_the_verdict_and_writes_one_row_a_user(run):
    code, out, err = run("diagnose", "table.csv", *ROLES, "--out", "users.csv")
    assert (code, out.splitlines()[0]) == (0, "One shot is enough.")
    assert "30 rows written" in err
    users = pd.read_csv("users.csv", keep_default_na=False)
    assert list(users) == ["user", "group", "rows", "elsewhere", "rival", "distance", "remark"]
    assert_array_equal(np.bincount(users.group), [15, 15])


def test_a_run_is_diagnosed_with_its_own_settings(run):
    fit = ("--holdout", "0", "--clusters", "kmeans:4", "--out", "run", "-q")
    assert run("fit", "table.csv", *ROLES, *fit)[0] == 0
    code, out, err = run("diagnose", "run", "table.csv")
    assert (code, err) == (0, "")
    assert "with other groups: 2 in place of these 4" in out
    for extra in (("--clusters", "3"), ("--paper",), ("--drop", "a"), ("--no-intercept",)):
        code, _, said = run("diagnose", "run", "table.csv", *extra)
        assert code == 2
        assert f"{extra[0]} is part of the run" in said


@pytest.mark.parametrize("how", [(), ("--clusters", "2"), ("--clusters", "kmeans:4"), ("--paper",)])
def test_a_run_is_diagnosed_from_what_it_holds(run, how, tmp_path):
    assert run("fit", "table.csv", *NO_HOLDOUT, "--out", "run", "-q", *how)[0] == 0
    _, fitted, _ = run("diagnose", "table.csv", *ROLES, *how)
    (tmp_path / "table.csv").unlink()
    code, out, err = run("diagnose", "run")
    assert code == 0
    if how in (("--paper",), ("--clusters", "kmeans:4")):  # the rows tell more, as is said
        assert "sent their models alone: `odcl diagnose run TABLE` looks at their rows too" in err
        assert out.startswith("It is not known whether one shot is enough.")
        assert not fitted.startswith("It is not known")
    else:
        assert (out, err) == (fitted, "")


@pytest.mark.parametrize(
    ("holdout", "said"),
    [
        ("0", "It is not known whether one shot is enough."),
        ("0.2", "Use the default in place of means of models."),
    ],
)
def test_where_models_do_not_tell_a_runs_held_out_rows_decide(command, holdout, said):
    rng = np.random.default_rng(3)
    X, owner = rng.standard_normal((1200, 105)), np.repeat(np.arange(20), 60)
    y = (X * (-1.0) ** owner[:, None])[:, :60].sum(axis=1) + rng.standard_normal(1200)
    save_csv(pd.DataFrame(X).add_prefix("x").assign(user=owner, y=y))
    fit = ("fit", "table.csv", *ROLES, "--holdout", holdout, "--paper", "--out", "run", "-q")
    assert command(*fit)[0] == 0
    code, out, _ = command("diagnose", "run")
    assert (code, out.splitlines()[0]) == (0, said)
    reason = out.splitlines()[1]
    assert "users sent models, and not how sure these are" in reason
    assert ("On 240 held-out rows the mean user has RMSE" in reason) == (holdout != "0")
    assert "Collect about" not in out
    # ... and rows in hand tell the groups, as is promised.
    code, out, _ = command("diagnose", "run", "table.csv")
    assert "users' rows show the same 2 groups, and not what means of models are worth" in out


def test_users_added_to_a_run_are_counted(run, tmp_path):
    run("fit", "table.csv", *NO_HOLDOUT, "--out", "run", "-q")
    assert "30, 2 " in run("diagnose", "run")[1]
    more = table(n_users=4)
    save_csv(more.assign(user="new" + more.user), "new.csv")
    assert run("assign", "run", "new.csv", "--add")[0] == 0
    code, out, err = run("diagnose", "run")
    assert (code, err) == (0, "")
    assert "34, 2 " in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table.csv",), "table.csv is not a run of `odcl fit`, and a table needs --user"),
        (("nowhere.csv",), "There is no file or folder nowhere.csv"),
        (("table.csv", *ROLES, "--out", "no/u.csv"), "no folder no"),
        (("table.csv", *ROLES, "--out", "table.csv"), "is read from"),
        (("table.csv", *ROLES, "--out", "old.csv"), "--force"),
        (("table.csv", "--user", "user"), "a table needs --target"),
        (("table.csv", "table.csv", *ROLES), "is not a run"),
        (("nowhere.csv", *ROLES), "nowhere.csv"),
    ],
)
def test_what_the_command_cannot_use_is_refused_with_its_reason(run, words, said, tmp_path):
    (tmp_path / "old.csv").write_text("mine")
    code, out, err = run("diagnose", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert (tmp_path / "old.csv").read_text() == "mine"


@pytest.mark.parametrize("damage", ["missing", "cut", "swapped"])
def test_a_run_whose_uploads_were_changed_is_refused_by_their_name(run, tmp_path, damage):
    run("fit", "table.csv", *NO_HOLDOUT, "--out", "run", "-q")
    kept = tmp_path / "run" / "uploads.safetensors"
    if damage == "missing":
        kept.unlink()
    elif damage == "cut":
        kept.write_bytes(kept.read_bytes()[:300])
    else:
        kept.write_bytes((tmp_path / "run" / "models.safetensors").read_bytes())
    code, out, err = run("diagnose", "run")
    assert (code, out) == (2, "")
    assert err.startswith("odcl: run/uploads.safetensors is damaged or was changed")


def test_uploads_too_large_to_copy_are_not_kept_and_the_rows_serve_instead(run, monkeypatch):
    monkeypatch.setattr("odcl.fitted.persist.MOST_UPLOADS", 1000)
    assert run("fit", "table.csv", *NO_HOLDOUT, "--out", "run", "-q")[0] == 0
    code, out, err = run("diagnose", "run")
    assert (code, out) == (2, "")
    assert "too large to keep" in err
    assert "fit again on its rows (`odcl diagnose RUN TABLE`)" in err
    assert run("diagnose", "run", "table.csv")[0] == 0


def test_a_user_set_apart_is_no_group_and_is_not_judged(run):
    """Groups keep the numbers that the fit gave them: that of the user apart lies in between."""
    frame, odd = table(), "u14"
    frame.loc[frame.user == odd, "a"] += 1e4
    save_csv(frame)
    assert run("fit", "table.csv", *NO_HOLDOUT, "--out", "run", "-q")[0] == 0
    groups = pd.read_csv("run/assignment.csv").set_index("user").group
    assert groups[odd] == 1
    out = run("diagnose", "run", "--out", "users.csv")[1]
    assert out.startswith("One shot is enough.")
    assert "29, 2 " in out
    assert "between groups 0 and 2" in out
    said = "1 user with columns unlike everybody else's is not judged"
    assert f"{said} (another unit, or a mistyped value?): u14" in out
    told = pd.read_csv("users.csv", keep_default_na=False).set_index("user")
    assert told.group.to_dict() == groups.to_dict()
    assert list(told.index) == list(groups.index)
    assert told.remark[odd] == "set apart"
    assert "2 groups among 30 users, 1 of them set apart" in Path("run/report.html").read_text()
    noise = np.random.default_rng(0).standard_normal(len(frame))
    save_csv(frame.assign(y=frame.b + frame.c + noise))
    assert run("fit", "table.csv", *NO_HOLDOUT, "--out", "one", "-q")[0] == 0
    assert run("diagnose", "one")[1].startswith("There is no group structure here: use one model.")
