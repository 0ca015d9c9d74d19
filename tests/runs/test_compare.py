"""What a fit is worth: all rivals on the same rows, and options that give what is better."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import odcl
from odcl import Federation, ODCLClassifier, ODCLRegressor
from odcl.data.federation import hold_out
from odcl.evaluate import keep_every_class
from tests.helpers import refusal

RIVALS = ["local", "pooled", "intercepts", "mixed", "paper"]


def table(loss: str, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Users in two groups, 24 rows each."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(24), 24)
    X = rng.standard_normal((len(who), 3)) * [1, 10, 0.1]
    sign = np.where(who % 2, 1.0, -1.0)
    z = sign * (X[:, 0] + 0.05 * X[:, 1]) + 3 * X[:, 2] + 0.3 * rng.standard_normal(24)[who]
    y = {
        "squared": z + rng.standard_normal(len(z)),
        "poisson": rng.poisson(np.exp(0.5 * z)).astype(float),
        "logistic": np.where(rng.random(len(z)) < 1 / (1 + np.exp(-3 * z)), "yes", "no"),
    }[loss]
    return pd.DataFrame(X, columns=list("abc")).assign(user=who), pd.Series(y, name="y")


def estimator(loss: str, **settings):
    kind = ODCLClassifier if loss == "logistic" else ODCLRegressor
    return kind(loss=loss, users="user", **settings)


@pytest.mark.parametrize("loss", ["squared", "poisson", "logistic"])
def test_the_option_that_is_offered_gives_the_row_that_was_better(loss):
    X, y = table(loss)
    found = odcl.compare(estimator(loss), X, y)
    assert list(found.scores) == [*RIVALS, "odcl"]
    offered = {
        "mixed": {"clusterer": "auto:1"},
        "paper": {"method": "paper"},
    }
    for name, settings in offered.items():
        again = odcl.compare(estimator(loss, **settings), X, y)
        assert again.ours == ("paper" if name == "paper" else "asked")
        assert_allclose(again.scores[again.ours], found.scores[name], rtol=1e-6)


def test_what_was_asked_for_stands_beside_the_default():
    X, y = table("squared")
    found = odcl.compare(estimator("squared", clusterer="kmeans:1"), X, y)
    assert list(found.scores) == [*RIVALS, "asked", "odcl"]
    plain = odcl.compare(estimator("squared"), X, y)
    for name, scores in plain.scores.items():
        assert_allclose(found.scores[name], scores)
    assert "odcl as asked for is not the best here: odcl has" in str(found)
    assert str(found).endswith("For it: the default settings.")
    assert "the paper's setting" in str(plain)
    assert "--" not in str(found)


def test_rivals_have_lines_and_curves_stand_beside_lines_where_they_are_in_use():
    X, y = table("squared")
    bent = y + 2 * X.a**2
    hours = {"periodic": {"c": 1.0}}
    for settings in ({}, {"clusterer": "auto:2"}, {"curves": ["a"], **hours}):
        found = odcl.compare(estimator("squared", **settings), X, bent)
        asked = ["asked"] * ("clusterer" in settings)
        assert list(found.scores) == [*RIVALS, "lines", *asked, "odcl"]
        flat = odcl.compare(estimator("squared", curves=False), X, bent)
        assert list(flat.scores) == [*RIVALS, "odcl"]
        for name in ("local", "pooled", "intercepts", "paper"):
            assert_allclose(found.scores[name], flat.scores[name], rtol=1e-9)
        assert_allclose(found.scores["lines"], flat.scores["odcl"], rtol=1e-9)
        assert found.scores["odcl"].mean() < 0.7 * found.scores["lines"].mean()
    assert "odcl, lines only" in str(found)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_are_compared_by_log_loss_as_well(n_classes):
    """That of each user's held-out rows, by shares that a fit of the other rows gives them."""
    X, y = table("squared")
    y = pd.cut(y, n_classes, labels=list("abc")[:n_classes]).astype(str)
    found = odcl.compare(ODCLClassifier(users="user"), X, y)
    data = Federation.from_arrays(X[list("abc")].to_numpy(), pd.factorize(y, sort=True)[0], X.user)
    out = keep_every_class(hold_out(data, 0.2, 0), data)
    model = ODCLClassifier(users="user").fit(X[~out], y[~out])
    shares = model.predict_proba(X[out])
    chance = shares[np.arange(out.sum()), data.y[out].astype(int)]
    expected = pd.Series(-np.log(chance)).groupby(data.row_user[out]).mean()
    assert_allclose(found.log_loss["odcl"], expected, rtol=1e-6)
    assert list(found.log_loss) == list(found.scores)
    mean = found.by[1].rows()[-1][1]
    assert found.to_json()["log_loss"][-1]["mean"] == mean
    assert "accuracy: mean user  median  worst  log-loss: mean user  median  worst" in str(found)
    assert f"{mean:.3f}" in str(found)


def test_a_model_per_user_is_given_the_penalty_that_serves_it():
    """Fewer rows than parameters: without a penalty a user's own model is worth nothing."""
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(30), 15)
    X = rng.standard_normal((len(who), 10))
    y = X[:, :3].sum(axis=1) + rng.standard_normal(len(who))
    found = odcl.compare(ODCLRegressor(), X, y, users=who)
    bare = odcl.compare(ODCLRegressor(clusterer="kmeans:30"), X, y, users=who)  # each alone
    assert found.l2 > 0
    assert found.scores["local"].mean() < 0.8 * bare.scores["asked"].mean()


def test_a_comparison_without_users_or_rows_to_hold_out_is_refused():
    X, y = table("squared")
    said = refusal(odcl.compare, ODCLRegressor(), X, y)
    assert "users=" in said
    assert "share" in refusal(odcl.compare, estimator("squared"), X, y, holdout=1.0)
    one = X.drop_duplicates("user")
    text = "no row can be held out, as each user and each class keeps one"
    assert text in refusal(odcl.compare, estimator("squared"), one, y[one.index])
    few, classes = pd.DataFrame({"user": [0, 1, 1], "a": [1.0, 2.0, 3.0]}), ["a", "b", "c"]
    assert text in refusal(odcl.compare, estimator("logistic"), few, classes)


def test_users_who_keep_one_row_each_are_compared():
    few = pd.DataFrame({"user": [0, 0, 1, 1], "a": [1.0, 2.0, 3.0, 5.0]})
    found = odcl.compare(estimator("squared"), few, [1.0, 0.0, 2.0, 3.0])
    assert np.isfinite([*found.scores.values()]).all()


def test_a_class_of_a_single_row_is_learned_from_and_not_held_out():
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(8), 6)
    X = rng.standard_normal((48, 1))
    y = np.where(X[:, 0] > 0, "high", "low").astype(object)
    y[9] = "odd"
    rows = Federation.from_arrays(X, np.unique(y.astype(str), return_inverse=True)[1], users)
    seed = next(s for s in range(20) if hold_out(rows, 0.5, s)[9])  # where it would be drawn
    found = odcl.compare(ODCLClassifier(), X, y, users, holdout=0.5, seed=seed)
    assert {*found.held.seen.tolist()} == {0, 1}  # of high, low and odd


def test_the_last_rows_of_users_who_were_drawn_are_held_out(monkeypatch):
    from odcl.runs import fit as module

    monkeypatch.setattr(module, "COMPARED", 10)
    rng = np.random.default_rng(0)
    users = np.repeat([f"u{i}" for i in range(30)], 8)
    X = rng.standard_normal((len(users), 2))
    federation = Federation.from_arrays(X, X @ [1.0, -1.0] + rng.standard_normal(240), users)
    time = rng.permutation(240).astype(float)
    found = module.compare_users(ODCLRegressor(), federation, 0.25, 0, time=time)
    assert (found.n_users, found.of_users) == (10, 30)
    for user in found.held.users.tolist():
        rows = federation.rows(user)
        last = federation.y[rows][np.argsort(time[rows])[-2:]]
        assert sorted(found.held.seen[found.held.owner == user]) == sorted(last)


def test_many_users_are_compared_on_some_of_them(monkeypatch):
    """Drawn by their ids: the order of rows changes nothing, and it is said."""
    from odcl.runs import fit as module

    monkeypatch.setattr(module, "COMPARED", 15)
    rng = np.random.default_rng(0)
    users = np.repeat([f"u{i}" for i in range(40)], 12)
    X = rng.standard_normal((len(users), 2))
    y = X @ [1.0, -1.0] + 0.1 * rng.standard_normal(len(users))
    found = odcl.compare(ODCLRegressor(), X, y, users)
    assert (found.n_users, found.of_users) == (15, 40)
    assert "Compared on 15 of 40 users" in str(found)
    assert found.to_json()["of_users"] == 40
    order = rng.permutation(len(users))
    again = odcl.compare(ODCLRegressor(), X[order], y[order], users[order])
    np.testing.assert_array_equal(again.held.users, found.held.users)
    np.testing.assert_allclose(again.scores["odcl"], found.scores["odcl"], rtol=1e-6)
    names = np.unique(users)[found.held.users]
    alone = np.isin(users, names)
    monkeypatch.setattr(module, "COMPARED", 2000)
    few = odcl.compare(ODCLRegressor(), X[alone], y[alone], users[alone])
    np.testing.assert_allclose(few.scores["local"], found.scores["local"], rtol=1e-9)
    # Held-out rows stand under the users whose they are, among all users.
    held = found.held
    assert np.unique(held.owner).tolist() == held.users.tolist()
    for user in held.users.tolist():
        own = users == np.unique(users)[user]
        assert np.isin(held.seen[held.owner == user], y[own]).all()
