"""Rows sorted by user: nothing is lost, mixed or dependent on the order of arrival."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from odcl.data.federation import (
    Federation,
    as_ids,
    check_owners,
    group_rows,
    id_keys,
    positions,
    user_rng,
)
from odcl.data.synthetic import linear_federation

unhurried = settings(deadline=None)  # a busy machine is no failure
INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=4)
ANY_ID = st.one_of(INTEGERS, st.floats(allow_nan=True), TEXTS, st.none(), st.booleans())
IDS = st.one_of(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.lists(st.sampled_from(["a", "b", "a\0", "007", "7", ""]), min_size=1, max_size=30),
    st.lists(st.sampled_from([3, 3.0, True, 0, -0.0, 2.5, "3", None, np.nan]), min_size=1),
    st.lists(ANY_ID, min_size=1, max_size=30),
)


def canonical(user):
    """The id a user has wherever it came from."""
    if user is None or user != user:
        return None
    return int(user) if isinstance(user, float) and user.is_integer() else user


def named(users):
    """The same ids with a name for the missing one, which a federation refuses."""
    return ["nobody" if canonical(user) is None else user for user in users]


def random_rows_of(users, seed=0):
    users = named(users)
    rng = np.random.default_rng(seed)
    X, y, weight = rng.random((len(users), 2)), rng.random(len(users)), rng.random(len(users))
    return Federation.from_arrays(X, y, users, weight=weight), X, y, weight


def assert_same(a: Federation, b: Federation) -> None:
    for field in ("X", "y", "offsets", "users", "weight"):
        assert_array_equal(getattr(a, field), getattr(b, field))


@unhurried
@given(IDS)
def test_every_row_is_in_its_own_users_block_in_the_order_it_came(users):
    federation, X, y, weight = random_rows_of(users)
    users = named(users)
    assert federation.n_rows.sum() == len(users)
    for i, (user, X_i, y_i) in enumerate(federation):
        own = [r for r, u in enumerate(users) if canonical(u) == canonical(user)]
        assert_array_equal(X_i, X[own])
        assert_array_equal(y_i, y[own])
        assert_array_equal(federation.weight[federation.rows(i)], weight[own])
        assert federation.n_samples[i] == pytest.approx(weight[own].sum(), rel=1e-13)


@unhurried
@given(IDS, st.randoms(use_true_random=False))
def test_users_have_one_order_whatever_order_their_rows_come_in(users, random):
    ids, codes = group_rows(users)
    assert len(set(ids.tolist())) == len(ids)
    order = list(range(len(users)))
    random.shuffle(order)
    shuffled_ids, shuffled_codes = group_rows([users[i] for i in order])
    assert ids.tolist() == shuffled_ids.tolist()
    assert list(map(type, ids.tolist())) == list(map(type, shuffled_ids.tolist()))
    assert_array_equal(codes[order], shuffled_codes)
    for user, code in zip(users, codes, strict=True):
        assert canonical(user) == ids[code]


@unhurried
@given(IDS)
def test_numbers_come_before_text_and_text_before_the_missing_id(users):
    ids, _ = group_rows(users)
    ranks = [2 if u is None else 1 if isinstance(u, str) else 0 for u in ids.tolist()]
    assert ranks == sorted(ranks)
    for rank in (0, 1):
        alike = [u for u, r in zip(ids.tolist(), ranks, strict=True) if r == rank]
        assert alike == sorted(alike)


@unhurried
@given(
    st.one_of(
        st.lists(st.one_of(INTEGERS, st.none()), min_size=1, max_size=20),
        st.lists(st.one_of(st.sampled_from([2**53, 2**53 + 1]), st.none()), min_size=1),
        st.lists(st.one_of(TEXTS, st.none()), min_size=1, max_size=20),
    )
)
def test_ids_are_the_same_from_every_container(users):
    """Integers beside a null stay exact: 2^53 and 2^53 + 1 are two users."""
    ids, codes = group_rows(users)
    text = any(isinstance(u, str) for u in users)
    containers = [
        np.array([*users, None], dtype=object)[:-1],
        pa.array(users),
        pa.chunked_array([pa.array(users)]),
        pl.Series(users, dtype=pl.String if text else pl.Int64),
        pd.Series(users, dtype="string" if text else "Int64"),
        pd.Series(users, dtype=object),
    ]
    for container in containers:
        other_ids, other_codes = group_rows(container)
        assert ids.tolist() == other_ids.tolist()
        assert_array_equal(codes, other_codes)


@unhurried
@given(IDS, st.data())
def test_take_keeps_each_users_rows(users, data):
    federation, *_ = random_rows_of(users)
    positions = st.integers(-federation.n_users, federation.n_users - 1)
    chosen = np.array(data.draw(st.lists(positions)), dtype=np.intp)
    part = federation.take(chosen)
    assert part.n_users == len(chosen)
    for j, i in enumerate(chosen % federation.n_users):
        assert_array_equal(part.X[part.rows(j)], federation.X[federation.rows(i)])
        assert_array_equal(part.y[part.rows(j)], federation.y[federation.rows(i)])
        assert_array_equal(part.weight[part.rows(j)], federation.weight[federation.rows(i)])
        assert part.users[j] == federation.users[i]


def test_take_by_mask_is_take_by_position():
    federation, *_ = random_rows_of(list("cabbac"))
    mask = np.array([True, False, True])
    assert_same(federation.take(mask), federation.take(np.flatnonzero(mask)))


@unhurried
@given(IDS, st.data())
def test_selected_rows_are_those_of_a_federation_without_the_others(users, data):
    federation, X, y, weight = random_rows_of(users)
    some = st.lists(st.booleans(), min_size=len(users), max_size=len(users)).filter(any)
    kept = np.array(data.draw(some))
    owners = [user for user, keep in zip(named(users), kept, strict=True) if keep]
    expected = Federation.from_arrays(X[kept], y[kept], owners, weight=weight[kept])
    codes = group_rows(named(users))[1]
    chosen = federation.select_rows(kept[np.argsort(codes, kind="stable")])
    assert_same(chosen, expected)
    by_weight = Federation.from_arrays(X, y, named(users), weight=np.where(kept, weight, 0.0))
    assert_same(by_weight, expected)
    assert chosen.users.tolist() == expected.users.tolist()


@unhurried
@given(IDS)
def test_a_federation_of_its_own_rows_is_itself(users):
    federation, *_ = random_rows_of(users)
    again = Federation.from_arrays(
        federation.X, federation.y, federation.users[federation.row_user], weight=federation.weight
    )
    assert_same(federation, again)


@unhurried
@given(st.integers(0, 2**32), ANY_ID, ANY_ID)
def test_a_users_stream_depends_on_the_seed_and_the_id_alone(seed, user, other):
    draw = user_rng(seed, user).random(4)
    in_batch = as_ids([other, user])[1]
    if not isinstance(user, bool):  # beside a number True is 1
        assert_array_equal(user_rng(seed, in_batch).random(4), draw)
    assert (user_rng(seed + 1, user).random(4) != draw).any()
    if canonical(user) != canonical(other):
        assert (user_rng(seed, other).random(4) != draw).any()


@pytest.mark.parametrize("same", [3, 3.0, np.int32(3), np.uint64(3), np.float64(3)])
def test_one_number_in_any_type_is_one_user(same):
    assert_array_equal(user_rng(0, same).random(4), user_rng(0, 3).random(4))
    assert (user_rng(0, "3").random(4) != user_rng(0, same).random(4)).any()


@pytest.mark.parametrize(
    "users",
    [
        [1, None, 2, None],
        np.array([1.0, np.nan, 2.0, np.nan]),
        pd.Series(["a", pd.NA, "b", None], dtype="string"),
        pl.Series([1, None, 2, None]),
        pa.array([1, None, 2, None]),
    ],
)
def test_rows_without_an_id_are_refused_and_counted(users):
    told = r"2 of 4 rows have no user id \(the first is row 2\)"
    with pytest.raises(ValueError, match=told):
        Federation.from_arrays(np.ones((4, 1)), np.ones(4), users)
    with pytest.raises(ValueError, match=told):
        check_owners(users, 4)


def test_a_tuple_is_one_id():
    ids, codes = group_rows([("b", 1), ("a", 2), ("b", 1)])
    assert ids.tolist() == [("a", 2), ("b", 1)]
    assert codes.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("X", "y", "users", "weight", "reason"),
    [
        (np.ones((2, 1)), [1, 2], [1], None, "each row needs all three"),
        (np.ones((2, 1)), [1], [1, 2], None, "each row needs all three"),
        (np.ones(2), [1, 2], [1, 2], None, "matrix"),
        (np.ones((0, 1)), [], [], None, "no rows"),
        (np.ones((2, 1)), [1, 2], [1, 2], [1], "one number each"),
        (np.ones((2, 1)), [1, 2], [[1], [2]], None, "one id per row"),
        (np.ones((2, 1)), [1, 2], np.ones((2, 1)), None, "one id per row"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(X, y, users, weight, reason):
    with pytest.raises(ValueError, match=reason):
        Federation.from_arrays(X, y, users, weight=weight)


def test_a_federation_is_shown_in_a_line():
    f = linear_federation(10, 30, n_clusters=1)
    assert repr(f) == "<SyntheticFederation: 10 users, 300 rows, 20 features>"


@pytest.mark.parametrize("gaps", [1, 3, 10])
def test_many_rows_are_grouped_as_few_are(gaps):
    """Ids that fill a range and those that do not, sorted and not; NumPy's sort is the judge."""
    from odcl.data.federation import distinct_integers, row_order

    rng = np.random.default_rng(gaps)
    ids = gaps * rng.integers(-20_000, 20_000, 150_000) + 7
    known, codes = distinct_integers(ids)
    expected = np.unique(ids, return_inverse=True)
    assert_array_equal(known, expected[0])
    assert_array_equal(codes, expected[1].reshape(-1))
    assert_array_equal(row_order(codes), np.argsort(codes, kind="stable"))
    assert row_order(np.sort(codes)) is None


def test_a_part_of_a_federation_is_the_take_of_its_users():
    rng = np.random.default_rng(0)
    owners = rng.integers(0, 12, 100)
    rows = rng.standard_normal((100, 2)), rng.random(100), owners
    one = Federation.from_arrays(*rows, weight=1 + rng.random(100))
    for start, stop in ((3, 7), (9, 20)):
        part, taken = one.part(start, stop), one.take(np.arange(start, min(stop, one.n_users)))
        for name in ("X", "y", "offsets", "users", "weight"):
            assert_array_equal(getattr(part, name), getattr(taken, name))
    assert_array_equal(one.some_users(100), np.arange(one.n_users))
    few = one.some_users(4)
    assert_array_equal(few, np.sort(np.argsort(id_keys(one.users))[:4]))
    turned = Federation.from_arrays(one.X[::-1], one.y[::-1], one.users[one.row_user][::-1])
    assert_array_equal(turned.users[turned.some_users(4)], one.users[few])


@pytest.mark.parametrize("ids", [[3, 5], ["a"]])
def test_among_no_users_nobody_is_found(ids):
    assert positions(np.array([], dtype=np.int64), np.array(ids)).tolist() == [-1] * len(ids)


def test_a_user_of_a_site_has_one_key_at_the_site_and_at_the_coordinator():
    ids = as_ids([("north", 0), ("north", 1), ("south", 0)])
    assert_array_equal(id_keys(ids), id_keys(np.array(["north 0", "north 1", "south 0"])))
