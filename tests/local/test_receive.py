"""The user's last step: how far it is drawn to its group's model, and around which one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Downloads, Federation, Risk
from odcl.data.federation import folds
from odcl.local.fit import fit_users
from odcl.local.receive import GRID, N_FOLDS, _weights, receive


def users(m=12, n=14, dim=3, seed=0, weighted=False):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, dim))
    differ = np.linspace(0.0, 3.0, m)[:, None] * rng.normal(size=(m, dim))
    y = (X * (1.0 + differ)[owner]).sum(axis=1)
    weight = rng.uniform(0.5, 3.0, m * n) if weighted else None
    return Federation.from_arrays(X, y + rng.normal(size=m * n), owner, weight=weight)


def messages(federation, risk, refit, **more):
    """Uploads, and downloads of one group whose model is about right, without each user less so."""
    uploads = fit_users(federation, risk).uploads
    m, dim = uploads.theta.shape
    rng = np.random.default_rng(1)
    sent = {
        "model": np.tile(uploads.theta.mean(axis=0), (m, 1)),
        "group": np.zeros(m, dtype=int),
        "group_size": np.full(m, m),
        "others": uploads.theta.mean(axis=0) + 0.3 * rng.normal(size=(m, dim)),
    } | more
    return uploads, Downloads(uploads.users, refit=refit, **sent)


def drawn_to(X, y, weight, center, lam):
    """minimise  mean 1/2 (y - X theta)^2 + 1/2 sum_j lam_j (theta_j - center_j)^2"""
    lam = np.broadcast_to(lam, X.shape[1])
    W = weight / weight.sum()
    left = (X * W[:, None]).T @ X + np.diag(lam)
    return np.linalg.solve(left, (X * W[:, None]).T @ y + lam * center)


@pytest.mark.parametrize(("intercept", "weighted"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(("refit", "l2"), [("cv", 0.0), ("cv", 0.02), ("evidence", 0.0)])
def test_cross_validation_is_that_of_a_loop_around_the_group_without_the_user(
    refit, l2, intercept, weighted
):
    """Fold by fold and strength by strength, weighed by their likelihoods.

    "evidence" does the same where tau^2 is not known.

    The intercept is drawn to the group's like every coefficient. Strength 0 is the user's own
    model, with the penalty that it has alone, which leaves the intercept free.
    """
    federation, risk = users(weighted=weighted), Risk("squared", l2, intercept)
    uploads, downloads = messages(federation, risk, refit)
    found = receive(federation, risk, uploads, downloads, seed=5)
    fold = folds(federation, N_FOLDS, 5)
    for i in range(federation.n_users):
        part = federation.rows(i)
        X, y, center = federation.X[part], federation.y[part], downloads.others[i]
        weight = np.ones(len(y)) if federation.weight is None else federation.weight[part]
        unit = np.square(X).mean()
        X = np.column_stack([X, np.ones((len(y), int(intercept)))])
        alone = l2 * (np.arange(X.shape[1]) < 3)
        choices = [np.inf, *(g * unit for g in sorted(GRID, reverse=True)), 0.0]
        cost = np.zeros(len(choices))
        for f in range(N_FOLDS):
            out = fold[part] == f
            for c, lam in enumerate(choices):
                theta = center
                if np.isfinite(lam):
                    pull = (center, lam) if lam else (0.0 * center, alone)
                    theta = drawn_to(X[~out], y[~out], weight[~out], *pull)
                cost[c] += weight[out] @ np.square(y[out] - X[out] @ theta)
        best = choices[int(np.argmin(cost))]
        assert found.strength[i] == pytest.approx(best, rel=1e-12)
        drawn = [drawn_to(X, y, weight, center, lam) for lam in choices[1:-1]]
        models = np.array([downloads.model[i], *drawn, uploads.theta[i]])
        # A likelihood with the noise that each strength leaves: total^(-n / 2).
        share = (cost / cost.min()) ** (-weight.sum() / 2)
        expected = share @ models / share.sum()
        assert_allclose(found.models[i], expected, rtol=1e-7, atol=1e-9)
    assert {0.0, np.inf} < set(found.strength)  # the choices do differ
    assert ("tau^2 is not known" in found.how) == (refit == "evidence")


def test_a_user_with_one_row_takes_its_groups_model():
    federation = Federation.from_arrays(np.ones((5, 1)), np.arange(5.0), [0, 1, 1, 1, 1])
    uploads, downloads = messages(federation, Risk(), "cv")
    found = receive(federation, Risk(), uploads, downloads)
    assert found.strength[0] == np.inf
    assert_array_equal(found.models[0], downloads.model[0])


@pytest.mark.parametrize("refit", ["cv", "evidence", 0.3])
def test_users_alone_in_their_group_have_their_own_model_and_change_nobody_elses(refit):
    federation = users()
    told = {"tau2": 0.2} if refit == "evidence" else {}
    models = np.random.default_rng(3).normal(size=(12, 3))  # of as many groups
    uploads, downloads = messages(federation, Risk(), refit, model=models, **told)
    whole = receive(federation, Risk(), uploads, downloads, seed=2)
    alone = np.isin(np.arange(12), [0, 4, 11])
    sizes = np.where(alone, 1, downloads.group_size)
    found = receive(federation, Risk(), uploads, replace(downloads, group_size=sizes), seed=2)
    assert_array_equal(found.models[alone], uploads.theta[alone])
    assert (found.strength[alone] == 0).all()
    assert_array_equal(found.models[~alone], whole.models[~alone])
    assert_array_equal(found.strength[~alone], whole.strength[~alone])


def test_where_all_strengths_are_as_good_a_user_takes_its_groups_model():
    """Targets without noise, and a group's model that is right."""
    rng = np.random.default_rng(0)
    X, theta = rng.normal(size=(60, 3)), np.array([1.0, -2.0, 0.5])
    federation = Federation.from_arrays(X, X @ theta, np.repeat(np.arange(3), 20))
    exact = np.tile(theta, (3, 1))
    uploads, downloads = messages(federation, Risk(), "cv", model=exact, others=exact)
    assert_array_equal(receive(federation, Risk(), uploads, downloads).strength, np.inf)


def test_the_strength_of_evidence_is_noise_over_rows_and_differences():
    federation = users(weighted=True)
    phi = np.linspace(0.5, 2.0, 12)
    uploads, downloads = messages(federation, Risk(), "evidence", tau2=0.2, dispersion=phi)
    found = receive(federation, Risk(), uploads, downloads)
    assert_allclose(found.strength, phi / (federation.n_samples * 0.2), rtol=1e-12)
    for i in (0, 5, 11):
        part = federation.rows(i)
        expected = drawn_to(
            federation.X[part],
            federation.y[part],
            federation.weight[part],
            downloads.model[i],  # the whole group's: nothing was held out
            found.strength[i],
        )
        assert_allclose(found.models[i], expected, rtol=1e-8)
    silent = replace(downloads, dispersion=None)  # losses without a noise scale: 1
    found = receive(federation, Risk(), uploads, silent)
    assert_allclose(found.strength, 1 / (federation.n_samples * 0.2), rtol=1e-12)


def test_classes_weigh_strengths_by_their_likelihood_on_rows_held_out():
    total = np.array([[1.0, 9.0], [1.0 + np.log(3), 0.0]])
    assert_allclose(
        _weights(total, None), [[0.75, np.exp(-9) / (1 + np.exp(-9))], [0.25, 1 / (1 + np.exp(-9))]]
    )
