"""The discrete Gaussian law, with an entropy that the test has in hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from odcl.privacy.noise import MOST_SD, discrete_gaussian


def entropy_of(seed):
    return np.random.default_rng(seed).bytes


def test_small_numbers_come_as_often_as_the_law_says():
    sd, n = 3, 200_000
    z = discrete_gaussian(sd, n, entropy_of(0))
    values = np.arange(-10, 11)
    p = np.exp(-0.5 * (np.arange(-60, 61) / sd) ** 2)
    p = p[50:71] / p.sum()
    seen = np.array([(z == value).sum() for value in values])
    rest = n - seen.sum(), n * (1 - p.sum())
    assert chisquare([*seen, rest[0]], [*(n * p), rest[1]]).pvalue > 1e-4


@pytest.mark.parametrize("sd", [1, 1000, MOST_SD])
def test_moments_are_those_of_the_law(sd):
    z = discrete_gaussian(sd, 100_000, entropy_of(1)) / sd
    assert abs(z.mean()) < 0.015
    assert z.var() == pytest.approx(1.0, abs=0.02)
    assert (z**4).mean() == pytest.approx(3.0, abs=0.15)


def test_noise_is_the_entropys_and_nothing_elses():
    again = discrete_gaussian(50, 100, entropy_of(2)), discrete_gaussian(50, 100, entropy_of(2))
    np.testing.assert_array_equal(*again)
    np.random.seed(0)  # noqa: NPY002
    first = discrete_gaussian(2**20, 20)
    np.random.seed(0)  # noqa: NPY002
    assert (first != discrete_gaussian(2**20, 20)).any()


def test_noise_too_wide_for_whole_numbers_is_refused():
    for sd in (0, MOST_SD + 1):
        with pytest.raises(ValueError, match="possible"):
            discrete_gaussian(sd, 1)
