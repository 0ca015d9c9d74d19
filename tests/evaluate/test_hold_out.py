"""Rows held out: a share of each user's, whatever the order of the table."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from odcl.data.federation import Federation, hold_out
from odcl.evaluate import keep_every_class
from tests.evaluate.rows import federation, shuffled


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_every_user_with_two_rows_gives_some_and_keeps_some(share):
    data = federation()
    out = hold_out(data, share, seed=0)
    given = np.add.reduceat(out, data.offsets[:-1])
    expected = [min(max(round(share * n), 1), n - 1) for n in data.n_rows]
    assert_array_equal(given, expected)


def test_a_users_rows_held_out_depend_on_the_seed_and_its_id_alone():
    data = federation()
    out = hold_out(data, 0.3, seed=7)
    alone = data.take(np.array([3]))
    assert_array_equal(hold_out(alone, 0.3, seed=7), out[data.rows(3)])
    assert (hold_out(data, 0.3, seed=8) != out).any()


@pytest.mark.parametrize("seed", range(5))
def test_a_shuffled_table_has_the_same_rows_held_out(seed):
    data = federation()
    other, order = shuffled(data, seed)
    assert (order != np.arange(len(order))).any()
    assert_array_equal(hold_out(other, 0.3, seed=7), hold_out(data, 0.3, seed=7)[order])


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_with_a_time_the_last_rows_of_each_user_are_held_out(share):
    data = federation()
    time = np.random.default_rng(1).permutation(len(data.y)).astype(float)
    out = hold_out(data, share, seed=0, time=time)
    assert_array_equal(hold_out(data, share, seed=99, time=time), out)  # nothing is drawn
    for i, n in enumerate(data.n_rows):
        rows = np.arange(len(out))[data.rows(i)]
        last = rows[np.argsort(time[rows])][::-1][: min(max(round(share * n), 1), n - 1)]
        assert_array_equal(np.flatnonzero(out[rows]), np.sort(last) - rows[0])


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_one_time_are_held_out_by_content_whatever_their_order(seed):
    data = federation()
    time = (np.arange(len(data.y)) // 4).astype(float)  # four rows each
    out = hold_out(data, 0.3, seed=0, time=time)
    other, order = shuffled(data, seed)
    assert_array_equal(hold_out(other, 0.3, seed=0, time=time[order]), out[order])
    for i in range(data.n_users):
        rows = data.rows(i)
        if out[rows].any():
            assert time[rows][out[rows]].min() >= time[rows][~out[rows]].max()


def test_no_class_is_held_out_as_a_whole():
    y = np.array([0, 0, 1, 2, 2, 0])
    out = np.array([True, False, True, True, True, False])
    X = np.arange(12.0).reshape(6, 2)
    kept = keep_every_class(out, Federation.from_arrays(X, y, list("aabbcc")))
    assert set(y[~kept]) == {0, 1, 2}
    assert kept.sum() == out.sum() - 2
    assert out.sum() == 4  # the rows given stay as they were


@pytest.mark.parametrize("seed", range(5))
def test_the_row_that_a_class_keeps_does_not_depend_on_the_order_of_rows(seed):
    data = federation((8, 8, 8))
    data = data.with_y(np.where(np.arange(24) % 8 < 3, 1.0, np.where(np.arange(24) < 8, 2.0, 0.0)))
    out = data.y > 0  # all rows of two classes
    kept = keep_every_class(out, data)
    assert [int((out & ~kept)[data.y == c].sum()) for c in (0, 1, 2)] == [0, 1, 1]
    other, order = shuffled(data, seed)
    assert_array_equal(keep_every_class(out[order], other), kept[order])
