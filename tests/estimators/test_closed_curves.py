"""Where nothing bends, a fit that may have curves is the fit of lines."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import ODCLClassifier, ODCLRegressor


def world(loss: str, seed: int = 0):
    """30 users x 20 rows whose levels differ, lines in three columns."""
    rng = np.random.default_rng(seed)
    m, n = 30, 20
    X, users = rng.normal(size=(m * n, 3)), np.repeat(np.arange(m), n)
    eta = X @ [1.0, -1.0, 0.5] + rng.normal(size=m)[users]
    noise = rng.logistic(size=m * n)
    y = {
        "squared": eta + noise,
        "huber": eta + noise,
        "poisson": rng.poisson(np.exp(eta / 2)),
        "logistic": (eta + noise > 0).astype(int),
        "multinomial": (eta + noise > 0).astype(int) + (eta + rng.logistic(size=m * n) > 1),
    }[loss]
    return X, y, users


def model_of(loss: str, **settings):
    classes = loss in ("logistic", "multinomial")
    return ODCLClassifier(**settings) if classes else ODCLRegressor(loss, **settings)


LOSSES = pytest.mark.parametrize("loss", ["squared", "huber", "poisson", "logistic", "multinomial"])


@LOSSES
def test_closed_curves_leave_the_models_of_lines(loss):
    X, y, users = world(loss)
    found = model_of(loss).fit(X, y, users=users)
    lines = model_of(loss, curves=False).fit(X, y, users=users)
    assert found.risk_ == lines.risk_
    assert_array_equal(found.labels_, lines.labels_)
    assert_allclose(found.theta_, lines.theta_, rtol=0, atol=1e-8)
    for name, sent in lines.fitted_.uploads.present.items():
        assert_allclose(getattr(found.fitted_.uploads, name), sent, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", ["poisson", "logistic"])
def test_rows_may_be_added_beside_closed_and_open_curves(loss):
    """The terms of old and new rows together are about those of all rows at once."""
    X, y, users = world(loss)
    own = users == 3
    for bent in (False, ["x0"]):
        if bent:
            rng = np.random.default_rng(1)
            eta = 2.5 * np.cos(2 * X[:, 0])
            y = (
                rng.poisson(np.exp(eta / 2))
                if loss == "poisson"
                else rng.binomial(1, 1 / (1 + np.exp(-eta)))
            )
        model = model_of(loss).fit(X, y, users=users)
        assert bool(model.risk_.curves) == bool(bent)
        new = np.flatnonzero(own)
        with pytest.raises(ValueError, match="just these rows"):
            model.update_user(3, X[new], y[new])
        model.update_user(3, X[new[:8]] + 0.1, y[new[:8]])
        assert np.isfinite(model.theta_).all()


@pytest.mark.parametrize("seed", [13, 31, 65])
def test_a_curve_of_classes_shows_in_the_terms_of_every_prior(seed):
    """Of 120 such worlds eight had a curve when one prior was asked, and three with all of them."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(60), 30)
    level, slope = rng.standard_normal((3, 2))[rng.integers(0, 3, 60)][users].T
    x = rng.standard_normal(len(users))
    y = (rng.random(len(users)) < 1 / (1 + np.exp(-level - slope * x))).astype(int)
    assert not ODCLClassifier().fit(x[:, None], y, users=users).risk_.curves
