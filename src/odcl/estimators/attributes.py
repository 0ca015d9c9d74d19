"""What an estimator shows of its fit, and its settings, refused before any row is read.

It holds one ``Fitted``, and nothing else is fitted state.
"""

from __future__ import annotations

from numbers import Integral
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from odcl._typing import Floats
from odcl.data.design import UNSEEN
from odcl.data.roles import MISSING
from odcl.errors import InputError, Setting
from odcl.fitted.curves import check_curves
from odcl.fitted.value import Fitted
from odcl.method import Method
from odcl.risk.risk import Risk

if TYPE_CHECKING:
    from odcl.engines.in_process import Result
    from odcl.estimators.base import ODCLEstimator


def _shown(part: str, about: str) -> Any:
    """An attribute that shows a part of ``fitted_``."""
    return property(attrgetter(f"fitted_.{part}"), doc=about)


class FittedAttributes(BaseEstimator):  # type: ignore[misc]
    """Attributes of a fitted estimator, read off its ``fitted_``."""

    _fitted: Fitted
    result_: Result

    def _hold(self, fitted: Fitted, result: Result | None = None) -> Self:
        """Be fitted. ``result`` is the round behind it, where it was in this process."""
        names = fitted.columns.names
        named = None if names is None else np.array(names, dtype=object)
        self._fitted, self.n_features_in_ = fitted, fitted.columns.n
        for name, value in {"feature_names_in_": named, "result_": result}.items():
            if value is not None:
                setattr(self, name, value)
            elif hasattr(self, name):
                delattr(self, name)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    @property
    def fitted_(self) -> Fitted:
        """Everything that the fit left behind, in one frozen value."""
        check_is_fitted(self)
        return self._fitted

    users_ = _shown("users.users", "Ids, (n_users,).")
    labels_ = _shown("users.group", "Users' groups, (n_users,); -1: an added user that fits none.")
    probability_ = _shown("users.probability", "How surely users belong there; NaN: not known.")
    n_rows_ = _shown("users.rows", "Rows of each user, (n_users,).")
    theta_ = _shown("users.model", "Users' models in standardised units, (n_users, dim).")
    covariance_ = _shown("users.covariance", "Of mixed groups: of ``theta_``, (n_users, dim, dim).")
    noise_ = _shown("users.noise", "Of mixed groups: variance of the target around each model.")
    dof_ = _shown("users.dof", "Degrees of freedom behind ``noise_``, (n_users,).")
    uploads_ = _shown("uploads", "What users sent; None in a saved model: too large to keep.")
    n_users_ = _shown("n_users", "All users, those among them whose models lie in files.")

    n_clusters_ = _shown("n_clusters", "The number of groups.")
    rule_ = _shown("rule", "What decided on the groups.")
    reason_ = _shown("reason", "Why there are these groups, and how users differ inside them.")
    outliers_ = _shown("outliers", "Users who take no part in others' models, and why.")
    cluster_theta_ = _shown("centers", "Groups' models in standardised units, (n_clusters, dim).")
    tau2_ = _shown("tau2", "How far users of a group differ: variance per coefficient.")
    mixture_ = _shown("mixture", "Mixed groups as users are sent them; None of other methods.")
    groups_ = _shown("newcomers.groups", "The groups as later users are measured by them.")
    pooled_theta_ = _shown("newcomers.pooled", "One model for all rows, in standardised units.")

    feature_names_ = _shown("feature_names", "Names of the coefficients: X without the users.")
    risk_ = _shown("risk", "What every user minimised.")
    method_ = _shown("method", "The method as used: another, where mixed groups gave way to it.")
    scaling_ = _shown("scaling", "From the table's units to standardised ones.")
    design_ = _shown("columns.design", "How features become columns; None: they are numbers.")
    schema_ = _shown("columns.schema", "How a table is read, where one was fitted by its schema.")

    @property
    def differences_(self) -> dict[str, float]:
        """How far users of a group differ in each coefficient: standard deviations, by name.

        In the table's units, 0 where they are the same; "(level)" is the prediction for average
        features, and a category with several levels counts as one: how far its effect on a row
        differs. Empty where the method does not tell.
        """
        return self.fitted_.differences

    @property
    def coef_(self) -> Floats:
        """Each user's coefficients in the table's units, (n_users, n_features).

        Multinomial: (n_users, n_classes, n_features). Columns as in ``feature_names_``.
        """
        return self.fitted_.in_table_units(self.theta_)[0]

    @property
    def intercept_(self) -> Floats:
        """Each user's intercept, (n_users,); multinomial: (n_users, n_classes)."""
        return self.fitted_.in_table_units(self.theta_)[1]

    @property
    def group_coef_(self) -> Floats:
        """Each group's coefficients, shaped as ``coef_``."""
        return self.fitted_.in_table_units(self.cluster_theta_)[0]

    @property
    def group_intercept_(self) -> Floats:
        """Each group's intercept, shaped as ``intercept_``."""
        return self.fitted_.in_table_units(self.cluster_theta_)[1]

    # -- as frames -----------------------------------------------------------------------------

    def coefficients(self) -> Any:
        """A pandas frame of every user's model in the table's units, under the columns' names.

        One row per user (multinomial: per user and class): user, group, (class,) the features,
        bends of those that act in a curve ("price~1", ... beside the line, "price"), and
        "(intercept)".
        """
        import pandas as pd

        key = {"user": self.users_, "group": self.labels_}
        return pd.DataFrame(self.fitted_.model_table(self.theta_, key))

    def curve(
        self, column: Any, user: Any = None, *, group: int | None = None, points: int = 100
    ) -> Any:
        """What a column adds to predictions, as a frame of ``points`` values: x, value, low, high.

        ``x`` is in the table's units, over the values that were seen (of a line, and of a round by
        a card, two standard deviations around its average); ``value`` is relative to the column's
        average, line and bends together, in units of the target, for counts of its logarithm and
        for classes in log-odds (of several classes one row per point and class). Between ``low``
        and ``high`` it lies with a probability of 90 %, where the method tells. It is of the
        ``user``, of the ``group``, or of what all have in common.
        """
        import pandas as pd

        from odcl.fitted.predict import Effect, column_in_use, common_model, user_model

        fitted = self.fitted_
        if group is not None and (user is not None or not 0 <= group < fitted.n_clusters):
            raise ValueError(
                f"group={group!r} is not one of the {fitted.n_clusters} groups, counted from 0, or "
                "stands beside a user: name one of both."
            )
        at = column_in_use(fitted, column)
        effect = Effect.of(fitted, at, points, own=user is not None)
        own = common_model(fitted, group) if user is None else user_model(fitted, user)
        value, half = effect.values(own[0])[0], 1.645 * effect.errors(own[1])
        several = value.shape[1]
        found = {"x": np.repeat(effect.x, several), "value": value.ravel()}
        if several > 1:
            found["class"] = np.tile(np.asarray(fitted.columns.classes), points)
        return pd.DataFrame(found | {"low": (value - half).ravel(), "high": (value + half).ravel()})

    def importance(self) -> Any:
        """How much of the predictions' variance columns, groups and users' own differences carry.

        A pandas series of shares, which add up to one: columns by what all users have in common,
        the largest first, then "(groups)" and "(users)", what these add to it. See
        :func:`odcl.fitted.predict.importance`.
        """
        import pandas as pd

        from odcl.fitted.predict import importance

        found = importance(self.fitted_)
        if found is None:
            raise self.fitted_.without_mixture("Shares of variance")
        return pd.Series(found, name="share")


# -- settings --------------------------------------------------------------------------------------


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
            "does not allow, and holds models of exact rows: uploads are private by task card and "
            "on Flower. What that costs on this table, odcl.fit on arrays says, with "
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
