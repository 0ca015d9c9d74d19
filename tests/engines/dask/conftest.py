"""A cluster of two processes for all tests of this folder; it ends with them."""

from __future__ import annotations

import pytest

pytest.importorskip("distributed", reason="the Dask engine needs odcl[dask]")

from odcl.engines.dask.cluster import local_cluster
from odcl.exchange import buckets
from odcl.runs import fit as fitting
from odcl.runs import pieces
from tests.engines.dask.tables import cut, sales
from tests.fits import fit_once as fit_once
from tests.fits import kept_fits as kept_fits


@pytest.fixture(scope="session")
def cluster():
    with local_cluster(2, memory=4 * 2**30) as own:
        yield own


@pytest.fixture(autouse=True)
def one_thread_of_this_process():
    """Where no cluster is asked for, tasks run one after the other in this process."""
    import dask

    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def engine(cluster):
    return ("--engine", "dask", "--scheduler", cluster.client.scheduler.address)


@pytest.fixture
def table(tmp_path):
    return cut(sales(text=True), tmp_path / "sales", [100, 250])


@pytest.fixture
def few_examples(monkeypatch):
    """Of 60 users the estimator itself holds 40, and methods are compared on 30."""
    for module in (pieces, buckets):
        monkeypatch.setattr(module, "EXAMPLES", 40)
    monkeypatch.setattr(fitting, "COMPARED", 30)
