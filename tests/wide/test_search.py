"""Groups of wide users from their class moments."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import adjusted_rand_score

from odcl.wide.classifiers import fit_scores, logistic_scores
from odcl.wide.moments import FOLDS, user_folds
from odcl.wide.search import classifier_cost, find_groups, group_classifiers
from tests.wide.worlds import grouped_rows, moments_of


def two_of_each(r):
    return bool(np.bincount(r.argmax(axis=1), minlength=r.shape[1]).min() >= 2)


def found_in(data, **asked):
    return find_groups(data, two_of_each, partial(classifier_cost, data), **asked)


def world(seed, group, n, n_classes=3, **words):
    X, y, users = grouped_rows(seed, group, n, n_classes=n_classes, **words)
    return moments_of(X, y, users, n_classes)


@pytest.mark.parametrize(
    ("n_groups", "n_classes", "words"),
    [
        (2, 2, {"roll": 1}),
        (2, 10, {"roll": 5, "length": 5.0}),
        (3, 10, {"roll": 3, "length": 5.0}),
        (2, 3, {"apart": 3.0}),
        (4, 3, {"apart": 4.0}),
    ],
)
def test_groups_are_found(n_groups, n_classes, words):
    group = np.arange(24) % n_groups
    found = found_in(world(0, group, 5 * n_classes, n_classes, d=80, **words))
    assert found.shares.shape[1] == n_groups
    assert adjusted_rand_score(group, found.shares.argmax(axis=1)) == 1.0


def test_a_small_group_is_found():
    group = (np.arange(40) % 10 == 0).astype(int)
    found = found_in(world(0, group, 20, apart=4.0, d=80))
    assert adjusted_rand_score(group, found.shares.argmax(axis=1)) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_users_who_do_not_differ_are_one_group(seed):
    found = found_in(world(seed, [0] * 40, 15))
    assert found.shares.shape[1] == 1
    assert found.alike


def test_gradual_differences_are_no_groups():
    found = found_in(world(0, [0] * 40, 40, differ=2.0, d=60))
    assert found.shares.shape[1] == 1
    assert not found.alike


def test_the_order_of_users_is_irrelevant():
    group = np.arange(24) % 2
    X, y, users = grouped_rows(1, group, 12, apart=3.0, d=80)
    data = moments_of(X, y, users, 3)
    order = np.random.default_rng(0).permutation(24)
    place = np.argsort(order)
    rows = np.random.default_rng(1).permutation(len(data.draws))
    told = data.draws[rows], place[data.owner[rows]], data.of_class[rows]
    turned = type(data)(order, data.counts[order], data.means[order], *told, data.width)
    one, other = found_in(data), found_in(turned)
    assert_allclose(one.shares[order].max(axis=1), other.shares.max(axis=1), atol=1e-6)
    assert adjusted_rand_score(one.shares[order].argmax(1), other.shares.argmax(1)) == 1.0


def test_users_who_came_later_are_placed():
    group = np.arange(60) % 3
    X, y, users = grouped_rows(2, group, 20, apart=4.0, d=80)
    X += 50.0  # far from the origin
    first = users < 42
    data = moments_of(X[first], y[first], users[first], 3)
    found = found_in(data)
    late = moments_of(X[~first], y[~first], users[~first], 3)
    assert found.placing is not None
    both = np.concatenate([found.shares.argmax(1), found.placing.shares(late).argmax(1)])
    assert adjusted_rand_score(group, both) == 1.0
    order = np.array([2, 0, 1])
    assert_allclose(found.placing.take(order).shares(late), found.placing.shares(late)[:, order])


def test_what_groups_hold_adds_up():
    group = np.arange(30) % 2
    X, y, users = grouped_rows(3, group, 20, roll=1, length=3.0, d=80)
    data = moments_of(X + 10.0, y, users, 3)
    groups = group_classifiers(data, found_in(data))
    assert groups.scores.shape == (1 + FOLDS, 2, 81, 3)
    assert_allclose(groups.weights.sum(), 1.0)
    assert_allclose(groups.shares.sum(axis=1), 1.0)
    assert groups.unit.shape == (80,)
    assert_allclose(groups.unit, 1.0, atol=0.4)
    # Scores of everybody, and on a fold's users those without it, are right for their own group.
    folds = user_folds(np.arange(30))
    for part in (np.zeros(30, int), 1 + folds):
        right = []
        for k in range(2):
            z = np.einsum("ij,ijc->ic", X + 10.0, groups.scores[part[users], k, :-1])
            z += groups.scores[part[users], k, -1]
            right.append((z.argmax(axis=1) == y).reshape(30, 20).mean(axis=1))
        assert np.mean(np.max(right, axis=0)) > 0.8
        assert adjusted_rand_score(group, np.argmax(right, axis=0)) == 1.0


def test_scores_of_a_fold_are_those_without_its_users():
    data, folds = world(4, [0] * 20, 10, d=30), user_folds(np.arange(20))
    groups = group_classifiers(data, found_in(data))
    for fold in np.unique(folds):
        others, every = data.take(folds != fold).centered(data.middle), np.ones((20, 1))
        own = groups.scores[1 + fold, 0, :-1].ravel()
        left = []
        for one in fit_scores(others, every[folds != fold]).weights:
            for other in logistic_scores(others, every[folds != fold]).weights:
                both = np.column_stack([one[0].ravel(), other[0].ravel()])
                left.append(own - both @ np.linalg.lstsq(both, own)[0])
        assert np.linalg.norm(left, axis=1).min() < 1e-9 * np.linalg.norm(own)


def test_more_groups_may_be_asked_for_than_there_are_directions():
    data = world(0, np.arange(30) % 2, 20, apart=4.0, d=60)
    for k in (1, 2, 3):
        found = found_in(data, n_groups=k)
        assert found.shares.shape[1] <= k
        assert_allclose(found.shares.sum(axis=1), 1.0)
    assert found_in(data, max_groups=1).shares.shape[1] == 1


def cases():
    X, y, users = grouped_rows(0, [0] * 12, 10, d=50)
    folds = user_folds(np.arange(12))
    one = np.unique(np.column_stack([users, y]), axis=0, return_index=True)[1]
    yield "one class", X, 0 * y, users
    yield "class missing everywhere", X, np.minimum(y, 1), users
    yield "class in one fold", X, np.where((folds[users] != folds[0]) & (y == 2), 0, y), users
    yield "class of one user", X, np.where((users > 0) & (y == 2), 0, y), users
    yield "users of one class", X, users % 3, users
    yield "no draw", X[one], y[one], users[one]
    yield "constant columns", np.ones_like(X), y, users
    yield "equal columns", np.repeat(X[:, :1], 50, axis=1), y, users
    yield "large values", 1e12 * X, y, users
    yield "small values", 1e-12 * X, y, users
    for m in (1, 2, 3, 4):
        yield f"{m} users", X[users < m], y[users < m], users[users < m]


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case[0])
def test_odd_worlds_have_one_group_and_finite_scores(case):
    data = moments_of(*case[1:], 3)
    found = found_in(data)
    assert found.shares.shape == (len(data.users), 1)
    groups = group_classifiers(data, found)
    assert np.isfinite(groups.scores).all()
    assert np.isfinite(groups.shares).all()
    assert (groups.unit > 0).all()


def test_a_group_that_lies_in_one_fold_has_a_classifier():
    """Nobody speaks for it in the other folds."""
    folds = user_folds(np.arange(40))
    group = (folds == 0).astype(int)
    X, y, users = grouped_rows(0, group, 20, apart=5.0, d=40)
    data = moments_of(X, y, users, 3)
    found = found_in(data)
    groups = group_classifiers(data, type(found)(np.eye(2)[group], None))
    assert np.isfinite(groups.scores).all()
