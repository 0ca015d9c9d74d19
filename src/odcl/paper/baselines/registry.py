"""The methods by name. A new one is a function in one file and a call of :func:`register`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from odcl.clustering.kmeans.gradient import GradientClustering
from odcl.clustering.kmeans.kmeanspp import KMeansPP
from odcl.clustering.kmeans.spectral import SpectralKMeans
from odcl.data.federation import Federation
from odcl.data.synthetic import SyntheticFederation
from odcl.engines.in_process import ODCLResult
from odcl.errors import did_you_mean
from odcl.local.sgd import ProjectedSGD
from odcl.paper.baselines import clustered
from odcl.paper.baselines.all_for_all import all_for_all
from odcl.paper.baselines.fedavg import fedavg
from odcl.paper.baselines.ifca import ifca
from odcl.paper.baselines.oracles import cluster_oracle, oracle_averaging
from odcl.paper.baselines.plain import local, naive, with_history
from odcl.paper.baselines.result import BaselineResult, from_odcl
from odcl.paper.baselines.threshold import with_own_thresholds

# What a method may have to be told: of the truth, or by the public.
TOLD = ("n_clusters", "groups", "optima", "public_mean")
TRUTH = {"groups": "the true groups", "optima": "optima"}


@dataclass(frozen=True)
class Method:
    """A function, what it must be told, and the settings that make it this method."""

    name: str
    call: Callable[..., ODCLResult]
    needs: tuple[str, ...] = ()  # of TOLD
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, federation: Federation, **options: Any) -> BaselineResult:
        try:
            result = self.call(federation, **{**self.settings, **options})
        except TypeError as error:
            refused = re.search(r"keyword argument '(\w+)'", str(error))
            if refused is None or refused[1] not in options:
                raise
            raise TypeError(f"{self.name} takes no {refused[1]}=. {_taken(self.call)}") from error
        if not isinstance(result, ODCLResult):
            raise TypeError(
                f"The method {self.name!r} gave back a {type(result).__name__}, and a method gives "
                "a result: what odcl.odcl returns, or odcl.baselines.make_result(federation, "
                "labels, models, rounds=..., bytes_up=..., bytes_down=...)."
            )
        if not isinstance(result, BaselineResult):
            result = with_history(from_odcl(result, self.name))
        told = tuple(TRUTH[need] for need in self.needs if need in TRUTH)
        return replace(result, method=self.name, told=result.told or told)


def _taken(call: Callable[..., Any]) -> str:
    """What a function may be told, in words."""
    named = [p for p in signature(call).parameters.values() if p.kind is p.KEYWORD_ONLY]
    rest = any(p.kind is p.VAR_KEYWORD for p in signature(call).parameters.values())
    words = ", ".join(p.name for p in named)
    more = "what odcl.baselines.one_shot and odcl.odcl take" * rest
    if not words and not rest:
        return "It takes no options: let it accept **options (seed, loss, l2, ...)."
    return f"It takes {' and '.join(filter(None, (words, more)))}."


METHODS: dict[str, Method] = {}


def register(name: str, call: Callable[..., ODCLResult], *needs: str, **settings: Any) -> Method:
    """Add a method, e.g. ``register("mine", my_function, "n_clusters")``.

    It is called as ``my_function(federation, n_clusters=..., **options)``: ``needs`` (of
    "n_clusters", "groups" and "optima", the truth, and "public_mean") are what it is told,
    ``settings`` what this name stands for, and ``options`` what :func:`run` is given: loss, l2,
    fit_intercept, seed, ... as for :func:`odcl.odcl`. It gives back what :func:`odcl.odcl` gives,
    or :func:`~odcl.baselines.make_result` of labels and models.

    In ``odcl reproduce NAME --methods FILE`` the methods that FILE registers join the figure.
    """
    if not callable(call):
        raise TypeError(f"The method {name!r} is a {type(call).__name__}, not a function.")
    if name in METHODS:
        raise ValueError(f"There is a method {name!r} already: choose another name.")
    unknown = [need for need in needs if need not in TOLD]
    if unknown:
        raise ValueError(
            f"A method may need {', '.join(TOLD)}, not {', '.join(map(repr, unknown))}."
        )
    METHODS[name] = Method(name, call, needs, settings)
    return METHODS[name]


def run(
    name: str,
    federation: Federation,
    *,
    n_clusters: int | None = None,
    groups: Any = None,
    optima: Any = None,
    public_mean: Any = None,
    **options: Any,
) -> BaselineResult:
    """Run a method by name.

    What it needs to be told (the number of clusters; for oracles the true groups or optima) is
    taken from a federation that knows the truth, such as :func:`odcl.linear_federation`'s, unless
    given. Methods that need none of it are told none: to them, the optima only measure the error.
    Other ``options`` go to the method.
    """
    method = _named(name)
    if not isinstance(federation, Federation):
        raise TypeError(
            f"{name} runs on a Federation, not on a {type(federation).__name__}: make one by "
            "odcl.Federation.from_arrays(X, y, users)."
        )
    groups = getattr(federation, "groups", None) if groups is None else groups
    optima = getattr(federation, "optima", None) if optima is None else optima
    if n_clusters is None and groups is not None:
        n_clusters = len(np.unique(groups))
    told = dict(zip(TOLD, (n_clusters, groups, optima, public_mean), strict=True))
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


def _named(name: str) -> Method:
    if name in METHODS:
        return METHODS[name]
    hint = did_you_mean(name, METHODS)
    raise ValueError(f"There is no method {name!r}{hint} There are: {', '.join(METHODS)}.")


register("local", local)
register("naive", naive)
register("naive/bias-corrected", naive, bias_corrected=True)
register("oracle-averaging", oracle_averaging, "groups")
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
# Table 3: model averaging, 10 local steps of 0.01, from between D/6 and D/4 of the optima.
_TABLE_3 = {"start": "optima", "average": "models", "step_size": 0.01, "rounds": 1000}
register("ifca-near", ifca, "n_clusters", "groups", "optima", **_TABLE_3)
register("ifca-near/stochastic", ifca, "n_clusters", "groups", "optima", **_TABLE_3, batch_size=1)

# Appendix D.3: from between D/5 and D/3 of the optima, three steps.
for _step in (0.1, 0.05, 0.01):
    _how = {**_TABLE_3, "step_size": _step, "between": (1 / 5, 1 / 3)}
    register(f"ifca/step-{_step}", ifca, "n_clusters", "groups", "optima", **_how)
    _how["batch_size"] = 1
    register(f"ifca/step-{_step}/stochastic", ifca, "n_clusters", "groups", "optima", **_how)

_by_k: dict[str, Callable[..., BaselineResult]] = {
    "odcl-km": clustered.with_k(SpectralKMeans),
    "odcl-km-part1": clustered.with_k(partial(SpectralKMeans, part_one_only=True)),
    "odcl-km++": clustered.with_k(KMeansPP),
    "odcl-gc": clustered.with_k(GradientClustering),
}
for _name, _call in _by_k.items():
    register(_name, _call, "n_clusters")
    register("i-" + _name, _call, "n_clusters", solver=ProjectedSGD())
register(
    "i-odcl-km++/average", _by_k["odcl-km++"], "n_clusters", solver=ProjectedSGD(output="average")
)
# Centred by a mean that is public (one round), by the federation's (a round before), by own means.
_public = partial(clustered.with_public_mean, KMeansPP)
register("odcl-km++/centred", _public, "n_clusters", "public_mean")
register("odcl-km++/centred-refined", _public, "n_clusters", "public_mean", refine_rounds=10)
register("odcl-km++/federation-centred", _by_k["odcl-km++"], "n_clusters", centred=True)
register("odcl-km++/own-centred", _by_k["odcl-km++"], "n_clusters", centred="own")
register("odcl-km++/own-threshold", with_own_thresholds, "n_clusters")
register("odcl-km++/samples", _by_k["odcl-km++"], "n_clusters", combine="samples")
register("odcl-km++/precision", _by_k["odcl-km++"], "n_clusters", combine="precision")
register("odcl-km++/refined", _by_k["odcl-km++"], "n_clusters", refine_rounds=10)
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

BUILT_IN = frozenset(METHODS)
