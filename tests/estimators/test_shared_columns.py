"""Columns that do not vary within users, and users with a few rows far from everybody else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose

from odcl import Federation, Method, ODCLClassifier, ODCLRegressor, Risk, compare, fit


def random_level(seed: int, n_users: int = 40, n: int = 10) -> pd.DataFrame:
    """Users differ in their level alone; all stores have one coefficient of ``big``."""
    rng = np.random.default_rng(seed)
    own = np.repeat(np.arange(n_users), n)
    frame = pd.DataFrame({"user": own, "x": rng.standard_normal(len(own)), "big": own % 2 + 0.0})
    y = 3 * rng.standard_normal(n_users)[own] + frame.big + frame.x + rng.standard_normal(len(own))
    return frame.assign(y=y)


def kinds_of_stores(seed: int, n_users: int = 45, n: int = 20) -> tuple[pd.DataFrame, np.ndarray]:
    """Three kinds of stores, and a region that has nothing to do with them."""
    rng = np.random.default_rng(seed)
    own, kind = np.repeat(np.arange(n_users), n), np.arange(n_users) % 3
    models = np.array([[0, 0, 0], [3, 1, -1], [-3, -1, 1.0]])[kind[own]]
    frame = pd.DataFrame(rng.standard_normal((len(own), 2)), columns=["a", "b"])
    y = models[:, 0] + (frame * models[:, 1:]).sum(axis=1) + rng.standard_normal(len(own))
    region = rng.choice(["North", "South", "West"], n_users)[own]
    return frame.assign(user=own, region=region, y=y), kind


def of_frame(frame: pd.DataFrame, **settings) -> ODCLRegressor:
    return ODCLRegressor(users="user", **settings).fit(frame.drop(columns="y"), frame["y"])


@pytest.mark.parametrize("seed", range(8))
def test_users_are_not_said_to_differ_in_a_column_that_is_constant_within_them(seed):
    model = of_frame(random_level(seed))
    assert model.differences_["big"] == 0
    assert model.differences_["(level)"] > 1.5
    assert "big is the same within all or nearly all users: one coefficient for all, " in (
        model.reason_
    )


def test_the_interval_of_a_shared_coefficient_holds_it():
    """90 % of them, of 20: a mixed model's own interval would, and one by rows alone would not."""
    inside = 0
    for seed in range(20):
        told = of_frame(random_level(seed), clusterer="auto:1").reason_.rpartition("(90 %: ")[2]
        low, high = map(float, told.partition(")")[0].split(" to "))
        inside += low <= 1 <= high
    assert inside >= 15


@pytest.mark.parametrize("seed", range(5))
def test_an_irrelevant_region_makes_no_groups(seed):
    frame, kind = kinds_of_stores(seed)
    model = of_frame(frame, categorical=["region"])
    assert model.n_clusters_ == 3
    names = [j for j, name in enumerate(model.feature_names_) if name.startswith("region")]
    shared = model.group_coef_[:, names]
    assert_allclose(shared, shared[[0, 0, 0]], atol=1e-9)
    assert np.abs(shared).max() < 0.5
    assert len({*zip(model.labels_.tolist(), kind.tolist(), strict=True)}) == 3


def test_shared_coefficients_and_groups_are_joint_least_squares():
    """With users alike inside two groups: slopes by group, one coefficient for all."""
    rng = np.random.default_rng(4)
    own = np.repeat(np.arange(30), 15)
    side, big = (own < 14) + 0.0, (own % 3 == 0) + 0.0
    x = rng.standard_normal(len(own))
    y = np.where(side, 4 + 2 * x, -4 - 2 * x) + 1.5 * big + rng.standard_normal(len(own))
    federation = Federation.from_arrays(np.column_stack([x, big]), y, own)
    result = fit(federation, Risk(intercept=True), Method("auto"))
    design = np.column_stack([side, 1 - side, side * x, (1 - side) * x, big])
    best = np.linalg.lstsq(design, y, rcond=None)[0]
    first = result.labels[0]  # a user of the side
    expected = np.array([[best[2], best[4], best[0]], [best[3], best[4], best[1]]])
    # B draws the two centers together by a thousandth of their noise.
    assert_allclose(result.centers[[first, 1 - first]], expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("estimator", [ODCLRegressor, ODCLClassifier])
def test_such_columns_do_not_make_noise_unknown(estimator):
    frame = random_level(1, n=30)
    y = frame["y"] if estimator is ODCLRegressor else frame["y"] > frame["y"].median()
    model = estimator(users="user").fit(frame.drop(columns="y"), y)
    found = model.diagnose(resamples=1)
    assert found.noise.known.mean() > 0.5
    assert found.informative


def test_it_survives_a_file(tmp_path):
    model = of_frame(random_level(0))
    model.save(tmp_path / "model")
    again = ODCLRegressor.load(tmp_path / "model")
    assert again.reason_ == model.reason_
    assert again.mixture_.spread.fixed.tolist() == model.mixture_.spread.fixed.tolist()


# -- users with a few rows, far from everybody else ------------------------------------------------


def patients(seed: int) -> pd.DataFrame:
    """Counts of 59 patients at four visits: skewed levels, noise that grows with them."""
    rng, m = np.random.default_rng(seed), 59
    base = np.round(np.exp(rng.normal(3.2, 0.75, m)))
    treated, age = rng.integers(0, 2, m), rng.integers(18, 43, m)
    level = np.exp(1.7 + 0.95 * (np.log(base) - np.log(base).mean()) - 0.2 * treated)
    level *= np.exp(0.55 * rng.standard_normal(m))
    level[base.argmax()] = 75
    visit, own = np.tile(np.arange(4), m), np.repeat(np.arange(m), 4)
    mean = level[own] * rng.gamma(4, 0.25, 4 * m) * np.where(visit == 3, 0.86, 1)
    columns = {"user": own, "treated": treated[own], "lbase": np.log(base)[own], "age": age[own]}
    return pd.DataFrame({**columns, "last": (visit == 3) * 1, "y": rng.poisson(mean)})


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_counts_of_patients_are_predicted_as_well_as_by_a_mixed_model(loss):
    """Three visits to learn from: the mean user's error beside that of a random level by REML."""
    ours, theirs = [], []
    for seed in range(4):
        frame = patients(seed)
        held = np.zeros(len(frame), bool)
        held[4 * np.arange(59) + np.random.default_rng(seed).integers(0, 4, 59)] = True
        train, test = frame[~held], frame[held]
        model = of_frame(train, loss=loss)
        ours.append(np.abs(model.predict(test.drop(columns="y")) - test["y"]).mean())
        formula = "y ~ treated + lbase + age + last"
        mixed = smf.mixedlm(formula, train, groups=train["user"]).fit(reml=True)
        own = test["user"].map({user: one.iloc[0] for user, one in mixed.random_effects.items()})
        theirs.append(np.abs(mixed.predict(test) + own - test["y"]).mean())
    assert np.mean(ours) < 1.03 * np.mean(theirs)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("spreads", [3, 10, 30])
def test_a_user_with_few_rows_keeps_its_own_level(n, spreads):
    """Whether everybody has the same noise, or a far user also scatters more."""
    lost = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        level, own = 2 * rng.standard_normal(50), np.repeat(np.arange(50), n)
        level[0] = 2.0 * spreads
        noise = np.exp(0.7 * rng.standard_normal(50))
        noise[0] = 3.0
        X = rng.standard_normal((50 * n, 2))
        y = (
            level[own]
            + X[:, 0]
            + (noise if seed % 2 else np.ones(50))[own] * rng.standard_normal(50 * n)
        )
        model = ODCLRegressor().fit(X, y, users=own)
        goal = y[own == 0].mean() - X[own == 0, 0].mean()
        lost.append(1 - model.predict(np.zeros((1, 2)), users=[0])[0] / goal)
    assert np.median(lost) < 0.25
    assert max(lost) < 0.5


def test_a_column_of_the_table_compares_as_before():
    """The comparison's mixed model without groups has the shared column as well."""
    frame = random_level(3)
    found = compare(ODCLRegressor(users="user"), frame.drop(columns="y"), frame["y"])
    rows = {name: mean for name, mean, *_ in found.rows()}
    assert rows["odcl"] <= 1.02 * rows["mixed"]


@pytest.mark.parametrize("kind", [ODCLRegressor, ODCLClassifier])
def test_users_may_have_their_own_times_of_day(kind):
    """A periodic column has no line, and varies within users all the same."""
    rng, m, n = np.random.default_rng(0), 40, 60
    own, hour = np.repeat(np.arange(m), n), rng.uniform(0, 24, m * n)
    z = 1.5 * np.cos((hour - rng.normal(0, 3, m)[own]) * np.pi / 12)
    y = z + 0.5 * rng.normal(size=m * n)
    if kind is ODCLClassifier:
        y = rng.random(m * n) < 1 / (1 + np.exp(-2 * z))
    frame = pd.DataFrame({"user": own, "hour": hour})
    model = kind(users="user", periodic={"hour": 24}).fit(frame, y)
    assert "same within" not in model.reason_
    if kind is ODCLRegressor:  # one curve for all: .6
        assert np.sqrt(np.mean((model.predict(frame) - z) ** 2)) < 0.15
