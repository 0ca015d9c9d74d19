"""The data terms of wide users, against scatter matrices of the rows themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Federation, Risk, Uploads
from odcl.exchange.upload import MOST_RANK, n_draws, upload_sizes
from odcl.local.terms import user_terms
from odcl.local.wide_terms import shared_out
from odcl.risk.losses import Huber, Logistic, Multinomial, Squared
from odcl.risk.risk import is_wide
from tests.helpers import refusal

D = 50
CLASSES = Multinomial(3)


def people_of(counts, *, d=D, seed=0, weight=None):
    """Users with ``counts`` (n_users, n_classes) rows, in no order of classes."""
    rng = np.random.default_rng(seed)
    counts = np.asarray(counts)
    owner = np.repeat(np.arange(len(counts)), counts.sum(axis=1))
    y = np.concatenate([rng.permutation(np.repeat(np.arange(len(c)), c)) for c in counts])
    X = rng.standard_normal((len(y), d)) * np.linspace(0.5, 2, d) + y[:, None] + 3 * owner[:, None]
    return Federation.from_arrays(X, y.astype(float), owner, weight=weight)


def sent_of(federation, loss=CLASSES, **options):
    risk = Risk(loss, 0.01, True)
    sent = Uploads(
        federation.users,
        federation.n_samples,
        risk=risk,
        **user_terms(federation, risk, **options),
    )
    sent.check()
    return sent


def rows_of(federation, user, label):
    X, y = federation.X[federation.rows(user)], federation.y[federation.rows(user)]
    return X[y == label]


def scatter_of(sent, user, label):
    F = sent.scatter[user, sent.scatter_class[user] == label].astype(float)
    return F.T @ F, len(F)


def test_counts_and_means_are_those_of_the_rows():
    counts = np.array([[3, 1, 0], [0, 0, 4], [40, 2, 60]])
    federation = people_of(counts)
    sent = sent_of(federation)
    assert_array_equal(sent.class_rows, counts)
    assert sent.dim == federation.X.shape[1] * 2 + 2
    for user in range(3):
        for label in range(3):
            rows = rows_of(federation, user, label)
            expected = rows.mean(axis=0) if len(rows) else np.zeros(D)
            assert_allclose(sent.class_means[user, label], expected, rtol=1e-6, atol=1e-6)
    assert sent.class_means.dtype == sent.scatter.dtype == np.float32


def test_scatter_of_few_rows_is_exact_and_has_a_row_per_degree_of_freedom():
    federation = people_of([[3, 1, 0], [0, 0, 33], [11, 11, 12], [1, 1, 1]])
    sent = sent_of(federation)
    for user in range(4):
        for label in range(3):
            rows = rows_of(federation, user, label)
            found, df = scatter_of(sent, user, label)
            assert df == max(len(rows) - 1, 0)
            apart = rows - rows.mean(axis=0) if len(rows) else rows
            assert_allclose(found, apart.T @ apart, rtol=1e-5, atol=1e-4)
    empty = sent.scatter_class == -1
    assert_array_equal(empty.sum(axis=1), [30, 0, 1, 32])
    assert not sent.scatter[empty].any()


def test_a_draw_of_many_rows_has_their_covariance_on_average():
    """2,000 classes of 40 rows, some draws of each: the standard error of an entry is 0.6 %."""
    counts = np.full((1000, 2), 40)
    federation = people_of(counts, d=41)
    sent = sent_of(federation, Logistic())
    assert_array_equal(
        np.sort(sent.scatter_class, axis=1)[:, [0, 15, 16, 31]], [[0, 0, 1, 1]] * 1000
    )
    F = sent.scatter.reshape(-1, 41).astype(float)
    truth = np.linspace(0.5, 2, 41) ** 2
    assert_allclose((F**2).mean(axis=0), truth, rtol=0.05)
    correlation = np.corrcoef(F.T) - np.eye(41)
    assert np.abs(correlation).max() < 0.05
    # Draws of a class are independent of one another and of its mean.
    pairs = sent.scatter.astype(float) / np.sqrt(truth)
    gram = (pairs @ pairs.swapaxes(1, 2)).mean(axis=0) / 41
    assert np.abs(gram - np.eye(32)).max() < 0.05


def test_heavy_rows_are_in_every_draw():
    """One far row of 200: a few draws have its share of the scatter, neither all nor nothing."""
    shares = []
    for seed in range(40):
        federation = people_of([[200, 0]], d=41, seed=seed)
        federation.X[seed] += 1000.0
        sent = sent_of(federation, Logistic())
        found, df = scatter_of(sent, 0, 0)
        rows = federation.X - federation.X.mean(axis=0)
        shares.append(np.trace(found) / df / (np.trace(rows.T @ rows) / 199))
    assert min(shares) > 0.3
    assert max(shares) < 2.2
    assert abs(np.mean(shares) - 1) < 0.15


def test_draws_are_shared_evenly_and_what_is_left_goes_to_large_classes():
    assert shared_out(np.array([[9, 0, 9]]), 7).tolist() == [[4, 0, 3]]
    assert shared_out(np.array([[1, 100, 5]]), 8).tolist() == [[1, 4, 3]]
    assert shared_out(np.array([[1, 0, 2]]), 8).tolist() == [[1, 0, 2]]
    assert shared_out(np.array([[3, 4, 5, 6]]), 2).tolist() == [[0, 0, 1, 1]]
    rng = np.random.default_rng(0)
    free = rng.integers(0, 12, (200, 6))
    share = shared_out(free, 20)
    assert (share <= free).all()
    assert_array_equal(share.sum(axis=1), np.minimum(free.sum(axis=1), 20))
    open_ = np.where(share < free, share, 99)  # a class that could have more has as many as others
    assert (share.max(axis=1) <= open_.min(axis=1) + 1).all()


def test_a_term_depends_on_neither_other_users_nor_the_order_of_rows():
    federation = people_of([[3, 50, 0], [2, 2, 2], [40, 40, 1]])
    sent = sent_of(federation)
    for user in range(3):
        alone = sent_of(federation.part(user, user + 1))
        for name, values in alone.present.items():
            assert_array_equal(values[0], sent.present[name][user], err_msg=name)
    turned = np.random.default_rng(1).permutation(len(federation.y))
    owner = federation.row_user[turned]
    again = sent_of(Federation.from_arrays(federation.X[turned], federation.y[turned], owner))
    for name, values in again.present.items():
        assert_array_equal(values, sent.present[name], err_msg=name)


def test_equal_weights_change_counts_alone_and_others_the_scatter():
    plain = people_of([[4, 60, 0], [2, 1, 2]])
    n = len(plain.y)
    twice = Federation.from_arrays(plain.X, plain.y, plain.row_user, weight=np.full(n, 2.0))
    one, two = sent_of(plain), sent_of(twice)
    assert_allclose(two.class_rows, 2 * one.class_rows)
    assert_allclose(two.class_means, one.class_means, rtol=1e-6)
    for label in (0, 2):  # other rows may have other weights in contrasts: the sum is the same
        for user in range(2):
            found, expected = (scatter_of(sent, user, label)[0] for sent in (two, one))
            assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    w = np.random.default_rng(2).uniform(0.1, 3, n)
    sent = sent_of(Federation.from_arrays(plain.X, plain.y, plain.row_user, weight=w))
    own = (plain.row_user == 0) & (plain.y == 0)
    rows, own = plain.X[own], w[own]
    assert_allclose(sent.class_rows[0, 0], own.sum())
    mean = own @ rows / own.sum()
    assert_allclose(sent.class_means[0, 0], mean, rtol=1e-6)
    S = (own[:, None] * (rows - mean)).T @ (rows - mean)
    unit = 3 / (own.sum() - (own**2).sum() / own.sum())
    assert_allclose(scatter_of(sent, 0, 0)[0], unit * S, rtol=1e-5, atol=1e-4)


def test_weighted_draws_have_the_covariance_of_a_row():
    rng = np.random.default_rng(0)
    w = rng.uniform(0.1, 5, 1000 * 60)
    sent = sent_of(people_of(np.full((1000, 2), 30), d=41, weight=w), Logistic())
    F = sent.scatter.reshape(-1, 41).astype(float)
    assert_allclose((F**2).mean(axis=0), np.linspace(0.5, 2, 41) ** 2, rtol=0.05)


def test_without_short_terms_rows_cannot_be_worked_out():
    """Nothing of one row, no difference of two, and fewer sums than rows of more."""
    federation = people_of([[1, 2, 3], [1, 1, 0], [5, 0, 1], [40, 6, 7]])
    same = np.flatnonzero((federation.row_user == 2) & (federation.y == 0))
    federation.X[same] = federation.X[same[0]]
    sent, whole = sent_of(federation, short_terms=False), sent_of(federation)
    assert_array_equal(sent.class_rows, whole.class_rows)
    assert_array_equal(sent.told_rows, [[0, 2, 3], [0, 0, 0], [0, 0, 0], [40, 6, 7]])
    assert_array_equal(whole.told_rows, whole.class_rows)
    assert_array_equal(sent.observations, [5, 0, 0, 53])
    assert_array_equal(sent.seen, [6, 0, 0, 53])
    assert not sent.class_means[1].any()
    assert_array_equal(sent.class_means[0, 1:], whole.class_means[0, 1:])
    for user, labels in enumerate([[0, 0, 1], [0, 0, 0], [2, 0, 0], [19, 2, 3]]):
        assert [scatter_of(sent, user, label)[1] for label in range(3)] == labels
    assert not scatter_of(sent, 2, 0)[0].any()  # of equal rows
    assert_array_equal(sent.kept_back("class_means"), [False, True, True, False])
    assert not sent.kept_back("class_rows").any()
    assert_array_equal(sent.n_bytes[1:3], 8 * (1 + 3 + 1))


@pytest.mark.parametrize(("classes", "d"), [(2, 784), (2, 3072), (10, 384), (10, 64), (100, 50)])
def test_bytes_are_four_per_number_of_means_and_scatter(classes, d):
    loss = Logistic() if classes == 2 else Multinomial(classes)
    sent = sent_of(people_of(np.ones((1, classes), int), d=d), loss)
    s = n_draws(classes, d)
    assert sent.scatter.shape[1] == s == np.clip(16_384 // d, min(max(4, classes), 32), 32)
    small = 8 + 8 * classes + 2 * s
    assert sent.n_bytes.tolist() == [4 * (classes + s) * d + small]
    assert sum(sent.field_bytes.values()) == sent.n_bytes[0]
    assert upload_sizes(sent.risk, sent.dim)["draws"] == s


def test_which_users_are_wide_follows_from_loss_and_width():
    assert not is_wide(Risk("logistic", intercept=True), 39)
    assert is_wide(Risk("logistic", intercept=True), 40)
    assert is_wide(Risk(Multinomial(3)), 21)
    assert not is_wide(Risk("squared"), 100)
    assert is_wide(Risk(Huber()), 101)
    assert not is_wide(Risk("poisson"), 1000)


def test_terms_that_contradict_themselves_are_refused():
    sent = sent_of(people_of([[3, 1, 0], [2, 2, 2]]))

    def bad(name, at, value):
        values = getattr(sent, name).copy()
        values[at] = value
        return replace(sent, **{name: values}).check

    refusal(bad("class_rows", (1, 0), 5.0), match="User 1 uploaded 9 rows in its classes")
    refusal(bad("class_rows", (1, slice(None)), [7, -1, 0]), match="User 1 uploaded 6 rows")
    refusal(bad("scatter_class", (0, 0), 2), match="scatter of a class it has no row of")
    refusal(bad("scatter_class", (0, 0), 3), match="scatter of a class")
    refusal(bad("scatter_class", (1, 0), -2), match="User 1 uploaded scatter of a class")
    refusal(bad("class_means", (0, 0, 0), np.nan), match="not finite")
    refusal(bad("scatter", (0, 0, 0), np.inf), match="not finite")
    refusal(replace(sent, scatter=sent.scatter[:, 1:]).check, match="scatter has shape")


# -- squared loss ----------------------------------------------------------------------------------


def numbers_of(n, d=120, seed=0, weight=None):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(n)), n)
    X = rng.standard_normal((len(owner), d)) + owner[:, None]
    y = X[:, 0] + rng.standard_normal(len(owner))
    return Federation.from_arrays(X, y, owner, weight=weight)


def table_of(federation, user):
    rows = federation.rows(user)
    return np.column_stack([federation.X[rows], federation.y[rows]])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d"), [([1, 5, 40], 120), ([5, 200, 300], 120), ([3, 257], 300)])
def test_a_thin_factor_is_a_root_of_the_scatter(n, d, weighted):
    w = np.random.default_rng(5).uniform(0.5, 2, sum(n)) if weighted else None
    federation = numbers_of(n, d, weight=w)
    sent = sent_of(federation, Squared())
    assert sent.thin_factor.shape == (len(n), min(max(n) - 1, d + 1, MOST_RANK), d + 1)
    assert sent.dim == d + 1
    for user in range(len(n)):
        table = table_of(federation, user)
        own = np.ones(len(table)) if w is None else federation.weight[federation.rows(user)]
        mean = own @ table / own.sum()
        assert_allclose(sent.means[user], mean, rtol=1e-9, atol=1e-9)
        F = sent.thin_factor[user].astype(float)
        expected = (own[:, None] * (table - mean)).T @ (table - mean)
        assert_allclose(F.T @ F, expected, rtol=1e-4, atol=1e-9 + 1e-4 * np.trace(expected) / d)


def test_the_thin_factor_of_many_rows_is_right_on_average():
    found = np.zeros((301, 301))
    for seed in range(40):
        federation = numbers_of([600], 300, seed)
        F = sent_of(federation, Squared()).thin_factor[0].astype(float)
        assert F.shape == (MOST_RANK, 301)
        table = table_of(federation, 0)
        apart = table - table.mean(axis=0)
        found += (F.T @ F - apart.T @ apart) / 599 / 40
    assert np.abs(found).max() < 0.05  # of about 1; the standard error is 0.01 to 0.02


def test_hubers_thin_factor_is_of_pseudo_targets():
    federation = numbers_of([500, 600, 60], 110)
    federation.y[3] += 1e3
    sent, plain = sent_of(federation, Huber()), sent_of(federation, Squared())
    assert_allclose(sent.means[:, :-1], plain.means[:, :-1])
    assert_array_equal(sent.thin_factor[2], plain.thin_factor[2])  # too few rows for a fit
    assert np.abs(sent.means[0, -1] - plain.means[0, -1]) > 1
    assert np.linalg.norm(sent.thin_factor[0, :, -1]) < 0.2 * np.linalg.norm(
        plain.thin_factor[0, :, -1]
    )


def test_without_short_terms_a_thin_factor_of_few_rows_is_half_of_it():
    federation = numbers_of([1, 2, 5, 40, 200, 3])
    federation.X[-3:], federation.y[-3:] = 1.0, 2.0  # equal rows are one
    sent = sent_of(federation, Squared(), short_terms=False)
    assert_array_equal(sent.observations, [0, 1, 5, 40, 200, 0])
    assert_array_equal(sent.thin_factor.any(axis=2).sum(axis=1), [0, 0, 2, 19, 121, 0])
    assert not sent.means[[0, 5]].any()
    assert_array_equal(sent.kept_back("thin_factor"), [True, True, False, False, False, True])
    assert_array_equal(sent.kept_back("means"), [True, False, False, False, False, True])
    ratios = []
    for seed in range(50):
        F = sent_of(numbers_of([40], seed=seed), Squared(), short_terms=False).thin_factor[0]
        table = table_of(numbers_of([40], seed=seed), 0)
        ratios.append((F**2).sum() / ((table - table.mean(axis=0)) ** 2).sum())
    assert abs(np.mean(ratios) - 1) < 0.02
