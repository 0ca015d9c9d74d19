"""Users without groups, and tables that leave users without a model of their own: what is said."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_allclose

import odcl
from odcl import Federation, ODCLRegressor, Risk
from tests.helpers import squared_error

COEFFICIENTS = np.array([1.0, -1.0, 0.5, 0.0, 2.0])


def world(kind: str, seed: int) -> tuple[Federation, np.ndarray]:
    """Forty users with five features, and their true models; ``kind`` says how they differ."""
    rng, n_users, n = np.random.default_rng(seed), 40, 500 if "many rows" in kind else 30
    owner = np.repeat(np.arange(n_users), n)
    X = rng.standard_normal((n_users * n, 5))
    theta, level = np.tile(COEFFICIENTS, (n_users, 1)), np.zeros(n_users)
    noise = rng.standard_normal(len(owner))
    if "intercept" in kind:
        level = rng.standard_normal(n_users)
    if "groups" in kind:
        theta[:, :3] *= np.where(np.arange(n_users) % 2, 1, -1)[:, None]
    if kind == "random slope":
        theta[:, 1] += rng.standard_normal(n_users)
    if "every coefficient" in kind:
        theta += rng.standard_normal(theta.shape)
    if kind == "missing levels":  # columns 2 - 4 are levels, and a user never sees one of them
        X[:, 2:] = 0.0
        X[np.arange(len(owner)), 2 + (owner + rng.integers(1, 3, len(owner))) % 3] = 1.0
    if kind == "constant columns":
        X[:, 4] = owner % 4
    if kind == "heavy tails":
        noise = rng.standard_t(3, len(owner))
    if kind == "noise by feature":
        noise = noise * (0.3 + np.abs(X[:, 0]))
    if kind == "correlated noise":  # what users differ by, to the rows in hand, is their level
        for t in range(1, n):
            noise[t::n] = 0.7 * noise[t - 1 :: n] + np.sqrt(0.51) * noise[t::n]
    y = (X * theta[owner]).sum(axis=1) + level[owner] + noise
    if kind == "duplicated rows":
        X, y, owner = (np.concatenate([a, a]) for a in (X, y, owner))
    if kind == "overdispersed counts":
        rate = np.exp(0.3 * (X * theta[owner]).sum(axis=1))
        y = rng.negative_binomial(3, 3 / (3 + rate)).astype(float)
    return Federation.from_arrays(X, y, owner), np.column_stack([theta, level])


def fitted(kind: str, seed: int) -> ODCLRegressor:
    f, _ = world(kind, seed)
    loss = "poisson" if "counts" in kind else "squared"
    return ODCLRegressor(loss=loss).fit(f.X, f.y, users=f.row_user)


WORLDS = {
    "random intercept": {"mixed"},
    "random intercept, many rows": {"mixed"},
    "random slope": {"mixed"},
    "every coefficient": {"mixed"},
    "every coefficient, many rows": {"mixed"},
    "groups and a random intercept": {"one-shot"},
    "missing levels": {"one-model"},
    "constant columns": {"one-model"},
    "heavy tails": {"one-model"},
    # Models of such users scatter by more than squared loss or counts explain: it may look as if
    # they differed a little, and never as if they had groups.
    "correlated noise": {"one-model", "mixed"},
    "noise by feature": {"one-model", "mixed"},
    "duplicated rows": {"one-model", "mixed"},
    "overdispersed counts": {"one-model", "mixed"},
}


@pytest.mark.parametrize("kind", WORLDS)
def test_a_fit_its_reason_and_its_diagnosis_agree_and_are_right(kind):
    found: Counter[str] = Counter()
    for seed in range(800, 804):
        model = fitted(kind, seed)
        verdict = model.diagnose(resamples=1).verdict
        assert "hardly more rows" not in verdict.reason
        assert ("No groups" in model.reason_) == (model.n_clusters_ == 1)
        assert ("differ gradually" in model.reason_) == any(model.differences_.values())
        if verdict.advice in ("one-model", "mixed"):
            assert ("gradually" in model.reason_) == (verdict.advice == "mixed")
        found[verdict.advice] += 1
    assert sum(found[advice] for advice in WORLDS[kind]) >= found.total() - 1, found


@pytest.mark.parametrize("kind", ["random slope", "groups and a random intercept"])
def test_what_users_differ_in_is_named_with_its_size(kind):
    model = fitted(kind, 820)
    where = (
        "x1 (standard deviation 1" if kind == "random slope" else "the level (standard deviation"
    )
    d = model.diagnose(resamples=1)
    for text in (model.reason_, d.verdict.reason):
        assert f"differ in {where}" in text
    assert f"{model.differences_['x1' if 'slope' in kind else '(level)']:.3g})" in d.verdict.reason
    assert "error of these models" in str(d)


@pytest.mark.parametrize("kind", ["random intercept, many rows", "every coefficient"])
def test_the_error_that_is_said_is_the_error_that_users_have(kind):
    """Features are independent and of one scale, so that all coefficients count alike."""
    f, truth = world(kind, 830)
    result = odcl.fit(f, Risk(intercept=True))
    said = result.diagnose(resamples=1).errors.used
    true = squared_error(result.models, truth) / squared_error(result.local.theta, truth)
    assert_allclose(said, true, rtol=0.3)


def test_counts_that_scatter_by_more_than_their_law_are_said_to():
    scattered = fitted("overdispersed counts", 840).diagnose(resamples=1).verdict
    assert "times as much as the Poisson law allows" in scattered.reason
    f, _ = world("random slope", 841)
    y = np.random.default_rng(841).poisson(np.exp(0.5 * f.X[:, 0])).astype(float)
    model = ODCLRegressor(loss="poisson").fit(f.X, y, users=f.row_user)
    assert "Poisson law" not in model.diagnose(resamples=1).verdict.reason
