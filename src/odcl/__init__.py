"""One-shot distributed clustered learning: the right model for every user, after one round.

Names are loaded when they are first used, so that ``import odcl`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from odcl import plan
    from odcl.clustering.clusterpath import ClusterPath, clusterpath
    from odcl.clustering.convex import ConvexClustering
    from odcl.clustering.gradient import GradientClustering
    from odcl.clustering.kmeans import KMeansPP
    from odcl.clustering.noise_mixture import NoiseMixture
    from odcl.clustering.separation import oracle_lambda, recovery_interval
    from odcl.clustering.spectral_kmeans import SpectralKMeans
    from odcl.data.federation import Federation
    from odcl.data.synthetic import linear_federation, logistic_federation
    from odcl.data.tables import federation_from_table, read_table
    from odcl.estimators import ODCLClassifier, ODCLRegressor
    from odcl.exchange.upload import Uploads
    from odcl.local.losses import Huber, Logistic, Multinomial, Poisson, Squared
    from odcl.local.sgd import ProjectedSGD
    from odcl.method import ODCLResult, odcl
    from odcl.server import ServerStep, server_step

_HOME = {
    "ClusterPath": "odcl.clustering.clusterpath",
    "ConvexClustering": "odcl.clustering.convex",
    "Federation": "odcl.data.federation",
    "GradientClustering": "odcl.clustering.gradient",
    "Huber": "odcl.local.losses",
    "KMeansPP": "odcl.clustering.kmeans",
    "Logistic": "odcl.local.losses",
    "Multinomial": "odcl.local.losses",
    "NoiseMixture": "odcl.clustering.noise_mixture",
    "ODCLClassifier": "odcl.estimators",
    "ODCLRegressor": "odcl.estimators",
    "ODCLResult": "odcl.method",
    "Poisson": "odcl.local.losses",
    "ProjectedSGD": "odcl.local.sgd",
    "ServerStep": "odcl.server",
    "SpectralKMeans": "odcl.clustering.spectral_kmeans",
    "Squared": "odcl.local.losses",
    "Uploads": "odcl.exchange.upload",
    "clusterpath": "odcl.clustering.clusterpath",
    "federation_from_table": "odcl.data.tables",
    "linear_federation": "odcl.data.synthetic",
    "logistic_federation": "odcl.data.synthetic",
    "odcl": "odcl.method",
    "oracle_lambda": "odcl.clustering.separation",
    "read_table": "odcl.data.tables",
    "recovery_interval": "odcl.clustering.separation",
    "server_step": "odcl.server",
}

_MODULES = ("baselines", "plan", "theory")  # used as odcl.plan.plan(...)

__all__ = [
    "ClusterPath",
    "ConvexClustering",
    "Federation",
    "GradientClustering",
    "Huber",
    "KMeansPP",
    "Logistic",
    "Multinomial",
    "NoiseMixture",
    "ODCLClassifier",
    "ODCLRegressor",
    "ODCLResult",
    "Poisson",
    "ProjectedSGD",
    "ServerStep",
    "SpectralKMeans",
    "Squared",
    "Uploads",
    "baselines",
    "clusterpath",
    "federation_from_table",
    "linear_federation",
    "logistic_federation",
    "odcl",
    "oracle_lambda",
    "plan",
    "read_table",
    "recovery_interval",
    "server_step",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"odcl.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'odcl' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
