"""odcl on Flower: ``ODCL(...)`` where ``FedAvg(...)`` stood.

# server_app.py
strategy = ODCL("squared", min_replies=8, result_dir="run")
strategy.start(grid)

# client_app.py
app = make_client_app(load)  # load(context) -> (X, y), {user: (X, y)} or a Federation

One train round brings each node's uploads, one evaluate round takes each node its own download. A
node is what a site is in :mod:`odcl.engines.files`; the models are those of :func:`odcl.fit`, bit
for bit. Names are loaded when they are first used: nothing here needs Flower before that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odcl.engines.flower.client import make_client_app as make_client_app
    from odcl.engines.flower.fits import EstimatorFit as EstimatorFit
    from odcl.engines.flower.fits import Fit as Fit
    from odcl.engines.flower.fits import NodeData as NodeData
    from odcl.engines.flower.fits import NodeModels as NodeModels
    from odcl.engines.flower.late import LateODCL as LateODCL
    from odcl.engines.flower.networks import ModuleFit as ModuleFit
    from odcl.engines.flower.networks import frozen_features as frozen_features
    from odcl.engines.flower.networks import network_digest as network_digest
    from odcl.engines.flower.request import Request as Request
    from odcl.engines.flower.result import Outcome as Outcome
    from odcl.engines.flower.result import read_bare as read_bare
    from odcl.engines.flower.strategy import ODCL as ODCL

_NAMES = {  # by module
    "client": ("make_client_app",),
    "fits": ("EstimatorFit", "Fit", "NodeData", "NodeModels"),
    "late": ("LateODCL",),
    "networks": ("ModuleFit", "frozen_features", "network_digest"),
    "request": ("Request",),
    "result": ("Outcome", "read_bare"),
    "strategy": ("ODCL",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "flwr":
            raise
        raise ImportError(f"{name} needs Flower: pip install 'odcl[flower]'.") from None
    globals()[name] = value
    return value
