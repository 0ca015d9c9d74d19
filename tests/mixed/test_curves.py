"""What all users together say of common curves."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from odcl.mixed.curves import CommonCurves, _promised
from odcl.mixed.mixture import Bends, Quadratics, Spread, moments


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


def _users(own, n_users=200):
    """Terms of a level, a line and three bends of two curves; ``own``: how far bends differ."""
    rng = np.random.default_rng(0)
    bends = Bends(np.array([-1, -1, 0, 0, 1]), np.array([1.0, 1.0, 1.0, 4.0, 1.0]))
    Z = rng.standard_normal((n_users, 30, 5))
    theta = rng.standard_normal((n_users, 5)) * [1.0, 0.5, own, own / 2, 0.0]
    y = (Z @ theta[..., None])[..., 0] + rng.standard_normal((n_users, 30))
    A, b = Z.transpose(0, 2, 1) @ Z, (y[:, None] @ Z)[:, 0]
    rows, none = np.full(n_users, 30.0), np.zeros(n_users)
    return Quadratics(A, b, (y**2).sum(axis=1), rows, none, none, bends=bends)


def test_all_users_together_say_what_each_of_them_says():
    q, s2, T = _users(0.3), np.linspace(0.5, 2.0, 200), np.diag([1.0, 0.25, 0.0, 0.0, 0.0])
    told, m = CommonCurves.of(q, T, s2, q.bends), moments(q, Spread("diag", T, T.any(0)), s2)
    assert_allclose(told.M, m.W.sum(axis=0), rtol=1e-10, atol=1e-9)
    assert_allclose(told.v, m.w.sum(axis=0), rtol=1e-10, atol=1e-9)
    flat = CommonCurves.of(q, np.zeros((5, 5)), s2, q.bends)
    assert_allclose(flat.M, (q.A / s2[:, None, None]).sum(axis=0))


def test_scores_promise_own_curves_where_users_differ_in_them_and_none_elsewhere():
    """By twice the score's square over its information, worked out with dense matrices."""
    T, s2 = np.diag([1.0, 0.25, 0.0, 0.0, 0.0]), np.ones(200)
    for own, least, most in ((0.0, 0.0, 9.0), (0.5, 50.0, np.inf)):
        q = _users(own)
        W = np.stack([np.linalg.solve(np.eye(5) + a @ T, a) for a in q.A])
        w = np.stack([np.linalg.solve(np.eye(5) + a @ T, x) for a, x in zip(q.A, q.b, strict=True)])
        c = np.linalg.solve(W.sum(axis=0), w.sum(axis=0))
        z, promised = w - W @ c, _promised(q, c, T, s2)
        dense = 0.0
        for part in q.bends.parts(~q.bends.lines).T:
            own_W = np.diagonal(W, axis1=1, axis2=2)
            H = own_W.sum(axis=0) - (own_W**2).sum(axis=0) / own_W.sum(axis=0)
            slope, info = part @ ((z**2).sum(axis=0) - H), part @ (W**2).sum(axis=0) @ part
            dense += max(slope, 0.0) ** 2 / (2 * info)
        assert_allclose(promised, dense, rtol=1e-9, atol=1e-12)
        assert least <= promised < most
