"""Folds: every user's rows dealt out evenly, by content, seed and id."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.testing import assert_array_equal

from odcl import Federation
from odcl.data.federation import content_order, folds


def users(n_rows=(1, 4, 11, 25), seed=0):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(n_rows)), n_rows)
    X = rng.integers(0, 3, size=(len(owner), 2)).astype(float)
    return Federation.from_arrays(X, rng.normal(size=len(owner)), owner)


def test_every_users_rows_are_dealt_out_evenly():
    federation = users()
    fold = folds(federation, 5, seed=3)
    for i, n in enumerate(federation.n_rows):
        counts = np.bincount(fold[federation.rows(i)], minlength=5)
        assert counts.sum() == n
        assert counts.max() - counts.min() <= 1


def test_folds_depend_on_the_users_id_and_the_seed():
    """Two users of the same rows have folds of their own."""
    federation = users()
    rows = federation.take(np.array([3]))
    twins = Federation(
        np.vstack([rows.X] * 2), np.tile(rows.y, 2), np.array([0, 25, 50]), np.array(["a", "b"])
    )
    a, b = np.split(folds(twins, 5, seed=0), 2)
    assert (a != b).any()
    assert (folds(twins, 5, seed=1)[:25] != a).any()
    alone = replace(rows, users=np.array(["b"]))
    assert_array_equal(folds(alone, 5, seed=0), b)


def test_rows_in_another_order_are_in_the_same_order_by_content():
    """Every number counts: features, target, weight; 0 and -0 are the same."""
    federation = users()
    weight = np.random.default_rng(5).integers(1, 3, len(federation.y)).astype(float)
    plain = replace(federation, y=np.zeros(len(federation.y)))
    for data in (federation, plain, replace(plain, weight=weight)):
        rng = np.random.default_rng(1)
        order = np.concatenate([rng.permutation(np.arange(a, b)) for a, b in spans(data)])
        other = replace(
            data,
            X=np.where(data.X[order] == 0, -0.0, data.X[order]),
            y=data.y[order],
            weight=None if data.weight is None else data.weight[order],
        )
        one, two = content_order(data), content_order(other)
        assert_array_equal(other.X[two], data.X[one])
        assert_array_equal(other.y[two], data.y[one])
        if data.weight is not None:
            assert_array_equal(other.weight[two], data.weight[one])


def spans(federation):
    return zip(federation.offsets[:-1], federation.offsets[1:], strict=True)


def test_users_stay_together_and_time_comes_before_content():
    federation = users()
    time = np.random.default_rng(2).permutation(len(federation.y)).astype(float)
    order = content_order(federation, time)
    assert_array_equal(federation.row_user[order], federation.row_user)
    for i in range(federation.n_users):
        mine = time[order[federation.rows(i)]]
        assert_array_equal(mine, np.sort(mine))
