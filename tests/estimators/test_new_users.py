"""New users are assigned to a group or to none, and can be added."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import ODCLClassifier, ODCLRegressor
from odcl.server.assign import with_more_terms
from tests.helpers import (
    FRAME_COLUMNS,
    LOSS_NAMES,
    estimator_for,
    model_of,
    models_of,
    poisson_counts,
    target_of_kind,
)


class World:
    """Three groups of users, and people from nowhere."""

    def __init__(self, kind, *, dim=5, size=1.0, differ=0.0, seed=0):
        self.kind, self.differ = kind, differ
        self.rng = np.random.default_rng(seed)
        outputs = 3 if kind == "multinomial" else 1
        self.centers = size * self.rng.standard_normal((4, dim, outputs))

    def rows(self, group, n):
        """Rows of a new user of a group; group 3 is nowhere."""
        center = self.centers[group]
        model = center + self.differ * self.rng.standard_normal(center.shape)
        X = self.rng.standard_normal((n, len(center)))
        z = X @ model
        if self.kind == "multinomial":
            return X, (z + self.rng.gumbel(size=z.shape)).argmax(axis=1)
        z = z[:, 0]
        if self.kind == "logistic":
            return X, np.where(z + self.rng.logistic(size=n) > 0, "yes", "no")
        if self.kind == "poisson":
            return X, poisson_counts(z, self.rng)
        return X, z + self.rng.normal(size=n)

    def fit(self, model, *, n_users=36, n_samples=100):
        groups = np.arange(n_users) * 3 // n_users
        parts = [self.rows(g, n_samples) for g in groups]
        X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
        model.fit(X, y, users=np.repeat(np.arange(n_users), n_samples))
        assert_array_equal(model.labels_, groups)
        return model


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_a_member_is_assigned_to_its_group_and_a_stranger_to_none(loss):
    world = World(loss)
    model = world.fit(estimator_for(loss, clusterer=3))
    for group in (0, 1, 2):
        X, y = world.rows(group, 100)
        found = model.assign(X, y)
        assert (found.label, found.none_of_these) == (group, False)
        assert found.probability > 0.99
        assert found.probability == found.probabilities.max()
        assert found.probabilities.sum() == pytest.approx(1.0)
        assert 0.3 < found.distance < 2.0
        assert found.coef.shape == model.coef_.shape[1:]
    X, y = world.rows(3, 300)
    found = model.assign(X, y)
    assert (found.label, found.none_of_these) == (-1, True)
    assert found.distance > 2.0
    # Nobody else's model: its own.
    alone = estimator_for(loss).fit(X, y)
    assert np.abs(model_of(found) - models_of(model, groups=True)).max() > 0.3
    if loss != "huber":  # whose delta hangs on the federation's residuals
        assert_allclose(model_of(found), models_of(alone)[0], rtol=0.2, atol=0.1)


CALIBRATION = [
    ("squared", {}, {}),
    ("squared", {"l2": 0.1}, {}),
    ("squared", {}, {"differ": 0.2}),
    ("logistic", {}, {}),
    ("logistic", {"l2": 0.1}, {}),
    ("logistic", {"l2": 0.0}, {"size": 2.0}),
    ("multinomial", {}, {}),
    ("poisson", {}, {}),
    ("huber", {}, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "settings", "world"), CALIBRATION)
def test_false_alarms_are_rare_whatever_the_number_of_rows(loss, settings, world):
    """Of 100 or 200 members of 1 to 500 rows, at most 2 % are taken for strangers.

    The penalty's shrinkage, differences inside groups, nearly certain labels and a noise scale
    from two degrees of freedom would all pass for strangeness if the distance were read off the
    user's own model.
    """
    world = World(loss, **{"size": 1.5 if loss == "logistic" else 1.0, **world})
    model = world.fit(estimator_for(loss, **{"clusterer": 3, **settings}))
    sizes = [1, 4, 20, 100, 500] * (40 if loss in ("squared", "logistic") else 20)
    found = [(n, i % 3, model.assign(*world.rows(i % 3, n))) for i, n in enumerate(sizes)]
    assert np.mean([a.none_of_these for _, _, a in found]) <= 0.02
    right = [int(a.probabilities.argmax()) == group for n, group, a in found if n >= 100]
    assert np.mean(right) > 0.95  # where users of a group differ, a few lie between groups
    distances = np.array([a.distance for n, _, a in found if n >= 4])
    assert 0.5 < np.median(distances) < 1.3  # in noise units, whatever the number of rows
    strangers = [model.assign(*world.rows(3, 500)) for _ in range(5)]
    assert all(a.none_of_these for a in strangers)


def test_a_printed_assignment_is_a_sentence():
    world = World("squared")
    model = world.fit(ODCLRegressor(clusterer="auto"))
    found = model.add_user("new", *world.rows(1, 30))
    told = f"By 30 rows, this user belongs to group {found.label}"
    assert str(found) in (f"{told}.", f"{told} with probability {found.probability:.2f}.")
    assert str(replace(found, probability=0.875)) == f"{told} with probability 0.88."
    far = model.assign(*world.rows(3, 500))
    assert str(far) == "By 500 rows, this user fits none of the groups: it has a model of its own."


def test_a_noisier_member_is_no_stranger():
    world = World("squared")
    model = world.fit(ODCLRegressor(clusterer=3, random_state=0))
    alarms = 0
    for i in range(100):
        X, y = world.rows(i % 3, 50)
        alarms += model.assign(X, y + 2.0 * world.rng.normal(size=50)).none_of_these
    assert alarms <= 2


def test_groups_of_one_user_leave_room_for_their_own_noise():
    """The centre is then as noisy as the newcomer: twice the variance, no alarm."""
    rng = np.random.default_rng(0)
    centers = 3.0 * rng.standard_normal((3, 4))

    def rows(k, n):
        X = rng.standard_normal((n, 4))
        return X, X @ centers[k] + rng.standard_normal(n)

    alarms = 0
    for _ in range(40):
        X, y = (np.concatenate(p) for p in zip(*(rows(k, 30) for k in range(3)), strict=True))
        model = ODCLRegressor(clusterer=3, random_state=0)
        model.fit(X, y, users=np.repeat(np.arange(3), 30))
        alarms += sum(model.assign(*rows(k, 100)).none_of_these for k in range(3))
    assert alarms <= 2


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_one_row_or_one_class_is_enough_to_be_assigned(table, loss):
    X, y, users = table
    y = target_of_kind(loss, y)
    model = estimator_for(loss).fit(X, y, users=users)
    for rows in (slice(0, 1), np.flatnonzero(y == y[0])[:20], np.zeros(30, dtype=int)):
        found = model.assign(X[rows], y[rows])
        assert np.isfinite(model_of(found)).all()
        assert np.isfinite(found.probabilities).all()
        assert found.probability >= 1 / model.n_clusters_


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_the_order_of_a_newcomers_rows_does_not_matter(table, loss):
    X, y, users = table
    y = target_of_kind(loss, y)
    model = estimator_for(loss).fit(X, y, users=users)
    rows = np.flatnonzero(users == 5)
    one, other = model.assign(X[rows], y[rows]), model.assign(X[rows[::-1]], y[rows[::-1]])
    assert one.label == other.label == model.labels_[5]
    assert one.distance == pytest.approx(other.distance, rel=1e-9)
    assert_allclose(one.probabilities, other.probabilities, rtol=1e-7, atol=1e-12)
    assert_allclose(model_of(one), model_of(other), rtol=1e-7, atol=1e-9)


def test_noise_free_rows_are_no_strangers(table):
    X, _, users = table
    y = X @ np.arange(1.0, 6.0) * np.where(users < 12, 1.0, -1.0)
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    found = model.assign(X[users == 0], y[users == 0])
    assert (found.label, found.none_of_these) == (model.labels_[0], False)


@pytest.mark.parametrize(("clusterer", "expected"), [("kmeans:3", "group"), (3, "between")])
def test_a_newcomer_gets_its_model_as_the_others_did(clusterer, expected):
    world = World("squared", differ=0.2)
    model = world.fit(ODCLRegressor(clusterer=clusterer, random_state=0))
    X, y = world.rows(1, 40)
    found = model.assign(X, y)
    own = models_of(ODCLRegressor().fit(X, y))[0]
    group = models_of(model, groups=True)[found.label]
    if expected == "between":
        assert 0 < np.linalg.norm(model_of(found) - group) < np.linalg.norm(own - group)
    else:
        assert_allclose(model_of(found), group, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_where_models_were_clustered_a_newcomer_joins_the_group_that_loses_least(loss):
    world = World(loss)
    model = world.fit(estimator_for(loss, clusterer="kmeans:3"))
    for group in (0, 1, 2):
        found = model.assign(*world.rows(group, 100))
        assert (found.label, found.none_of_these) == (group, False)
        assert found.probability == found.probabilities.max() > 0.99
        assert_allclose(model_of(found), models_of(model, groups=True)[group], rtol=1e-9)


def test_an_added_user_is_known(table):
    X, y, users = table
    rows = np.flatnonzero(users == 5)
    rest = np.flatnonzero(users != 5)
    model = ODCLRegressor(random_state=0).fit(X[rest], y[rest], users=users[rest])
    before = model.predict(X[rest], users=users[rest])
    sure = model.predict_interval(X[rest], users=users[rest])
    found = model.add_user("newcomer", X[rows[7:]], y[rows[7:]])
    assert model.n_rows_.tolist() == [60] * 23 + [53]
    assert_array_equal(model.predict_interval(X[rest], users=users[rest]), sure)
    low, high = model.predict_interval(X[rows], users=["newcomer"] * len(rows))
    assert np.mean((low <= y[rows]) & (y[rows] <= high)) > 0.8
    assert model.users_[-1] == "newcomer"
    assert model.labels_[-1] == found.label
    predicted = model.predict(X[rows], users=["newcomer"] * len(rows))
    D = np.column_stack([X[rows], np.ones(len(rows))])
    assert_allclose(predicted, D @ model_of(found), rtol=1e-9, atol=1e-9)
    assert_allclose(models_of(model)[-1], model_of(found), rtol=1e-12)
    assert_array_equal(model.predict(X[rest], users=users[rest]), before)
    with pytest.raises(ValueError, match=r"'newcomer'\) known already"):
        model.add_user("newcomer", X[rows], y[rows])
    model.add_user(7_000, X[rows[7:]], y[rows[7:]])
    assert_array_equal(model.predict(X[rows], users=[7_000] * len(rows)), predicted)


def test_threads_that_add_users_to_one_model_lose_nobody(table):
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    found = model.assign(X[:9], y[:9])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def add(part):
        for i in range(25):
            model._add_assigned([f"new-{part}-{i}"], [found])
            model.predict(X[:2], users=[f"new-{part}-{i}"] * 2)
            model.update_user(part, X[:1], y[:1], again=True)

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, range(8)))
    finally:
        sys.setswitchinterval(before)
    assert len(set(model.users_.tolist())) == len(model.users_) == 24 + 200
    assert len(model.labels_) == len(model.theta_) == len(model.probability_) == 224
    assert model.uploads_.users.tolist() == model.users_.tolist()
    assert model.n_rows_.tolist() == [85] * 8 + [60] * 16 + [9] * 200


def test_threads_that_update_one_user_lose_no_rows(table, monkeypatch):
    """Had they no lock, both would start from the upload of the fit."""
    X, y, users = table
    model = ODCLRegressor(clusterer=4, random_state=0).fit(X, y, users=users)
    meet = threading.Barrier(2)

    def slow(*rows):
        with suppress(threading.BrokenBarrierError):
            meet.wait(0.1)
        return with_more_terms(*rows)

    monkeypatch.setattr("odcl.fitted.users.with_more_terms", slow)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda i: model.update_user(3, X[i : i + 1], y[i : i + 1]), range(2)))
    assert model.uploads_.n_samples[3] == model.n_rows_[3] == 62


def test_whoever_predicts_while_a_user_is_added_finds_it_whole_or_not_at_all(table):
    X, y, users = table

    class Watched(ODCLRegressor):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if getattr(self, "watching", False):
                with suppress(ValueError):  # "not in the fit"; other errors are not suppressed
                    seen.append(self.predict(X[:3], users=["new"] * 3))

    seen = []
    model = Watched(unknown="error", random_state=0).fit(X, y, users=users)
    model.watching = True
    model.add_user("new", X[:9], y[:9])
    assert len(seen) >= 1
    assert all((one == seen[0]).all() for one in seen)


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_more_rows_of_a_known_user_bring_its_model_nearer_to_that_of_all_its_rows(loss):
    """Exactly so for the squared loss, and to second order for the others."""
    world = World(loss, differ=0.3, size=1.5)
    model = world.fit(estimator_for(loss, clusterer=3))
    X, y = world.rows(1, 200)
    model.add_user("new", X[:100], y[:100])
    before = models_of(model)[-1]
    whole = model_of(model.assign(X, y))
    assert model.update_user("new", X[100:], y[100:]) == 1
    after = models_of(model)[-1]
    assert np.linalg.norm(after - whole) < 0.7 * np.linalg.norm(before - whole)
    if loss == "squared":
        assert_allclose(after, whole, rtol=1e-9, atol=1e-9)
    assert model.n_rows_[-1] == 200
    assert model.update_user("new", X, y, all_rows=True) == 1
    assert_allclose(models_of(model)[-1], whole, rtol=1e-12)
    assert model.n_rows_[-1] == 200
    with pytest.raises(
        ValueError, match=r"not in the fit \(such as 'nobody'\): add new users with add_user"
    ):
        model.update_user("nobody", X, y)


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_a_stranger_who_gets_more_rows_keeps_its_own_model(loss):
    world = World(loss)
    model = world.fit(estimator_for(loss, clusterer=3))
    X, y = world.rows(3, 320)
    assert model.add_user("stranger", X[:300], y[:300]).none_of_these
    assert model.update_user("stranger", X[300:], y[300:]) == -1
    own = models_of(estimator_for(loss).fit(X, y))[0]
    if loss != "huber":  # whose delta hangs on the federation's residuals
        assert_allclose(models_of(model)[-1], own, rtol=0.2, atol=0.1)


@pytest.mark.parametrize("column", ["store", 1, -5])
def test_a_newcomers_rows_may_come_with_or_without_the_users_column(frame, column):
    X, y = frame
    old = X["store"] != "s05"
    model = ODCLRegressor(users=column, clusterer=4, random_state=0).fit(X[old], y[old])
    rows, target = X[~old], y[~old]
    with_column = model.assign(rows, target)
    assert_array_equal(model_of(with_column), model_of(model.assign(rows[FRAME_COLUMNS], target)))
    assert_array_equal(
        model_of(with_column), model_of(model.assign(rows[FRAME_COLUMNS].to_numpy(), target))
    )
    turned = model.assign(rows[rows.columns[::-1]], target)
    assert_array_equal(model_of(with_column), model_of(turned))
    with pytest.raises(ValueError, match="rows of 24 users, and one user"):
        model.assign(X, y)
    model.add_user("s05", rows, target)
    assert model.predict(rows).shape == (60,)


def test_a_newcomers_labels_are_those_of_the_fit(table):
    X, y, users = table
    model = ODCLClassifier().fit(X, np.where(y > 0, "yes", "no"), users=users)
    with pytest.raises(ValueError, match=r"'perhaps' is not one of the classes .*: 'no', 'yes'"):
        model.assign(X[:2], ["yes", "perhaps"])
    with pytest.raises(ValueError, match="inconsistent"):
        model.assign(X[:2], ["yes"])
    with pytest.raises(ValueError, match="NaN"):
        model.assign(np.full((1, 5), np.nan), ["yes"])


@pytest.mark.parametrize("seed", range(4))
def test_a_fit_with_a_user_set_aside_is_read_back(seed, tmp_path):
    """Whether it has a group of its own or is in another one: no group is without users."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(40), 25)
    X = rng.standard_normal((len(users), 2))
    y = X @ [1.0, -1.0] + rng.standard_normal(len(users))
    y[users == 13] *= 1000
    model = ODCLRegressor(robust=True).fit(X, y, users)
    assert np.bincount(model.labels_, minlength=model.n_clusters_).min() > 0
    model.save(tmp_path / "model")
    assert_array_equal(ODCLRegressor.load(tmp_path / "model").labels_, model.labels_)


def test_a_user_whose_target_is_in_another_unit_has_intervals_of_its_own_noise():
    """Others' noise, a thousand times smaller, says nothing of it."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(40), 25)
    X = rng.standard_normal((len(users), 2))
    y = X @ [1.0, -1.0] + rng.standard_normal(len(users))
    y[users == 13] *= 1000
    model = ODCLRegressor(robust=True).fit(X, y, users)
    X_new = rng.standard_normal((2000, 2))
    y_new = X_new @ [1.0, -1.0] + rng.standard_normal(2000)
    for user, unit in ((13, 1000), (14, 1)):
        low, high = model.predict_interval(X_new, 0.9, users=np.full(2000, user))
        assert 0.8 < np.mean((low <= unit * y_new) & (unit * y_new <= high)) < 0.97
