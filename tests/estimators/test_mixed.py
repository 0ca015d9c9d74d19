"""Mixed groups as a user of the estimators meets them: units, ordinary users, intervals, files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Method, ODCLRegressor
from odcl.data.source import read_table
from odcl.fitted.persist import MIXTURE
from odcl.mixed.differences import differences_text
from tests.helpers import (
    NO_HOLDOUT,
    estimator_for,
    people,
    people_in_classes,
    refusal,
    response,
    save_csv,
    target_of_kind,
)

TERM_LOSSES = ["squared", "logistic", "poisson", "multinomial"]
every_term_loss = pytest.mark.parametrize("loss", TERM_LOSSES)


def mixed(loss="squared", **settings):
    return estimator_for(loss, clusterer="auto", **settings)


def world(m=24, n=12, dim=3, *, differ=0.5, groups=2, seed=0):
    """X, y and owners: groups that lie apart, and users who still differ inside them."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(m), n)
    centers = 2.0 * rng.standard_normal((groups, dim + 1))
    theta = centers[np.arange(m) % groups] + differ * rng.standard_normal((m, dim + 1))
    X = rng.standard_normal((m * n, dim))
    y = (X * theta[users, :-1]).sum(axis=1) + theta[users, -1] + rng.standard_normal(m * n)
    return X, y, users


# -- invariance ------------------------------------------------------------------------------------

SCALES, SHIFTS = np.array([1e-3, 7.0, -2e4]), np.array([5.0, -300.0, 2e4])
CHANGES = {
    "rows shuffled": lambda X, y, users, order: (X[order], y[order], users[order], X),
    "users renamed": lambda X, y, users, _: (X, y, (7 * users + 5) % 24, X),
    "features rescaled": lambda X, y, users, _: (X * SCALES, y, users, X * SCALES),
    "features shifted": lambda X, y, users, _: (X + SHIFTS, y, users, X + SHIFTS),
    "a copy": lambda X, y, users, _: (*with_column(X, X[:, 1], y, users),),
    "a copy turned, shifted and scaled": lambda X, y, users, _: (
        *with_column(X, 40 - 3 * X[:, 0], y, users),
    ),
    "a constant": lambda X, y, users, _: (*with_column(X, np.full(len(X), 4.0), y, users),),
}


def with_column(X, column, y, users):
    more = np.column_stack([X, column])
    return more, y, users, more


@pytest.mark.parametrize("change", CHANGES)
@every_term_loss
def test_predictions_do_not_depend_on_how_the_table_is_written(loss, change):
    X, y, users = world()
    y = target_of_kind(loss, y)
    expected = response(mixed(loss).fit(X, y, users=users), X, users)
    order = np.random.default_rng(1).permutation(len(y))
    given, target, owner, new = CHANGES[change](X, y, users, order)
    model = mixed(loss).fit(given, target, users=owner)
    who = (7 * users + 5) % 24 if change == "users renamed" else users
    assert_allclose(response(model, new, who), expected, rtol=1e-8, atol=1e-8)


@every_term_loss
def test_there_is_no_chance_in_it(loss):
    X, y, users = world()
    y = target_of_kind(loss, y)
    one, other = (
        mixed(loss).set_params(random_state=seed).fit(X, y, users=users) for seed in (0, 7)
    )
    assert_array_equal(one.theta_, other.theta_)


@every_term_loss
def test_a_row_is_predicted_alone_as_among_others(loss):
    """Bit for bit; and the class that is predicted is the one of largest probability."""
    X, y, users = world()
    model = mixed(loss).fit(X, target_of_kind(loss, y), users=users)
    whole = response(model, X, users)
    for row in (slice(7, 8), slice(100, 103)):
        assert_array_equal(response(model, X[row], users[row]), whole[row])
    if whole.ndim == 2:
        assert_array_equal(model.predict(X, users), model.classes_[whole.argmax(axis=1)])


def test_how_surely_a_user_belongs_is_what_its_last_step_says(tmp_path):
    """Classes: a user's own rows say more of its group than the server knows from its upload."""
    X, y, users = world(differ=0.2, n=8, seed=3)
    model = mixed("logistic").fit(X, y > 0, users=users)
    assert model.n_clusters_ == 2
    result = model.result_
    assert np.abs(result.received.sure - result.step.probabilities).max() > 1e-6
    assert_array_equal(model.probability_, result.received.sure)
    assert_array_equal(model.labels_, result.received.group)
    model.save(tmp_path / "model")
    assert_array_equal(type(model).load(tmp_path / "model").probability_, model.probability_)


@every_term_loss
def test_a_row_of_weight_two_is_two_rows(loss):
    X, y, users = world()
    y = target_of_kind(loss, y)
    twice = np.random.default_rng(0).random(len(y)) < 0.3
    weighted = mixed(loss).fit(X, y, users=users, sample_weight=1.0 + twice)
    rows = np.repeat(np.arange(len(y)), 1 + twice)
    repeated = mixed(loss).fit(X[rows], y[rows], users=users[rows])
    assert_allclose(
        response(weighted, X, users), response(repeated, X, users), rtol=1e-7, atol=1e-7
    )


def test_a_copied_column_is_named_and_the_papers_method_keeps_it(command):
    frame = people().assign(d=lambda t: 3 - 2 * t.b)
    for clusters, said in (("auto", True), ("kmeans:2", False)):
        answer = command(
            "fit", save_csv(frame), *NO_HOLDOUT, "--clusters", clusters, "--out", f"run{said}"
        )
        assert ("column 'd' left out: a copy of 'b'" in answer.out + answer.err) == said
        coef = ODCLRegressor.load(f"run{said}").coef_[:, 3]
        assert (coef == 0).all() == said


# -- users whom a model of their own would fail --------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
def test_users_with_hardly_any_rows_are_ordinary(loss):
    """One row, one class, a missing level, a constant column, fewer rows than parameters."""
    rng = np.random.default_rng(5)
    m, n = 40, 8
    users = np.repeat(np.arange(m), n)
    level = rng.integers(0, 4, m * n)
    level[(users % 4 == 1) & (level == 3)] = 0  # every fourth user never sees the last level
    X = np.column_stack([rng.standard_normal((m * n, 2)), np.eye(4)[level][:, 1:]])
    X[users % 4 == 2, 1] = 1.0
    effect = np.array([1.0, -1.0, 0.5, 1.0, -1.5])
    z = X @ effect + np.where(users % 2, 2.0, -2.0) + 0.3 * rng.standard_normal(m)[users]
    made = {
        "squared": lambda: z + rng.standard_normal(m * n),
        "logistic": lambda: np.where(z + rng.logistic(size=m * n) > 0, "yes", "no"),
        "poisson": lambda: rng.poisson(np.exp(0.4 * z)),
    }
    y = made[loss]()
    if loss == "logistic":
        y[users == 3] = "yes"
    train = rng.random(m * n) < 0.6
    train[users == 0] = np.arange(n) == 0
    train[::n] = True
    model = mixed(loss).fit(X[train], y[train], users=users[train])
    assert np.isfinite(model.theta_).all()
    assert np.isfinite(model.covariance_).all()
    ours = response(model, X[~train], users[~train])
    one = mixed(loss).fit(X[train], y[train])
    pooled = response(one, X[~train], None)
    assert np.isfinite(ours).all()
    assert _loss(loss, ours, y[~train]) < _loss(loss, pooled, y[~train])


def _loss(name, predicted, y):
    if name == "logistic":
        return -np.log(np.where(y == "yes", predicted[:, 1], predicted[:, 0])).mean()
    if name == "poisson":
        return (predicted - y * np.log(predicted)).mean()
    return ((predicted - y) ** 2).mean()


# -- what people are told ------------------------------------------------------------------------


def stores(seed=0, m=50, n=30):
    """Stores that differ in the level alone, with a standard deviation of 12."""
    rng = np.random.default_rng(seed)
    store = np.repeat(np.arange(m), n)
    price, promo = rng.uniform(5, 15, m * n), rng.integers(0, 2, m * n)
    level = 100 + 12 * rng.standard_normal(m)
    y = level[store] - 3 * price + 20 * promo + 4 * rng.standard_normal(m * n)
    return pd.DataFrame({"store": store, "price": price, "promo": promo}), y, level


def test_differences_are_in_the_tables_units():
    X, y, level = stores()
    model = mixed(users="store").fit(X, y)
    differences = model.differences_
    assert differences.keys() == {"(level)", "price", "promo"}
    assert abs(differences["(level)"] - 12) < 3  # 50 stores tell a deviation to a tenth
    assert_allclose(differences["(level)"], np.std(level, ddof=1), rtol=0.03)
    assert differences["price"] == differences["promo"] == 0
    assert model.reason_ == (
        "No groups: users differ gradually. "
        f"Users differ in the level (standard deviation {differences['(level)']:.3g}); "
        "price and promo are the same for all of them."
    )


def test_a_standard_deviation_is_explained_once():
    told = differences_text({"(level)": 12.04, "a": 0.5, "b": 0.0}, 3)
    assert told == (
        "Users of a group still differ in the level (standard deviation 12) and a (0.5); "
        "b is the same for all of them."
    )
    assert differences_text({"(level)": 0.0, "a": 0.0}, 3) == ""
    assert differences_text({"a": 1.0, "b": 2.0}, 1) == (
        "Users differ in a (standard deviation 1) and b (2)."
    )


def test_other_methods_tell_no_differences_and_no_intervals():
    X, y, users = world()
    model = ODCLRegressor(clusterer="kmeans:2").fit(X, y, users=users)
    assert model.differences_ == {}
    assert "fitted by KMeansPP(n_clusters=2)" in refusal(model.predict_interval, X, users=users)
    assert "probability" in refusal(mixed().fit(X, y, users=users).predict_interval, X, 1, users)


@pytest.mark.parametrize(
    ("loss", "dim", "settings", "said"),
    [
        ("poisson", 100, {}, "Intervals need at most 100 parameters; this model has 101."),
        ("squared", 2, {"method": "paper"}, "this model was fitted by KMeansPP"),
        ("squared", 2, {"method": Method(combine="samples")}, "combine='samples' was asked for"),
    ],
)
def test_a_model_without_intervals_says_why_and_not_what_was_done_already(
    loss, dim, settings, said
):
    rng = np.random.default_rng(0)
    X, users = rng.standard_normal((60, dim)), np.repeat(np.arange(6), 10)
    y = rng.poisson(2.0, 60).astype(float)
    model = ODCLRegressor(loss=loss, **settings).fit(X, y, users=users)
    for ask in ({"coverage": 0.9}, {}):
        function = model.predict_interval if ask else partial(model.predict, return_std=True)
        told = refusal(function, X, users=users, **ask)
        assert said in told
        assert "clusterer='auto'" not in told


# -- intervals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("differ", "groups"), [(0.5, 2), (0.0, 3), (1.0, 1)])
def test_intervals_hold_what_they_promise(differ, groups):
    """85 to 95 % of held-out rows lie in intervals of 90 %: 1,200 rows tell to one percent."""
    X, y, users = world(60, 30, differ=differ, groups=groups, seed=3)
    train = np.tile(np.arange(30) < 10, 60)
    model = mixed().fit(X[train], y[train], users=users[train])
    low, high = model.predict_interval(X[~train], 0.9, users[~train])
    assert 0.85 <= np.mean((low <= y[~train]) & (y[~train] <= high)) <= 0.95
    with pytest.raises(ValueError, match=r"is a probability.*owners of rows are named as users="):
        model.predict_interval(X[~train], users[~train])
    mean, std = model.predict(X[~train], users[~train], return_std=True)
    assert_allclose(mean, (low + high) / 2, rtol=1e-10, atol=1e-10)
    assert abs(np.std((y[~train] - mean) / std) - 1) < 0.15


@pytest.mark.filterwarnings("ignore:200 of 200 rows")
def test_an_unknown_user_may_be_anywhere():
    """Intervals for users without rows are as wide as users differ, and cover."""
    X, y, users = world(80, 10, differ=1.5, groups=1, seed=4)
    old = users < 60
    model = mixed().fit(X[old], y[old], users=users[old])
    low, high = model.predict_interval(X[~old], 0.9, users[~old])
    assert 0.8 <= np.mean((low <= y[~old]) & (y[~old] <= high)) <= 0.98


# -- users who come later ------------------------------------------------------------------------


def test_more_rows_of_a_user_count_as_if_they_had_always_been_there():
    """To 1e-9, what the fit gave the user with all these rows: model, covariance and noise."""
    X, y, users = world()
    mine = np.flatnonzero(users == 5)
    model = mixed().fit(X, y, users=users)
    later, whole = model.assign(X[mine], y[mine]), model
    for rows in (mine[:1], mine[1:4]):
        model.add_user(f"new {len(rows)}", X[rows], y[rows])
    assert_allclose(later.theta, whole.theta_[5], rtol=1e-9, atol=1e-9)
    model.update_user("new 1", X[mine[1:]], y[mine[1:]])
    model.update_user("new 3", X[mine[[0, *range(4, 12)]]], y[mine[[0, *range(4, 12)]]])
    for at in (-1, -2):
        assert_allclose(model.theta_[at], model.theta_[5], rtol=1e-9, atol=1e-9)
        assert_allclose(model.covariance_[at], model.covariance_[5], rtol=1e-9, atol=1e-9)
        assert_allclose(model.noise_[at], model.noise_[5], rtol=1e-9)
        assert model.labels_[at] == model.labels_[5]


@every_term_loss
def test_a_user_takes_part_from_its_first_row_on(loss):
    X, y, users = world(differ=0.1)
    y = target_of_kind(loss, y)
    model = mixed(loss).fit(X, y, users=users)
    new = np.flatnonzero(users == 2)
    found = model.add_user("late", X[new[:1]], y[new[:1]])
    assert not found.none_of_these
    assert_allclose(found.probabilities.sum(), 1.0)
    assert np.isfinite(response(model, X[new], ["late"] * len(new))).all()
    label = model.update_user("late", X[new[1:]], y[new[1:]])
    assert label == model.labels_[2]
    again = model.update_user("late", X[new], y[new], all_rows=True)
    assert again == label
    assert_allclose(model.theta_[-1], model.theta_[2], rtol=1e-6, atol=1e-6)


@every_term_loss
def test_a_user_that_fits_nowhere_keeps_a_model_of_its_own(loss):
    X, y, users = world(m=40, n=40, differ=0.0, seed=1)
    rng = np.random.default_rng(0)
    model = mixed(loss).fit(X, target_of_kind(loss, y), users=users)
    groups = [np.linalg.lstsq(X[users % 2 == g], y[users % 2 == g], rcond=None)[0] for g in (0, 1)]
    across = np.cross(*groups)
    X_new = rng.standard_normal((80, 3))
    y_new = 5 * X_new @ across / np.linalg.norm(across) + rng.standard_normal(80)
    target = target_of_kind(loss, np.concatenate([y_new, y]))[:80]
    found = model.add_user("stranger", X_new[:40], target[:40])
    assert found.none_of_these
    assert found.label == model.labels_[-1] == -1
    assert found.distance > 2
    ours = response(model, X_new[40:], ["stranger"] * 40)
    other = response(model, X_new[40:], [0] * 40)
    assert _score(ours, target[40:], model) < 0.5 * _score(other, target[40:], model)


def test_a_stranger_is_not_taken_for_a_noisy_member():
    """Where users' noise differs, a newcomer's is read off its own residuals, not its distance."""
    X, y, users = world(m=40, n=40, differ=0.0, groups=1, seed=2)
    rng = np.random.default_rng(0)
    y = y + rng.standard_normal(len(y)) * np.exp(rng.standard_normal(40))[users]
    model = mixed().fit(X, y, users=users)
    assert np.ptp(model.noise_) > 0
    assert not model.assign(X[users == 3], y[users == 3]).none_of_these
    there = X[users == 3] @ [9.0, -9.0, 9.0] + rng.standard_normal(40)
    assert model.assign(X[users == 3], there).none_of_these


def _score(predicted, target, model):
    if predicted.ndim == 1:
        return float(((predicted - target) ** 2).mean())
    at = np.searchsorted(model.classes_, target)
    return float(-np.log(predicted[np.arange(len(at)), at] + 1e-12).mean())


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
def test_members_are_hardly_ever_strangers(loss):
    """At most one of 60 newcomers of the groups themselves: one in ten thousand is promised."""
    X, y, users = world(m=100, n=20, differ=0.4, seed=6)
    y = target_of_kind(loss, y)
    old = users < 40
    model = mixed(loss).fit(X[old], y[old], users=users[old])
    found = [model.assign(X[users == u], y[users == u]) for u in range(40, 100)]
    assert sum(one.none_of_these for one in found) <= 1


# -- files ---------------------------------------------------------------------------------------


@every_term_loss
def test_a_loaded_model_is_the_one_saved(loss, tmp_path):
    X, y, users = world()
    y = target_of_kind(loss, y)
    model = mixed(loss, unknown="pooled").fit(X, y, users=users)
    model.add_user("late", X[:2], y[:2])
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    for name in ("theta_", "covariance_", "noise_", "dof_", "labels_"):
        assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert loaded.differences_ == model.differences_
    for who in (users, ["late"] * len(X), ["nobody"] * len(X)):
        assert_array_equal(response(loaded, X, who), response(model, X, who))
        if loss == "squared":
            both = (m.predict_interval(X, 0.8, who) for m in (loaded, model))
            assert_array_equal(*both)
    assert_array_equal(loaded.assign(X[:5], y[:5]).theta, model.assign(X[:5], y[:5]).theta)
    assert loaded.update_user("late", X[:9], y[:9]) == model.update_user("late", X[:9], y[:9])
    assert_array_equal(loaded.theta_, model.theta_)


def changed(**parts):
    def change(model):
        mixture = model.mixture_
        new = replace(mixture, **{k: f(mixture) for k, f in parts.items()})
        model._hold(replace(model.fitted_, mixture=new))

    return change


DAMAGE = {
    "a group less": (changed(weights=lambda m: m.weights[1:]), "shape"),
    "weights that do not sum to one": (changed(weights=lambda m: 2 * m.weights), "probabilities"),
    "a negative weight": (changed(weights=lambda m: m.weights - [2, -2]), "probabilities"),
    "a center that is NaN": (changed(centers=lambda m: m.centers * np.nan), "centers holds"),
    "a negative spread": (
        changed(spread=lambda m: replace(m.spread, matrix=-np.eye(4))),
        "spread of no law",
    ),
    "a spread of no shape": (changed(spread=lambda m: replace(m.spread, shape="round")), "round"),
    "covariances not definite": (
        changed(covariances=lambda m: -m.covariances),
        "covariances of no law",
    ),
    "a scale of zero": (changed(scales=lambda m: 0 * m.scales), "scales holds numbers"),
    "a noise below zero": (changed(noise=lambda m: replace(m.noise, s0=-1.0)), "noise"),
    "a noise of no rows": (changed(noise=lambda m: replace(m.noise, dof=0.0)), "noise"),
    "a target without a unit": (
        changed(coordinates=lambda m: replace(m.coordinates, target_scale=-1.0)),
        "a target of",
    ),
    "a column beyond the others": (
        changed(coordinates=lambda m: replace(m.coordinates, kept=m.coordinates.kept + 1)),
        "beyond",
    ),
    "a column less": (
        changed(coordinates=lambda m: replace(m.coordinates, kept=m.coordinates.kept[1:])),
        "shape|size",
    ),
    "users' noise of zero": (lambda model: model.noise_.fill(0.0), "noise holds numbers"),
    "another method": (
        lambda model: model._hold(replace(model.fitted_, mixture=None)),
        "not its own",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_mixture_that_does_not_hold_together_is_refused(damage, tmp_path):
    X, y, users = world()
    model = mixed().fit(X, y, users=users)
    assert model.n_clusters_ == 2
    change, message = DAMAGE[damage]
    change(model)
    model.save(tmp_path / "model")
    refusal(ODCLRegressor.load, tmp_path / "model", match=message)


def test_a_mixture_file_that_was_touched_is_refused(tmp_path):
    X, y, users = world()
    mixed().fit(X, y, users=users).save(tmp_path / "model")
    file = tmp_path / "model" / MIXTURE
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    refusal(ODCLRegressor.load, tmp_path / "model")


# -- the command ---------------------------------------------------------------------------------


def test_the_command_writes_intervals(command):
    frame = people()
    command("fit", save_csv(frame), *NO_HOLDOUT, "--clusters", "auto", "--out", "run")
    assert command("predict", "run", "table.csv", "--interval", "0.8", "--out", "p.csv").code == 0
    answer = read_table("p.csv")
    assert answer.column_names == ["user", "row", "prediction", "low", "high"]
    model = ODCLRegressor.load("run")
    X = np.ascontiguousarray(frame[["a", "b", "c"]])
    low, high = model.predict_interval(X, coverage=0.8, users=frame.user)
    assert_array_equal(answer["low"].to_numpy(), low)
    assert_array_equal(answer["high"].to_numpy(), high)
    assert command("predict", "run", "table.csv", "--interval", "1.5").code != 0


def test_the_command_refuses_intervals_of_classes_and_of_other_methods(command):
    save_csv(people_in_classes(), "classes.csv")
    command("fit", "classes.csv", *NO_HOLDOUT, "--clusters", "auto", "--out", "run")
    assert "predicts classes" in command("predict", "run", "classes.csv", "--interval", "0.9").err
    command("fit", save_csv(people()), *NO_HOLDOUT, "--clusters", "kmeans:2", "--out", "other")
    said = command("predict", "other", "table.csv", "--interval", "0.9").err
    assert "Intervals need mixed groups, the default, and this model was fitted by KMeans" in said


def test_closed_shops_beside_open_ones_and_a_rare_level():
    """A third of the users have a target of zero, always; the order of rows changes nothing."""
    rng = np.random.default_rng(7)
    users = np.repeat(np.arange(90), 30)
    x = rng.standard_normal((len(users), 3))
    sales = 5 + (x * np.array([[1, 2, 0], [-1, 0, 2]])[users % 2]).sum(axis=1)
    sales = np.where(users < 30, 0.0, sales + 0.5 * rng.standard_normal(len(users)))
    table = pd.DataFrame({"shop": users, "a": x[:, 0], "b": x[:, 1], "c": x[:, 2]})
    table["kind"] = rng.choice(["x", "y", "z"], len(users), p=[0.6, 0.38, 0.02])
    held = rng.random(len(users)) < 0.25

    def predictions(rows):
        model = ODCLRegressor(users="shop", categorical=["kind"])
        model.fit(table.iloc[rows], sales[rows])
        assert model.n_clusters_ == 3
        return model.predict(table[held])

    found = predictions(np.flatnonzero(~held))
    away, closed = found - sales[held], users[held] < 30
    assert np.sqrt((away[~closed] ** 2).mean()) < 0.55
    assert np.abs(away[closed]).max() < 0.1
    assert_allclose(predictions(np.flatnonzero(~held)[::-1]), found, atol=1e-7)
