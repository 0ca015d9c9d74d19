"""Users are better off with the estimators than alone, and than with one model for all."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss

from odcl import (
    Huber,
    KMeansPP,
    ODCLClassifier,
    ODCLRegressor,
    linear_federation,
    logistic_federation,
)
from tests.helpers import train_and_test


def users_in_classes(n_users, n_samples, n_classes=2, *, groups=3, dim=3, size=1.5, seed=0):
    """X, y, users and groups of a classification with hidden groups."""
    rng = np.random.default_rng(seed)
    centers = size * rng.standard_normal((groups, dim, n_classes))
    group = np.arange(n_users) * groups // n_users
    users = np.repeat(np.arange(n_users), n_samples)
    X = rng.standard_normal((len(users), dim))
    z = np.einsum("nd,ndc->nc", X, centers[group[users]]) + rng.gumbel(size=(len(users), n_classes))
    return X, z.argmax(axis=1), users, group


class Apart:
    """A clusterer that leaves every user alone."""

    def fit(self, X):
        self.labels_ = np.arange(len(X))
        return self


def each_user_alone(model):
    """The same estimator with every user alone."""
    return clone(model).set_params(clusterer=Apart())


@pytest.mark.parametrize("seed", range(3))
def test_users_are_better_off_than_alone_and_than_with_one_model(seed):
    """The paper's linear set-up, 100 users and 100 rows each: held-out error against the noise."""
    federation = linear_federation(100, 200, n_clusters=4, seed=seed)
    X, y, users = federation.X, federation.y, federation.row_user
    train, test = train_and_test(len(y), seed)

    def error(model, **who):
        return np.mean((model.predict(X[test], **who) - y[test]) ** 2)

    model = ODCLRegressor(random_state=0)
    ours = error(clone(model).fit(X[train], y[train], users=users[train]), users=users[test])
    alone = error(
        each_user_alone(model).fit(X[train], y[train], users=users[train]), users=users[test]
    )
    pooled = error(clone(model).fit(X[train], y[train]))
    # Noise has variance 1; a user alone adds dim / n = 21 / 100, a group of 25 a 25th of that.
    assert ours < 1.03
    assert alone > 1.15
    assert pooled > 4.0


def test_classifiers_are_better_off_than_alone_and_than_with_one_model():
    federation = logistic_federation(100, 200, seed=0)
    X, y, users = federation.X, federation.y, federation.row_user
    train, test = train_and_test(len(y))
    model = ODCLClassifier(random_state=0)

    def loss(fitted, **who):
        return log_loss(y[test], fitted.predict_proba(X[test], **who))

    ours = clone(model).fit(X[train], y[train], users=users[train])
    alone = each_user_alone(model).fit(X[train], y[train], users=users[train])
    assert ours.n_clusters_ == 4
    assert_array_equal(ours.classes_, [-1, 1])
    assert loss(ours, users=users[test]) < loss(alone, users=users[test])
    assert loss(ours, users=users[test]) < loss(clone(model).fit(X[train], y[train])) - 0.1
    assert ours.score(X[test], y[test], users=users[test]) > alone.score(
        X[test], y[test], users=users[test]
    )


@pytest.mark.parametrize("n_classes", [3, 5])
def test_more_than_two_classes(n_classes):
    X, y, users, groups = users_in_classes(30, 200, n_classes)
    train, test = train_and_test(len(y))
    names = np.array(["ash", "birch", "cedar", "elm", "fir"])[y]
    model = ODCLClassifier(random_state=0).fit(X[train], names[train], users=users[train])
    alone = each_user_alone(model).fit(X[train], names[train], users=users[train])
    assert model.n_clusters_ == 3
    assert_array_equal(groups, model.labels_)
    p = model.predict_proba(X[test], users=users[test])
    assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    assert_array_equal(model.classes_[p.argmax(axis=1)], model.predict(X[test], users=users[test]))
    assert log_loss(names[test], p) < log_loss(
        names[test], alone.predict_proba(X[test], users=users[test])
    )


def test_counts():
    rng = np.random.default_rng(0)
    X, users = rng.standard_normal((4000, 3)), np.repeat(np.arange(40), 100)
    centers = np.array([[0.6, 0.0, 0.3], [-0.6, 0.3, 0.0]])
    rate = np.exp(0.5 + (X * centers[users % 2]).sum(axis=1))
    y = rng.poisson(rate)
    train, test = train_and_test(len(y))
    model = ODCLRegressor("poisson", random_state=0).fit(X[train], y[train], users=users[train])
    alone = each_user_alone(model).fit(X[train], y[train], users=users[train])

    def error(fitted):
        return np.mean((fitted.predict(X[test], users=users[test]) / rate[test] - 1.0) ** 2)

    assert model.n_clusters_ == 2
    assert error(model) < 0.2 * error(alone)


def test_huber_is_not_impressed_by_outliers(table):
    X, y, users = table
    spoiled = y.copy()
    rng = np.random.default_rng(0)
    bad = rng.random(len(y)) < 0.05
    spoiled[bad] += 1000.0 * rng.standard_normal(bad.sum())
    clean = ODCLRegressor(random_state=0).fit(X, y, users=users)
    robust = ODCLRegressor("huber", random_state=0).fit(X, spoiled, users=users)
    assert_array_equal(robust.labels_, clean.labels_)
    gap = robust.predict(X, users=users) - clean.predict(X, users=users)
    assert np.sqrt(np.mean(gap**2)) < 0.15  # the noise is 1
    # 1.345 times the scale of the noise, within the outliers' five percent.
    assert robust.risk_.loss.delta == pytest.approx(1.345, rel=0.15)
    # A Loss given is taken as it is, in the target's units.
    assert ODCLRegressor(Huber(2.5)).fit(X, y, users=users).risk_.loss.delta == 2.5


def test_huber_takes_its_scale_from_users_who_can_tell():
    """Users with as many rows as parameters fit them exactly and say nothing of the noise."""
    rng = np.random.default_rng(0)
    sizes = np.array([4] * 60 + [60] * 10)
    users = np.repeat(np.arange(70), sizes)
    X = rng.standard_normal((len(users), 3))
    y = X.sum(axis=1) + 0.5 * rng.standard_normal(len(users))
    model = ODCLRegressor("huber", random_state=0).fit(X, y, users=users)
    assert model.risk_.loss.delta == pytest.approx(1.345 * 0.5, rel=0.15)
    tiny = users < 60
    nobody = ODCLRegressor("huber", random_state=0).fit(X[tiny], y[tiny], users=users[tiny])
    assert nobody.risk_.loss.delta == pytest.approx(1.345 * 0.5, rel=0.3)


@pytest.mark.parametrize("settings", [{"solver": Ridge(1e-6)}, {"clusterer": KMeansPP(4)}])
def test_other_solvers_and_clusterers_plug_in(table, settings):
    X, y, users = table
    settings = {"clusterer": "kmeans:4"} | settings
    model = ODCLRegressor(clusterer="kmeans:4", random_state=0).fit(X, y, users=users)
    other = ODCLRegressor(**settings, random_state=0).fit(X, y, users=users)
    assert_array_equal(other.labels_, model.labels_)
    assert_allclose(other.predict(X, users), model.predict(X, users), rtol=1e-3, atol=1e-3)
