"""Settings of estimators, refused before any row is read."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

from odcl.data.design import UNSEEN
from odcl.data.roles import MISSING
from odcl.errors import InputError, Setting
from odcl.method import Method
from odcl.risk.risk import Risk

if TYPE_CHECKING:
    from odcl.estimators.base import ODCLEstimator

UNKNOWN = ("error", "pooled")


def check_settings(model: ODCLEstimator) -> None:
    """Refuse settings that no data can make good."""
    for name, known in {"unknown": UNKNOWN, "unseen": UNSEEN, "missing": MISSING}.items():
        if getattr(model, name) not in known:
            words = ", ".join(map(repr, known))
            raise ValueError(f"{name}={getattr(model, name)!r} is not one of {words}.")
    if not (model.users is None or isinstance(model.users, (str, Integral))):
        raise ValueError(
            f"users= in the constructor is the name or position of a column of X, and not a "
            f"{type(model.users).__name__}: say whose rows these are in fit(X, y, users=...)."
        )
    if model.fit_intercept not in (True, False):
        raise ValueError(f"fit_intercept={model.fit_intercept!r} is neither True nor False.")
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
    raise InputError(
        f"The clustering asks for {asked} groups, and {seen}: a group without users has no "
        f"model. Ask for at most {n_users}, or say ",
        *(Setting("clusterer", "auto"), ", which finds their number."),
    )
