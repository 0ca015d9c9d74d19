"""ODCLRegressor and ODCLClassifier keep scikit-learn's promises, and the round's own."""

from __future__ import annotations

import pickle
import time
import tracemalloc
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import DBSCAN, AgglomerativeClustering
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from odcl import (
    Huber,
    KMeansPP,
    Logistic,
    Multinomial,
    ODCLClassifier,
    ODCLRegressor,
    linear_federation,
    logistic_federation,
)
from odcl.data.ids import positions

COLUMNS = ["a", "b", "c", "d", "e"]


@parametrize_with_checks(
    [
        ODCLRegressor(),
        ODCLRegressor("huber"),
        ODCLRegressor("poisson"),
        ODCLRegressor(method="paper"),
        ODCLRegressor(unknown="pooled", refit="cv", combine="mean"),
        ODCLClassifier(),
        ODCLClassifier("multinomial"),
        ODCLClassifier(method="paper"),
    ]
)
def test_without_users_it_is_a_scikit_learn_estimator(estimator, check):
    with warnings.catch_warnings():
        # A check casts NaN to integers before it looks whether the estimator refuses NaN.
        warnings.filterwarnings("ignore", "invalid value encountered in cast", RuntimeWarning)
        check(estimator)


# -- the tables of this file -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    """24 users of 60 rows in 4 groups, in random order: X, y and the owners' positions."""
    federation = linear_federation(24, 60, n_clusters=4, dim=5, n_active=5, seed=1)
    order = np.random.default_rng(0).permutation(len(federation.y))
    return federation.X[order], federation.y[order], federation.row_user[order]


@pytest.fixture(scope="module")
def frame(table):
    """The same as a frame with the owner in its column ``store``, between the others."""
    X, y, users = table
    columns = dict(zip(COLUMNS, X.T, strict=True))
    stores = pd.Series([f"s{u:02d}" for u in users])
    return pd.DataFrame(
        {"a": columns["a"], "store": stores, **{k: columns[k] for k in COLUMNS[1:]}}
    ), y


def counts(z, rng):
    return rng.poisson(np.exp(np.clip(0.3 * z, -6, 3)))


def targets(kind, y):
    """A target of each kind that hangs on y."""
    rng = np.random.default_rng(3)
    return {
        "squared": y,
        "huber": y,
        "poisson": counts(y, rng),
        "logistic": np.where(y > 0, "yes", "no"),
        "multinomial": np.digitize(y, [-2.0, 2.0]),
    }[kind]


LOSSES = ["squared", "huber", "poisson", "logistic", "multinomial"]


def estimator_for(loss, **settings):
    kind = ODCLClassifier if loss in ("logistic", "multinomial") else ODCLRegressor
    return kind(loss, random_state=0, **settings)


def response(model, X, users):
    """Numbers that move with the model: probabilities where there are classes."""
    if hasattr(model, "predict_proba"):
        return model.predict_proba(X, users=users)
    return model.predict(X, users=users)


def logistic_users(n_users, n_samples, n_classes=2, *, groups=3, dim=3, size=1.5, seed=0):
    """X, y, users and groups of a classification with hidden groups."""
    rng = np.random.default_rng(seed)
    centers = size * rng.standard_normal((groups, dim, n_classes))
    group = np.arange(n_users) * groups // n_users
    users = np.repeat(np.arange(n_users), n_samples)
    X = rng.standard_normal((len(users), dim))
    z = np.einsum("nd,ndc->nc", X, centers[group[users]]) + rng.gumbel(size=(len(users), n_classes))
    return X, z.argmax(axis=1), users, group


# -- the users' column -----------------------------------------------------------------------------


def as_polars(frame):
    return pl.from_pandas(frame)


def as_arrow(frame):
    return pa.Table.from_pandas(frame, preserve_index=False)


@pytest.mark.parametrize("convert", [lambda f: f, as_polars, as_arrow], ids=["pandas", "pl", "pa"])
def test_a_column_of_a_frame_names_the_users(frame, convert):
    """Named in the constructor, it gives the models of users= without that column."""
    X, y = frame
    expected = ODCLRegressor(random_state=0).fit(X[COLUMNS], y, users=X["store"])
    model = ODCLRegressor(users="store", random_state=0).fit(convert(X), y)
    assert_array_equal(model.users_, expected.users_)
    assert_array_equal(
        model.predict(convert(X)), expected.predict(X[COLUMNS], users=X["store"].to_numpy())
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
    pooled = cross_val_score(LinearRegression(), X[COLUMNS], y, cv=folds, scoring=scoring)
    assert (scores > pooled).all()
    predicted = cross_val_predict(model, convert(X), y, cv=folds)
    train, test = next(folds.split(X))
    by_hand = clone(model).fit(X.iloc[train], y[train]).predict(X.iloc[test])
    assert_array_equal(predicted[test], by_hand)


def test_grid_search_pipelines_and_importances_work_with_the_column_form(frame):
    X, y = frame
    scale = ColumnTransformer(
        [("scaled", StandardScaler(), COLUMNS)],
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


def test_columns_in_another_order_or_under_other_names_are_refused(frame):
    X, y = frame
    for model in (ODCLRegressor(users="store"), ODCLRegressor()):
        data, owner = (X, {}) if model.users else (X[COLUMNS], {"users": X["store"]})
        model.fit(data, y, **owner)
        assert_array_equal(model.feature_names_in_, data.columns)
        for changed in (data[data.columns[::-1]], data.rename(columns={"b": "z"})):
            with pytest.raises(ValueError, match="feature names should match"):
                model.predict(changed, **owner)


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


# -- units -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("scale", "shift"), [((1e6, 1e-6, 1e12, 1e-12, 1), 0.0), (1, 1e3)])
def test_units_of_the_features_change_neither_groups_nor_predictions(table, loss, scale, shift):
    X, y, users = table
    y = targets(loss, y)
    model = estimator_for(loss).fit(X, y, users=users)
    other = X * np.array(scale) + shift
    moved = estimator_for(loss).fit(other, y, users=users)
    assert_array_equal(moved.labels_, model.labels_)
    # A shift of 1000 standard deviations costs three of the sixteen digits.
    assert_allclose(response(moved, other, users), response(model, X, users), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("unit", [1e6, 1e-6, 1e12, 1e-12])
def test_predictions_scale_with_the_target(table, loss, unit):
    """Huber's delta is in units of the residuals' scale."""
    X, y, users = table
    model = estimator_for(loss).fit(X, y, users=users)
    scaled = estimator_for(loss).fit(X, unit * y, users=users)
    assert_array_equal(scaled.labels_, model.labels_)
    assert_allclose(scaled.predict(X, users) / unit, model.predict(X, users), rtol=1e-8, atol=1e-9)


def test_without_standardising_units_matter(table):
    """standardize=False and the paper's setting cluster the coefficients as they are."""
    X, y, users = table
    plain = {"standardize": False, "combine": "mean", "refit": None}
    for settings in (plain, {"method": "paper"}):
        settings = {**settings, "l2": 0.1, "clusterer": 4, "random_state": 0}
        model = ODCLRegressor(**settings).fit(X, y, users=users)
        tiny = ODCLRegressor(**settings).fit(1e-3 * X, y, users=users)
        assert_array_equal(model.scaling_.scale, 1.0)
        # An l2 of 0.1 on coefficients that had to be 1000 times as large leaves the intercepts.
        assert np.std(tiny.predict(1e-3 * X, users)) < 0.2 * np.std(model.predict(X, users))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("method", ["default", "paper"])
def test_models_are_in_the_units_of_the_table(table, loss, fit_intercept, method):
    """X @ coefficients + intercept is what predict works with."""
    X, y, users = table
    X = X * np.array([10.0, 0.1, 1, 1, 1]) + (5.0 if method == "default" else 0.0)
    X = np.column_stack([X[:, :2], np.full(len(X), 3.0), X[:, 2:]])  # a constant column inside
    y = targets(loss, y)
    model = estimator_for(loss, fit_intercept=fit_intercept, method=method, clusterer=4)
    model.fit(X, y, users=users)
    D = np.column_stack([X, np.ones(len(X))]) if fit_intercept else X
    mine = model.models_[positions(model.users_, users)]
    if loss == "multinomial":
        z = np.einsum("nd,ncd->nc", D, mine)
        assert_allclose(mine.sum(axis=1), 0.0, atol=1e-9)  # coefficients sum to zero over classes
        assert_allclose(z, model.decision_function(X, users=users), rtol=1e-7, atol=1e-8)
    elif loss == "logistic":
        z = (D * mine).sum(axis=1)
        assert_allclose(z, model.decision_function(X, users=users), rtol=1e-7, atol=1e-8)
    else:
        z = model.loss_.mean((D * mine).sum(axis=1))
        assert_allclose(z, model.predict(X, users=users), rtol=1e-7, atol=1e-8)
    assert model.models_.shape[-1] == model.cluster_models_.shape[-1] == D.shape[1]
    assert len(model.cluster_models_) == model.n_clusters_


@pytest.mark.parametrize("loss", LOSSES)
def test_a_constant_column_changes_nothing(table, loss):
    X, y, users = table
    y = targets(loss, y)
    model = estimator_for(loss).fit(X, y, users=users)
    rounded = 0.1 + 2e-17 * (np.arange(len(X)) % 2)  # constant up to rounding
    assert len(np.unique(rounded)) == 2
    more = np.column_stack([np.full(len(X), 7.0), X, rounded])
    same = estimator_for(loss).fit(more, y, users=users)
    assert_array_equal(same.labels_, model.labels_)
    # The columns' means are sums by another kernel: a few ulps.
    assert_allclose(response(same, more, users), response(model, X, users), rtol=1e-9, atol=1e-11)
    assert (same.models_[..., [0, 6]] == 0).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_columns_that_no_user_can_tell_apart_are_accepted(table, loss):
    """A copy of a column, and a column that is constant within every user."""
    X, y, users = table
    y = targets(loss, y)
    train, test = split(len(y))
    more = np.column_stack([X, X[:, 0], np.random.default_rng(0).normal(size=24)[users]])
    model, same = estimator_for(loss, clusterer=4), estimator_for(loss, clusterer=4)
    model.fit(X[train], y[train], users=users[train])
    same.fit(more[train], y[train], users=users[train])
    worse = model.score(X[test], y[test], users=users[test]) - 0.05
    assert same.score(more[test], y[test], users=users[test]) > worse
    assert np.isfinite(same.assign(more[:20], y[:20]).model).all()


def test_only_constant_columns_leave_the_intercept(table):
    _, y, users = table
    X = np.ones((len(y), 2))
    model = ODCLRegressor(clusterer=1, random_state=0).fit(X, y, users=users)
    assert_allclose(model.predict(X, users=users), y.mean(), rtol=0.5)
    assert model.models_.shape == (24, 3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", ["default", "paper"])
def test_any_users_are_accepted(table, loss, method):
    """One row, one class, rows that repeat, columns from 1e-12 to 1e12."""
    X, y, users = table
    y = targets(loss, y)
    users = np.concatenate([users, [100, 101, 102], np.full(20, 103), np.full(6, 104)])
    rows = np.concatenate([np.arange(len(y)), [0, 1, 2], np.zeros(20, int), np.arange(6)])
    X, y = X[rows] * [1e12, 1e-12, 1, 1, 1], y[rows]
    model = estimator_for(loss, method=method).fit(X, y, users=users)
    assert np.isfinite(response(model, X, users)).all()
    assert len(model.users_) == 29
    assert_array_equal(np.unique(model.labels_), np.arange(model.n_clusters_))


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


def test_text_and_numbers_are_different_ids(table):
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    with pytest.raises(ValueError, match=r"'16'.* not in the fit \(the fit's ids look like 0\)"):
        model.predict(X, users=users.astype(str))


@pytest.mark.parametrize("known", [[3, 7, 9], ["b", "a"], [1, "a", None, 2.5], [2**70, 4]])
def test_positions_finds_ids_and_only_them(known):
    from odcl.data.federation import as_ids

    ids = as_ids(known)
    asked = [*known[::-1], "nobody", 10**6]
    expected = [*range(len(known))[::-1], -1, -1]
    assert_array_equal(positions(ids, as_ids(asked)), expected)


# -- users never seen ------------------------------------------------------------------------------


def test_an_unknown_user_is_an_error_that_names_the_options(table):
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    with pytest.raises(ValueError, match=r"Users 98, 99 were not.*add_user.*pooled.*nearest"):
        model.predict(X[:3], users=[98, 99, 1])


@pytest.mark.parametrize("loss", LOSSES)
def test_unknown_pooled_is_one_model_for_all(table, loss):
    X, y, users = table
    y = targets(loss, y)
    model = estimator_for(loss, unknown="pooled").fit(X, y, users=users)
    strangers = np.where(users == 3, 99, users)
    predicted = response(model, X, strangers)
    alone = clone(model).fit(X, y)
    tolerance = {"rtol": 1e-6, "atol": 1e-8}
    if loss == "huber":  # without groups the residuals are larger, and with them Huber's delta
        tolerance = {"rtol": 0.3, "atol": 0.3}
    assert_allclose(predicted[users == 3], response(alone, X, None)[users == 3], **tolerance)
    assert_array_equal(predicted[users != 3], response(model, X, users)[users != 3])
    assert_array_equal(response(model, X, None)[users == 3], predicted[users == 3])


def test_unknown_nearest_is_the_model_of_the_group_with_similar_features(table):
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    groups = model.labels_[positions(model.users_, users)]
    # Groups that live in different places, so that features tell them.
    X = X + 10.0 * groups[:, None]
    model = ODCLRegressor(unknown="nearest", random_state=0).fit(X, y, users=users)
    assert_array_equal(model.labels_[positions(model.users_, users)], groups)
    strangers = np.char.add("new ", users.astype(str))
    D = np.column_stack([X, np.ones(len(X))])
    expected = (D * model.cluster_models_[groups]).sum(axis=1)
    assert_allclose(model.predict(X, users=strangers), expected, rtol=1e-9, atol=1e-9)


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
    model.users_, model.labels_ = np.arange(n_users), np.zeros(n_users, dtype=int)
    model.theta_ = rng.standard_normal((n_users, 6))
    owner = rng.integers(0, n_users, n_rows)
    many = rng.standard_normal((n_rows, 5))
    tracemalloc.start()
    predicted = model.predict(many, users=owner)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
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


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "square"}, "loss='square' is not one of"),
        ({"loss": "logistic"}, "use ODCLClassifier"),
        ({"combine": "median"}, "combine='median' is not one of 'mean'"),
        ({"combine": "median", "method": "paper"}, "combine='median' is not one of 'mean'"),
        ({"refit": "always"}, "refit='always' is not one of None"),
        ({"refit": -1.0}, "refit=-1.0 is not one of None"),
        ({"refit": True}, "refit=True is not one of None"),
        ({"method": "papers"}, "method='papers' is not one of 'default', 'paper'"),
        ({"unknown": "ignore"}, "unknown='ignore' is not one of 'error'"),
        ({"curvature": "half"}, "curvature='half' is not one of 'auto'"),
        ({"clusterer": "kmeans"}, "clusterer='kmeans' is not one of"),
        ({"clusterer": 2.5}, "clusterer=2.5 has no fit"),
        ({"clusterer": 0}, "at least 1"),
        ({"clusterer": 25}, "asks for 25 groups, and there are 24 users"),
        ({"clusterer": KMeansPP(25)}, "asks for 25 groups, and there are 24 users"),
        ({"clusterer": DBSCAN(eps=1e-3)}, "without a cluster"),
        ({"solver": "newton"}, "solver='newton' is neither"),
        ({"l2": -0.1}, "l2=-0.1 is the weight"),
        ({"l2": float("nan")}, "l2=nan is the weight"),
        ({"l2": "strong"}, "l2='strong' is the weight"),
        ({"fit_intercept": "no"}, "fit_intercept='no' is neither"),
        ({"random_state": "seed"}, "cannot be used to seed"),
    ],
)
def test_settings_that_cannot_be_are_refused(table, settings, message):
    X, y, users = table
    with pytest.raises(ValueError, match=message):
        ODCLRegressor(**settings).fit(X, y, users=users)


@pytest.mark.parametrize("clusterer", [3, KMeansPP(3), AgglomerativeClustering(3)])
def test_one_user_cannot_be_several_groups(table, clusterer):
    X, y, _ = table
    with pytest.raises(ValueError, match=r"asks for 3 groups, and there is 1 user \(without"):
        ODCLRegressor(clusterer=clusterer).fit(X, y)


def test_data_that_cannot_be_fitted_are_refused(table):
    X, y, users = table
    hole = np.where(np.arange(len(y)) == 5, np.nan, 1.0)
    regressor, classifier = ODCLRegressor(), ODCLClassifier()
    refused = [
        (regressor, X * hole[:, None], y, users, "X contains NaN"),
        (regressor, X, np.where(np.isnan(hole), np.inf, y), users, "y contains infinity"),
        (regressor, X, y[:-1], users, "inconsistent numbers of samples"),
        (regressor, X, y, users[:-1], "1440 rows and users 1439 ids"),
        (regressor, X, y, "store", "named in the constructor"),
        (regressor, X, y, 7, "one id, and every row needs its own"),
        (regressor, X, y, users[:, None], r"one id per row, got an array of shape \(1440, 1\)"),
        (regressor, X, y, [[1]] * len(y), "not a collection"),
        (ODCLRegressor("poisson"), X, y, users, "counts >= 0"),
        (classifier, X, y, users, "Unknown label type: continuous"),
        (classifier, X, np.where(y > 0, "a", None), users, "y contains None"),
        (classifier, X, hole, users, "y contains NaN"),
        (classifier, X, np.ones(len(y)), users, "only one class: 1.0"),
        (ODCLClassifier("squared"), X, y > 0, users, "use ODCLRegressor"),
        (
            ODCLClassifier(Multinomial(5)),
            X,
            y > 0,
            users,
            "is for 5 classes, .* holds 2",
        ),
        (
            ODCLClassifier(Logistic()),
            X,
            np.digitize(y, [-1, 1]),
            users,
            "is for 2 classes.* holds 3",
        ),
    ]
    for model, data, target, owners, message in refused:
        with pytest.raises(ValueError, match=message):
            model.fit(data, target, users=owners)
    with pytest.raises(ValueError, match="1440 rows and users 3 ids"):
        regressor.fit(X, y, users=users).predict(X, users=[1, 2, 3])


def test_a_users_column_that_is_not_there_is_refused(frame):
    X, y = frame
    with pytest.raises(ValueError, match=r"no column 'stores' .*did you mean 'store'\?"):
        ODCLRegressor(users="stores").fit(X, y)
    with pytest.raises(ValueError, match=r"array of shape \(1440, 5\)"):
        ODCLRegressor(users="store").fit(X[COLUMNS].to_numpy(), y)
    with pytest.raises(ValueError, match=r"array of shape \(1440, 5\)"):
        ODCLRegressor(users=5).fit(X[COLUMNS].to_numpy(), y)
    with pytest.raises(ValueError, match="given twice"):
        ODCLRegressor(users="store").fit(X, y, users=X["store"])
    with pytest.raises(TypeError, match="X is sparse"):
        ODCLRegressor(users=0).fit(sparse.csr_array(X[COLUMNS].to_numpy()), y)
    with pytest.raises(ValueError, match="missing"):
        ODCLRegressor(users="store").fit(X, y).predict(X[COLUMNS])


# -- accuracy --------------------------------------------------------------------------------------


def split(n, seed=0):
    held_out = np.random.default_rng(seed).random(n) < 0.5
    return ~held_out, held_out


def local(model):
    """The same estimator with every user alone."""
    return clone(model).set_params(clusterer=1, refit=0.0)


@pytest.mark.parametrize("seed", range(3))
def test_users_are_better_off_than_alone_and_than_with_one_model(seed):
    """The paper's linear set-up, 100 users and 100 rows each: held-out error against the noise."""
    federation = linear_federation(100, 200, n_clusters=4, seed=seed)
    X, y, users = federation.X, federation.y, federation.row_user
    train, test = split(len(y), seed)

    def error(model, **who):
        return np.mean((model.predict(X[test], **who) - y[test]) ** 2)

    model = ODCLRegressor(random_state=0)
    ours = error(clone(model).fit(X[train], y[train], users=users[train]), users=users[test])
    alone = error(local(model).fit(X[train], y[train], users=users[train]), users=users[test])
    pooled = error(clone(model).fit(X[train], y[train]))
    # Noise has variance 1; a user alone adds dim / n = 21 / 100, a group of 25 a 25th of that.
    assert ours < 1.03
    assert alone > 1.15
    assert pooled > 4.0


def test_classifiers_are_better_off_than_alone_and_than_with_one_model():
    federation = logistic_federation(100, 200, seed=0)
    X, y, users = federation.X, federation.y, federation.row_user
    train, test = split(len(y))
    model = ODCLClassifier(random_state=0)

    def loss(fitted, **who):
        return log_loss(y[test], fitted.predict_proba(X[test], **who))

    ours = clone(model).fit(X[train], y[train], users=users[train])
    alone = local(model).fit(X[train], y[train], users=users[train])
    assert ours.n_clusters_ == 4
    assert_array_equal(ours.classes_, [-1, 1])
    assert loss(ours, users=users[test]) < loss(alone, users=users[test])
    assert loss(ours, users=users[test]) < loss(clone(model).fit(X[train], y[train])) - 0.1
    assert ours.score(X[test], y[test], users=users[test]) > alone.score(
        X[test], y[test], users=users[test]
    )


@pytest.mark.parametrize("n_classes", [3, 5])
def test_more_than_two_classes(n_classes):
    X, y, users, groups = logistic_users(30, 200, n_classes)
    train, test = split(len(y))
    names = np.array(["ash", "birch", "cedar", "elm", "fir"])[y]
    model = ODCLClassifier(random_state=0).fit(X[train], names[train], users=users[train])
    alone = local(model).fit(X[train], names[train], users=users[train])
    assert model.n_clusters_ == 3
    assert_array_equal(groups, model.labels_)
    p = model.predict_proba(X[test], users=users[test])
    assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    assert_array_equal(model.classes_[p.argmax(axis=1)], model.predict(X[test], users=users[test]))
    assert log_loss(names[test], p) < log_loss(
        names[test], alone.predict_proba(X[test], users=users[test])
    )


def test_counts():
    rng = np.random.default_rng(0)
    X, users = rng.standard_normal((4000, 3)), np.repeat(np.arange(40), 100)
    centers = np.array([[0.6, 0.0, 0.3], [-0.6, 0.3, 0.0]])
    rate = np.exp(0.5 + (X * centers[users % 2]).sum(axis=1))
    y = rng.poisson(rate)
    train, test = split(len(y))
    model = ODCLRegressor("poisson", random_state=0).fit(X[train], y[train], users=users[train])
    alone = local(model).fit(X[train], y[train], users=users[train])

    def error(fitted):
        return np.mean((fitted.predict(X[test], users=users[test]) / rate[test] - 1.0) ** 2)

    assert model.n_clusters_ == 2
    assert error(model) < 0.2 * error(alone)


def test_huber_is_not_impressed_by_outliers(table):
    X, y, users = table
    spoiled = y.copy()
    rng = np.random.default_rng(0)
    bad = rng.random(len(y)) < 0.05
    spoiled[bad] += 1000.0 * rng.standard_normal(bad.sum())
    clean = ODCLRegressor(random_state=0).fit(X, y, users=users)
    robust = ODCLRegressor("huber", random_state=0).fit(X, spoiled, users=users)
    assert_array_equal(robust.labels_, clean.labels_)
    gap = robust.predict(X, users=users) - clean.predict(X, users=users)
    assert np.sqrt(np.mean(gap**2)) < 0.15  # the noise is 1
    # 1.345 times the scale of the noise, within the outliers' five percent.
    assert robust.loss_.delta == pytest.approx(1.345, rel=0.15)
    # A Loss given is taken as it is, in the target's units.
    assert ODCLRegressor(Huber(2.5)).fit(X, y, users=users).loss_.delta == 2.5


def test_huber_takes_its_scale_from_users_who_can_tell():
    """Users with as many rows as parameters fit them exactly and say nothing of the noise."""
    rng = np.random.default_rng(0)
    sizes = np.array([4] * 60 + [60] * 10)
    users = np.repeat(np.arange(70), sizes)
    X = rng.standard_normal((len(users), 3))
    y = X.sum(axis=1) + 0.5 * rng.standard_normal(len(users))
    model = ODCLRegressor("huber", random_state=0).fit(X, y, users=users)
    assert model.loss_.delta == pytest.approx(1.345 * 0.5, rel=0.15)
    tiny = users < 60
    nobody = ODCLRegressor("huber", random_state=0).fit(X[tiny], y[tiny], users=users[tiny])
    assert nobody.loss_.delta == pytest.approx(1.345 * 0.5, rel=0.3)


@pytest.mark.parametrize("settings", [{"solver": Ridge(1e-6)}, {"clusterer": KMeansPP(4)}])
def test_other_solvers_and_clusterers_plug_in(table, settings):
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    other = ODCLRegressor(**settings, random_state=0).fit(X, y, users=users)
    assert_array_equal(other.labels_, model.labels_)
    assert_allclose(other.predict(X, users), model.predict(X, users), rtol=1e-3, atol=1e-3)


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", ["default", "paper"])
def test_a_weight_is_how_often_a_row_counts(table, loss, method):
    """Twice is the row twice, zero is no row: a user and a class may vanish so."""
    X, y, users = table
    y = targets(loss, y)
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    weight[users == 7] = 0
    if loss == "multinomial":
        y = np.where(users == 7, 9, y)
    settings = {"method": method, "unknown": "nearest", "clusterer": 4}
    model = estimator_for(loss, **settings).fit(X, y, users=users, sample_weight=weight)
    repeated = estimator_for(loss, **settings)
    repeated.fit(np.repeat(X, weight, axis=0), np.repeat(y, weight), users=np.repeat(users, weight))
    assert_array_equal(model.users_, repeated.users_)
    assert_array_equal(model.labels_, repeated.labels_)
    assert_allclose(response(model, X, users), response(repeated, X, users), rtol=1e-8, atol=1e-9)
    mine = model.assign(X[users == 3], y[users == 3])
    theirs = repeated.assign(X[users == 3], y[users == 3])
    assert mine.distance == pytest.approx(theirs.distance, rel=1e-7)


def test_score_takes_weights(table):
    X, y, users = table
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    for model, target in ((ODCLRegressor(), y), (ODCLClassifier(), y > 0)):
        model.fit(X, target, users=users)
        again = np.repeat(np.arange(len(y)), weight)
        assert model.score(X, target, weight, users) == pytest.approx(
            model.score(X[again], target[again], users=users[again])
        )


# -- new users -------------------------------------------------------------------------------------


class World:
    """Three groups of users, and people from nowhere."""

    def __init__(self, kind, *, dim=5, size=1.0, differ=0.0, seed=0):
        self.kind, self.differ = kind, differ
        self.rng = np.random.default_rng(seed)
        outputs = 3 if kind == "multinomial" else 1
        self.centers = size * self.rng.standard_normal((4, dim, outputs))

    def rows(self, group, n):
        """Rows of a new user of a group; group 3 is nowhere."""
        center = self.centers[group]
        model = center + self.differ * self.rng.standard_normal(center.shape)
        X = self.rng.standard_normal((n, len(center)))
        z = X @ model
        if self.kind == "multinomial":
            return X, (z + self.rng.gumbel(size=z.shape)).argmax(axis=1)
        z = z[:, 0]
        if self.kind == "logistic":
            return X, np.where(z + self.rng.logistic(size=n) > 0, "yes", "no")
        return X, counts(z, self.rng) if self.kind == "poisson" else z + self.rng.normal(size=n)

    def fit(self, model, *, n_users=36, n_samples=100):
        groups = np.arange(n_users) * 3 // n_users
        parts = [self.rows(g, n_samples) for g in groups]
        X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
        model.fit(X, y, users=np.repeat(np.arange(n_users), n_samples))
        assert_array_equal(model.labels_, groups)
        return model


@pytest.mark.parametrize("loss", LOSSES)
def test_a_member_is_assigned_to_its_group_and_a_stranger_to_none(loss):
    world = World(loss)
    model = world.fit(estimator_for(loss, clusterer=3))
    for group in (0, 1, 2):
        X, y = world.rows(group, 100)
        found = model.assign(X, y)
        assert (found.label, found.none_of_these) == (group, False)
        assert found.probability > 0.99
        assert found.probability == found.probabilities.max()
        assert found.probabilities.sum() == pytest.approx(1.0)
        assert 0.3 < found.distance < 2.0
        assert found.model.shape == model.models_.shape[1:]
    X, y = world.rows(3, 300)
    found = model.assign(X, y)
    assert (found.label, found.none_of_these) == (-1, True)
    assert found.distance > 2.0
    # Nobody else's model: its own.
    alone = estimator_for(loss).fit(X, y)
    assert np.abs(found.model - model.cluster_models_).max() > 0.3
    if loss != "huber":  # whose delta hangs on the federation's residuals
        assert_allclose(found.model, alone.models_[0], rtol=0.2, atol=0.1)


CALIBRATION = [
    ("squared", {}, {}),
    ("squared", {"l2": 0.1}, {}),
    ("squared", {}, {"differ": 0.3}),
    ("squared", {"method": "paper", "clusterer": 3}, {"differ": 0.3}),
    ("logistic", {}, {}),
    ("logistic", {"l2": 0.1}, {}),
    ("logistic", {"l2": 0.0}, {"size": 2.0}),
    ("logistic", {"combine": "mean", "l2": 0.1}, {}),
    ("logistic", {"method": "paper", "clusterer": 3}, {"differ": 0.3}),
    ("multinomial", {}, {}),
    ("poisson", {}, {}),
    ("huber", {}, {}),
]


@pytest.mark.parametrize(("loss", "settings", "world"), CALIBRATION)
def test_false_alarms_are_rare_whatever_the_number_of_rows(loss, settings, world):
    """Of 100 or 200 members of 1 to 500 rows, at most 2 % are taken for strangers.

    The penalty's shrinkage, differences inside groups, nearly certain labels and a noise scale
    from two degrees of freedom would all pass for strangeness if the distance were read off the
    user's own model.
    """
    world = World(loss, **{"size": 1.5 if loss == "logistic" else 1.0, **world})
    model = world.fit(estimator_for(loss, **{"clusterer": 3, **settings}))
    sizes = [1, 4, 20, 100, 500] * (40 if loss in ("squared", "logistic") else 20)
    found = [(n, i % 3, model.assign(*world.rows(i % 3, n))) for i, n in enumerate(sizes)]
    assert np.mean([a.none_of_these for _, _, a in found]) <= 0.02
    right = [int(a.probabilities.argmax()) == group for n, group, a in found if n >= 100]
    assert np.mean(right) > 0.95  # where users of a group differ, a few lie between groups
    distances = np.array([a.distance for n, _, a in found if n >= 4])
    assert 0.5 < np.median(distances) < 1.3  # in noise units, whatever the number of rows
    strangers = [model.assign(*world.rows(3, 500)) for _ in range(5)]
    assert all(a.none_of_these for a in strangers)


def test_a_noisier_member_is_no_stranger():
    world = World("squared")
    model = world.fit(ODCLRegressor(clusterer=3, random_state=0))
    alarms = 0
    for i in range(100):
        X, y = world.rows(i % 3, 50)
        alarms += model.assign(X, y + 2.0 * world.rng.normal(size=50)).none_of_these
    assert alarms <= 2


def test_groups_of_one_user_leave_room_for_their_own_noise():
    """The centre is then as noisy as the newcomer: twice the variance, no alarm."""
    rng = np.random.default_rng(0)
    centers = 3.0 * rng.standard_normal((3, 4))

    def rows(k, n):
        X = rng.standard_normal((n, 4))
        return X, X @ centers[k] + rng.standard_normal(n)

    alarms = 0
    for _ in range(40):
        X, y = (np.concatenate(p) for p in zip(*(rows(k, 30) for k in range(3)), strict=True))
        model = ODCLRegressor(clusterer=3, random_state=0)
        model.fit(X, y, users=np.repeat(np.arange(3), 30))
        alarms += sum(model.assign(*rows(k, 100)).none_of_these for k in range(3))
    assert alarms <= 2


@pytest.mark.parametrize("loss", LOSSES)
def test_one_row_or_one_class_is_enough_to_be_assigned(table, loss):
    X, y, users = table
    y = targets(loss, y)
    model = estimator_for(loss).fit(X, y, users=users)
    for rows in (slice(0, 1), np.flatnonzero(y == y[0])[:20], np.zeros(30, dtype=int)):
        found = model.assign(X[rows], y[rows])
        assert np.isfinite(found.model).all()
        assert np.isfinite(found.probabilities).all()
        assert found.probability >= 1 / model.n_clusters_


@pytest.mark.parametrize("loss", LOSSES)
def test_the_order_of_a_newcomers_rows_does_not_matter(table, loss):
    X, y, users = table
    y = targets(loss, y)
    model = estimator_for(loss).fit(X, y, users=users)
    rows = np.flatnonzero(users == 5)
    one, other = model.assign(X[rows], y[rows]), model.assign(X[rows[::-1]], y[rows[::-1]])
    assert one.label == other.label == model.labels_[5]
    assert one.distance == pytest.approx(other.distance, rel=1e-9)
    assert_allclose(one.probabilities, other.probabilities, rtol=1e-7, atol=1e-12)
    assert_allclose(one.model, other.model, rtol=1e-7, atol=1e-9)


def test_noise_free_rows_are_no_strangers(table):
    X, _, users = table
    y = X @ np.arange(1.0, 6.0) * np.where(users < 12, 1.0, -1.0)
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    found = model.assign(X[users == 0], y[users == 0])
    assert (found.label, found.none_of_these) == (model.labels_[0], False)


@pytest.mark.parametrize(
    ("refit", "expected"), [(None, "group"), ("evidence", "between"), (0.0, "own"), (1e9, "group")]
)
def test_a_newcomer_is_refitted_as_the_others_were(refit, expected):
    world = World("squared", differ=0.3)
    model = world.fit(ODCLRegressor(refit=refit, clusterer=3, random_state=0))
    X, y = world.rows(1, 40)
    found = model.assign(X, y)
    own = ODCLRegressor().fit(X, y).models_[0]
    group = model.cluster_models_[found.label]
    if expected == "between":
        assert 0 < np.linalg.norm(found.model - group) < np.linalg.norm(own - group)
    else:
        assert_allclose(found.model, own if expected == "own" else group, rtol=1e-6, atol=1e-6)


def test_an_added_user_is_known(table):
    X, y, users = table
    rows = np.flatnonzero(users == 5)
    rest = np.flatnonzero(users != 5)
    model = ODCLRegressor(random_state=0).fit(X[rest], y[rest], users=users[rest])
    before = model.predict(X[rest], users=users[rest])
    found = model.add_user("newcomer", X[rows], y[rows])
    assert model.users_[-1] == "newcomer"
    assert model.labels_[-1] == found.label
    predicted = model.predict(X[rows], users=["newcomer"] * len(rows))
    D = np.column_stack([X[rows], np.ones(len(rows))])
    assert_allclose(predicted, D @ found.model, rtol=1e-9, atol=1e-9)
    assert_allclose(model.models_[-1], found.model, rtol=1e-12)
    assert_array_equal(model.predict(X[rest], users=users[rest]), before)
    with pytest.raises(ValueError, match="'newcomer' is known already"):
        model.add_user("newcomer", X[rows], y[rows])
    model.add_user(7_000, X[rows], y[rows])
    assert_array_equal(model.predict(X[rows], users=[7_000] * len(rows)), predicted)


@pytest.mark.parametrize("column", ["store", 1, -5])
def test_a_newcomers_rows_may_come_with_or_without_the_users_column(frame, column):
    X, y = frame
    old = X["store"] != "s05"
    model = ODCLRegressor(users=column, clusterer=4, random_state=0).fit(X[old], y[old])
    rows, target = X[~old], y[~old]
    with_column = model.assign(rows, target)
    assert_array_equal(with_column.model, model.assign(rows[COLUMNS], target).model)
    assert_array_equal(with_column.model, model.assign(rows[COLUMNS].to_numpy(), target).model)
    with pytest.raises(ValueError, match=r"those of the fit were \['a', 'b', 'c', 'd', 'e'\]"):
        model.assign(rows[COLUMNS[::-1]], target)
    with pytest.raises(ValueError, match="rows of 24 users, and one user"):
        model.assign(X, y)
    model.add_user("s05", rows, target)
    assert model.predict(rows).shape == (60,)


def test_a_newcomers_labels_are_those_of_the_fit(table):
    X, y, users = table
    model = ODCLClassifier().fit(X, np.where(y > 0, "yes", "no"), users=users)
    with pytest.raises(ValueError, match=r"'perhaps' is not one of the classes .*: 'no', 'yes'"):
        model.assign(X[:2], ["yes", "perhaps"])
    with pytest.raises(ValueError, match="inconsistent"):
        model.assign(X[:2], ["yes"])
    with pytest.raises(ValueError, match="NaN"):
        model.assign(np.full((1, 5), np.nan), ["yes"])


# -- as an object ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_fitted_estimators_can_be_cloned_and_pickled(table, loss, tmp_path):
    X, y, users = table
    model = estimator_for(loss, clusterer=KMeansPP(3)).fit(X, targets(loss, y), users=users)
    expected = response(model, X, users)
    assert_array_equal(response(pickle.loads(pickle.dumps(model)), X, users), expected)
    joblib.dump(model, tmp_path / "model.joblib")
    assert_array_equal(response(joblib.load(tmp_path / "model.joblib"), X, users), expected)
    again = clone(model)
    assert again.get_params()["clusterer__n_clusters"] == 3
    with pytest.raises(NotFittedError):
        again.predict(X, users=users)
    assert not hasattr(again, "models_")
    assert_array_equal(response(again.fit(X, targets(loss, y), users=users), X, users), expected)


def test_parameters_are_those_of_the_promise():
    shared = {
        "fit_intercept": True,
        "standardize": True,
        "clusterer": "auto",
        "combine": "precision",
        "refit": "evidence",
        "method": "default",
        "curvature": "auto",
        "unknown": "error",
        "users": None,
        "solver": "exact",
        "random_state": None,
        "n_jobs": None,
    }
    assert ODCLRegressor().get_params() == {"loss": "squared", "l2": 0.0, **shared}
    assert ODCLClassifier().get_params() == {"loss": "logistic", "l2": 1e-2, **shared}
    assert ODCLRegressor("huber").loss == "huber"
    with pytest.raises(TypeError):
        ODCLRegressor("huber", 0.1)
    assert repr(ODCLClassifier(l2=0.5)) == "ODCLClassifier(l2=0.5)"


def test_a_fit_is_the_same_in_any_order_of_rows_and_in_threads(table):
    X, y, users = table
    model = ODCLRegressor(random_state=0).fit(X, y, users=users)
    order = np.argsort(users, kind="stable")  # a user's rows stay in their order
    sorted_rows = ODCLRegressor(random_state=0).fit(X[order], y[order], users=users[order])
    # The columns' means are sums over all rows, in another order.
    assert_allclose(sorted_rows.models_, model.models_, rtol=1e-9, atol=1e-12)
    threads = ODCLRegressor(random_state=0, n_jobs=2).fit(X, y, users=users)
    assert_array_equal(threads.models_, model.models_)
