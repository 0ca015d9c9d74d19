"""Every method the paper compares with: same call and same result as :func:`odcl.odcl`.

from odcl.paper.baselines import run, METHODS
run("ifca-r", federation, n_clusters=4, rounds=100).summary()
"""

from odcl.paper.baselines.all_for_all import all_for_all
from odcl.paper.baselines.clustered import one_shot
from odcl.paper.baselines.fedavg import fedavg
from odcl.paper.baselines.ifca import ifca
from odcl.paper.baselines.oracles import cluster_oracle, oracle_averaging
from odcl.paper.baselines.plain import local, naive
from odcl.paper.baselines.registry import METHODS, Method, register, run
from odcl.paper.baselines.result import BaselineResult, make_result
from odcl.paper.baselines.rounds import History

__all__ = [
    "METHODS",
    "BaselineResult",
    "History",
    "Method",
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
