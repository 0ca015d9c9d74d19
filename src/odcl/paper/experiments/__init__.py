"""The paper's figures and tables, one file each: ``odcl reproduce NAME``.

A new one is a file with an :class:`~odcl.paper.experiments.definition.Experiment` and a line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odcl.paper.experiments.definition import Experiment

# In the order in which `odcl reproduce all` makes them: the quick ones first.
NAMES = (
    "table-methods",
    "figure-mse",
    "table-rounds",
    "figure-ifca",
    "figure-clusterpath",
    "figure-inexact",
    "figure-logistic",
    "table-accuracy",
)


def experiment(name: str) -> Experiment:
    """An experiment by name."""
    if name not in NAMES:
        raise ValueError(f"There is no experiment {name!r}. There are: {', '.join(NAMES)}.")
    found: Experiment = import_module(f"odcl.paper.experiments.{name.replace('-', '_')}").EXPERIMENT
    return found
