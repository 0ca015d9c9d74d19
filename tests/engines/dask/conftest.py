"""A cluster of two processes for all tests of this folder; it ends with them."""

from __future__ import annotations

import pytest

pytest.importorskip("distributed", reason="the Dask engine needs odcl[dask]")

from odcl.engines.dask.cluster import local_cluster


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
