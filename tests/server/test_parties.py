"""Parties behind users: a group needs enough of them, and none may carry more than half of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Method, Risk
from odcl.errors import NotAdmissible
from odcl.local.fit import fit_users
from odcl.mixed.mixture import moments
from odcl.mixed.search import search
from odcl.server.chunks import parties_behind
from odcl.server.mixed import held_by_enough, user_quadratics
from odcl.server.models import party_sizes
from odcl.server.step import server_step
from tests.helpers import equal_users

RISK = Risk("squared", 0.0, True)


def two_groups(n_users=12, n=20, seed=0):
    """Users of two groups by turns."""
    rng = np.random.default_rng(seed)
    X, owner = rng.normal(size=(n_users * n, 2)), np.repeat(np.arange(n_users), n)
    y = (X * np.array([[4.0, 0.0], [-4.0, 1.0]])[owner % 2]).sum(axis=1) + rng.normal(size=len(X))
    return equal_users(X, y, n_users)


def uploads(**options):
    return fit_users(two_groups(**options), RISK, terms=True).uploads


def test_users_of_one_party_count_once():
    """Each group has six users; with two parties behind them there are too few for a group."""
    sent, method = uploads(), Method(smallest_group=3)
    assert server_step(sent, method).n_clusters == 2
    one_each = server_step(sent, method, parties=np.arange(12))
    assert_array_equal(one_each.labels, np.arange(12) % 2)
    # Parties 0, 1, 2 stand behind group 0, and only 3 and 4 behind group 1.
    parties = np.array([0, 3, 1, 3, 2, 4, 0, 3, 1, 4, 2, 4])
    assert server_step(sent, method, parties=parties).n_clusters == 1
    parties = np.array([0, 3, 1, 5, 2, 4, 0, 3, 1, 5, 2, 4])
    assert server_step(sent, method, parties=parties).n_clusters == 2


def test_the_share_of_a_party_is_its_part_of_the_information_over_all_directions():
    sent = uploads()
    (q,), _ = user_quadratics(sent)
    fit = search(q)
    weight, alone = sent.n_samples, np.arange(12)
    m = moments(q, fit.spread, fit.s2)
    assert held_by_enough(m, fit.responsibilities, alone, weight, 3)
    W = m.W
    for k in range(2):
        M = sum(r * w for r, w in zip(fit.responsibilities[:, k], W, strict=True))
        share = [
            r * np.trace(np.linalg.solve(M, w)) / len(M)
            for r, w in zip(fit.responsibilities[:, k], W, strict=True)
        ]
        assert_allclose(sum(share), 1)
        assert max(share) < 0.5
    # Four of six users of group 0 in one hand are more than half, three of them are not more.
    most = np.array([0, 1, 0, 3, 0, 5, 0, 7, 8, 9, 10, 11])
    assert not held_by_enough(m, fit.responsibilities, most, weight, 2)


def test_a_party_with_most_of_the_rows_makes_every_group_inadmissible():
    sent = uploads(n_users=4)
    parties = np.array([0, 0, 0, 1])
    with pytest.raises(NotAdmissible):
        server_step(sent, Method(smallest_group=2), parties=parties)
    with pytest.raises(ValueError, match="2 parties uploaded, and no group may have fewer than 3"):
        server_step(sent, Method(smallest_group=3), parties=parties)
    models = fit_users(two_groups(n_users=4), RISK).uploads
    with pytest.raises(NotAdmissible, match="more than half of all rows"):
        server_step(models, Method(1, smallest_group=2), parties=parties)


def test_sizes_count_parties_and_none_where_one_rules():
    labels, party = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 0, 0, 1])
    assert party_sizes(labels, party, np.ones(6)).tolist() == [3, 0]
    assert party_sizes(labels, party, np.array([1, 1, 1, 1, 1, 2.0])).tolist() == [3, 2]


def test_half_of_a_group_is_the_most_that_a_party_may_carry():
    """Of users who are all alike and weigh the same, six of twelve are allowed, and seven not."""
    rng = np.random.default_rng(0)
    X = np.tile(rng.normal(size=(20, 2)), (12, 1))
    users = equal_users(X, X @ [1.0, -1.0] + rng.normal(size=len(X)), 12)
    parties = np.arange(12)
    for sent, method in (
        (fit_users(users, RISK, terms=True).uploads, Method(smallest_group=3)),
        (fit_users(users, RISK).uploads, Method(1, smallest_group=3)),
    ):
        half, more = (np.where(parties < n, 0, parties) for n in (6, 7))
        assert server_step(sent, method, parties=half).n_clusters == 1
        with pytest.raises(NotAdmissible):
            server_step(sent, method, parties=more)


def test_a_party_stands_behind_every_group_in_which_it_holds_a_user():
    """Each of four parties has one user in each group: all count in both, whoever has more rows."""
    sent, parties = uploads(n_users=8), np.repeat(np.arange(4), 2)
    method = Method(smallest_group=4)
    assert server_step(sent, method, parties=parties).n_clusters == 2
    (q,), _ = user_quadratics(sent)
    fit, weight = search(q), sent.n_samples.copy()
    m = moments(q, fit.spread, fit.s2)
    assert held_by_enough(m, fit.responsibilities, parties, weight, 4)
    weight[0] *= 10  # the first party now has more of its rows in one group
    assert held_by_enough(m, fit.responsibilities, parties, weight, 4)
    weight[2] = 0  # and a user of the second one says nothing at all
    assert not held_by_enough(m, fit.responsibilities, parties, weight, 4)
    assert held_by_enough(m, fit.responsibilities, parties, weight, 3)


def test_a_party_does_not_stand_behind_a_group_that_its_user_is_hardly_in():
    r, party = np.array([[0.6, 0.4], [1.0, 0.0], [0.0, 1.0], [0.3, 0.7]]), np.array([0, 0, 1, 2])
    assert parties_behind(r, party, np.ones(4)).tolist() == [1, 2]


def test_parties_with_the_same_kinds_of_users_have_these_groups():
    """Three hospitals with three wards of one kind and two of another: three behind each."""
    kind = np.tile([0, 0, 0, 1, 1], 3)
    every = two_groups(n_users=18)
    of_kind = [iter(range(k, 18, 2)) for k in (0, 1)]
    some = np.array([next(of_kind[k]) for k in kind])
    sent = fit_users(every.take(some), RISK, terms=True).uploads
    parties = np.repeat(np.arange(3), 5)
    step = server_step(sent, Method(smallest_group=3), parties=parties)
    assert_array_equal(step.labels, kind)
    assert "minimum_group" not in step.reason
    # Wards of the second kind at two hospitals only are too few, and the limit is named.
    two = sent.take(np.flatnonzero((kind == 0) | (parties < 2)))
    few = server_step(two, Method(smallest_group=3), parties=np.repeat(np.arange(3), [5, 5, 3]))
    assert few.n_clusters == 1
    assert "at least 3 sites (minimum_group) with users in it" in few.reason


def test_the_order_of_users_changes_nothing():
    sent, parties = uploads(), np.array(list("aabbccddeeff"))
    method, order = Method(smallest_group=3), np.random.default_rng(1).permutation(12)
    one = server_step(sent, method, parties=parties)
    two = server_step(sent.take(order), method, parties=parties[order])
    assert_array_equal(two.labels, one.labels[order])
    assert_array_equal(two.models, one.models[order])
    # Three parties behind one group, and two or three behind the other.
    for numbers, groups in (("031324031424", 1), ("031524031524", 2)):
        parties = np.array(list(numbers))
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(12)
            shuffled = server_step(sent.take(order), method, parties=parties[order])
            assert shuffled.n_clusters == groups


def test_parties_of_many_users_count_as_those_of_few(monkeypatch):
    """Groups that are found on a sample need as many parties behind them, of all users."""
    sent, parties = uploads(n_users=60), np.arange(60) // 2 % 15
    few = server_step(sent, Method(smallest_group=3), parties=parties)
    monkeypatch.setattr("odcl.server.chunks.MIXED_SAMPLE", 30)
    many = server_step(sent, Method(smallest_group=3), parties=parties)
    assert few.n_clusters == many.n_clusters == 2
    np.testing.assert_array_equal(many.labels, few.labels)
    ruled = np.where(few.labels == 0, 0, np.arange(60))  # one party holds all of a group
    alone = server_step(sent, Method(smallest_group=2), parties=ruled)
    assert alone.n_clusters == 1
    assert alone.groups_forbidden
