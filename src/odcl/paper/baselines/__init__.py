"""Every method the paper compares with: same call and same result as :func:`odcl.fit`.

from odcl.paper.baselines import run, METHODS
run("ifca-r", federation, n_clusters=4, rounds=100).summary()
"""

from odcl.paper.baselines.iterated import all_for_all, fedavg, ifca
from odcl.paper.baselines.one_shot import (
    cluster_oracle,
    local,
    naive,
    one_shot,
    oracle_averaging,
)
from odcl.paper.baselines.registry import METHODS, Baseline, register, run
from odcl.paper.baselines.result import BaselineResult, History, make_result

__all__ = [
    "METHODS",
    "Baseline",
    "BaselineResult",
    "History",
    "all_for_all",
    "cluster_oracle",
    "fedavg",
    "ifca",
    "local",
    "make_result",
    "naive",
    "one_shot",
    "oracle_averaging",
    "register",
    "run",
]
