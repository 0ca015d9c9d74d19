"""Do models still hold? On worlds with a known truth: who is named, and who is not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from odcl import ODCLClassifier, ODCLRegressor
from tests.helpers import SHARED_DATA, save_csv

WORLDS = {
    "groups": {},
    "groups and differences": {"inside": 0.7},
    "no groups": {"n_groups": 1, "inside": 1.0},
    "few rows": {"inside": 0.5, "rows": (5, 4)},
    "heavy tails": {"tails": 5.0},
    "classes": {"law": "classes"},
    "counts": {"law": "counts"},
}


def world(seed, *, n_groups=3, inside=0.0, rows=(20, 12), law="numbers", tails=0.0, **changes):
    """Old and new rows of 60 users in turns of the groups, (X, y) each.

    ``user`` 7 or ``group`` 2 moves by ``by`` in the level between them; ``noise`` is that of the
    new rows.
    """
    rng = np.random.default_rng(seed)
    label, by = np.arange(60) % n_groups, changes.get("by", 0.0)
    theta = rng.normal(0, 2.0, (n_groups, 4))[label] + inside * rng.normal(size=(60, 4))
    later = theta.copy()
    later[label == changes.get("group", -1), -1] += by
    later[[changes["user"]] if "user" in changes else [], -1] += by
    found = []
    for own, n, noise in ((theta, rows[0], 1.0), (later, rows[1], changes.get("noise", 1.0))):
        who = np.repeat(np.arange(60), n)
        X = rng.normal(size=(len(who), 3))
        z = (X * own[who, :3]).sum(axis=1) + own[who, 3]
        e = rng.standard_t(tails, len(who)) / np.sqrt(tails / (tails - 2)) if tails else None
        y = z + noise * (rng.normal(size=len(who)) if e is None else e)
        if law == "classes":
            y = np.where(rng.random(len(who)) < 1 / (1 + np.exp(-z / 2)), "yes", "no")
        if law == "counts":
            k = changes.get("scatter")
            y = rng.poisson(np.exp(1 + z / 4) * (rng.gamma(k, 1 / k, len(z)) if k else 1.0))
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        frame.insert(0, "user", [f"u{i:02d}" for i in who])
        found.append((frame, y))
    return found


def checked(seed, **given):
    old, new = world(seed, **given)
    law = given.get("law")
    kind = ODCLClassifier if law == "classes" else ODCLRegressor
    model = kind(users="user", **({"loss": "poisson"} if law == "counts" else {})).fit(*old)
    return model.drift(*new), model


@pytest.mark.parametrize("name", WORLDS)
def test_while_nothing_changes_hardly_anybody_is_named(name):
    """One user in 20 would be nine of these 180."""
    found = [checked(seed, **WORLDS[name])[0] for seed in range(3)]
    assert sum(len(d.moved) for d in found) <= 2
    assert not any(len(d.moved_groups) for d in found)
    assert sum(d.verdict == "holds" for d in found) >= 2
    assert np.nanmean([d.chance < 0.05 for d in found]) < 0.09
    for measure in found[0].measures:
        now, promised = np.mean([d.measures[measure] for d in found], axis=0)
        assert 0.9 < now / promised < 1.1


def test_counts_that_scatter_more_than_their_law_are_no_change():
    """With the law's own noise it would be 37 of these 180 users."""
    found = [checked(seed, law="counts", scatter=1.5)[0] for seed in range(3)]
    assert sum(len(d.moved) for d in found) <= 3
    assert not any(len(d.moved_groups) for d in found)


@pytest.mark.parametrize(
    "given",
    [
        {"user": 7, "by": 2.5},
        {"user": 7, "by": 3.0, "inside": 0.7},
        {"user": 7, "by": 5.0, "law": "counts"},
        {"user": 7, "by": -8.0, "law": "classes", "rows": (30, 40)},
    ],
    ids=["groups", "differences", "counts", "classes"],
)
def test_one_user_that_moved_is_named_and_nobody_else(given):
    for seed in (0, 2):
        found, model = checked(seed, **given)
        assert found.users[found.moved].tolist() == ["u07"]
        assert found.verdict == "update"
        assert len(found.moved_groups) == 0  # what one user did, no group did
        assert np.sign(found.offset[7]) == np.sign(given["by"])
        assert "Update 1 user; the other models hold." in str(found)
        assert "u07" in str(found)
        if not given.get("inside") and given.get("law") is None:
            assert found.nearest[7] == -1  # its rows are no group's
        assert model.drift(*world(seed, **given)[0]).verdict == "holds"  # nothing was changed


def test_a_user_whose_rows_are_another_groups_is_told_which():
    old, new = world(0)
    model = ODCLRegressor(users="user").fit(*old)
    rows = (new[0].user == "u08").to_numpy()
    stolen = np.where(new[0].user == "u07", "away", np.where(rows, "u07", new[0].user))
    found = model.drift(new[0].assign(user=stolen), new[1])
    assert found.users[found.moved].tolist() == ["u07"]
    at = model.users_.tolist().index("u08")
    assert found.nearest[found.moved[0]] == model.labels_[at]


@pytest.mark.parametrize("inside", [0.0, 0.5])
def test_a_group_that_moved_is_named_with_by_how_much(inside):
    for seed in range(2):
        found, model = checked(seed, group=2, by=1.5, inside=inside)
        own = model.labels_[2]
        assert found.moved_groups.tolist() == [own]
        assert_allclose(found.shifts[own]["level"], 1.5, atol=0.4)
        assert found.verdict == "refit"
        assert f"Refit: group {own} moved (level by +1." in str(found)
        assert len(found.moved) <= 1  # its members moved with it, not by themselves


def test_users_who_all_moved_are_told_together():
    found, _ = checked(1, n_groups=1, inside=1.0, group=0, by=1.0)
    assert str(found).startswith("Refit: all users moved (level by +")


def test_more_noise_is_a_reason_to_refit_and_no_users_doing():
    for seed in range(2):
        found, _ = checked(seed, noise=1.6)
        assert len(found.moved) == len(found.moved_groups) == 0
        assert_allclose(found.noise, 1.6, rtol=0.1)
        assert found.verdict == "refit"
        assert found.measures["inside 90 % intervals"][0] < 0.8
        assert "scatter 1." in str(found)


def test_a_users_chance_is_that_of_the_dense_covariance_of_its_rows():
    """X'r is N(0, X'(s2 I + X V X')X) while the model holds, with s2 known by so many rows."""
    (old, new), i = world(3, inside=0.7, rows=(9, 7)), 11
    model = ODCLRegressor(users="user").fit(*old)
    found = model.drift(*new)
    rows = (new[0].user == "u11").to_numpy()
    X = np.column_stack(
        [model.scaling_.apply(new[0][["a", "b", "c"]].to_numpy()[rows]), np.ones(7)]
    )
    r, s2 = new[1][rows] - X @ model.theta_[i], model.noise_[i] * found.noise**2
    score, cov = X.T @ r, X.T @ (s2 * np.eye(7) + X @ model.covariance_[i] @ X.T) @ X
    square = score @ np.linalg.solve(cov, score) / 4
    assert_allclose(found.chance[i], stats.f.sf(square, 4, model.dof_[i]), rtol=1e-6)


def test_new_users_absent_users_and_users_with_few_rows_are_counted():
    old, (X, y) = world(0)
    model = ODCLRegressor(users="user").fit(*old)
    few = ~((X.user == "u03") & (X.groupby("user").cumcount() > 1)).to_numpy()
    kept = few & (X.user != "u04").to_numpy()
    found = model.drift(X[kept].replace({"user": {"u05": "new"}}), y[kept])
    assert found.strangers.tolist() == ["new"]
    assert found.absent == 2
    assert np.isnan(found.chance[found.users == "u03"]).all()
    assert found.columns()["remark"].tolist().count("too few rows to tell") == 1
    said = str(found)
    assert "1 user with too few new rows to tell" in said
    assert "1 user without a model (such as new): `odcl assign --add`" in said
    assert "2 users with a model and no new rows" in said


def test_models_without_uncertainty_say_why_they_cannot_tell():
    old, new = world(0)
    model = ODCLRegressor(users="user", method="paper").fit(*old)
    with pytest.raises(ValueError, match="this model was fitted by KMeansPP"):
        model.drift(*new)
    model = ODCLRegressor(users="user").fit(*old)
    with pytest.raises(ValueError, match="None of these rows' users has a model"):
        model.drift(new[0].assign(user="new"), new[1])


def test_the_command_says_whether_a_run_holds(command):
    (X, y), new = world(0, user=7, by=3.0)
    save_csv(X.assign(y=y), "old.csv")
    save_csv(new[0].assign(y=new[1]), "new.csv")
    fit = ("fit", "old.csv", "--user", "user", "--target", "y", "--out", "run", "--quiet")
    assert command(*fit).code == 0
    said = command("diagnose", "run", "--table", "new.csv", "--out", "users.csv")
    assert said.code == 0
    assert said.out.startswith("Update 1 user; the other models hold.\n")
    users = pd.read_csv("users.csv")
    assert users.user[users.remark == "moved"].tolist() == ["u07"]
    assert command("diagnose", "run", "old.csv", "--table", "new.csv").code == 2
    assert "there is no use for new.csv" in command("diagnose", "old.csv", "--table", "new.csv").err


@pytest.mark.parametrize(("name", "verdict"), [("nlschools", "holds"), ("sumhes", "refit")])
def test_real_tables_in_two_halves(name, verdict):
    """Pupils of a class come in no order; countries grew otherwise in the later years."""
    path = SHARED_DATA / "tables" / f"{name}.csv"
    if not path.exists():
        pytest.skip("the tables lie beside the project")
    table = pd.read_csv(path, dtype={"user": str})
    old = table.groupby("user").cumcount() < table.groupby("user").user.transform("size") / 2
    X, y = table.drop(columns="target"), table.target
    model = ODCLRegressor(users="user").fit(X[old], y[old])
    assert model.drift(X[~old], y[~old]).verdict == verdict
