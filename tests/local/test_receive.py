"""The user's last step where groups are of models: it takes its group's, as in the paper."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Downloads, Risk, linear_federation
from odcl.local.fit import fit_users
from odcl.local.receive import _shares, receive


def test_a_user_takes_its_groups_model():
    federation = linear_federation(6, 20, n_clusters=1, dim=3, n_active=3)
    uploads = fit_users(federation, Risk()).uploads
    models = np.arange(18.0).reshape(6, 3)
    sent = Downloads(uploads.users, models, np.arange(6) % 2, np.full(6, 3))
    found = receive(federation, Risk(), uploads, sent)
    assert_array_equal(found.models, models)
    assert found.covariance is None


def test_what_a_user_is_not_sure_of_is_shared_by_the_sizes_of_the_other_groups():
    sent = Downloads(
        np.arange(2), np.zeros((2, 1)), np.array([1, 0]), np.ones(2, int), np.array([0.7, 1.0])
    )
    found = _shares(sent, np.array([0.2, 0.5, 0.3]))
    assert_allclose(found, [[0.12, 0.7, 0.18], [1.0, 0.0, 0.0]])
    assert_array_equal(_shares(sent.take(np.array([1])), np.ones(1)), [[1.0]])
