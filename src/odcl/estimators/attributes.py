"""What an estimator shows of its fit. It holds one ``Fitted``, and nothing else is fitted state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from odcl._typing import Array, Floats, Ints
from odcl.data.design import Design
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.exchange.upload import Uploads
from odcl.fitted.value import Fitted
from odcl.method import Method
from odcl.risk.risk import Risk
from odcl.server.assign_models import GroupStatistics

if TYPE_CHECKING:
    from odcl.engines.in_process import Result
    from odcl.mixed.posterior import Mixture


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

    # -- users -----------------------------------------------------------------------------------

    @property
    def users_(self) -> Array:
        """Ids, (n_users,)."""
        return self.fitted_.users.users

    @property
    def labels_(self) -> Ints:
        """Each user's group, (n_users,); -1: an added user that fits none."""
        return self.fitted_.users.group

    @property
    def probability_(self) -> Floats:
        """How surely each user belongs to its group, (n_users,); NaN where it is not known."""
        return self.fitted_.users.probability

    @property
    def n_rows_(self) -> Ints:
        """Rows of each user, (n_users,)."""
        return self.fitted_.users.rows

    @property
    def theta_(self) -> Floats:
        """Each user's model in standardised units, (n_users, dim)."""
        return self.fitted_.users.model

    @property
    def covariance_(self) -> Floats | None:
        """Covariances of the users' models, (n_users, dim, dim), of mixed groups."""
        return self.fitted_.users.covariance

    @property
    def noise_(self) -> Floats | None:
        """Variance of the target around each user's model, (n_users,), of mixed groups."""
        return self.fitted_.users.noise

    @property
    def dof_(self) -> Floats | None:
        """Degrees of freedom behind ``noise_``, (n_users,)."""
        return self.fitted_.users.dof

    @property
    def uploads_(self) -> Uploads | None:
        """What each user sent; None in a saved model where it was too large to keep."""
        return self.fitted_.uploads

    @property
    def n_users_(self) -> int:
        """All users, those among them whose models lie in files."""
        return self.fitted_.n_users

    # -- groups ----------------------------------------------------------------------------------

    @property
    def n_clusters_(self) -> int:
        """The number of groups."""
        return self.fitted_.n_clusters

    @property
    def rule_(self) -> str:
        """What decided on the groups."""
        return self.fitted_.rule

    @property
    def reason_(self) -> str:
        """Why there are these groups, and how users still differ inside them."""
        return self.fitted_.reason

    @property
    def cluster_theta_(self) -> Floats:
        """Each group's model in standardised units, (n_clusters, dim)."""
        return self.fitted_.centers

    @property
    def tau2_(self) -> float | None:
        """How far users of a group differ: variance per coefficient, where it is known."""
        return self.fitted_.tau2

    @property
    def mixture_(self) -> Mixture | None:
        """Mixed groups as users are sent them; None of other methods."""
        return self.fitted_.mixture

    @property
    def groups_(self) -> GroupStatistics:
        """The groups as users who come later are measured by them."""
        return self.fitted_.newcomers.groups

    @property
    def pooled_theta_(self) -> Floats:
        """One model for all rows, in standardised units."""
        return self.fitted_.newcomers.pooled

    @property
    def differences_(self) -> dict[str, float]:
        """How far users of a group differ in each coefficient: standard deviations, by name.

        In the table's units, 0 where they are the same; "(level)" is the prediction for average
        features, and a category with several levels counts as one: how far its effect on a row
        differs. Empty where the method does not tell.
        """
        return self.fitted_.differences

    # -- models in the table's units ---------------------------------------------------------------

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

    @property
    def feature_names_(self) -> list[str]:
        """Names of the coefficients: the columns of X without the users' column."""
        return self.fitted_.feature_names

    # -- how it was fitted -------------------------------------------------------------------------

    @property
    def risk_(self) -> Risk:
        return self.fitted_.risk

    @property
    def method_(self) -> Method:
        """The method as it was used: another one, where mixed groups gave way to it."""
        return self.fitted_.method

    @property
    def scaling_(self) -> Scaling:
        """From the table's units to standardised ones."""
        return self.fitted_.scaling

    @property
    def design_(self) -> Design | None:
        """How features become columns; None: they are numbers, column by column."""
        return self.fitted_.columns.design

    @property
    def schema_(self) -> TableSchema | None:
        """How a table is read, where one was fitted by its schema."""
        return self.fitted_.columns.schema
