"""The user's last step where groups are of models: it takes its group's, as in the paper."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_array_equal

from odcl import Downloads, Risk, linear_federation
from odcl.local.fit import fit_users
from odcl.local.receive import receive


def test_a_user_takes_its_groups_model():
    federation = linear_federation(6, 20, n_clusters=1, dim=3, n_active=3)
    uploads = fit_users(federation, Risk()).uploads
    models = np.arange(18.0).reshape(6, 3)
    sent = Downloads(uploads.users, models, np.arange(6) % 2, np.full(6, 3))
    found = receive(federation, Risk(), uploads, sent)
    assert_array_equal(found.models, models)
    assert found.covariance is None
