"""ODCLRegressor and ODCLClassifier keep scikit-learn's promises, and refuse what cannot be."""

from __future__ import annotations

import pickle
import warnings
from functools import partial

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.cluster import DBSCAN, AgglomerativeClustering
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from odcl import KMeansPP, Logistic, Method, Multinomial, ODCLClassifier, ODCLRegressor
from tests.helpers import (
    FRAME_COLUMNS,
    LOSS_NAMES,
    estimator_for,
    models_of,
    response,
    target_of_kind,
)


@parametrize_with_checks(
    [
        ODCLRegressor(),
        ODCLRegressor("huber"),
        ODCLRegressor("poisson"),
        ODCLRegressor(method="paper"),
        ODCLRegressor(unknown="pooled", method=Method("silhouette")),
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


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "square"}, "loss='square' is not one of"),
        ({"loss": "logistic"}, "use ODCLClassifier"),
        ({"method": "papers"}, "method='papers' is not 'default', 'paper' or a Method"),
        ({"unknown": "ignore"}, "unknown='ignore' is not one of 'error'"),
        ({"clusterer": "kmeans"}, "clusterer='kmeans' is not one of"),
        ({"clusterer": 2.5}, "clusterer=2.5 has no fit"),
        ({"clusterer": 0}, "not a number of groups from 1 on"),
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


@pytest.mark.parametrize("factor", [1e150, 1e-150, 1e300])
def test_a_target_beyond_what_can_be_squared_is_refused_everywhere(table, factor):
    X, y, users = table
    told = r"y reaches \S+ in row \d+, and its .*: express it in another unit"
    for loss in ("squared", "huber"):
        with pytest.raises(ValueError, match=told):
            ODCLRegressor(loss).fit(X, factor * y, users=users)
    model = ODCLRegressor().fit(X, y, users=users)
    for call in (model.assign, partial(model.add_user, "new"), partial(model.update_user, 3)):
        with pytest.raises(ValueError, match=told):
            call(X[:5], factor * y[:5])
    assert model.n_rows_[3] == 60
    assert len(model.users_) == 24


def test_a_column_of_dates_or_text_is_named(frame):
    X, y = frame
    for model, owner in ((ODCLRegressor(users="store"), {}), (ODCLRegressor(), {"users": X.store})):
        data = X if model.users else X[FRAME_COLUMNS]
        dated = data.assign(c=pd.Timestamp("2024-01-01"))
        with pytest.raises(ValueError, match="Column 'c' of X holds dates or times"):
            model.fit(dated, y, **owner)
        with pytest.raises(ValueError, match=r"Column 'd' of X holds text .row 2: 'far'"):
            model.fit(data.assign(d=np.where(np.arange(len(data)) == 1, "far", "1")), y, **owner)
        model.fit(data, y, **owner)
        with pytest.raises(ValueError, match="Column 'c' of X holds dates or times"):
            model.predict(dated, **owner)
        with pytest.raises(ValueError, match="Column 'c' of X holds dates or times"):
            model.assign(dated[:1], y[:1])


def test_a_users_column_that_is_not_there_is_refused(frame):
    X, y = frame
    with pytest.raises(ValueError, match=r"no column 'stores' .*did you mean 'store'\?"):
        ODCLRegressor(users="stores").fit(X, y)
    with pytest.raises(ValueError, match=r"array of shape \(1440, 5\)"):
        ODCLRegressor(users="store").fit(X[FRAME_COLUMNS].to_numpy(), y)
    with pytest.raises(ValueError, match=r"array of shape \(1440, 5\)"):
        ODCLRegressor(users=5).fit(X[FRAME_COLUMNS].to_numpy(), y)
    with pytest.raises(ValueError, match="given twice"):
        ODCLRegressor(users="store").fit(X, y, users=X["store"])
    with pytest.raises(TypeError, match="X is sparse"):
        ODCLRegressor(users=0).fit(sparse.csr_array(X[FRAME_COLUMNS].to_numpy()), y)
    with pytest.raises(ValueError, match="Column 'store' is not in the table"):
        ODCLRegressor(users="store").fit(X, y).predict(X[FRAME_COLUMNS])


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSS_NAMES)
@pytest.mark.parametrize("method", ["default", "paper"])
def test_a_weight_is_how_often_a_row_counts(table, loss, method):
    """Twice is the row twice, zero is no row: a user and a class may vanish so."""
    X, y, users = table
    y = target_of_kind(loss, y)
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    weight[users == 7] = 0
    if loss == "multinomial":
        y = np.where(users == 7, 9, y)
    settings = {"method": method, "unknown": "pooled", "clusterer": 4}
    model = estimator_for(loss, **settings).fit(X, y, users=users, sample_weight=weight)
    repeated = estimator_for(loss, **settings)
    repeated.fit(np.repeat(X, weight, axis=0), np.repeat(y, weight), users=np.repeat(users, weight))
    assert_array_equal(model.users_, repeated.users_)
    assert_array_equal(model.labels_, repeated.labels_)
    assert_allclose(response(model, X, users), response(repeated, X, users), rtol=1e-8, atol=1e-9)
    mine = model.assign(X[users == 3], y[users == 3])
    theirs = repeated.assign(X[users == 3], y[users == 3])
    assert mine.distance == pytest.approx(theirs.distance, rel=1e-7, nan_ok=True)
    assert mine.probability == pytest.approx(theirs.probability, rel=1e-7)


def test_score_takes_weights(table):
    X, y, users = table
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    for model, target in ((ODCLRegressor(), y), (ODCLClassifier(), y > 0)):
        model.fit(X, target, users=users)
        again = np.repeat(np.arange(len(y)), weight)
        assert model.score(X, target, weight, users) == pytest.approx(
            model.score(X[again], target[again], users=users[again])
        )


# -- as an object ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_fitted_estimators_can_be_cloned_and_pickled(table, loss, tmp_path):
    X, y, users = table
    model = estimator_for(loss, clusterer=KMeansPP(3)).fit(X, target_of_kind(loss, y), users=users)
    expected = response(model, X, users)
    assert_array_equal(response(pickle.loads(pickle.dumps(model)), X, users), expected)
    joblib.dump(model, tmp_path / "model.joblib")
    assert_array_equal(response(joblib.load(tmp_path / "model.joblib"), X, users), expected)
    again = clone(model)
    assert again.get_params()["clusterer__n_clusters"] == 3
    with pytest.raises(NotFittedError):
        again.predict(X, users=users)
    assert not hasattr(again, "theta_")
    assert_array_equal(
        response(again.fit(X, target_of_kind(loss, y), users=users), X, users), expected
    )


@pytest.mark.parametrize(
    "settings", [{}, {"clusterer": "silhouette"}, {"clusterer": KMeansPP(9, n_init=1)}]
)
def test_by_default_a_fit_is_the_same_each_time(table, settings):
    X, y, users = table
    one, other = (ODCLRegressor(**settings).fit(X, y, users=users) for _ in range(2))
    assert_array_equal(one.labels_, other.labels_)
    assert_array_equal(models_of(one), models_of(other))


def test_parameters_are_those_of_the_promise():
    shared = {
        "fit_intercept": True,
        "method": "default",
        "clusterer": "auto",
        "unknown": "pooled",
        "unseen": "error",
        "missing": "error",
        "users": None,
        "categorical": None,
        "curves": "auto",
        "periodic": None,
        "robust": False,
        "solver": "exact",
        "random_state": 0,
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
    assert_allclose(models_of(sorted_rows), models_of(model), rtol=1e-9, atol=1e-12)
    threads = ODCLRegressor(random_state=0, n_jobs=2).fit(X, y, users=users)
    assert_array_equal(models_of(threads), models_of(model))
