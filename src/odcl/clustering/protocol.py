"""What the server asks of a clusterer, and the names of those that come with odcl."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from odcl._typing import Array

# Where each class lives, so that a name loads this one and no other.
CLUSTERERS = {
    "KMeansPP": "odcl.clustering.kmeans.kmeanspp",
    "SpectralKMeans": "odcl.clustering.kmeans.spectral",
    "GradientClustering": "odcl.clustering.kmeans.gradient",
    "NoiseMixture": "odcl.clustering.mixture.noise_mixture",
    "ConvexClustering": "odcl.clustering.convex.estimator",
    "MixedGroups": "odcl.clustering.mixed",
}
SHORT_NAMES = {
    "kmeans": "KMeansPP",
    "spectral": "SpectralKMeans",
    "gradient": "GradientClustering",
    "mixture": "NoiseMixture",
    "convex": "ConvexClustering",
}


@runtime_checkable
class Clusterer(Protocol):
    """Anything that puts each row of a matrix of models, (n_users, dim), into one cluster.

    ``fit(X)`` leaves ``labels_``, (n_users,), with no user left out (-1). Every scikit-learn
    clusterer that assigns all points is one. What it can use besides the models it says by class
    attributes that may be missing (``getattr(clusterer, "uses_noise", False)``):

    - ``uses_noise: bool``: ``fit`` takes ``noise=``, (n_users,), the trace of the covariance of
      each user's model, infinite where it is not known, or None where nobody knows;
    - ``uses_covariance: bool``: ``fit`` takes ``noise=``, ``covariance=`` (n_users, dim, dim) and
      ``founders=`` (n_users,), the users who may seed a group, and leaves a
      :class:`~odcl.clustering.mixture.noise_mixture.MixtureResult` in ``result_``.
    """

    labels_: Array

    def fit(self, X: Any) -> Any: ...


def clusterer_class(name: str) -> Any:
    """The class of a clusterer of odcl by its own or its short name, loaded when asked for."""
    full = SHORT_NAMES.get(name, name)
    if full not in CLUSTERERS:
        raise ValueError(
            f"{name!r} is no clusterer of odcl. There are {', '.join(CLUSTERERS)}, or in short "
            f"{', '.join(SHORT_NAMES)}."
        )
    return getattr(import_module(CLUSTERERS[full]), full)
