"""A cluster's uploads become one model (Algorithm 1, step 2(iii)): which, and without whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression, Ridge

from odcl.clustering.labels import sum_by_cluster
from odcl.data.federation import Federation
from odcl.exchange.upload import Uploads
from odcl.local.fit import Penalty, fit_users, solve_users
from odcl.risk.losses import Huber, Logistic, Multinomial, Poisson, Squared
from odcl.risk.risk import Risk
from odcl.server.combine import average_by_cluster, combine_clusters

unhurried = settings(deadline=None, derandomize=True)
CLOSED_FORMS = ("mean", "samples", "precision")
SIZES = np.array([40, 25, 60, 90, 31, 200, 45, 33])
LABELS = np.array([0, 1, 0, 2, 1, 0, 1, 1])  # user 3 is alone


def group(k):
    return np.flatnonzero(np.equal(LABELS, k))


def linear_users(sizes=SIZES, p=4, seed=0, weighted=False):
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(len(users), p)) + 0.5
    theta = rng.normal(size=(3, p))[LABELS[: len(sizes)]]
    y = (X * theta[users]).sum(axis=1) + 2.0 + rng.normal(size=len(users))
    weight = rng.uniform(0.2, 2.0, len(users)) if weighted else None
    return Federation.from_arrays(X, y, users, weight=weight)


def pooled(federation, members, alpha, fit_intercept):
    """The members' rows as one least-squares or ridge problem, by scikit-learn."""
    part = federation.take(np.asarray(members))
    if alpha == 0:
        model = LinearRegression(fit_intercept=fit_intercept, tol=1e-14)
    else:
        model = Ridge(alpha=alpha, fit_intercept=fit_intercept, solver="svd")
    model.fit(part.X, part.y, sample_weight=part.weight)
    return np.append(model.coef_, model.intercept_)[: part.n_features + fit_intercept]


@unhurried
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 99))
def test_sums_and_means_by_cluster(labels, seed):
    labels = np.unique(labels, return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    theta, weights = rng.normal(size=(len(labels), 3)), rng.uniform(0.1, 5.0, len(labels))
    deep = rng.normal(size=(len(labels), 2, 2))
    means, weighted = average_by_cluster(theta, labels), average_by_cluster(theta, labels, weights)
    for k in range(labels.max() + 1):
        mine = labels == k
        assert_allclose(sum_by_cluster(deep, labels)[k], deep[mine].sum(axis=0), rtol=1e-12)
        assert_allclose(means[k], theta[mine].mean(axis=0), rtol=1e-12, atol=1e-15)
        expected = np.average(theta[mine], axis=0, weights=weights[mine])
        assert_allclose(weighted[k], expected, rtol=1e-12, atol=1e-15)


def test_mean_and_samples_are_what_they_are_called():
    """Remark 10: the paper's mean counts users once each, whatever their sample size."""
    uploads = fit_users(linear_users(), Risk(), "none").uploads
    mean, samples = (combine_clusters(uploads, LABELS, how).centers for how in CLOSED_FORMS[:2])
    for k in range(3):
        mine = group(k)
        assert_allclose(mean[k], uploads.theta[mine].mean(axis=0), rtol=1e-13)
        expected = np.average(uploads.theta[mine], axis=0, weights=SIZES[mine])
        assert_allclose(samples[k], expected, rtol=1e-13)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.05, 3.0])
def test_precision_of_squared_loss_is_the_pooled_regression(fit_intercept, weighted, l2):
    """One round, and the model that all the cluster's rows together would give.

    The penalty counts once per group, for a user of mean size: alpha = n-bar l2 in scikit-learn.
    """
    federation = linear_users(weighted=weighted)
    uploads = fit_users(federation, Risk("squared", l2, fit_intercept)).uploads
    found = combine_clusters(uploads, LABELS, "precision")
    for k in range(3):
        members = group(k)
        alpha = l2 * federation.n_samples[members].mean()
        expected = pooled(federation, members, alpha, fit_intercept)
        assert_allclose(found.centers[k], expected, rtol=1e-9)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_users_with_fewer_rows_than_parameters_take_part_in_full(fit_intercept, l2):
    """Twenty users of 3 rows and 8 features: no model of their own, one of them together."""
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(20), 3)
    X = rng.normal(size=(60, 8))
    y = X @ rng.normal(size=8) + 1.0 + 0.1 * rng.normal(size=60)
    federation = Federation.from_arrays(X, y, users)
    labels = np.zeros(20, dtype=np.intp)
    risk = Risk("squared", l2, fit_intercept)
    uploads = fit_users(federation, risk, "full").uploads
    found = combine_clusters(uploads, labels, "precision").centers[0]
    assert_allclose(found, pooled(federation, range(20), 3 * l2, fit_intercept), rtol=1e-8)
    # Not asked for by name, the span of their rows stays with them, and sample sizes decide.
    kept = fit_users(federation, risk).uploads
    found = combine_clusters(kept, labels, "precision")
    assert_array_equal(found.centers, combine_clusters(kept, labels, "samples").centers)


@pytest.mark.parametrize("how", CLOSED_FORMS)
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=lambda loss: loss.name)
def test_others_are_the_cluster_combined_again_without_the_user(how, loss):
    federation = linear_users()
    if loss.name == "logistic":
        federation = federation.with_y(np.where(federation.y > 2.0, 1.0, -1.0))
    uploads = fit_users(federation, Risk(loss, 0.1, intercept=True), "full").uploads
    found = combine_clusters(uploads, LABELS, how, others=True)
    assert_array_equal(found.centers, combine_clusters(uploads, LABELS, how).centers)
    for i in range(len(SIZES)):
        rest = np.setdiff1d(group(LABELS[i]), [i])
        expected = uploads.theta[i]  # alone in its cluster
        if len(rest):
            one_cluster = np.zeros(len(rest), dtype=np.intp)
            expected = combine_clusters(uploads.take(rest), one_cluster, how).centers[0]
        assert_allclose(found.others[i], expected, rtol=1e-9, atol=1e-11)


def test_users_who_keep_their_curvature_do_not_sway_the_others():
    federation = linear_users()
    uploads = fit_users(federation, Risk()).uploads
    curvature = uploads.curvature.copy()
    curvature[[0, 3]] = 0.0
    kept = replace(uploads, curvature=curvature)
    found = combine_clusters(kept, LABELS, "precision", others=True)
    assert_allclose(found.centers[0], pooled(federation, [2, 5], 0, False), rtol=1e-9)
    assert_array_equal(found.centers[2], uploads.theta[3])  # a cluster of silent users
    # Without user 2 only user 5's curvature is left; without user 0 nothing changes.
    assert_allclose(found.others[2], uploads.theta[5], rtol=1e-9)
    assert_allclose(found.others[0], found.centers[0], rtol=1e-12)
    nobody = combine_clusters(replace(uploads, curvature=None), LABELS, "precision")
    assert_array_equal(nobody.centers, combine_clusters(uploads, LABELS, "samples").centers)
    assert "no curvature was uploaded" in nobody.how


@pytest.mark.parametrize(
    "loss", [Squared(), Huber(), Logistic(), Multinomial(3), Poisson()], ids=lambda x: x.name
)
def test_users_who_agree_are_not_argued_with(loss):
    """Copies of one user: every combiner gives back its model where there is no penalty."""
    rng = np.random.default_rng(2)
    X, z = rng.normal(size=(80, 3)), rng.normal(size=80)
    y = {"poisson": rng.poisson(np.exp(z)), "multinomial": rng.integers(0, 3, 80)}.get(loss.name, z)
    y = np.sign(z) if loss.name == "logistic" else y
    copies = Federation.from_arrays(np.tile(X, (5, 1)), np.tile(y, 5), np.repeat(np.arange(5), 80))
    local = fit_users(copies, Risk(loss, intercept=True), "full")
    for how in CLOSED_FORMS:
        found = combine_clusters(local.uploads, np.zeros(5, dtype=np.intp), how, others=True)
        assert_allclose(found.centers[0], local.theta[0], rtol=1e-8, atol=1e-10)
        assert_allclose(found.others, local.theta, rtol=1e-8, atol=1e-10)


def test_precision_of_logistic_users_comes_nearest_to_their_rows_together():
    """No closed form here, but curvature is worth more than counting rows."""
    rng = np.random.default_rng(3)
    users = np.repeat(np.arange(30), rng.integers(15, 150, 30))
    X = rng.normal(size=(len(users), 3)) * rng.uniform(0.3, 2.0, 30)[users, None]
    y = np.where(rng.random(len(users)) < 1 / (1 + np.exp(-X.sum(axis=1))), 1.0, -1.0)
    federation = Federation.from_arrays(X, y, users)
    uploads = fit_users(federation, Risk("logistic", 1e-3)).uploads
    together = Federation.from_arrays(X, y, np.zeros(len(users)))
    n_bar = len(users) / 30
    penalty = Penalty(np.array([1e-3 * n_bar / len(users)]))
    best = solve_users(together, Risk("logistic"), penalty).theta[0]
    labels = np.zeros(30, dtype=np.intp)
    error = {
        how: np.linalg.norm(combine_clusters(uploads, labels, how).centers[0] - best)
        for how in CLOSED_FORMS
    }
    assert error["precision"] < 0.5 * error["samples"]
    assert error["precision"] < 0.5 * error["mean"]


def test_precision_does_not_depend_on_the_units_of_the_features():
    federation = linear_users()
    units = np.array([1e6, 1.0, 1e-6, 1e3])
    plain, scaled = (
        combine_clusters(fit_users(f, Risk()).uploads, LABELS, "precision").centers
        for f in (federation, federation.with_X(federation.X * units))
    )
    assert_allclose(scaled * units, plain, rtol=1e-8)


def test_directions_that_no_user_knows_are_left_at_zero():
    federation = linear_users()
    X = np.column_stack([federation.X, np.zeros(len(federation.X))])
    uploads = fit_users(federation.with_X(X), Risk()).uploads
    found = combine_clusters(uploads, LABELS, "precision").centers
    assert_array_equal(found[:, 4], 0.0)
    assert_allclose(found[0, :4], pooled(federation, [0, 2, 5], 0, False), rtol=1e-9)


def test_unknown_combiners_are_named():
    with pytest.raises(ValueError, match="'median' is not one of mean, samples, precision"):
        combine_clusters(Uploads.of(np.eye(2)), np.zeros(2, dtype=np.intp), "median")
