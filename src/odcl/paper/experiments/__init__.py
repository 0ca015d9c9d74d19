"""The paper's figures and tables: ``odcl reproduce NAME``.

A new one is an :class:`~odcl.paper.experiments.definition.Experiment` in a module's ``EXPERIMENTS``
and a line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odcl.paper.experiments.definition import Experiment

# Each name's module, in the order in which `odcl reproduce all` makes them: the quick ones first.
NAMES = {
    "table-methods": "tables",
    "figure-mse": "errors",
    "table-rounds": "rounds",
    "figure-ifca": "rounds",
    "figure-clusterpath": "errors",
    "figure-logistic": "errors",
    "table-accuracy": "tables",
}


def experiment(name: str) -> Experiment:
    """An experiment by name."""
    if name not in NAMES:
        raise ValueError(f"There is no experiment {name!r}. There are: {', '.join(NAMES)}.")
    found: Experiment = import_module(f"odcl.paper.experiments.{NAMES[name]}").EXPERIMENTS[name]
    return found
