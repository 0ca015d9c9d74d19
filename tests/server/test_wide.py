"""The server's step for wide users: what groups may be told, and who fits none of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from odcl import Method, ODCLClassifier
from odcl.local.fit import fit_users
from odcl.server.step import server_step
from odcl.server.wide import _held_by_parties
from tests.wide.worlds import World, risk_of

GROUPS = np.arange(12) % 2


@pytest.fixture(scope="module")
def uploads():
    """Users of two groups by turns."""
    federation, _, _ = World(2, 2, 60).users(GROUPS, 20)
    return fit_users(federation, risk_of(2), terms=True).uploads


def test_a_group_of_too_few_parties_is_not_told_and_that_is_said(uploads):
    """Each group has six users; parties 3 and 4 alone stand behind group 1."""
    method = Method(smallest_group=3)
    few, enough = [0, 3, 1, 3, 2, 4, 0, 3, 1, 4, 2, 4], [0, 3, 1, 5, 2, 4, 0, 3, 1, 5, 2, 4]
    step = server_step(uploads, method, parties=np.array(few))
    assert step.n_clusters == 1
    assert step.groups_forbidden
    assert "each needs at least 3 sites (minimum_group) with users in it, none" in step.reason
    step = server_step(uploads, method, parties=np.array(enough))
    assert_array_equal(step.labels, GROUPS)
    assert not step.groups_forbidden
    assert "not allowed" not in step.reason


def test_no_party_has_more_than_half_of_a_groups_rows():
    r, party = np.eye(2)[[0, 0, 0, 1, 1, 1]], np.arange(6)
    assert _held_by_parties(r, party, np.array([2.0, 1, 1, 1, 1, 1]), 3)
    assert not _held_by_parties(r, party, np.array([2.1, 1, 1, 1, 1, 1]), 3)
    assert not _held_by_parties(r, party, np.array([0.0, 1, 1, 1, 1, 1]), 3)  # it said nothing
    # A party counts where it has a user who said something.
    r, party = np.eye(2)[[0, 0, 0, 1, 1, 1, 1]], np.array([0, 1, 2, 2, 3, 4, 5])
    assert _held_by_parties(r, party, np.array([1.0, 1, 1, 1, 1, 1, 1]), 3)
    assert _held_by_parties(r, party, np.array([1.0, 1, 1, 3, 1, 1, 1]), 3)
    assert not _held_by_parties(r, party, np.array([1.0, 1, 0, 3, 1, 1, 1]), 3)


def test_who_contradicts_every_group_belongs_to_none():
    world = World(1, 2, 60, apart=0.6)
    federation, new, labels = world.users(np.zeros(20, int), 20, n_new=40)
    model = ODCLClassifier().fit(federation.X, federation.y.astype(int), federation.row_user)
    member = model.assign(new[0], labels[0])
    assert (member.label, member.none_of_these) == (0, False)
    stranger = model.assign(new[0], 1 - labels[0])
    assert stranger.label == -1
    assert stranger.none_of_these is True
