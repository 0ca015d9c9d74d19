"""A column per class says the same as the loss, whose outputs are one fewer."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from odcl.local.trials import columns_of
from odcl.risk.losses import Logistic, Multinomial


@pytest.mark.parametrize("loss", [Multinomial(4), Logistic()], ids=["multinomial", "logistic"])
def test_columns_have_the_losses_value_slope_and_curvature(loss):
    rng = np.random.default_rng(0)
    n, inputs = 12, 5
    X = rng.normal(size=(n, inputs))
    theta, way = rng.normal(size=(2, 3, inputs, loss.n_outputs))
    y = loss.encode(rng.integers(0, 4 if loss.n_outputs > 1 else 2, n))
    columns = columns_of(loss, y)
    spread = np.stack([columns.spread(one) for one in theta])
    assert_allclose(columns.gather(spread), theta, atol=1e-14)
    value, slope, bend = columns.terms(spread @ X.T)
    expected, outputs, lean = loss.lean_terms(X @ theta, y)
    assert_allclose(value, expected, rtol=1e-12)
    # The gradient of theta, by either way.
    assert_allclose(columns.gather(slope @ X), X.T @ outputs, atol=1e-13)
    assert_allclose(columns.average_bend(bend), loss.average_bend(lean), rtol=1e-12)
    weight = rng.uniform(0.5, 2.0, (3, 1, n))
    v = np.stack([columns.spread(one) for one in way]) @ X.T
    bent = columns.gather(columns.bent(bend, bend * weight, v) @ X)
    by_loss = X.T @ (loss.bent(lean, X @ way) * weight.transpose(0, 2, 1))
    assert_allclose(bent, by_loss, atol=1e-13)
