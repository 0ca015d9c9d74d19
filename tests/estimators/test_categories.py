"""Categories: every level counts alike, and nothing that says the same changes a prediction."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from odcl import ODCLClassifier, ODCLRegressor, federation_from_table
from odcl.data.scaling import RowColumns, Scaling

LOSSES = {
    "squared": lambda z, rng: z + 0.5 * rng.standard_normal(len(z)),
    "huber": lambda z, rng: z + 0.4 * rng.standard_t(2, len(z)),
    "logistic": lambda z, rng: rng.random(len(z)) < 1 / (1 + np.exp(-z)),
    "multinomial": lambda z, rng: np.digitize(z + rng.logistic(size=len(z)), [-1.0, 1.0]),
    "poisson": lambda z, rng: rng.poisson(np.exp(np.clip(0.5 * z, -3, 3))).astype(float),
}


def shops(seed, loss="squared", n_users=10, n=12):
    """Users who differ in a numeric column and in regions, all four of which are as frequent."""
    rng = np.random.default_rng(seed)
    region = np.resize(np.arange(4), n_users * n)[rng.permutation(n_users * n)]
    user = np.repeat(np.arange(n_users), n)
    price, size = rng.standard_normal((2, n_users * n))
    z = rng.standard_normal(n_users)[user] + price + 0.3 * size
    z = z + (rng.standard_normal(4) + 0.7 * rng.standard_normal((n_users, 4)))[user, region]
    frame = pd.DataFrame({"user": np.array([f"u{i}" for i in user]), "price": price, "size": size})
    frame["region"] = np.array(["east", "north", "south", "west"])[region]
    return frame, LOSSES[loss](z, rng)


def fitted(frame, y, loss="squared", **more):
    kind = ODCLClassifier if loss in ("logistic", "multinomial") else ODCLRegressor
    return kind(loss, users="user", categorical=["region"], **more).fit(frame, y)


def answers(model, frame):
    if isinstance(model, ODCLClassifier):
        return model.predict_proba(frame)
    return model.predict(frame)


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=4, derandomize=True, deadline=None, database=None)
@given(
    seed=st.integers(0, 2**20),
    names=st.permutations(["a", "b", "c", "d"]),
    scale=st.sampled_from([-1e4, 1e-3, 7.0]),
    shift=st.sampled_from([-300.0, 0.0, 5.0]),
    state=st.integers(0, 9),
)
def test_predictions_are_those_of_any_table_that_says_the_same(
    loss, seed, names, scale, shift, state
):
    """Rows and users shuffled, units and origins changed, a copy and a constant added, levels
    renamed so that another one is the reference, and another seed: all at once."""
    frame, y = shops(seed, loss)
    order = np.random.default_rng(seed).permutation(len(y))
    renamed = dict(zip(["east", "north", "south", "west"], names, strict=True))
    users = {user: f"v{hash_ % 97:02}{user}" for hash_, user in enumerate(sorted(set(frame.user)))}
    other = pd.DataFrame(
        {
            "twin": shift + 2 * frame["size"],
            "region": frame["region"].map(renamed),
            "price": frame["price"] * scale + shift * abs(scale),
            "user": frame["user"].map(users),
            "flat": 3.0,
            "size": -frame["size"] * scale,
        }
    )
    plain = fitted(frame, y, loss)
    same = fitted(other.iloc[order], y[order], loss, random_state=state)
    assert_allclose(answers(same, other), answers(plain, frame), rtol=1e-8, atol=1e-8)
    assert same.n_clusters_ == plain.n_clusters_
    assert same.differences_["region"] == pytest.approx(plain.differences_["region"], abs=1e-8)


def test_the_order_of_rows_is_not_seen_where_the_top_is_flat():
    """A full spread whose bound rises by 1e-8 a sweep while models still move by 1e-6."""
    frame, y = shops(1025, n_users=19, n=21)
    far = 3.0 * (frame["user"].str[1:].astype(int) % 3 - 1)
    y = y + (far * np.where(frame["region"].isin(["east", "north"]), 1, -1)).to_numpy()
    order = np.random.default_rng(2).permutation(len(y))
    plain, shuffled = fitted(frame, y), fitted(frame.iloc[order], y[order])
    assert plain.mixture_.spread.shape == "full"
    assert_allclose(shuffled.predict(frame), plain.predict(frame), rtol=1e-8, atol=1e-8)


def test_users_differ_in_a_category_and_not_in_its_columns():
    frame, y = shops(1, n_users=30)
    frame["kind"] = np.where(np.arange(len(frame)) % 3 == 0, "a", "b")
    model = ODCLRegressor(users="user", categorical=["region", "kind"]).fit(frame, y)
    assert model.feature_names_ == [
        *("price", "size", "region=north", "region=south", "region=west"),
        "kind=a",
    ]
    # One column tells all of two levels; its sign is all that the reference changes.
    assert set(model.differences_) == {"(level)", "price", "size", "region", "kind=a"}
    assert 0.3 < model.differences_["region"] < 1.4


@pytest.mark.parametrize("convert", [lambda f: f, pl.from_pandas, pa.Table.from_pandas])
def test_categories_by_name_by_type_and_by_position_are_the_same(convert):
    frame, y = shops(2)
    expected = fitted(frame, y).predict(frame)
    typed = frame.assign(region=frame["region"].astype("category"))
    by_type = ODCLRegressor(users="user").fit(convert(typed), y)
    assert_array_equal(by_type.predict(convert(frame[frame.columns[::-1]])), expected)
    assert_array_equal(fitted(convert(frame), y).predict(convert(typed)), expected)
    rows = frame.to_numpy()
    by_position = ODCLRegressor(users=0, categorical=[-1]).fit(rows, y)
    assert_array_equal(by_position.predict(rows), expected)
    apart = ODCLRegressor(categorical=2).fit(rows[:, 1:], y, users=rows[:, 0])
    assert_array_equal(apart.predict(rows[:, 1:], users=rows[:, 0]), expected)


def test_a_level_never_seen_is_refused_or_read_as_the_reference():
    frame, y = shops(4)
    model = fitted(frame, y)
    new = frame.assign(region="center")
    with pytest.raises(ValueError, match=r"'center' in row 1.*Say set_params.unseen='reference'"):
        model.predict(new)
    model.set_params(unseen="reference")
    assert_array_equal(model.predict(new), model.predict(frame.assign(region="east")))


@pytest.mark.parametrize(
    ("how", "change", "message"),
    [
        ({"categorical": ["regio"]}, {}, "no column 'regio' for categories; did you mean 'region'"),
        ({"categorical": ["user"]}, {}, "names the users, and cannot be categorical"),
        (
            {"categorical": ["region"]},
            {"region": None},
            "contains NaN: no value in column 'region'",
        ),
        ({"categorical": ["region"], "unseen": "skip"}, {}, "unseen='skip' is not one of 'error'"),
    ],
)
def test_categories_that_cannot_be_are_refused(how, change, message):
    frame, y = shops(5)
    with pytest.raises(ValueError, match=message):
        ODCLRegressor(users="user", **how).fit(frame.assign(**change), y)


def test_text_is_taken_as_categories_without_being_named(tmp_path):
    """In every kind of frame, with one warning; ids and row numbers stay out, before and after."""
    frame, y = shops(5)
    named = fitted(frame, y)
    told = "taken as categories: region. Left out: 'name' .* levels in .* 'row' .it counts the rows"
    more = frame.assign(name=[f"n{i}" for i in range(len(frame))], row=range(len(frame)))
    for data in (more, pl.from_pandas(more), pl.from_pandas(more).lazy(), pa.table(more)):
        with pytest.warns(UserWarning, match=told):
            model = ODCLRegressor(users="user", random_state=0).fit(data, y)
        assert model.feature_names_ == named.feature_names_
        assert_array_equal(model.predict(data), named.predict(frame))
        assert_array_equal(model.predict(frame), named.predict(frame))  # nobody needs the others
    model.save(tmp_path / "model")
    assert_array_equal(ODCLRegressor.load(tmp_path / "model").predict(more), model.predict(more))
    by_row = frame.assign(row=np.arange(len(frame), dtype=float))
    with pytest.warns(UserWarning, match="categories: region.$"):
        assert "row" in ODCLRegressor(users="user").fit(by_row, y).feature_names_


def test_one_users_time_is_no_row_number():
    frame, y = pd.DataFrame({"t": range(60), "x": np.sin(np.arange(60.0))}), np.arange(60.0)
    assert ODCLRegressor().fit(frame, y).feature_names_ == ["t", "x"]


@pytest.mark.parametrize("missing", ["drop", "mean"])
def test_rows_that_lack_a_value_are_left_out_or_filled_in_as_by_the_command(missing, tmp_path):
    frame, y = shops(6)
    rng = np.random.default_rng(0)
    holes = frame.assign(y=y).astype({"region": object, "user": object})
    for name, share in {"price": 0.1, "region": 0.1, "y": 0.05, "user": 0.05}.items():
        holes.loc[rng.random(len(holes)) < share, name] = None
    X, target = holes.drop(columns="y"), holes["y"].to_numpy(float)
    told = {"missing": missing, "categorical": ["region"]}
    federation, schema = federation_from_table(holes, user="user", target="y", **told)
    model = ODCLRegressor(users="user", random_state=0, **told).fit(X, target)
    expected = ODCLRegressor(users="user", random_state=0).fit_federation(federation, schema=schema)
    assert_array_equal(model.theta_, expected.theta_)
    assert model.n_rows_.sum() == federation.n_rows.sum()
    weighted = clone(model).fit(X, target, sample_weight=np.full(len(X), 2.0))
    assert weighted.n_rows_.sum() == model.n_rows_.sum()
    later = frame.assign(price=frame["price"].where(frame.index != 3))
    model.save(tmp_path / "model")
    model = ODCLRegressor.load(tmp_path / "model")
    if missing == "drop":
        with pytest.raises(ValueError, match=r"column 'price' \(row 4\).*fit with missing='mean'"):
            model.predict(later)
        return
    filled = frame.assign(price=frame["price"].where(frame.index != 3, schema.fill["price"]))
    assert_array_equal(model.predict(later), model.predict(filled))


def test_numbers_alone_are_filled_in_too():
    rng = np.random.default_rng(1)
    X, users = rng.normal(size=(80, 3)), np.repeat(np.arange(8), 10)
    y, holes = X.sum(axis=1), X.copy()
    holes[rng.random(X.shape) < 0.1] = np.nan
    kept = ~np.isnan(holes).any(axis=1)
    model = ODCLRegressor(missing="drop").fit(holes, y, users=users)
    expected = ODCLRegressor().fit(X[kept], y[kept], users=users[kept])
    assert_allclose(model.coef_, expected.coef_, rtol=1e-9, atol=1e-12)
    filled = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
    model = ODCLRegressor(missing="mean").fit(holes, y, users=users)
    assert_allclose(model.predict(holes, users), model.predict(filled, users), rtol=1e-9)


def test_a_reference_is_told_by_the_other_columns_whatever_was_left_out():
    """A copy of a level among the numbers, a level without rows, and a pair of levels."""
    rng = np.random.default_rng(0)
    level, pair = np.resize(np.arange(4), 60), np.resize([0, 1, 1], 60)
    dummies = (level[:, None] == np.arange(1, 5)).astype(float)  # nobody has the last one
    X = np.column_stack([5 - 2.0 * (level == 2), rng.standard_normal(60), dummies, pair])
    factors = {"level": (2, 3, 4, 5), "pair": (6,)}
    scaling = Scaling.of(
        RowColumns(X), center=True, standardize=True, copies=False, factors=factors
    )
    assert scaling.used.tolist() == [0, 1, 2, 4, 6]
    (factor,) = scaling.factors  # the other level of a pair is a copy
    z = scaling.apply(X)
    reference = factor.constant + z[:, factor.columns] @ np.array(factor.weights)
    first = (level == 0).astype(float)
    assert_allclose(reference, (first - first.mean()) / first.std(), atol=1e-8)
