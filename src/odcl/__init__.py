"""One-shot distributed clustered learning: the right model for every user, after one round.

Names are loaded when they are first used, so that ``import odcl`` costs next to nothing.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

logging.getLogger("odcl").addHandler(logging.NullHandler())  # a service says where it goes

if TYPE_CHECKING:
    from odcl import plan as plan
    from odcl.clustering.convex.clusterpath import ClusterPath as ClusterPath
    from odcl.clustering.convex.clusterpath import clusterpath as clusterpath
    from odcl.clustering.convex.estimator import ConvexClustering as ConvexClustering
    from odcl.clustering.convex.fusion import oracle_lambda as oracle_lambda
    from odcl.clustering.convex.fusion import recovery_interval as recovery_interval
    from odcl.clustering.kmeans.gradient import GradientClustering as GradientClustering
    from odcl.clustering.kmeans.kmeanspp import KMeansPP as KMeansPP
    from odcl.clustering.kmeans.spectral import SpectralKMeans as SpectralKMeans
    from odcl.clustering.spec import MixedGroups as MixedGroups
    from odcl.data.federation import Federation as Federation
    from odcl.data.source import federation_from_table as federation_from_table
    from odcl.data.source import read_table as read_table
    from odcl.data.synthetic import linear_federation as linear_federation
    from odcl.data.synthetic import logistic_federation as logistic_federation
    from odcl.engines.in_process import Result as Result
    from odcl.engines.in_process import fit as fit
    from odcl.estimators import ODCLClassifier as ODCLClassifier
    from odcl.estimators import ODCLRegressor as ODCLRegressor
    from odcl.exchange.message import Downloads as Downloads
    from odcl.exchange.upload import Uploads as Uploads
    from odcl.local.solvers import ProjectedSGD as ProjectedSGD
    from odcl.method import Method as Method
    from odcl.privacy import Privacy as Privacy
    from odcl.risk.losses import Huber as Huber
    from odcl.risk.losses import Logistic as Logistic
    from odcl.risk.losses import Multinomial as Multinomial
    from odcl.risk.losses import Poisson as Poisson
    from odcl.risk.losses import Squared as Squared
    from odcl.risk.risk import Risk as Risk
    from odcl.runs.dask_frames import federation_from_dask as federation_from_dask
    from odcl.runs.fit import compare as compare
    from odcl.runs.fit import fit_table as fit_table
    from odcl.server.result import ServerStep as ServerStep
    from odcl.server.step import server_step as server_step

_NAMES = {
    "odcl.clustering.convex.clusterpath": ("ClusterPath", "clusterpath"),
    "odcl.clustering.convex.estimator": ("ConvexClustering",),
    "odcl.clustering.convex.fusion": ("oracle_lambda", "recovery_interval"),
    "odcl.clustering.kmeans.gradient": ("GradientClustering",),
    "odcl.clustering.kmeans.kmeanspp": ("KMeansPP",),
    "odcl.clustering.kmeans.spectral": ("SpectralKMeans",),
    "odcl.clustering.spec": ("MixedGroups",),
    "odcl.data.federation": ("Federation",),
    "odcl.data.source": ("federation_from_table", "read_table"),
    "odcl.data.synthetic": ("linear_federation", "logistic_federation"),
    "odcl.engines.in_process": ("Result", "fit"),
    "odcl.estimators": ("ODCLClassifier", "ODCLRegressor"),
    "odcl.runs.fit": ("compare", "fit_table"),
    "odcl.runs.dask_frames": ("federation_from_dask",),
    "odcl.exchange.message": ("Downloads",),
    "odcl.exchange.upload": ("Uploads",),
    "odcl.local.solvers": ("ProjectedSGD",),
    "odcl.method": ("Method",),
    "odcl.privacy": ("Privacy",),
    "odcl.risk.losses": ("Huber", "Logistic", "Multinomial", "Poisson", "Squared"),
    "odcl.risk.risk": ("Risk",),
    "odcl.server.result": ("ServerStep",),
    "odcl.server.step": ("server_step",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

_MODULES = {  # used as odcl.plan.plan(...)
    "baselines": "odcl.paper.baselines",
    "plan": "odcl.plan",
    "theory": "odcl.theory",
}

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'odcl' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
