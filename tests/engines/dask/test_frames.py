"""Dask frames in Python: the estimators fit them where they are, and predict them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from odcl import ODCLClassifier, ODCLRegressor, compare, federation_from_dask
from odcl.errors import InputError
from tests.engines.dask.tables import in_memory, sales

dd = pytest.importorskip("dask.dataframe")


@pytest.fixture
def frame():
    return sales().to_pandas()


def test_a_dask_frame_is_fitted_and_predicted_as_in_memory(frame):
    lazy = dd.from_pandas(frame, npartitions=4, sort=False)
    model = ODCLRegressor(users="store", categorical=["kind"])
    model.fit(lazy.drop(columns=["sales"]), lazy["sales"])
    whole = in_memory(sales())
    assert model.n_clusters_ == whole.n_clusters_
    found = model.predict(lazy)
    assert found.npartitions == 4
    answers = found.compute()
    assert answers["store"].tolist() == frame["store"].tolist()
    assert_allclose(answers["prediction"], whole.predict(frame), rtol=1e-8)


def test_curves_and_periods_of_a_dask_frame():
    frame = sales(m=30, n=20, bend=2.0).to_pandas()
    frame["hour"] = np.arange(len(frame)) % 24 + 24 * (np.arange(len(frame)) % 3)
    frame["sales"] += np.sin(np.pi / 12 * frame["hour"])
    lazy = dd.from_pandas(frame, npartitions=4, sort=False)
    settings = {"categorical": ["kind"], "curves": ["price"], "periodic": {"hour": 24}}
    model = ODCLRegressor(users="store", **settings).fit(lazy, "sales")
    whole = ODCLRegressor(users="store", **settings)
    whole.fit(frame.drop(columns="sales"), frame["sales"])
    assert [curve.name for curve in whole.risk_.curves] == ["price", "hour"]
    predicted = model.predict(lazy).compute()["prediction"]
    assert_allclose(predicted, whole.predict(frame.drop(columns="sales")), rtol=1e-8)


def test_columns_by_name_and_classes():
    frame = sales(loss="logistic").to_pandas()
    lazy = dd.from_pandas(frame, npartitions=3, sort=False)
    model = ODCLClassifier(categorical=["kind"]).fit(lazy, "sales", users="store")
    answers, whole = model.predict(lazy).compute(), in_memory(sales(loss="logistic"), "logistic")
    assert_allclose(answers["p(yes)"], whole.predict_proba(frame)[:, 1], rtol=1e-8)
    assert answers["prediction"].tolist() == whole.predict(frame).tolist()


def test_a_federation_of_a_dask_frame(frame, cluster):
    lazy = dd.from_pandas(frame, npartitions=4, sort=False)
    with cluster.client.as_current():
        federation, schema = federation_from_dask(
            lazy, user="store", target="sales", categorical=["kind"]
        )
        model = ODCLRegressor(users="store").fit_federation(federation)
        answers = model.predict(lazy).compute()
    assert schema.features == ("price", "ads", "kind")
    assert_allclose(answers["prediction"], in_memory(sales()).predict(frame), rtol=1e-8)


def test_the_files_of_a_model_go_with_it(frame, tmp_path):
    import dask

    with dask.config.set({"temporary-directory": str(tmp_path)}):
        model = ODCLRegressor(users="store", categorical=["kind"])
        model.fit(dd.from_pandas(frame, npartitions=2, sort=False), "sales")
    assert len(list(Path(tmp_path).iterdir())) == 1
    del model
    assert not list(Path(tmp_path).iterdir())


def test_a_model_that_was_saved_predicts_as_before(frame, tmp_path):
    """The folder has files of its own: each may go without the other."""
    lazy = dd.from_pandas(frame, npartitions=2, sort=False)
    model = ODCLRegressor(users="store", categorical=["kind"]).fit(lazy, "sales")
    before = model.predict(lazy).compute()
    model.save(tmp_path / "saved")
    assert model.predict(lazy).compute().equals(before)
    model.save(tmp_path / "again")
    shutil.rmtree(tmp_path / "saved")
    assert model.predict(lazy).compute().equals(before)
    del model
    assert ODCLRegressor.load(tmp_path / "again").predict(lazy).compute().equals(before)


def test_frames_in_memory_are_predicted_for_users_in_files(frame, few_examples):
    """The estimator holds 40 of the 60 users; nobody in the files is taken for a stranger."""
    lazy = dd.from_pandas(frame, npartitions=2, sort=False)
    model, whole = ODCLRegressor(users="store", categorical=["kind"]), in_memory(sales())
    model.fit(lazy, "sales").set_params(unknown="pooled")
    assert_allclose(model.predict(frame), whole.predict(frame), rtol=1e-8)
    for mine, theirs in zip(*(one.predict_interval(frame) for one in (model, whole)), strict=True):
        assert_allclose(mine, theirs, rtol=1e-8)
    strange = frame.assign(store=[1000, 7] * 240)
    with pytest.warns(UserWarning, match="1 user not in the fit, predicted as average users"):
        found = model.predict(dd.from_pandas(strange, npartitions=2, sort=False)).compute()
    with pytest.warns(UserWarning, match=r"240 of 480 rows belong to a user not in the fit \(1000"):
        assert_allclose(model.predict(strange), found["prediction"], rtol=1e-12)
    for ids in (1000, "nobody"):  # no file has a row of it
        with pytest.raises(ValueError, match="not in the fit"):
            model.set_params(unknown="error").predict(frame.assign(store=ids))


def test_a_fit_in_memory_forgets_the_files_of_one_before(frame):
    """And predicts Dask frames, where it knows the users' column."""
    lazy = dd.from_pandas(frame, npartitions=2, sort=False)
    model = ODCLRegressor(users="store", categorical=["kind"]).fit(lazy, "sales")
    model.fit(frame.drop(columns=["sales"]), -frame["sales"])
    answers = model.predict(lazy).compute()["prediction"]
    assert_allclose(answers, model.predict(frame.drop(columns=["sales"])), rtol=1e-12)
    X, y = frame[["price", "ads"]], frame["sales"]
    with pytest.raises(InputError, match="which column of a Dask frame names the user"):
        ODCLRegressor().fit(X, y, users=frame["store"]).predict(lazy)


def test_what_a_dask_frame_cannot_say_is_asked_for(frame):
    lazy = dd.from_pandas(frame, npartitions=2, sort=False)
    with pytest.raises(InputError, match="users in a column"):
        ODCLRegressor().fit(lazy, "sales")
    with pytest.raises(TypeError, match="rival in memory, and a Dask frame may not fit"):
        compare(ODCLRegressor(users="store", categorical=["kind"]), lazy, "sales")
    with pytest.raises(InputError, match="target of a Dask frame"):
        ODCLRegressor(users="store").fit(lazy, frame["sales"].to_numpy())


def test_text_is_taken_as_categories_and_ids_are_left_out_as_in_memory(frame):
    """The looks at partitions add up to the look at the whole frame."""
    n = len(frame)
    more = frame.assign(id=np.arange(1, n + 1), name=[f"n{i}" for i in range(n)])
    lazy = dd.from_pandas(more, npartitions=3, sort=False)
    told = r"categories: kind. Left out: 'id' .it counts the rows.*, 'name' .480 levels in 480"
    with pytest.warns(UserWarning, match=told):
        model = ODCLRegressor(users="store").fit(lazy, "sales")
    assert model.feature_names_ == in_memory(sales()).feature_names_
    expected = ODCLRegressor(users="store", categorical=["kind"]).fit(
        lazy.drop(columns=["id", "name"]), "sales"
    )
    assert_allclose(model.predict(frame), expected.predict(frame), rtol=1e-12)
    gaps = frame.assign(price=frame["price"].where(frame.index % 7 > 0))
    lazy = dd.from_pandas(gaps, npartitions=3, sort=False)
    model = ODCLRegressor(users="store", categorical=["kind"], missing="mean").fit(lazy, "sales")
    X = gaps.drop(columns="sales")
    whole = ODCLRegressor(users="store", categorical=["kind"], missing="mean")
    whole.fit(X, gaps["sales"])
    assert_allclose(model.predict(X), whole.predict(X), rtol=1e-8)


def test_an_error_advises_what_an_estimator_on_a_dask_frame_has(frame):
    def told(change, call):
        with pytest.raises(InputError) as caught:
            call(dd.from_pandas(frame.assign(**change), npartitions=2, sort=False))
        text = str(caught.value)
        for option in ("drop=", "task="):
            assert option not in text
        return text

    def fit(lazy):
        return ODCLRegressor(users="store", categorical=["kind"]).fit(lazy, "sales")

    gap = {"price": frame["price"].where(frame.index != 3)}
    text = told(gap, fit)
    for advice in ("missing='drop'", "missing='mean'", "frame.drop(columns=['price'])"):
        assert advice in text
    slip = {"price": np.where(frame.index == 3, "x", frame["price"].astype(str))}
    text = told(slip, fit)
    assert "categorical=['price']" in text
    assert "frame.drop(columns=['price'])" in text
    model = fit(dd.from_pandas(frame, npartitions=2, sort=False))
    assert "missing='mean'" in told(gap, model.predict)
    assert "ODCLClassifier" in told({"sales": frame["kind"]}, fit)
