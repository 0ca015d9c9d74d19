"""The methods by name. A new one is a function in one file and a line here, or a call of register.

A method is called as ``method(federation, **call)``, with the keywords of :func:`odcl.odcl`, and
gives a :class:`~odcl.baselines.BaselineResult`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np

from odcl.baselines import clustered
from odcl.baselines.all_for_all import all_for_all
from odcl.baselines.fedavg import fedavg
from odcl.baselines.ifca import ifca
from odcl.baselines.oracles import cluster_oracle, oracle_averaging
from odcl.baselines.plain import local, naive
from odcl.baselines.result import BaselineResult
from odcl.clustering.gradient import GradientClustering
from odcl.clustering.kmeans import KMeansPP
from odcl.clustering.spectral_kmeans import SpectralKMeans
from odcl.data.federation import Federation
from odcl.data.synthetic import SyntheticFederation
from odcl.local.sgd import ProjectedSGD


@dataclass(frozen=True)
class Method:
    """A function, what it must be told, and the settings that make it this method."""

    name: str
    call: Callable[..., BaselineResult]
    needs: tuple[str, ...] = ()  # of "n_clusters", "groups", "optima"
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, federation: Federation, **options: Any) -> BaselineResult:
        result = self.call(federation, **{**self.settings, **options})
        return replace(result, method=self.name)


METHODS: dict[str, Method] = {}


def register(
    name: str, call: Callable[..., BaselineResult], *needs: str, **settings: Any
) -> Method:
    """Add a method, e.g. ``register("mine", my_function, "n_clusters")``."""
    if name in METHODS:
        raise ValueError(f"There is a method {name!r} already: choose another name.")
    unknown = set(needs) - {"n_clusters", "groups", "optima"}
    if unknown:
        raise ValueError(f"A method may need n_clusters, groups and optima, not {unknown}.")
    METHODS[name] = Method(name, call, needs, settings)
    return METHODS[name]


def run(
    name: str,
    federation: Federation,
    *,
    n_clusters: int | None = None,
    groups: Any = None,
    optima: Any = None,
    **options: Any,
) -> BaselineResult:
    """Run a method by name.

    What it needs to be told (the number of clusters; for oracles the true groups or optima) is
    taken from a federation that knows the truth, such as :func:`odcl.linear_federation`'s, unless
    given. Methods that need none of it are told none: to them, the optima only measure the error.
    Other ``options`` go to the method.
    """
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}. There are: {', '.join(METHODS)}.")
    method = METHODS[name]
    groups = getattr(federation, "groups", None) if groups is None else groups
    optima = getattr(federation, "optima", None) if optima is None else optima
    if n_clusters is None and groups is not None:
        n_clusters = len(np.unique(groups))
    truth = {"n_clusters": n_clusters, "groups": groups, "optima": optima}
    missing = [key for key in method.needs if truth[key] is None]
    if missing:
        raise ValueError(
            f"{name} is told {' and '.join(missing)}, which this federation does not know. Give "
            f"{', '.join(f'{key}=...' for key in missing)}."
        )
    if optima is not None:
        known = {f.name: getattr(federation, f.name) for f in fields(Federation)}
        federation = SyntheticFederation(**known, groups=groups, optima=np.asarray(optima))
    return method(federation, **{key: truth[key] for key in method.needs}, **options)


register("local", local)
register("naive", naive)
register("naive/bias-corrected", naive, bias_corrected=True)
register("oracle-averaging", oracle_averaging, "groups")
register("cluster-oracle", cluster_oracle, "groups")
register("fedavg", fedavg)
register("all-for-all", all_for_all, "groups")

# Section 5, Table 2: gradient averaging, step 0.1, 200 rounds. N(0, 4) is a variance.
_TABLE_2 = {"step_size": 0.1, "rounds": 200}
for _suffix, _average in (("", "gradients"), ("/model-averaging", "models")):
    _how = {**_TABLE_2, "average": _average}
    register("ifca-1" + _suffix, ifca, "n_clusters", "groups", start="oracle", variance=1.0, **_how)
    register("ifca-2" + _suffix, ifca, "n_clusters", "groups", start="oracle", variance=4.0, **_how)
    register("ifca-r" + _suffix, ifca, "n_clusters", start="random", **_how)
# Table 3: model averaging, 10 local steps of 0.01, from between D/6 and D/4 of the optima.
_TABLE_3 = {"start": "optima", "average": "models", "step_size": 0.01, "rounds": 1000}
register("ifca-near", ifca, "n_clusters", "groups", "optima", **_TABLE_3)
register("ifca-near/stochastic", ifca, "n_clusters", "groups", "optima", **_TABLE_3, batch_size=1)

_by_k: dict[str, Callable[..., BaselineResult]] = {
    "odcl-km": clustered.with_k(SpectralKMeans),
    "odcl-km-part1": clustered.with_k(partial(SpectralKMeans, part_one_only=True)),
    "odcl-km++": clustered.with_k(KMeansPP),
    "odcl-gc": clustered.with_k(GradientClustering),
}
for _name, _call in _by_k.items():
    register(_name, _call, "n_clusters")
    register("i-" + _name, _call, "n_clusters", solver=ProjectedSGD())
register("odcl-km++/centred", _by_k["odcl-km++"], "n_clusters", centred=True)
register("odcl-km++/own-centred", _by_k["odcl-km++"], "n_clusters", centred="own")
register("odcl-km++/samples", _by_k["odcl-km++"], "n_clusters", combine="samples")
register("odcl-km++/precision", _by_k["odcl-km++"], "n_clusters", combine="precision")
register("odcl-km++/refined", _by_k["odcl-km++"], "n_clusters", refine_rounds=10)
register(
    "odcl-km++/centred-refined", _by_k["odcl-km++"], "n_clusters", centred=True, refine_rounds=10
)
register(
    "odcl-km++/one-seeding",
    clustered.with_k(partial(KMeansPP, n_init=1, greedy=False)),
    "n_clusters",
)
register("odcl-cc", clustered.with_clusterpath)
register("odcl-cc/plateau", clustered.with_clusterpath, select="plateau")
register("odcl-cc/silhouette", clustered.with_clusterpath, select="silhouette")
register("odcl-cc-oracle", clustered.with_oracle_lambda, "groups")
register("i-odcl-cc", clustered.with_clusterpath, solver=ProjectedSGD())
register("i-odcl-cc-oracle", clustered.with_oracle_lambda, "groups", solver=ProjectedSGD())
register("odcl-noise", clustered.with_noise_mixture)
register("odcl", clustered.with_noise_mixture, combine="precision", refit="evidence")
