"""A glance at rows says whether a column may bend, before any bend is worked out."""

from __future__ import annotations

import numpy as np
import pytest

from odcl import Federation
from odcl.data.curves import with_bends
from odcl.local.glance import _chances, may_bend
from odcl.risk.risk import Curve

CURVES = tuple(Curve(j, tuple(range(3 + 4 * j, 7 + 4 * j))) for j in range(3))


def rows(common=0.0, own=0.0, seed=0, m=100, n=200, noise=1.0, spread=0.0, five=False):
    """Users' own lines of three columns, of ``five`` values if so; the first bends as said."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(m), n)
    X = rng.standard_normal((m * n, 3)) + spread * rng.standard_normal((m, 3))[users]
    X = np.clip(X, -2, 2).round() if five else X
    theta = rng.standard_normal((m, 4))[users]
    height = common + own * rng.standard_normal(m)[users]
    y = theta[:, 3] + (X * theta[:, :3]).sum(axis=1) + height * (X[:, 0] ** 2 - 1) / 2**0.5
    return Federation.from_arrays(X, y + noise * rng.standard_normal(m * n), users)


def share_that_may_bend(**world):
    return np.mean([may_bend(rows(seed=s, **world), CURVES, 1e4) for s in range(20)])


def test_lines_seldom_seem_to_bend_and_small_bends_seldom_do_not():
    """20,000 rows: a bend of a five-hundredth of the noise's variance lowers no error by 0.1 %."""
    assert share_that_may_bend() <= 0.2
    assert share_that_may_bend(five=True) <= 0.2
    assert share_that_may_bend(common=0.002**0.5) >= 0.95
    assert share_that_may_bend(own=0.02**0.5) >= 0.9


@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_scores_are_those_of_the_rows_beside_users_own_lines(spread):
    """The reference takes each user's level and lines off its bends, row by row."""
    some = rows(common=0.1, m=30, spread=spread)
    bend, left = with_bends(some.X[:, :1], [Curve(0, (1, 2, 3, 4))])[:, 1], np.empty(len(some.y))
    score = told = 0.0
    for i in range(some.n_users):
        own = some.rows(i)
        Z = np.column_stack([np.ones(200), some.X[own]])
        rest, e = (v[own] - Z @ np.linalg.lstsq(Z, v[own], rcond=None)[0] for v in (bend, some.y))
        left[own] = e / np.sqrt(e @ e / 196)
        score += rest @ left[own]
        told += rest @ rest
    share = np.full(some.n_users, 196 / 198)
    found = _chances(some.X[:, 0], left, some.row_user, share, CURVES[0])[0]
    assert found == pytest.approx(score**2 / told, rel=0.1)


def test_where_hardly_any_row_tells_all_columns_may_bend():
    assert may_bend(rows(n=4), CURVES, 1.0)  # as many parameters as rows
    assert may_bend(rows(noise=0.0), CURVES, 1.0)  # nothing is left that could be noise
    assert may_bend(rows(m=20), CURVES, 1e4)


@pytest.mark.parametrize("own", [0.0, 0.1])
def test_a_column_that_hardly_varies_within_users_may_bend_between_them(own):
    some = rows()
    X = some.X.copy()
    X[:, 0] = np.random.default_rng(1).standard_normal(100)[some.row_user] + own * X[:, 0]
    assert may_bend(some.with_X(X), CURVES, 1e4)
    assert not may_bend(some, CURVES, 1e4)
