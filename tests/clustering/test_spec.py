"""What the server may ask of a clusterer, and what its settings say before it is built."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import odcl
from odcl.clustering.spec import CLUSTERERS, clusterer_class, clusterer_spec
from odcl.method import Method

X = np.repeat([[0.0, 0.0], [9.0, 9.0]], 5, axis=0) + np.arange(10)[:, None] / 100


@pytest.mark.parametrize("name", CLUSTERERS)
def test_a_name_is_the_class_of_that_name(name):
    assert clusterer_class(name) is getattr(odcl, name)


@pytest.mark.parametrize("name", CLUSTERERS)
def test_each_of_odcls_clusterers_fits_models_alone(name):
    kind = clusterer_class(name)()
    if getattr(kind, "uses_terms", False):  # settings: no clusterer of bare models
        assert not hasattr(kind, "fit")
        return
    assert set(inspect.signature(kind.fit).parameters) == {"X", "y"}
    if "n_clusters" in kind.get_params():
        kind.set_params(n_clusters=2)
    assert len(kind.fit(X).labels_) == len(X)


def test_a_number_is_a_number_of_mixed_groups():
    assert clusterer_spec(4) == clusterer_spec(odcl.MixedGroups(n_groups=4))
    assert (clusterer_spec(4).uses_terms, clusterer_spec(4).n_clusters) == (True, 4)
    kmeans = clusterer_spec("kmeans:4")
    assert Method.paper(n_clusters=4).clusterer == kmeans
    assert Method.of("paper", clusterer=4).clusterer == kmeans
