"""Settings of the estimators, refused before any work is done."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from odcl.method import Method
from odcl.risk.risk import Risk

UNKNOWN = ("error", "pooled", "nearest")


def check_settings(model: Any) -> None:
    """Refuse settings that no data can make good."""
    if model.unknown not in UNKNOWN:
        words = ", ".join(map(repr, UNKNOWN))
        raise ValueError(f"unknown={model.unknown!r} is not one of {words}.")
    value = model.fit_intercept
    if not isinstance(value, bool | np.bool_) and value not in (0, 1):
        raise ValueError(f"fit_intercept={value!r} is neither True nor False.")
    Risk(l2=model.l2)
    Method.of(model.method, clusterer=model.clusterer)


def check_n_groups(method: Method, n_users: int, has_users: bool) -> None:
    """Refuse to ask for more groups than there are users."""
    asked = method.clusterer.n_clusters
    if not isinstance(asked, Integral) or asked <= n_users:
        return
    seen = f"there are {n_users} users" if n_users > 1 else "there is 1 user"
    if not has_users:
        seen += " (without users= all rows belong to one)"
    raise ValueError(
        f"{method.clusterer} asks for {asked} groups, and {seen}: a group without users has no "
        f"model. Ask for at most {n_users}, say clusterer='auto', or name more users."
    )
