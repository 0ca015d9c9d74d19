"""The paper's error, where the users' true models are known."""

from __future__ import annotations

import numpy as np
import pytest

import odcl
from odcl import Risk, linear_federation
from odcl.evaluate import nmse


def test_the_error_is_relative_to_the_size_of_each_users_optimum():
    optima = np.array([[3.0, 4.0], [1.0, 0.0]])
    models = optima + np.array([[0.0, 5.0], [0.0, 0.5]])
    assert nmse(models, optima) == pytest.approx((25 / 25 + 0.25 / 1) / 2)


def test_an_intercept_that_the_optima_lack_is_zero():
    f = linear_federation(20, 60, n_clusters=4, seed=0)
    assert "NMSE" in odcl.fit(f, Risk(intercept=True)).summary()
    assert nmse(np.array([[3.0, 4.0, 5.0]]), np.array([[3.0, 4.0]])) == pytest.approx(1.0)


@pytest.mark.parametrize("shape", [(2,), (2, 4)])
def test_optima_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="one row per user"):
        nmse(np.ones((2, 3)), np.ones(shape))
