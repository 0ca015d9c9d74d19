"""Settings of estimators, refused before any row is read."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

from odcl.data.design import UNSEEN
from odcl.data.roles import MISSING
from odcl.engines.curves import check_curves
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
    check_curves(model.curves, model.periodic)
    Risk(l2=model.l2)
    if model._method.curves:
        raise ValueError(
            "Method(curves=...) is for odcl.fit on arrays, and an estimator has a setting of its "
            "own: say curves=True or curves=['price'] beside the method."
        )


def fitting_method(model: ODCLEstimator) -> Method:
    """The method to fit with."""
    method = model._method
    if method.privacy is not None:
        raise ValueError(
            "An estimator reads columns, levels and units off the rows, which a guarantee for rows "
            "does not allow: use a task card with [privacy], or odcl.fit on arrays with "
            "Privacy(shift=..., scale=...)."
        )
    return method


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


def check_several(n_users: int) -> None:
    """Refuse a table of one user."""
    if n_users == 1:
        raise ValueError(
            "The table has one user, and groups need several. Check the column that names the "
            "user, or fit an ordinary model."
        )
