"""Users with fewer rows than parameters, whose data terms may not leave them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import odcl
from odcl import Federation, Method, ODCLRegressor, Risk, linear_federation
from odcl.clustering.labels import same_partition
from odcl.exchange.upload import TERM_FIELDS
from odcl.local.fit import fit_users
from odcl.mixed.layout import model_map
from odcl.mixed.mixture import Spread, moments
from odcl.mixed.posterior import posterior
from odcl.mixed.terms import data_terms, quadratics
from odcl.risk.losses import Huber, Logistic, Multinomial, Poisson, Squared
from odcl.server.mixed import user_quadratics
from tests.helpers import logistic_labels, offsets_of, poisson_counts, refusal, squared_error

WITHHELD = Method(short_terms=False)
LOSSES = [Squared(), Huber(), Logistic(), Poisson(), Multinomial(3)]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)


def people_of(loss, n, *, dim=4, seed=0, spread=1.0):
    """Users with ``n`` rows each, in two groups, targets of the kind of the loss."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(len(n)), n)
    X = rng.standard_normal((len(users), dim)) + spread * rng.standard_normal((len(n), dim))[users]
    z = (X * np.array([1.0, -1.0])[users % 2, None]).sum(axis=1)
    y = {
        "squared": z + rng.standard_normal(len(z)),
        "huber": z + rng.standard_t(3, len(z)),
        "logistic": logistic_labels(z, rng),
        "poisson": poisson_counts(z, rng).astype(float),
        "multinomial": rng.integers(0, 3, len(z)).astype(float),
    }[loss.name]
    return Federation(X, y, offsets_of(n), np.arange(len(n)))


def uploads_of(federation, risk, *, short_terms):
    return fit_users(federation, risk, terms=True, short_terms=short_terms).uploads


@every_loss
def test_what_is_sent_of_few_rows_does_not_tell_them(loss):
    """Nothing of one row; of some an average: of rank one, and the same for other rows."""
    n = np.array([1, 2, 3, 4, 30, 40])
    federation, risk = people_of(loss, n), Risk(loss, 0.01, True)
    short, outputs = n < risk.dim(4), risk.n_outputs
    sent = uploads_of(federation, risk, short_terms=False)
    sent.check()
    assert sent.theta is None
    fields = [sent.present[name] for name in TERM_FIELDS if name in sent.present]
    assert_array_equal(sent.observations, np.where(short, n > 1, n))
    for values in fields:
        assert not values[0].any()
    assert sent.n_bytes[0] == 16  # how many rows there are, and that nothing is said of them
    if loss.has_data_terms:
        assert not sent.factor[short].any()
        assert sent.n_bytes[1] == 16 + 8 * 5
    else:
        assert_array_equal(np.linalg.matrix_rank(sent.gaussian_curvature[1:4]), outputs)
    # Rows of user 2 moved apart, their average where it was: the upload is the same.
    away = np.random.default_rng(1).standard_normal((3, 4))
    X = federation.X.copy()
    X[3:6] += away - away.mean(axis=0)
    other = uploads_of(federation.with_X(X), risk, short_terms=False)
    for name in sent.present:
        assert_allclose(other.present[name][2], sent.present[name][2], rtol=1e-9, atol=1e-9)


@every_loss
def test_rows_that_are_all_the_same_are_one_row(loss):
    federation, risk = people_of(loss, np.array([3, 3, 30])), Risk(loss, 0.01, True)
    X, y = federation.X.copy(), federation.y.copy()
    X[:3], y[:3] = X[0], y[0]
    same = Federation(X, y, federation.offsets, federation.users)
    sent = uploads_of(same, risk, short_terms=False)
    assert_array_equal(sent.observations[:2], [0, 1])


@every_loss
def test_where_nobody_is_short_nothing_is_held_back(loss):
    federation, risk = people_of(loss, np.full(12, 25)), Risk(loss, 0.01, True)
    with_all, without = (odcl.fit(federation, risk, method) for method in (Method(), WITHHELD))
    assert_array_equal(without.models, with_all.models)
    assert_array_equal(without.labels, with_all.labels)
    assert without.bytes_up == with_all.bytes_up + 8 * 12  # the number of rows once more


def test_an_average_is_one_observation_of_variance_s2_over_n():
    """-2 log p(y-bar) with the model integrated out, against the dense Gaussian."""
    rng = np.random.default_rng(0)
    federation, risk = people_of(Squared(), np.array([3, 40, 40])), Risk(intercept=True)
    (q, *_), at = user_quadratics(uploads_of(federation, risk, short_terms=False))
    assert (q.rows[0], q.dof[0], q.pure[0]) == (1, 0, 0)
    T, s2 = 0.3, 0.7
    m = moments(q, Spread("scalar", T * np.eye(5), np.ones(5, bool)), np.full(3, s2))
    z = at.design(federation.X[:3].mean(axis=0)[None])
    u = at.target(federation.y[:3].mean()[None], z)[0]
    c = rng.standard_normal(5)
    variance = (s2 / 3 + T * z @ z.T)[0, 0]
    expected = np.log(2 * np.pi * variance) + (u - z[0] @ c) ** 2 / variance
    found = m.base[0] - 2 * m.w[0] @ c + c @ m.W[0] @ c
    assert_allclose(found, expected + np.log(3), rtol=1e-10)  # the density of sqrt(3) u


def test_the_last_step_takes_the_users_own_rows():
    """Given what the server found, a user makes of its rows what it makes with all terms sent."""
    federation, risk = people_of(Squared(), np.array([1, 2, 3] * 5 + [30] * 5)), Risk()
    result = odcl.fit(federation, risk, WITHHELD)
    mixture = result.step.mixture
    at = mixture.coordinates
    found = posterior(
        quadratics(data_terms(federation.X, federation.y, federation.row_user, 20), at), mixture
    )
    offset, change = model_map(mixture, risk)
    assert_allclose(result.models, offset + found.mean() @ change.T, rtol=1e-12, atol=1e-12)


def test_short_users_help_to_find_the_groups_that_a_few_long_ones_show():
    """8 rows for 10 parameters: the long users' models are nearer to the truth with them."""
    for seed in (5, 6):
        rng = np.random.default_rng(seed)
        n = np.array([14] * 16 + [8] * 84)
        users = np.repeat(np.arange(100), n)
        centers = np.array([1.0, -1.0])[:, None] * rng.standard_normal(10)
        X = rng.standard_normal((len(users), 10)) + 2 * rng.standard_normal((100, 10))[users]
        y = (X * centers[users % 2]).sum(axis=1) + 2 * rng.standard_normal(len(users))
        everybody = Federation(X, y, offsets_of(n), np.arange(100))
        alone = odcl.fit(everybody.take(np.arange(16)))
        result = odcl.fit(everybody, method=WITHHELD)
        assert same_partition(result.labels[:16], np.arange(16) % 2)
        truth = centers[np.arange(16) % 2]
        with_all = squared_error(result.models[:16], truth)
        assert with_all < 0.3 * squared_error(alone.models, truth)


def test_users_who_may_say_nothing_are_told_so():
    federation = linear_federation(12, 1, n_clusters=4, dim=3, n_active=3)
    said = refusal(odcl.fit, federation, method=WITHHELD)
    assert "each of them has one row" in said
    refusal(Method, short_terms=2, match="short_terms is 2, and not true or false")


def test_silent_users_do_not_count_to_the_smallest_group():
    federation = people_of(Squared(), np.array([1] * 10 + [30] * 3))
    said = refusal(odcl.fit, federation, method=Method(short_terms=False, smallest_group=4))
    assert "3 users uploaded" in said
    kept = odcl.fit(federation, method=Method(short_terms=False, smallest_group=3))
    assert kept.n_clusters == 1


def test_more_rows_are_not_added_to_a_term_that_was_kept_back():
    federation = people_of(Squared(), np.array([2] + [30] * 11))
    model = ODCLRegressor(method=WITHHELD).fit(
        federation.X, federation.y, users=federation.row_user
    )
    X, y = federation.X, federation.y
    refusal(model.update_user, 0, X[2:12], y[2:12], match="say all_rows=True")
    refusal(model.update_user, 1, X[2:4], y[2:4], match="say all_rows=True")  # few new ones
    model.update_user(1, X[2:12], y[2:12])
    model.update_user(0, X[:12], y[:12], all_rows=True)
    assert model.uploads_.n_samples[:2].tolist() == [12, 40]
    assert model.uploads_.observations[:2].tolist() == [12, 40]
    found = model.assign(X[:1], y[:1])  # a newcomer with one row
    assert found.upload.observations.tolist() == [0]
    assert_allclose(found.probabilities, model.mixture_.weights)
