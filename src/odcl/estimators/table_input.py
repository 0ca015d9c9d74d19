"""How tables and arrays come in: features, owners and targets, checked; settings refused early."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import (
    column_or_1d,
    validate_data,
)

from odcl._typing import Array, Floats
from odcl.data.federation import (
    MOST_SIZE,
    check_features,
    has_names,
    take_column,
)
from odcl.data.tables import as_table
from odcl.method import Method
from odcl.risk.risk import Risk

if TYPE_CHECKING:
    pass


class TableInput(BaseEstimator):  # type: ignore[misc]
    """What fit, predict and later users have in common: rows are checked and split from owners."""

    def _split(self, X: Any, users: Any, *, fitting: bool) -> tuple[Any, Any]:
        """Features and owners: the owners from the argument, or from the column named."""
        if not fitting and self.schema_ is not None and has_names(X):
            return self._encoded(X, users)
        if self.users is None:
            return X, users
        if users is not None:
            raise ValueError(
                f"Users were given twice: as column {self.users!r} of X (users={self.users!r} in "
                "the constructor) and as users=. Leave one of them out."
            )
        validate_data(self, X, reset=fitting, skip_check_array=True)
        return take_column(X, self.users)

    def _encoded(self, table: Any, users: Any) -> tuple[Floats, Any]:
        """A table with the columns that the schema knows, in any order, as features and owners."""
        assert self.schema_ is not None
        table = as_table(table)
        if users is not None:  # in place of the users' column, which may be there or not
            columns = {name: table[name] for name in table.column_names}
            somebody = np.full(table.num_rows, self.users_.tolist()[0])
            table = {**columns, self.schema_.user: somebody}
        missing = "mean" if self.schema_.missing == "mean" else "error"  # no row may go missing
        encoded = self.schema_.encode(table, with_target=False, missing=missing)
        owners = encoded.users if self.schema_.user else None
        return encoded.X, owners if users is None else users

    def _validated_X(self, X: Any, *, fitting: bool = False) -> Floats:
        check_features(X)
        if self.users is not None:  # names and width were checked with the users' column
            return check_array(X, dtype=np.float64, estimator=self, input_name="X")
        return validate_data(self, X, reset=fitting, dtype=np.float64)

    def _validated(self, X: Any, y: Any) -> tuple[Floats, Array]:
        if y is None:
            raise ValueError(
                f"requires y to be passed, but the target y is None: {type(self).__name__} "
                "learns to predict it."
            )
        X = self._validated_X(X, fitting=True)
        y = self._checked_target(column_or_1d(y, warn=True))
        check_consistent_length(X, y)
        return X, y

    def _rows_of_one(self, X: Any, y: Any) -> tuple[Floats, Floats]:
        """The rows of one user as its model sees them, checked: features scaled, target encoded."""
        X = self._validated_X(self._without_owner(X))
        y = self._checked_target(column_or_1d(y))
        check_consistent_length(X, y)
        rows = np.ascontiguousarray(self.scaling_.apply(X))  # frames come column by column
        size = np.abs(rows).max(axis=0, initial=0.0)
        if (size >= MOST_SIZE).any():
            name = self.feature_names_[self.scaling_.used[size.argmax()]]
            raise ValueError(
                f"Feature {name!r} reaches {size.max():.1g} times its spread in the fit, and its "
                "squares are beyond what a computer counts with: correct that value."
            )
        return rows, self.risk_.loss.encode(self._encode_known(y))

    def _without_owner(self, X: Any) -> Any:
        """The features of one user's rows; the users' column may be there or not."""
        width = np.shape(X)[1] if len(np.shape(X)) == 2 else -1
        if self.schema_ is not None and has_names(X):
            names = X.column_names if hasattr(X, "column_names") else X.columns
            X, ids = self._encoded(X, None if self.schema_.user in names else self.users_[:1])
        elif self.users is None:
            return X
        elif width == self.n_features_in_ - 1:
            names = getattr(self, "feature_names_in_", None)
            if names is not None and hasattr(X, "columns") and list(X.columns) != self._own_names():
                raise ValueError(
                    f"The columns of X are {list(X.columns)}, and those of the fit were "
                    f"{self._own_names()} beside the users' {self.users!r}: pass the same in the "
                    "same order."
                )
            return X
        else:
            X, ids = self._split(X, None, fitting=False)
        if len(set(ids.tolist())) > 1:
            raise ValueError(
                f"These are rows of {len(set(ids.tolist()))} users, and one user is assigned at a "
                "time: pass the rows of one."
            )
        return X


UNKNOWN = ("error", "pooled", "nearest")


def check_settings(model: Any) -> None:
    """Refuse settings that no data can make good."""
    if model.unknown not in UNKNOWN:
        words = ", ".join(map(repr, UNKNOWN))
        raise ValueError(f"unknown={model.unknown!r} is not one of {words}.")
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
    raise ValueError(
        f"{method.clusterer} asks for {asked} groups, and {seen}: a group without users has no "
        f"model. Ask for at most {n_users}, say clusterer='auto', or name more users."
    )
