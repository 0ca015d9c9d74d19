"""The methods by name. A new one is a function in one file and a call of :func:`register`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np

from odcl.clustering.convex.estimator import ConvexClustering
from odcl.clustering.kmeans.gradient import GradientClustering
from odcl.clustering.kmeans.kmeanspp import KMeansPP
from odcl.clustering.kmeans.spectral import SpectralKMeans
from odcl.data.federation import Federation
from odcl.data.synthetic import SyntheticFederation
from odcl.engines.in_process import Result
from odcl.errors import did_you_mean
from odcl.local.solvers import ProjectedSGD
from odcl.paper.baselines.iterated import all_for_all, fedavg, ifca
from odcl.paper.baselines.one_shot import (
    cluster_oracle,
    local,
    naive,
    one_shot,
    oracle_averaging,
    with_oracle_lambda,
)
from odcl.paper.baselines.result import BaselineResult, as_baseline, check_options

# What a method may have to be told of the truth.
TOLD = ("n_clusters", "groups", "optima")
TRUTH = {"groups": "the true groups", "optima": "optima"}


@dataclass(frozen=True)
class Baseline:
    """A function, what it must be told, and the settings that make it this method."""

    name: str
    call: Callable[..., Result]
    needs: tuple[str, ...] = ()  # of TOLD
    settings: dict[str, Any] = field(default_factory=dict)
    # Does it build on the users' exact models? Then it takes them as solver=, fitted once for all.
    starts_from_local_models: bool = False

    def __call__(self, federation: Federation, **options: Any) -> BaselineResult:
        check_options(self.name, self.call, options)
        result = self.call(federation, **{**self.settings, **options})
        if not isinstance(result, Result):
            raise TypeError(
                f"The method {self.name!r} gave back a {type(result).__name__}, and a method gives "
                "a result: what odcl.fit returns, or odcl.baselines.make_result(federation, "
                "labels, models, rounds=..., bytes_up=..., bytes_down=...)."
            )
        if not isinstance(result, BaselineResult):
            result = as_baseline(result, self.name)
        told = tuple(TRUTH[need] for need in self.needs if need in TRUTH)
        return replace(result, name=self.name, told=result.told or told)


METHODS: dict[str, Baseline] = {}


def register(
    name: str,
    call: Callable[..., Result],
    *needs: str,
    starts_from_local_models: bool = False,
    **settings: Any,
) -> Baseline:
    """Add a method, e.g. ``register("mine", my_function, "n_clusters")``.

    It is called as ``my_function(federation, n_clusters=..., **options)``: ``needs`` (of
    "n_clusters", "groups" and "optima", the truth) are what it is told, ``settings`` what this
    name stands for, and ``options`` what :func:`run` is given: risk, seed, ... as for
    :func:`odcl.fit`. It gives back what :func:`odcl.fit` gives, or
    :func:`~odcl.baselines.make_result` of labels and models. ``starts_from_local_models`` says
    that it takes ``solver`` and passes it to :func:`odcl.fit`: experiments then fit users once.

    In ``odcl reproduce NAME --methods FILE`` the methods that FILE registers join the figure.
    """
    if not callable(call):
        raise TypeError(f"The method {name!r} is a {type(call).__name__}, not a function.")
    if name in METHODS:
        raise ValueError(f"There is a method {name!r} already: choose another name.")
    unknown = [repr(need) for need in needs if need not in TOLD]
    if unknown:
        raise ValueError(f"A method may need {', '.join(TOLD)}, not {', '.join(unknown)}.")
    METHODS[name] = Baseline(name, call, needs, settings, starts_from_local_models)
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
        hint = did_you_mean(name, METHODS)
        raise ValueError(f"There is no method {name!r}{hint} There are: {', '.join(METHODS)}.")
    method = METHODS[name]
    if not isinstance(federation, Federation):
        raise TypeError(
            f"{name} runs on a Federation, not on a {type(federation).__name__}: make one by "
            "odcl.Federation.from_arrays(X, y, users)."
        )
    groups = getattr(federation, "groups", None) if groups is None else groups
    optima = getattr(federation, "optima", None) if optima is None else optima
    if n_clusters is None and groups is not None:
        n_clusters = len(np.unique(groups))
    told = dict(zip(TOLD, (n_clusters, groups, optima), strict=True))
    missing = [key for key in method.needs if told[key] is None]
    if missing:
        raise ValueError(
            f"{name} is told {' and '.join(missing)}, which this federation does not know. Give "
            f"{', '.join(f'{key}=...' for key in missing)}."
        )
    if optima is not None:
        known = {f.name: getattr(federation, f.name) for f in fields(Federation)}
        federation = SyntheticFederation(**known, groups=groups, optima=np.asarray(optima))
    return method(federation, **{key: told[key] for key in method.needs}, **options)


# -- the paper's methods, and ours -----------------------------------------------------------------

_SHARED: dict[str, Any] = {"starts_from_local_models": True}

register("local", local, **_SHARED)
register("naive", naive, **_SHARED)
register("oracle-averaging", oracle_averaging, "groups", **_SHARED)
register("cluster-oracle", cluster_oracle, "groups")
register("fedavg", fedavg)
register("fedavg/stochastic", fedavg, batch_size=1)
register("all-for-all", all_for_all, "groups")

# Section 5, Table 2: gradient averaging, step 0.1, 200 rounds. N(0, 4) is a variance.
IFCA_VARIANTS: dict[str, dict[str, Any]] = {
    "": {"step_size": 0.1, "rounds": 200},
    "/model-averaging": {"step_size": 0.1, "rounds": 200, "average": "models"},
    "/stable-step": {"step_size": "auto", "rounds": 200},
    "/short": {"step_size": 0.1, "rounds": 20},
}
for _suffix, _how in IFCA_VARIANTS.items():
    register("ifca-1" + _suffix, ifca, "n_clusters", "groups", start="oracle", variance=1.0, **_how)
    register("ifca-2" + _suffix, ifca, "n_clusters", "groups", start="oracle", variance=4.0, **_how)
    register("ifca-r" + _suffix, ifca, "n_clusters", start="random", **_how)

# Model averaging, 10 local steps, from near the optima. Table 3: from between D/6 and D/4, step
# 0.01. Appendix D.3: from between D/5 and D/3, three steps.
_near: dict[str, dict[str, Any]] = {"ifca-near": {"step_size": 0.01}}
for _step in (0.1, 0.05, 0.01):
    _near[f"ifca/step-{_step}"] = {"step_size": _step, "between": (1 / 5, 1 / 3)}
for _name, _how in _near.items():
    _how |= {"start": "optima", "average": "models", "rounds": 1000}
    register(_name, ifca, "n_clusters", "groups", "optima", **_how)
    register(f"{_name}/stochastic", ifca, "n_clusters", "groups", "optima", **_how, batch_size=1)


def _told_k(name: str, clusterer: Any = KMeansPP, **settings: Any) -> None:
    register(name, one_shot, "n_clusters", clusterer=clusterer, **settings)


_told_k("odcl-km", clusterer=SpectralKMeans, **_SHARED)
_told_k("odcl-km-part1", clusterer=partial(SpectralKMeans, part_one_only=True), **_SHARED)
_told_k("odcl-km++", **_SHARED)
_told_k("odcl-km++/one-seeding", clusterer=partial(KMeansPP, n_init=1, greedy=False), **_SHARED)
_told_k("odcl-gc", clusterer=GradientClustering, **_SHARED)
_told_k("i-odcl-km", clusterer=SpectralKMeans, solver=ProjectedSGD())
_told_k("i-odcl-km++", solver=ProjectedSGD())
_told_k("i-odcl-km++/average", solver=ProjectedSGD(output="average"))

# Convex clustering of bare models, lambda chosen along the path as in Appendix D.2, or from the
# true clusters.
_path: dict[str, Any] = {"clusterer": ConvexClustering(lam="auto", select="grid")}
register("odcl-cc", one_shot, **_path, **_SHARED)
register("i-odcl-cc", one_shot, **_path, solver=ProjectedSGD())
register("odcl-cc-oracle", with_oracle_lambda, "groups", **_SHARED)
register("odcl", one_shot, clusterer="auto", **_SHARED)
