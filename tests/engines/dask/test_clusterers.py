"""Clusterers of users' models on tables in pieces: the groups and models of a fit in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose

from odcl import Huber, Method
from odcl.data.address import Address
from odcl.engines.dask.cluster import Cluster
from odcl.errors import InputError
from odcl.estimators.public import estimator_with
from tests.engines.dask.tables import assert_same_fit, cut, estimator, in_memory, in_pieces, sales

METHODS = {
    "kmeans": Method("kmeans:3"),
    "paper": Method.paper(),
    "weighed": Method("kmeans:3", combine="samples"),
    "spectral": Method("spectral:3"),
    "convex": Method("convex"),
    "asked": Method("auto", combine="samples"),  # mixed groups give way
}


def assert_same_models(pieces, whole, rows):
    assert_same_fit(pieces, whole, rows)
    every = estimator_with(pieces.fitted_.holding(whole.users_))
    order = np.argsort(every.users_)
    for mine, theirs in (
        (every.theta_[order], whole.theta_),
        (every.cluster_theta_, whole.cluster_theta_),
    ):
        assert_allclose(mine, theirs, rtol=1e-8, atol=1e-8 * np.abs(theirs).max())
    assert_allclose(every.probability_[order], whole.probability_, atol=1e-8)
    assert every.rule_ == whole.rule_
    assert every.reason_ == whole.reason_


@pytest.mark.parametrize("name", METHODS)
def test_a_clusterer_of_models_finds_in_pieces_what_it_finds_in_memory(tmp_path, name):
    table, method = sales(n=12), METHODS[name]
    cut(table, tmp_path / "sales", [200, 500])
    found = in_pieces(tmp_path / "sales", tmp_path, method=method, buckets=4)
    assert_same_models(found, in_memory(table, method=method), table)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_models_of_classes_and_counts(tmp_path, cluster, loss):
    table = sales(m=30, n=40, loss=loss, text=True)
    cut(table, tmp_path / "sales", [400, 900])
    method = Method("kmeans:2")
    found = in_pieces(tmp_path / "sales", tmp_path, loss, method=method, cluster=cluster)
    whole = in_memory(table, loss, method=method)
    assert_same_fit(found, whole, table)


def test_hubers_loss_with_a_unit_of_its_own(tmp_path):
    table, loss = sales(n=12), Huber(0.5)
    cut(table, tmp_path / "sales", [200])
    found = in_pieces(tmp_path / "sales", tmp_path, loss)
    assert_same_models(found, in_memory(table, loss), table)


@pytest.mark.parametrize("m", [60, 61])
def test_hubers_loss_finds_its_unit_as_in_memory(tmp_path, m):
    """The median of an even and of an odd number of residuals; some users have too few rows."""
    table = sales(m=m, n=13)
    y, owner = table["sales"].to_numpy().copy(), table["store"].to_numpy()
    y[::17] += 40.0  # outliers
    table = table.set_column(4, "sales", pa.array(y)).filter(pa.array((owner > 1) | (y > 1)))
    cut(table, tmp_path / "sales", [200, 500])
    found, whole = in_pieces(tmp_path / "sales", tmp_path, "huber"), in_memory(table, "huber")
    assert found.risk_.loss.delta == pytest.approx(whole.risk_.loss.delta, rel=1e-12)
    assert_same_models(found, whole, table)


def test_hubers_unit_of_targets_without_noise_and_of_short_users(tmp_path):
    table = sales(n=12)
    plain = table.set_column(4, "sales", table["price"])
    cut(plain, tmp_path / "plain", [200])
    found, whole = in_pieces(tmp_path / "plain", tmp_path, "huber"), in_memory(plain, "huber")
    assert found.risk_.loss.delta == pytest.approx(whole.risk_.loss.delta, rel=1e-9)
    short = sales(n=3)
    cut(short, tmp_path / "short", [50])
    found, whole = in_pieces(tmp_path / "short", tmp_path / "s", "huber"), in_memory(short, "huber")
    assert found.risk_.loss.delta == pytest.approx(whole.risk_.loss.delta, rel=1e-9)


def test_more_users_than_are_clustered_at_once(tmp_path, monkeypatch):
    """Groups are found on a sample drawn by ids, which is the same however users are cut."""
    monkeypatch.setattr("odcl.server.chunks.MODEL_SAMPLE", 40)
    table, method = sales(n=12), Method("kmeans:3")
    cut(table, tmp_path / "sales", [200, 500])
    found = in_pieces(tmp_path / "sales", tmp_path, method=method)
    assert_same_fit(found, in_memory(table, method=method), table)


def test_a_later_user_joins_where_it_would_in_memory(tmp_path):
    table, new = sales(n=12), sales(m=3, n=12, seed=5).to_pandas()
    cut(table, tmp_path / "sales", [200, 500])
    found = in_pieces(tmp_path / "sales", tmp_path, method=Method("kmeans:3"))
    whole = in_memory(table, method=Method("kmeans:3"))
    for name in ("members", "samples"):
        assert_allclose(getattr(found.groups_, name), getattr(whole.groups_, name), rtol=1e-12)
    for _, rows in new.groupby("store"):
        X, y = rows.drop(columns=["sales"]), rows["sales"]
        assert found.assign(X, y).label == whole.assign(X, y).label


def test_another_solver_is_refused(tmp_path):
    from odcl.data.roles import Roles
    from odcl.engines.dask.table import table_files
    from odcl.runs.pieces import fit_pieces

    place = Address.of(cut(sales(), tmp_path / "sales", []))
    table = table_files(place, Cluster()).table(Cluster())
    named = {"user": "store", "target": "sales", "categorical": ("kind",)}
    roles = Roles.of(table.schema.names, task="regression", **named)
    model = estimator().set_params(solver="sgd")
    with pytest.raises(InputError, match="exact solver"):
        fit_pieces(model, table, roles, Cluster(), place, place)
