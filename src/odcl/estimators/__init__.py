"""scikit-learn estimators, which load it; what a fit leaves beside its model does without."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odcl.estimators.public import ODCLClassifier, ODCLRegressor

__all__ = ["ODCLClassifier", "ODCLRegressor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'odcl.estimators' has no attribute {name!r}")
    return getattr(import_module("odcl.estimators.public"), name)
