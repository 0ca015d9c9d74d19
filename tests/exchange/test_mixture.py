"""A mixture as arrays, from a download or a saved model: what no fit can give is refused."""

from __future__ import annotations

import numpy as np
import pytest

import odcl
from odcl import Federation, Risk
from odcl.exchange.mixture import mixture_from_arrays, mixture_to_arrays


@pytest.fixture(scope="module")
def stored():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(12), 8)
    X = rng.standard_normal((len(owner), 2))
    y = np.where(owner % 2, 3.0, -3.0) * X[:, 0] + rng.standard_normal(len(owner))
    return mixture_to_arrays(odcl.fit(Federation.from_arrays(X, y, owner)).step.mixture)


def test_a_mixture_comes_back_as_it_was(stored):
    words, arrays = stored
    again = mixture_to_arrays(mixture_from_arrays(words, arrays, Risk(), 2))
    assert again[0] == words
    assert again[1].keys() == arrays.keys()
    assert all((again[1][name] == array).all() for name, array in arrays.items())


@pytest.mark.parametrize("name", ["weights", "shares"])
def test_shares_that_do_not_sum_to_one_are_refused(stored, name):
    words, arrays = stored
    for wrong in (1.001 * arrays[name], -arrays[name]):
        with pytest.raises(ValueError, match=f"{name} that are no probabilities"):
            mixture_from_arrays(words, arrays | {name: wrong}, Risk(), 2)
