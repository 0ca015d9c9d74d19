"""Whose rows they are: a column, metadata, ids of any kind, and users never seen."""

from __future__ import annotations

import time
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from odcl import ODCLClassifier, ODCLRegressor
from odcl.data.federation import positions
from tests.helpers import (
    FRAME_COLUMNS,
    LOSS_NAMES,
    estimator_for,
    peak_memory,
    response,
    target_of_kind,
    with_columns,
)

# -- the users' column -----------------------------------------------------------------------------


def as_polars(frame):
    return pl.from_pandas(frame)


def as_arrow(frame):
    return pa.Table.from_pandas(frame, preserve_index=False)


@pytest.mark.parametrize("convert", [lambda f: f, as_polars, as_arrow], ids=["pandas", "pl", "pa"])
def test_a_column_of_a_frame_names_the_users(frame, convert):
    """Named in the constructor, it gives the models of users= without that column."""
    X, y = frame
    expected = ODCLRegressor(random_state=0).fit(X[FRAME_COLUMNS], y, users=X["store"])
    model = ODCLRegressor(users="store", random_state=0).fit(convert(X), y)
    assert_array_equal(model.users_, expected.users_)
    assert_array_equal(
        model.predict(convert(X)), expected.predict(X[FRAME_COLUMNS], users=X["store"].to_numpy())
    )
    assert model.n_features_in_ == 6


@pytest.mark.parametrize("position", [5, -1, np.int64(5)])
@pytest.mark.parametrize("kind", [np.float64, object, list])
def test_a_column_of_an_array_names_the_users_by_position(table, position, kind):
    X, y, users = table
    expected = ODCLRegressor(random_state=0).fit(X, y, users=users)
    both = np.column_stack([X, users])
    both = both.tolist() if kind is list else both.astype(kind)
    model = ODCLRegressor(users=position, random_state=0).fit(both, y)
    assert_array_equal(model.predict(both), expected.predict(X, users=users))


@pytest.mark.parametrize("convert", [lambda f: f, as_polars], ids=["pandas", "polars"])
@pytest.mark.parametrize("scoring", [None, "r2", "neg_mean_squared_error"])
def test_cross_validation_of_the_column_form_sees_users(frame, convert, scoring):
    X, y = frame
    folds = KFold(3)
    model = ODCLRegressor(users="store", clusterer=4, random_state=0)
    scores = cross_val_score(model, convert(X), y, cv=folds, scoring=scoring)
    pooled = cross_val_score(LinearRegression(), X[FRAME_COLUMNS], y, cv=folds, scoring=scoring)
    assert (scores > pooled).all()
    predicted = cross_val_predict(model, convert(X), y, cv=folds)
    train, test = next(folds.split(X))
    by_hand = clone(model).fit(X.iloc[train], y[train]).predict(X.iloc[test])
    assert_array_equal(predicted[test], by_hand)


def test_grid_search_pipelines_and_importances_work_with_the_column_form(frame):
    X, y = frame
    scale = ColumnTransformer(
        [("scaled", StandardScaler(), FRAME_COLUMNS)],
        remainder="passthrough",
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    chain = Pipeline([("scale", scale), ("odcl", ODCLRegressor(users="store", random_state=0))])
    grid = {"odcl__l2": [0.0, 10.0], "odcl__clusterer": ["auto", 1]}
    search = GridSearchCV(chain, grid, cv=3, scoring="neg_mean_absolute_error").fit(X, y)
    assert search.best_params_ == {"odcl__l2": 0.0, "odcl__clusterer": "auto"}
    assert search.best_estimator_["odcl"].n_clusters_ == 4
    importance = permutation_importance(search.best_estimator_, X, y, n_repeats=2, random_state=0)
    assert X.columns[importance.importances_mean.argmax()] == "store"  # whose row it is counts most


def test_a_classifier_in_column_form_can_be_calibrated(frame):
    X, y = frame
    model = CalibratedClassifierCV(ODCLClassifier(users="store", random_state=0), cv=3)
    assert model.fit(X, y > 0).score(X, y > 0) > 0.8


@pytest.mark.parametrize("convert", [lambda f: f, as_polars, as_arrow], ids=["pandas", "pl", "pa"])
def test_columns_go_by_their_names_in_any_order_and_among_others(frame, convert):
    X, y = frame
    for model in (ODCLRegressor(users="store"), ODCLRegressor()):
        data, owner = (X, {}) if model.users else (X[FRAME_COLUMNS], {"users": X["store"]})
        expected = model.fit(data, y, **owner).predict(data, **owner)
        assert_array_equal(model.feature_names_in_, data.columns)
        turned = convert(X[X.columns[::-1]].assign(more="text"))
        assert_array_equal(model.predict(turned, **owner), expected)
        with pytest.raises(ValueError, match="Column 'b' is not in the table"):
            model.predict(convert(data.rename(columns={"b": "z"})), **owner)


def test_owners_given_beside_the_users_column_have_to_agree_with_it(frame):
    X, y = frame
    model = ODCLRegressor(users="store").fit(X, y)
    expected = model.predict(X)
    assert_array_equal(model.predict(X, users=X["store"]), expected)
    assert_array_equal(model.predict(X[FRAME_COLUMNS], users=X["store"]), expected)
    other = X["store"].to_numpy().copy()
    other[7] = "s01" if other[7] != "s01" else "s02"
    with pytest.raises(ValueError, match=r"Row 8 belongs to 's.*' by column 'store'"):
        model.predict(X, users=other)
    one = X["store"] == "s03"
    for method in (model.update_user, model.add_user):
        with pytest.raises(ValueError, match="belong to 's03' by column 'store'"):
            method("s04", X[one], y[one])
    assert model.update_user("s03", X[one], y[one], again=True) == model.labels_[3]


def test_a_fit_that_no_users_are_told_says_so(frame):
    X, y = frame
    with pytest.warns(UserWarning, match="all 1440 rows count as one user's.*users='store'"):
        ODCLRegressor().fit(X[FRAME_COLUMNS], y)


# -- users as metadata -----------------------------------------------------------------------------


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("asked", [True, False], ids=["requested", "by default"])
def test_users_are_routed_as_metadata(table, asked):
    """``users`` is requested by default: it is there for these methods and nothing else."""
    X, y, users = table
    model = ODCLRegressor(clusterer=4, random_state=0)
    if asked:
        model.set_fit_request(users=True).set_predict_request(users=True)
        model.set_score_request(users=True)
    folds = KFold(3)
    scores = cross_validate(model, X, y, params={"users": users}, cv=folds)["test_score"]
    train, test = next(folds.split(X))
    alone = clone(model).fit(X[train], y[train], users=users[train])
    assert scores[0] == alone.score(X[test], y[test], users=users[test])

    search = GridSearchCV(model, {"l2": [0.0, 10.0]}, cv=folds).fit(X, y, users=users)
    assert search.best_params_ == {"l2": 0.0}
    assert search.score(X, y, users=users) > 0.8

    chain = make_pipeline(StandardScaler(), model).fit(X, y, users=users)
    expected = clone(model).fit(X, y, users=users).predict(X, users=users)
    assert_allclose(chain.predict(X, users=users), expected, rtol=1e-9, atol=1e-9)
    assert chain.score(X, y, users=users) == pytest.approx(search.score(X, y, users=users))


@pytest.mark.usefixtures("routing")
def test_weights_and_probabilities_are_routed_beside_users(table):
    X, y, users = table
    label, weight = y > 0, np.ones(len(y))
    model = ODCLClassifier(random_state=0).set_fit_request(users=True, sample_weight=True)
    model.set_score_request(users=True, sample_weight=True)
    params = {"users": users, "sample_weight": weight}
    scores = cross_validate(model, X, label, params=params, cv=3)["test_score"]
    assert (scores > 0.7).all()
    scale = StandardScaler().set_fit_request(sample_weight=False)
    chain = make_pipeline(scale, model).fit(X, label, **params)
    assert chain.predict_proba(X, users=users).shape == (len(y), 2)
    assert chain.decision_function(X, users=users).shape == (len(y),)


# -- ids -------------------------------------------------------------------------------------------

IDS = {
    "strings": lambda u: np.array([f"user {i}" for i in u]),
    "integers": lambda u: u * 1_000_003,
    "large integers": lambda u: [2**70 + int(i) for i in u],
    "floats": lambda u: u + 0.5,
    "booleans": lambda u: u % 2 == 0,
    "mixed": lambda u: [0.5 if i == 0 else f"s{i}" if i % 2 else int(i) for i in u],
    "tuples": lambda u: [("north", int(i)) for i in u],
    "categories": lambda u: pd.Categorical([f"c{i}" for i in u]),
    "nullable": lambda u: pd.array(u.tolist(), dtype="Int64"),
    "polars": lambda u: pl.Series(u.tolist()),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_any_kind_name_users(table, kind):
    X, y, users = table
    ids = IDS[kind](users)
    model = ODCLRegressor(random_state=0).fit(X, y, users=ids)
    plain = ODCLRegressor(random_state=0)
    plain.fit(X, y, users=users % 2 if kind == "booleans" else users)
    assert len(model.users_) == len(plain.users_)
    if kind != "booleans":
        # The order of the users differs, and with it that of the sums.
        assert_allclose(model.predict(X, ids), plain.predict(X, users), rtol=1e-9)
    assert_array_equal(model.predict(X[:7], ids[:7]), model.predict(X, ids)[:7])


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA])
def test_a_missing_id_is_refused_and_makes_no_user(table, nothing):
    X, y, users = table
    some = pd.Series(users, dtype=object).mask(users == 3, nothing)
    told = f"{(users == 3).sum()} of {len(users)} rows have no user id"
    with pytest.raises(ValueError, match=told):
        ODCLRegressor().fit(X, y, users=some)
    with pytest.raises(ValueError, match=told):
        ODCLRegressor(users="who").fit(pd.DataFrame(X).add_prefix("x").assign(who=some), y)
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    with pytest.raises(ValueError, match=told):
        model.predict(X, users=some)
    with pytest.raises(ValueError, match="1 of 1 rows have no user id"):
        model.add_user(nothing, X[:5], y[:5])
    assert len(model.users_) == 24


def test_text_and_numbers_are_different_ids(table):
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    with pytest.warns(UserWarning, match=r"not in the fit \(.*'16'.*the fit's ids look like 0\)"):
        model.predict(X, users=users.astype(str))


@pytest.mark.parametrize("known", [[3, 7, 9], ["b", "a"], [1, "a", None, 2.5], [2**70, 4]])
def test_positions_finds_ids_and_only_them(known):
    from odcl.data.federation import as_ids

    ids = as_ids(known)
    asked = [*known[::-1], "nobody", 10**6]
    expected = [*range(len(known))[::-1], -1, -1]
    assert_array_equal(positions(ids, as_ids(asked)), expected)


def test_rows_are_counted_under_the_user_whose_they_are(table):
    X, y, users = table
    kept = np.arange(len(y)) % 24 >= users  # ever fewer of them
    names = np.array([f"u{u}" for u in users[kept]])
    model = ODCLRegressor().fit(X[kept], y[kept], users=names)
    counted = dict(zip(model.users_.tolist(), model.n_rows_.tolist(), strict=True))
    assert counted == Counter(names.tolist())
    assert len({*counted.values()}) > 10


@pytest.mark.parametrize(
    ("known", "asked"),
    [([3, 7, 9], [9, 8, 2, 10, 3, 9]), (["b", "d", "f"], ["f", "e", "a", "g", "b", "f"])],
    ids=["numbers", "text"],
)
def test_nobody_is_taken_for_the_next_user_in_order(known, asked):
    """Ids of one kind, in order: between two users, before the first and after the last."""
    assert positions(np.array(known), np.array(asked)).tolist() == [2, -1, -1, -1, 0, 2]


# -- users never seen ------------------------------------------------------------------------------


def test_an_unknown_user_can_be_refused_with_the_options(table):
    X, y, users = table
    model = ODCLRegressor(unknown="error", random_state=0).fit(X, y, users=users)
    told = r"2 of 3 rows belong to 2 users not in the fit \(98, 99\).*add_user.*pooled"
    with pytest.raises(ValueError, match=told):
        model.predict(X[:3], users=[98, 99, 1])


def sorted_by_store():
    """A table as it comes: one store after the other, so that a default fold holds whole stores."""
    rng = np.random.default_rng(0)
    store = np.repeat(np.arange(20), 12)
    frame = pd.DataFrame(rng.normal(size=(240, 2)), columns=["price", "promo"])
    y = 10 + frame @ [2.0, -1.0] + rng.normal(size=20)[store] + rng.normal(size=240) / 4
    return frame.assign(store=[f"store-{i:02d}" for i in store]), y


def test_default_folds_of_a_table_sorted_by_user_are_scored():
    """Users no fit has seen are predicted as average ones, and a warning counts their rows."""
    X, y = sorted_by_store()
    model = ODCLRegressor(users="store")
    told = r"48 of 48 rows belong to 4 users not in the fit \('store-00', 'store-01', 'store-02'"
    with pytest.warns(UserWarning, match=told):
        scores = cross_val_score(model, X, y)
    assert (scores > 0.5).all()
    with pytest.warns(UserWarning, match="average users"):
        search = GridSearchCV(model, {"l2": [0.0, 10.0]}, cv=3).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # every user has rows in every fit
        assert cross_val_score(model, X, y, cv=KFold(5, shuffle=True, random_state=0)).min() > 0.9


def test_an_unknown_user_of_mixed_groups_is_their_mean_by_shares(table):
    """sum_k pi_k c_k, which lies among several groups and is none of them."""
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    assert model.n_clusters_ > 1
    shares = model.mixture_.weights
    coef, intercept = shares @ model.group_coef_, shares @ model.group_intercept_
    with pytest.warns(UserWarning, match="5 of 5 rows"):
        found = model.predict(X[:5], users=["new"] * 5)
    assert_allclose(found, X[:5] @ coef + intercept, rtol=1e-9)


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_unknown_pooled_is_one_model_for_all(table, loss):
    X, y, users = table
    y = target_of_kind(loss, y)
    model = estimator_for(loss, unknown="pooled", clusterer="kmeans:4").fit(X, y, users=users)
    strangers = np.where(users == 3, 99, users)
    predicted = response(model, X, strangers)
    alone = clone(model).set_params(clusterer="auto").fit(X, y)
    tolerance = {"rtol": 1e-6, "atol": 1e-8}
    if loss == "huber":  # without groups the residuals are larger, and with them Huber's delta
        tolerance = {"rtol": 0.3, "atol": 0.3}
    assert_allclose(predicted[users == 3], response(alone, X, None)[users == 3], **tolerance)
    assert_array_equal(predicted[users != 3], response(model, X, users)[users != 3])


def test_predict_has_to_be_told_whose_rows_they_are(table):
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    with pytest.raises(ValueError, match=r"knows 24 users.*pass users="):
        model.predict(X)
    alone = ODCLRegressor(random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="fitted without users"):
        alone.predict(X, users=users)
    with pytest.raises(ValueError, match="no groups to join"):
        alone.add_user("new", X, y)


def test_a_million_rows_need_neither_a_million_models_nor_a_look_for_every_user(table):
    """Chunks keep memory near that of the answer, and Python looks at distinct ids only."""
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    rng = np.random.default_rng(0)
    n_users, n_rows = 10_000, 1_000_000
    ids, labels = np.arange(n_users), np.zeros(n_users, dtype=int)
    with_columns(model, users=ids, group=labels, model=rng.standard_normal((n_users, 6)))
    owner = rng.integers(0, n_users, n_rows)
    many = rng.standard_normal((n_rows, 5))
    predicted, peak = peak_memory(lambda: model.predict(many, users=owner))
    assert peak < 10 * predicted.nbytes  # a model a row would take 6 numbers, and six chunks of it
    rows = rng.integers(0, n_rows, 20)
    D = np.column_stack([model.scaling_.apply(many[rows]), np.ones(20)])
    assert_allclose(predicted[rows], (D * model.theta_[owner[rows]]).sum(axis=1), rtol=1e-12)

    def seconds(work):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    # A look at all rows for every user, extrapolated from 20 users: measured 300 times as long.
    masks = seconds(lambda: [many[owner == u] @ np.ones(5) for u in range(20)]) * n_users / 20
    assert min(seconds(lambda: model.predict(many, users=owner)) for _ in range(3)) < 0.1 * masks


def test_users_of_rows_in_the_constructor_are_refused_with_advice():
    rows = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "store": list("aabb")})
    with pytest.raises(ValueError, match=r"users= in the constructor is the name .* not a Series"):
        ODCLRegressor(users=rows["store"]).fit(rows[["x"]], [1.0, 2.0, 3.0, 4.0])


def test_missing_values_are_refused_with_advice():
    X = np.array([[1.0], [np.nan], [2.0]])
    told = r"Input X contains NaN: no value in column 0 \(row 2\): say missing='drop'.*'mean'"
    with pytest.raises(ValueError, match=told):
        ODCLRegressor().fit(X, [1.0, 2.0, 3.0], users=[0, 0, 1])
