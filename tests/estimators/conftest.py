"""Fixtures for the tests of the estimators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from odcl import linear_federation
from tests.helpers import FRAME_COLUMNS


@pytest.fixture(scope="module")
def table():
    """24 users of 60 rows in 4 groups, in random order: X, y and the owners' positions."""
    federation = linear_federation(24, 60, n_clusters=4, dim=5, n_active=5, seed=1)
    order = np.random.default_rng(0).permutation(len(federation.y))
    return federation.X[order], federation.y[order], federation.row_user[order]


@pytest.fixture(scope="module")
def frame(table):
    """The same as a frame with the owner in its column ``store``, between the others."""
    X, y, users = table
    columns = dict(zip(FRAME_COLUMNS, X.T, strict=True))
    stores = pd.Series([f"s{u:02d}" for u in users])
    return pd.DataFrame(
        {"a": columns["a"], "store": stores, **{k: columns[k] for k in FRAME_COLUMNS[1:]}}
    ), y
