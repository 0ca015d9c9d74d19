"""Users with more parameters than rows, through the estimators' doors."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Method, ODCLClassifier, ODCLRegressor

N_FEATURES = 120
SIZES = (1, 1, 2, 3, 5, 60, 40, *[15] * 13)


def odd_users():
    """Users of 1 to 60 rows in two labellings, of which one lacks a class; some see one class."""
    rng = np.random.default_rng(0)
    centers = 0.6 * rng.standard_normal((3, N_FEATURES))
    users, kind = np.repeat(np.arange(len(SIZES)), SIZES), rng.integers(3, size=sum(SIZES))
    kind[(users == 8) | (users == 9)] = 0
    kind[users % 2 == 1] %= 2
    X = centers[(kind + users % 2) % 3] + rng.standard_normal((len(kind), N_FEATURES))
    X[:, 7], X[:, 9], X[:, 10] = 1.5, X[:, 8], users  # constant, twice the same, one value a user
    return X, np.array(["lo", "mid", "hi"])[kind], users


@pytest.fixture(scope="module")
def classes():
    X, y, users = odd_users()
    return ODCLClassifier().fit(X, y, users), X, y, users


def test_users_with_a_row_or_a_class_have_models_and_probabilities(classes):
    """A group may have one row of a class: its scores have no variance but that of rounding."""
    model, X, y, users = classes
    p = model.predict_proba(X, users=users)
    assert_allclose(p.sum(axis=1), 1.0)
    assert p.shape[1] == 3
    assert np.mean(model.predict(X, users=users) == y) > 0.9
    with pytest.warns(UserWarning, match="not in the fit"):
        assert_allclose(model.predict_proba(X[:4], users=[99] * 4).sum(axis=1), 1.0)


def test_a_wide_model_read_back_predicts_the_same(classes, tmp_path):
    model, X, y, users = classes
    p = model.predict_proba(X, users=users)
    model.save(tmp_path / "model")
    for again in (ODCLClassifier.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert_array_equal(again.predict_proba(X, users=users), p)
        late, known = (one.assign(X[-15:], y[-15:]) for one in (again, model))
        assert (late.label, late.probability) == (known.label, known.probability)


def test_neither_the_order_of_rows_nor_that_of_users_matters(classes):
    model, X, y, users = classes
    order = np.random.default_rng(1).permutation(len(y))
    again = ODCLClassifier().fit(X[order], y[order], users[order])
    assert_array_equal(again.labels_, model.labels_)
    assert_allclose(again.theta_, model.theta_, rtol=1e-8, atol=1e-10)


def test_users_far_from_their_groups_level_are_placed_by_their_slopes():
    rng = np.random.default_rng(2)
    m, n = 24, 60
    slopes = rng.standard_normal((2, N_FEATURES)) / np.sqrt(N_FEATURES)
    users = np.repeat(np.arange(m), n)
    X = rng.standard_normal((m * n, N_FEATURES))
    signal = (X * slopes[users % 2]).sum(axis=1) + 0.2 * rng.standard_normal(m * n)
    y = 4 * rng.standard_normal(m)[users] + 2 * signal
    model = ODCLRegressor().fit(X, y, users)
    assert_array_equal(model.labels_, np.arange(m) % 2)
    low, high = model.predict_interval(X, users=users)
    assert np.mean((low <= y) & (y <= high)) > 0.8
    order = rng.permutation(len(y))
    again = ODCLRegressor().fit(X[order], y[order], users[order])
    assert_allclose(again.theta_, model.theta_, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("short_terms", [True, False])
def test_groups_that_are_too_small_are_not_told(short_terms):
    X, y, users = odd_users()
    method = Method(smallest_group=11, short_terms=short_terms)
    model = ODCLClassifier(method=method).fit(X, y, users)
    assert model.n_clusters_ == 1
    assert ODCLClassifier(method=Method("auto:1")).fit(X, y, users).n_clusters_ == 1


def test_users_with_one_row_each_have_finite_predictions_and_intervals():
    rng = np.random.default_rng(3)
    X, users = rng.standard_normal((30, 150)), np.arange(30)
    model = ODCLRegressor().fit(X, rng.standard_normal(30), users)
    assert model.n_clusters_ == 1
    for values in (model.predict(X, users=users), *model.predict_interval(X, users=users)):
        assert np.isfinite(values).all()


def test_new_users_with_a_row_or_two_are_unsure_of_their_group_and_say_so():
    rng = np.random.default_rng(4)
    slopes = rng.standard_normal((2, 120)) / 3

    def rows(group, n):
        X = rng.standard_normal((n, 120))
        return X, X @ slopes[group] + rng.standard_normal(n)

    parts = [rows(i % 2, 60) for i in range(20)]
    X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    model = ODCLRegressor().fit(X, y, np.repeat(np.arange(20), 60))
    assert model.n_clusters_ == 2
    covered = []
    for i in range(8):
        own = rows(i % 2, 1)
        assert not model.assign(*own).none_of_these
        model.add_user(100 + i, *own)
        new, target = rows(i % 2, 100)
        low, high = model.predict_interval(new, users=np.full(100, 100 + i))
        covered.append(np.mean((low <= target) & (target <= high)))
    assert np.mean(covered) > 0.85
