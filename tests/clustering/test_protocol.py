"""What the server may ask of a clusterer, and the names that stand for odcl's own."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from sklearn.cluster import AgglomerativeClustering

import odcl
from odcl.clustering.protocol import CLUSTERERS, SHORT_NAMES, Clusterer, clusterer_class

X = np.repeat([[0.0, 0.0], [9.0, 9.0]], 5, axis=0) + np.arange(10)[:, None] / 100


@pytest.mark.parametrize("name", CLUSTERERS)
def test_a_name_is_the_class_of_that_name(name):
    assert clusterer_class(name) is getattr(odcl, name)
    assert name in SHORT_NAMES.values()


@pytest.mark.parametrize(("short", "name"), SHORT_NAMES.items())
def test_a_short_name_is_a_clusterer(short, name):
    assert clusterer_class(short).__name__ == name


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'dbscan' is no clusterer of odcl.*KMeansPP.*kmeans"):
        clusterer_class("dbscan")


@pytest.mark.parametrize("name", CLUSTERERS)
def test_what_a_clusterer_says_it_can_use_its_fit_takes(name):
    kind = clusterer_class(name)
    takes = set(inspect.signature(kind.fit).parameters)
    uses_covariance = getattr(kind, "uses_covariance", False)
    assert ("covariance" in takes) == uses_covariance
    assert ("noise" in takes) == (getattr(kind, "uses_noise", False) or uses_covariance)
    kind = kind(n_clusters=2) if "n_clusters" in kind().get_params() else kind()
    assert isinstance(kind.fit(X), Clusterer)
    assert len(kind.labels_) == len(X)
    if uses_covariance:
        assert kind.result_.reason_for(2, None)


def test_scikit_learns_clusterers_are_clusterers():
    assert isinstance(AgglomerativeClustering(2).fit(X), Clusterer)
