"""What the server may ask of a clusterer, and what its settings say before it is built."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
from sklearn.cluster import AgglomerativeClustering

import odcl
from odcl.clustering.spec import CLUSTERERS, Clusterer, clusterer_class, clusterer_spec
from odcl.method import Method

X = np.repeat([[0.0, 0.0], [9.0, 9.0]], 5, axis=0) + np.arange(10)[:, None] / 100


@pytest.mark.parametrize("name", CLUSTERERS)
def test_a_name_is_the_class_of_that_name(name):
    assert clusterer_class(name) is getattr(odcl, name)


@pytest.mark.parametrize("name", CLUSTERERS)
def test_what_a_clusterer_says_it_can_use_its_fit_takes(name):
    kind = clusterer_class(name)()
    if getattr(kind, "uses_terms", False):  # settings: no clusterer of bare models
        assert not hasattr(kind, "fit")
        return
    takes = set(inspect.signature(kind.fit).parameters)
    uses_covariance = getattr(kind, "uses_covariance", False)
    assert ("covariance" in takes) == uses_covariance
    assert ("noise" in takes) == (getattr(kind, "uses_noise", False) or uses_covariance)
    if "n_clusters" in kind.get_params():
        kind.set_params(n_clusters=2)
    assert isinstance(kind.fit(X), Clusterer)
    assert len(kind.labels_) == len(X)
    if uses_covariance:
        assert kind.result_.reason_for(None)


@pytest.mark.parametrize(
    ("settings", "reads"),
    [
        ({}, True),
        ({"lam": 0.1}, False),
        ({"select": "silhouette"}, False),
        ({"lam": 0.1, "weights": "knn"}, False),
        ({"lam": 0.1, "weights": np.ones((10, 10))}, False),
    ],
    ids=str,
)
def test_convex_clustering_asks_for_noise_only_where_it_chooses_lambda(settings, reads):
    """Otherwise users would send curvature that nobody reads."""
    clusterer = odcl.ConvexClustering(**settings)
    assert clusterer_spec(clusterer).uses_noise == reads
    method = Method(clusterer, combine="mean", refit=None)
    assert method.sends == ("auto" if reads else "none")
    rng = np.random.default_rng(0)
    theta, noise = rng.standard_normal((10, 2)), np.full(10, 1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = (clusterer.fit(theta, noise=given).labels_ for given in (None, noise))
    assert np.array_equal(one, other) or reads


def test_scikit_learns_clusterers_are_clusterers():
    assert isinstance(AgglomerativeClustering(2).fit(X), Clusterer)
