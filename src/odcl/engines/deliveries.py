"""Downloads as arrays and back, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.artifact.arrays import ArraySpec, expect, is_size
from odcl.engines.arrivals import Agreed
from odcl.exchange.download import Downloads
from odcl.exchange.mixture import SPECS, mixture_from_arrays, mixture_to_arrays
from odcl.exchange.upload import Uploads
from odcl.mixed.posterior import Mixture
from odcl.server.assign import Assignment

_MIXTURE = "mixture."

# -- writing ---------------------------------------------------------------------------------------


def mixture_parts(mixture: Mixture | None) -> tuple[Any, dict[str, Array]]:
    """Mixed groups as words and arrays beside others; None and nothing where there are none."""
    if mixture is None:
        return None, {}
    words, arrays = mixture_to_arrays(mixture)
    return words, {_MIXTURE + name: array for name, array in arrays.items()}


def plain(array: Array) -> Array:
    """Whole numbers as every machine writes them."""
    return array.astype(np.int64) if array.dtype.kind == "i" else array


# -- reading ---------------------------------------------------------------------------------------

MIXTURE_SPECS = {_MIXTURE + name: spec for name, spec in SPECS.items()}


def download_specs(dim: int) -> dict[str, ArraySpec]:
    """What the arrays of users' own downloads have to be."""
    return {
        name: ArraySpec(
            shape,
            ("int64",) if name.startswith("group") else ("float64",),
            optional=True,
            finite=name != "dispersion",
        )
        for name, shape in Downloads.array_shapes("users", {"dim": dim}).items()
    }


def late_specs() -> dict[str, ArraySpec]:
    """What stands beside the downloads of users who came after the round."""
    return {
        "distance": ArraySpec(("users",), finite=False),
        "none_of_these": ArraySpec(("users",), ("bool",)),
    }


def mixture_of(agreed: Agreed, words: Any, arrays: Mapping[str, Array]) -> Mixture | None:
    """The mixed groups among words and arrays; None where the words are."""
    if words is None:
        return None
    mixed = {name: arrays[key] for name in SPECS if (key := _MIXTURE + name) in arrays}
    return mixture_from_arrays(words, mixed, agreed.risk, agreed.n_features)


def downloads_of(
    agreed: Agreed,
    users: Array,
    arrays: Mapping[str, Array],
    n_groups: int,
    mixture: Mixture | None,
) -> Downloads:
    """Users' downloads with what everybody knows: the last step, and the groups."""
    given = Downloads.from_arrays(users, arrays)
    refit = "evidence" if mixture is not None else agreed.method.refit
    group, size = given.group.astype(np.intp), given.group_size.astype(np.intp)
    given = replace(given, group=group, group_size=size, refit=refit, mixture=mixture)
    _check(given, n_groups)
    return given


def _check(downloads: Downloads, n_groups: int) -> None:
    inside = bool((downloads.group >= -1).all() and (downloads.group < n_groups).all())
    expect(inside and bool((downloads.group_size >= 0).all()), "a group that is not there")
    sure = downloads.probability
    expect(sure is None or bool(((sure >= 0) & (sure <= 1 + 1e-9)).all()), "no probabilities")
    expect(downloads.tau2 is None or is_size(downloads.tau2), "a spread that is none")
    phi = downloads.dispersion
    expect(phi is None or bool((phi >= 0).all()), "a negative noise")


# -- users who come after the round ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LateUsers:
    """Users who came after the round: where each belongs, and what it receives."""

    found: list[Assignment]
    downloads: Downloads
    distance: Floats  # (n_users,), from the group in noise units: about 1 for a member
    none_of_these: Bools  # (n_users,)

    @classmethod
    def placed(cls, uploads: Uploads, mixture: Mixture, sizes: Ints) -> LateUsers:
        """By mixed groups, of which ``sizes`` (n_groups,) are the numbers of users."""
        from odcl.server.assign import place_mixed

        found = [place_mixed(one, mixture) for one in uploads]
        likeliest = np.array([int(one.probabilities.argmax()) for one in found], dtype=np.intp)
        models = np.array([one.theta for one in found]).reshape(len(found), uploads.dim)
        return cls.of(found, uploads, models, sizes[likeliest])

    @classmethod
    def of(
        cls,
        found: list[Assignment],
        uploads: Uploads,
        models: Floats,
        sizes: Ints,
        **more: Any,
    ) -> LateUsers:
        """Users where they were placed, with the models and sizes of their groups."""
        labels = np.array([one.label for one in found], dtype=np.intp)
        sure = np.array([one.probability for one in found])
        told = None if np.isnan(sure).any() else sure
        downloads = Downloads(uploads.users, models, labels, sizes, told, **more)
        distance = np.array([one.distance for one in found])
        return cls(
            found, downloads, distance, np.array([one.none_of_these for one in found], dtype=bool)
        )
