"""Logistic models of groups from class moments."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression

from odcl.wide.classifiers import VARIANCES, StandIns, class_shares, logistic_scores
from tests.wide.worlds import grouped_rows, moments_of


def test_stand_ins_have_the_moments_of_the_rows():
    X, y, users = grouped_rows(0, [0] * 6, 15, d=8)
    rows = StandIns.of(moments_of(X, y, users, 3))
    assert len(rows.X) == len(X)
    assert_allclose(rows.weight, 1.0)
    for user in range(6):
        for c in range(3):
            own, stand = X[(users == user) & (y == c)], rows.X[(rows.owner == user) & (rows.y == c)]
            assert_allclose(stand.mean(axis=0), own.mean(axis=0), atol=1e-12)
            assert_allclose(np.cov(stand.T, ddof=0), np.cov(own.T, ddof=0), atol=1e-12)


def test_a_few_draws_stand_for_all_rows_of_a_class():
    X, y, users = grouped_rows(1, [0] * 400, 30, d=5)
    data = moments_of(X, y, users, 3)
    kept = np.random.default_rng(0).random(len(data.draws)) < 0.3
    kept[np.unique(3 * data.owner + data.of_class, return_index=True)[1]] = True
    few = type(data)(
        *(data.users, data.counts, data.means, data.draws[kept]),
        *(data.owner[kept], data.of_class[kept], data.width),
    )
    rows = StandIns.of(few)
    assert len(rows.X) < 0.6 * len(X)
    assert_allclose(np.bincount(rows.owner, rows.weight), 30.0)
    for c in range(3):
        own, some = X[y == c], rows.y == c
        stand, weight = rows.X[some], rows.weight[some]
        assert_allclose(weight @ stand / weight.sum(), own.mean(axis=0), atol=1e-12)
        assert_allclose(
            np.cov(stand.T, aweights=weight), np.cov(own.T), atol=0.1
        )  # sd .03; unscaled: .3


@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_are_those_of_scikit_learn(n_classes, monkeypatch):
    monkeypatch.setattr("odcl.wide.classifiers.ABOVE", 1e-12)
    monkeypatch.setattr("odcl.wide.classifiers.FREE", 1e8)  # there intercepts are not held at all
    X, y, users = grouped_rows(2, np.arange(20) % 2, 12, n_classes=n_classes, d=20, roll=1)
    data, r = moments_of(X, y, users, n_classes), np.eye(2)[np.arange(20) % 2]
    found, rows = logistic_scores(data, r), StandIns.of(data)
    shares = np.log(class_shares(data, r))
    for k in range(2):
        own = rows.owner % 2 == k
        Z = rows.X[own] - rows.X[own].mean(axis=0)
        size = np.sqrt((Z**2).sum(axis=1).mean())
        at = 1
        C = VARIANCES[at] * (2 if n_classes == 2 else 1)  # two classes: one difference of slopes
        model = LogisticRegression(C=C, tol=1e-10, max_iter=10_000).fit(Z / size, rows.y[own])
        z = rows.X @ found.weights[at, k] + found.offsets[at, k] + shares[k]
        there = model.decision_function((rows.X - rows.X[own].mean(axis=0)) / size)
        if n_classes == 2:
            assert_allclose(z[:, 1] - z[:, 0], there, atol=1e-4)
        else:
            assert_allclose(z - z.mean(axis=1, keepdims=True), there, atol=1e-4)
