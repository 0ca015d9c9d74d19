"""What all users together say of common curves."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from odcl.mixed.curves import CommonCurves
from odcl.mixed.mixture import Bends


def _told(seed=0, of=(-1, -1, 0, 0, 1, 1, 1, 2)):
    """Information about a level, a line and bends of three curves, all correlated."""
    rng, dim = np.random.default_rng(seed), len(of)
    root = rng.standard_normal((dim, 3 * dim))
    bends = Bends(np.array(of), np.array([1.0, 1.0, 1.0, 4.0, 1.0, 4.0, 9.0, 1.0]))
    return CommonCurves(root @ root.T, 4 * root @ rng.standard_normal(3 * dim), bends)


def _level(told, R):
    """Twice the log-likelihood of the curves' variances: the integral over all bends, dense."""
    S, s, bends = told.bent
    D = np.diag(R[bends.of] / bends.rough)
    return (
        s @ D @ np.linalg.solve(np.eye(len(s)) + S @ D, s)
        - np.linalg.slogdet(np.eye(len(s)) + S @ D)[1]
    )


def test_what_a_curve_adds_is_the_likelihood_without_it():
    told, R = _told(), np.array([0.3, 0.7, 0.1])
    for j, adds in enumerate(told.adds(R)):
        gap = _level(told, R) - _level(told, np.where(np.arange(3) == j, 0.0, R))
        assert_allclose(adds, max(gap, 0.0), rtol=1e-9, atol=1e-9)
    assert (told.adds(np.zeros(3)) == 0).all()


def test_curves_are_closed_until_each_adds_what_it_is_to_earn():
    for seed in range(5):
        told = _told(seed)
        least = np.sort(told.adds(told.largest()))
        for limit in (least[0] - 1e-9, (least[0] + least[1]) / 2, 1e9):
            R = told.earning(limit)
            assert (told.adds(R)[R > 0] >= limit).all()
        assert not told.earning(1e9).any()
        assert_allclose(told.earning(0.0), told.largest())
