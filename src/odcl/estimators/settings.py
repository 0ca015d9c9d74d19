"""Settings of the estimators, refused before any work is done."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from odcl.data.federation import Federation
from odcl.server.combine import COMBINERS

_NAMES = {
    "method": ("default", "paper"),
    "unknown": ("error", "pooled", "nearest"),
    "combine": COMBINERS,
    "curvature": ("auto", "full", "diagonal", "none"),
}


def check_settings(model: Any) -> None:
    """Refuse settings that no data can make good."""
    from odcl.server.step import as_clusterer

    check_values(model)
    as_clusterer(model.clusterer)


def check_values(model: Any) -> None:
    """The settings that are names and numbers; objects are looked at when they are used."""
    for name, allowed in _NAMES.items():
        value = getattr(model, name)
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.")
    for name in ("fit_intercept", "standardize"):
        value = getattr(model, name)
        if not isinstance(value, bool | np.bool_) and value not in (0, 1):
            raise ValueError(f"{name}={value!r} is neither True nor False.")
    if not _is_size(model.l2):
        raise ValueError(
            f"l2={model.l2!r} is the weight of a squared norm: give a finite number >= 0."
        )
    if not (model.refit is None or model.refit in ("evidence", "cv") or _is_size(model.refit)):
        raise ValueError(
            f"refit={model.refit!r} is not one of None, 'evidence', 'cv' and a finite number >= 0."
        )


def _is_size(value: Any) -> bool:
    """A finite number >= 0; True and False are none."""
    number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    return number and math.isfinite(value) and float(value) >= 0


def check_n_groups(model: Any, federation: Federation) -> None:
    """Refuse to ask for more groups than there are users."""
    asked = getattr(model.clusterer, "n_clusters", model.clusterer)
    n_users = federation.n_users
    if not isinstance(asked, Integral) or asked <= n_users:
        return
    seen = f"there are {n_users} users"
    if n_users == 1:
        seen = "there is 1 user"
        if not model.has_users_:
            seen += " (without users= all rows are one user's)"
    raise ValueError(
        f"clusterer={model.clusterer!r} asks for {asked} groups, and {seen}: a group without users "
        f"has no model. Ask for at most {n_users}, say clusterer='auto', or name more users."
    )
