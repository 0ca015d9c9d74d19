"""A clusterer as a value to compare, print, write and build.

The server asks of it that ``fit(X)`` on a matrix of models, (n_users, dim), leaves ``labels_``,
(n_users,), with no user left out (-1): every scikit-learn clusterer that assigns all points does.

Clusterers of odcl are their name and the settings that differ from the defaults. An object of
another class is held as it is: it works in one process and cannot be written down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

# Where each class lives, so that a name loads this one and no other.
CLUSTERERS = {
    "KMeansPP": "odcl.clustering.kmeans.kmeanspp",
    "SpectralKMeans": "odcl.clustering.kmeans.spectral",
    "GradientClustering": "odcl.clustering.kmeans.gradient",
    "ConvexClustering": "odcl.clustering.convex.estimator",
    "MixedGroups": "odcl.clustering.spec",
}
BY_RULE: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("MixedGroups", {}),
    "convex": ("ConvexClustering", {}),
    "elbow": ("KMeansPP", {"n_clusters": "elbow"}),
    "silhouette": ("KMeansPP", {"n_clusters": "silhouette"}),
}
WITH_K = {"kmeans": "KMeansPP", "spectral": "SpectralKMeans", "gradient": "GradientClustering"}


@dataclass(frozen=True)
class MixedGroups:
    """theta_i ~ sum_k pi_k N(c_k, T): groups, and how users of a group still differ.

    These are settings of the server's step, not a clusterer to fit: it looks at what each user's
    rows say (its data term), not at local models, so that users with one row, one class, a missing
    level or fewer rows than parameters take part like any other. The number of groups (at most
    ``max_groups``) and the shape of T are chosen by evidence, unless ``n_groups`` or ``spread``
    says what they are: "zero" (users of a group share one model), "scalar" (they differ alike in
    every standardized coefficient), "diag" (in each by itself), or "full".
    """

    max_groups: int = 50
    n_groups: int | None = None
    spread: str | None = None

    uses_terms: ClassVar[bool] = True


def clusterer_class(name: str) -> Any:
    """One of :data:`CLUSTERERS`, loaded when asked for."""
    return getattr(import_module(CLUSTERERS[name]), name)


@dataclass(frozen=True)
class ClustererSpec:
    """Name and settings of a clusterer, or an object of another class."""

    name: str
    params: tuple[tuple[str, Any], ...] = ()  # those that differ from the defaults, by name
    given: Any = None  # the object itself, where it is of another class

    def __repr__(self) -> str:
        if self.given is not None:
            return repr(self.given)
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.params)})"

    @property
    def _object(self) -> Any:
        if self.given is not None:
            return self.given
        return clusterer_class(self.name)(**dict(self.params))

    @property
    def uses_terms(self) -> bool:
        """Does it look at the users' data terms instead of their models?"""
        return bool(getattr(self._object, "uses_terms", False))

    @property
    def n_clusters(self) -> int | str | None:
        """How many clusters it was told to find, or the rule that chooses them, if it says."""
        told = self._object
        return getattr(told, "n_groups" if self.uses_terms else "n_clusters", None)

    def build(self, seed: int) -> Any:
        """A clusterer ready to fit; ``seed`` serves one that has no ``random_state`` of its own."""
        from sklearn.base import BaseEstimator, clone

        built = clone(self._object) if isinstance(self._object, BaseEstimator) else self._object
        if hasattr(built, "set_params") and getattr(built, "random_state", 0) is None:
            built.set_params(random_state=seed)
        return built

    def to_json(self, *, described: bool = False) -> dict[str, Any]:
        if self.given is not None and described:
            return {"described": repr(self.given)}
        if self.given is not None:
            raise ValueError(
                f"{self.name} as given cannot be written down or sent: only odcl's own clusterers "
                f"({', '.join(CLUSTERERS)}) with plain settings can. Use one, or one process."
            )
        return {"name": self.name, **dict(self.params)}

    @classmethod
    def from_json(cls, words: Any) -> ClustererSpec:
        if isinstance(words, dict) and words.keys() == {"described"}:
            return cls("described", given=Described(str(words["described"])))
        if not isinstance(words, dict) or words.get("name") not in CLUSTERERS:
            raise ValueError(f"{words!r} names no clusterer ({', '.join(CLUSTERERS)}).")
        params = {k: v for k, v in words.items() if k != "name"}
        known = _settings(clusterer_class(words["name"])())
        strange = [k for k, v in params.items() if k not in known or not _plain(v)]
        if strange:
            raise ValueError(f"{words['name']} has no setting {strange[0]}={params[strange[0]]!r}.")
        return _spec(words["name"], params)


@dataclass(frozen=True)
class Described:
    """What is left of a clusterer that could not be written down: its text."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def fit(self, X: Any, y: Any = None) -> Any:
        raise ValueError(
            f"{self.text} was an object when the model was written, and only its text is left: set "
            "the clusterer again before a new fit."
        )


def clusterer_spec(clusterer: Any) -> ClustererSpec:
    """A clusterer by rule, number, ``method:number`` or object, as a value."""
    if isinstance(clusterer, ClustererSpec):
        return clusterer
    if isinstance(clusterer, str):
        method, colon, count = clusterer.rpartition(":")
        if clusterer in BY_RULE:
            return _spec(*BY_RULE[clusterer])
        if colon and method in WITH_K and count.isdecimal() and int(count):
            return _spec(WITH_K[method], {"n_clusters": int(count)})
        if method == "auto" and count.isdecimal() and int(count):
            return _spec("MixedGroups", {"max_groups": int(count)})
        raise ValueError(
            f"clusterer={clusterer!r} is not one of {', '.join(map(repr, BY_RULE))}, 'auto:K', "
            "'kmeans:K', 'spectral:K', 'gradient:K', a number of clusters, or an object with fit() "
            "and labels_."
        )
    if isinstance(clusterer, int | np.integer) and not isinstance(clusterer, bool):
        if clusterer < 1:
            raise ValueError(f"clusterer={clusterer!r} is not a number of groups from 1 on.")
        return _spec("MixedGroups", {"n_groups": int(clusterer)})
    name = type(clusterer).__name__
    if name in CLUSTERERS and type(clusterer) is clusterer_class(name):
        return _spec(name, _settings(clusterer))
    if not hasattr(clusterer, "fit"):
        raise ValueError(
            f"clusterer={clusterer!r} has no fit(): give a clusterer such as KMeansPP."
        )
    return ClustererSpec(name, given=clusterer)


def _spec(name: str, params: dict[str, Any]) -> ClustererSpec:
    """The settings that differ from the defaults; arrays and the like make it an object."""
    defaults = _settings(clusterer_class(name)())
    params = {k: v.item() if isinstance(v, np.generic) else v for k, v in params.items()}
    if not all(_plain(value) for value in params.values()):
        return ClustererSpec(name, given=clusterer_class(name)(**params))
    changed = {k: v for k, v in params.items() if (type(v), v) != (type(defaults[k]), defaults[k])}
    return ClustererSpec(name, tuple(sorted(changed.items())))


def _settings(clusterer: Any) -> dict[str, Any]:
    """The settings of one of odcl's clusterers by name."""
    if isinstance(clusterer, MixedGroups):
        return dict(vars(clusterer))
    found: dict[str, Any] = clusterer.get_params(deep=False)
    return found


def _plain(value: Any) -> bool:
    """A setting that JSON can hold as it is."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int | bool)
